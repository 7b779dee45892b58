//! The verifier's hooks on a veth pair: packets as a real stack sends them, with the agent on the other end.

#[allow(dead_code, reason = "the table's rows are its other user")]
mod table;
#[allow(dead_code, reason = "the table's rows are its other user")]
mod world;

use datapath::Pins;
use datapath::agent::Agent;
use datapath::clock;
use datapath::hook::{self, Hook, Mode};
use datapath::interface::Interface;
use datapath::tc::supported_attachment;
use datapath::verifier::Verifier;
use engine::verifier::Outcome;
use lab::forge::{Packet, Tcp, flag};
use lab::net::{Namespace, veth};
use lab::port::Port;
use lab::seen::Seen;
use nix::sched::{CloneFlags, setns};
use std::fs::File;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};
use table::Transport;
use wire::Destination;
use wire::checksum::replace;
use wire::map::{Flow, FlowKey, GrantEntry, GrantSlot, Owner, counter, origin, owner, stage};
use world::{Deciders, Family, Grant, NOW, families};

const ROOT: Owner = Owner { kind: owner::USER, reserved: 0, id: 0 };
const SUBJECT: u32 = 7;
const DROPPED: Duration = Duration::from_millis(500);
const SENT: usize = 8 << 20;

/// Moves this thread into the namespace.
fn stand_in(namespace: &Namespace) {
    setns(File::open(namespace.path()).unwrap(), CloneFlags::CLONE_NEWNET).unwrap();
}

/// Creates a protected server and a client, joined by a veth pair; this thread enters the server's namespace.
fn cable() -> (Namespace, Namespace) {
    let (server, client) = (Namespace::new("server").unwrap(), Namespace::new("client").unwrap());
    let addresses = ["203.0.113.10/24 2001:db8::10/64", "203.0.113.7/24 2001:db8::7/64"];
    veth(&server, "eth0", addresses[0], &client, "eth0", addresses[1]).unwrap();
    stand_in(&server);
    (server, client)
}

/// Attaches an agent to this device of the client, with grants for the protected ports.
fn agent(client: &Namespace, device: &str) -> Agent {
    stand_in(client);
    let mut agent = Agent::load(14, false, supported_attachment(), None).unwrap_or_else(|error| panic!("{error:#}"));
    let protected = engine::model::protected::entries(&world::receivers()).unwrap();
    let entries: Vec<_> =
        protected.iter().map(|entry| (entry.prefix.network(), entry.prefix.prefix_len(), entry.services)).collect();
    agent.protect(&entries).unwrap();
    agent.set_clock(clock::boot_reading(NOW.into())).unwrap();
    agent.owners.set(&ROOT, &SUBJECT).unwrap();
    for family in families() {
        for transport in table::TRANSPORTS {
            let (grant, to) = (Grant::new(&family, 1), transport.destination(&family));
            let entry = GrantEntry {
                until: NOW + 200,
                used: 0,
                plain: 0,
                suite: grant.suite as u8,
                skew: 0,
                carrier: 1,
                reserved: 0,
                header: grant.header().encode(),
                key: std::array::from_fn(|index| grant.key(&to).bytes().get(index).copied().unwrap_or_default()),
                spent: 0,
                reserved2: 0,
            };
            agent.grants.set(&GrantSlot::new(SUBJECT, &to), &entry).unwrap();
        }
    }
    agent.attach(&Interface::named(device).unwrap()).unwrap();
    agent
}

fn at(to: Destination) -> SocketAddr {
    (to.address, to.port).into()
}

/// Sends a lot of data through a new connection; returns the client's address.
fn stream(client: &Namespace, family: &Family) -> SocketAddr {
    let to = at(Transport::Tcp.destination(family));
    let listener = TcpListener::bind(to).unwrap();
    let send = || {
        let mut stream = TcpStream::connect_timeout(&to, Duration::from_secs(5)).expect("the server answers");
        stream.write_all(&vec![7; SENT]).unwrap();
        stream.local_addr().unwrap()
    };
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| client.enter(send));
        let mut got = Vec::new();
        listener.accept().unwrap().0.read_to_end(&mut got).unwrap();
        assert!(got.len() == SENT && got.iter().all(|byte| *byte == 7));
        sender.join().unwrap()
    })
}

fn datagram(client: &Namespace, family: &Family) {
    let to = at(Transport::Udp.destination(family));
    let server = UdpSocket::bind(to).unwrap();
    server.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    client.enter(|| {
        let unspecified = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        UdpSocket::bind(unspecified).unwrap().send_to(b"hello", to).unwrap();
    });
    let mut got = [0; 100];
    assert_eq!(server.recv(&mut got).map(|length| got[..length].to_vec()).unwrap(), b"hello");
}

#[test]
fn kernel_takes_tokens_out_of_what_a_stack_sends() {
    for hook in Hook::ALL {
        for finished in [false, true] {
            let (server, client) = cable();
            // With the offload off, the sending stack writes whole checksums; with it on, the stack leaves them to a
            // card that does not exist.
            if finished && client.offload("eth0", "tx", false).is_err() {
                continue;
            }
            // IPv6 super-packets beyond 64 KiB, if the kernel supports them.
            let _ = client.ip("link set eth0 gso_max_size 200000");
            let _agent = agent(&client, "eth0");
            stand_in(&server);
            let mut verifier = Deciders::new(hook, world::config(), &world::receivers()).kernel;
            verifier.set_clock(clock::coarse_reading(NOW.into())).unwrap();
            verifier.attach(&Interface::named("eth0").unwrap()).unwrap();
            for family in families() {
                let from = stream(&client, &family);
                datagram(&client, &family);
                let to = Transport::Tcp.destination(&family);
                let flow = verifier.flows.get(&FlowKey::new(from.ip(), from.port(), to.address, to.port, 6)).unwrap();
                let mean = flow.map_or(0, |flow| flow.bytes / flow.packets);
                println!("{hook:?}, checksums finished: {finished}, {}: {mean} bytes per packet", family.name);
                assert!(hook == Hook::Xdp || finished || mean > 4000, "super-packets stay whole: {mean}");
            }
            let dropped: u64 = wire::DropReason::ALL.iter().map(|reason| verifier.count(*reason as u32).unwrap()).sum();
            assert_eq!((verifier.count(counter::TOKEN).unwrap(), dropped), (4, 0), "{hook:?}, {finished}");
            verifier.detach();
        }
    }
}

/// At tc the outer VLAN tag is in the metadata, at XDP in the packet.
#[test]
fn kernel_looks_behind_a_vlan_tag() {
    for hook in Hook::ALL {
        let (server, client) = cable();
        for (namespace, host) in [(&server, 10), (&client, 7)] {
            if namespace.ip("link add link eth0 name tagged type vlan id 5").is_err() {
                // Some test kernels lack VLANs.
                return;
            }
            namespace.ip("address flush dev eth0").unwrap();
            namespace.ip("link set tagged up").unwrap();
            namespace.address("tagged", &format!("203.0.113.{host}/24 2001:db8::{host}/64")).unwrap();
        }
        let _agent = agent(&client, "tagged");
        stand_in(&server);
        let mut verifier = Deciders::new(hook, world::config(), &world::receivers()).kernel;
        verifier.set_clock(clock::coarse_reading(NOW.into())).unwrap();
        verifier.attach(&Interface::named("eth0").unwrap()).unwrap();
        for family in families() {
            stream(&client, &family);
            datagram(&client, &family);
        }
        assert_eq!(verifier.count(counter::TOKEN).unwrap(), 4, "{hook:?}");
    }
}

#[test]
fn kernel_changes_the_hook_and_keeps_the_tables() {
    let (server, client) = cable();
    for words in ["eth0 down", "eth0 name eth0.5", "eth0.5 up"] {
        server.ip(&format!("link set {words}")).unwrap();
    }
    let interface = Interface::named("eth0.5").unwrap();
    let pins = Pins::new("verifier", &format!("hooks{}", std::process::id())).unwrap();
    let key = FlowKey::new(families()[0].client, 1, families()[0].server, 22, 6);
    let _listener = TcpListener::bind("203.0.113.10:22").unwrap();
    let to: SocketAddr = "203.0.113.10:22".parse().unwrap();
    let connects = || client.enter(|| TcpStream::connect_timeout(&to, DROPPED).is_ok());
    assert!(connects());
    for (round, hook) in [Hook::Xdp, Hook::Tc, Hook::Tc, Hook::Xdp, Hook::Tc].into_iter().enumerate() {
        let mut verifier = Verifier::load(hook, world::config(), world::SIZES, Some(pins.clone())).unwrap();
        let protected = engine::model::protected::entries(&world::receivers()).unwrap();
        let entries: Vec<_> =
            protected.iter().map(|entry| (entry.prefix.network(), entry.prefix.prefix_len(), entry.services)).collect();
        verifier.protect(&entries).unwrap();
        let mode = verifier.attach(&interface).unwrap();
        verifier.pin_links().unwrap();
        assert_eq!((mode.hook(), hook::mode(&interface).is_ok()), (hook, hook == Hook::Xdp));
        assert!(hook == Hook::Xdp || mode.name() == supported_attachment().name(), "{mode:?}");
        assert_ne!(mode, Mode::Generic, "a veth interface has XDP");
        assert_eq!(pins.links(), ["eth0.5"]);
        if round == 0 {
            verifier.flows.insert(&key, &wire::map::Flow { handle: 9, ..wire::map::Flow::default() }).unwrap();
        }
        assert_eq!(verifier.flows.get(&key).unwrap().map(|flow| flow.handle), Some(9));
        assert!(!connects(), "{hook:?}");
        drop(verifier);
        assert!(!connects(), "{hook:?}, pinned");
    }
    pins.remove().unwrap();
    assert!(connects());
}

/// Datagrams of one flow that the stack has merged: nothing can be cut out of the middle.
#[test]
fn kernel_at_tc_admits_by_the_first_of_several_datagrams() {
    for family in families() {
        let deciders = Deciders::new(Hook::Tc, world::config(), &world::receivers());
        deciders.set_clock(NOW);
        let first = Transport::Udp.first(&family, &Grant::new(&family, 1), 40000, 1);
        let tokened = first.payload.len() + 40;
        let mut payload = [first.payload.clone(), wire::tail::block(&first.token).to_vec()].concat();
        payload.extend(b"second");
        let several = first.packet.clone().payload(&payload).frame();
        let judged = |frame: &[u8], segment| {
            let before = deciders.kernel.counts().unwrap();
            let ran = deciders.kernel.run_segments(frame, segment).unwrap();
            let after = deciders.kernel.counts().unwrap();
            assert_eq!(ran.frame, frame, "nothing is cut");
            let moved = (0..counter::COUNT).find(|index| after[*index as usize] != before[*index as usize]);
            let outcome = world::outcome_of(moved.unwrap());
            assert_eq!(ran.code, Hook::Tc.code(outcome.passes(false)));
            outcome
        };
        assert_eq!(judged(&several, 11), Outcome::Drop(wire::DropReason::NoToken));
        assert_eq!(judged(&several, tokened as u32), Outcome::Consumed);
        assert_eq!(judged(&several, tokened as u32), Outcome::Drop(wire::DropReason::Replayed));
        let plain = Transport::Udp.later(&family, 40000).payload(&[1; 300]).frame();
        assert_eq!(judged(&plain, 100), Outcome::Flow);
        // A zero length field is accepted only in a super-packet that is too long for the field.
        let endless = Packet::new(family.client, family.server).tcp(Tcp::new(1, 22, flag::ACK)).payload(&[0; 99]);
        let mut frame = endless.frame();
        let length = if family.server.is_ipv6() { 18 } else { 16 };
        frame[length..length + 2].fill(0);
        assert_eq!(judged(&frame, 50), Outcome::Drop(wire::DropReason::Malformed));
    }
}

#[test]
fn kernel_hands_over_copies_of_name_servers_answers_and_of_a_flood_only_some() {
    const PER_SECOND: u64 = 64;
    let load = |overhear| Agent::load_overhearing(14, false, overhear, supported_attachment(), None);
    let (sender, copies) = std::sync::mpsc::channel();
    let agent = load(true).unwrap_or_else(|error| panic!("{error:#}"));
    let buffer = agent.queued().unwrap().open(move |copy| drop(sender.send(copy)), |_| {}).unwrap();
    let frame = |server: &str, source, flags| {
        let client = if server.contains(':') { "2001:db8::7" } else { "203.0.113.7" };
        let packet = Packet::new(server.parse().unwrap(), client.parse().unwrap()).udp(source, 40_000);
        packet.payload(&[&[0, 7, flags][..], &[0; 60]].concat()).frame()
    };
    for (server, source, flags, is_overheard) in [
        ("203.0.113.53", 53, 0x81, true),
        ("2001:db8::53", 53, 0x81, true),
        ("203.0.113.53", 53, 0x01, false),
        ("203.0.113.53", 54, 0x81, false),
    ] {
        let frame = frame(server, source, flags);
        agent.run_answer(&frame, 1).unwrap();
        buffer.consume().unwrap();
        let overheard: Vec<_> = copies.try_iter().collect();
        assert_eq!(overheard.len(), usize::from(is_overheard), "{server} {source} {flags:x}");
        assert!(overheard.iter().all(|copy| copy.header.slot.subject == 0 && copy.frame == frame), "{server}");
    }
    let answer = frame("203.0.113.53", 53, 0x81);
    let begun = std::time::Instant::now();
    agent.run_answer(&answer, 2000).unwrap();
    buffer.consume().unwrap();
    let most = PER_SECOND * (begun.elapsed().as_secs() + 2);
    let overheard = copies.try_iter().count() as u64;
    assert!(overheard > 0 && overheard <= most, "{overheard}");
    // An agent without `overhear` passes nothing to user space.
    let plain = load(false).unwrap();
    let (sender, copies) = std::sync::mpsc::channel();
    let buffer = plain.queued().unwrap().open(move |copy| drop(sender.send(copy)), |_| {}).unwrap();
    plain.run_answer(&answer, 1).unwrap();
    buffer.consume().unwrap();
    assert_eq!(copies.try_iter().count(), 0);
}

/// Sends what a blind attacker can: a segment with this client's address from every port. Making each frame anew would
/// take longer than sending it, so only the source port and the checksum change.
fn forge_from_every_port(port: &Port, macs: [[u8; 6]; 2], client: IpAddr, to: SocketAddr, flags: u8) {
    let from = |source| {
        Packet::new(client, to.ip()).ethernet(macs[0], macs[1]).tcp(Tcp::new(source, to.port(), flags)).frame()
    };
    let mut frame = from(0);
    let tcp = if client.is_ipv4() { 14 + 20 } else { 14 + 40 };
    let [ports, checksum] = [tcp..tcp + 2, tcp + 16..tcp + 18];
    let of_port_zero = u16::from_be_bytes([frame[checksum.start], frame[checksum.start + 1]]);
    for source in 0..=u16::MAX {
        frame[ports.clone()].copy_from_slice(&source.to_be_bytes());
        frame[checksum.clone()].copy_from_slice(&replace(of_port_zero, 0, source).to_be_bytes());
        port.send(&frame).unwrap();
        if source % 4096 == 1 {
            assert_eq!(frame, from(source));
        }
    }
}

#[test]
fn kernel_keeps_idle_connections_alive_whatever_is_forged_to_end_them() {
    const SILENCE: u32 = 40;
    for hook in Hook::ALL {
        let (server, client) = cable();
        let _agent = agent(&client, "eth0");
        stand_in(&server);
        let mut verifier = Deciders::new(hook, world::config(), &world::receivers()).kernel;
        verifier.set_clock(clock::coarse_reading(NOW.into())).unwrap();
        verifier.attach(&Interface::named("eth0").unwrap()).unwrap();
        let port = Port::open(&client, "eth0").unwrap();
        let macs = [client.mac("eth0").unwrap(), server.mac("eth0").unwrap()];
        let connections = families().map(|family| {
            let to = at(Transport::Tcp.destination(&family));
            let listener = TcpListener::bind(to).unwrap();
            let mut near = client.enter(|| TcpStream::connect_timeout(&to, Duration::from_secs(5)).unwrap());
            let (mut far, from) = listener.accept().unwrap();
            near.write_all(b"hello").unwrap();
            far.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            far.read_exact(&mut [0; 5]).unwrap();
            for flags in [flag::RST, flag::FIN | flag::ACK] {
                forge_from_every_port(&port, macs, from.ip(), to, flags);
            }
            (near, far)
        });
        verifier.set_clock(clock::coarse_reading((NOW + SILENCE).into())).unwrap();
        verifier.sweep(NOW + SILENCE).unwrap();
        for (mut near, mut far) in connections {
            near.write_all(b"still here").unwrap();
            let mut got = [0; 10];
            far.read_exact(&mut got).unwrap_or_else(|error| panic!("{hook:?}, {near:?} is dead: {error}"));
            assert_eq!(&got, b"still here");
        }
        verifier.detach();
    }
}

/// Waits until the flow has had this many packets and is at this stage, and returns it.
fn flow_at(verifier: &Verifier, key: &FlowKey, packets: u64, stage: u8, why: &str) -> Flow {
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        match verifier.flows.get(key).unwrap() {
            Some(flow) if flow.packets >= packets && flow.stage == stage => return flow,
            found => assert!(Instant::now() < deadline, "{:?}, {key:?}, {why}: {found:?}", verifier.hook()),
        }
    }
}

#[test]
fn kernel_asks_the_stack_what_it_knows_of_a_connection() {
    for hook in Hook::ALL {
        let (server, client) = cable();
        let mut verifier = Deciders::new(hook, world::config(), &world::receivers()).kernel;
        verifier.set_clock(clock::coarse_reading(NOW.into())).unwrap();
        verifier.attach(&Interface::named("eth0").unwrap()).unwrap();
        let port = Port::open(&client, "eth0").unwrap();
        let macs = [client.mac("eth0").unwrap(), server.mac("eth0").unwrap()];
        for (family, ghost) in families().into_iter().zip(["203.0.113.9", "2001:db8::9"]) {
            // An unused address: no stack answers the server's packets to it.
            let mac = macs[0].map(|byte| format!("{byte:02x}")).join(":");
            server.ip(&format!("neigh replace {ghost} lladdr {mac} dev eth0")).unwrap();
            let ghost: IpAddr = ghost.parse().unwrap();
            let to = Transport::Tcp.destination(&family);
            let _listener = TcpListener::bind(at(to)).unwrap();
            let packet = |tcp| Packet::new(ghost, to.address).ethernet(macs[0], macs[1]).tcp(tcp);
            let segment = |sequence, acknowledgement, flags| {
                let tcp = Tcp { sequence, acknowledgement, ..Tcp::new(40_000, to.port, flags) };
                port.send(&packet(tcp).frame()).unwrap();
            };
            let key = FlowKey::new(ghost, 40_000, to.address, to.port, 6);
            let first = Transport::Tcp.first(&family, &Grant::new(&family, 1), 40_000, 1);
            port.send(&first.with_packet(|_| packet(Tcp::syn(40_000, to.port))).frame()).unwrap();
            let answer = port.receive(Duration::from_secs(5), |frame| {
                let seen = Seen::frame(frame)?;
                seen.tcp.filter(|tcp| seen.destination == ghost && tcp.flags == flag::SYN | flag::ACK)
            });
            let answer = answer.expect("the server answers").sequence.wrapping_add(1);
            flow_at(&verifier, &key, 1, stage::OPENING, "the server has answered");
            segment(1, answer.wrapping_add(1), flag::ACK);
            flow_at(&verifier, &key, 2, stage::OPENING, "a number was guessed");
            segment(1, answer, flag::ACK);
            flow_at(&verifier, &key, 3, stage::OPEN, "the client knows the answer");
            // An adopted connection: the verifier does not know its client's sequence number.
            let adopted = Flow { origin: origin::ADOPTED, seen: NOW, ..Flow::default() };
            verifier.flows.remove(&key).unwrap();
            verifier.flows.insert(&key, &adopted).unwrap();
            segment(77, answer, flag::RST);
            segment(1, answer, flag::ACK);
            let flow = flow_at(&verifier, &key, 2, stage::OPEN, "the stack expects another number");
            assert_eq!(flow.next, 1, "{hook:?}, {ghost}");
            verifier.flows.remove(&key).unwrap();
            verifier.flows.insert(&key, &Flow { next: 1 << 30, ..adopted }).unwrap();
            segment(1, answer, flag::FIN | flag::ACK);
            flow_at(&verifier, &key, 1, stage::CLOSING, "the stack takes it");
        }
        verifier.detach();
    }
}
