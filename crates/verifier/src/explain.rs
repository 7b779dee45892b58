//! Would this packet pass, and why: the checks of wire.md §6 in their order, told one by one. Reads the tables through
//! [`Tables`] and writes nothing; what admits is the kernel program alone.

mod pair;

use crate::{plan, protocol, view};
use engine::protected::Protected;
use engine::verifier::CLOCK_SKEW_MAX;
use std::net::{IpAddr, SocketAddr};
use wire::grant::Flags;
use wire::map::{Flow, FlowKey, GrantUse, LsGrant, VerifierConfig, origin};
use wire::packet::{Form, Fragment, Packet, TCP, UDP};
use wire::shim::{self, Content};
use wire::token::Token;
use wire::{Carrier, Destination, DropReason, Epoch, Handle, LsToken, Pair, VerifierKey, tail};

/// What the kernel program would look up.
pub trait Tables {
    /// What is protected.
    fn protected(&self) -> Vec<Protected>;
    /// The flow at this key, live or not.
    fn flow(&self, key: &FlowKey) -> Option<Flow>;
    /// The key in the slot of an epoch's low 8 bits, with the epoch.
    fn key(&self, slot: u8) -> Option<(Epoch, VerifierKey)>;
    /// Whether a grant is revoked.
    fn is_revoked(&self, handle: Handle) -> bool;
    /// A grant in use.
    fn grant_use(&self, handle: Handle) -> Option<GrantUse>;
    /// A pair that the authority told of.
    fn pair(&self, pair: Pair) -> Option<LsGrant>;
}

/// Collects checks; the first that fails decides.
struct Trace(Vec<view::Check>);

impl Trace {
    fn note(&mut self, name: &str, passed: Option<bool>, text: impl Into<String>) {
        self.0.push(view::Check { name: name.into(), passed, text: text.into() });
    }

    /// Notes a check; its failure is the drop reason.
    fn check(
        &mut self,
        name: &str,
        passed: bool,
        reason: DropReason,
        text: impl Into<String>,
    ) -> Result<(), DropReason> {
        self.note(name, Some(passed), text);
        if passed { Ok(()) } else { Err(reason) }
    }

    fn passes(self, outcome: &str, text: impl Into<String>) -> view::Verdict {
        view::Verdict { passes: true, outcome: outcome.into(), checks: self.0, text: text.into() }
    }

    fn drops(self, reason: DropReason, text: impl Into<String>) -> view::Verdict {
        view::Verdict { passes: false, outcome: reason.name().into(), checks: self.0, text: text.into() }
    }
}

/// A packet of a flow from `from` to `to` that carries no token.
pub fn flow(
    tables: &impl Tables,
    config: &VerifierConfig,
    from: SocketAddr,
    to: SocketAddr,
    protocol: u8,
    now: u64,
) -> view::Verdict {
    let mut trace = Trace(Vec::new());
    if !destination(tables, &mut trace, to.ip(), protocol, to.port()) {
        return trace.passes("not_ours", "it passes: the destination is not protected");
    }
    let key = FlowKey::new(from.ip(), from.port(), to.ip(), to.port(), protocol);
    match admitted(tables, &mut trace, config, &key, now) {
        true if protocol == TCP => {
            trace.passes("flow", "it passes: it belongs to an admitted flow (but a SYN would need a token again)")
        }
        true => trace.passes("flow", "it passes: it belongs to an admitted flow"),
        false if protocol == TCP => trace
            .drops(DropReason::NoToken, "it is dropped: the flow is not admitted; a SYN with a valid token would be"),
        false if protocol == UDP => {
            trace.drops(DropReason::NoToken, "it is dropped: the flow is not admitted; a valid token would admit it")
        }
        false => trace.drops(DropReason::NoToken, "it is dropped: only TCP and UDP can carry a token"),
    }
}

/// A whole Ethernet frame.
pub fn frame(tables: &impl Tables, config: &VerifierConfig, bytes: &[u8], now: u64) -> view::Verdict {
    let mut trace = Trace(Vec::new());
    let packet = Packet::parse(bytes);
    let (Some(source), Some(address)) = (packet.source, packet.destination) else {
        return match packet.form {
            Form::NotIp => trace.passes("not_ours", "it passes: neither IPv4 nor IPv6"),
            _ => trace.drops(DropReason::Malformed, "it is dropped: its destination can't be read"),
        };
    };
    let opened = if config.takes(Carrier::Shim) { shim::open(bytes, &packet) } else { None };
    let (packet, carried) = match opened {
        None => (packet, None),
        Some(Ok((opened, content))) => (opened, Some(content)),
        Some(Err(_)) => (Packet { form: Form::Broken, ..packet }, None),
    };
    let to = Destination { address, protocol: packet.protocol, port: packet.destination_port };
    let in_shim = if carried.is_some() { ", in a shim" } else { "" };
    trace.note("packet", Some(packet.form == Form::Whole), summary(&packet) + in_shim);
    if packet.form != Form::Whole || packet.fragment != Fragment::Whole || packet.icmp_error() {
        return unusual(tables, trace, &packet, address);
    }
    if packet.neighbour_discovery() || !destination(tables, &mut trace, address, to.protocol, to.port) {
        return trace.passes("not_ours", "it passes: the destination is not protected");
    }
    let key = FlowKey::new(source, packet.source_port, address, to.port, to.protocol);
    // A SYN is never taken for part of a flow, nor what is in a shim (wire.md §6.3).
    let of_flow = !packet.opens() && carried.is_none() && admitted(tables, &mut trace, config, &key, now);
    if of_flow && to.protocol == TCP {
        return trace.passes("flow", "it passes: it belongs to an admitted flow");
    }
    if to.protocol != UDP && !packet.opens() {
        let reason = if to.protocol == TCP { DropReason::NoFlow } else { DropReason::NoToken };
        return trace.drops(reason, "it is dropped: it belongs to no admitted flow and is no first packet");
    }
    let found = match &carried {
        Some(Content::Token(found)) => Some(found),
        Some(Content::Ls(bytes)) => {
            return match pair::token(tables, config, &mut trace, &LsToken::decode(bytes), now, &key) {
                Ok(()) => trace.passes("token", "it passes: its token is valid"),
                Err(reason) => trace.drops(reason, format!("it is dropped: {reason}")),
            };
        }
        Some(_) => None,
        None if config.takes(Carrier::Tail) => tail::find(bytes, &packet),
        None => None,
    };
    let Some(found) = found else {
        let nowhere = if carried.is_some() { "no token in the shim" } else { "no token at the end of the payload" };
        trace.note("token", Some(false), nowhere);
        return match of_flow {
            true => trace.passes("flow", "it passes: it belongs to an admitted flow"),
            false => trace.drops(DropReason::NoToken, "it is dropped: a first packet without a token"),
        };
    };
    match token(tables, config, &mut trace, found, source, &to, now, &key) {
        Ok(()) => trace.passes("token", "it passes: its token is valid, unless it was used before"),
        Err(DropReason::Malformed | DropReason::UnknownSuite) if of_flow => {
            trace.passes("flow", "it passes: its end only looks like a token, and the flow is admitted")
        }
        Err(reason) => trace.drops(reason, format!("it is dropped: {reason}")),
    }
}

/// Broken packets, fragments and ICMP errors: told in one sentence.
fn unusual(tables: &impl Tables, mut trace: Trace, packet: &Packet, address: IpAddr) -> view::Verdict {
    if plan::services_of(&tables.protected(), address).is_none() {
        trace.note("destination", Some(false), format!("nothing at {address} is protected"));
        return trace.passes("not_ours", "it passes: the destination is not protected");
    }
    trace.note("destination", Some(true), format!("something at {address} is protected"));
    match (packet.form, packet.fragment) {
        (Form::Whole, Fragment::Whole) => {
            trace.drops(DropReason::NoFlow, "an ICMP error passes if it quotes an admitted flow, else it is dropped")
        }
        (Form::Whole, _) => {
            trace.drops(DropReason::Fragment, "a fragment passes if it is of an admitted flow, else it is dropped")
        }
        _ => trace
            .drops(DropReason::Malformed, "it is dropped: it can't be parsed and may be for a protected destination"),
    }
}

fn summary(packet: &Packet) -> String {
    let end = |address: Option<IpAddr>, port| address.map_or("?".into(), |a| SocketAddr::new(a, port).to_string());
    let opens = if packet.opens() { " SYN" } else { "" };
    let (from, to) = (end(packet.source, packet.source_port), end(packet.destination, packet.destination_port));
    format!("{}{opens} from {from} to {to}", protocol::name(packet.protocol))
}

/// Whether the destination is protected.
fn destination(tables: &impl Tables, trace: &mut Trace, address: IpAddr, protocol: u8, port: u16) -> bool {
    let entries = tables.protected();
    let found = plan::services_of(&entries, address);
    let ours = found.is_some_and(|entry| plan::covers(&entry.services, protocol, port));
    let text = match found {
        Some(entry) if ours => format!("{} port {port} is protected in {}", protocol::name(protocol), entry.prefix),
        Some(entry) => format!("{} port {port} is not protected in {}", protocol::name(protocol), entry.prefix),
        None => format!("nothing at {address} is protected"),
    };
    trace.note("destination", Some(ours), text);
    ours
}

/// Whether the flow is admitted and live.
fn admitted(tables: &impl Tables, trace: &mut Trace, config: &VerifierConfig, key: &FlowKey, now: u64) -> bool {
    let Some(flow) = tables.flow(key) else {
        trace.note("flow", Some(false), "not admitted");
        return false;
    };
    let limit = match (key.protocol, flow.stage) {
        (TCP, 0) => config.tcp_idle,
        (TCP, _) => config.closing_idle,
        _ => config.udp_idle,
    };
    let silent = now.saturating_sub(flow.seen.into());
    let live = silent <= limit.into();
    let by = match flow.origin {
        origin::TOKEN => format!("admitted by grant {}", Handle(flow.handle)),
        origin::INSIDE => "opened from inside".into(),
        _ => "adopted".into(),
    };
    let end = if live { "" } else { ", which is too long" };
    trace.note("flow", Some(live), format!("{by}; silent for {silent} s of {limit} s{end}"));
    live
}

/// The checks of a token, wire.md §6.4.
#[expect(clippy::too_many_arguments, reason = "each is one input of the kernel's check")]
fn token(
    tables: &impl Tables,
    config: &VerifierConfig,
    trace: &mut Trace,
    bytes: &[u8; wire::token::TOKEN_LEN],
    source: IpAddr,
    to: &Destination,
    now: u64,
    key: &FlowKey,
) -> Result<(), DropReason> {
    let token = match Token::decode(bytes, to.address.is_ipv6()) {
        Ok(token) => token,
        Err(reason) => {
            let name = if reason == DropReason::UnknownSuite { "suite" } else { "form" };
            trace.note(name, Some(false), reason.name());
            return Err(reason);
        }
    };
    let header = token.header;
    trace.note("form", Some(true), format!("grant {}", header.handle));
    trace.note("suite", Some(true), header.suite.name());

    let current = Epoch::at(now, config.epoch_length);
    let slot = tables.key(header.epoch).filter(|(epoch, _)| epoch.0 != 0);
    let held = slot.filter(|(epoch, _)| epoch.0 + 1 >= current.0 && epoch.0 <= current.0 + 1);
    let text = match &held {
        Some((epoch, _)) => format!("epoch {}, now is {}", epoch.0, current.0),
        None => format!("no key for low bits {}; now is epoch {}", header.epoch, current.0),
    };
    trace.note("epoch", Some(held.is_some()), text);
    let (_, verifier_key) = held.ok_or(DropReason::UnknownEpoch)?;

    let left = i64::from(header.expires) - now as i64;
    trace.check("expiry", left > 0, DropReason::Expired, format!("the grant ends in {left} s"))?;
    let most = config.max_lifetime;
    trace.check(
        "lifetime",
        left <= most.into(),
        DropReason::LifetimeTooLong,
        format!("{left} s of at most {most} s"),
    )?;

    let skew = now as i64 - i64::from(token.time);
    let text = format!("made {skew} s ago, at most {CLOCK_SKEW_MAX} s either way");
    trace.check("clock", skew.unsigned_abs() <= CLOCK_SKEW_MAX.into(), DropReason::ClockSkew, text)?;

    let right = token.proves(&header.key(&verifier_key, to, source), to);
    let bound = if header.flags.has(Flags::SOURCE) { ", bound to the sender's address" } else { "" };
    let text = if right { "right" } else { "wrong: forged, changed, or for another destination" };
    trace.check("tag", right, DropReason::BadTag, format!("{text}{bound}"))?;

    let revoked = tables.is_revoked(header.handle);
    trace.check(
        "revoked",
        !revoked,
        DropReason::Revoked,
        if revoked { "the grant is revoked" } else { "the grant is not" },
    )?;
    trace.note("replay", None, "only using the token tells");

    flow_limit(tables, config, trace, header.handle, header.flags.has(Flags::SINGLE), key)
}

fn flow_limit(
    tables: &impl Tables,
    config: &VerifierConfig,
    trace: &mut Trace,
    handle: Handle,
    single: bool,
    key: &FlowKey,
) -> Result<(), DropReason> {
    let Some(used) = tables.grant_use(handle) else {
        trace.note("flow limit", Some(true), "the grant has no flow yet");
        return Ok(());
    };
    let other = single && used.first != *key;
    trace.check(
        "single flow",
        !other,
        DropReason::FlowLimit,
        if other { "it had another flow" } else { "not bound" },
    )?;
    let most = config.flows_per_grant;
    let text = format!("{} flows of at most {most}", used.flows);
    trace.check("flow limit", used.flows < most || tables.flow(key).is_some(), DropReason::FlowLimit, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::api::{Receiver, Service};
    use engine::verifier::{Outcome, Verifier};
    use std::collections::{BTreeMap, BTreeSet};
    use wire::packet::tcp_flags;
    use wire::{ClientKey, GrantHeader, ServerSecret, Suite};

    const NOW: u64 = 3_600_000;
    const CONFIG: VerifierConfig = VerifierConfig {
        replay_seed: 0,
        replay_mask: 0,
        epoch_length: 3600,
        max_lifetime: 3600,
        flows_per_grant: 4,
        tcp_idle: 600,
        udp_idle: 60,
        closing_idle: 30,
        samples_per_second: 0,
        observe: 0,
        carriers: 3,
        suites: 14,
        max_outbound: 0,
        tells_flows: 0,
        mark: 0,
        mark_mask: 0,
    };

    #[derive(Default)]
    struct Room {
        flow: Option<(FlowKey, Flow)>,
        revoked: Vec<u64>,
        used: Option<GrantUse>,
        pair: Option<(Pair, LsGrant)>,
    }

    impl Tables for Room {
        fn protected(&self) -> Vec<Protected> {
            let services = [TCP, UDP].map(|protocol| Service { protocol, first_port: 22, last_port: 22 }).to_vec();
            let receiver = Receiver { name: "ssh".into(), prefix: "192.0.2.0/24".parse().expect("a prefix"), services };
            engine::protected::entries(&[receiver]).expect("fits")
        }
        fn flow(&self, key: &FlowKey) -> Option<Flow> {
            self.flow.filter(|(known, _)| known == key).map(|(_, flow)| flow)
        }
        fn key(&self, slot: u8) -> Option<(Epoch, VerifierKey)> {
            let epoch = Epoch(NOW / 3600);
            (slot == epoch.on_wire()).then(|| (epoch, VerifierKey::new([7; 32])))
        }
        fn is_revoked(&self, handle: Handle) -> bool {
            self.revoked.contains(&handle.0)
        }
        fn grant_use(&self, _handle: Handle) -> Option<GrantUse> {
            self.used
        }
        fn pair(&self, pair: Pair) -> Option<LsGrant> {
            self.pair.filter(|(known, _)| *known == pair).map(|(_, told)| told)
        }
    }

    fn at(text: &str) -> SocketAddr {
        text.parse().expect("an address and port")
    }

    fn syn(flags: u8, tail: &[u8]) -> Vec<u8> {
        let mut frame = vec![0; 54];
        frame[12..14].copy_from_slice(&[8, 0]);
        frame[14] = 0x45;
        frame[16..18].copy_from_slice(&(40 + tail.len() as u16).to_be_bytes());
        frame[22..24].copy_from_slice(&[64, TCP]);
        frame[26..34].copy_from_slice(&[203, 0, 113, 5, 192, 0, 2, 10]);
        frame[34..38].copy_from_slice(&[0x12, 0x67, 0, 22]);
        frame[46..48].copy_from_slice(&[0x50, flags]);
        frame.extend_from_slice(tail);
        frame
    }

    fn with_token(change: impl FnOnce(&mut GrantHeader, &mut u32)) -> Vec<u8> {
        let mut header = GrantHeader {
            suite: Suite::Siphash,
            flags: Flags::PORT,
            epoch: Epoch(NOW / 3600).on_wire(),
            prefix_length: 32,
            expires: NOW as u32 + 300,
            handle: Handle(5),
        };
        let mut time = NOW as u32;
        change(&mut header, &mut time);
        let to = Destination { address: at("192.0.2.10:22").ip(), protocol: TCP, port: 22 };
        let key = header.key(&VerifierKey::new([7; 32]), &to, at("203.0.113.5:1").ip());
        let token = Token::new(header, &key, time, 1, &to);
        syn(tcp_flags::SYN, &tail::block(&token.encode()))
    }

    /// What is told, which must be what the engine does.
    fn outcome(room: &Room, bytes: &[u8]) -> String {
        let told = frame(room, &CONFIG, bytes, NOW).outcome;
        let mut engine = Verifier {
            config: CONFIG,
            protected: room.protected(),
            keys: [(Epoch(NOW / 3600), VerifierKey::new([7; 32]))].into(),
            revoked: room.revoked.iter().map(|handle| (Handle(*handle), u32::MAX)).collect(),
            flows: room.flow.into_iter().collect(),
            grants: room.used.map(|used| (Handle(5), used)).into_iter().collect(),
            tokens: BTreeSet::new(),
            ls_grants: room.pair.map(|(pair, told)| (pair.handle(), told)).into_iter().collect(),
            fragments: BTreeMap::new(),
            at_tc: false,
        };
        let done = match engine.judge(&mut bytes.to_vec(), NOW as u32) {
            Outcome::NotOurs => "not_ours",
            Outcome::Flow => "flow",
            Outcome::Token | Outcome::Consumed => "token",
            Outcome::IcmpError => "icmp_error",
            Outcome::Drop(reason) => reason.name(),
        };
        assert_eq!(told, done);
        told
    }

    #[test]
    fn what_is_in_a_shim_is_told_as_it_is_judged() {
        let by_tail = with_token(|_, _| {});
        let (plain, token) = by_tail.split_at(by_tail.len() - tail::BLOCK_LEN);
        let mut plain = plain.to_vec();
        plain[16..18].copy_from_slice(&40u16.to_be_bytes());
        let in_shim = |content: Content| {
            let mut frame = [&plain[..], &[0; shim::SHIM_LEN]].concat();
            assert!(shim::insert(&mut frame, &Packet::parse(&plain), &content).is_some());
            frame
        };
        let good: [u8; 36] = *token.last_chunk().expect("a token");
        let mut wrong = good;
        wrong[35] ^= 1;
        let mut foreign = in_shim(Content::Token(good));
        foreign[46] ^= 1;
        for (bytes, expected) in [
            (in_shim(Content::Token(good)), "token"),
            (in_shim(Content::Token(wrong)), "bad_tag"),
            (in_shim(Content::Support), "no_token"),
            (foreign, "malformed"),
        ] {
            assert_eq!(outcome(&Room::default(), &bytes), expected);
        }
    }

    #[test]
    fn tokens_of_pairs_are_told_as_they_are_judged() {
        let pair = Pair::from_random(5);
        let secret = ServerSecret::of(&VerifierKey::new([7; 32])).expect("a length that fits");
        let token = LsToken::new(pair, 9, &ClientKey::of(pair, secret.bytes())).encode();
        let mut wrong = token;
        wrong[36] ^= 1;
        let plain = syn(tcp_flags::SYN, &[]);
        let in_shim = |token| {
            let mut frame = [&plain[..], &[0; shim::SHIM_LEN]].concat();
            assert!(shim::insert(&mut frame, &Packet::parse(&plain), &Content::Ls(token)).is_some());
            frame
        };
        let told = |epoch, expires| Room { pair: Some((pair, LsGrant::new(epoch, expires))), ..Room::default() };
        let (epoch, expires) = (NOW / 3600, NOW as u32 + 9);
        let mut used = told(epoch, expires);
        assert!(used.pair.as_mut().is_some_and(|(_, told)| told.take(9)));
        let revoked = Room { revoked: vec![5], ..told(epoch, expires) };
        for (room, token, expected) in [
            (told(epoch, expires), token, "token"),
            (Room::default(), token, "unknown_epoch"),
            (told(epoch - 1, expires), token, "unknown_epoch"),
            (told(epoch, NOW as u32), token, "expired"),
            (told(epoch, expires), wrong, "bad_tag"),
            (revoked, token, "revoked"),
            (used, token, "replayed"),
        ] {
            assert_eq!(outcome(&room, &in_shim(token)), expected);
        }
        let off = VerifierConfig { suites: 12, ..CONFIG };
        assert_eq!(frame(&told(epoch, expires), &off, &in_shim(token), NOW).outcome, "unknown_suite");
    }

    #[test]
    fn a_valid_token_passes_and_every_check_is_told() {
        let verdict = frame(&Room::default(), &CONFIG, &with_token(|_, _| {}), NOW);
        assert!(verdict.passes, "{verdict:?}");
        let names: Vec<_> = verdict.checks.iter().map(|check| check.name.as_str()).collect();
        assert_eq!(
            names,
            [
                "packet",
                "destination",
                "form",
                "suite",
                "epoch",
                "expiry",
                "lifetime",
                "clock",
                "tag",
                "revoked",
                "replay",
                "flow limit"
            ]
        );
    }

    #[test]
    fn the_first_failure_names_the_reason() {
        let room = Room::default();
        assert_eq!(outcome(&room, &with_token(|header, _| header.epoch = 1)), "unknown_epoch");
        assert_eq!(outcome(&room, &with_token(|header, _| header.expires = NOW as u32)), "expired");
        assert_eq!(outcome(&room, &with_token(|header, _| header.expires += 3600)), "lifetime_too_long");
        assert_eq!(outcome(&room, &with_token(|_, time| *time -= 31)), "clock_skew");
        assert_eq!(outcome(&room, &with_token(|header, _| header.flags = header.flags.with(Flags::IPV6))), "malformed");
        let mut forged = with_token(|_, _| {});
        *forged.last_mut().expect("a tag") ^= 1;
        assert_eq!(outcome(&room, &forged), "bad_tag");
        let revoked = Room { revoked: vec![5], ..Room::default() };
        assert_eq!(outcome(&revoked, &with_token(|_, _| {})), "revoked");
        let first = FlowKey::new(at("203.0.113.9:1").ip(), 1, at("192.0.2.10:22").ip(), 22, TCP);
        let full =
            Room { used: Some(GrantUse { flows: 4, expires: 0, tokens: 0, window: 0, first }), ..Room::default() };
        assert_eq!(outcome(&full, &with_token(|_, _| {})), "flow_limit");
        assert_eq!(outcome(&room, &syn(tcp_flags::SYN, &[])), "no_token");
        assert_eq!(outcome(&room, &with_token(|_, _| {})), "token");
        let key = FlowKey::new(at("203.0.113.5:1").ip(), 4711, at("192.0.2.10:22").ip(), 22, TCP);
        let flow = Flow { handle: 5, seen: NOW as u32, ..Flow::default() };
        let open = Room { flow: Some((key, flow)), ..Room::default() };
        assert_eq!(outcome(&open, &syn(tcp_flags::ACK, &[])), "flow");
        assert_eq!(outcome(&open, &syn(tcp_flags::SYN, &[])), "no_token");
        assert_eq!(outcome(&open, &syn(tcp_flags::ACK, &[])[..40]), "malformed");
        let mut elsewhere = syn(tcp_flags::SYN, &[]);
        elsewhere[37] = 23;
        assert_eq!(outcome(&room, &elsewhere), "not_ours");
        assert_eq!(outcome(&room, &syn(tcp_flags::ACK, &[])), "no_flow");
        assert_eq!(outcome(&room, &syn(tcp_flags::ACK, &[])[..40]), "malformed");
    }

    #[test]
    fn flows_pass_while_they_are_live() {
        let (from, to) = (at("203.0.113.5:4711"), at("192.0.2.10:22"));
        let key = FlowKey::new(from.ip(), from.port(), to.ip(), to.port(), TCP);
        let mut live = Flow { handle: 5, seen: NOW as u32 - 600, ..Flow::default() };
        let passes =
            |live| flow(&Room { flow: Some((key, live)), ..Room::default() }, &CONFIG, from, to, TCP, NOW).passes;
        assert!(passes(live));
        live.seen -= 1;
        assert!(!passes(live));
        let outcome = |to, protocol| flow(&Room::default(), &CONFIG, from, at(to), protocol, NOW).outcome;
        assert_eq!(outcome("192.0.2.10:22", TCP), "no_token");
        assert_eq!(outcome("192.0.2.10:23", TCP), "not_ours");
        assert_eq!(outcome("198.51.100.1:22", TCP), "not_ours");
    }
}
