//! A gateway's inside addresses in the kernel programs: who gets which, what becomes of packets, what is left when all is
//! over. Frames go through the loaded programs one by one.

#[allow(dead_code, reason = "the table's rows are its other user")]
mod world;

use datapath::clock;
use datapath::gateway::Gateway;
use datapath::hook::{Hook, Spot};
use datapath::verifier::{Sizes, Verifier};
use lab::forge::{Packet, Tcp, flag};
use lab::seen::Seen;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use wire::map::{
    Bearer, Flow, FlowKey, ToldAddress, ToldFlow, VerifierConfig, address_bytes, address_of, origin, stage, taken,
};
use wire::packet::{TCP, UDP};
use world::{NOW, SIZES, address};

const PASS: u32 = u32::MAX;
const DROP: u32 = 2;
const MACS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
/// The reclaiming sweep leaves ways back alone that are younger than this.
const YOUNG: u32 = 3;

struct Stage {
    verifier: Verifier,
    gateway: Gateway,
    now: u32,
}

/// One person's connection, or what stands for it.
#[derive(Clone, Copy)]
struct Client {
    person: u32,
    address: IpAddr,
    port: u16,
    server: IpAddr,
    protocol: u8,
}

impl Client {
    fn new(person: u32, six: bool) -> Self {
        let [a, b, c, d] = (0xc633_0000 + person).to_be_bytes();
        let (address, server) = match six {
            false => (IpAddr::from([a, b, c, d]), address("203.0.113.20")),
            true => (format!("2001:db8:ffff::{person:x}").parse().unwrap(), address("2001:db8::20")),
        };
        Self { person, address, port: 40_000, server, protocol: TCP }
    }

    fn key(&self) -> FlowKey {
        FlowKey::new(self.address, self.port, self.server, 22, self.protocol)
    }

    fn packet(&self) -> Packet {
        Packet::new(self.address, self.server).ethernet(MACS[0], MACS[1])
    }

    fn frame(&self) -> Vec<u8> {
        match self.protocol {
            UDP => self.packet().udp(self.port, 22).payload(b"odd").frame(),
            _ => self.packet().tcp(Tcp::new(self.port, 22, flag::ACK)).payload(b"odd").frame(),
        }
    }
}

impl Stage {
    fn new(pool: &[&str]) -> Self {
        let config = VerifierConfig { max_outbound: 1000, ..world::config() };
        let verifier = Verifier::load(Hook::Tc, config, SIZES, None).unwrap_or_else(|error| panic!("{error:#}"));
        let pool: Vec<IpAddr> = pool.iter().map(|text| address(text)).collect();
        Self::with(verifier, &config, &pool)
    }

    fn of_size(flows: u32) -> Self {
        let config = VerifierConfig { max_outbound: 1000, ..world::config() };
        let sizes = Sizes { flows, ..SIZES };
        let verifier = Verifier::load(Hook::Tc, config, sizes, None).unwrap_or_else(|error| panic!("{error:#}"));
        Self::with(verifier, &config, &[])
    }

    fn with(verifier: Verifier, config: &VerifierConfig, pool: &[IpAddr]) -> Self {
        let entries = engine::protected::entries(&world::receivers()).unwrap();
        let entries: Vec<_> =
            entries.iter().map(|entry| (entry.prefix.network(), entry.prefix.prefix_len(), entry.services)).collect();
        verifier.protect(&entries).unwrap();
        let gateway = Gateway::load(&verifier, config, SIZES, pool, None).unwrap_or_else(|error| panic!("{error:#}"));
        let stage = Self { verifier, gateway, now: NOW };
        stage.set_clock();
        stage
    }

    fn set_clock(&self) {
        self.verifier.set_clock(clock::coarse_reading(self.now.into()).wrapping_add(200_000_000)).unwrap();
    }

    /// As admission and the daemon do it.
    fn admit(&self, client: &Client) {
        let handle = u64::from(client.person) << 8;
        self.gateway
            .addresses
            .bearers
            .set(&handle, &Bearer { person: client.person, expires: self.now + 300 })
            .unwrap();
        let flow = Flow { handle, since: self.now, seen: self.now, ..Flow::default() };
        assert!(self.verifier.flows.insert(&client.key(), &flow).unwrap());
    }

    /// What the inside sees of a packet; nothing if it is dropped.
    fn inward(&self, frame: &[u8]) -> Option<Seen> {
        let ran = self.gateway.run(Spot::Inward, frame).unwrap();
        assert!(ran.code == PASS || ran.code == DROP, "{ran:?}");
        (ran.code == PASS).then(|| Seen::frame(&ran.frame).unwrap())
    }

    /// What goes out of what the inside sends.
    fn outward(&self, frame: &[u8]) -> Option<Seen> {
        let ran = self.gateway.run(Spot::Outward, frame).unwrap();
        assert!(ran.code == PASS || ran.code == DROP, "{ran:?}");
        (ran.code == PASS).then(|| Seen::frame(&ran.frame).unwrap())
    }

    /// The inside address and port that a client has.
    fn shown(&self, client: &Client) -> Option<(IpAddr, u16)> {
        let seen = self.inward(&client.frame())?;
        assert!(seen.checksums_right && seen.payload == b"odd" && seen.destination == client.server, "{seen:?}");
        Some((seen.source, seen.ports.unwrap().0))
    }

    fn end(&mut self, client: &Client) {
        self.verifier.flows.remove(&client.key()).unwrap();
    }

    fn reclaim(&mut self) {
        self.now += YOUNG;
        self.set_clock();
        self.gateway.reclaim(self.now).unwrap();
    }
}

const FOUR: [&str; 3] = ["10.9.0.1", "10.9.0.2", "10.9.0.3"];
const SIX: [&str; 2] = ["fd09::1", "fd09::2"];

fn both() -> Vec<&'static str> {
    [&FOUR[..], &SIX].concat()
}

#[test]
fn kernel_gives_a_person_one_address_and_takes_it_off_again() {
    let stage = Stage::new(&both());
    for six in [false, true] {
        for protocol in [TCP, UDP] {
            let client = Client { protocol, ..Client::new(7, six) };
            stage.admit(&client);
            let (inside, port) = stage.shown(&client).expect("passes");
            assert_eq!(inside.to_string(), if six { "fd09::1" } else { "10.9.0.1" });
            assert_eq!(port, client.port);
            let back = Packet::new(client.server, inside).ethernet(MACS[1], MACS[0]);
            let answer = match protocol {
                TCP => back.tcp(Tcp::new(22, port, flag::SYN | flag::ACK)).payload(b"fine").frame(),
                _ => back.udp(22, port).payload(b"fine").frame(),
            };
            let seen = stage.outward(&answer).expect("goes out");
            assert_eq!(
                (seen.source, seen.destination, seen.ports),
                (client.server, client.address, Some((22, client.port)))
            );
            assert!(seen.checksums_right && seen.payload == b"fine", "{seen:?}");
        }
    }
    let leases = stage.gateway.addresses.leases.entries();
    assert_eq!(leases.len(), 2, "one of each family: {leases:?}");
}

/// A hundred addresses, a thousand people, a hundred of them at a time.
#[test]
fn kernel_gives_a_hundred_addresses_to_a_thousand_people_in_turn() {
    let pool: Vec<String> = (1..=100).map(|host| format!("10.9.0.{host}")).collect();
    let mut stage = Stage::new(&pool.iter().map(String::as_str).collect::<Vec<_>>());
    let (mut live, mut order): (BTreeMap<IpAddr, Client>, Vec<IpAddr>) = Default::default();
    for person in 1..=1000 {
        let client = Client::new(person, false);
        stage.admit(&client);
        if live.len() == 100 {
            assert_eq!(stage.shown(&client), None, "no address is free");
            // The one that came first goes, and its address is the next.
            let first = order.remove(0);
            let gone = live.remove(&first).unwrap();
            stage.end(&gone);
            assert_eq!(stage.shown(&client), None, "its flow may still be on its way");
            stage.reclaim();
            assert_eq!(stage.shown(&client), Some((first, client.port)), "the one that is free");
        }
        let (inside, _) = stage.shown(&client).expect("an address");
        assert!(live.insert(inside, client).is_none(), "{inside} is two people's");
        order.push(inside);
    }
    let used: BTreeSet<_> = live.keys().copied().collect();
    assert_eq!(used.len(), 100);
    for (inside, client) in &live {
        assert_eq!(stage.shown(client), Some((*inside, client.port)), "as long as the flow lives");
    }
    let dropped = stage.verifier.count(wire::DropReason::NoAddress as u32).unwrap();
    assert_eq!(dropped, 2 * 900);
}

#[test]
fn kernel_reuses_the_address_that_was_used_the_longest_ago() {
    let mut stage = Stage::new(&FOUR);
    let clients: Vec<Client> = (1..=3).map(|person| Client::new(person, false)).collect();
    let mut had = Vec::new();
    for client in &clients {
        stage.admit(client);
        had.push(stage.shown(client).unwrap().0);
    }
    for index in [1, 0, 2] {
        stage.end(&clients[index]);
        stage.reclaim();
    }
    // Who comes back while theirs is nobody else's has it again.
    let back = Client { port: 40_001, ..clients[0] };
    stage.verifier.flows.insert(&back.key(), &Flow { handle: 1 << 8, seen: stage.now, ..Flow::default() }).unwrap();
    assert_eq!(stage.shown(&back).unwrap().0, had[0]);
    for (person, expected) in [(8, had[1]), (9, had[2])] {
        let client = Client::new(person, false);
        stage.admit(&client);
        assert_eq!(stage.shown(&client).unwrap().0, expected, "person {person}");
    }
    let last = Client::new(10, false);
    stage.admit(&last);
    assert_eq!(stage.shown(&last), None);
}

#[test]
fn kernel_lets_nobody_in_whose_name_it_does_not_know() {
    let stage = Stage::new(&FOUR);
    let client = Client::new(3, false);
    stage.verifier.flows.insert(&client.key(), &Flow { handle: 99, seen: NOW, ..Flow::default() }).unwrap();
    let told = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let tell = told.clone();
    let ring = stage.gateway.addresses.news(move |news| tell.lock().unwrap().push((news.kind, news.handle))).unwrap();
    assert_eq!(stage.shown(&client), None);
    ring.consume().unwrap();
    assert_eq!(*told.lock().unwrap(), [(wire::map::nat_news::UNKNOWN, 99)]);
    stage.gateway.addresses.bearers.set(&99, &Bearer { person: 3, expires: NOW + 300 }).unwrap();
    assert!(stage.shown(&client).is_some(), "the next packet");
}

/// Two devices of a person that use one port: the inside sees two.
#[test]
fn kernel_tells_a_persons_devices_apart_by_port() {
    let stage = Stage::new(&FOUR);
    let laptop = Client::new(1, false);
    let phone = Client { address: address("192.0.2.77"), ..laptop };
    stage.admit(&laptop);
    stage.verifier.flows.insert(&phone.key(), &Flow { handle: 1 << 8, seen: NOW, ..Flow::default() }).unwrap();
    let (one, other) = (stage.shown(&laptop).unwrap(), stage.shown(&phone).unwrap());
    assert_eq!((one.0, one.1 + 1), other);
    for (client, port) in [(laptop, one.1), (phone, other.1)] {
        let answer = Packet::new(client.server, one.0).ethernet(MACS[1], MACS[0]);
        let seen = stage.outward(&answer.tcp(Tcp::new(22, port, flag::ACK)).frame()).unwrap();
        assert!(seen.destination == client.address && seen.ports == Some((22, client.port)) && seen.checksums_right);
    }
}

#[test]
fn kernel_leaves_alone_what_no_token_admitted() {
    let stage = Stage::new(&both());
    for six in [false, true] {
        let client = Client::new(1, six);
        assert_eq!(stage.shown(&client), Some((client.address, client.port)), "not protected");
        let flow = Flow { origin: origin::INSIDE, seen: NOW, ..Flow::default() };
        stage.verifier.flows.insert(&client.key(), &flow).unwrap();
        assert_eq!(stage.shown(&client), Some((client.address, client.port)), "opened from inside");
    }
    assert!(stage.gateway.addresses.leases.entries().is_empty());
    // What the inside sends to an address of the pool that nobody has goes nowhere.
    let stray = Packet::new(address("203.0.113.20"), address("10.9.0.3")).ethernet(MACS[1], MACS[0]);
    assert!(stage.outward(&stray.clone().udp(22, 40_000).frame()).is_none());
    assert!(stage.outward(&stray.tcp(Tcp::syn(22, 40_000)).frame()).is_none());
    assert_eq!(stage.verifier.count(wire::map::counter::UNCLAIMED).unwrap(), 2);
}

#[test]
fn kernel_lets_nobody_outside_pass_for_an_address_of_the_pool() {
    let stage = Stage::new(&both());
    let mut dropped = 0;
    for (inside, other) in [("10.9.0.3", "203.0.113.99"), ("fd09::2", "2001:db8::99")] {
        let [inside, other] = [inside, other].map(address);
        let (kind, ping) = if inside.is_ipv6() { (1, 128) } else { (3, 8) };
        for (from, to) in [(inside, other), (other, inside)] {
            let packet = || Packet::new(from, to).ethernet(MACS[0], MACS[1]);
            let quoted = Packet::new(to, from).udp(5353, 5353).ip();
            let mut frames = packet().udp(5353, 5353).identification(3).payload(&[7; 100]).fragments(40);
            frames.push(packet().tcp(Tcp::syn(40_000, 80)).frame());
            frames.push(packet().udp(5353, 5353).frame());
            frames.push(packet().icmp(ping, 0, [0; 4]).frame());
            frames.push(packet().icmp(kind, 1, [0; 4]).payload(&quoted).frame());
            for frame in &frames {
                assert!(stage.inward(frame).is_none(), "{:?}", Seen::frame(frame));
            }
            dropped += frames.len() as u64;
        }
        // The gateway gives an admitted person an inside address, whichever outside address the client has.
        let client = Client { address: inside, ..Client::new(1, inside.is_ipv6()) };
        stage.admit(&client);
        assert!(stage.shown(&client).is_some());
    }
    assert_eq!(stage.verifier.count(wire::map::counter::UNCLAIMED).unwrap(), dropped);
}

#[test]
fn kernel_translates_errors_with_what_they_quote() {
    let stage = Stage::new(&both());
    for six in [false, true] {
        let phone = Client::new(2, six);
        let client = Client { address: Client::new(3, six).address, ..phone };
        // Another device of theirs has the port, so that this one's changes.
        stage.admit(&phone);
        stage.shown(&phone).unwrap();
        stage.verifier.flows.insert(&client.key(), &Flow { handle: 2 << 8, seen: NOW, ..Flow::default() }).unwrap();
        let (inside, port) = stage.shown(&client).unwrap();
        assert_ne!(port, client.port);
        let (kind, unreachable) = if six { (1, 4) } else { (3, 3) };
        let router = address(if six { "2001:db8:77::1" } else { "192.0.2.1" });
        // Of the client and of a router on the way about what the server sent.
        let sent = Packet::new(client.server, client.address).tcp(Tcp::new(22, client.port, flag::ACK)).ip();
        for (from, shown) in [(client.address, inside), (router, router)] {
            let error = Packet::new(from, client.server).ethernet(MACS[0], MACS[1]);
            let seen = stage.inward(&error.icmp(kind, unreachable, [0; 4]).payload(&sent).frame()).expect("comes in");
            assert!(seen.checksums_right && seen.source == shown, "{seen:?}");
            let quoted = Seen::ip(&seen.payload).unwrap();
            assert_eq!((quoted.source, quoted.destination, quoted.ports), (client.server, inside, Some((22, port))));
        }
        // Of the server about what the client sent.
        let got = Packet::new(inside, client.server).tcp(Tcp::new(port, 22, flag::ACK)).ip();
        let error = Packet::new(client.server, inside).ethernet(MACS[1], MACS[0]);
        let seen = stage.outward(&error.icmp(kind, unreachable, [0; 4]).payload(&got).frame()).expect("goes out");
        assert!(seen.checksums_right && seen.destination == client.address, "{seen:?}");
        let quoted = Seen::ip(&seen.payload).unwrap();
        assert_eq!(
            (quoted.source, quoted.destination, quoted.ports),
            (client.address, client.server, Some((client.port, 22)))
        );
    }
}

#[test]
fn kernel_translates_fragments() {
    let stage = Stage::new(&both());
    for six in [false, true] {
        let client = Client { protocol: UDP, ..Client::new(5, six) };
        stage.admit(&client);
        let pieces = client.packet().udp(client.port, 22).identification(9).payload(&[7; 100]).fragments(40);
        let shown: BTreeSet<IpAddr> = pieces.iter().map(|piece| stage.inward(piece).expect("passes").source).collect();
        let inside = address(if six { "fd09::1" } else { "10.9.0.1" });
        assert_eq!(shown, BTreeSet::from([inside]));
        let back = Packet::new(client.server, inside).ethernet(MACS[1], MACS[0]);
        let pieces = back.udp(22, client.port).identification(9).payload(&[7; 100]).fragments(40);
        for piece in &pieces {
            assert_eq!(stage.outward(piece).expect("goes out").destination, client.address);
        }
        let late =
            back_of(client.server, inside).identification(10).udp(22, client.port).payload(&[7; 100]).fragments(40);
        assert!(stage.outward(&late[1]).is_none(), "a piece whose first one nobody saw");
    }
}

fn back_of(server: IpAddr, inside: IpAddr) -> Packet {
    Packet::new(server, inside).ethernet(MACS[1], MACS[0])
}

/// The sum of UDP over IPv4 may be left out, and stays out.
#[test]
fn kernel_makes_no_checksum_where_there_is_none() {
    let stage = Stage::new(&FOUR);
    let client = Client { protocol: UDP, ..Client::new(5, false) };
    stage.admit(&client);
    let frame = client.packet().udp(client.port, 22).no_checksum().payload(b"odd").frame();
    let ran = stage.gateway.run(Spot::Inward, &frame).unwrap();
    assert_eq!((ran.code, &ran.frame[40..42]), (PASS, &[0, 0][..]));
    assert_eq!(
        address_of([10, 9, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], 4),
        Seen::frame(&ran.frame).unwrap().source
    );
}

impl Stage {
    /// What becomes of a flow of the client's that another gateway told of.
    fn told(&self, client: &Client, flow: Flow, begins: bool) -> u32 {
        let told = ToldFlow { key: client.key(), flow, expires: self.now + 300, begins: begins.into() };
        self.verifier.take_over(told).unwrap()
    }

    /// The slot here, and one more, of the inside address that a client has at another gateway.
    fn told_address(&self, client: &Client, inside: &str) -> u32 {
        let (inside, key) = (address_bytes(address(inside)), client.key());
        let (person, port) = (client.person, client.port.to_be_bytes());
        let told = ToldAddress { key, inside, person, now: self.now, slot: 0, port, reserved: 0 };
        self.gateway.bind_told(told).unwrap().slot
    }

    fn flow_at(&self, client: &Client) -> Option<Flow> {
        self.verifier.flows.get(&client.key()).unwrap()
    }

    fn flow_there(&self, client: &Client) -> Flow {
        let handle = u64::from(client.person) << 8;
        Flow { handle, holder: client.person << 8, since: self.now, seen: self.now, ..Flow::default() }
    }
}

/// Admission's look at a segment of a client's; how far the connection then is.
fn admission_sees(stage: &Stage, client: &Client, tcp: Tcp) -> Flow {
    let ran = stage.verifier.run(&client.packet().tcp(tcp).frame(), 1).unwrap();
    assert_eq!(ran.code, PASS);
    stage.verifier.flows.get(&client.key()).unwrap().unwrap()
}

/// A client whose SYN was admitted has to know the number of the server's answer, which it only does if it got that.
#[test]
fn kernel_opens_a_connection_once_its_client_has_the_answer() {
    const ANSWER: u32 = 1_000_000;
    for pool in [vec![], both()] {
        let stage = Stage::new(&pool);
        for six in [false, true] {
            let client = Client::new(7, six);
            stage.admit(&client);
            let flow = stage.verifier.flows.get(&client.key()).unwrap().unwrap();
            stage.verifier.flows.remove(&client.key()).unwrap();
            let opening = Flow { stage: stage::OPENING, next: 1, ..flow };
            stage.verifier.flows.insert(&client.key(), &opening).unwrap();
            let (shown, port) = match pool.is_empty() {
                true => (client.address, client.port),
                false => stage.shown(&client).expect("passes"),
            };
            let segment = |acknowledgement| Tcp { acknowledgement, ..Tcp::new(client.port, 22, flag::ACK) };
            let seen = admission_sees(&stage, &client, segment(ANSWER + 1));
            assert_eq!(seen.stage, stage::OPENING, "the server has not answered");
            let answer = Tcp { sequence: ANSWER, ..Tcp::new(22, port, flag::SYN | flag::ACK) };
            let back = Packet::new(client.server, shown).ethernet(MACS[1], MACS[0]);
            stage.outward(&back.tcp(answer).frame()).expect("goes out");
            for (guess, expected) in [(0, stage::OPENING), (ANSWER, stage::OPENING), (ANSWER + 1, stage::OPEN)] {
                let seen = admission_sees(&stage, &client, segment(guess));
                assert_eq!((seen.stage, seen.answer), (expected, ANSWER + 1), "{shown}, {guess}");
            }
        }
    }
}

/// What the inside opens, nobody opens or ends who does not know the numbers of either end.
#[test]
fn kernel_believes_only_the_one_that_the_inside_calls() {
    const CALL: u32 = 5_000;
    let stage = Stage::new(&[]);
    for six in [false, true] {
        let called = Client::new(7, six);
        let call = Tcp { sequence: CALL, ..Tcp::syn(22, called.port) };
        let out = Packet::new(called.server, called.address).ethernet(MACS[1], MACS[0]);
        stage.outward(&out.tcp(call).frame()).expect("goes out");
        let came = |sequence, acknowledgement, flags| {
            admission_sees(&stage, &called, Tcp { sequence, acknowledgement, ..Tcp::new(called.port, 22, flags) })
        };
        let forged = came(9, CALL, flag::SYN | flag::ACK);
        assert_eq!((forged.origin, forged.stage), (origin::INSIDE, stage::OPENING));
        let answered = came(70_000, CALL + 1, flag::SYN | flag::ACK);
        assert_eq!((answered.stage, answered.next), (stage::OPEN, 70_001));
        assert_eq!(came(1, 1, flag::RST).stage, stage::OPEN);
        assert_eq!(came(70_001, 1, flag::RST).stage, stage::RESET);
    }
}

#[test]
fn kernel_takes_a_told_flow_over_as_if_it_had_admitted_it() {
    let mut stage = Stage::new(&[]);
    for six in [false, true] {
        let client = Client::new(7, six);
        let flow = stage.flow_there(&client);
        assert_eq!(stage.told(&client, flow, false), taken::GONE, "nothing begins by news of what goes on");
        assert_eq!(stage.told(&client, flow, true), taken::NEW);
        assert_eq!(stage.verifier.flows.get(&client.key()).unwrap(), Some(flow));
        assert_eq!(stage.verifier.grants.get(&flow.handle).unwrap().map(|used| used.flows), Some(1));
        // The later packet counts, and what closes here is not opened by one of the same second.
        let closing = Flow { stage: stage::CLOSING, seen: flow.seen + 5, ..flow };
        assert_eq!(stage.told(&client, closing, false), taken::KNOWN);
        assert_eq!(stage.told(&client, Flow { stage: stage::OPEN, ..closing }, false), taken::KNOWN);
        assert_eq!(stage.told(&client, flow, true), taken::KNOWN);
        assert_eq!(stage.verifier.flows.get(&client.key()).unwrap(), Some(closing));
        // Where its client and its server are is known from the one that saw them last.
        let again = Flow { stage: stage::OPEN, seen: closing.seen + 1, next: 70, answer: 80, ..closing };
        assert_eq!(stage.told(&client, again, false), taken::KNOWN);
        assert_eq!(stage.verifier.flows.get(&client.key()).unwrap(), Some(again));
        // An open flow keeps its owner.
        let strangers = Flow { handle: 8, holder: 0x801, since: flow.since + 1, ..flow };
        assert_eq!(stage.told(&client, strangers, true), taken::OLDER);
        assert_eq!(stage.verifier.flows.get(&client.key()).unwrap(), Some(again));
        // Another one of the same holder takes its place if it is younger, and its grant counts it.
        let other = Flow { handle: 9, ..flow };
        assert_eq!(stage.told(&client, other, true), taken::OLDER);
        assert_eq!(stage.told(&client, Flow { since: flow.since + 1, ..other }, true), taken::NEW);
        let flows = |handle| stage.verifier.grants.get(&handle).unwrap().map(|used| used.flows);
        assert_eq!((flows(flow.handle), flows(9)), (Some(0), Some(1)));
        stage.verifier.grants.remove(&flow.handle).unwrap();
        stage.verifier.grants.remove(&9).unwrap();
        stage.end(&client);
        // A token that came there counts here, and an older one takes nothing back.
        let datagrams = Client { protocol: UDP, port: 40_001, ..client };
        assert_eq!(stage.told(&datagrams, flow, true), taken::NEW);
        for proved in [flow.seen + 9, flow.seen + 3] {
            assert_eq!(stage.told(&datagrams, Flow { proved, ..flow }, false), taken::KNOWN);
            assert_eq!(stage.flow_at(&datagrams).map(|flow| flow.proved), Some(flow.seen + 9));
        }
        stage.verifier.grants.remove(&flow.handle).unwrap();
        stage.end(&datagrams);
    }
}

#[test]
fn kernel_takes_no_flow_over_whose_grant_is_revoked() {
    let stage = Stage::new(&[]);
    let client = Client::new(7, false);
    let flow = stage.flow_there(&client);
    stage.verifier.revoked.set(flow.handle, stage.now + 300).unwrap();
    assert_eq!(stage.told(&client, flow, true), taken::REVOKED);
    assert_eq!(stage.verifier.flows.get(&client.key()).unwrap(), None);
    assert_eq!(stage.verifier.grants.get(&flow.handle).unwrap(), None);
}

#[test]
fn kernel_takes_what_another_inside_opened_as_far_as_there_is_room() {
    let stage = Stage::new(&[]);
    let opened = Flow { origin: origin::INSIDE, since: NOW, seen: NOW, ..Flow::default() };
    let taken_over = (0..1100).filter(|port| {
        let client = Client { port: 10_000 + port, ..Client::new(7, false) };
        stage.told(&client, opened, true) == taken::NEW
    });
    assert_eq!(taken_over.count(), 1000);
    assert_eq!(stage.verifier.outbound().unwrap(), 1000);
}

/// A client's datagram came by one gateway, and the answer left by the other before it had heard of the flow.
#[test]
fn kernel_takes_answers_to_a_clients_datagram_for_no_flow_of_the_inside() {
    let stage = Stage::new(&[]);
    let client = Client { protocol: UDP, ..Client::new(7, false) };
    let flow = stage.flow_there(&client);
    let opened = Flow { origin: origin::INSIDE, since: flow.since, seen: flow.seen, ..Flow::default() };
    assert_eq!(stage.told(&client, opened, true), taken::NEW);
    assert_eq!(stage.told(&client, flow, true), taken::NEW);
    assert_eq!(stage.verifier.flows.get(&client.key()).unwrap(), Some(flow));
    assert_eq!(stage.verifier.outbound().unwrap(), 0);
    assert_eq!(stage.told(&client, Flow { since: flow.since + 1, ..opened }, true), taken::OLDER);
    assert_eq!(stage.verifier.flows.get(&client.key()).unwrap(), Some(flow));
}

#[test]
fn kernel_gives_a_told_flow_the_address_that_it_has_there() {
    let mut stage = Stage::new(&both());
    for (six, there, other) in [(false, "10.9.0.3", "10.9.0.1"), (true, "fd09::2", "fd09::1")] {
        let client = Client::new(7, six);
        let slot = stage.told_address(&client, there);
        assert_ne!(slot, 0);
        let flow = Flow { inside: slot, inside_port: client.port.to_be_bytes(), ..stage.flow_there(&client) };
        assert_eq!(stage.told(&client, flow, true), taken::NEW);
        assert_eq!(stage.told_address(&client, there), slot, "to be told twice changes nothing");
        assert_eq!(stage.shown(&client), Some((address(there), client.port)));
        let used = stage.gateway.addresses.slots.get(&(slot - 1)).unwrap().unwrap();
        assert_eq!((used.flows, used.person), (1, client.person));
        // Their next flow, which begins here, has the same one; somebody else's has another.
        let next = Client { port: 40_001, ..client };
        stage.admit(&next);
        assert_eq!(stage.shown(&next), Some((address(there), next.port)));
        let stranger = Client { address: Client::new(8, six).address, ..Client::new(8, six) };
        assert_eq!(stage.told_address(&stranger, there), 0, "it is somebody's");
        assert_eq!(
            stage.told_address(&stranger, if six { "fd09::77" } else { "10.9.0.77" }),
            0,
            "it is not of the pool"
        );
        stage.admit(&stranger);
        assert_eq!(stage.shown(&stranger), Some((address(other), stranger.port)));
        for client in [client, next, stranger] {
            stage.end(&client);
        }
        stage.reclaim();
        assert!(stage.gateway.addresses.ways_back.keys().is_empty());
        let free = stage.gateway.addresses.slots.entries().iter().all(|(_, slot)| slot.flows == 0);
        assert!(free, "{:?}", stage.gateway.addresses.slots.entries());
    }
}

#[test]
fn kernel_leaves_room_for_the_neighbours_of_a_host_that_opens_all_it_can() {
    let mut stage = Stage::new(&[]);
    for six in [false, true] {
        let (_, server) = (Client::new(1, six).address, Client::new(1, six).server);
        let neighbour = match six {
            false => address("203.0.113.200"),
            true => address("2001:db8:0:1::99"),
        };
        let outside = Client::new(1, six).address;
        let open = |stage: &Stage, from: IpAddr, port: u16, to: u16| {
            let datagram = Packet::new(from, outside).ethernet(MACS[1], MACS[0]);
            let frame = datagram.tcp(Tcp::syn(port, to)).frame();
            assert!(stage.outward(&frame).is_some());
        };
        let of = |stage: &Stage, from: IpAddr| {
            stage.verifier.flows.keys().iter().filter(|key| key.server().0 == from).count()
        };
        // The whole room is for 1000, and one address has a quarter.
        for port in 0..400 {
            open(&stage, server, 10_000 + port, 443);
        }
        assert_eq!(of(&stage, server), 250);
        open(&stage, neighbour, 8000, 443);
        assert_eq!(of(&stage, neighbour), 1);
        // The sweep counts anew: it takes none away, and gives back what has ended.
        stage.verifier.sweep(stage.now).unwrap();
        open(&stage, server, 20_000, 443);
        assert_eq!(of(&stage, server), 250);
        stage.now += 31;
        stage.set_clock();
        stage.verifier.sweep(stage.now).unwrap();
        assert_eq!(of(&stage, server), 0);
        open(&stage, server, 20_000, 443);
        assert_eq!(of(&stage, server), 1);
    }
}

/// Somebody whose grant was revoked lets more flows end than any table of what has ended could hold.
#[test]
fn kernel_remembers_the_end_of_a_revoked_flow_whatever_else_ends() {
    let mut stage = Stage::of_size(131_072);
    let revoked = Client { protocol: UDP, ..Client::new(7, true) };
    let all = (50_000..50_200).map(|port| Client { port, ..revoked });
    all.clone().for_each(|client| stage.admit(&client));
    stage.verifier.revoked.set(u64::from(revoked.person) << 8, stage.now + 300).unwrap();
    stage.verifier.sweep(stage.now).unwrap();
    for port in 0..70_000u32 {
        let address = format!("2001:db8:ffff::9:{:x}", port >> 16).parse().unwrap();
        let client = Client { address, port: port as u16, ..Client { person: 9, ..revoked } };
        let flow = Flow { handle: 9 << 8, since: stage.now - 100, seen: stage.now - 100, ..Flow::default() };
        assert!(stage.verifier.flows.insert(&client.key(), &flow).unwrap());
    }
    stage.verifier.sweep(stage.now).unwrap();
    let opened = |stage: &Stage| {
        let is_open = |client: &Client| {
            let answer = Packet::new(client.server, client.address).ethernet(MACS[1], MACS[0]);
            stage.outward(&answer.udp(22, client.port).payload(b"more").frame()).expect("goes out");
            stage.verifier.flows.get(&client.key()).unwrap().is_some_and(|flow| flow.origin == origin::INSIDE)
        };
        all.clone().filter(is_open).count()
    };
    assert_eq!(opened(&stage), 0, "the inside's answers opened revoked flows again");
    // It stays so while the inside goes on, and no longer.
    stage.now += 50;
    stage.set_clock();
    assert_eq!(opened(&stage), 0);
    stage.now += 50;
    stage.set_clock();
    stage.verifier.sweep(stage.now).unwrap();
    assert_eq!(opened(&stage), 0);
    stage.now += 70;
    stage.set_clock();
    stage.verifier.sweep(stage.now).unwrap();
    assert_eq!(opened(&stage), 200, "after a long silence the inside opens flows of its own");
}
