//! Tests of the relay on a gateway, which names the person in a header of the PROXY protocol, with HAProxy behind it.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lab::forge::{Packet, Tcp, flag, protocol};
use lab::mint::Mint;
use lab::seen::Seen;
use lab::service::Echo;
use lab::world::{
    Agent, Authority, ECHO, FRONT4, FRONT6, Network, OPEN4, PUBLIC4, VERIFIER, Verifier, Way, in_family, policy,
};
use lab::{Namespace, Outsider, Place, Process, poll, test};
use whois::{Identity, Relayed};
use wire::{Destination, DropReason};

use crate::web::{HTTP, Nginx, Page, Room, get, without_place};

const SOON: Duration = Duration::from_secs(30);
/// The application's log, by nginx.
const LOG: &str = r#"
    log_format named '$remote_addr person="$http_x_vouchsafe_person"';
    server {
        listen 127.0.0.1:8081;
        access_log LOG named;
        location / { proxy_pass http://127.0.0.1:8080; proxy_set_header X-Vouchsafe-Person $http_x_vouchsafe_person; }
    }
"#;

/// A gateway with a relay, and HAProxy, nginx and an echo behind it.
struct Stage {
    haproxy: Process,
    nginx: Nginx,
    agent: Agent,
    verifier: Verifier,
    authority: Authority,
    _echo: Echo,
    _room: Room,
    network: Network,
}

fn flags() -> Vec<String> {
    let services = format!("{FRONT4}:{HTTP},[{FRONT6}]:{HTTP},{FRONT4}:{ECHO},[{FRONT6}]:{ECHO}");
    ["--inside", "eth1", "--proxy-protocol", &services].map(str::to_owned).to_vec()
}

impl Stage {
    fn new() -> Result<Self> {
        Self::with(&[])
    }

    /// Starts the verifier with further flags.
    fn with(more: &[&str]) -> Result<Self> {
        let (network, room) = (Network::behind_gateway(Way::Nat)?, Room::new()?);
        let web = policy("5m").replacen("\"tcp/22\"", &format!("\"tcp/22\", \"tcp/{HTTP}\""), 1);
        let authority = Authority::start(&network.authority, &web)?;
        let flags = flags();
        let flags: Vec<&str> = flags.iter().map(String::as_str).chain(more.iter().copied()).collect();
        let verifier = Verifier::start_with(network.front(), &authority, &flags)?;
        let echo = Echo::start(&network.server, ECHO)?;
        let log = room.path("visits.log").display().to_string();
        let nginx = Nginx::start(&network.server, &room, &LOG.replace("LOG", &log))?;
        let haproxy = haproxy(&network.server, &room)?;
        let agent = Agent::start(&network.alice)?;
        agent.login(&authority, "alice")?;
        Ok(Self { haproxy, nginx, agent, verifier, authority, _echo: echo, _room: room, network })
    }

    fn dial(&self, port: u16) -> Result<TcpStream> {
        let to = SocketAddr::new(in_family(false, FRONT4, FRONT6), port);
        let stream = self.network.alice.enter(|| TcpStream::connect_timeout(&to, SOON))?;
        stream.set_read_timeout(Some(SOON))?;
        Ok(stream)
    }
}

/// Starts HAProxy as documented, with nginx as its application.
fn haproxy(namespace: &Namespace, room: &Room) -> Result<Process> {
    let documented = room.documented("```haproxy\n")?.replace("127.0.0.1:8080", "127.0.0.1:8081");
    let text = format!(
        "global\n    log stdout format raw local0\ndefaults\n    log global\n    timeout connect 5s\n    \
                        timeout client 60s\n    timeout server 60s\n{documented}"
    );
    let file = room.path("haproxy.cfg");
    fs::write(&file, text)?;
    let mut process = namespace.spawn([Path::new("/usr/sbin/haproxy"), Path::new("-db"), Path::new("-f"), &file])?;
    let listens = || namespace.run(["ss", "-Hltn", "sport", "=", "80"]).is_ok_and(|text| !text.trim().is_empty());
    let up = poll(SOON, || process.exit().is_some() || listens());
    ensure!(up && process.exit().is_none(), "HAProxy does not start:\n{}", process.log());
    Ok(process)
}

/// Waits until HAProxy has logged `count` connections, and returns its log, or the log so far if they do not come in
/// time. HAProxy writes a line after the connection has ended.
fn visited(haproxy: &Process, count: usize) -> String {
    let _ = poll(SOON, || haproxy.log().lines().count() >= count);
    haproxy.log()
}

fn url(six: bool) -> String {
    let to: SocketAddr = (in_family(six, FRONT4, FRONT6), HTTP).into();
    format!("http://{to}/")
}

#[test]
fn haproxy_and_nginx_behind_a_gateway_log_the_person() {
    test(|| {
        let stage = Stage::new()?;
        let alice = &stage.network.alice;
        for six in [false, true] {
            for headers in [&[][..], &["-H", "X-Vouchsafe-Person: mallory"]] {
                let page = get(alice, &url(six), headers)?;
                ensure!(page == Page(200, "alice||".into()), "{page:?}\n{}", stage.haproxy.log());
            }
        }
        let log = visited(&stage.haproxy, 4);
        let visits: Vec<_> = log.lines().filter(|line| line.ends_with("person=alice")).collect();
        ensure!(visits.len() == 4 && visits[0].starts_with(PUBLIC4) && log.lines().count() == 4, "{log}");
        let named = stage.nginx.visits("", 4)?;
        ensure!(named.len() == 4 && named.iter().all(|line| line.ends_with("person=\"alice\"")), "{named:?}");
        // A long answer and a long request arrive whole: the relay copies in both directions.
        let sent: Vec<u8> = (0..3_000_000_u32).map(|number| (number % 251) as u8).collect();
        let mut stream = stage.dial(ECHO)?;
        let mut head = [0; 16];
        stream.read_exact(&mut head)?;
        let mut body = vec![0; usize::from(u16::from_be_bytes([head[14], head[15]]))];
        stream.read_exact(&mut body)?;
        let mut writer = stream.try_clone()?;
        let copy = sent.clone();
        let writing = std::thread::spawn(move || writer.write_all(&copy));
        let mut came = vec![0; sent.len()];
        stream.read_exact(&mut came).context("the echo of what was sent")?;
        ensure!(writing.join().is_ok_and(|written| written.is_ok()) && came == sent);
        Ok(())
    });
}

/// The echo sends back the header that the relay put before the connection, and the library for applications reads it.
#[test]
fn the_header_names_client_and_person() {
    test(|| {
        let stage = Stage::new()?;
        let mut stream = stage.dial(ECHO)?;
        let relayed = Relayed::read(&mut stream)?;
        let client = SocketAddr::new(PUBLIC4.parse()?, relayed.client.port());
        let server = SocketAddr::new(FRONT4.parse()?, ECHO);
        ensure!((relayed.client, relayed.server) == (client, server), "{relayed:?}");
        let flows = stage.verifier.flows()?;
        let flow = flows.iter().find(|flow| flow["client"] == client.to_string()).context("no flow")?;
        let (handle, since) = (flow["handle"].as_str().context("handle")?, flow["since"].as_u64().context("since")?);
        let unique = format!("alice/{handle}/{since:x}-{:x}", client.port());
        ensure!(relayed.unique.as_deref() == Some(unique.as_str()), "{:?} is not {unique}", relayed.unique);
        let Identity { person, device, receiver, rule, grant } = relayed.identity.context("nobody is named")?;
        let named = [person, device, receiver, without_place(&rule), grant];
        ensure!(named == ["alice", "laptop", "front", "staff may use the front", handle], "{named:?}");
        // The next bytes are the client's.
        let mut next = [0; 5];
        stream.write_all(b"hello")?;
        stream.read_exact(&mut next)?;
        ensure!(next == *b"hello", "{next:?}");
        Ok(())
    });
}

#[test]
fn nobody_outside_can_send_a_header_in_the_gateways_place() {
    test(|| {
        let mut stage = Stage::new()?;
        let forged = b"PROXY TCP4 192.0.2.99 192.0.2.20 1000 80\r\nGET / HTTP/1.0\r\n\r\n";
        // Alice, who may connect, says that she is somebody else.
        let mut stream = stage.dial(HTTP)?;
        stream.write_all(forged)?;
        // HAProxy does not read the rest of what she sent, so its stack may reset the connection before or after the
        // answer.
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        ensure!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 400"), "{}", String::from_utf8_lossy(&answer));
        // Mallory reaches HAProxy at an address that nobody protects.
        let mallory = &stage.network.mallory;
        let open = SocketAddr::new(OPEN4.parse()?, HTTP);
        let mut answer = Vec::new();
        match mallory.enter(|| TcpStream::connect_timeout(&open, SOON)) {
            Ok(mut stream) => {
                stream.set_read_timeout(Some(SOON))?;
                let _ = stream.write_all(forged);
                let _ = stream.read_to_end(&mut answer);
            }
            // HAProxy may reset the connection before this side has noticed that it is open.
            Err(error) => ensure!(error.kind() == ErrorKind::ConnectionReset, "{error}"),
        }
        ensure!(answer.is_empty(), "HAProxy answers: {}", String::from_utf8_lossy(&answer));
        let log = visited(&stage.haproxy, 1);
        ensure!(!log.contains("192.0.2.99") && log.lines().count() == 1 && log.contains("person=alice"), "{log}");
        ensure!(get(mallory, &url(false), &["--max-time", "0.5"]).is_err(), "Mallory gets in without a grant");

        // Without the daemon nothing leads to the services, but the kernel's own path goes on.
        let before = stage.haproxy.log();
        stage.verifier.kill()?;
        ensure!(
            get(&stage.network.alice, &url(false), &["--max-time", "2"]).is_err(),
            "there is a way around the relay"
        );
        ensure!(stage.haproxy.log() == before, "{}", stage.haproxy.log());
        let flags = flags();
        stage.verifier.run(&flags.iter().map(String::as_str).collect::<Vec<_>>())?;
        ensure!(get(&stage.network.alice, &url(false), &[])?.0 == 200);
        // Neither a changed setting nor the end of protection leaves a rule behind.
        let rules = |host: &Namespace| host.run(["ip", "rule", "list", "priority", "30324"]);
        let gateway = stage.network.front();
        ensure!(rules(gateway)?.lines().count() == 2, "{}", rules(gateway)?);
        stage.verifier.detach()?;
        ensure!(rules(gateway)?.is_empty(), "{}", rules(gateway)?);
        let _ = &stage.agent;
        Ok(())
    });
}

#[test]
fn a_revoked_person_is_cut_off_on_both_sides_within_a_second() {
    test(|| {
        let stage = Stage::new()?;
        let mut stream = stage.dial(ECHO)?;
        stream.read_exact(&mut [0; 16])?;
        let server =
            || stage.network.server.run(["ss", "-Htn", "state", "established", "sport", "=", &ECHO.to_string()]);
        ensure!(server()?.lines().count() == 1, "{}", server()?);
        let began = Instant::now();
        stage.authority.revoke("alice")?;
        ensure!(poll(SOON, || server().is_ok_and(|list| list.trim().is_empty())), "the service keeps the connection");
        let took = began.elapsed();
        ensure!(took < Duration::from_secs(3), "it took {took:?}");
        eprintln!("the service's connection ended {took:?} after `revoke` was called");
        Ok(())
    });
}

/// Reports whether the other side accepts the connection from this port.
fn is_accepted(outsider: &Outsider, from: u16) -> bool {
    let accepts = |frame: &[u8]| {
        let tcp = Seen::frame(frame)?.tcp.filter(|tcp| (tcp.source, tcp.destination) == (ECHO, from))?;
        (tcp.flags == flag::SYN | flag::ACK).then_some(())
    };
    outsider.port().receive(Duration::from_secs(1), accepts).is_some()
}

#[test]
fn no_extension_header_leads_around_the_relay() {
    test(|| {
        let stage = Stage::new()?;
        let outsider = Outsider::new(&stage.network, Place::NextDoor, true)?;
        let mut mint = Mint::new(stage.authority.master_key()?, VERIFIER);
        let service: IpAddr = FRONT6.parse()?;
        let grant =
            mint.grant(77, Destination { address: service, protocol: protocol::TCP, port: ECHO }, outsider.source);
        let padding = [1, 4, 0, 0, 0, 0];
        // An atomic fragment: the packet is whole.
        let whole = [0, 0, 0, 0, 0, 9];
        let behind = |packet: Packet, kinds: &[u8]| {
            let body = |kind| if kind == protocol::FRAGMENT { whole } else { padding };
            kinds.iter().fold(packet, |packet, kind| packet.extension(*kind, &body(*kind)))
        };
        let (hops, options) = (protocol::HOP_BY_HOP, protocol::DESTINATION_OPTIONS);
        let ways: [&[u8]; 6] = [
            &[protocol::FRAGMENT],
            &[hops, options, protocol::FRAGMENT],
            &[protocol::FRAGMENT, options],
            &[],
            &[hops],
            &[options; 8],
        ];
        let mut dropped = 0;
        let mut drops = |more: u64| {
            dropped += more;
            let mut counted = 0;
            let count = || {
                counted = stage.verifier.counters().map(|now| now.dropped(DropReason::Fragment)).unwrap_or_default();
                counted == dropped
            };
            let as_many = poll(SOON, count);
            ensure!(as_many, "{counted} dropped as `fragment`, not {dropped}");
            Ok(())
        };
        for (from, kinds) in (41_000..).zip(ways) {
            let is_relayed = !kinds.contains(&protocol::FRAGMENT);
            let syn = outsider.syn(from, service, ECHO).payload(&mint.block(&grant)?);
            outsider.send(&behind(syn, kinds).frame())?;
            let accepted = is_accepted(&outsider, from);
            ensure!(accepted == is_relayed, "TCP behind the headers {kinds:?}: accepted is {accepted}");
            drops(u64::from(!is_relayed))?;
            if is_relayed {
                // A later segment of this connection, with a fragment header.
                let data = Tcp::new(from, ECHO, flag::ACK | flag::PSH);
                let data = outsider.packet(service).tcp(data).payload(b"PROXY UNKNOWN\r\n");
                outsider.send(&behind(data, &[protocol::FRAGMENT]).frame())?;
                drops(1)?;
            }
        }
        let shown = outsider.source.to_string();
        let direct: Vec<String> =
            outsider.got_through(service).into_iter().filter(|line| line.contains(&shown)).collect();
        ensure!(direct.is_empty(), "the service got packets of the outsider: {direct:?}");
        Ok(())
    });
}

/// The verifier checks packets of a bridge at its port, but routing rules see the bridge.
#[test]
fn interfaces_above_a_protected_one_lead_to_the_relay() {
    test(|| {
        let mut stage = Stage::new()?;
        let gateway = stage.network.front();
        let rules = || -> Result<usize> {
            let list = gateway.run(["ip", "rule", "list", "priority", "30324"])?;
            Ok(list.lines().filter(|line| line.contains("iif upper ")).count())
        };
        let served = |stage: &Stage| -> Result<()> {
            let page = get(&stage.network.alice, &url(false), &[])?;
            ensure!(page == Page(200, "alice||".into()), "{page:?}\n{}", stage.haproxy.log());
            let log = stage.haproxy.log();
            ensure!(log.lines().all(|line| line.starts_with(PUBLIC4) && line.ends_with("person=alice")), "{log}");
            Ok(())
        };
        // The protected interface becomes the port of a bridge while the verifier runs.
        gateway.ip("link add upper type bridge")?;
        gateway.ip("link set upper up")?;
        gateway.ip("address flush dev eth0")?;
        gateway.ip("link set eth0 master upper")?;
        gateway.address("upper", "192.0.3.1/24 2001:db8:3::1/64")?;
        gateway.route("default", "192.0.3.254")?;
        gateway.route("default", "2001:db8:3::ff")?;
        ensure!(poll(SOON, || rules().is_ok_and(|count| count == 2)), "{} rules", rules()?);
        served(&stage)?;
        let flags = flags();
        let flags: Vec<_> = flags.iter().map(String::as_str).collect();
        stage.verifier.kill()?;
        stage.verifier.run(&flags)?;
        ensure!(rules()? == 2, "{} rules", rules()?);
        served(&stage)?;
        // Frames between the bridge's ports can't be relayed.
        gateway.ip("link set eth1 master upper")?;
        let warned = || stage.verifier.log().contains("connections may go around the relay");
        ensure!(poll(SOON, warned), "{}", stage.verifier.log());
        stage.verifier.kill()?;
        let refused = stage.verifier.run(&flags).err().map(|error| format!("{error:#}")).unwrap_or_default();
        ensure!(refused.contains("remove eth0 from upper"), "{refused}");
        gateway.ip("link set eth1 nomaster")?;
        stage.verifier.run(&flags)?;
        served(&stage)
    });
}

#[test]
fn strangers_pass_the_relay_of_an_optional_receiver_without_a_name() {
    test(|| {
        let stage = Stage::with(&["--optional", &format!("{FRONT4}:{HTTP},{FRONT4}:{ECHO}")])?;
        let (alice, mallory) = (&stage.network.alice, &stage.network.mallory);
        let page = get(alice, &url(false), &[])?;
        ensure!(page == Page(200, "alice||".into()), "{page:?}\n{}", stage.haproxy.log());
        let page = get(mallory, &url(false), &["-H", "X-Vouchsafe-Person: alice"])?;
        ensure!(page == Page(200, "||".into()), "{page:?}\n{}", stage.haproxy.log());
        ensure!(get(mallory, &url(true), &["--max-time", "0.5"]).is_err(), "the other address is open, too");
        let log = visited(&stage.haproxy, 2);
        let people: Vec<_> = log.lines().filter_map(|line| line.split("person=").nth(1)).collect();
        ensure!(people.len() == 2 && people[0] == "alice" && people[1] != "alice", "{log}");

        // The header of a stranger has the addresses, and nothing else.
        let to = SocketAddr::new(in_family(false, FRONT4, FRONT6), ECHO);
        let mut stream = mallory.enter(|| TcpStream::connect_timeout(&to, SOON))?;
        stream.set_read_timeout(Some(SOON))?;
        stream.write_all(b"hello")?;
        let mut came = [0; 28 + 5];
        stream.read_exact(&mut came)?;
        let [client, server]: [IpAddr; 2] = [PUBLIC4.parse()?, FRONT4.parse()?];
        let ends = [&came[16..20], &came[20..24]].map(|bytes| <[u8; 4]>::try_from(bytes).map(IpAddr::from).ok());
        ensure!(came[..16] == *b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c", "{came:?}");
        ensure!(ends == [Some(client), Some(server)] && came[28..] == *b"hello", "{came:?}");
        Ok(())
    });
}
