//! Return segments that other endpoints pass on before an answer needs them (wire.md §8.15). An endpoint that requested
//! a path segment together with its return segment passes the return segment on to the receiving endpoint, in a control
//! packet under the path segment.

use super::control::send_control;
use super::{Action, Endpoint, Wanted, entry_of, given, payload_of, send};
use crate::model::Given;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use wire::answers::MESSAGE_KIND;
use wire::map::{Consent, SegmentEntry, SegmentKey, segment_state};
use wire::{Ends, Epoch, Inner, ProofKey, SegmentFlags};

/// Maximum number of segments of one tenant, and of all tenants, that were passed on and have not expired. The limits
/// are needed because senders to a tenant can make the endpoint hold such segments. If there is no room, the endpoint
/// itself requests the segment when the tenant answers, as it does if nothing was passed on. The table of segments has
/// four times as much room.
const MOST_OF_TENANT: usize = 1024;
const MOST: usize = 16_384;

/// A return segment that came in a control packet.
pub(super) struct Back {
    pub(super) key: SegmentKey,
    pub(super) given: Given,
    pub(super) entry: SegmentEntry,
    /// Expiry of the segment under which the control packet came.
    consented: u32,
}

/// The endpoint's keys as a verifier, and the segments that were passed on.
#[derive(Default)]
pub(super) struct PassedOn {
    keys: Vec<(IpAddr, Epoch, ProofKey)>,
    epoch_length: u32,
    /// For each interface, the keys of the segments with their expiry.
    held: BTreeMap<u32, HashMap<SegmentKey, u32>>,
    /// Time at which expired segments were last removed, in Unix seconds. The endpoint looks for expired segments once
    /// a second at most, because a sender could otherwise cause this with each packet.
    swept: u32,
    count: u64,
}

impl PassedOn {
    pub(super) fn forget(&mut self, interface: u32) {
        self.held.remove(&interface);
    }

    /// Makes room for a segment, and records it. Returns whether there was room.
    fn hold(&mut self, key: SegmentKey, expires: u32, now: u32) -> bool {
        let is_full = |held: &BTreeMap<u32, HashMap<SegmentKey, u32>>| {
            held.get(&key.interface).is_some_and(|own| own.len() >= MOST_OF_TENANT)
                || held.values().map(HashMap::len).sum::<usize>() >= MOST
        };
        let known = self.held.get_mut(&key.interface).and_then(|own| own.get_mut(&key));
        if let Some(known) = known {
            *known = expires.max(*known);
            return true;
        }
        if is_full(&self.held) && self.swept != now {
            self.swept = now;
            self.held.values_mut().for_each(|own| own.retain(|_, expires| *expires > now));
        }
        if is_full(&self.held) {
            return false;
        }
        self.held.entry(key.interface).or_default().insert(key, expires);
        true
    }
}

impl Endpoint {
    /// Replaces the keys that the endpoint has as a verifier of proofs, each with its authority's address and its
    /// epoch. With these keys, the endpoint checks the segments that other endpoints pass on.
    pub fn hold_keys(&mut self, keys: Vec<(IpAddr, Epoch, ProofKey)>, epoch_length: u32) {
        (self.passed_on.keys, self.passed_on.epoch_length) = (keys, epoch_length);
    }

    /// Returns the number of return segments that other endpoints passed on and that the endpoint used.
    pub const fn passed_on(&self) -> u64 {
        self.passed_on.count
    }

    /// Handles a message that passes on a return segment. The return segment answers the segment under which the
    /// control packet with the message came. `answer` is an example of the packets under the return segment, and
    /// `bytes` contains the return segment.
    pub(super) fn take(
        &mut self,
        interface: u32,
        answer: &Inner,
        bytes: &[u8],
        consent: impl Fn(&SegmentKey) -> Option<Consent>,
        known: impl Fn(&SegmentKey) -> Option<SegmentEntry>,
        now: u32,
    ) -> Option<Vec<Action>> {
        let Back { key, given: back, entry, consented } = self.read_back(interface, answer, bytes, consent, now)?;
        let is_later = |known: &SegmentEntry| known.state() == segment_state::GIVEN && known.until > entry.until;
        if known(&key).as_ref().is_some_and(is_later) || !self.passed_on.hold(key, entry.until, now) {
            return None;
        }
        self.passed_on.count += 1;
        self.paths.answers(key, consented);
        let mut actions = vec![Action::Write(key, entry)];
        if back.segment.flags.has(SegmentFlags::SINGLE) {
            actions.push(Action::Write(key.for_every_flow(), SegmentEntry::by_flow()));
        }
        // Answers may be waiting for the authority already.
        for (wanted, open) in &mut self.open {
            let is_same =
                (wanted.interface, wanted.sender, wanted.receiver) == (interface, back.ends.sender, back.ends.receiver);
            if is_same && open.sending == back.ends.sending && back.segment.serves(&wanted.inner()) {
                actions.extend(open.queued.drain(..).filter_map(|inner| send(&entry, &inner)));
            }
        }
        Some(actions)
    }

    /// Reads a return segment from a control packet. Returns `None` unless the authority issued it for answers to
    /// exactly the packets for which it issued the segment of the control packet.
    pub(super) fn read_back(
        &self,
        interface: u32,
        answer: &Inner,
        bytes: &[u8],
        consent: impl Fn(&SegmentKey) -> Option<Consent>,
        now: u32,
    ) -> Option<Back> {
        let back = |key: &SegmentKey| {
            let consent = consent(key)?;
            let shown = given(&consent, answer)?;
            let Ends { sending, receiving, sender, receiver } = shown.ends;
            let ends = Ends { sending: receiving, receiving: sending, sender: receiver, receiver: sender };
            let given = Given::from_passed_on(bytes, shown.vni, ends, |segment| {
                self.key(segment.authority, segment.epoch, now)
            })?;
            let is_its = SegmentKey::of(interface, ends.sender, ends.receiver, &given.segment) == *key;
            is_its.then_some((given, consent.expires))
        };
        let (given, consented) = SegmentKey::answering(interface, answer).iter().find_map(back)?;
        let key = SegmentKey::of(interface, given.ends.sender, given.ends.receiver, &given.segment);
        let is_own = given.vni == self.tenants.get(&interface)?.vni && self.addresses.contains(&given.ends.sending);
        if !is_own || !given.segment.flags.has(SegmentFlags::RETURN) || given.segment.expires <= now {
            return None;
        }
        let entry = entry_of(&given)?;
        (!self.is_void(&key, &entry)).then_some(Back { key, given, entry, consented })
    }

    /// Returns the endpoint's key for this authority and the epoch whose low 8 bits are `epoch`.
    fn key(&self, authority: IpAddr, epoch: u8, now: u32) -> Option<&ProofKey> {
        let epoch = Epoch::at(now.into(), self.passed_on.epoch_length).from_wire(epoch)?;
        let is_it = |(of, known, _): &&(IpAddr, Epoch, ProofKey)| (*of, *known) == (authority, epoch);
        self.passed_on.keys.iter().find(is_it).map(|(_, _, key)| key)
    }
}

/// Sends the return segment to the receiving endpoint, in a control packet under the segment `given`.
pub(super) fn pass_on(given: &Given, wanted: &Wanted, answers: &[u8]) -> Option<Action> {
    let Ends { sending, receiving, .. } = given.ends;
    let message = [&[MESSAGE_KIND, 0, 0, 0], answers].concat();
    send_control(given.encapsulation(payload_of(wanted.sender)), (sending, receiving), &given.hops, wanted, &message)
}
