//! A verifier, and all events that can happen to it.

use crate::world::{self, NOW};
use engine::verifier::{Outcome, Verifier};
use std::collections::{BTreeMap, BTreeSet};
use wire::map::{Flow, FlowKey, GrantUse};
use wire::packet::{Form, Packet, TCP, UDP};
use wire::shim::{self, Content, SHIM_LEN};
use wire::tail::{self, BLOCK_LEN};
use wire::token::TOKEN_LEN;
use wire::{Destination, DropReason, Epoch, Handle, Holder, LsToken, Token, ls};

/// A sequence of operations on a verifier, encoded in bytes. Most operations are frames.
struct Script<'a>(&'a [u8]);

impl<'a> Script<'a> {
    fn byte(&mut self) -> Option<u8> {
        let (byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*byte)
    }

    /// Reads the next frame, which follows its length of two bytes. The last frame may be shorter than its length.
    fn frame(&mut self) -> Option<&'a [u8]> {
        let (length, rest) = self.0.split_first_chunk()?;
        let length = usize::from(u16::from_be_bytes(*length)).min(rest.len());
        let (frame, rest) = rest.split_at(length);
        self.0 = rest;
        Some(frame)
    }
}

/// An event that can happen between two frames. A byte of the input selects it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Between {
    /// The clock advances by some seconds.
    Forward,
    /// The clock leaps ahead by minutes, up to hours.
    Leap,
    /// The clock is set back by some seconds.
    Back,
    /// The clock is set back by minutes, up to hours.
    FarBack,
    /// An epoch ends.
    EpochEnds,
    /// The daemon restarts and writes its in-memory state again.
    Restart,
    /// The verifier sweeps its tables.
    Sweep,
    /// A grant is revoked.
    Revoke,
    /// A session ends.
    EndSession,
    /// A connection that was established before protection started is adopted.
    Adopt,
    /// The handle in a frame's token is replaced by that of another grant.
    OtherGrant,
    /// A frame's packet comes out of a sealed tunnel.
    Inside,
}

/// A verifier, the events so far, and the state that the checks need.
struct World {
    verifier: Verifier,
    now: u32,
    /// Tokens that have admitted a packet.
    used: BTreeSet<Vec<u8>>,
    /// Revoked grants, each with the latest expiry of the tokens that the revocation covers.
    revoked: BTreeMap<Handle, u32>,
    ended: BTreeMap<Holder, u32>,
    outcomes: Vec<Outcome>,
    happened: BTreeMap<Between, u32>,
}

/// Plays frames and events in the order of the input. Checks that no frame makes the verifier panic, and that a frame
/// that passes is unchanged, or lacks only the bytes that its carrier added. Also checks that only a packet with a
/// right tag adds a flow to the tables (wire.md §6.6), that no token admits two packets, whatever the clock does, and
/// that a revoked grant admits none.
pub fn verifier(input: &[u8]) {
    play(input);
}

/// Returns the outcome of each frame that [`verifier`] plays for this input.
pub fn outcomes(input: &[u8]) -> Vec<Outcome> {
    play(input).outcomes
}

/// Returns the events that [`verifier`] plays for this input, each with how often it happens.
pub fn happened(input: &[u8]) -> BTreeMap<Between, u32> {
    play(input).happened
}

fn play(input: &[u8]) -> World {
    let mut script = Script(input);
    let mut world = World {
        verifier: world::verifier(),
        now: NOW,
        used: BTreeSet::new(),
        revoked: BTreeMap::new(),
        ended: BTreeMap::new(),
        outcomes: Vec::new(),
        happened: BTreeMap::new(),
    };
    while let Some(operation) = script.byte() {
        match operation % 8 {
            kind @ 0..=2 => {
                let between = World::between(kind, operation >> 3);
                let amount = if kind == 0 { script.byte().unwrap_or(1) } else { 0 };
                world.perform(between, amount.into());
            }
            3 if operation >> 3 == 1 => {
                let Some(frame) = script.frame() else { break };
                let mut frame = frame.to_vec();
                mend(&mut frame, 7, world.now);
                world.verify_inside(&frame);
                world.note(Between::Inside);
            }
            3 => {
                let Some(frame) = script.frame() else { break };
                if let Some(key) = FlowKey::to_server(&Packet::parse(frame)) {
                    let adopted = Flow { origin: 1, since: world.now, seen: world.now, ..Flow::default() };
                    world.verifier.flows.entry(key).or_insert(adopted);
                    world.note(Between::Adopt);
                }
            }
            mending => {
                let Some(frame) = script.frame() else { break };
                let mut frame = frame.to_vec();
                let other = operation >> 3;
                if mending == 7 && other != 0 && swap_grant(&mut frame, other) {
                    world.note(Between::OtherGrant);
                }
                if mending > 4 {
                    mend(&mut frame, mending, world.now);
                }
                world.verify(&frame);
            }
        }
    }
    check_counts(&world.verifier);
    world
}

impl World {
    fn between(kind: u8, choice: u8) -> Between {
        match (kind, choice % 8) {
            (0, 1) => Between::Leap,
            (0, 2) => Between::Back,
            (0, 3) => Between::FarBack,
            (0, _) => Between::Forward,
            (1, 1) => Between::EpochEnds,
            (1, 2) => Between::Restart,
            (1, _) => Between::Sweep,
            (_, 1) => Between::EndSession,
            _ => Between::Revoke,
        }
    }

    fn note(&mut self, between: Between) {
        *self.happened.entry(between).or_default() += 1;
    }

    fn perform(&mut self, between: Between, amount: u32) {
        match between {
            Between::Forward => self.jump(self.now.saturating_add(amount)),
            Between::Leap => self.jump(self.now.saturating_add(60 * amount)),
            Between::Back => self.jump(self.now - amount),
            Between::FarBack => self.jump(self.now - 60 * amount),
            Between::EpochEnds => self.jump((self.now / world::EPOCH_LENGTH + 1) * world::EPOCH_LENGTH),
            Between::Restart => self.restart(),
            Between::Sweep => self.sweep(),
            Between::Revoke => {
                let (handle, expires) = self.victim().map_or((Handle(0), 0), |(handle, expires)| (handle, expires));
                let until = expires.max(self.now.saturating_add(300));
                self.verifier.revoked.insert(handle, until);
                self.revoked.insert(handle, until);
                self.sweep();
                assert!(self.verifier.flows.values().all(|flow| flow.handle != handle.0 || handle.0 == 0));
            }
            Between::EndSession => {
                let holders = self.verifier.flows.values().map(|flow| Holder(flow.holder));
                let Some(holder) = holders.into_iter().find(|holder| holder.0 != 0) else { return };
                let until = self.now.saturating_add(3600);
                self.verifier.revoked_holders.insert(holder, until);
                self.ended.insert(holder, until);
                self.sweep();
                assert!(self.verifier.flows.values().all(|flow| flow.holder != holder.0));
            }
            Between::Adopt | Between::OtherGrant | Between::Inside => return,
        }
        self.note(between);
    }

    fn victim(&self) -> Option<(Handle, u32)> {
        self.verifier.grants.iter().next().map(|(handle, used)| (*handle, used.expires))
    }

    fn sweep(&mut self) {
        self.verifier.sweep(self.now);
        check_counts(&self.verifier);
    }

    /// Sets the clock, and gives the verifier the keys of the surrounding epochs, as the daemon would.
    fn jump(&mut self, to: u32) {
        let to = to.clamp(NOW - 86_400, NOW + 86_400);
        self.verifier.forgotten.jump(self.now, to);
        self.now = to;
        let current = Epoch::at(to.into(), world::EPOCH_LENGTH).0;
        let held = current - 2..=current + 2;
        if !self.verifier.keys.keys().map(|epoch| epoch.0).eq(held.clone()) {
            self.verifier.keys = held.map(|number| (Epoch(number), world::verifier_key(Epoch(number)))).collect();
        }
    }

    /// Restarts the daemon. The tables stay, because they are the kernel's. The daemon writes the authority's state
    /// again: a pair that is in the table already keeps its used nonces.
    fn restart(&mut self) {
        let fresh = world::verifier();
        for (handle, pair) in fresh.ls_grants.into_iter().filter(|(_, pair)| pair.expires > self.now) {
            self.verifier.ls_grants.entry(handle).or_insert(pair);
        }
        for (handle, until) in self.revoked.iter().filter(|(_, until)| **until > self.now) {
            self.verifier.revoked.insert(*handle, *until);
        }
        for (holder, until) in self.ended.iter().filter(|(_, until)| **until > self.now) {
            self.verifier.revoked_holders.insert(*holder, *until);
        }
    }

    fn verify(&mut self, frame: &[u8]) {
        let inside = side(&self.verifier, true);
        let outcome = verify(&mut self.verifier, frame, self.now);
        assert_eq!(side(&self.verifier, true), inside, "no packet outside touches a flow inside");
        self.outcomes.push(outcome);
        self.admitted(frame, outcome);
    }

    /// Verifies the packet of an Ethernet frame as if it came out of a sealed tunnel. Checks that it passes only if a
    /// token admitted it or its flow, and that it changes no flow outside of tunnels.
    fn verify_inside(&mut self, frame: &[u8]) {
        let Some((link, packet)) = frame.split_at_checked(14) else { return };
        let outside = side(&self.verifier, false);
        let before = side(&self.verifier, true).len();
        let mut after = packet.to_vec();
        self.verifier.in_tunnel = true;
        let outcome = self.verifier.verify(&mut after, self.now);
        self.verifier.in_tunnel = false;
        self.outcomes.push(outcome);
        assert_ne!(outcome, Outcome::NotOurs);
        assert_eq!(side(&self.verifier, false), outside, "no packet inside touches a flow outside");
        let new = side(&self.verifier, true).len() > before;
        assert!(!new || matches!(outcome, Outcome::Token | Outcome::Consumed));
        // In a tunnel, the kernel determines the family by the IP version, whatever the link header says.
        let kind = if packet.first().is_some_and(|first| first >> 4 == 6) { [0x86, 0xdd] } else { [0x08, 0x00] };
        self.admitted(&[&link[..12], &kind, packet].concat(), outcome);
    }

    fn admitted(&mut self, frame: &[u8], outcome: Outcome) {
        if !matches!(outcome, Outcome::Token | Outcome::Consumed) {
            return;
        }
        let Some((token, handle, expires, holder)) = self.claim(frame) else { panic!("admitted without a token") };
        assert!(self.used.insert(token), "a token admits once");
        let revoked =
            self.revoked.get(&handle).copied().max(self.ended.get(&holder).copied().filter(|_| holder.0 != 0));
        assert!(revoked.is_none_or(|until| until < expires), "{handle} was revoked");
    }

    /// Returns the part of a frame's token that makes it unique, and its grant, with the grant's expiry and holder.
    fn claim(&self, frame: &[u8]) -> Option<(Vec<u8>, Handle, u32, Holder)> {
        let (place, packet) = carried(frame, &Packet::parse(frame))?;
        let bytes: [u8; TOKEN_LEN] = match place {
            Carried::Tail(at) => *frame.get(at..)?.first_chunk()?,
            Carried::Shim(Content::Token(bytes)) => bytes,
            Carried::Shim(Content::Ls(bytes)) => {
                let token = LsToken::decode(&bytes);
                let handle = token.pair.handle();
                let pair = self.verifier.ls_grants.get(&handle)?;
                let once = [&handle.0.to_be_bytes()[..], &token.nonce2.to_be_bytes()].concat();
                return Some((once, handle, pair.expires, Holder(pair.holder)));
            }
            Carried::Shim(_) => return None,
        };
        let header = Token::decode(&bytes, packet.ipv6()).ok()?.header;
        let epoch = Epoch::at(self.now.into(), world::EPOCH_LENGTH).from_wire(header.epoch)?;
        let holder = Holder::of(header.handle, self.verifier.keys.get(&epoch)?);
        Some((bytes.to_vec(), header.handle, header.expires, holder))
    }
}

/// Returns the flows inside sealed tunnels if `tunnel` is set, and otherwise those outside.
fn side(verifier: &Verifier, tunnel: bool) -> BTreeMap<FlowKey, Flow> {
    let flows = verifier.flows.iter().filter(|(key, _)| (key.tunnel == 1) == tunnel);
    flows.map(|(key, flow)| (*key, *flow)).collect()
}

/// Changes a frame's token to have another grant's handle. The caller has to correct the tag.
fn swap_grant(frame: &mut [u8], other: u8) -> bool {
    let Some((Carried::Tail(at), _)) = carried(frame, &Packet::parse(frame)) else { return false };
    let Some(first) = frame.get_mut(at + 8) else { return false };
    *first ^= other;
    true
}

/// Where a frame's token is. Found together with the packet that the token is about, which in a shim is the inner one.
enum Carried {
    Tail(usize),
    Shim(Content),
}

fn carried(frame: &[u8], packet: &Packet) -> Option<(Carried, Packet)> {
    match shim::open(frame, packet) {
        Some(opened) => opened.ok().map(|(opened, content)| (Carried::Shim(content), opened)),
        None => tail::find(frame, packet).map(|_| (Carried::Tail(packet.end - TOKEN_LEN), *packet)),
    }
}

/// Gives a frame's token the right tag, so that mutated input passes the check of the MAC. Unless `mending` is 5, first
/// gives it the current time and a later expiry. Leaves the frame's checksum wrong, because the verifier does not check
/// it.
fn mend(frame: &mut [u8], mending: u8, now: u32) {
    let Some((place, packet)) = carried(frame, &Packet::parse(frame)) else { return };
    let at = match place {
        Carried::Tail(at) => at,
        Carried::Shim(content) => {
            // The option's data are the last 37 bytes before the transport.
            let at = packet.transport - ls::TOKEN_LEN;
            if let Content::Ls(bytes) = content {
                let nonce2 = LsToken::decode(&bytes).nonce2;
                let token = LsToken::new(world::PAIR, nonce2, &world::client_key(world::PAIR)).encode();
                frame[at..at + ls::TOKEN_LEN].copy_from_slice(&token);
            }
            if !matches!(content, Content::Token(_)) {
                return;
            }
            at
        }
    };
    let Some(mut bytes) = frame.get(at..).and_then(|bytes| bytes.first_chunk::<TOKEN_LEN>().copied()) else { return };
    if mending > 5 {
        bytes[2] = Epoch::at(now.into(), world::EPOCH_LENGTH).on_wire();
        bytes[4..8].copy_from_slice(&(now + 300).to_be_bytes());
        bytes[16..20].copy_from_slice(&now.to_be_bytes());
    }
    let (Ok(token), Some(address), Some(source)) =
        (Token::decode(&bytes, packet.ipv6()), packet.destination, packet.source)
    else {
        return;
    };
    let Some(epoch) = Epoch::at(now.into(), world::EPOCH_LENGTH).from_wire(token.header.epoch) else { return };
    let to = Destination { address, protocol: packet.protocol, port: packet.destination_port };
    let key = token.header.key(&world::verifier_key(epoch), &to, source);
    let token = Token::new(token.header, &key, token.time, token.nonce, &to).encode();
    frame[at..at + TOKEN_LEN].copy_from_slice(&token);
}

fn verify(verifier: &mut Verifier, frame: &[u8], now: u32) -> Outcome {
    let before = verifier.clone();
    let packet = Packet::parse(frame);
    let mut after = frame.to_vec();
    let outcome = verifier.verify(&mut after, now);
    assert!(verifier.flows.len() <= before.flows.len() + 1 && spent(verifier) <= spent(&before) + 1);
    let (length, about) = match carried(frame, &packet) {
        Some((Carried::Shim(_), opened)) => (SHIM_LEN, opened),
        _ => (BLOCK_LEN, packet),
    };
    match outcome {
        Outcome::Token => {
            assert_eq!(after.len() + length, packet.end);
            let shorter = Packet::parse(&after);
            assert_eq!((shorter.form, shorter.end, shorter.protocol), (Form::Whole, after.len(), about.protocol));
            let end = if length == SHIM_LEN { about.end } else { packet.end - BLOCK_LEN };
            assert_eq!(after[shorter.payload..], frame[about.payload..end]);
        }
        _ => assert_eq!(after, frame, "{outcome:?} leaves the frame alone"),
    }
    let admitted_before = FlowKey::to_server(&about).is_some_and(|key| before.flows.contains_key(&key));
    let is_right = tag_is_right(&before, frame, &packet, now);
    let passes = matches!(outcome, Outcome::Token | Outcome::Consumed | Outcome::Flow);
    assert!(!(passes && packet.protocol == TCP && packet.atomic), "TCP with a fragment header");
    match outcome {
        Outcome::Token | Outcome::Consumed => {
            assert!(is_right, "{outcome:?}");
            assert!(spent(verifier) == spent(&before) + 1);
            if outcome == Outcome::Consumed {
                let rest = if length == SHIM_LEN { 0 } else { BLOCK_LEN };
                assert!(about.protocol == UDP && about.payload + rest == about.end);
            }
        }
        Outcome::Drop(DropReason::Replayed | DropReason::FlowLimit) => {
            assert!(is_right);
            assert!(verifier.flows.keys().eq(before.flows.keys()));
        }
        Outcome::Flow => assert!(admitted_before || packet.fragment != wire::packet::Fragment::Whole),
        _ => {}
    }
    if !is_right {
        assert!(verifier.flows.keys().eq(before.flows.keys()), "{outcome:?} without a right tag adds no flow");
        assert!(verifier.grants == before.grants && verifier.tokens == before.tokens);
        assert!(verifier.ls_grants == before.ls_grants);
        if !admitted_before {
            assert!(verifier.flows == before.flows && verifier.fragments == before.fragments);
        }
    }
    outcome
}

/// Returns the number of tokens that were used.
fn spent(verifier: &Verifier) -> usize {
    let nonces = verifier.ls_grants.values().flat_map(|pair| pair.used).map(|word| word.count_ones() as usize);
    verifier.tokens.len() + nonces.sum::<usize>()
}

fn tag_is_right(verifier: &Verifier, frame: &[u8], packet: &Packet, now: u32) -> bool {
    let Some((place, packet)) = carried(frame, packet) else { return false };
    let bytes = match place {
        Carried::Tail(at) => frame.get(at..).and_then(|bytes| bytes.first_chunk().copied()),
        Carried::Shim(Content::Token(bytes)) => Some(bytes),
        Carried::Shim(Content::Ls(bytes)) => {
            let token = LsToken::decode(&bytes);
            let known = verifier.ls_grants.contains_key(&token.pair.handle());
            return known && token.proves(&world::client_key(token.pair));
        }
        Carried::Shim(_) => None,
    };
    let found = bytes.and_then(|bytes| Token::decode(&bytes, packet.ipv6()).ok());
    let (Some(token), Some(address), Some(source)) = (found, packet.destination, packet.source) else { return false };
    let epoch = Epoch::at(now.into(), world::EPOCH_LENGTH).from_wire(token.header.epoch);
    let Some(key) = epoch.and_then(|epoch| verifier.keys.get(&epoch)) else { return false };
    let to = Destination { address, protocol: packet.protocol, port: packet.destination_port };
    token.proves(&token.header.key(key, &to, source), &to)
}

/// Checks that the counts of each grant and account are those of its flows and grants.
fn check_counts(verifier: &Verifier) {
    let mut flows = BTreeMap::new();
    for flow in verifier.flows.values().filter(|flow| flow.has_grant()) {
        *flows.entry(Handle(flow.handle)).or_insert(0) += 1;
    }
    for (handle, used) in &verifier.grants {
        assert_eq!(used.flows, flows.remove(handle).unwrap_or(0), "{handle}");
    }
    assert!(flows.is_empty(), "flows without their grant: {flows:?}");
    for (account, used) in &verifier.accounts {
        let is_own = |grant: &&GrantUse| grant.holder != 0 && Holder(grant.holder).account() == *account;
        assert_eq!(used.grants as usize, verifier.grants.values().filter(is_own).count(), "account {account}");
        assert!(used.grants <= verifier.config.grants_per_account, "account {account}");
    }
}
