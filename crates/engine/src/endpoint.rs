//! Handles tenants' packets that the tunnel endpoint's kernel programs could not send (wire.md §8). Requests path
//! segments from the authority, and queues packets until the answer arrives. Changes the kernel's tables, and sends
//! ICMP errors to tenants. Sends return segments to other endpoints, and uses the return segments that other endpoints
//! send. Returns effects as values, and reads no clock.
//!
//! The number of queued packets and open requests per tenant is bounded.

mod control;
mod passed_on;
mod paths;
mod too_long;
mod withdrawn;

use crate::agent::frame::complete_checksum;
use crate::model::{Given, Issued, SegmentRequest, Withdrawals};
use passed_on::PassedOn;
use paths::Paths;
pub use paths::Way;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use wire::geneve::{Encapsulation, Payload};
use wire::inner::Ports;
use wire::map::{Consent, SegmentEntry, SegmentKey, segment_state};
use wire::packet::Packet;
use wire::{Destination, Ends, Hops, Inner, SegmentFlags, Vni};

/// Maximum number of open requests per tenant.
const OPEN_MAX: usize = 64;
/// Maximum number of packets that wait for one answer.
const QUEUED_MAX: usize = 4;
/// Number of seconds after a denial during which the endpoint does not repeat the request.
pub const REFUSED_FOR: u32 = 5;
/// The endpoint renews a segment that ends within this number of seconds, if a packet has used the segment within the
/// same number of seconds.
pub const RENEWED_BEFORE: u32 = 30;

const ETHERNET_LEN: usize = 14;

/// A tenant behind one interface of the endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenant {
    /// The virtual network's name.
    pub network: String,
    /// The virtual network's number.
    pub vni: Vni,
    /// The addresses from which the tenant is allowed to send.
    pub addresses: Vec<IpAddr>,
}

/// A segment that a tenant needs: for its packets to a service, or for its answers to received packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Wanted {
    /// Index of the tenant's interface.
    pub interface: u32,
    sender: IpAddr,
    receiver: IpAddr,
    protocol: u8,
    ports: (u16, u16),
}

/// A tenant's packet that the kernel program could not send and handed over.
#[derive(Clone, Copy, Debug)]
pub struct Unsent<'a> {
    /// Index of the tenant's interface.
    pub interface: u32,
    /// If the packet was too long for the tunnel, the length in bytes of the longest inner packet that fits. Otherwise
    /// 0: the packet could not be sent because there is no segment for it.
    pub limit: u32,
    /// Whether the packet is a super-packet.
    pub is_super: bool,
    /// The packet's Ethernet frame, possibly only its beginning.
    pub frame: &'a [u8],
}

/// An effect that the caller carries out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Ask the authority for a segment, and pass its answer to [`Endpoint::answered`].
    Ask(Wanted, SegmentRequest),
    /// Ask the authority for a segment together with its return segment, and pass the authority's answer to
    /// [`Endpoint::answered`]. The caller must use a transport whose answers have room for both segments.
    AskBoth(Wanted, SegmentRequest),
    /// Ask the authority for a segment for the tenant's answers. The request shows the received segment, [`Given`].
    /// Pass the authority's answer to [`Endpoint::answered`].
    AskBack(Wanted, Given),
    /// Write this entry into the table of segments.
    Write(SegmentKey, SegmentEntry),
    /// Send the tunnelled packet as a datagram from the sending endpoint to the Geneve port of the receiving endpoint.
    Send {
        /// The sending endpoint.
        from: IpAddr,
        /// The receiving endpoint.
        to: IpAddr,
        /// The hops of a fixed path, in the order of the path; empty if the path is not fixed.
        hops: Vec<Ipv6Addr>,
        /// The Geneve header and the inner packet.
        datagram: Vec<u8>,
    },
    /// Send a frame to the tenant.
    Tell {
        /// The tenant's interface.
        interface: u32,
        /// The Ethernet frame.
        frame: Vec<u8>,
    },
}

/// Reason why there is no segment for a tenant's packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The authority denied the request.
    Denied,
    /// The authority could not be reached.
    Unreachable,
}

/// The purpose of a request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// A packet waits for the segment, or the segment replaces one that ends soon.
    Send,
    /// The segment replaces one whose path is not in use any more.
    Move,
    /// The segment serves to find out whether its path works. Tenants' packets are not sent under it.
    Try,
}

/// An open request.
struct Open {
    /// The endpoint address from which packets under the segment would be sent.
    sending: IpAddr,
    /// Number of the path that was requested.
    path: u8,
    purpose: Purpose,
    /// Inner packets that wait for the segment.
    queued: Vec<Vec<u8>>,
}

/// State of a tunnel endpoint: its tenants, segments, open requests and queued packets.
pub struct Endpoint {
    /// The endpoint's addresses on the underlay. It sends from the first address.
    addresses: Vec<IpAddr>,
    tenants: BTreeMap<u32, Tenant>,
    open: BTreeMap<Wanted, Open>,
    withdrawn: Withdrawals,
    passed_on: PassedOn,
    paths: Paths,
    spoofed: u64,
}

impl Endpoint {
    /// Creates an endpoint without tenants. The endpoint sends from the first of its `addresses`.
    pub fn new(addresses: Vec<IpAddr>) -> Self {
        let (tenants, open) = (BTreeMap::new(), BTreeMap::new());
        let (withdrawn, passed_on, paths) = Default::default();
        Self { addresses, tenants, open, withdrawn, passed_on, paths, spoofed: 0 }
    }

    /// Adds the tenant behind the interface with the index `interface`.
    pub fn admit(&mut self, interface: u32, tenant: Tenant) {
        self.tenants.insert(interface, tenant);
    }

    /// Removes a tenant and its open requests.
    pub fn forget(&mut self, interface: u32) {
        self.tenants.remove(&interface);
        self.passed_on.forget(interface);
        self.paths.forget(interface);
        self.open.retain(|wanted, _| wanted.interface != interface);
    }

    /// Returns the number of packets that tenants sent from addresses that are not their own.
    pub const fn spoofed(&self) -> u64 {
        self.spoofed
    }

    /// Returns the number of requests that the authority has not answered yet.
    pub fn open(&self) -> usize {
        self.open.len()
    }

    /// Handles a packet from a tenant, and returns the effect to carry out, if there is one. `consent` looks up the
    /// received segment that allows the tenant to answer. `entry` looks up an entry of the table of segments.
    pub fn handed_over(
        &mut self,
        unsent: &Unsent<'_>,
        consent: impl Fn(&SegmentKey) -> Option<Consent>,
        entry: impl Fn(&SegmentKey) -> Option<SegmentEntry>,
        now: u32,
    ) -> Option<Action> {
        let interface = unsent.interface;
        let tenant = self.tenants.get(&interface)?;
        if unsent.limit != 0 {
            let frame = too_long::tell(unsent.frame, unsent.limit)?;
            return Some(Action::Tell { interface, frame });
        }
        let inner = read(unsent.frame)?;
        if !tenant.addresses.contains(&inner.sender) {
            self.spoofed += 1;
            return None;
        }
        let wanted = Wanted::new(interface, &inner)?;
        let queued = (!unsent.is_super).then(|| whole(unsent.frame)).flatten();
        // A return segment may have arrived since the kernel program looked it up.
        let keys = SegmentKey::answering(interface, &inner);
        if let Some(entry) = keys.iter().find_map(|key| entry(key).filter(|entry| self.is_usable(key, entry, now))) {
            return queued.and_then(|inner| send(&entry, &inner));
        }
        if let Some(open) = self.open.get_mut(&wanted) {
            open.queued.extend(queued.filter(|_| open.queued.len() < QUEUED_MAX));
            return None;
        }
        if self.open.range(Wanted::all_of(interface)).count() >= OPEN_MAX {
            return None;
        }
        let (action, sending) = self.question(wanted, &inner, consent, 0, now)?;
        let queued = queued.into_iter().collect();
        self.open.insert(wanted, Open { sending, path: 0, purpose: Purpose::Send, queued });
        Some(action)
    }

    /// Requests a new segment in place of a segment that is in use and ends soon ([`RENEWED_BEFORE`]). Packets use the
    /// old segment until the authority has answered. The endpoint replaces a return segment only if `consent` finds a
    /// received segment that ends later and permits answers. If the receiver of the return segment now sends under
    /// another segment, the endpoint replaces the return segment even earlier, because this other segment may take
    /// another path.
    pub fn renew(
        &mut self,
        key: &SegmentKey,
        entry: &SegmentEntry,
        consent: impl Fn(&SegmentKey) -> Option<Consent>,
        now: u32,
    ) -> Option<Action> {
        let ends_soon = entry.until > now && entry.until - now <= RENEWED_BEFORE;
        let is_outdated = entry.until > now
            && key.is_back()
            && consent(key).is_some_and(|consent| self.paths.is_outdated(key, Some(entry), &consent));
        if !(ends_soon || is_outdated) || entry.used.saturating_add(RENEWED_BEFORE) < now || entry.geneve().is_empty() {
            return None;
        }
        let inner = key.example()?;
        let wanted = Wanted::new(key.interface, &inner)?;
        // An earlier process may have written the entry for another tenant.
        let is_tenants = |tenant: &Tenant| tenant.addresses.contains(&inner.sender);
        if self.open.contains_key(&wanted) || !self.tenants.get(&key.interface).is_some_and(is_tenants) {
            return None;
        }
        let later = |key: &SegmentKey| consent(key).filter(|consent| is_outdated || consent.expires > entry.until);
        let path = self.paths.number(entry);
        let (action, sending) = self.question(wanted, &inner, later, path, now)?;
        if key.is_back() && matches!(action, Action::Ask(..)) {
            return None;
        }
        self.open.insert(wanted, Open { sending, path, purpose: Purpose::Send, queued: Vec::new() });
        Some(action)
    }

    /// Returns the request for a segment, and the endpoint address from which packets under it are sent. `path` is the
    /// number of the path. A return segment takes the path of the received segment.
    fn question(
        &mut self,
        wanted: Wanted,
        inner: &Inner,
        consent: impl Fn(&SegmentKey) -> Option<Consent>,
        path: u8,
        now: u32,
    ) -> Option<(Action, IpAddr)> {
        let network = self.tenants.get(&wanted.interface)?.network.clone();
        let keys = SegmentKey::answering(wanted.interface, inner);
        let usable =
            |(key, consent): &(&SegmentKey, Consent)| consent.expires > now && !self.voids_consent(key, consent);
        let consents = keys.iter().filter_map(|key| Some((key, consent(key)?))).filter(usable);
        let mut shown = consents.filter_map(|(key, consent)| Some((*key, consent.expires, given(&consent, inner)?)));
        if let Some((key, expires, shown)) = shown.next() {
            self.paths.answers(key, expires);
            let sending = shown.ends.receiving;
            return Some((Action::AskBack(wanted, shown), sending));
        }
        let sending = *self.addresses.first()?;
        let to = Destination { address: wanted.receiver, protocol: wanted.protocol, port: wanted.ports.1 };
        let request = SegmentRequest { network, sender: wanted.sender, sending, to, sender_port: wanted.ports.0, path };
        Some((Action::Ask(wanted, request), sending))
    }

    /// Reports whether packets can be sent with this entry of the table of segments.
    fn is_usable(&self, key: &SegmentKey, entry: &SegmentEntry, now: u32) -> bool {
        entry.state() == segment_state::GIVEN && entry.until > now && !self.is_void(key, entry)
    }

    /// Handles the authority's answer to a request, and returns the effects to carry out.
    pub fn answered(&mut self, wanted: &Wanted, answer: Result<Issued, Refusal>, now: u32) -> Vec<Action> {
        let Some(open) = self.open.remove(wanted) else { return Vec::new() };
        let Some(vni) = self.tenants.get(&wanted.interface).map(|tenant| tenant.vni) else { return Vec::new() };
        let is_asked_for = |given: &Given| {
            let Ends { sending, sender, receiver, .. } = given.ends;
            (sending, sender, receiver) == (open.sending, wanted.sender, wanted.receiver)
                && given.vni == vni
                && given.segment.serves(&wanted.inner())
        };
        if open.purpose == Purpose::Try {
            let issued = answer.ok().filter(|issued| is_asked_for(&issued.given));
            return self.tried(wanted, open, issued, now);
        }
        let refused = || {
            let key = SegmentKey::to_service(wanted.interface, &wanted.inner());
            vec![Action::Write(key, SegmentEntry::refused(now.saturating_add(REFUSED_FOR)))]
        };
        let Issued { given, answers, others } = match answer {
            Ok(issued) => issued,
            Err(Refusal::Denied) => return refused(),
            // The next packet, or the next probe, causes a new request.
            Err(Refusal::Unreachable) => {
                self.paths.not_answered(&SegmentKey::answering(wanted.interface, &wanted.inner()));
                return Vec::new();
            }
        };
        // A segment that does not fit the request counts as a denial.
        if !is_asked_for(&given) {
            return refused();
        }
        let Some(mut entry) = entry_of(&given) else { return refused() };
        let is_back = given.segment.flags.has(SegmentFlags::RETURN);
        let taken = if open.path > others { 0 } else { open.path };
        if !is_back && let Some(path) = self.learn(given.ends.receiving, taken, others) {
            return self.ask_again(wanted, open, path, now);
        }
        let key = SegmentKey::of(wanted.interface, wanted.sender, wanted.receiver, &given.segment);
        if self.is_void(&key, &entry) {
            // The next packet causes a new request.
            return Vec::new();
        }
        if !is_back {
            self.paths.takes(given.ends.receiving, key, taken);
        }
        if open.purpose == Purpose::Move {
            // It replaces a segment in use.
            entry.used = now;
        }
        let mut actions = vec![Action::Write(key, entry)];
        if given.segment.flags.has(SegmentFlags::SINGLE) {
            actions.push(Action::Write(key.for_every_flow(), SegmentEntry::by_flow()));
        }
        // It leaves before the packets to which it is the way back.
        if !answers.is_empty() {
            actions.extend(passed_on::pass_on(&given, wanted, &answers));
        } else if open.purpose == Purpose::Move && given.segment.flags.has(SegmentFlags::REPLY) {
            // It makes the other endpoint request the segment for its answers.
            actions.extend(paths::probe_under(&key, &entry, 0, &[]));
        }
        actions.extend(open.queued.iter().filter_map(|inner| send(&entry, inner)));
        actions
    }
}

impl Wanted {
    fn new(interface: u32, inner: &Inner) -> Option<Self> {
        let Ports::Shown(source, destination) = inner.ports else { return None };
        let &Inner { sender, receiver, protocol, .. } = inner;
        Some(Self { interface, sender, receiver, protocol, ports: (source, destination) })
    }

    /// Returns an example packet for this segment.
    fn inner(&self) -> Inner {
        let &Self { sender, receiver, protocol, ports: (source, destination), .. } = self;
        Inner { sender, receiver, protocol, ports: Ports::Shown(source, destination) }
    }

    /// Returns the range of all segments that a tenant may want.
    fn all_of(interface: u32) -> std::ops::RangeInclusive<Self> {
        let least: IpAddr = [0, 0, 0, 0].into();
        let most: IpAddr = [0xff; 16].into();
        let bound = |address, number| Self {
            interface,
            sender: address,
            receiver: address,
            protocol: number,
            ports: (u16::from_be_bytes([number; 2]), u16::from_be_bytes([number; 2])),
        };
        bound(least, 0)..=bound(most, 0xff)
    }
}

/// Returns the entry of the table of segments for this segment, or `None` if no packet can be sent under it.
fn entry_of(given: &Given) -> Option<SegmentEntry> {
    let Ends { sending, receiving, sender, .. } = given.ends;
    let entry = SegmentEntry::given(&given.encapsulation(payload_of(sender)), sending, receiving)?;
    if given.hops.is_empty() { Some(entry) } else { entry.along(&Hops::new(&given.hops)?) }
}

const fn payload_of(sender: IpAddr) -> Payload {
    if sender.is_ipv4() { Payload::Ipv4 } else { Payload::Ipv6 }
}

/// Returns the action that sends an inner packet under the segment of this entry.
fn send(entry: &SegmentEntry, inner: &[u8]) -> Option<Action> {
    let (from, to) = entry.endpoints()?;
    Some(Action::Send { from, to, hops: entry.hops().collect(), datagram: [entry.geneve(), inner].concat() })
}

/// Returns the received segment that the request shows to the authority. Returns `None` unless that segment is for the
/// opposite direction of `inner`.
fn given(consent: &Consent, inner: &Inner) -> Option<Given> {
    let (encapsulation, _) = Encapsulation::decode(consent.geneve()).ok()?;
    let (sending, receiving) = consent.endpoints();
    let ends = Ends { sending, receiving, sender: inner.receiver, receiver: inner.sender };
    let Encapsulation { segment, vni, proofs, .. } = encapsulation;
    Some(Given { segment, vni, ends, proofs: proofs.to_vec(), hops: consent.hops().collect() })
}

/// Parses the packet in a tenant's frame in the way that verifiers will.
fn read(frame: &[u8]) -> Option<Inner> {
    let (_, packet) = frame.split_at_checked(ETHERNET_LEN)?;
    Inner::parse(payload(frame)?, packet).ok()
}

fn payload(frame: &[u8]) -> Option<Payload> {
    match frame.get(ETHERNET_LEN - 2..ETHERNET_LEN)? {
        [0x08, 0x00] => Some(Payload::Ipv4),
        [0x86, 0xdd] => Some(Payload::Ipv6),
        _ => None,
    }
}

/// Returns the packet in a tenant's frame. Completes the checksum if the sender left that to a network card.
fn whole(frame: &[u8]) -> Option<Vec<u8>> {
    let mut frame = frame.to_vec();
    let packet = Packet::parse(&frame);
    // A packet without a transport checksum stays unchanged.
    let _ = complete_checksum(&mut frame, &packet);
    frame.get(ETHERNET_LEN..packet.end.max(ETHERNET_LEN)).map(<[u8]>::to_vec).filter(|packet| !packet.is_empty())
}

#[cfg(test)]
mod tests;
