//! Attacks by peers who saw a token, or who forge a client's address: docs/threats.md has the promises that they would
//! break.

use super::{CLIENT_PORT, Case, First, Step, TRANSPORTS, Transport};
use crate::world::{FLOWS_PER_GRANT, Family, Grant, NOW, families};
use engine::verifier::Outcome;
use lab::forge::{Packet, Tcp, flag};
use std::net::IpAddr;
use wire::map::TOKENS_PER_FLOW;
use wire::{Destination, DropReason};

const OWNER: u64 = 20;
/// The client's first sequence number, close to wrapping around.
const FIRST: u32 = u32::MAX - 500;
/// Longer than the verifier keeps a connection that is not open, and shorter than it keeps one that is.
const SILENCE: u32 = 40;

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for family in families() {
        for transport in TRANSPORTS {
            copied_tokens(&mut cases, &family, transport);
            other_addresses(&mut cases, &family, transport);
            taken_flows(&mut cases, &family, transport);
            moved_flows(&mut cases, &family, transport);
            flows_that_give_way(&mut cases, &family, transport);
        }
        unprotected_fragments(&mut cases, &family);
        forged_ends(&mut cases, &family);
        ends(&mut cases, &family);
        renewal(&mut cases, &family);
    }
    cases
}

/// An attacker who saw a token sends copies of it: the grant's later tokens are still admitted.
fn copied_tokens(cases: &mut Vec<Case>, family: &Family, transport: Transport) {
    let grant = Grant::new(family, OWNER);
    let first = transport.first(family, &grant, CLIENT_PORT, 1);
    let name = format!("{}, copies of a token use up nothing of its grant", transport.name());
    let mut case = Case::new(family, "§6.4", &name).admitted(&first);
    for copy in 0..2 * FLOWS_PER_GRANT * TOKENS_PER_FLOW {
        let elsewhere = transport.first(family, &grant, CLIENT_PORT + 1 + copy as u16, 1);
        case = case.frame(elsewhere.frame(), Outcome::Drop(DropReason::Replayed));
    }
    cases.push(case.admitted(&transport.first(family, &grant, CLIENT_PORT + 200, 2)));
}

/// An attacker probes for a verifier with fragments: those to open ports and those of ICMP pass as they would without a
/// verifier.
fn unprotected_fragments(cases: &mut Vec<Case>, family: &Family) {
    let (fragment, echo) = (Outcome::Drop(DropReason::Fragment), if family.server.is_ipv6() { 128 } else { 8 });
    let packet = |id| Packet::new(family.stranger, family.server).identification(id).payload(&[5; 3000]);
    let case = |name: &str| Case::new(family, "§6.5.2", name);
    for (name, packet) in [
        ("a datagram to an open port", packet(1).udp(CLIENT_PORT, 5353)),
        ("a SYN to an open port", packet(2).tcp(Tcp::syn(CLIENT_PORT, 23))),
        ("an echo request", packet(3).icmp(echo, 0, [0; 4])),
    ] {
        let parts = packet.fragments(1400).into_iter();
        cases.push(parts.fold(case(&format!("{name} in fragments")), |row, part| row.frame(part, Outcome::NotOurs)));
    }
    let last_first = packet(4).icmp(echo, 0, [0; 4]).fragments(1400).into_iter().rev();
    let row = case("an echo request in fragments, the last one first");
    cases.push(last_first.fold(row, |row, part| row.frame(part, Outcome::NotOurs)));
    // Fragments of other datagrams do not benefit.
    let [first, other] = [5, 6].map(|id| packet(id).udp(CLIENT_PORT, 5353).fragments(1400));
    let row = case("a later fragment of another datagram").frame(first[0].clone(), Outcome::NotOurs);
    cases.push(row.frame(other[1].clone(), fragment));
    let row =
        case("a later fragment half a minute after one to an open port").frame(first[0].clone(), Outcome::NotOurs);
    cases.push(row.step(Step::Wait(31)).frame(first[1].clone(), fragment));
    let closed = packet(7).udp(CLIENT_PORT, 443).fragments(1400);
    let row = case("fragments to the protected port").frame(closed[0].clone(), fragment);
    cases.push(row.frame(closed[1].clone(), fragment));
}

/// Returns a segment of the client's that begins `ahead` bytes after its SYN.
fn segment(family: &Family, ahead: u32, flags: u8, payload: usize) -> Vec<u8> {
    let sequence = FIRST.wrapping_add(1).wrapping_add(ahead);
    let header = Tcp { sequence, acknowledgement: 1, ..Tcp::new(CLIENT_PORT, 22, flags) };
    Packet::new(family.client, family.server).tcp(header).payload(&vec![7; payload]).frame()
}

/// Returns a case with a connection whose client has sent 1000 bytes.
fn connected(family: &Family, name: &str) -> Case {
    let first = Transport::Tcp.first(family, &Grant::new(family, OWNER), CLIENT_PORT, 1);
    let syn = Tcp { sequence: FIRST, ..Tcp::syn(CLIENT_PORT, 22) };
    Case::new(family, "§6.3.1", name)
        .admitted(&first.with_packet(|packet| packet.tcp(syn)))
        .frame(segment(family, 0, flag::ACK, 0), Outcome::Flow)
        .frame(segment(family, 0, flag::ACK, 1000), Outcome::Flow)
}

/// An attacker who forges the client's address sends an ending segment that the server would not accept: the connection
/// survives a silence.
fn forged_ends(cases: &mut Vec<Case>, family: &Family) {
    for (name, flags) in [("RST", flag::RST), ("RST and ACK", flag::RST | flag::ACK), ("FIN", flag::FIN | flag::ACK)] {
        for (place, ahead) in [("far", 1 << 20), ("near", 2000), ("just ahead", 1001), ("behind", 999)] {
            let case = connected(family, &format!("a forged {name} {place}"));
            let case = case.frame(segment(family, ahead, flags, 0), Outcome::Flow).step(Step::Wait(SILENCE));
            cases.push(case.step(Step::Sweep).frame(segment(family, 1000, flag::ACK, 10), Outcome::Flow));
        }
    }
    let case = connected(family, "a forged FIN without ACK");
    let case = case.frame(segment(family, 1000, flag::FIN, 0), Outcome::Flow).step(Step::Wait(SILENCE));
    cases.push(case.frame(segment(family, 1000, flag::ACK, 10), Outcome::Flow));
    // Far segments do not distort the verifier's view of the client's sequence number.
    let case = connected(family, "a forged segment far ahead, and a RST behind it");
    let far = (1 << 18) + 1000;
    let case = case
        .frame(segment(family, far, flag::ACK, 100), Outcome::Flow)
        .frame(segment(family, far + 100, flag::RST, 0), Outcome::Flow)
        .step(Step::Wait(SILENCE));
    cases.push(case.frame(segment(family, 1000, flag::ACK, 10), Outcome::Flow));
}

/// The client's own RST and FIN end the connection.
fn ends(cases: &mut Vec<Case>, family: &Family) {
    let no_flow = Outcome::Drop(DropReason::NoFlow);
    let ended = |case: Case| case.step(Step::Wait(SILENCE)).frame(segment(family, 1000, flag::ACK, 0), no_flow);
    for (name, ahead, flags, payload) in [
        ("RST", 1000, flag::RST, 0),
        ("FIN", 1000, flag::FIN | flag::ACK, 0),
        ("FIN with new data", 1000, flag::FIN | flag::ACK, 300),
        ("FIN with data that was sent before", 900, flag::FIN | flag::ACK, 100),
    ] {
        let case = connected(family, &format!("the client's own {name}"));
        cases.push(ended(case.frame(segment(family, ahead, flags, payload), Outcome::Flow)));
    }
    let fin = segment(family, 1000, flag::FIN | flag::ACK, 0);
    let again = connected(family, "data that is sent again after a FIN").frame(fin, Outcome::Flow);
    cases.push(ended(again.frame(segment(family, 500, flag::ACK, 500), Outcome::Flow)));
    let lost = connected(family, "a FIN that came before data that was lost on the way");
    let lost = lost.frame(segment(family, 1200, flag::FIN | flag::ACK, 100), Outcome::Flow);
    cases.push(ended(lost.frame(segment(family, 1000, flag::ACK, 200), Outcome::Flow)));
    let refused = Transport::Tcp.first(family, &Grant::new(family, OWNER), CLIENT_PORT, 1);
    // The client's stack resets what the server still has of an earlier connection between the same ports.
    let case = Case::new(family, "§6.3.1", "a RST of an earlier connection").admitted(&refused);
    let case = case.frame(segment(family, 77, flag::RST, 0), Outcome::Flow);
    let renewed = Transport::Tcp.first(family, &Grant::new(family, OWNER), CLIENT_PORT, 2);
    let bare = |flags| Packet::new(family.client, family.server).tcp(Tcp::new(CLIENT_PORT, 22, flags)).frame();
    let case = case.admitted(&renewed).frame(bare(flag::ACK), Outcome::Flow).step(Step::Wait(SILENCE));
    cases.push(case.frame(bare(flag::ACK), Outcome::Flow));
}

/// A UDP flow needs a token every minute: a sender whose tokens the verifier would refuse can't continue it.
fn renewal(cases: &mut Vec<Case>, family: &Family) {
    let grant = Grant::new(family, OWNER);
    let to = Transport::Udp.destination(family);
    let first = Transport::Udp.first(family, &grant, CLIENT_PORT, 1);
    let at = |time, nonce| First { token: grant.token(&to, time, nonce), ..first.clone() };
    let datagram = Transport::Udp.later(family, CLIENT_PORT).payload(b"more").frame();
    let pass = |case: Case| case.step(Step::Wait(20)).frame(datagram.clone(), Outcome::Flow);
    let no_token = Outcome::Drop(DropReason::NoToken);
    let minute = |what: &str| {
        let case = Case::new(family, "§6.3.6", &format!("a minute after its last token, {what}")).admitted(&first);
        pass(pass(pass(case))).step(Step::Wait(1))
    };
    cases.push(minute("a datagram without one").frame(datagram.clone(), no_token));
    cases.push(
        minute("a datagram with one opens the flow again")
            .frame(datagram.clone(), no_token)
            .admitted(&at(NOW + 61, 2))
            .frame(datagram.clone(), Outcome::Flow),
    );
    cases.push(pass(pass(pass(
        pass(pass(Case::new(family, "§6.3.6", "a token in time keeps the flow").admitted(&first)))
            .admitted(&at(NOW + 40, 2)),
    ))));
    cases.push(minute("a first fragment").frame(
        Transport::Udp.later(family, CLIENT_PORT).payload(&[7; 600]).fragments(400)[0].clone(),
        Outcome::Drop(DropReason::Fragment),
    ));
}

/// The service at addresses of its host that no receiver names: no packet gets there, not even with a token for the
/// named address.
fn other_addresses(cases: &mut Vec<Case>, family: &Family, transport: Transport) {
    let addresses: &[&str] = match family.server {
        IpAddr::V4(_) => &["169.254.7.7", "224.0.0.1", "239.255.255.250", "255.255.255.255"],
        IpAddr::V6(_) => &["fe80::1", "febf::1", "ff02::1", "ff05::2"],
    };
    let grant = Grant::new(family, OWNER);
    for text in addresses {
        let to = |port| {
            let address = text.parse().expect("an address");
            transport.opening(family, CLIENT_PORT, &Destination { address, protocol: transport.protocol(), port })
        };
        let there = to(transport.port());
        let first = transport.first(family, &grant, CLIENT_PORT, 1).with_packet(|_| there.clone());
        let name = format!("{} to {text}, which no receiver names", transport.name());
        cases.push(
            Case::new(family, "§6.2.2", &name)
                .frame(there.frame(), Outcome::Drop(DropReason::NoToken))
                .frame(first.frame(), Outcome::Drop(DropReason::BadTag))
                .frame(to(transport.port() + 1).frame(), Outcome::NotOurs),
        );
    }
}

/// An attacker with a grant of their own forges the client's address: an open flow keeps its owner, and only the
/// owner's revocation ends it.
fn taken_flows(cases: &mut Vec<Case>, family: &Family, transport: Transport) {
    let (owner, stranger) = (Grant::held(family, 1, 0, 1), Grant::held(family, 2, 0, 2));
    let own = transport.first(family, &owner, CLIENT_PORT, 1);
    let later = transport.later(family, CLIENT_PORT).payload(b"more").frame();
    let row = |name: &str| {
        let name = format!("{}, {name}", transport.name());
        Case::new(family, "§6.4.5", &name).admitted(&own).frame(later.clone(), Outcome::Flow)
    };
    let took = |case: Case| case.admitted(&transport.first(family, &stranger, CLIENT_PORT, 2));
    let end = |case: Case, grant: &Grant| case.step(Step::Revoke(grant.handle)).step(Step::Sweep);
    let gone = Outcome::Drop(transport.unknown());
    let case = end(took(row("a stranger's end does not end a flow that they showed a token for")), &stranger);
    cases.push(case.frame(later.clone(), Outcome::Flow));
    let case = end(took(row("a stranger's token does not save a flow from its owner's end")), &owner);
    cases.push(case.frame(later.clone(), gone));
    let mut case = row("tokens for somebody else's flow take up no flow of their grant");
    for nonce in 0..FLOWS_PER_GRANT + 2 {
        case = case.admitted(&transport.first(family, &stranger, CLIENT_PORT, 2 + nonce));
    }
    for port in 1..=FLOWS_PER_GRANT as u16 {
        case = case.admitted(&transport.first(family, &stranger, CLIENT_PORT + port, 100 + u32::from(port)));
    }
    cases.push(case);
}

/// A session's newer grant takes over the flow that an older one opened; a grant of another session of the account does
/// not.
fn moved_flows(cases: &mut Vec<Case>, family: &Family, transport: Transport) {
    let [older, newer, other] =
        [Grant::held(family, 1, 0, 1), Grant::held(family, 1, 0, 2), Grant::held(family, 1, 1, 3)];
    let first = |grant: &Grant, nonce| transport.first(family, grant, CLIENT_PORT, nonce);
    let later = transport.later(family, CLIENT_PORT).payload(b"more").frame();
    let gone = Outcome::Drop(transport.unknown());
    for (name, grant, revoked, outcome) in [
        ("a session's newer grant takes the flow over", newer, older, Outcome::Flow),
        ("a flow that was taken over ends with the newer grant", newer, newer, gone),
        ("another session's grant takes no flow over", other, older, gone),
    ] {
        let case = Case::new(family, "§6.4.5", &format!("{}, {name}", transport.name()));
        let case = case.admitted(&first(&older, 1)).frame(later.clone(), Outcome::Flow).admitted(&first(&grant, 2));
        cases.push(case.step(Step::Revoke(revoked.handle)).step(Step::Sweep).frame(later.clone(), outcome));
    }
}

/// A flow that has fallen silent, or a TCP flow that has only begun to open, goes to the next valid token.
fn flows_that_give_way(cases: &mut Vec<Case>, family: &Family, transport: Transport) {
    let (before, after) = (Grant::held(family, 1, 0, 1), Grant::held(family, 2, 0, 2));
    let later = transport.later(family, CLIENT_PORT).payload(b"more").frame();
    let silences: &[_] = if transport == Transport::Tcp { &[0, 31] } else { &[61] };
    for silence in silences {
        let to = transport.destination(family);
        let first = transport.first(family, &before, CLIENT_PORT, 1);
        let next = First { token: after.token(&to, crate::world::NOW + silence, 2), ..first.clone() };
        let name = format!("{}, a flow gives way {silence} s after its first packet", transport.name());
        let case = Case::new(family, "§6.4.5", &name).admitted(&first).step(Step::Wait(*silence)).admitted(&next);
        let case = case.step(Step::Revoke(before.handle)).step(Step::Sweep).frame(later.clone(), Outcome::Flow);
        let case = case.step(Step::Revoke(after.handle)).step(Step::Sweep);
        cases.push(case.frame(later.clone(), Outcome::Drop(transport.unknown())));
    }
}
