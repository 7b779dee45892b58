//! A path fixed by segment routing, on Linux routers: sender, its edge, a verifier off the direct path, and the
//! receiving endpoint (wire.md §8.12). Packets that a sender or an attacker on the path has modified do not get
//! through.

#[allow(dead_code, reason = "the table's rows are its other user")]
mod provers;

use anyhow::{Context, Result, ensure};
use datapath::interface::Interface;
use engine::issuing::segment::Giver;
use engine::model::Given;
use engine::verifier::proofs::{Outcome, Verifier};
use lab::Port;
use lab::forge::Packet;
use lab::net::{Namespace, veth};
use nix::sched::{CloneFlags, setns};
use provers::Prover;
use std::fs::File;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};
use wire::geneve::{ENCAPSULATION_MAX, PORT, Payload};
use wire::{DropReason, Ends, Epoch, InterfaceId, MasterKey, ProofKey, Segment, SegmentFlags, Suite, Vni};

const NOW: u32 = 1_800_000_000;
const LENGTH: u32 = 3600;
const AUTHORITY: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(198, 51, 100, 1));
const PATH: [&str; 3] = ["edge", "aside", "receiver"];
const HOPS: [&str; 3] = ["2001:db8:a::1", "2001:db8:b::1", "2001:db8:3::1"];
const SENDER: &str = "2001:db8:1::1";
const WITHIN: Duration = Duration::from_secs(20);
/// linux/udp.h: IPv6 without a UDP checksum, out and in.
const NO_CHECKSUM_OUT: libc::c_int = 101;
const NO_CHECKSUM_IN: libc::c_int = 102;

fn hops() -> [Ipv6Addr; 3] {
    HOPS.map(|hop| hop.parse().unwrap())
}

fn key(verifier: &str) -> ProofKey {
    MasterKey::new([7; 32]).proof_key(verifier, AUTHORITY, Epoch::at(NOW.into(), LENGTH)).unwrap()
}

/// Creates a verifier that protects its own hop only.
fn verifier(place: usize) -> Verifier {
    let mut verifier = Verifier::new(vec![HOPS[place].parse::<IpAddr>().unwrap().into()], LENGTH, 3600);
    verifier.keys.insert((AUTHORITY, Epoch::at(NOW.into(), LENGTH)), key(PATH[place]));
    verifier
}

/// Returns the segment for the path.
fn given() -> Given {
    let path = PATH.map(key);
    let giver = Giver {
        authority: AUTHORITY,
        suite: Suite::Siphash,
        path: &path,
        now: NOW.into(),
        epoch_length: LENGTH,
        max_lifetime: 3600,
    };
    let segment = Segment {
        suite: Suite::Siphash,
        count: 3,
        pointer: 0,
        flags: SegmentFlags::UNDERLAY6,
        protocol: 0,
        epoch: Epoch::at(NOW.into(), LENGTH).on_wire(),
        expires: NOW + 3000,
        interface: InterfaceId(1),
        port: 0,
        sender_port: 0,
        authority: AUTHORITY,
    };
    let ends = Ends {
        sending: SENDER.parse().unwrap(),
        receiving: HOPS[2].parse().unwrap(),
        sender: [10, 0, 0, 7].into(),
        receiver: [10, 0, 0, 9].into(),
    };
    let plain = Given { segment, vni: Vni::new(7).unwrap(), ends, proofs: Vec::new(), hops: Vec::new() };
    plain.along(&giver, &hops()).expect("three hops")
}

/// Returns Geneve with the segment, and an inner packet that ends with `mark`.
fn datagram(given: &Given, mark: u8) -> Vec<u8> {
    let mut header = [0; ENCAPSULATION_MAX];
    let length = given.encapsulation(Payload::Ipv4).encode(&mut header).unwrap();
    let inner = [0x45, 0, 0, 24, 0, 0, 0, 0, 64, 1, 0, 0, 10, 0, 0, 7, 10, 0, 0, 9, 8, 0, 0, mark];
    [&header[..length], &inner].concat()
}

fn set(socket: &UdpSocket, option: libc::c_int) {
    let on: libc::c_int = 1;
    // SAFETY: the socket is open, and the option is an int that lives through the call.
    let done = unsafe {
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_UDP, option, (&raw const on).cast(), size_of_val(&on) as u32)
    };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}

struct Stage {
    sender: Namespace,
    edge: Namespace,
    aside: Namespace,
    _receiver: Namespace,
    provers: Vec<Prover>,
    out: UdpSocket,
    arrived: UdpSocket,
    port: Port,
    marks: u8,
}

impl Stage {
    fn new() -> Result<Self> {
        let namespaces = ["sender", "edge", "aside", "receiver"].map(Namespace::new);
        let [sender, edge, aside, receiver] = namespaces;
        let (sender, edge, aside, receiver) = (sender?, edge?, aside?, receiver?);
        for router in [&edge, &aside, &receiver] {
            router.forward()?;
            for devices in ["all", "default"] {
                router.sysctl(&format!("net/ipv6/conf/{devices}/seg6_enabled"), "1")?;
            }
        }
        veth(&sender, "eth0", "2001:db8:1::1/64", &edge, "sender", "2001:db8:1::ff/64")?;
        veth(&aside, "eth0", "2001:db8:2::1/64", &edge, "aside", "2001:db8:2::ff/64")?;
        veth(&receiver, "eth0", "2001:db8:3::1/64", &edge, "receiver", "2001:db8:3::ff/64")?;
        edge.address("lo", "2001:db8:a::1/128")?;
        aside.address("lo", "2001:db8:b::1/128")?;
        sender.route("default", "2001:db8:1::ff")?;
        aside.route("default", "2001:db8:2::ff")?;
        receiver.route("default", "2001:db8:3::ff")?;
        edge.route("2001:db8:b::1/128", "2001:db8:2::1")?;
        let mut provers = Vec::new();
        for (place, (namespace, device)) in
            [(&edge, "sender"), (&aside, "eth0"), (&receiver, "eth0")].iter().enumerate()
        {
            setns(File::open(namespace.path())?, CloneFlags::CLONE_NEWNET)?;
            let mut prover = Prover::new(&verifier(place), 16);
            prover.set_clock(NOW);
            prover.program.attach(&Interface::named(device)?)?;
            provers.push(prover);
        }
        let out = sender.enter(|| UdpSocket::bind(SocketAddr::new(SENDER.parse().unwrap(), 50_000)))?;
        set(&out, NO_CHECKSUM_OUT);
        let arrived = receiver.enter(|| UdpSocket::bind(SocketAddr::new(HOPS[2].parse().unwrap(), PORT)))?;
        set(&arrived, NO_CHECKSUM_IN);
        arrived.set_read_timeout(Some(WITHIN))?;
        let port = Port::open(&sender, "eth0")?;
        Ok(Self { sender, edge, aside, _receiver: receiver, provers, out, arrived, port, marks: 0 })
    }

    /// Makes the sender's kernel route packets for the receiving endpoint through these hops first.
    fn lead(&self, through: &[&str]) -> Result<()> {
        let segments = through.join(",");
        let to = format!("{}/128 encap seg6 mode inline segs {segments} via 2001:db8:1::ff dev eth0", HOPS[2]);
        self.sender.ip(&format!("-6 route replace {to}")).map(drop)
    }

    fn send(&mut self, given: &Given) -> Result<()> {
        self.marks += 1;
        self.out.send_to(&datagram(given, self.marks), SocketAddr::new(HOPS[2].parse()?, PORT))?;
        Ok(())
    }

    /// Checks that a packet on the right path arrives first, and that every verifier has advanced its pointer.
    fn arrives(&mut self) -> Result<()> {
        self.lead(&HOPS[..2])?;
        self.send(&given())?;
        let mut room = [0; 2048];
        let length = self.arrived.recv(&mut room).with_context(|| format!("mark {} arrives", self.marks))?;
        ensure!(room[length - 1] == self.marks, "{} came instead of {}", room[length - 1], self.marks);
        ensure!(room[12] & 7 == 3, "the pointer is {}", room[12] & 7);
        Ok(())
    }

    fn counts(&self) -> Result<Vec<Vec<u64>>> {
        self.provers.iter().map(|prover| prover.program.counts()).collect()
    }

    /// Checks that the packets that `send` sends are dropped at this place for this reason, and nowhere else for any
    /// reason.
    fn stops(
        &mut self,
        what: &str,
        at: usize,
        reason: DropReason,
        send: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<()> {
        let before = self.counts()?;
        send(self)?;
        let deadline = Instant::now() + WITHIN;
        let drops = |counts: &[Vec<u64>]| -> Vec<(usize, u8)> {
            let reasons = DropReason::ALL.iter().map(|reason| *reason as u8);
            let places = 0..counts.len();
            let all = places.flat_map(|place| reasons.clone().map(move |reason| (place, reason)));
            all.filter(|(place, reason)| counts[*place][usize::from(*reason)] != before[*place][usize::from(*reason)])
                .collect()
        };
        while drops(&self.counts()?).is_empty() && Instant::now() < deadline {
            std::thread::yield_now();
        }
        let dropped = drops(&self.counts()?);
        ensure!(dropped == [(at, reason as u8)], "{what}: dropped (place, reason): {dropped:?}");
        self.arrives().with_context(|| format!("after {what}"))
    }

    /// Builds a frame to the edge by hand: with these hops, of which `place` is the next.
    fn by_hand(&self, given: &Given, hops: &[Ipv6Addr], place: usize) -> Result<Vec<u8>> {
        let count = hops.len() as u8;
        let list: Vec<_> = hops.iter().rev().flat_map(Ipv6Addr::octets).collect();
        let routing = [&[4, count - 1 - place as u8, count - 1, 0, 0, 0][..], &list].concat();
        let packet = Packet::new(SENDER.parse()?, hops[place].into())
            .ethernet(self.sender.mac("eth0")?, self.edge.mac("sender")?)
            .extension(lab::forge::protocol::ROUTING, &routing)
            .udp(50_000, PORT)
            .no_checksum()
            .payload(&datagram(given, 0));
        Ok(packet.frame())
    }
}

fn at(given: &Given, pointer: u8) -> Given {
    Given { segment: Segment { pointer, ..given.segment }, ..given.clone() }
}

#[test]
fn a_fixed_path_leads_through_its_verifiers_and_no_other_way() {
    lab::test(|| {
        let mut stage = Stage::new()?;
        let [edge, aside, end] = HOPS;
        stage.arrives()?;
        for (verifier, counts) in PATH.iter().zip(stage.counts()?) {
            let passed = counts[wire::map::counter::TOKEN as usize];
            ensure!(passed == 1, "{verifier} has passed {passed}");
        }
        stage.stops("the verifier aside skipped", 0, DropReason::Malformed, |stage| {
            stage.lead(&[edge])?;
            stage.send(&given())
        })?;
        stage.stops("the edge in its place", 0, DropReason::BadTag, |stage| {
            stage.lead(&[edge, edge])?;
            stage.send(&given())
        })?;
        // In a packet to another hop, the edge sees its own hop ahead.
        stage.stops("the order swapped", 0, DropReason::Malformed, |stage| {
            stage.lead(&[aside, edge])?;
            stage.send(&given())
        })?;
        stage.stops("a hop more", 0, DropReason::Malformed, |stage| {
            stage.lead(&[edge, aside, aside])?;
            stage.send(&given())
        })?;
        stage.stops("no route at all", 2, DropReason::Malformed, |stage| {
            stage.sender.ip(&format!("-6 route replace {end}/128 via 2001:db8:1::ff dev eth0"))?;
            stage.send(&given())
        })?;
        stage.stops("begun behind the edge", 0, DropReason::Malformed, |stage| {
            let begun = stage.by_hand(&at(&given(), 1), &hops(), 1)?;
            stage.port.send(&begun)
        })?;
        stage.stops("the same by somebody who is behind the edge", 1, DropReason::BadTag, |stage| {
            let mut begun = stage.by_hand(&at(&given(), 1), &hops(), 1)?;
            begun[..6].copy_from_slice(&stage.aside.mac("eth0")?);
            Port::open(&stage.edge, "aside")?.send(&begun)
        })?;
        stage.stops("begun behind both", 2, DropReason::BadTag, |stage| {
            let begun = stage.by_hand(&at(&given(), 2), &hops(), 2)?;
            stage.port.send(&begun)
        })?;
        // An attacker behind the edge takes a packet that the edge has passed around the verifier off the direct path.
        let mut passed = stage.by_hand(&given(), &hops(), 0)?;
        assert_eq!(verifier(0).verify(&mut passed, NOW), Outcome::Proved);
        let opened = given_in(&passed);
        stage.stops("taken around the verifier aside", 2, DropReason::Malformed, |stage| {
            stage.port.send(&stage.by_hand(&at(&opened, 1), &hops(), 2)?)
        })?;
        stage.stops("taken around it, the pointer moved", 2, DropReason::BadTag, |stage| {
            stage.port.send(&stage.by_hand(&at(&opened, 2), &hops(), 2)?)
        })
    });
}

/// Returns the segment with this frame's proofs.
fn given_in(frame: &[u8]) -> Given {
    let packet = wire::packet::Packet::parse(frame);
    let (read, _) = wire::geneve::Encapsulation::decode(&frame[packet.payload..packet.end]).expect("it was proved");
    Given { proofs: read.proofs.to_vec(), ..given() }
}
