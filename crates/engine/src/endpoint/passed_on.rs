//! Segments for answers that arrive before the answers (wire.md §8.15). The endpoint that requested a segment passes on
//! the segment for its answers, in a control packet under the segment that it requested.

use super::{Action, ETHERNET_LEN, Endpoint, Wanted, entry_of, given, payload, payload_of, read, send};
use crate::model::Given;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use wire::answers::MESSAGE_KIND;
use wire::checksum::{fold, sum};
use wire::geneve::{ENCAPSULATION_MAX, Encapsulation, Payload};
use wire::inner::Ports;
use wire::map::{Consent, SegmentEntry, SegmentKey, segment_state};
use wire::{Ends, Epoch, Inner, ProofKey, SegmentFlags};

/// Maximum number of segments of one tenant, and of all tenants, that were passed on and have not expired. The
/// senders to a tenant can make the endpoint hold such segments. If there is no room, the endpoint requests the segment
/// itself when the tenant answers, as it does if nothing was passed on. The table of segments has four times as much
/// room.
const MOST_OF_TENANT: usize = 1024;
const MOST: usize = 16_384;

const IPV4_LEN: usize = 20;
const IPV6_LEN: usize = 40;
/// Length of the ports in front of a message.
const PORTS_LEN: usize = 4;
const TTL: u8 = 64;
const DONT_FRAGMENT: u8 = 0x40;

/// The endpoint's keys as a verifier, and the segments that were passed on.
#[derive(Default)]
pub(super) struct PassedOn {
    keys: Vec<(IpAddr, Epoch, ProofKey)>,
    epoch_length: u32,
    /// For each interface, the keys of the segments with their expiry.
    held: BTreeMap<u32, HashMap<SegmentKey, u32>>,
    /// When expired segments were last removed. A sender can make the endpoint look for them with each packet.
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
    /// Replaces the endpoint's keys as a verifier of proofs. It uses the keys to check what other endpoints pass on.
    pub fn hold_keys(&mut self, keys: Vec<(IpAddr, Epoch, ProofKey)>, epoch_length: u32) {
        (self.passed_on.keys, self.passed_on.epoch_length) = (keys, epoch_length);
    }

    /// Returns the number of segments for answers that other endpoints passed on and that the endpoint used.
    pub const fn passed_on(&self) -> u64 {
        self.passed_on.count
    }

    /// Handles a control packet that arrived with a valid proof for the tenant behind `interface`. `frame` contains the
    /// inner packet behind an Ethernet header. `consent` looks up the received segment that allows the tenant to
    /// answer, and `entry` an entry of the table of segments.
    pub fn controlled(
        &mut self,
        interface: u32,
        frame: &[u8],
        consent: impl Fn(&SegmentKey) -> Option<Consent>,
        entry: impl Fn(&SegmentKey) -> Option<SegmentEntry>,
        now: u32,
    ) -> Vec<Action> {
        self.take(interface, frame, consent, entry, now).unwrap_or_default()
    }

    fn take(
        &mut self,
        interface: u32,
        frame: &[u8],
        consent: impl Fn(&SegmentKey) -> Option<Consent>,
        known: impl Fn(&SegmentKey) -> Option<SegmentEntry>,
        now: u32,
    ) -> Option<Vec<Action>> {
        let (answer, message) = (answer_to(&read(frame)?)?, message(frame)?);
        let [MESSAGE_KIND, 0, 0, 0, bytes @ ..] = message else { return None };
        let tenant = self.tenants.get(&interface)?;
        if !tenant.addresses.contains(&answer.sender) {
            return None;
        }
        let back = |(key, consent): (&SegmentKey, Consent)| {
            let shown = given(&consent, &answer)?;
            let Ends { sending, receiving, sender, receiver } = shown.ends;
            let ends = Ends { sending: receiving, receiving: sending, sender: receiver, receiver: sender };
            let back = Given::from_passed_on(bytes, shown.vni, ends, |segment| {
                self.key(segment.authority, segment.epoch, now)
            });
            // The segment is for answers to exactly those packets under whose segment it came.
            let is_its = |back: &Given| SegmentKey::of(interface, ends.sender, ends.receiver, &back.segment) == *key;
            back.filter(is_its)
        };
        let keys = SegmentKey::answering(interface, &answer);
        let back = keys.iter().filter_map(|key| Some((key, consent(key)?))).find_map(back)?;
        let key = SegmentKey::of(interface, back.ends.sender, back.ends.receiver, &back.segment);
        let is_own = back.vni == tenant.vni && self.addresses.contains(&back.ends.sending);
        if !is_own || !back.segment.flags.has(SegmentFlags::RETURN) || back.segment.expires <= now {
            return None;
        }
        let entry = entry_of(&back)?;
        let is_later = |known: &SegmentEntry| known.state() == segment_state::GIVEN && known.until > entry.until;
        if self.is_void(&key, &entry) || known(&key).as_ref().is_some_and(is_later) {
            return None;
        }
        if !self.passed_on.hold(key, entry.until, now) {
            return None;
        }
        self.passed_on.count += 1;
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

    /// Returns the endpoint's key for this authority and the epoch whose low 8 bits are `epoch`.
    fn key(&self, authority: IpAddr, epoch: u8, now: u32) -> Option<ProofKey> {
        let epoch = Epoch::at(now.into(), self.passed_on.epoch_length).from_wire(epoch)?;
        let is_it = |(of, known, _): &&(IpAddr, Epoch, ProofKey)| (*of, *known) == (authority, epoch);
        self.passed_on.keys.iter().find(is_it).map(|(_, _, key)| key.clone())
    }
}

/// Sends the segment for answers to the receiving endpoint, in a control packet under the segment `given`.
pub(super) fn pass_on(given: &Given, wanted: &Wanted, answers: &[u8]) -> Option<Action> {
    let Ends { sending, receiving, .. } = given.ends;
    let control = Encapsulation { control: true, ..given.encapsulation(payload_of(wanted.sender)) };
    let mut geneve = [0; ENCAPSULATION_MAX];
    let length = control.encode(&mut geneve)?;
    let inner = packet(wanted, &[&[MESSAGE_KIND, 0, 0, 0], answers].concat())?;
    let datagram = [geneve.get(..length)?, &inner].concat();
    Some(Action::Send { from: sending, to: receiving, hops: given.hops.clone(), datagram })
}

/// Builds the inner packet of a control packet (wire.md §8.15.2): addresses, protocol and ports of the tenant's packets,
/// then the message.
fn packet(wanted: &Wanted, message: &[u8]) -> Option<Vec<u8>> {
    let Wanted { sender, receiver, protocol, ports: (source, destination), .. } = *wanted;
    let ports = [source.to_be_bytes(), destination.to_be_bytes()];
    let transport = [ports.as_flattened(), message].concat();
    let header = match (sender, receiver) {
        (IpAddr::V4(sender), IpAddr::V4(receiver)) => {
            let [l0, l1] = u16::try_from(IPV4_LEN + transport.len()).ok()?.to_be_bytes();
            let fixed = [0x45, 0, l0, l1, 0, 0, DONT_FRAGMENT, 0, TTL, protocol, 0, 0];
            let mut header = [&fixed[..], &sender.octets(), &receiver.octets()].concat();
            let checksum = !fold(sum(&header, false));
            header[10..12].copy_from_slice(&checksum.to_be_bytes());
            header
        }
        (IpAddr::V6(sender), IpAddr::V6(receiver)) => {
            let [l0, l1] = u16::try_from(transport.len()).ok()?.to_be_bytes();
            [&[0x60, 0, 0, 0, l0, l1, protocol, TTL][..], &sender.octets(), &receiver.octets()].concat()
        }
        _ => return None,
    };
    Some([header, transport].concat())
}

/// Returns the message in a control packet.
fn message(frame: &[u8]) -> Option<&[u8]> {
    let packet = frame.get(ETHERNET_LEN..)?;
    let length = |at: usize| Some(usize::from(u16::from_be_bytes(*packet.get(at..)?.first_chunk()?)));
    let (header, end) = match payload(frame)? {
        Payload::Ipv4 => (IPV4_LEN, length(2)?),
        _ => (IPV6_LEN, IPV6_LEN + length(4)?),
    };
    packet.get(header + PORTS_LEN..end)
}

/// Returns an example of the packets that answer `inner`.
fn answer_to(inner: &Inner) -> Option<Inner> {
    let Ports::Shown(source, destination) = inner.ports else { return None };
    let (sender, receiver) = (inner.receiver, inner.sender);
    Some(Inner { sender, receiver, protocol: inner.protocol, ports: Ports::Shown(destination, source) })
}
