//! What a verifier does with a packet (wire.md §6), as a function of the packet, its tables and the time.
//!
//! The kernel program (`bpf/verifier.bpf.c`) decides the same; the case table and the differential fuzzer of `datapath`
//! hold the two together. Here it is readable, explains, and needs no root.

use crate::protected::Protected;
use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use wire::map::{
    Flow, FlowKey, GrantUse, LsGrant, Services, TOKEN_WINDOW, TOKENS_PER_FLOW, VerifierConfig, counter, stage,
};
use wire::packet::{Form, Fragment, ICMP, ICMPV6, Packet, TCP, UDP, tcp_flags};
use wire::shim::{self, Content};
use wire::tail::{self, BLOCK_LEN};
use wire::token::TOKEN_LEN;
use wire::{
    Carrier, ClientKey, Destination, DropReason, Epoch, Flags, Handle, LsToken, ServerSecret, Token, VerifierKey, ls,
};

/// The most a sender's clock may differ, seconds (wire.md §6.4).
pub const CLOCK_SKEW_MAX: u32 = 30;
/// How long the first fragment of an admitted flow lets others follow, seconds.
pub const FRAGMENT_LIFE: u32 = 30;
const ETHERNET_LEN: usize = 14;

/// Until when the keys in the slots admit, Unix seconds: the end of the last epoch without a gap from the current one
/// on. `None` if there is none for the current one.
pub fn keys_until(slots: impl Iterator<Item = u64>, now: u64, epoch_length: u32) -> Option<u64> {
    let mut epochs: Vec<u64> = slots.filter(|epoch| *epoch != 0).collect();
    epochs.sort_unstable();
    let mut next = Epoch::at(now, epoch_length).0;
    let first = next;
    for epoch in epochs {
        if epoch == next {
            next += 1;
        }
    }
    (next > first).then(|| next * u64::from(epoch_length))
}

/// What becomes of a packet (wire.md §6.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Its destination is not protected: it passes untouched.
    NotOurs,
    /// It belongs to an admitted flow: it passes.
    Flow,
    /// Its token admits it: it passes without the token.
    Token,
    /// It held a token alone: its flow is admitted, and the packet has done its work.
    Consumed,
    /// It is an ICMP error that quotes an admitted flow: it passes.
    IcmpError,
    /// It is dropped.
    Drop(DropReason),
}

impl Outcome {
    /// The kernel program's counter for this outcome.
    pub const fn counter(self) -> u32 {
        match self {
            Self::NotOurs => counter::NOT_OURS,
            Self::Flow => counter::FLOW,
            Self::Token => counter::TOKEN,
            Self::Consumed => counter::CONSUMED,
            Self::IcmpError => counter::ICMP_ERROR,
            Self::Drop(reason) => reason as u32,
        }
    }

    /// Whether the host's stack gets the packet; `observing` lets pass what would be dropped.
    pub const fn passes(self, observing: bool) -> bool {
        match self {
            Self::Consumed => false,
            Self::Drop(_) => observing,
            _ => true,
        }
    }
}

/// A verifier's tables.
#[derive(Clone, Default)]
pub struct Verifier {
    /// Its settings.
    pub config: VerifierConfig,
    /// What it protects.
    pub protected: Vec<Protected>,
    /// Its keys, by their epoch.
    pub keys: BTreeMap<Epoch, VerifierKey>,
    /// Revoked grants, and when they would have ended.
    pub revoked: BTreeMap<Handle, u32>,
    /// Admitted flows.
    pub flows: BTreeMap<FlowKey, Flow>,
    /// Grants in use.
    pub grants: BTreeMap<Handle, GrantUse>,
    /// Tokens seen.
    pub tokens: BTreeSet<[u8; TOKEN_LEN]>,
    /// Pairs of the scheme of LS that the authority told of, and which of their nonces were used.
    pub ls_grants: BTreeMap<Handle, LsGrant>,
    /// First fragments of admitted flows, and when they came.
    pub fragments: BTreeMap<(FlowKey, u32), u32>,
    /// Whether it stands at tc, where the kernel has taken the outer VLAN tag off and takes no shim off behind another.
    pub at_tc: bool,
}

/// What a token proves, and what tells it from others of its grant.
struct Claim {
    handle: Handle,
    expires: u32,
    single: bool,
    once: Once,
}

enum Once {
    Token([u8; TOKEN_LEN]),
    Nonce2(u16),
}

impl From<&Token> for Claim {
    fn from(token: &Token) -> Self {
        let header = &token.header;
        let single = header.flags.has(Flags::SINGLE);
        Self { handle: header.handle, expires: header.expires, single, once: Once::Token(token.encode()) }
    }
}

impl Verifier {
    /// Judges an Ethernet frame at `now` (Unix seconds). A frame that is admitted by a token loses it.
    pub fn judge(&mut self, frame: &mut Vec<u8>, now: u32) -> Outcome {
        match self.packet(frame, now) {
            Ok(outcome) => outcome,
            Err(reason) => Outcome::Drop(reason),
        }
    }

    /// What of `address` is protected: the longest prefix decides.
    pub fn services(&self, address: IpAddr) -> Option<&Services> {
        let around = self.protected.iter().filter(|entry| entry.prefix.contains(&IpNet::from(address)));
        around.max_by_key(|entry| entry.prefix.prefix_len()).map(|entry| &entry.services)
    }

    /// The admitted flow that `key` names, unless it has been idle for too long.
    pub fn live_flow(&mut self, key: &FlowKey, now: u32) -> Option<&mut Flow> {
        let config = &self.config;
        self.flows.get_mut(key).filter(|flow| is_live(config, key, flow, now))
    }

    /// Forgets what is over: idle and revoked flows, ended grants and revocations.
    pub fn sweep(&mut self, now: u32) {
        let Self { config, flows, grants, revoked, ls_grants, .. } = self;
        flows.retain(|key, flow| {
            let keep =
                is_live(config, key, flow, now) && !(flow.handle != 0 && revoked.contains_key(&Handle(flow.handle)));
            if !keep && flow.by_grant() {
                release(grants, flow.handle);
            }
            keep
        });
        grants.retain(|_, used| used.expires.wrapping_add(CLOCK_SKEW_MAX) >= now || used.flows != 0);
        revoked.retain(|_, expires| expires.wrapping_add(CLOCK_SKEW_MAX) >= now);
        ls_grants.retain(|_, pair| pair.expires.wrapping_add(CLOCK_SKEW_MAX) >= now);
    }

    fn packet(&mut self, frame: &mut Vec<u8>, now: u32) -> Result<Outcome, DropReason> {
        let packet = Packet::parse(frame);
        if packet.form == Form::NotIp {
            return Ok(Outcome::NotOurs);
        }
        let destination = packet.destination.ok_or(DropReason::Malformed)?;
        let routed =
            packet.route.unknown || packet.route.addresses().iter().any(|address| self.services(*address).is_some());
        if routed {
            return Err(DropReason::Malformed);
        }
        let Some(services) = self.services(destination).copied() else { return Ok(Outcome::NotOurs) };
        if packet.form == Form::Broken {
            return Err(DropReason::Malformed);
        }
        if packet.fragment != Fragment::Whole {
            return self.fragment(&packet, &services, now);
        }
        if self.config.takes(Carrier::Shim)
            && let Some(opened) = shim::open(frame, &packet)
        {
            let (opened, content) = opened?;
            return self.shim(frame, &opened, content, &services, now);
        }
        if packet.icmp_error() {
            return self.icmp_error(frame, &packet, &services, now);
        }
        if packet.neighbour_discovery() || !services.covers(packet.protocol, packet.destination_port) {
            return Ok(Outcome::NotOurs);
        }
        let key = FlowKey::to_server(&packet).ok_or(DropReason::Malformed)?;
        let mut admitted = false;
        if !packet.opens()
            && let Some(flow) = self.live_flow(&key, now)
        {
            refresh(flow, &packet, now);
            if packet.protocol == TCP {
                return Ok(Outcome::Flow);
            }
            admitted = true;
        }
        if packet.protocol != UDP && !packet.opens() {
            if packet.protocol == TCP {
                return Err(DropReason::NoFlow);
            }
            return if self.answers_echo(frame, &packet, key, now) {
                Ok(Outcome::Flow)
            } else {
                Err(DropReason::NoToken)
            };
        }
        let found = if self.config.takes(Carrier::Tail) { tail::find(frame, &packet).copied() } else { None };
        let Some(token) = found else {
            return if admitted { Ok(Outcome::Flow) } else { Err(DropReason::NoToken) };
        };
        match self.token(&token, &packet, now) {
            // On an admitted flow, what doesn't have a token's form is payload that happens to look like one.
            Err(DropReason::Malformed | DropReason::UnknownSuite) if admitted => return Ok(Outcome::Flow),
            Err(reason) => return Err(reason),
            Ok(token) => self.admit(&Claim::from(&token), key, &packet, now)?,
        }
        if packet.protocol == UDP && packet.payload + BLOCK_LEN == packet.end {
            return Ok(Outcome::Consumed);
        }
        let length = tail::strip(frame, &packet).ok_or(DropReason::Malformed)?;
        frame.truncate(length);
        Ok(Outcome::Token)
    }

    /// Whether this answers an echo request that the inside of a gateway sent: its identifier stands for a port (§6.9.1).
    fn answers_echo(&mut self, frame: &[u8], packet: &Packet, mut key: FlowKey, now: u32) -> bool {
        if self.config.max_outbound == 0 || !packet.icmp_echo_reply() {
            return false;
        }
        let Some(id) = frame.get(packet.transport + 4..).and_then(<[u8]>::first_chunk) else { return false };
        key.server_port = *id;
        let Some(flow) = self.live_flow(&key, now) else { return false };
        count(flow, packet, now);
        true
    }

    /// A packet with a shim, as it was without (wire.md §4.3).
    fn shim(
        &mut self,
        frame: &mut Vec<u8>,
        packet: &Packet,
        content: Content,
        services: &Services,
        now: u32,
    ) -> Result<Outcome, DropReason> {
        if !services.covers(packet.protocol, packet.destination_port) {
            return Ok(Outcome::NotOurs);
        }
        if self.at_tc && packet.network != ETHERNET_LEN {
            return Err(DropReason::Malformed);
        }
        if packet.protocol != UDP && !packet.opens() {
            return Err(if packet.protocol == TCP { DropReason::NoFlow } else { DropReason::NoToken });
        }
        let key = FlowKey::to_server(packet).ok_or(DropReason::Malformed)?;
        if packet.protocol == UDP
            && let Some(flow) = self.live_flow(&key, now)
        {
            refresh(flow, packet, now);
        }
        let claim = match content {
            Content::Token(bytes) => Claim::from(&self.token(&bytes, packet, now)?),
            Content::Ls(bytes) => self.ls_token(&LsToken::decode(&bytes), now)?,
            Content::Support | Content::KeyTransfer(_) => return Err(DropReason::NoToken),
        };
        self.admit(&claim, key, packet, now)?;
        if packet.protocol == UDP && packet.payload == packet.end {
            return Ok(Outcome::Consumed);
        }
        let length = shim::strip(frame, packet).ok_or(DropReason::Malformed)?;
        frame.truncate(length);
        Ok(Outcome::Token)
    }

    fn fragment(&mut self, packet: &Packet, services: &Services, now: u32) -> Result<Outcome, DropReason> {
        let mut key = FlowKey::to_server(packet).ok_or(DropReason::Malformed)?;
        // An ICMP error in pieces could quote anything.
        if packet.protocol == if packet.ipv6() { ICMPV6 } else { ICMP } {
            return Err(DropReason::Fragment);
        }
        let first = match packet.fragment {
            Fragment::First(id) => Some(id),
            _ => None,
        };
        if let Some(id) = first {
            if !services.covers(packet.protocol, packet.destination_port) {
                return Ok(Outcome::NotOurs);
            }
            // A SYN in pieces would need no token; TCP finds the path's MTU and needs no fragments.
            if packet.protocol == TCP {
                return Err(DropReason::Fragment);
            }
            refresh(self.live_flow(&key, now).ok_or(DropReason::Fragment)?, packet, now);
            (key.client_port, key.server_port) = ([0; 2], [0; 2]);
            self.fragments.insert((key, id), now);
            return Ok(Outcome::Flow);
        }
        if !services.covers_some(packet.protocol) {
            return Ok(Outcome::NotOurs);
        }
        let Fragment::Later(id) = packet.fragment else { return Err(DropReason::Fragment) };
        match self.fragments.get(&(key, id)) {
            Some(at) if now.wrapping_sub(*at) as i32 <= FRAGMENT_LIFE as i32 => Ok(Outcome::Flow),
            _ => Err(DropReason::Fragment),
        }
    }

    /// An ICMP error passes if what it quotes was sent back on an admitted flow (wire.md §6.5).
    fn icmp_error(
        &mut self,
        frame: &[u8],
        packet: &Packet,
        services: &Services,
        now: u32,
    ) -> Result<Outcome, DropReason> {
        let quoted = Packet::parse_quoted(frame, packet.payload, packet.end, packet.ipv6());
        if quoted.form != Form::Whole {
            return Err(DropReason::Malformed);
        }
        let source = quoted.source.ok_or(DropReason::Malformed)?;
        let ours = services.covers(packet.protocol, 0)
            || self.services(source).is_some_and(|services| services.covers(quoted.protocol, quoted.source_port));
        if !ours {
            return Ok(Outcome::NotOurs);
        }
        let key = FlowKey::to_client(&quoted).ok_or(DropReason::Malformed)?;
        self.live_flow(&key, now).map(|_| Outcome::IcmpError).ok_or(DropReason::NoFlow)
    }

    /// The checks of a token up to revocation, in the order of wire.md §6.4.
    pub fn token(&self, bytes: &[u8; TOKEN_LEN], packet: &Packet, now: u32) -> Result<Token, DropReason> {
        let token = Token::decode(bytes, packet.ipv6())?;
        let header = &token.header;
        if !self.config.speaks(header.suite as u8) {
            return Err(DropReason::UnknownSuite);
        }
        let epoch = Epoch::at(now.into(), self.config.epoch_length.max(1)).from_wire(header.epoch);
        let key = epoch.and_then(|epoch| self.keys.get(&epoch)).ok_or(DropReason::UnknownEpoch)?;
        if header.expires <= now {
            return Err(DropReason::Expired);
        }
        if header.expires - now > self.config.max_lifetime {
            return Err(DropReason::LifetimeTooLong);
        }
        if token.time.abs_diff(now) > CLOCK_SKEW_MAX {
            return Err(DropReason::ClockSkew);
        }
        let (Some(source), Some(address)) = (packet.source, packet.destination) else {
            return Err(DropReason::Malformed);
        };
        let to = Destination { address, protocol: packet.protocol, port: packet.destination_port };
        if !token.proves(&header.key(key, &to, source), &to) {
            return Err(DropReason::BadTag);
        }
        if self.revoked.contains_key(&header.handle) {
            return Err(DropReason::Revoked);
        }
        Ok(token)
    }

    /// The checks of a token of the scheme of LS up to revocation, in the order of wire.md §6.4.1.
    fn ls_token(&self, token: &LsToken, now: u32) -> Result<Claim, DropReason> {
        if !self.config.speaks(ls::SUITE) {
            return Err(DropReason::UnknownSuite);
        }
        let handle = token.pair.handle();
        let pair = self.ls_grants.get(&handle).ok_or(DropReason::UnknownEpoch)?;
        let key = self.keys.get(&Epoch(pair.epoch)).and_then(ServerSecret::of).ok_or(DropReason::UnknownEpoch)?;
        if pair.expires <= now {
            return Err(DropReason::Expired);
        }
        if !token.proves(&ClientKey::of(token.pair, key.bytes())) {
            return Err(DropReason::BadTag);
        }
        if self.revoked.contains_key(&handle) {
            return Err(DropReason::Revoked);
        }
        Ok(Claim { handle, expires: pair.expires, single: false, once: Once::Nonce2(token.nonce2) })
    }

    /// Remembers a token and its flow: replay, then flow limit.
    fn admit(&mut self, claim: &Claim, key: FlowKey, packet: &Packet, now: u32) -> Result<(), DropReason> {
        let handle = claim.handle;
        let fresh = GrantUse { flows: 0, expires: claim.expires, tokens: 0, window: 0, first: key };
        let used = self.grants.entry(handle).or_insert(fresh);
        if used.window != now / TOKEN_WINDOW {
            (used.window, used.tokens) = (now / TOKEN_WINDOW, 0);
        }
        used.tokens += 1;
        if (used.tokens - 1) / TOKENS_PER_FLOW >= self.config.flows_per_grant {
            return Err(DropReason::FlowLimit);
        }
        let new = match claim.once {
            Once::Token(bytes) => self.tokens.insert(bytes),
            Once::Nonce2(nonce2) => self.ls_grants.get_mut(&handle).is_some_and(|pair| pair.take(nonce2)),
        };
        if !new {
            return Err(DropReason::Replayed);
        }
        if let Some(flow) = self.live_flow(&key, now)
            && flow.handle == handle.0
        {
            // UDP was counted when its flow was looked up.
            if packet.protocol == TCP {
                refresh(flow, packet, now);
            }
            return Ok(());
        }
        let used = self.grants.entry(handle).or_insert(fresh);
        if claim.single && used.first != key || used.flows >= self.config.flows_per_grant {
            return Err(DropReason::FlowLimit);
        }
        used.flows += 1;
        let mut flow = Flow { handle: handle.0, since: now, ..Flow::default() };
        refresh(&mut flow, packet, now);
        if let Some(before) = self.flows.insert(key, flow)
            && before.by_grant()
        {
            release(&mut self.grants, before.handle);
        }
        Ok(())
    }
}

fn is_live(config: &VerifierConfig, key: &FlowKey, flow: &Flow, now: u32) -> bool {
    let limit = match (key.protocol, flow.stage) {
        (TCP, stage::OPEN) => config.tcp_idle,
        (TCP, _) => config.closing_idle,
        _ => config.udp_idle,
    };
    // Signed: the clock may have been set back since.
    now.wrapping_sub(flow.seen) as i32 <= limit as i32
}

fn count(flow: &mut Flow, packet: &Packet, now: u32) {
    flow.seen = now;
    flow.packets += 1;
    flow.bytes += (packet.end - packet.network) as u64;
}

fn refresh(flow: &mut Flow, packet: &Packet, now: u32) {
    count(flow, packet, now);
    if packet.protocol == TCP {
        flow.stage = next_stage(flow.stage, packet);
    }
}

/// Where a connection stands after a segment. A FIN counts until payload follows: the client's last ACK does not open the
/// flow again, and a forged FIN does not end one that goes on.
fn next_stage(before: u8, packet: &Packet) -> u8 {
    let flag = |flag| packet.tcp_flags & flag != 0;
    if packet.opens() {
        stage::OPENING
    } else if flag(tcp_flags::FIN) || before == stage::CLOSING && packet.payload == packet.end {
        stage::CLOSING
    } else if flag(tcp_flags::RST) {
        stage::RESET
    } else {
        stage::OPEN
    }
}

fn release(grants: &mut BTreeMap<Handle, GrantUse>, handle: u64) {
    if let Some(used) = grants.get_mut(&Handle(handle)) {
        used.flows = used.flows.saturating_sub(1);
    }
}
