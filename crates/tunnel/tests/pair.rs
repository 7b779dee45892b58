//! Real packets through both ends: TCP and UDP, IPv4 and IPv6, through a NAT, as an observer on the path sees them.
//! Needs root.

// Only tests without a network need its random numbers.
#[allow(dead_code)]
mod stage;

use engine::model::Treatment::{Authenticate, Encrypt};
use engine::model::{Compress, Sealing};
use lab::Capture;
use nix::sys::socket::{setsockopt, sockopt};
use stage::{SERVER, SERVER6, Stage, demand, key};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const TCP: u8 = 6;
const UDP: u8 = 17;
const PATIENCE: Duration = Duration::from_secs(10);
/// Text that an observer would recognise.
const TEXT: &[u8] = b"the quick brown fox jumps over the lazy dog";

fn address(server: &str, port: u16) -> SocketAddr {
    SocketAddr::new(server.parse().expect("an address"), port)
}

/// Bytes that repeat the text, with a number in each piece so that none can be lost or swapped unnoticed.
fn pattern(length: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(length + 64);
    for number in 0u32.. {
        if bytes.len() >= length {
            break;
        }
        bytes.extend_from_slice(TEXT);
        bytes.extend_from_slice(&number.to_be_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// Serves one connection, which sends back what it gets, until the client is done.
fn echo(stage: &Stage, at: SocketAddr) {
    let listener = stage.server.enter(|| TcpListener::bind(at)).expect("a listener");
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        let mut reader = stream.try_clone().expect("a stream");
        std::io::copy(&mut reader, &mut stream).expect("an echo");
    });
}

/// Sends the bytes and returns what comes back.
fn exchange(stage: &Stage, to: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut stream =
        stage.client.enter(|| TcpStream::connect_timeout(&to, PATIENCE)).expect("a connection through the tunnel");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let mut writer = stream.try_clone().expect("a stream");
    std::thread::scope(|scope| {
        scope.spawn(move || {
            writer.write_all(bytes).expect("everything is sent");
            writer.shutdown(std::net::Shutdown::Write).expect("the end is sent");
        });
        let mut back = Vec::new();
        stream.read_to_end(&mut back).expect("everything comes back");
        back
    })
}

/// Reports whether the observer's capture has the text.
fn is_readable(capture: Capture) -> bool {
    let bytes = std::fs::read(capture.stop().expect("a capture")).expect("a file");
    bytes.windows(TEXT.len()).any(|window| window == TEXT)
}

#[test]
fn tcp_passes_unchanged_both_ways_over_both_families_and_a_nat() {
    lab::test(|| {
        let stage = Stage::new(true, demand(Encrypt));
        for (server, port) in [(SERVER, 9100), (SERVER6, 9101)] {
            stage.leg(TCP, port, demand(Encrypt));
            echo(&stage, address(server, port));
            let bytes = pattern(20_000_000);
            assert!(exchange(&stage, address(server, port), &bytes) == bytes, "{server}: other bytes came back");
        }
        let counts = stage.verifier.counts();
        assert!(counts.opened.load(Ordering::Relaxed) > 40_000_000);
        assert_eq!(counts.not_taken.load(Ordering::Relaxed), 0, "the kernel took every super-packet");
        Ok(())
    });
}

#[test]
fn an_observer_reads_what_is_only_authenticated_and_nothing_that_is_encrypted() {
    lab::test(|| {
        for (treatment, readable) in [(Encrypt, false), (Authenticate, true)] {
            let stage = Stage::new(false, demand(treatment));
            stage.leg(TCP, 9100, demand(treatment));
            echo(&stage, address(SERVER, 9100));
            let capture = Capture::start(&stage.router, "wan")?;
            let bytes = pattern(100_000);
            assert!(exchange(&stage, address(SERVER, 9100), &bytes) == bytes);
            assert_eq!(is_readable(capture), readable, "{treatment:?}");
        }
        Ok(())
    });
}

#[test]
fn datagrams_of_all_lengths_that_fit_pass_and_come_back() {
    lab::test(|| {
        let stage = Stage::new(true, demand(Encrypt));
        for (server, port) in [(SERVER, 7), (SERVER6, 8)] {
            stage.leg(UDP, port, demand(Encrypt));
            let echo = stage.server.enter(|| UdpSocket::bind(address(server, port)))?;
            std::thread::spawn(move || {
                let mut room = [0; 2000];
                while let Ok((length, from)) = echo.recv_from(&mut room) {
                    let _ = echo.send_to(&room[..length], from);
                }
            });
            let local = if address(server, port).is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
            let socket = stage.client.enter(|| UdpSocket::bind(local))?;
            socket.connect(address(server, port))?;
            socket.set_read_timeout(Some(Duration::from_millis(500)))?;
            for length in [0, 1, 100, 1199, 1350] {
                let sent = pattern(length);
                let mut room = [0; 2000];
                let begun = Instant::now();
                // The first datagram may be lost while there is no tunnel.
                let back = loop {
                    socket.send(&sent)?;
                    match socket.recv(&mut room) {
                        Ok(back) => break back,
                        Err(error) => assert!(begun.elapsed() < PATIENCE, "{server}, {length} bytes: {error}"),
                    }
                };
                assert!(room[..back] == sent, "{server}, {length} bytes");
            }
        }
        Ok(())
    });
}

#[test]
fn compressed_streams_and_datagrams_pass_unchanged_both_ways() {
    lab::test(|| {
        for treatment in [Encrypt, Authenticate] {
            let demand = Sealing { compress: Some(Compress::Always), ..demand(treatment) };
            let stage = Stage::new(true, demand);
            stage.leg(TCP, 9100, demand);
            echo(&stage, address(SERVER, 9100));
            // Numbers between the text make no two blocks alike; the noise in the middle does not shrink.
            let mut bytes = pattern(5_000_000);
            for (at, byte) in bytes.iter_mut().enumerate().skip(2_000_000).take(1_000_000) {
                *byte = (at as u32).wrapping_mul(0x9e37_79b1).rotate_left(9) as u8 ^ (at >> 7) as u8;
            }
            assert!(exchange(&stage, address(SERVER, 9100), &bytes) == bytes, "other bytes came back");
            for counts in [stage.agent.counts(), stage.verifier.counts()] {
                let [from, to] = counts.compressed.each_ref().map(|bytes| bytes.load(Ordering::Relaxed));
                assert!(from > 3_000_000 && to * 3 < from, "{from} bytes became {to}");
                assert_eq!(counts.malformed.load(Ordering::Relaxed) + counts.not_taken.load(Ordering::Relaxed), 0);
            }
        }
        Ok(())
    });
}

#[test]
fn datagrams_that_are_compressed_as_one_arrive_as_many() {
    lab::test(|| {
        let demand = Sealing { compress: Some(Compress::Always), ..demand(Encrypt) };
        let stage = Stage::new(false, demand);
        stage.leg(UDP, 7, demand);
        assert!(lab::poll(PATIENCE, || {
            stage.agent.end().show(tunnel::times()).iter().any(|shown| shown.key == key() && shown.is_open)
        }));
        let server = stage.server.enter(|| UdpSocket::bind(address(SERVER, 7)))?;
        server.set_read_timeout(Some(PATIENCE))?;
        let client = stage.client.enter(|| UdpSocket::bind("0.0.0.0:0"))?;
        client.connect(address(SERVER, 7))?;
        setsockopt(&client, sockopt::UdpGsoSegment, &1000)?;
        let sent = pattern(4500);
        client.send(&sent)?;
        let mut room = [0; 2000];
        for expected in sent.chunks(1000) {
            let length = server.recv(&mut room)?;
            assert!(room[..length] == *expected, "a datagram of {length} bytes");
        }
        let compressed = stage.agent.counts().compressed.each_ref().map(|bytes| bytes.load(Ordering::Relaxed));
        assert!(compressed[0] > 4500 && compressed[1] < 1000, "{compressed:?}: one block");
        Ok(())
    });
}

#[test]
fn super_packets_fit_one_send_unless_the_machine_forwards() {
    lab::test(|| {
        let stage = Stage::new(false, demand(Encrypt));
        for (forwards, limit) in [("0", "gso_max_size 62000"), ("1", "gso_max_size 65536"), ("0", "gso_max_size 62000")]
        {
            stage.client.sysctl("net/ipv4/ip_forward", forwards)?;
            let shows = || stage.client.ip("-d link show dev vs-seal").is_ok_and(|text| text.contains(limit));
            assert!(lab::poll(PATIENCE * 3, shows), "forwarding is {forwards}, and there is no {limit}");
        }
        Ok(())
    });
}

#[test]
fn a_record_that_is_weaker_than_the_rule_demands_brings_nothing() {
    lab::test(|| {
        let stage = Stage::new(false, demand(Encrypt));
        stage.leg(TCP, 9100, demand(Authenticate));
        echo(&stage, address(SERVER, 9100));
        // The first packets travel before there is a tunnel, always encrypted: let the tunnel open first.
        assert!(lab::poll(PATIENCE, || {
            stage.agent.end().show(tunnel::times()).iter().any(|shown| shown.key == key() && shown.is_open)
        }));
        let to = address(SERVER, 9100);
        let connected = stage.client.enter(|| TcpStream::connect_timeout(&to, Duration::from_secs(2)));
        assert!(connected.is_err(), "the verifier took packets that were only authenticated");
        assert!(stage.verifier.end().drops().weak > 0);
        Ok(())
    });
}

#[test]
fn packets_to_a_destination_without_a_tunnel_go_nowhere() {
    lab::test(|| {
        let stage = Stage::new(false, demand(Encrypt));
        let capture = Capture::start(&stage.router, "lan")?;
        let to = address(SERVER, 9100);
        assert!(stage.client.enter(|| TcpStream::connect_timeout(&to, Duration::from_secs(1))).is_err());
        assert_eq!(stage.agent.end().unknown().map(|(_, to)| to.port), Some(9100), "the agent is asked for it");
        assert_eq!(capture.lines("tcp")?, Vec::<String>::new());
        Ok(())
    });
}
