//! Shims and the LS scheme: wire.md §4.3, §4.4, §5. They are turned on for these rows.

use super::{CLIENT_PORT, Case, Step, TRANSPORTS, Transport};
use crate::world::{FLOWS_PER_GRANT, Family, Grant, LsPair, NOW, families};
use datapath::hook::Hook;
use engine::verifier::Outcome;
use lab::forge::{Packet, Tcp, flag};
use wire::shim::Content;
use wire::{DropReason, Epoch, Suite};

const MALFORMED: Outcome = Outcome::Drop(DropReason::Malformed);
const NO_TOKEN: Outcome = Outcome::Drop(DropReason::NoToken);

/// Returns the rows for this hook.
pub fn cases(hook: Hook) -> Vec<Case> {
    let [family, _] = families();
    let mut cases = Vec::new();
    for transport in TRANSPORTS {
        carried(&mut cases, &family, transport);
        tagged(&mut cases, &family, transport, hook);
        broken(&mut cases, &family, transport);
        tokens(&mut cases, &family, transport);
        pairs(&mut cases, &family, transport);
    }
    others(&mut cases, &family);
    cases
}

/// Parameters of the rows: a first packet of a transport in a shim.
struct Shims<'a> {
    family: &'a Family,
    transport: Transport,
}

impl Shims<'_> {
    fn packet(&self, port: u16) -> Packet {
        let to = self.transport.destination(self.family);
        let payload: &[u8] = if self.transport == Transport::Udp { b"hello" } else { b"" };
        self.transport.opening(self.family, port, &to).payload(payload)
    }

    fn case(&self, clause: &'static str, what: &str) -> Case {
        Case::new(self.family, clause, &format!("shim, {}, {what}", self.transport.name()))
    }

    fn token(&self, grant: &Grant, nonce: u32) -> [u8; 36] {
        grant.token(&self.transport.destination(self.family), NOW, nonce)
    }

    fn frame(&self, option: &[u8]) -> Vec<u8> {
        self.packet(CLIENT_PORT).shimmed(option).frame()
    }
}

impl Case {
    /// Adds a packet that its shim admits, and that reaches the host without the shim.
    fn unwrapped(self, packet: &Packet, content: Content) -> Self {
        self.becomes(packet.shimmed(&content.encode()).frame(), Outcome::Token, packet.frame())
    }
}

/// Valid tokens of §3, and the forms of the packets around them.
fn carried(cases: &mut Vec<Case>, family: &Family, transport: Transport) {
    let shims = Shims { family, transport };
    let grant = Grant::new(family, 40);
    let aes = Grant { suite: Suite::AesCmac, ..grant };
    let content = |nonce| Content::Token(shims.token(&grant, nonce));
    let packet = shims.packet(CLIENT_PORT);
    cases.push(shims.case("§4.3", "siphash").unwrapped(&packet, content(1)));
    cases.push(shims.case("§4.3", "aes-cmac").unwrapped(&packet, Content::Token(shims.token(&aes, 1))));
    for length in [1usize, 2, 7, 64, 999] {
        let long = packet.clone().payload(&vec![5; length]);
        cases.push(shims.case("§4.5", &format!("{length} bytes of payload")).unwrapped(&long, content(1)));
    }
    let mut padded = packet.shimmed(&content(1).encode()).frame();
    padded.extend([0xaa; 9]);
    cases.push(shims.case("§4.5", "link padding").becomes(padded, Outcome::Token, packet.frame()));
    let routed = packet.shimmed(&content(1).encode()).hops(57).class(3);
    cases.push(shims.case("§4.5", "TTL and ECN changed on the way").becomes(
        routed.frame(),
        Outcome::Token,
        packet.clone().hops(57).class(3).frame(),
    ));
    cases.push(shims.case("§4.5", "identified").unwrapped(&packet.clone().identification(0xfedc), content(1)));
    cases.push(shims.case("§4.5", "not to be fragmented").unwrapped(&packet.clone().dont_fragment(), content(1)));
    let mut partial = packet.frame();
    super::tokens::make_partial(&mut partial);
    let mut wrapped = packet.shimmed(&content(1).encode()).frame();
    wrapped[94..].copy_from_slice(&partial[34..]);
    cases.push(shims.case("§4.5", "a checksum left to the network card").becomes(wrapped, Outcome::Token, partial));
    let wrong = packet.clone().wrong_checksum();
    cases.push(shims.case("§4.5", "a wrong checksum stays wrong").unwrapped(&wrong, content(1)));
    let first = transport.first(family, &grant, CLIENT_PORT, 9);
    let later = transport.later(family, CLIENT_PORT).payload(b"x").frame();
    cases.push(
        shims
            .case("§6.3", "the flow's later packets come as they are")
            .unwrapped(&packet, content(1))
            .frame(later, Outcome::Flow),
    );
    cases.push(
        shims
            .case("§6.3", "a flow goes on with the other carrier")
            .unwrapped(&packet, content(1))
            .admitted(&first)
            .unwrapped(&packet, content(2)),
    );
    let replayed = Outcome::Drop(DropReason::Replayed);
    cases.push(
        shims
            .case("§6.4", "a token again in the other carrier")
            .unwrapped(&packet, Content::Token(first.token))
            .frame(first.frame(), replayed),
    );
    cases.push(
        shims
            .case("§6.4", "a token of a tail again in a shim")
            .admitted(&first)
            .frame(shims.frame(&Content::Token(first.token).encode()), replayed),
    );
}

/// The kernel removes one tag before tc, but not in a test run: a tag here stands for a second one.
fn tagged(cases: &mut Vec<Case>, family: &Family, transport: Transport, hook: Hook) {
    let shims = Shims { family, transport };
    let packet = shims.packet(CLIENT_PORT);
    let content = Content::Token(shims.token(&Grant::new(family, 45), 1));
    for tags in 1..=2 {
        let tagged = (0..tags).fold(packet.clone(), |packet, id| packet.tag(0x8100, id));
        let case = |what: &str| shims.case("§4.3.5", &format!("{tags} VLAN tags{what}"));
        cases.push(match hook {
            Hook::Xdp => case("").unwrapped(&tagged, content),
            Hook::Tc => case(" at tc, and its token is not used up")
                .frame(tagged.shimmed(&content.encode()).frame(), MALFORMED)
                .unwrapped(&packet, content),
        });
    }
}

fn broken(cases: &mut Vec<Case>, family: &Family, transport: Transport) {
    let shims = Shims { family, transport };
    let grant = Grant::new(family, 41);
    let good = Content::Token(shims.token(&grant, 1)).encode();
    let ls = Content::Ls(LsPair::new(1).token(1)).encode();
    let changed = |option: &[u8; 40], at: usize, to: u8| {
        let mut option = *option;
        option[at] = to;
        shims.frame(&option)
    };
    let mut row = |clause, what: &str, frame: Vec<u8>, outcome| {
        cases.push(shims.case(clause, what).step(Step::Tell(LsPair::new(1))).frame(frame, outcome));
    };
    for kind in [0, 5, 255] {
        row("§4.4", &format!("an option of kind {kind}"), changed(&good, 2, kind), MALFORMED);
    }
    for length in [0, 2, 38, 40, 41] {
        row("§4.4", &format!("a token in an option of {length} bytes"), changed(&good, 1, length), MALFORMED);
    }
    for length in [39, 41] {
        row("§4.4", &format!("a token of LS in an option of {length} bytes"), changed(&ls, 1, length), MALFORMED);
    }
    row("§4.4", "something behind the token", changed(&good, 39, 1), MALFORMED);
    row("§4.4", "a token of LS called one of ours", changed(&ls, 2, 4), MALFORMED);
    row("§4.4", "the support option", shims.frame(&Content::Support.encode()), NO_TOKEN);
    row("§4.4", "something behind the support option", changed(&Content::Support.encode(), 20, 1), MALFORMED);
    row("§4.4", "a key transfer", shims.frame(&Content::KeyTransfer([7; 35]).encode()), NO_TOKEN);
    let transfer = Content::KeyTransfer([7; 35]).encode();
    row("§4.4", "something behind a key transfer", changed(&transfer, 38, 1), MALFORMED);
    // Offsets are relative to the inner header, which begins at byte 34 of the frame.
    let inner = |at: usize, to: u8| {
        let mut frame = shims.frame(&good);
        assert_ne!(frame[34 + at], to);
        frame[34 + at] = to;
        frame
    };
    row("§4.3.2", "from another source", inner(15, 9), MALFORMED);
    row("§4.3.2", "to another destination", inner(19, 20), MALFORMED);
    row("§4.3.2", "with a shorter length inside", inner(3, 60), MALFORMED);
    row("§4.3.2", "a first fragment inside", inner(6, 0x20), MALFORMED);
    row("§4.3.2", "a later fragment inside", inner(7, 1), MALFORMED);
    row("§4.3.2", "without options inside", inner(0, 0x45), Outcome::NotOurs);
    row("§4.3.2", "with fewer options inside", inner(0, 0x4e), Outcome::NotOurs);
    row("§4.3.2", "IPv6 inside", inner(0, 0x6f), Outcome::NotOurs);
    row("§4.3.2", "another option first", changed(&good, 0, 0x9f), Outcome::NotOurs);
    row("§4.3.2", "an end of options first", changed(&good, 0, 0), Outcome::NotOurs);
    let outer = shims.packet(CLIENT_PORT).shimmed(&good);
    row("§4.3.2", "options outside", outer.clone().options(&[1, 1, 1, 1]).frame(), Outcome::NotOurs);
    let parts = outer.identification(30).fragments(48);
    row("§4.3.2", "the first fragment of one", parts[0].clone(), Outcome::NotOurs);
    row("§4.3.2", "a later fragment of one", parts[1].clone(), Outcome::NotOurs);
    let transport_cut = Packet::new(family.client, family.server).raw(transport.protocol()).payload(&[0; 7]);
    row("§4.3.2", "half a transport header inside", transport_cut.shimmed(&good).frame(), MALFORMED);
    let mut cut = shims.frame(&good);
    cut.truncate(cut.len() - 1);
    row("§6.5", "cut short", cut, MALFORMED);
}

/// Invalid tokens of §3. The checks after the carrier are the same as for `tail`, so one case of each stage is enough.
fn tokens(cases: &mut Vec<Case>, family: &Family, transport: Transport) {
    let shims = Shims { family, transport };
    let grant = Grant::new(family, 42);
    let to = transport.destination(family);
    let mut row = |what: &str, token: [u8; 36], reason| {
        let frame = shims.frame(&Content::Token(token).encode());
        cases.push(shims.case("§6.4", what).frame(frame, Outcome::Drop(reason)));
    };
    let mut changed = shims.token(&grant, 1);
    changed[35] ^= 1;
    row("a wrong tag", changed, DropReason::BadTag);
    changed[1] |= 16;
    row("a bearer grant", changed, DropReason::Malformed);
    changed = shims.token(&grant, 1);
    changed[0] = 0x11;
    row("a header that names suite 1", changed, DropReason::UnknownSuite);
    row("another epoch", Grant { epoch: Epoch(77), ..grant }.token(&to, NOW, 1), DropReason::UnknownEpoch);
    row("an ended grant", Grant { expires: NOW, ..grant }.token(&to, NOW, 1), DropReason::Expired);
    row("made long ago", grant.token(&to, NOW - 31, 1), DropReason::ClockSkew);
    row("made for another port", grant.token(&wire::Destination { port: 1, ..to }, NOW, 1), DropReason::BadTag);
    let frame = shims.frame(&Content::Token(shims.token(&grant, 1)).encode());
    cases.push(
        shims.case("§6.4", "a revoked grant").step(Step::Revoke(42)).frame(frame, Outcome::Drop(DropReason::Revoked)),
    );
}

/// Tokens of the LS scheme.
fn pairs(cases: &mut Vec<Case>, family: &Family, transport: Transport) {
    let shims = Shims { family, transport };
    let pair = LsPair::new(7);
    let content = |nonce2| Content::Ls(pair.token(nonce2));
    let frame = |nonce2| shims.frame(&content(nonce2).encode());
    let packet = |port| shims.packet(port);
    let known = |clause, what: &str| shims.case(clause, &format!("LS, {what}")).step(Step::Tell(pair));
    let dropped = |reason| Outcome::Drop(reason);
    for nonce2 in [0, 1, 63, 64, 0x1234, 0xffff] {
        let name = format!("nonce2 {nonce2}");
        cases.push(known("§5.3", &name).unwrapped(&packet(CLIENT_PORT), content(nonce2)));
    }
    for byte in [0, 4, 5, 6] {
        let mut other = pair.token(1);
        other[byte] ^= 1;
        let frame = shims.frame(&Content::Ls(other).encode());
        cases.push(known("§5.5", &format!("byte {byte} changed")).frame(frame, dropped(DropReason::UnknownEpoch)));
    }
    for byte in [7, 8, 9, 36] {
        let mut other = pair.token(1);
        other[byte] ^= 0x80;
        let frame = shims.frame(&Content::Ls(other).encode());
        cases.push(known("§5.3", &format!("byte {byte} changed")).frame(frame, dropped(DropReason::BadTag)));
    }
    let replayed = dropped(DropReason::Replayed);
    cases.push(
        known("§5.5", "a nonce2 twice")
            .unwrapped(&packet(CLIENT_PORT), content(5))
            .unwrapped(&packet(CLIENT_PORT), content(6))
            .frame(frame(5), replayed)
            .frame(packet(CLIENT_PORT + 1).shimmed(&content(5).encode()).frame(), replayed)
            .step(Step::Wait(100))
            .frame(frame(6), replayed)
            .unwrapped(&packet(CLIENT_PORT), content(4)),
    );
    let stranger = Transport::Tcp.opening(
        &Family { client: family.stranger, ..*family },
        CLIENT_PORT,
        &Transport::Tcp.destination(family),
    );
    cases.push(known("§5.3", "a token names neither sender nor destination").unwrapped(&stranger, content(1)));
    cases.push(shims.case("§5.5", "LS, an unknown pair").frame(frame(1), dropped(DropReason::UnknownEpoch)));
    let told = |what: &str, told: LsPair| shims.case("§5.5", &format!("LS, {what}")).step(Step::Tell(told));
    let short = LsPair { expires: NOW + 1, ..pair };
    cases.push(told("a pair's last second", short).unwrapped(&packet(CLIENT_PORT), content(1)));
    cases.push(
        told("a pair that has ended", short)
            .step(Step::Wait(1))
            .frame(frame(1), dropped(DropReason::Expired))
            .step(Step::Wait(31))
            .step(Step::Sweep)
            .frame(frame(1), dropped(DropReason::UnknownEpoch)),
    );
    let ended = LsPair { expires: NOW, ..pair };
    let mut wrong = pair.token(1);
    wrong[36] ^= 1;
    let wrong = shims.frame(&Content::Ls(wrong).encode());
    cases.push(told("ended and a wrong tag names ended", ended).frame(wrong, dropped(DropReason::Expired)));
    let without_key = LsPair { epoch: Epoch(77), ..pair };
    cases.push(told("an epoch without a secret", without_key).frame(frame(1), dropped(DropReason::UnknownEpoch)));
    let before = LsPair { epoch: Epoch(pair.epoch.0 - 1), ..pair };
    cases.push(told("a token of another epoch's secret", before).frame(frame(1), dropped(DropReason::BadTag)));
    let content_before = Content::Ls(before.token(1));
    cases.push(told("a secret of the previous epoch", before).unwrapped(&packet(CLIENT_PORT), content_before));
    let handle = pair.pair.handle().0;
    let unknown = if transport == Transport::Tcp { DropReason::NoFlow } else { DropReason::NoToken };
    cases.push(
        known("§5.7", "revocation refuses tokens and cuts flows")
            .unwrapped(&packet(CLIENT_PORT), content(1))
            .step(Step::Revoke(handle))
            .frame(frame(1), dropped(DropReason::Revoked))
            .step(Step::Sweep)
            .frame(transport.later(family, CLIENT_PORT).payload(b"x").frame(), dropped(unknown)),
    );
    let flows = (0..FLOWS_PER_GRANT as u16).fold(known("§5.7", "one flow too many for a pair"), |case, index| {
        case.unwrapped(&packet(CLIENT_PORT + index), content(index))
    });
    let more = packet(CLIENT_PORT + 100).shimmed(&content(100).encode()).frame();
    // A packet refused because of a limit uses up no nonce.
    let limited = dropped(DropReason::FlowLimit);
    cases.push(flows.frame(more.clone(), limited).frame(more, limited));
    let other = transport.first(family, &Grant::new(family, 44), CLIENT_PORT, 1);
    cases.push(
        known("§6.3", "a token takes another grant's flow over")
            .admitted(&other)
            .unwrapped(&packet(CLIENT_PORT), content(1)),
    );
}

fn others(cases: &mut Vec<Case>, family: &Family) {
    let udp = Shims { family, transport: Transport::Udp };
    let tcp = Shims { family, transport: Transport::Tcp };
    let grant = Grant::new(family, 43);
    let token = |shims: &Shims<'_>, nonce| Content::Token(shims.token(&grant, nonce)).encode();
    let empty = |nonce| udp.packet(CLIENT_PORT).payload(b"").shimmed(&token(&udp, nonce)).frame();
    let later = Transport::Udp.later(family, CLIENT_PORT).payload(b"x").frame();
    cases.push(
        udp.case("§4.3.3", "an empty datagram is consumed and admits its flow")
            .frame(empty(1), Outcome::Consumed)
            .frame(later.clone(), Outcome::Flow)
            .frame(empty(2), Outcome::Consumed)
            .frame(empty(2), Outcome::Drop(DropReason::Replayed)),
    );
    cases.push(
        udp.case("§6.3", "a shim without a token ends no flow, and renews none")
            .frame(empty(1), Outcome::Consumed)
            .step(Step::Wait(50))
            .frame(udp.frame(&Content::Support.encode()), NO_TOKEN)
            .step(Step::Wait(10))
            .frame(later.clone(), Outcome::Flow)
            .step(Step::Wait(1))
            .frame(later, NO_TOKEN),
    );
    for (what, flags) in [("ACK", flag::ACK), ("SYN and ACK", flag::SYN | flag::ACK), ("RST", flag::RST)] {
        let segment = Packet::new(family.client, family.server).tcp(Tcp::new(CLIENT_PORT, 22, flags));
        let frame = segment.shimmed(&token(&tcp, 1)).frame();
        cases.push(tcp.case("§6.3", &format!("{what} in a shim")).frame(frame, Outcome::Drop(DropReason::NoFlow)));
    }
    let open_port = Packet::new(family.client, family.server).tcp(Tcp::syn(CLIENT_PORT, 23));
    cases.push(tcp.case("§6.2", "to an open port").frame(open_port.shimmed(&token(&tcp, 1)).frame(), Outcome::NotOurs));
    let open = Packet::new(family.client, family.open).tcp(Tcp::syn(CLIENT_PORT, 22));
    cases.push(tcp.case("§6.2", "to an open host").frame(open.shimmed(&token(&tcp, 1)).frame(), Outcome::NotOurs));
    let to_fortress = |packet: Packet| packet.shimmed(&token(&tcp, 1)).frame();
    let fortress = Packet::new(family.client, family.fortress);
    for (what, packet) in [
        ("ICMP", fortress.clone().icmp(8, 0, [0; 4])),
        ("an ICMP error", fortress.clone().icmp(3, 1, [0; 4]).payload(&[0; 28])),
        ("GRE", fortress.clone().raw(47)),
        ("a shim", fortress.clone().tcp(Tcp::syn(CLIENT_PORT, 22)).shimmed(&token(&tcp, 1))),
    ] {
        cases.push(tcp.case("§6.8", &format!("{what} in a shim")).frame(to_fortress(packet), NO_TOKEN));
    }
    let plain = Packet::new(family.client, family.fortress).raw(4).payload(&fortress.clone().icmp(8, 0, [0; 4]).ip());
    cases.push(tcp.case("§6.8", "IP in IP to a fortress").frame(plain.frame(), NO_TOKEN));
    let [_, six] = families();
    let v6 = Packet::new(six.client, six.server).raw(4).payload(&udp.packet(CLIENT_PORT).ip());
    cases.push(udp.case("§4.3.1", "in IPv6").frame(v6.frame(), Outcome::NotOurs));
}
