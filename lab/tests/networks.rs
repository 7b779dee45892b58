//! Tests of the lab's own parts against the kernel's network stack: the kernel accepts forged packets, and parts are
//! removed when dropped.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use anyhow::{Context, Result};
use lab::forge::{Packet, Tcp, VLAN, flag, protocol};
use lab::nat::nat;
use lab::net::veth;
use lab::seen::Seen;
use lab::{Capture, Namespace, Port, poll, test};

const SOON: Duration = Duration::from_secs(5);
/// Time to wait for an answer that must not come.
const QUIET: Duration = Duration::from_millis(300);

/// An experimental option (RFC 4727), which receivers that do not know it have to skip.
const EXPERIMENT: [u8; 8] = [0x1e, 6, 0, 0, 0, 0, 0, 0];

/// Connects Alice and Bob by one cable.
fn pair() -> Result<(Namespace, Namespace)> {
    let (alice, bob) = (Namespace::new("alice")?, Namespace::new("bob")?);
    veth(&alice, "eth0", "10.0.0.1/24 fd00::1/64", &bob, "eth0", "10.0.0.2/24 fd00::2/64")?;
    Ok((alice, bob))
}

/// Builds a packet from Alice to Bob with the hardware addresses of their cable.
fn forged(alice: &Namespace, bob: &Namespace, six: bool) -> Result<Packet> {
    let (source, destination) = if six { ("fd00::1", "fd00::2") } else { ("10.0.0.1", "10.0.0.2") };
    Ok(Packet::new(source.parse()?, destination.parse()?).ethernet(alice.mac("eth0")?, bob.mac("eth0")?))
}

/// Connects `from` to a server in `to` that accepts one connection at `at`. Returns the client's address as the server
/// sees it.
fn visit(from: &Namespace, to: &Namespace, at: &str) -> Result<IpAddr> {
    let at: SocketAddr = at.parse()?;
    let listener = to.enter(|| TcpListener::bind(at))?;
    let mut stream = from.enter(|| TcpStream::connect_timeout(&at, SOON))?;
    let (mut server, peer) = listener.accept()?;
    server.write_all(b"hello")?;
    drop(server);
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    assert_eq!(text, "hello");
    Ok(peer.ip())
}

#[test]
fn two_namespaces_on_a_cable_reach_each_other() {
    test(|| {
        let (alice, bob) = pair()?;
        assert_eq!(visit(&alice, &bob, "10.0.0.2:80")?, "10.0.0.1".parse::<IpAddr>()?);
        assert_eq!(visit(&alice, &bob, "[fd00::2]:80")?, "fd00::1".parse::<IpAddr>()?);
        Ok(())
    })
}

#[test]
fn a_failed_test_keeps_its_logs_but_no_namespace() {
    let mut found = None;
    let panic = catch_unwind(AssertUnwindSafe(|| {
        test(|| {
            let namespace = Namespace::new("brief")?;
            std::fs::write(namespace.dir().join("log"), "evidence")?;
            found = Some((namespace.path(), namespace.dir().to_owned()));
            anyhow::bail!("as asked");
        })
    }));
    assert!(panic.is_err());
    let (path, dir) = found.unwrap();
    assert!(!path.exists());
    assert_eq!(std::fs::read_to_string(dir.join("log")).unwrap(), "evidence");
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_namespace_that_did_well_leaves_nothing() {
    let namespace = Namespace::new("tidy").unwrap();
    let (path, dir) = (namespace.path(), namespace.dir().to_owned());
    let daemon = namespace.run(["sh", "-c", "sleep 1000 >/dev/null 2>&1 & echo $!"]).unwrap();
    drop(namespace);
    assert!(!path.exists() && !dir.exists());
    assert!(poll(SOON, || !is_running(daemon.trim())), "what was left in the namespace still runs");
}

#[test]
fn a_process_is_logged_and_ends_when_dropped() {
    test(|| {
        let namespace = Namespace::new("alice")?;
        let mut process = namespace.spawn(["sh", "-c", "echo ready; exec sleep 1000"])?;
        process.wait_for("ready", SOON)?;
        let pid = process.pid().to_string();
        assert!(is_running(&pid) && process.exit().is_none());
        drop(process);
        assert!(!is_running(&pid));

        let mut brief = namespace.spawn(["sh", "-c", "echo no; exit 3"])?;
        let error = brief.wait_for("yes", SOON).unwrap_err().to_string();
        assert!(error.contains("exit status: 3") && error.contains("no"), "{error}");
        Ok(())
    })
}

fn is_running(pid: &str) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

#[test]
fn a_failed_command_says_why() {
    test(|| {
        let namespace = Namespace::new("alice")?;
        let error = format!("{:#}", namespace.run(["ip", "link", "show", "nowhere"]).unwrap_err());
        assert!(error.contains("nowhere") && error.contains(namespace.name()), "{error}");
        Ok(())
    })
}

/// Puts Alice behind a NAT and Bob outside.
fn behind_nat() -> Result<(Namespace, Namespace, Namespace)> {
    let (alice, router, bob) = (Namespace::new("alice")?, Namespace::new("router")?, Namespace::new("bob")?);
    veth(&alice, "eth0", "10.0.0.1/24 fd00::1/64", &router, "lan", "10.0.0.254/24 fd00::ff/64")?;
    veth(&router, "wan", "192.0.2.254/24 2001:db8::ff/64", &bob, "eth0", "192.0.2.2/24 2001:db8::2/64")?;
    alice.route("default", "10.0.0.254")?;
    alice.route("default", "fd00::ff")?;
    nat(&router, "lan", "wan")?;
    Ok((alice, router, bob))
}

#[test]
fn a_nat_hides_who_is_inside() {
    test(|| {
        let (alice, _router, bob) = behind_nat()?;
        assert_eq!(visit(&alice, &bob, "192.0.2.2:80")?, "192.0.2.254".parse::<IpAddr>()?);
        assert_eq!(visit(&alice, &bob, "[2001:db8::2]:80")?, "2001:db8::ff".parse::<IpAddr>()?);
        Ok(())
    })
}

#[test]
fn a_nat_lets_no_connection_begin_without_its_syn() {
    test(|| {
        let (alice, router, bob) = behind_nat()?;
        let (inside, outside) = (Port::open(&alice, "eth0")?, Port::open(&bob, "eth0")?);
        let packet =
            Packet::new("10.0.0.1".parse()?, "192.0.2.2".parse()?).ethernet(alice.mac("eth0")?, router.mac("lan")?);
        inside.send(&packet.clone().tcp(Tcp::new(1000, 81, flag::ACK)).frame())?;
        inside.send(&packet.tcp(Tcp::syn(1001, 81)).frame())?;
        let first = outside.receive(SOON, |frame| Seen::frame(frame)?.tcp).context("the SYN comes through")?;
        assert_eq!(first.flags, flag::SYN, "an ACK without a connection has passed");
        Ok(())
    })
}

#[test]
fn the_kernel_answers_a_forged_syn() {
    test(|| {
        let (alice, bob) = pair()?;
        let _listener = bob.enter(|| TcpListener::bind("[::]:80"))?;
        let port = Port::open(&alice, "eth0")?;
        for six in [false, true] {
            let tcp = Tcp { sequence: 100, options: vec![2, 4, 5, 0xb4], ..Tcp::syn(4000, 80) };
            port.send(&forged(&alice, &bob, six)?.tcp(tcp).payload(b"data").frame())?;
            let answer = port.receive(SOON, |frame| Seen::frame(frame)?.tcp).context("no answer")?;
            assert_eq!((answer.flags, answer.acknowledgement), (flag::SYN | flag::ACK, 101));
            port.send(&forged(&alice, &bob, six)?.tcp(Tcp { sequence: 101, ..Tcp::new(4000, 80, flag::RST) }).frame())?;
        }
        Ok(())
    })
}

#[test]
fn the_kernel_refuses_a_wrong_checksum() {
    test(|| {
        let (alice, bob) = pair()?;
        let port = Port::open(&alice, "eth0")?;
        port.send(&forged(&alice, &bob, false)?.tcp(Tcp::syn(4000, 80)).wrong_checksum().frame())?;
        assert_eq!(port.receive(QUIET, |frame| Seen::frame(frame)?.tcp), None);
        Ok(())
    })
}

#[test]
fn the_kernel_understands_every_form() {
    test(|| {
        let (alice, bob) = pair()?;
        let (four, six) = (forged(&alice, &bob, false)?.udp(1, 53), forged(&alice, &bob, true)?.udp(1, 53));
        let hop_by_hop = |body: &[u8]| six.clone().extension(protocol::HOP_BY_HOP, body);
        let short = |packet: Packet| vec![packet.payload(b"x").frame()];
        let long = |packet: &Packet| packet.clone().identification(9).payload(&[b'x'; 3000]).fragments(1024);
        let forms = [
            ("IPv4", short(four.clone())),
            ("IPv4 without a UDP checksum", short(four.clone().no_checksum())),
            ("IPv4 with options", short(four.clone().options(&[1, 1, 1]))),
            ("IPv4 in fragments", long(&four)),
            ("IPv6", short(six.clone())),
            ("IPv6, hop by hop", short(hop_by_hop(&[]))),
            ("IPv6, two extensions", short(hop_by_hop(&EXPERIMENT).extension(protocol::DESTINATION_OPTIONS, &[]))),
            ("IPv6 in fragments", long(&six)),
        ];
        let socket = bob.enter(|| UdpSocket::bind("[::]:53"))?;
        socket.set_read_timeout(Some(SOON))?;
        let port = Port::open(&alice, "eth0")?;
        for (name, frames) in forms {
            for frame in &frames {
                port.send(frame)?;
            }
            let size = socket.recv(&mut [0; 4096]).with_context(|| format!("{name}: not understood"))?;
            assert_eq!(size, if frames.len() > 1 { 3000 } else { 1 }, "{name}");
        }
        socket.set_nonblocking(true)?;
        assert_eq!(socket.recv(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
        Ok(())
    })
}

#[test]
fn a_ping_by_hand_is_answered() {
    test(|| {
        let (alice, bob) = pair()?;
        let port = Port::open(&alice, "eth0")?;
        for (six, request, reply) in [(false, 8, 0), (true, 128, 129)] {
            port.send(&forged(&alice, &bob, six)?.icmp(request, 0, [0, 1, 0, 1]).payload(b"ping").frame())?;
            let answer = port.receive(SOON, |frame| Seen::frame(frame).filter(|seen| seen.icmp == Some((reply, 0))));
            let answer = answer.context("no answer")?;
            assert!(answer.payload == b"ping" && answer.checksums_right);
        }
        Ok(())
    })
}

#[test]
fn a_capture_holds_what_passed() {
    test(|| {
        let (alice, bob) = pair()?;
        let capture = Capture::start(&bob, "eth0")?;
        Port::open(&alice, "eth0")?.send(&forged(&alice, &bob, false)?.udp(1, 4242).payload(b"x").frame())?;
        assert!(poll(SOON, || capture.lines("udp port 4242").is_ok_and(|lines| lines.len() == 1)));
        let tagged = forged(&alice, &bob, false)?.tag(VLAN, 7).udp(1, 4243).frame();
        Port::open(&alice, "eth0")?.send(&tagged)?;
        assert!(poll(SOON, || capture.lines("vlan 7 and udp port 4243").is_ok_and(|lines| lines.len() == 1)));
        assert_eq!(capture.lines("")?.iter().filter(|line| line.contains("10.0.0.2.424")).count(), 2);
        assert!(capture.stop()?.exists());
        Ok(())
    })
}
