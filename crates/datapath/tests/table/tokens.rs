//! Tokens: wire.md §3, §4.1, §4.5, §6.4.

use super::{CLIENT_PORT, Case, First, Step, TRANSPORTS, Transport};
use crate::world::{FLOWS_PER_GRANT, Family, Grant, NOW, families};
use engine::verifier::Outcome;
use lab::forge::Packet;
use serde_json::Value;
use wire::{Destination, DropReason, Epoch, Flags, Suite, checksum, tail};

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for family in families() {
        for transport in TRANSPORTS {
            valid(&mut cases, &family, transport);
            invalid(&mut cases, &family, transport);
            used(&mut cases, &family, transport);
        }
        scopes(&mut cases, &family);
        forms(&mut cases, &family);
    }
    cases
}

fn valid(cases: &mut Vec<Case>, family: &Family, transport: Transport) {
    let grant = Grant::new(family, 1);
    let mut admit = |clause, what: &str, grant: Grant, time: u32| {
        let first = First {
            token: grant.token(&transport.destination(family), time, 1),
            ..transport.first(family, &grant, CLIENT_PORT, 1)
        };
        let name = format!("{}, {what}", transport.name());
        cases.push(Case::new(family, clause, &name).admitted(&first));
    };
    let with = |flags| Grant { flags: grant.flags.with(flags), ..grant };
    admit("§3.6", "siphash", grant, NOW);
    admit("§3.6", "aes-cmac", Grant { suite: Suite::AesCmac, ..grant }, NOW);
    admit("§3.2", "bound to the source", with(Flags::SOURCE), NOW);
    admit("§3.2", "bound to the source, aes-cmac", Grant { suite: Suite::AesCmac, ..with(Flags::SOURCE) }, NOW);
    admit("§3.2", "with consent to replies", with(Flags::REPLY), NOW);
    admit("§3.2", "for a single flow", with(Flags::SINGLE), NOW);
    admit("§2.3", "of the previous epoch", Grant { epoch: Epoch(grant.epoch.0 - 1), ..grant }, NOW);
    admit("§2.3", "of the next epoch", Grant { epoch: Epoch(grant.epoch.0 + 1), ..grant }, NOW);
    admit("§6.4", "made 30 s ago", grant, NOW - 30);
    admit("§6.4", "made 30 s ahead", grant, NOW + 30);
    admit("§6.4", "in its grant's last second", Grant { expires: NOW + 1, ..grant }, NOW);
    admit("§6.4", "of the longest lifetime", Grant { expires: NOW + 3600, ..grant }, NOW);
}

fn invalid(cases: &mut Vec<Case>, family: &Family, transport: Transport) {
    let grant = Grant::new(family, 2);
    let first = transport.first(family, &grant, CLIENT_PORT, 1);
    let mut dropped = |clause, what: &str, first: First, reason| {
        let name = format!("{}, {what}", transport.name());
        cases.push(Case::new(family, clause, &name).frame(first.frame(), Outcome::Drop(reason)));
    };
    for byte in [8, 15, 20, 23, 24, 35] {
        let flipped = first.with_token(|token| token[byte] ^= 1);
        dropped("§3.7", &format!("a bit of byte {byte} flipped"), flipped, DropReason::BadTag);
    }
    dropped("§3.2", "SEALED set afterwards", first.with_token(|token| token[1] |= 0x40), DropReason::BadTag);
    dropped("§3.2", "reserved flag 7", first.with_token(|token| token[1] |= 0x80), DropReason::Malformed);
    dropped("§3.2", "a bearer grant", first.with_token(|token| token[1] |= 16), DropReason::Malformed);
    dropped("§3.2", "the other family's flag", first.with_token(|token| token[1] ^= 32), DropReason::Malformed);
    let too_long = if family.server.is_ipv6() { 129 } else { 33 };
    dropped("§3.3", "prefix too long", first.with_token(|token| token[3] = too_long), DropReason::Malformed);
    dropped("§3.1", "version 2", first.with_token(|token| token[0] = 0x23), DropReason::Malformed);
    dropped("§3.1", "version 0", first.with_token(|token| token[0] = 0x03), DropReason::Malformed);
    for suite in [0, 1, 4, 15] {
        let other = first.with_token(|token| token[0] = 0x10 | suite);
        dropped("§1.1", &format!("suite {suite}"), other, DropReason::UnknownSuite);
    }
    let mut made = |clause, what: &str, grant: Grant, time: u32, reason| {
        let token = grant.token(&transport.destination(family), time, 1);
        dropped(clause, what, First { token, ..first.clone() }, reason);
    };
    made("§2.3", "two epochs old", Grant { epoch: Epoch(grant.epoch.0 - 2), ..grant }, NOW, DropReason::UnknownEpoch);
    made("§2.3", "two epochs ahead", Grant { epoch: Epoch(grant.epoch.0 + 2), ..grant }, NOW, DropReason::UnknownEpoch);
    made("§2.3", "an epoch without a key", Grant { epoch: Epoch(77), ..grant }, NOW, DropReason::UnknownEpoch);
    made("§6.4", "expires this second", Grant { expires: NOW, ..grant }, NOW, DropReason::Expired);
    made("§6.4", "expired long ago", Grant { expires: 1, ..grant }, NOW, DropReason::Expired);
    made("§6.4", "lives too long", Grant { expires: NOW + 3601, ..grant }, NOW, DropReason::LifetimeTooLong);
    made("§6.4", "lives for ever", Grant { expires: u32::MAX, ..grant }, NOW, DropReason::LifetimeTooLong);
    made("§6.4", "made 31 s ago", grant, NOW - 31, DropReason::ClockSkew);
    made("§6.4", "made 31 s ahead", grant, NOW + 31, DropReason::ClockSkew);
    made("§6.4", "made at time zero", grant, 0, DropReason::ClockSkew);
    // The checks run in order: a token that fails two of them is dropped for the first.
    made("§6.4", "expired and skewed", Grant { expires: NOW - 5, ..grant }, 0, DropReason::Expired);
    made(
        "§6.4",
        "of no epoch and expired",
        Grant { epoch: Epoch(77), expires: 1, ..grant },
        0,
        DropReason::UnknownEpoch,
    );
    let stranger = Grant { flags: grant.flags.with(Flags::SOURCE), source: family.stranger, ..grant };
    made("§3.4", "bound to another source", stranger, NOW, DropReason::BadTag);
    let elsewhere = Destination { port: transport.port() + 1, ..transport.destination(family) };
    let token = grant.token(&elsewhere, NOW, 1);
    dropped("§3.7", "made for another port", First { token, ..first.clone() }, DropReason::BadTag);
    let elsewhere = Destination { address: family.fortress, ..transport.destination(family) };
    let token = grant.token(&elsewhere, NOW, 1);
    dropped("§3.7", "made for another host", First { token, ..first.clone() }, DropReason::BadTag);
    let wrong = Packet::clone(&first.packet).payload(b"VSF1 but then too little").frame();
    let name = format!("{}, half a block", transport.name());
    cases.push(Case::new(family, "§4.1", &name).frame(wrong, Outcome::Drop(DropReason::NoToken)));
    let mut displaced = first.payload.clone();
    displaced.extend(tail::block(&first.token));
    displaced.push(0);
    let frame = first.packet.clone().payload(&displaced).frame();
    let name = format!("{}, a block that is not at the end", transport.name());
    cases.push(Case::new(family, "§4.1", &name).frame(frame, Outcome::Drop(DropReason::NoToken)));
    let plain = transport.opening(family, CLIENT_PORT, &transport.destination(family)).frame();
    let name = format!("{}, no token", transport.name());
    cases.push(Case::new(family, "§6.3", &name).frame(plain, Outcome::Drop(DropReason::NoToken)));
}

fn used(cases: &mut Vec<Case>, family: &Family, transport: Transport) {
    let name = |what: &str| format!("{}, {what}", transport.name());
    let grant = Grant::new(family, 3);
    let first = |nonce| transport.first(family, &grant, CLIENT_PORT, nonce);
    let replayed = Outcome::Drop(DropReason::Replayed);
    let limited = Outcome::Drop(DropReason::FlowLimit);
    cases.push(Case::new(family, "§6.4", &name("a token twice")).admitted(&first(1)).frame(first(1).frame(), replayed));
    let elsewhere = First { token: first(1).token, ..transport.first(family, &grant, CLIENT_PORT + 1, 2) };
    cases.push(
        Case::new(family, "§6.4", &name("a token again from another port"))
            .admitted(&first(1))
            .frame(elsewhere.frame(), replayed),
    );
    cases.push(
        Case::new(family, "§6.4", &name("a token again from a stranger at the same address, 25 s later"))
            .admitted(&first(1))
            .step(Step::Wait(25))
            .frame(elsewhere.frame(), replayed),
    );
    cases.push(
        Case::new(family, "§3.8", &name("a retransmission with a new token")).admitted(&first(1)).admitted(&first(2)),
    );
    let flows = |count: u32| {
        (0..count).fold(Case::new(family, "§6.4", &name("one flow too many for a grant")), |case, index| {
            case.admitted(&transport.first(family, &grant, CLIENT_PORT + index as u16, index))
        })
    };
    let fifth = transport.first(family, &grant, CLIENT_PORT + 100, 100);
    cases.push(flows(FLOWS_PER_GRANT).frame(fifth.frame(), limited));
    let most = FLOWS_PER_GRANT * wire::map::TOKENS_PER_FLOW;
    let many = (0..most).fold(Case::new(family, "§6.4", &name("one token too many for a grant")), |case, index| {
        case.admitted(&first(index))
    });
    cases.push(many.frame(first(most).frame(), limited));
    let single = Grant { flags: grant.flags.with(Flags::SINGLE), ..grant };
    cases.push(
        Case::new(family, "§3.2", &name("a second flow of a grant for one"))
            .admitted(&transport.first(family, &single, CLIENT_PORT, 1))
            .frame(transport.first(family, &single, CLIENT_PORT + 1, 2).frame(), limited),
    );
    cases.push(
        Case::new(family, "§3.2", &name("the one flow of a grant opened again"))
            .admitted(&transport.first(family, &single, CLIENT_PORT, 1))
            .admitted(&transport.first(family, &single, CLIENT_PORT, 2)),
    );
    cases.push(
        Case::new(family, "§6.4", &name("a revoked grant"))
            .step(Step::Revoke(3))
            .frame(first(1).frame(), Outcome::Drop(DropReason::Revoked)),
    );
    cases.push(
        Case::new(family, "§6.4", &name("revoked and replayed names revoked"))
            .admitted(&first(1))
            .step(Step::Revoke(3))
            .frame(first(1).frame(), Outcome::Drop(DropReason::Revoked)),
    );
    let unknown = if transport == Transport::Tcp { DropReason::NoFlow } else { DropReason::NoToken };
    cases.push(
        Case::new(family, "§6.4", &name("revocation cuts the established flow"))
            .admitted(&first(1))
            .frame(transport.later(family, CLIENT_PORT).payload(b"x").frame(), Outcome::Flow)
            .step(Step::Revoke(3))
            .step(Step::Sweep)
            .frame(transport.later(family, CLIENT_PORT).payload(b"x").frame(), Outcome::Drop(unknown)),
    );
    let other = grant.newer(4);
    cases.push(
        Case::new(
            family,
            "§6.4.5",
            &name("its holder's newer grant takes the flow over, and the first one's count falls"),
        )
        .admitted(&first(1))
        .admitted(&transport.first(family, &grant, CLIENT_PORT + 1, 2))
        .admitted(&transport.first(family, &grant, CLIENT_PORT + 2, 3))
        .admitted(&transport.first(family, &grant, CLIENT_PORT + 3, 4))
        .admitted(&transport.first(family, &other, CLIENT_PORT, 5))
        .admitted(&transport.first(family, &grant, CLIENT_PORT + 4, 6)),
    );
    cases.push(
        Case::new(family, "§6.3", &name("idle flows make room for others of their grant"))
            .admitted(&first(1))
            .admitted(&transport.first(family, &grant, CLIENT_PORT + 1, 2))
            .admitted(&transport.first(family, &grant, CLIENT_PORT + 2, 3))
            .admitted(&transport.first(family, &grant, CLIENT_PORT + 3, 4))
            .step(Step::Wait(90_000))
            .step(Step::Sweep)
            .frame(transport.later(family, CLIENT_PORT).payload(b"x").frame(), Outcome::Drop(unknown)),
    );
}

/// Grants wider than a port.
fn scopes(cases: &mut Vec<Case>, family: &Family) {
    let base = Grant::new(family, 5);
    let open = Flags(base.flags.0 & !Flags::PORT.0);
    let tcp = |address, port| Destination { address, protocol: 6, port };
    let mut to = |clause, what: &str, grant: Grant, to: Destination, outcome: Outcome| {
        let first = First {
            packet: Transport::Tcp.opening(family, CLIENT_PORT, &to),
            payload: Vec::new(),
            token: grant.token(&to, NOW, 1),
        };
        let case = Case::new(family, clause, what);
        cases.push(match outcome {
            Outcome::Token => case.admitted(&first),
            other => case.frame(first.frame(), other),
        });
    };
    let host = Grant { flags: open, ..base };
    let network = Grant { flags: open, prefix_length: if family.server.is_ipv6() { 64 } else { 25 }, ..base };
    let network_cmac = Grant { suite: Suite::AesCmac, flags: open.with(Flags::SOURCE), ..network };
    to("§3.3", "a whole host, any port", host, tcp(family.fortress, 8443), Outcome::Token);
    to("§3.3", "a whole host, another port", host, tcp(family.fortress, 1), Outcome::Token);
    to("§3.3", "a network", network, tcp(family.neighbour, 8000), Outcome::Token);
    to("§3.3", "a network, aes-cmac, bound to the source", network_cmac, tcp(family.neighbour, 8100), Outcome::Token);
    to("§3.3", "prefix length 0", Grant { prefix_length: 0, ..host }, tcp(family.fortress, 80), Outcome::Token);
    to("§3.3", "prefix length 1", Grant { prefix_length: 1, ..host }, tcp(family.fortress, 80), Outcome::Token);
    to("§6.2", "a port beside the network's span", network, tcp(family.neighbour, 7999), Outcome::NotOurs);
    to("§6.2", "a port behind the network's span", network, tcp(family.neighbour, 8101), Outcome::NotOurs);
    // The grant's own key is valid for its network only.
    let foreign = Grant { prefix_length: 16, ..network };
    let token = foreign.token(&tcp(family.neighbour, 8000), NOW, 1);
    let mut narrowed = token;
    narrowed[3] = network.prefix_length;
    let first = First {
        packet: Transport::Tcp.opening(family, CLIENT_PORT, &tcp(family.neighbour, 8000)),
        payload: Vec::new(),
        token: narrowed,
    };
    cases.push(
        Case::new(family, "§3.5", "a grant's prefix length changed on the way")
            .frame(first.frame(), Outcome::Drop(DropReason::BadTag)),
    );
}

/// The possible forms of a first packet: the host receives what was sent (§4.5).
fn forms(cases: &mut Vec<Case>, family: &Family) {
    let grant = Grant::new(family, 6);
    for transport in TRANSPORTS {
        let first = transport.first(family, &grant, CLIENT_PORT, 1);
        for length in [1usize, 2, 7, 64, 999] {
            let long = First { payload: (0..length).map(|byte| byte as u8).collect(), ..first.clone() };
            let name = format!("{}, {length} bytes before the token", transport.name());
            cases.push(Case::new(family, "§4.5", &name).admitted(&long));
        }
        let mut padded = first.frame();
        padded.extend([0xaa; 9]);
        let name = format!("{}, link padding behind the token", transport.name());
        cases.push(Case::new(family, "§4.5", &name).becomes(padded, Outcome::Token, first.plain()));
        for tags in 1..=2 {
            let tagged = first.with_packet(|packet| (0..tags).fold(packet, |p, id| p.tag(0x8100, id)));
            let name = format!("{}, {tags} VLAN tags", transport.name());
            cases.push(Case::new(family, "§6.5", &name).admitted(&tagged));
        }
        let provider = first.with_packet(|packet| packet.tag(0x88a8, 7).tag(0x8100, 9));
        let name = format!("{}, a provider's and a customer's tag", transport.name());
        cases.push(Case::new(family, "§6.5", &name).admitted(&provider));
        let partial = |first: &First| {
            let (mut with, mut without) = (first.frame(), first.plain());
            make_partial(&mut with);
            make_partial(&mut without);
            (with, without)
        };
        for length in [0usize, 1, 50] {
            let sized =
                First { payload: vec![7; length.max(usize::from(transport == Transport::Udp))], ..first.clone() };
            let (with, without) = partial(&sized);
            let name = format!("{}, checksum left to the network card, {length} bytes", transport.name());
            cases.push(Case::new(family, "§4.5", &name).becomes(with, Outcome::Token, without));
        }
        let extended = if family.server.is_ipv6() {
            first.with_packet(|packet| packet.extension(60, &[1, 4, 0, 0, 0, 0]).extension(0, &[1, 4, 0, 0, 0, 0]))
        } else {
            first.with_packet(|packet| packet.options(&[1, 1, 68, 8, 5, 0, 0, 0, 0, 0, 0, 0]))
        };
        let name = format!("{}, IP options or extension headers", transport.name());
        cases.push(Case::new(family, "§6.5", &name).admitted(&extended));
    }
    let udp = Transport::Udp.first(family, &grant, CLIENT_PORT, 1);
    let alone = First { payload: Vec::new(), ..udp.clone() };
    let data = Transport::Udp.later(family, CLIENT_PORT).payload(&[9; 1300]).frame();
    cases.push(
        Case::new(family, "§4.2", "a token alone admits the datagram behind it")
            .frame(alone.frame(), Outcome::Consumed)
            .frame(data, Outcome::Flow),
    );
    if family.server.is_ipv4() {
        let unsummed = udp.with_packet(Packet::no_checksum);
        cases.push(Case::new(family, "§4.5", "a datagram without checksum keeps none").admitted(&unsummed));
    }
    let (mut with, mut without) = (udp.frame(), udp.plain());
    skew(&mut with);
    skew(&mut without);
    cases.push(Case::new(family, "§4.5", "a wrong checksum stays as wrong as it was").becomes(
        with,
        Outcome::Token,
        without,
    ));
}

/// Corrupts a datagram's checksum by adding a constant.
fn skew(frame: &mut [u8]) {
    let field = wire::packet::Packet::parse(frame).transport + 6;
    let checksum = u16::from_be_bytes([frame[field], frame[field + 1]]);
    frame[field..field + 2].copy_from_slice(&checksum::fold(u32::from(checksum) + 0x0123).to_be_bytes());
}

/// Leaves the pseudo-header's sum in the checksum field, as a stack does whose network card would complete it.
pub fn make_partial(frame: &mut [u8]) {
    let packet = wire::packet::Packet::parse(frame);
    let length = (packet.end - packet.transport) as u16;
    let sum = checksum::fold(checksum::pseudo_header(&packet, length));
    let field = packet.transport + if packet.protocol == 6 { 16 } else { 6 };
    frame[field..field + 2].copy_from_slice(&sum.to_be_bytes());
}

/// Returns the published vectors, each as the packet that it belongs to.
pub fn vectors() -> Vec<Case> {
    let all: Value = serde_json::from_str(include_str!("../../../wire/tests/data/tokens.json")).expect("JSON");
    let text = |case: &Value, field: &str| case[field].as_str().map(str::to_owned);
    let number = |case: &Value, field: &str| case[field].as_u64().expect("a number");
    let mut cases = Vec::new();
    for case in all["tokens"].as_array().expect("cases") {
        let to = text(case, "destination").expect("destination").parse().expect("an address");
        let [v4, v6] = families();
        let family = if v4.server.is_ipv4() == std::net::IpAddr::is_ipv4(&to) { v4 } else { v6 };
        let source = text(case, "source").map_or(family.client, |source| source.parse().expect("an address"));
        let port = number(case, "port") as u16;
        let packet = Packet::new(source, to);
        let packet = match number(case, "protocol") {
            6 => packet.tcp(lab::forge::Tcp::syn(CLIENT_PORT, port)),
            _ => packet.udp(CLIENT_PORT, port),
        };
        let token = hex::decode(text(case, "token").expect("token")).expect("hex").try_into().expect("36 bytes");
        let first = First { packet, payload: b"x".to_vec(), token };
        let row = Case::new(&family, "vectors", &text(case, "name").expect("name"));
        cases.push(match text(case, "reason") {
            None => row.admitted(&first),
            Some(reason) => {
                let reason = DropReason::ALL.iter().find(|known| known.name() == reason).expect("a known reason");
                row.frame(first.frame(), Outcome::Drop(*reason))
            }
        });
    }
    cases
}
