//! Tests of identity for applications: nginx learns from the verifier who is behind a connection.

mod behind;
mod library;
mod optional;
mod scores;
mod web;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lab::nobody::NOBODY;
use lab::world::{Agent, Authority, FRONT4, FRONT6, Network, OPEN4, PUBLIC4, Verifier, Way, in_family, policy};
use lab::{Namespace, poll, test};
use web::{HTTP, Nginx, Page, Room, WORKER, ask, get, without_place};

const SOON: Duration = Duration::from_secs(30);
/// Time to wait for an answer that must not come.
const QUIET: &str = "0.5";
const ALICE: &str = "alice|laptop|staff may use the front";
const MALLORY: &str = "mallory|laptop|guests";
const GUESTS: &str = r#"
[[rules]]
name = "guests"
action = "allow"
who = "person:mallory"
to = "front"
"#;

/// The standard world with nginx on the server, configured as docs/identity.md says.
struct Stage {
    nginx: Nginx,
    _alice: Agent,
    verifier: Verifier,
    authority: Authority,
    room: Room,
    network: Network,
}

impl Stage {
    fn new() -> Result<Self> {
        Self::with(&[])
    }

    /// Starts the verifier with further flags.
    fn with(more: &[String]) -> Result<Self> {
        Self::with_policy(more, "", "")
    }

    /// Starts the verifier with further flags, and the authority with further rules and lines of authority.toml.
    fn with_policy(more: &[String], rules: &str, configuration: &str) -> Result<Self> {
        let (network, room) = (Network::new(Way::Nat)?, Room::new()?);
        let web = policy("5m").replacen("\"tcp/22\"", &format!("\"tcp/22\", \"tcp/{HTTP}\""), 1);
        let authority = Authority::start_with(&network.authority, &(web + GUESTS + rules), configuration)?;
        let flags = room.flags()?;
        let flags: Vec<&str> = flags.iter().chain(more).map(String::as_str).collect();
        let verifier = Verifier::start_with(&network.server, &authority, &flags)?;
        let nginx = Nginx::start(&network.server, &room, &room.documented("```nginx\n")?)?;
        let alice = Agent::start(&network.alice)?;
        alice.login(&authority, "alice")?;
        Ok(Self { nginx, _alice: alice, verifier, authority, room, network })
    }

    fn mallory(&self) -> Result<Agent> {
        let agent = Agent::start(&self.network.mallory)?;
        agent.login(&self.authority, "mallory")?;
        Ok(agent)
    }

    /// Asks the verifier, as nginx' user, about a connection from this public port to the front.
    fn ask(&self, port: u16, more: &[&str]) -> Result<Page> {
        ask(&self.network.server, &self.room, WORKER, "/v1/person", &about(port, more))
    }
}

fn front(six: bool) -> SocketAddr {
    (in_family(six, FRONT4, FRONT6), HTTP).into()
}

fn url(six: bool, path: &str) -> String {
    format!("http://{}{path}", front(six))
}

/// Headers that name a connection from this public port to the front.
fn about(port: u16, more: &[&str]) -> Vec<String> {
    let ends = [
        format!("X-Vouchsafe-Client-Address: {PUBLIC4}"),
        format!("X-Vouchsafe-Client-Port: {port}"),
        format!("X-Vouchsafe-Server-Address: {FRONT4}"),
        format!("X-Vouchsafe-Server-Port: {HTTP}"),
    ];
    ends.into_iter().chain(more.iter().map(|header| (*header).to_owned())).collect()
}

/// Time for an attempt to connect. The end of the port's previous connection may undo an attempt: on the NAT, which has
/// forgotten that connection, or at the server.
const ATTEMPT: Duration = Duration::from_secs(3);
/// Maximum time until a connection from a used port succeeds. Several attempts may fail first.
const ATTEMPTS: Duration = Duration::from_secs(40);

/// Opens a connection from this port and gets a page over it.
fn visit(client: &Namespace, port: u16) -> Result<(TcpStream, String)> {
    let port = port.to_string();
    client.sysctl("net/ipv4/ip_local_port_range", &format!("{port} {port}"))?;
    // The client's own stack keeps a port for a second after it was used.
    client.sysctl("net/ipv4/tcp_tw_reuse", "1")?;
    let mut stream = None;
    let connected = poll(ATTEMPTS, || {
        stream = client.enter(|| TcpStream::connect_timeout(&front(false), ATTEMPT)).ok();
        stream.is_some()
    });
    client.sysctl("net/ipv4/ip_local_port_range", "32768 60999")?;
    let mut stream = stream.filter(|_| connected).with_context(|| format!("no connection from port {port}"))?;
    let page = again(&mut stream)?;
    Ok((stream, page))
}

/// Gets a page over an open connection: its status line and its body.
fn again(stream: &mut TcpStream) -> Result<String> {
    stream.set_read_timeout(Some(SOON))?;
    stream.write_all(b"GET / HTTP/1.1\r\nHost: front\r\n\r\n")?;
    let (mut text, mut room) = (String::new(), [0; 4096]);
    loop {
        let size = stream.read(&mut room)?;
        ensure!(size > 0, "nginx closed the connection after {text:?}");
        text += &String::from_utf8_lossy(&room[..size]);
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
        if body.len() >= length.unwrap_or(0) {
            return Ok(without_place(&format!("{}\n{body}", head.lines().next().unwrap_or_default())));
        }
    }
}

#[test]
fn nginx_logs_the_person_whatever_headers_the_visitor_sends() {
    test(|| {
        let stage = Stage::new()?;
        let (alice, mallory) = (&stage.network.alice, &stage.network.mallory);
        let forged: Vec<String> =
            ["Person: mallory", "Device: x", "Rule: x", "Client-Port: 1", "Client-Address: 192.0.2.9"]
                .iter()
                .map(|header| format!("X-Vouchsafe-{header}"))
                .collect();
        let forged: Vec<&str> = forged.iter().flat_map(|header| ["-H", header.as_str()]).collect();
        for six in [false, true] {
            for path in ["/", "/public/"] {
                for headers in [&[][..], &forged] {
                    let page = get(alice, &url(six, path), headers)?;
                    ensure!(page == Page(200, ALICE.into()), "{path}: {page:?}");
                }
            }
            ensure!(
                get(mallory, &url(six, "/"), &["--max-time", QUIET]).is_err(),
                "Mallory reaches nginx without a grant"
            );
        }
        let visits = stage.nginx.visits("", 8)?;
        let named = "person=\"alice\" device=\"laptop\" rule=\"staff may use the front\"";
        ensure!(visits.len() == 8 && visits.iter().all(|line| line.ends_with(named)), "{visits:#?}");

        // An address of the same nginx that is not protected: everybody gets there, and nobody is known there.
        for client in [alice, mallory] {
            let open = |path: &str| get(client, &format!("http://{OPEN4}{path}"), &forged);
            let page = open("/")?;
            ensure!(page.0 == 401, "{page:?}");
            let page = open("/public/")?;
            ensure!(page == Page(200, "||".into()), "{page:?}");
            let page = open("/vouchsafe/person")?;
            ensure!(page.0 == 404, "a visitor asks the verifier: {page:?}");
        }
        let visits = stage.nginx.visits("", 14)?;
        ensure!(
            visits.iter().skip(8).all(|line| line.contains("person=\"\"") || line.contains("person=\"-\"")),
            "{visits:#?}"
        );
        Ok(())
    });
}

#[test]
fn only_the_named_users_may_ask_and_only_about_one_connection() {
    test(|| {
        let stage = Stage::new()?;
        let (mut stream, page) = visit(&stage.network.alice, 40_000)?;
        ensure!(page == format!("HTTP/1.1 200 OK\n{ALICE}"), "{page}");
        let Page(status, said) = stage.ask(40_000, &[])?;
        let flows = stage.verifier.flows()?;
        let flow = flows.iter().find(|flow| flow["client"] == format!("{PUBLIC4}:40000")).context("no flow")?;
        let handle = flow["handle"].as_str().context("no handle")?;
        let expected =
            format!("person: alice\ndevice: laptop\nreceiver: front\nrule: staff may use the front\ngrant: {handle}");
        ensure!(status == 200 && said == expected, "{status}: {said}");

        let server = &stage.network.server;
        for user in [NOBODY, 1000] {
            for (path, headers) in [("/v1/person", about(40_000, &[])), ("/v1/anyone", vec![]), ("/", vec![])] {
                let page = ask(server, &stage.room, user, path, &headers)?;
                ensure!(page.0 == 403 && page.1.contains("whois_users"), "user {user}, {path}: {page:?}");
            }
        }
        let root = ask(server, &stage.room, 0, "/v1/anyone", &about(40_000, &[]))?;
        ensure!(root.0 == 200 && root.1 == expected, "{root:?}");
        // Another port, another protocol, another age: another connection.
        ensure!(stage.ask(40_001, &[])?.0 == 401);
        ensure!(stage.ask(40_000, &["X-Vouchsafe-Protocol: udp"])?.0 == 401);
        ensure!(stage.ask(40_000, &["X-Vouchsafe-Age: 0.5"])?.0 == 200);
        ensure!(stage.ask(40_000, &["X-Vouchsafe-Age: 3600"])?.0 == 401);
        let nobody = ask(server, &stage.room, WORKER, "/v1/anyone", &about(40_001, &[]))?;
        ensure!(
            nobody.0 == 200 && nobody.1.lines().all(|line| line.ends_with(':') || line.ends_with(": ")),
            "{nobody:?}"
        );
        ensure!(stage.ask(40_000, &["X-Vouchsafe-Client-Port: 40000"])?.0 == 400, "a header that occurs twice");
        ensure!(
            ask(server, &stage.room, WORKER, "/v1/person", &about(40_000, &[])[1..])?.0 == 400,
            "a header is missing"
        );

        ensure!(again(&mut stream)?.ends_with(ALICE));
        stage.authority.revoke("alice")?;
        ensure!(
            poll(SOON, || stage.ask(40_000, &[]).is_ok_and(|page| page.0 == 401)),
            "a revoked person is still known"
        );
        Ok(())
    });
}

/// Alice and Mallory share one public address, and the address translator gives Mallory the port that Alice had.
#[test]
fn a_reused_port_is_not_taken_for_the_person_who_had_it() {
    test(|| {
        let stage = Stage::new()?;
        let (alice, mallory, router) = (&stage.network.alice, &stage.network.mallory, &stage.network.router);
        let _agent = stage.mallory()?;
        let forget = || router.run(["conntrack", "-F"]).map(drop);
        for _ in 0..2 {
            for (client, name) in [(alice, ALICE), (mallory, MALLORY)] {
                forget()?;
                let (_stream, page) = visit(client, 41_000)?;
                ensure!(page == format!("HTTP/1.1 200 OK\n{name}"), "{page} in place of {name}");
            }
        }
        let visits = stage.nginx.visits(&format!("{PUBLIC4}:41000"), 4)?;
        let people: Vec<_> = visits.iter().filter_map(|line| line.split('"').nth(3)).collect();
        ensure!(people == ["alice", "mallory", "alice", "mallory"], "{visits:#?}");

        // Alice vanishes without a word, the server's stack loses her connection, and her flow stays.
        let (_gone, page) = visit(alice, 42_000)?;
        ensure!(page.ends_with(ALICE), "{page}");
        router.ip("link set lan-alice down")?;
        router.run([
            "nft",
            "add table ip silent; add chain ip silent in { type filter hook input priority 0; }; \
                     add rule ip silent in tcp dport 42000 drop",
        ])?;
        stage.network.server.run(["ss", "-K", "dst", PUBLIC4, "dport", "=", "42000"])?;
        forget()?;
        let flow = || stage.verifier.whois(format!("{PUBLIC4}:42000").parse()?);
        let old = flow()?;
        ensure!(old[0]["person"] == "alice", "{old}");
        // The gap of a question without an age needs a flow that is older than a handshake.
        let aged = || stage.ask(42_000, &["X-Vouchsafe-Age: 0"]).is_ok_and(|page| page.0 == 401);
        ensure!(poll(Duration::from_secs(40), aged), "the flow does not age");
        let (_stream, page) = visit(mallory, 42_000)?;
        ensure!(page.starts_with("HTTP/1.1 401"), "Mallory is taken for somebody: {page}");
        let without = stage.ask(42_000, &[])?;
        ensure!(without.1.starts_with("person: alice"), "the control: {without:?}");
        Ok(())
    });
}

#[test]
fn a_user_with_idle_connections_takes_no_place_from_another() {
    test(|| {
        let stage = Stage::new()?;
        let (_stream, page) = visit(&stage.network.alice, 40_000)?;
        ensure!(page.ends_with(ALICE), "{page}");
        // Root may ask, as the web server's user may.
        let open = || UnixStream::connect(stage.room.socket());
        let mut idle = (0..256).map(|_| open()).collect::<Result<Vec<_>, _>>()?;
        let root = || ask(&stage.network.server, &stage.room, 0, "/v1/person", &about(40_000, &[]));
        let mut beyond = Page(0, String::new());
        let refused = || {
            beyond = root().unwrap_or(Page(0, String::new()));
            beyond.0 == 503
        };
        ensure!(poll(SOON, refused) && beyond.1.contains("close those that are idle"), "{beyond:?}");
        for _ in 0..3 {
            let began = Instant::now();
            ensure!(stage.ask(40_000, &[])?.1.starts_with("person: alice"));
            ensure!(began.elapsed() < Duration::from_secs(5), "the question waited for {:?}", began.elapsed());
        }
        ensure!(get(&stage.network.alice, &url(false, "/"), &[])? == Page(200, ALICE.into()), "nginx gets no answer");
        // Idle connections end, whether or not a question has come on them.
        let asked = b"GET /v1/person HTTP/1.1\r\nHost: verifier\r\n\r\n";
        idle[0].write_all(asked)?;
        ensure!(idle[0].read(&mut [0; 4096])? > 0);
        for stream in &mut idle[..2] {
            stream.set_read_timeout(Some(Duration::from_secs(40)))?;
            ensure!(stream.read(&mut [0; 4096])? == 0, "an idle connection stays");
        }
        ensure!(poll(SOON, || root().is_ok_and(|page| page.0 == 200)), "root's places are not free again");
        Ok(())
    });
}
