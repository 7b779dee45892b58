//! Two gateways before the same servers: flows in a tunnel survive that the tunnel's address moves to the other gateway.
//!
//! ```text
//!                  ┌── gateway ──┐
//! alice … internet ┤    sync     ├── server
//!                  └── second  ──┘
//! ```

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lab::net::{Namespace, veth};
use lab::service::{call, exchange};
use lab::world::{Agent, Authority, DARK4, ECHO, FRONT4, Network, PUBLIC4, SOON, Services, Verifier, Way};
use lab::{Capture, poll, test};

use crate::roaming::payloads;
use crate::stage::{POOL, QUIET, SOURCE, Served, TUNNEL, at, pour};

/// Address of the tunnels, which is on both gateways.
const SHARED: &str = "192.0.6.1";
const PEER_PORT: u16 = 8446;
/// A server that sends a few bytes now and then, as long as its client is there.
const TICKER: u16 = 5003;
/// Longest time after which flows may go on: the client notices within two seconds, and TCP sends again what was lost.
/// A loaded machine needs longer.
const PATIENCE: Duration = Duration::from_secs(30);

const POLICY: &str = r#"
[groups]
staff = ["alice"]

[[receivers]]
name = "servers"
address = "DARK4"
services = "all"
verifier = "edge"

[[receivers]]
name = "echo"
address = "FRONT4"
services = "tcp/7"
verifier = "edge"

[[receivers]]
name = "tunnel"
address = "SHARED"
services = "udp/4499"
verifier = "edge"
tunnel = true

[[rules]]
name = "encrypted"
action = "allow"
who = "group:staff"
to = "servers"
treatment = "encrypt"

[[rules]]
name = "authenticated"
action = "allow"
who = "group:staff"
to = "echo"
treatment = "authenticate"

[[rules]]
name = "way into the tunnel"
action = "allow"
who = "group:staff"
to = "tunnel"
"#;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    First,
    Second,
}

/// The two gateways, of which `twin` is the second one's verifier. Fields are declared in the order in which they are
/// dropped.
struct Two {
    agent: Agent,
    twin: Verifier,
    verifier: Verifier,
    authority: Authority,
    _served: Vec<Served>,
    services: Services,
    network: Network,
    second: Namespace,
    flags: Vec<String>,
}

impl Two {
    fn new() -> Result<Self> {
        let network = Network::behind_gateway(Way::Nat)?;
        let services = Services::start(&network)?;
        let served = vec![Served::start(&network.server, SOURCE, pour)?, Served::start(&network.server, TICKER, tick)?];
        let (first, internet, server) = (network.front(), &network.internet, &network.server);
        let second = Namespace::new("second")?;
        veth(&second, "eth0", "192.0.4.1/24", internet, "dc2", "192.0.4.254/24")?;
        veth(&second, "eth1", "192.0.5.1/24", server, "eth1", "192.0.5.2/24")?;
        veth(first, "sync", "10.99.0.1/24", &second, "sync", "10.99.0.2/24")?;
        second.route("default", "192.0.4.254")?;
        second.route("192.0.2.0/24", "192.0.5.2")?;
        second.forward()?;
        for gateway in [first, &second] {
            gateway.ip(&format!("address add {SHARED}/32 dev lo"))?;
        }
        for (namespace, keys) in [(server, ["all", "eth0", "eth1"]), (internet, ["all", "dc", "dc2"])] {
            for key in keys {
                namespace.sysctl(&format!("net/ipv4/conf/{key}/rp_filter"), "0")?;
            }
        }
        let policy = [("DARK4", DARK4), ("FRONT4", FRONT4), ("SHARED", SHARED)]
            .iter()
            .fold(POLICY.to_owned(), |text, (name, value)| text.replace(name, value));
        let authority = Authority::start(&network.authority, &policy)?;
        let [flags, others] = ["10.99.0.2", "10.99.0.1"].map(|peer| {
            let (peer, listen) = (format!("{peer}:{PEER_PORT}"), format!("[::]:{PEER_PORT}"));
            let all = [&["--inside", "eth1", "--peers", &peer, "--peer-listen", &listen], &POOL[..]].concat();
            all.iter().map(|&flag| flag.to_owned()).collect::<Vec<_>>()
        });
        let verifier = Verifier::start_with(first, &authority, &words(&flags))?;
        let twin = verifier.twin(&second, &words(&others))?;
        let agent = Agent::start(&network.alice)?;
        let this = Self { agent, twin, verifier, authority, _served: served, services, network, second, flags };
        this.take(By::First)?;
        this.meet()?;
        this.agent.login(&this.authority, "alice")?;
        Ok(this)
    }

    /// Waits until both gateways have sent each other all their flows.
    fn meet(&self) -> Result<()> {
        let met = |verifier: &Verifier| {
            verifier.status().is_ok_and(|status| {
                status["peers"][0]["connected"] == true
                    && status["peers_heard"].as_array().is_some_and(|list| list.len() == 1)
            })
        };
        let both = poll(SOON, || met(&self.verifier) && met(&self.twin));
        ensure!(both, "{}\n{}", self.verifier.log(), self.twin.log());
        Ok(())
    }

    /// Routes packets to the tunnel, to the servers and back through this gateway.
    fn take(&self, by: By) -> Result<()> {
        let (there, back) = match by {
            By::First => ("192.0.3.1", "192.0.2.254"),
            By::Second => ("192.0.4.1", "192.0.5.1"),
        };
        self.network.internet.route("192.0.2.0/24", there)?;
        self.network.internet.route(&format!("{SHARED}/32"), there)?;
        self.network.server.route("default", back)
    }

    /// Captures on both ways to the gateways.
    fn observe(&self) -> Result<[Capture; 2]> {
        let capture = |device| Capture::start(&self.network.internet, device);
        Ok([capture("dc")?, capture("dc2")?])
    }

    /// Waits until the other gateway has as many flows inside of tunnels as `verifier` has.
    fn told(&self, verifier: &Verifier, other: &Verifier) -> Result<()> {
        let are_same = poll(SOON, || {
            let flows = [verifier, other].map(|at| inside(at).unwrap_or_default());
            !flows[0].is_empty() && flows[0] == flows[1]
        });
        ensure!(are_same, "{:?}\n{:?}\n{}", verifier.flows()?, other.flows()?, other.log());
        Ok(())
    }

    fn logs(&self) -> String {
        format!("agent:\n{}\nfirst:\n{}\nsecond:\n{}", self.agent.log(), self.verifier.log(), self.twin.log())
    }
}

fn words(flags: &[String]) -> Vec<&str> {
    flags.iter().map(String::as_str).collect()
}

/// Returns the clients and servers of the flows inside of tunnels.
fn inside(verifier: &Verifier) -> Result<Vec<String>> {
    let flows = verifier.flows()?;
    let in_pool = |flow: &&serde_json::Value| flow["client"].as_str().is_some_and(|client| client.contains("100.127."));
    let mut all: Vec<_> =
        flows.iter().filter(in_pool).map(|flow| format!("{} {}", flow["client"], flow["server"])).collect();
    all.sort();
    Ok(all)
}

/// Sends a few bytes every 300 ms until the client has gone.
fn tick(mut stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    loop {
        stream.write_all(b"tick\n")?;
        thread::sleep(Duration::from_millis(300));
    }
}

/// A client that only receives, and the number of bytes that it has received.
struct Receiver {
    got: Arc<AtomicU64>,
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<std::io::Result<()>>>,
}

impl Receiver {
    /// Begins to receive from this port; takes at most this many bytes in a turn, with a pause after each.
    fn start(two: &Two, port: u16, (turn, pause): (usize, Duration)) -> Result<Self> {
        let alice = &two.network.alice;
        let mut stream = alice.enter(|| TcpStream::connect_timeout(&at(DARK4, port), SOON)).context("no server")?;
        stream.write_all(&u64::MAX.to_be_bytes())?;
        stream.set_read_timeout(Some(Duration::from_millis(100)))?;
        let (got, end) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (counted, ends) = (got.clone(), end.clone());
        let thread = thread::spawn(move || {
            let mut buffer = vec![0; turn];
            while !ends.load(Relaxed) {
                match stream.read(&mut buffer) {
                    Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                    Ok(size) => drop(counted.fetch_add(size as u64, Relaxed)),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error),
                }
                thread::sleep(pause);
            }
            Ok(())
        });
        Ok(Self { got, end, thread: Some(thread) })
    }

    fn got(&self) -> u64 {
        self.got.load(Relaxed)
    }

    /// Ends the client; fails if its connection was broken.
    fn end(mut self) -> Result<()> {
        self.end.store(true, Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        Ok(ended.and_then(Result::ok).context("no thread")??)
    }
}

/// An interactive ssh session, in which the server answers each line.
struct Session(Child, mpsc::Receiver<String>);

impl Session {
    fn start(two: &Two) -> Result<Self> {
        let mut command = two.services.sshd.client(&two.network.alice, DARK4.parse()?, &["cat"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let out = child.stdout.take().context("no output")?;
        let (lines, said) = mpsc::channel();
        thread::spawn(move || BufReader::new(out).lines().map_while(Result::ok).try_for_each(|line| lines.send(line)));
        Ok(Self(child, said))
    }

    fn say(&mut self, text: &str) -> Result<()> {
        writeln!(self.0.stdin.as_mut().context("no input")?, "{text}")?;
        let heard = self.1.recv_timeout(PATIENCE).context("the session is silent")?;
        ensure!(heard == text, "the session said {heard:?}, not {text:?}");
        Ok(())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Checks that nothing to or from the servers or the inside addresses came by, as a tunnel of the first gateway did.
fn nothing_in_clear(captures: &[Capture]) -> Result<()> {
    for capture in captures {
        capture.settle()?;
        let seen = capture.lines("net 192.0.2.0/24 or net 100.127.0.0/16")?;
        ensure!(seen.is_empty(), "outside of the tunnel: {seen:#?}");
    }
    let tunnel = format!("host {SHARED} and udp port {TUNNEL}");
    ensure!(captures.first().is_some_and(|first| first.lines(&tunnel).is_ok_and(|l| !l.is_empty())), "no tunnel");
    Ok(())
}

/// Opens flows, kills the first gateway's daemon and moves the tunnel's address to the second: all flows go on there, and
/// go on at the first again when it is back.
#[test]
fn flows_go_on_when_the_tunnel_s_address_moves_to_the_other_gateway() {
    test(|| {
        let mut two = Two::new()?;
        let captures = two.observe()?;
        let alice = &two.network.alice;
        let mut echo = call(alice, at(FRONT4, ECHO), SOON)?;
        echo.set_read_timeout(Some(PATIENCE))?;
        let mut session = Session::start(&two)?;
        session.say("before")?;
        let download = Receiver::start(&two, SOURCE, (32 * 1024, Duration::from_millis(10)))?;
        let ticker = Receiver::start(&two, TICKER, (1024, Duration::ZERO))?;
        ensure!(poll(SOON, || download.got() > 1_000_000 && ticker.got() > 5), "nothing comes");
        two.told(&two.verifier, &two.twin)?;
        let mut goes_on = |by: By, two: &Two| -> Result<()> {
            two.take(by)?;
            let (begun, before) = (Instant::now(), [download.got(), ticker.got()]);
            let receives = || download.got() > before[0] + 2_000_000 && ticker.got() > before[1] + 5;
            ensure!(poll(PATIENCE, receives), "by {by:?}: {before:?} {} {}", download.got(), ticker.got());
            println!("by {by:?}: both downloads go on after {:?}", begun.elapsed());
            exchange(&mut echo).with_context(|| format!("the echo by {by:?}"))?;
            session.say(&format!("by {by:?}")).context("the session")?;
            println!("by {by:?}: all flows go on after {:?}", begun.elapsed());
            Ok(())
        };
        two.verifier.kill()?;
        goes_on(By::Second, &two).with_context(|| two.logs())?;
        let flags = two.flags.clone();
        two.verifier.run(&words(&flags))?;
        two.meet()?;
        two.told(&two.twin, &two.verifier)?;
        goes_on(By::First, &two).with_context(|| two.logs())?;
        // Both gateways run: only routing changes.
        goes_on(By::Second, &two).with_context(|| two.logs())?;
        download.end().context("the download broke")?;
        ticker.end().context("the ticker broke")?;
        nothing_in_clear(&captures)
    });
}

#[test]
fn a_revoked_person_s_flows_do_not_come_back_at_the_other_gateway() {
    test(|| {
        let mut two = Two::new()?;
        let captures = two.observe()?;
        let mut echo = call(&two.network.alice, at(DARK4, ECHO), SOON)?;
        two.told(&two.verifier, &two.twin)?;
        two.authority.revoke("alice")?;
        let is_cut = |verifier: &Verifier| inside(verifier).is_ok_and(|flows| flows.is_empty());
        ensure!(poll(SOON, || is_cut(&two.verifier) && is_cut(&two.twin)), "{:?}", inside(&two.twin)?);
        two.verifier.kill()?;
        two.take(By::Second)?;
        echo.set_read_timeout(Some(QUIET))?;
        for _ in 0..5 {
            ensure!(exchange(&mut echo).is_err(), "a revoked flow goes on");
        }
        ensure!(is_cut(&two.twin), "{:?}", inside(&two.twin)?);
        nothing_in_clear(&captures)
    });
}

/// Somebody who sees the path sends datagrams from the tunnel's own address and port: messages that the tunnel is
/// unknown, and records.
#[test]
fn forged_messages_from_the_tunnel_s_address_begin_no_handshake_and_move_nothing() {
    test(|| {
        let mut two = Two::new()?;
        let captures = two.observe()?;
        let mut echo = call(&two.network.alice, at(DARK4, ECHO), SOON)?;
        (0..20).try_for_each(|_| exchange(&mut echo))?;
        two.told(&two.verifier, &two.twin)?;
        // The second gateway has the address, too. Its verifier makes room for the forger.
        two.twin.kill()?;
        let forger = two.second.enter(|| UdpSocket::bind((SHARED, TUNNEL)))?;
        let initiations = format!("udp dst port {TUNNEL} and udp[8] = 1");
        captures[0].settle()?;
        let before = captures[0].lines(&initiations)?.len();
        let shown = captures[0].lines(&format!("src host {PUBLIC4} and udp dst port {TUNNEL}"))?;
        let to = shown.last().and_then(|line| {
            let port = line.split(&format!("{PUBLIC4}.")).nth(1)?.split(' ').next()?.parse::<u16>().ok()?;
            Some((PUBLIC4, port))
        });
        let to = to.with_context(|| format!("no port in {shown:?}"))?;
        let mut forged = 0;
        for _ in 0..20 {
            exchange(&mut echo).context("the flow stands still")?;
            let seen = payloads(&std::fs::read(captures[0].file())?);
            for record in seen.iter().rev().take(20).filter(|payload| matches!(payload.first(), Some(4..=6))) {
                let unknown = [&[7, 0, 0, 0], &record[4..16]].concat();
                let mut other = record.clone();
                other[0] = 6;
                for datagram in [&unknown, &other, record] {
                    forger.send_to(datagram, to)?;
                    forged += 1;
                }
            }
        }
        ensure!(forged > 500, "only {forged} were forged");
        (0..20).try_for_each(|_| exchange(&mut echo)).context("after the forgery")?;
        captures[0].settle()?;
        ensure!(captures[0].lines(&initiations)?.len() == before, "a forger made the client begin a handshake");
        let from_forger = format!("src host {SHARED} and udp src port {TUNNEL}");
        let arrived = || captures[1].lines(&from_forger).map_or(0, |lines| lines.len());
        ensure!(poll(SOON, || arrived() > 500), "only {} datagrams of the forger were on the path", arrived());
        nothing_in_clear(&captures)
    });
}
