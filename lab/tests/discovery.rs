//! Tests of discovery by DNS with real resolvers, the authority's name server and the agent, and of forged answers.

use std::fs::{File, read_to_string};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use lab::forge::Packet;
use lab::nobody::succeed;
use lab::service::{ask, call};
use lab::world::{
    AUTHORITY, AUTHORITY_NAME, Agent, Authority, DOMAIN, ECHO, FRONT_NAME, FRONT4, FRONT6, INSIDE4, NameServer,
    Network, OPEN_NAME, OPEN4, Services, Verifier, Way, dig, on_resolving, policy,
};
use lab::{Capture, Port, poll, test};
use serde_json::Value;
use wire::DropReason;

const SOON: Duration = Duration::from_secs(20);
/// The type of SRV records.
const SRV: u16 = 33;
/// Maximum number of overheard records that the agent keeps.
const OVERHEARD_MAX: usize = 64;

/// A world with a name server, in which nobody is logged in.
struct Stage {
    agent: Agent,
    verifier: Verifier,
    _names: NameServer,
    authority: Authority,
    _services: Services,
    network: Network,
}

impl Stage {
    fn new(flags: &[&str]) -> Result<Self> {
        let network = Network::new(Way::Nat)?;
        let services = Services::start(&network)?;
        let authority = Authority::start(&network.authority, &policy("5m"))?;
        let names = NameServer::start(&network.authority, &authority)?;
        let verifier = Verifier::start(&network.server, &authority)?;
        let agent = Agent::start_resolving(&network.alice, flags)?;
        Ok(Self { agent, verifier, _names: names, authority, _services: services, network })
    }

    fn destinations(&self) -> Result<Value> {
        Ok(self.agent.status()?["session"]["destinations"].clone())
    }
}

fn echo(address: &str) -> Result<SocketAddr> {
    Ok(SocketAddr::new(address.parse()?, ECHO))
}

#[test]
fn a_person_logs_in_by_a_domain_and_the_first_packet_to_one_of_its_names_is_proved() {
    test(|| {
        let stage = Stage::new(&[])?;
        let alice = &stage.network.alice;
        let (found, said) = stage.agent.discover(DOMAIN)?;
        ensure!(found && said.contains(AUTHORITY_NAME) && said.contains(&format!("{FRONT4}/32")), "{said}");
        let (done, said) = stage.agent.try_login_by(DOMAIN, &stage.authority, "alice")?;
        ensure!(done, "{said}");
        let before = stage.verifier.counters()?;
        for kind in ["A", "AAAA"] {
            let address: IpAddr = dig(alice, &["+short", FRONT_NAME, kind])?.trim().parse()?;
            let to = SocketAddr::new(address, ECHO);
            call(alice, to, SOON).with_context(|| format!("TCP to {to}"))?;
            ask(alice, to, SOON).with_context(|| format!("UDP to {to}"))?;
        }
        let since = stage.verifier.counters()?.since(&before);
        let dropped = DropReason::ALL.iter().find(|reason| since.contains_key(reason.name()));
        ensure!(dropped.is_none(), "a packet was dropped: {since:?}");
        ensure!(stage.verifier.counters()?.named("token") >= before.named("token") + 4, "{since:?}");
        Ok(())
    });
}

#[test]
fn agent_verifier_and_rootless_client_find_an_authority_by_its_name() {
    test(|| {
        let mut stage = Stage::new(&[])?;
        // No authority answers at the first server that DNS lists for the name.
        let (done, said) = stage.agent.try_login_at(AUTHORITY_NAME, &stage.authority, "alice")?;
        ensure!(done && said.contains(&format!("logged in to {AUTHORITY_NAME}")), "{said}");
        call(&stage.network.alice, echo(FRONT4)?, SOON)?;
        // After a restart, the agent finds the authority by the name again.
        stage.agent.kill()?;
        stage.agent.run()?;
        let is_fine = |session: &Value| session["person"] == "alice" && session["trouble"].is_null();
        let is_back = || stage.agent.status().is_ok_and(|status| is_fine(&status["session"]));
        ensure!(poll(SOON, is_back), "{}", stage.agent.status()?);
        ensure!(stage.agent.status()?["session"]["authority"] == AUTHORITY_NAME, "{}", stage.agent.status()?);

        // DNS lists the same authority for another name, which the authority's certificate does not contain.
        let (done, said) = stage.agent.try_login_at(DOMAIN, &stage.authority, "alice")?;
        ensure!(!done && said.contains("not valid for name") && said.contains("--name"), "{said}");
        let (done, said) = stage.agent.try_login_at("nothing.example.org", &stage.authority, "alice")?;
        ensure!(
            !done && said.contains("_vouchsafe._tcp.nothing.example.org") && said.contains("https://HOST"),
            "{said}"
        );

        let folder = stage.network.alice.dir().join("own");
        let own = |words: &[&str]| -> Result<String> {
            let mut command = on_resolving(&stage.network.alice)?;
            command.arg(lab::vouchsafe()).args(words).args(["--own", "--session-dir"]).arg(&folder);
            if words[0] == "login" {
                command.arg("--ca").arg(stage.authority.ca());
            }
            succeed(command.stdin(File::open(stage.authority.password_file())?))
        };
        own(&["login", "--authority", AUTHORITY_NAME, "--user", "alice", "--device", "own", "--password-stdin"])?;
        let status = own(&["status"])?;
        ensure!(status.contains(&format!("authority {AUTHORITY_NAME}: reachable")), "{status}");

        let code = stage.authority.enrolment_code("second")?;
        let dir = stage.network.server.dir().join("second-verifier");
        let mut enrol = on_resolving(&stage.network.server)?;
        enrol.arg(lab::vouchsafe()).args(["verifier", "enrol", "--authority", AUTHORITY_NAME, "--code", &code]);
        succeed(enrol.arg("--ca").arg(stage.authority.ca()).arg("--dir").arg(&dir))?;
        let file = read_to_string(dir.join("verifier.toml"))?;
        ensure!(file.contains(&format!("authority = \"{AUTHORITY_NAME}\"")), "{file}");
        Ok(())
    });
}

#[test]
fn what_the_agent_overhears_is_shown_and_nothing_follows_from_it() {
    test(|| {
        let stage = Stage::new(&[])?;
        let alice = &stage.network.alice;
        let cable = Capture::start(alice, "eth0")?;
        dig(alice, &[OPEN_NAME, "A"])?;
        ensure!(
            dig(alice, &["+noall", "+additional", FRONT_NAME, "A"])?.contains("v=vouchsafe1"),
            "no record came along"
        );
        ensure!(poll(SOON, || stage.agent.discovered().is_ok_and(|found| found.contains_key(DOMAIN))), "not learned");
        let found = stage.agent.discovered()?.remove(DOMAIN).context("it was there")?;
        ensure!(found["finding"] == "overheard" && found["at_home"] == true, "{found}");
        ensure!(found["authority"] == format!("https://{AUTHORITY_NAME}:8443"), "{found}");
        ensure!(stage.agent.status()?["session"].is_null(), "nobody logged in");
        // The agent itself sends no query and opens no connection: all outgoing packets are queries of dig.
        cable.settle()?;
        let called = cable.lines(&format!("src host {INSIDE4} and (tcp or udp)"))?;
        let is_digs = |line: &String| [OPEN_NAME, FRONT_NAME].iter().any(|name| line.contains(&format!("A? {name}.")));
        ensure!(called.len() >= 2 && called.iter().all(is_digs), "{called:?}");
        Ok(())
    });
}

#[test]
fn the_name_server_answers_as_its_kind_does() {
    test(|| {
        let stage = Stage::new(&["--no-discovery"])?;
        let alice = &stage.network.alice;
        for words in [&["+notcp"][..], &["+tcp"], &["+noedns"], &["+bufsize=512"]] {
            let text = dig(alice, &[words, &["+short", &format!("_vouchsafe.{DOMAIN}"), "TXT"]].concat())?;
            ensure!(text.starts_with("\"v=vouchsafe1; authority=https://"), "{words:?}: {text}");
        }
        for (words, expected) in [
            (&["nothing.example.org", "A"][..], "status: NXDOMAIN"),
            (&["example.net", "A"], "status: REFUSED"),
            (&[OPEN_NAME, "A"], "ADDITIONAL: 1"),
            (&[FRONT_NAME, "AAAA"], "ADDITIONAL: 2"),
            (&[DOMAIN, "ANY", "+notcp"], "RFC8482"),
        ] {
            let text = dig(alice, words)?;
            ensure!(text.contains(expected) && text.contains("flags: qr"), "{words:?}: {text}");
        }
        let denied = dig(alice, &["nothing.example.org", "A", "+noall", "+authority"])?;
        ensure!(denied.contains("SOA"), "{denied}");
        ensure!(stage.agent.discovered()?.is_empty(), "an agent that is not to listen did");
        let asked = stage.agent.discover("nothing.example.org")?;
        ensure!(!asked.0 && asked.1.contains("no record at _vouchsafe.nothing.example.org"), "{asked:?}");
        // While the agent remembers an answer, it does not repeat the query.
        let cable = Capture::start(alice, "eth0")?;
        ensure!(!stage.agent.discover("nothing.example.org")?.0, "found all the same");
        ensure!(stage.agent.discover(DOMAIN)?.0, "not found");
        let questions = || cable.lines("udp and dst port 53").unwrap_or_default();
        ensure!(
            poll(SOON, || questions().iter().any(|line| line.contains("_vouchsafe.example.org"))),
            "none was asked"
        );
        ensure!(!questions().iter().any(|line| line.contains("nothing")), "{:?}", questions());
        Ok(())
    });
}

/// Returns a name as DNS messages contain it.
fn labels(name: &str) -> Vec<u8> {
    let labels = name.split('.').filter(|label| !label.is_empty());
    labels.flat_map(|label| [&[label.len() as u8], label.as_bytes()].concat()).chain([0]).collect()
}

/// Builds a DNS answer to a query for the addresses of `asked`, with a TXT record of the name `owner`.
fn answer(asked: &str, owner: &str, record: &str) -> Vec<u8> {
    let name = labels;
    let strings: Vec<u8> =
        record.as_bytes().chunks(255).flat_map(|part| [&[part.len() as u8], part].concat()).collect();
    let header = [0, 7, 0x85, 0x80, 0, 1, 0, 1, 0, 0, 0, 1];
    let address = [&[0xc0, 12, 0, 1, 0, 1, 0, 0, 14, 16, 0, 4][..], &[192, 0, 2, 99]].concat();
    let text =
        [&name(owner)[..], &[0, 16, 0, 1, 0, 0, 14, 16], &(strings.len() as u16).to_be_bytes(), &strings].concat();
    [&header[..], &name(asked), &[0, 1, 0, 1], &address, &text].concat()
}

#[test]
fn forged_answers_get_an_attacker_nothing() {
    test(|| {
        let stage = Stage::new(&[])?;
        let (alice, agent) = (&stage.network.alice, &stage.agent);
        ensure!(agent.try_login_by(DOMAIN, &stage.authority, "alice")?.0, "not logged in");
        call(alice, echo(FRONT4)?, SOON)?;
        let (destinations, tokens) = (stage.destinations()?, agent.status()?["counters"]["tokens"].clone());
        let cable = Capture::start(alice, "eth0")?;

        // Send from the name server's own address, as an attacker on the path could.
        let router = &stage.network.router;
        let (here, there) = (router.mac("lan-alice")?, alice.mac("eth0")?);
        let port = Port::open(router, "lan-alice")?;
        let send = |payload: &[u8]| {
            let packet = Packet::new(AUTHORITY.parse()?, INSIDE4.parse()?).ethernet(here, there).udp(53, 40000);
            port.send(&packet.payload(payload).frame())
        };
        let ours = format!("https://{AUTHORITY_NAME}:8443");
        let evil = "v=vouchsafe1; authority=https://203.0.113.66; protects=0.0.0.0/0,::/0";
        let wide = format!("v=vouchsafe1; authority={ours}; protects=0.0.0.0/0,::/0,{OPEN4}");
        let good = answer(FRONT_NAME, DOMAIN, evil);
        send(&good)?;
        send(&answer(FRONT_NAME, "example.net", evil))?;
        send(&answer("a.shop.example.net", "shop.example.net", &wide))?;
        send(&answer(FRONT_NAME, DOMAIN, &format!("{evil}; authority={ours}")))?;
        send(&answer(FRONT_NAME, DOMAIN, &format!("{evil}; x={}", "y".repeat(1100))))?;
        (0..good.len()).step_by(7).try_for_each(|length| send(&good[..length]))?;
        // Replace the query's name, which begins right after the header, with a pointer to itself.
        send(&[&good[..12], &[0xc0, 12], &good[14..]].concat())?;
        send(&[0xff; 1400])?;
        // Flood the agent with forged answers. The agent inspects 64 answers per second and core, so the flood
        // continues until the table is full.
        let mut sent = 0;
        let is_full = poll(SOON * 2, || {
            sent += 1;
            let domain = format!("forged{sent}.net");
            let _ =
                send(&answer(&format!("www.{domain}"), &domain, &evil.replace("203.0.113.66", &format!("x.{domain}"))));
            sent % 64 == 0 && agent.discovered().is_ok_and(|found| found.len() >= OVERHEARD_MAX)
        });
        ensure!(is_full, "{sent} were sent, and {} are known", agent.discovered()?.len());

        let found = agent.discovered()?;
        ensure!(found.len() <= OVERHEARD_MAX + 1, "{}", found.len());
        // The record that the agent queried itself is unchanged: another domain's answer can't change it.
        ensure!(found[DOMAIN]["authority"] == ours && found[DOMAIN]["finding"] == "asked", "{}", found[DOMAIN]);
        ensure!(!found.contains_key("example.net"), "{:?}", found.get("example.net"));
        let session = agent.status()?["session"].clone();
        ensure!(session["authority"] == ours && session["person"] == "alice", "{session}");
        ensure!(stage.destinations()? == destinations, "other destinations: {}", stage.destinations()?);
        // No other destination becomes protected: flows to a destination that was open before still have no token.
        call(alice, echo(OPEN4)?, SOON).context("to an address that nobody protects")?;
        ensure!(agent.status()?["counters"]["tokens"] == tokens, "a token went out: {}", agent.status()?["counters"]);
        // The agent connected only to the authority and that address, and sent no DNS query.
        let others = format!("src host {INSIDE4} and (udp or tcp) and not host {AUTHORITY} and not host {OPEN4}");
        cable.settle()?;
        ensure!(cable.lines(&others)?.is_empty(), "{:?}", cable.lines(&others)?);
        ensure!(cable.lines("dst port 53")?.is_empty(), "{:?}", cable.lines("dst port 53")?);
        // Alice can still use the services.
        call(alice, echo(FRONT4)?, SOON)?;
        ask(alice, echo(FRONT6)?, SOON)
    });
}

/// Runs a name server of an attacker, which answers every query with this record, or with this server if the query is
/// for servers.
fn lie(socket: &UdpSocket, record: &str, (host, port): (&str, u16), end: &AtomicBool) -> Result<()> {
    let mut question = [0; 1024];
    while !end.load(Relaxed) {
        let Ok((size, from)) = socket.recv_from(&mut question) else { continue };
        // Find the end of the query's name, and skip type and class.
        let name = question[12..size].iter().position(|byte| *byte == 0).context("a name")? + 17;
        let kind = [question[name - 4], question[name - 3]];
        let data = match u16::from_be_bytes(kind) {
            SRV => [&[0, 0, 0, 1][..], &port.to_be_bytes(), &labels(host)].concat(),
            _ => [&[record.len() as u8], record.as_bytes()].concat(),
        };
        let length = (data.len() as u16).to_be_bytes();
        let entry = [&[0xc0, 12][..], &kind, &[0, 1, 0, 0, 14, 16], &length, &data].concat();
        let header = [&question[..2], &[0x81, 0x80, 0, 1, 0, 1, 0, 0, 0, 0]].concat();
        socket.send_to(&[&header[..], &question[12..name], &entry].concat(), from)?;
    }
    Ok(())
}

#[test]
fn a_name_server_that_lies_sends_nobodys_password_anywhere() {
    test(|| {
        let liar = "10.1.0.254:53";
        let stage = Stage::new(&["--resolver", liar])?;
        let socket = stage.network.router.enter(|| UdpSocket::bind(liar))?;
        socket.set_read_timeout(Some(Duration::from_millis(50)))?;
        let cable = Capture::start(&stage.network.alice, "eth0")?;
        // Runs the liar, which lists a server at `server`, while somebody tries to log in.
        let meanwhile = |server: (&'static str, u16), tries: &dyn Fn() -> Result<(bool, String)>| {
            let (end, socket) = (Arc::new(AtomicBool::new(false)), socket.try_clone()?);
            let lying = std::thread::spawn({
                let end = end.clone();
                move || lie(&socket, "v=vouchsafe1; authority=https://203.0.113.66", server, &end)
            });
            let tried = tries();
            end.store(true, Relaxed);
            let Ok(lied) = lying.join() else { bail!("the liar broke down") };
            lied.and(tried)
        };
        let by_domain = || stage.agent.try_login_by(DOMAIN, &stage.authority, "alice");
        let (done, said) = meanwhile((OPEN_NAME, ECHO), &by_domain)?;
        ensure!(!done && said.contains("is not within example.org"), "{said}");
        cable.settle()?;
        ensure!(cable.lines("tcp")?.is_empty(), "somebody was called: {:?}", cable.lines("tcp")?);
        ensure!(stage.agent.status()?["session"].is_null(), "logged in");
        // A login by the name of the authority. The liar leads it to a stranger, and to an authority of another name,
        // whose certificate is of the same CA.
        let (agent, authority) = (&stage.agent, &stage.authority);
        let by_name = |name: &'static str| move || agent.try_login_at(name, authority, "alice");
        let (done, said) = meanwhile((OPEN_NAME, ECHO), &by_name(AUTHORITY_NAME))?;
        ensure!(!done && said.contains("cannot reach the authority"), "{said}");
        let (done, said) = meanwhile((AUTHORITY_NAME, 8443), &by_name(DOMAIN))?;
        ensure!(!done && said.contains("not valid for name"), "{said}");
        ensure!(stage.agent.status()?["session"].is_null(), "logged in");
        // The authority is still reachable if the user gives its address.
        ensure!(stage.agent.try_login(&stage.authority, "alice")?.0, "not logged in by address");
        Ok(())
    });
}
