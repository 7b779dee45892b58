//! The standard world with sealed rules: which service has which treatment, and what an observer on the path sees.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lab::service::Echo;
use lab::world::{Agent, Authority, DARK4, DARK6, FRONT4, FRONT6, Network, Services, Verifier, Way};
use lab::{Acceptor, Capture, Namespace};

/// Port of the tunnel.
pub const TUNNEL: u16 = 4499;
/// An echo whose rule demands `authenticate`.
pub const SIGNED: u16 = 2007;
/// An echo whose rule demands `encrypt`, compressed.
pub const PACKED: u16 = 3007;
/// A web server, authenticated.
pub const WEB: u16 = 80;
/// A printer, encrypted and compressed.
pub const PRINTER: u16 = 9100;
/// A server that sends as much as its client asks for, encrypted.
pub const SOURCE: u16 = 5001;
/// A server of datagrams, encrypted.
pub const ANSWERS: u16 = 5002;
pub const POOL: [&str; 2] = ["--tunnel-pool", "100.127.0.0/16,fd56:5346::/64"];
/// How long to wait for an answer that must not come.
pub const QUIET: Duration = Duration::from_millis(800);

/// The web server's page.
pub const PAGE: &str = "<p>the web server's page in clear under a tag</p>";

const POLICY: &str = r#"
[groups]
staff = ["alice", "mallory"]

[[receivers]]
name = "front"
address = ["FRONT4", "FRONT6"]
services = ["tcp/22", "tcp/7", "udp/7", "tcp/5001", "udp/5002"]
verifier = "edge"

[[receivers]]
name = "web"
address = ["FRONT4", "FRONT6"]
services = ["tcp/80", "tcp/2007"]
verifier = "edge"

[[receivers]]
name = "printer"
address = ["FRONT4", "FRONT6"]
services = ["tcp/9100", "tcp/3007"]
verifier = "edge"

[[receivers]]
name = "dark"
address = ["DARK4", "DARK6"]
services = "all"
verifier = "edge"

[[receivers]]
name = "tunnel"
address = ["FRONT4"]
services = ["udp/4499"]
verifier = "edge"
tunnel = true

[[rules]]
name = "front"
action = "allow"
who = "group:staff"
to = "front"
lifetime = "LIFETIME"
treatment = "encrypt"
rekey = "REKEY"

[[rules]]
name = "web"
action = "allow"
who = "group:staff"
to = "web"
lifetime = "LIFETIME"
treatment = "authenticate"

[[rules]]
name = "printer"
action = "allow"
who = "group:staff"
to = "printer"
lifetime = "LIFETIME"
treatment = "encrypt"
compress = "always"

[[rules]]
name = "native"
action = "allow"
who = "group:staff"
to = "dark"

[[rules]]
name = "way into the tunnel"
action = "allow"
who = "group:staff"
to = "tunnel"
lifetime = "LIFETIME"
"#;

/// The world, with Alice logged in.
pub struct Stage {
    pub agent: Agent,
    pub verifier: Verifier,
    pub authority: Authority,
    pub services: Services,
    _served: Vec<Served>,
    _echoes: Vec<Echo>,
    pub network: Network,
}

impl Stage {
    /// Starts the world. Grants last five minutes, and keys two.
    pub fn new() -> Result<Self> {
        Self::with("5m", "2m", &[])
    }

    /// Starts the world with this lifetime of grants, this age of keys, and these flags of the agent.
    pub fn with(lifetime: &str, rekey: &str, flags: &[&str]) -> Result<Self> {
        let network = Network::new(Way::Nat)?;
        let services = Services::start(&network)?;
        let echoes = vec![Echo::start(&network.server, SIGNED)?, Echo::start(&network.server, PACKED)?];
        let served = vec![
            Served::start(&network.server, WEB, page)?,
            Served::start(&network.server, PRINTER, print)?,
            Served::start(&network.server, SOURCE, pour)?,
        ];
        let authority = Authority::start(&network.authority, &policy(lifetime, rekey))?;
        let verifier = Verifier::start_with(&network.server, &authority, &POOL)?;
        let flags = ["--interface", "eth0"].iter().chain(flags).map(|flag| (*flag).to_owned());
        let agent = Agent::start_with(&network.alice, &flags.collect::<Vec<_>>())?;
        agent.login(&authority, "alice")?;
        Ok(Self { agent, verifier, authority, services, _served: served, _echoes: echoes, network })
    }

    /// Begins to capture on the server's cable, where every packet of the world passes.
    pub fn observe(&self) -> Result<Capture> {
        Capture::start(&self.network.internet, "dc")
    }
}

/// Returns the policy with this lifetime of grants and this age of keys.
pub fn policy(lifetime: &str, rekey: &str) -> String {
    let values = [
        ("FRONT4", FRONT4),
        ("FRONT6", FRONT6),
        ("DARK4", DARK4),
        ("DARK6", DARK6),
        ("LIFETIME", lifetime),
        ("REKEY", rekey),
    ];
    values.iter().fold(POLICY.to_owned(), |text, (name, value)| text.replace(name, value))
}

/// Checks that no packet to or from the front travelled outside of the tunnel.
pub fn nothing_outside(capture: &Capture) -> Result<()> {
    // An ICMP error about the tunnel's own datagrams quotes nothing of a flow in it.
    let filter = format!(
        "(host {FRONT4} or host {FRONT6}) and (tcp or udp or icmp or ip[6:2] & 0x1fff != 0) and not (udp port {TUNNEL}) \
         and not (icmp and (icmp[28:2] = {TUNNEL} or icmp[30:2] = {TUNNEL}))"
    );
    capture.settle()?;
    let seen = capture.lines(&filter)?;
    ensure!(seen.is_empty(), "outside of the tunnel: {seen:#?}");
    ensure!(!capture.lines(&format!("udp port {TUNNEL}"))?.is_empty(), "the tunnel was not used");
    Ok(())
}

/// Reports which of these texts an observer can read in a capture.
pub fn readable<'t>(file: &Path, texts: &[&'t str]) -> Result<Vec<&'t str>> {
    let bytes = fs::read(file).context("cannot read the capture")?;
    let is_there = |text: &&&str| bytes.windows(text.len()).any(|window| window == text.as_bytes());
    Ok(texts.iter().filter(is_there).copied().collect())
}

pub fn at(host: &str, port: u16) -> SocketAddr {
    SocketAddr::new(host.parse().expect("an address"), port)
}

/// A server in a namespace. Dropping it ends the server.
pub struct Served {
    _acceptor: Acceptor,
}

impl Served {
    /// Serves TCP `port` of every address.
    pub fn start(namespace: &Namespace, port: u16, serve: fn(&TcpStream) -> std::io::Result<()>) -> Result<Self> {
        let listener = namespace.enter(|| TcpListener::bind(("::", port))).context("cannot listen")?;
        Ok(Self { _acceptor: Acceptor::start(listener, move |stream, _| drop(serve(stream))) })
    }
}

/// Answers a request with a page.
fn page(mut stream: &TcpStream) -> std::io::Result<()> {
    let (mut request, mut buffer) = (Vec::<u8>::new(), [0; 4096]);
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        match stream.read(&mut buffer)? {
            0 => return Ok(()),
            size => request.extend(&buffer[..size]),
        }
    }
    write!(stream, "HTTP/1.0 200 OK\r\nContent-Length: {}\r\n\r\n{PAGE}", PAGE.len())
}

/// Takes a job, as a printer at port 9100 does, and says how many bytes it had.
fn print(mut stream: &TcpStream) -> std::io::Result<()> {
    let mut job = Vec::new();
    stream.read_to_end(&mut job)?;
    write!(stream, "{} bytes printed", job.len())
}

/// Sends as many bytes as a client asks for with eight.
pub fn pour(mut stream: &TcpStream) -> std::io::Result<()> {
    let mut wanted = [0; 8];
    stream.read_exact(&mut wanted)?;
    let (mut left, chunk) = (u64::from_be_bytes(wanted), vec![0x5a; 64 * 1024]);
    while left > 0 {
        let part = left.min(chunk.len() as u64);
        stream.write_all(&chunk[..part as usize])?;
        left -= part;
    }
    Ok(())
}
