//! Tests of proofs in packets of a virtual network to a real socket, with the daemon as a process, its program at XDP,
//! and a real authority. Needs root.

mod crossing;

use crate::stage::*;
use api::{PathSegment, SegmentRequest, SegmentTo};
use client::Authority;
use engine::model::Given;
use nix::sys::signal::Signal;
use std::cell::Cell;
use std::net::{IpAddr, UdpSocket};
use std::time::{Duration, Instant};
use verifier::view;
use wire::geneve::{ENCAPSULATION_MAX, Payload};

const NETWORKS: &str = r#"
authority = "198.51.100.1"

[[networks]]
name = "blue"
vni = 100

[[places]]
network = "blue"
address = "10.0.0.5"
endpoint = "10.77.0.2"
interface = 5

[[places]]
network = "blue"
address = "10.0.0.7"
endpoint = "10.77.0.1"
interface = 7

[[paths]]
to = "10.77.0.1"
verifiers = "edge-1"
"#;

const POLICY: &str = r#"
[[receivers]]
name = "web"
address = "10.0.0.7"
services = "udp"
network = "blue"

[[rules]]
action = "allow"
who = "person:alice"
to = "web"
"#;

const SETTINGS: &str = "hook = \"tc\"\n[proofs]\nendpoints = \"10.77.0.1\"\ninterface = \"eth0\"\n";

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

async fn segment(person: &Authority) -> PathSegment {
    segment_from(person, "10.77.0.2").await
}

async fn segment_from(person: &Authority, sending: &str) -> PathSegment {
    let request = SegmentRequest {
        network: "blue".into(),
        sender: address("10.0.0.5"),
        sending: address(sending),
        to: SegmentTo { address: address("10.0.0.7"), protocol: 17, port: 53 },
        sender_port: 0,
    };
    person.segment(&request).await.unwrap()
}

fn given(segment: &PathSegment) -> Given {
    client::convert::segment(segment, address("10.77.0.2"), address("10.0.0.5"), address("10.0.0.7")).unwrap()
}

/// Builds a datagram of the virtual network to a port, with its encapsulation.
fn packet(given: &Given, port: u16) -> Vec<u8> {
    let mut room = [0; ENCAPSULATION_MAX];
    let len = given.encapsulation(Payload::Ipv4).encode(&mut room).unwrap();
    let mut packet = room[..len].to_vec();
    packet.extend([0x45, 0, 0, 32, 0, 1, 0, 0, 64, 17, 0, 0, 10, 0, 0, 5, 10, 0, 0, 7]);
    packet.extend([0x30, 0x39]);
    packet.extend(port.to_be_bytes());
    packet.extend([0, 12, 0, 0, 1, 2, 3, 4]);
    packet
}

/// Builds packets that must not pass: with a forged proof, for another network, for another port, and truncated.
fn wrong(given: &Given) -> [Vec<u8>; 4] {
    let mut forged = given.clone();
    forged.proofs[0][3] ^= 1;
    let elsewhere = Given { vni: wire::Vni::new(101).unwrap(), ..given.clone() };
    [packet(&forged, 53), packet(&elsewhere, 53), packet(given, 80), packet(given, 53)[8..].to_vec()]
}

/// A socket at the receiving endpoint, and one to send to it.
struct Ends {
    receiving: UdpSocket,
    sending: UdpSocket,
    sent: Cell<u32>,
}

impl Ends {
    fn new(stage: &Stage) -> Self {
        Self::of(UdpSocket::bind("10.77.0.1:6081").unwrap(), stage.socket_outside())
    }

    fn of(receiving: UdpSocket, sending: UdpSocket) -> Self {
        receiving.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        Self { receiving, sending, sent: Cell::new(0) }
    }

    /// Sends a packet and returns what arrives, if anything does. The last bytes of each packet differ.
    fn through(&self, packet: &[u8]) -> Option<Vec<u8>> {
        self.sent.set(self.sent.get() + 1);
        let number = self.sent.get().to_be_bytes();
        let packet = [&packet[..packet.len() - number.len()], &number].concat();
        self.sending.send_to(&packet, self.receiving.local_addr().unwrap()).unwrap();
        let mut room = [0; 2048];
        loop {
            let len = self.receiving.recv(&mut room).ok()?;
            if room[..len].ends_with(&number) {
                return Some(room[..len].to_vec());
            }
        }
    }

    /// Reports whether a packet arrives; retries, for loaded machines.
    fn passes(&self, packet: &[u8]) -> bool {
        (0..20).any(|_| self.through(packet).is_some())
    }
}

fn set_up(stage: &Stage) {
    std::fs::write(stage.authority.path().join("networks.toml"), NETWORKS).unwrap();
}

/// Enrols the verifier and writes its settings.
async fn enrol(stage: &Stage) {
    let directory = stage.directory().display().to_string();
    let (code, text) = stage.cli(&["enrol", "--dir", &directory], stage.enrolment().await).await;
    assert_eq!(code, 0, "{text}");
    let file = stage.directory().join("verifier.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text + SETTINGS).unwrap();
}

fn dropped(proofs: &view::Proofs, reason: &str) -> u64 {
    proofs.reasons.iter().find(|counter| counter.name == reason).unwrap().packets
}

#[test]
fn packets_with_right_proofs_come_through_until_consent_is_withdrawn() {
    act(|stage| async move {
        set_up(&stage);
        enrol(&stage).await;
        stage.apply(POLICY).await;
        let alice = stage.alice().await;
        let verifier = stage.run(&[]).await;
        verifier.connected().await;
        let ends = Ends::new(&stage);
        let one = given(&segment(&alice).await);
        let right = packet(&one, 53);
        assert!(ends.passes(&right));
        let out = ends.through(&right).expect("it passes");
        assert_eq!((out[12] & 7, out.len()), (1, right.len()), "the pointer was moved");

        for (number, wrong) in wrong(&one).iter().enumerate() {
            assert!(ends.through(wrong).is_none(), "{number}");
        }
        let proofs = stage.status().await.proofs.expect("it checks them");
        assert_eq!((dropped(&proofs, "bad_tag"), dropped(&proofs, "malformed")), (3, 1), "{proofs:?}");
        assert!(proofs.keys_until.unwrap() > verifier::now() + 23 * 3600);
        let (code, text) = stage.cli(&["status"], stage.daemon()).await;
        assert!(code == 0 && text.contains("proofs      before 10.77.0.1/32, on eth0"), "{text}");

        // Alice loses her permission.
        stage.apply(&POLICY.replace("alice", "bob")).await;
        let began = Instant::now();
        until("the end of consent", || ends.through(&right).is_none().then_some(())).await;
        println!("withdrawn consent cut after {:?}", began.elapsed());
        let proofs = stage.status().await.proofs.unwrap();
        assert!(dropped(&proofs, "revoked") > 0 && proofs.withdrawn == 1, "{proofs:?}");
        // With new consent, the authority issues segments that end later.
        stage.apply(POLICY).await;
        let other = packet(&given(&segment(&alice).await), 53);
        assert!(ends.passes(&other));
        assert!(ends.through(&right).is_none());
        assert!(!verifier.log().contains("ERROR"), "{}", verifier.log());
    });
}

#[test]
fn proofs_are_checked_on_without_the_daemon_and_by_the_next_one() {
    act(|stage| async move {
        set_up(&stage);
        enrol(&stage).await;
        stage.apply(POLICY).await;
        let alice = stage.alice().await;
        let mut verifier = stage.run(&[]).await;
        verifier.connected().await;
        let ends = Ends::new(&stage);
        let one = given(&segment(&alice).await);
        let mut forged = one.clone();
        forged.proofs[0][0] ^= 1;
        let [right, wrong] = [&one, &forged].map(|given| packet(given, 53));
        verifier.signal(Signal::SIGKILL);
        verifier.end().await;
        assert!(ends.passes(&right) && ends.through(&wrong).is_none());
        stage.apply(&POLICY.replace("alice", "bob")).await;
        let mut verifier = stage.run(&[]).await;
        until("the end of consent", || ends.through(&right).is_none().then_some(())).await;
        let (code, text) = stage.cli(&["detach"], stage.daemon()).await;
        assert_eq!(code, 0, "{text}");
        verifier.end().await;
        assert!(!stage.has_xdp() && ends.passes(&wrong), "nothing is checked any more");
    });
}

#[test]
fn tokens_and_proofs_do_not_share_an_interface_at_xdp() {
    act(|stage| async move {
        enrol(&stage).await;
        let mut verifier = stage.spawn(&["--hook", "xdp"]).await;
        assert!(!verifier.end().await.success());
        verifier.says("set hook = \"tc\" for tokens").await;
    });
}
