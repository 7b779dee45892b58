//! Handles tenants' packets that the tunnel endpoint's kernel programs could not send (wire.md §8). Requests segments
//! from the authority, and queues packets until the answer arrives. Changes the kernel's tables, and sends ICMP errors
//! to tenants. Passes segments for answers on to other endpoints, and uses those that other endpoints pass on. Returns
//! effects as values, and reads no clock.
//!
//! The number of queued packets and open requests per tenant is bounded.

mod passed_on;
mod too_long;
mod withdrawn;

use crate::agent::frame::complete_checksum;
use crate::model::{Given, Issued, SegmentRequest, Withdrawals};
use passed_on::PassedOn;
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
/// A segment in use is renewed when its remaining lifetime is at most this number of seconds.
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

/// An open request.
struct Open {
    /// The endpoint address from which packets under the segment would be sent.
    sending: IpAddr,
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
    spoofed: u64,
}

impl Endpoint {
    /// Creates an endpoint without tenants. The endpoint sends from the first of its `addresses`.
    pub fn new(addresses: Vec<IpAddr>) -> Self {
        let (tenants, open) = (BTreeMap::new(), BTreeMap::new());
        let (withdrawn, passed_on) = Default::default();
        Self { addresses, tenants, open, withdrawn, passed_on, spoofed: 0 }
    }

    /// Adds the tenant behind the interface with the index `interface`.
    pub fn admit(&mut self, interface: u32, tenant: Tenant) {
        self.tenants.insert(interface, tenant);
    }

    /// Removes a tenant and its open requests.
    pub fn forget(&mut self, interface: u32) {
        self.tenants.remove(&interface);
        self.passed_on.forget(interface);
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

    /// Handles a packet from a tenant. `consent` looks up the received segment that allows the tenant to answer.
    /// `entry` looks up an entry of the table of segments.
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
        // A segment for answers may have arrived since the kernel program looked it up.
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
        let (action, sending) = self.question(wanted, &inner, consent, now)?;
        self.open.insert(wanted, Open { sending, queued: queued.into_iter().collect() });
        Some(action)
    }

    /// Requests a new segment in place of a segment that is in use and ends soon. Packets use the old segment until the
    /// authority has answered. A segment for answers is replaced only if `consent` finds a received segment that ends
    /// later and permits answers.
    pub fn renew(
        &mut self,
        key: &SegmentKey,
        entry: &SegmentEntry,
        consent: impl Fn(&SegmentKey) -> Option<Consent>,
        now: u32,
    ) -> Option<Action> {
        let ends_soon = entry.until > now && entry.until - now <= RENEWED_BEFORE;
        if !ends_soon || entry.used.saturating_add(RENEWED_BEFORE) < now || entry.geneve().is_empty() {
            return None;
        }
        let inner = key.example()?;
        let wanted = Wanted::new(key.interface, &inner)?;
        // An earlier process may have written the entry for another tenant.
        let is_tenants = |tenant: &Tenant| tenant.addresses.contains(&inner.sender);
        if self.open.contains_key(&wanted) || !self.tenants.get(&key.interface).is_some_and(is_tenants) {
            return None;
        }
        let later = |key: &SegmentKey| consent(key).filter(|consent| consent.expires > entry.until);
        let (action, sending) = self.question(wanted, &inner, later, now)?;
        if key.is_back() && matches!(action, Action::Ask(..)) {
            return None;
        }
        self.open.insert(wanted, Open { sending, queued: Vec::new() });
        Some(action)
    }

    fn question(
        &self,
        wanted: Wanted,
        inner: &Inner,
        consent: impl Fn(&SegmentKey) -> Option<Consent>,
        now: u32,
    ) -> Option<(Action, IpAddr)> {
        let tenant = self.tenants.get(&wanted.interface)?;
        let keys = SegmentKey::answering(wanted.interface, inner);
        let usable =
            |(key, consent): &(&SegmentKey, Consent)| consent.expires > now && !self.voids_consent(key, consent);
        let shown = keys.iter().filter_map(|key| Some((key, consent(key)?))).filter(usable).map(|(_, consent)| consent);
        if let Some(shown) = shown.filter_map(|consent| given(&consent, inner)).next() {
            let sending = shown.ends.receiving;
            return Some((Action::AskBack(wanted, shown), sending));
        }
        let sending = *self.addresses.first()?;
        let to = Destination { address: wanted.receiver, protocol: wanted.protocol, port: wanted.ports.1 };
        let request = SegmentRequest {
            network: tenant.network.clone(),
            sender: wanted.sender,
            sending,
            to,
            sender_port: wanted.ports.0,
        };
        Some((Action::Ask(wanted, request), sending))
    }

    /// Reports whether packets can be sent with this entry of the table of segments.
    fn is_usable(&self, key: &SegmentKey, entry: &SegmentEntry, now: u32) -> bool {
        entry.state() == segment_state::GIVEN && entry.until > now && !self.is_void(key, entry)
    }

    /// Handles the authority's answer to a request, and returns the effects to carry out.
    pub fn answered(&mut self, wanted: &Wanted, answer: Result<Issued, Refusal>, now: u32) -> Vec<Action> {
        let Some(open) = self.open.remove(wanted) else { return Vec::new() };
        let Some(tenant) = self.tenants.get(&wanted.interface) else { return Vec::new() };
        let refused = || {
            let key = SegmentKey::to_service(wanted.interface, &wanted.inner());
            vec![Action::Write(key, SegmentEntry::refused(now.saturating_add(REFUSED_FOR)))]
        };
        let Issued { given, answers } = match answer {
            Ok(issued) => issued,
            Err(Refusal::Denied) => return refused(),
            // The next packet causes a new request.
            Err(Refusal::Unreachable) => return Vec::new(),
        };
        let Ends { sending, sender, receiver, .. } = given.ends;
        let is_asked_for = (sending, sender, receiver) == (open.sending, wanted.sender, wanted.receiver);
        // A segment that does not fit the request counts as a denial.
        if !is_asked_for || given.vni != tenant.vni || !given.segment.serves(&wanted.inner()) {
            return refused();
        }
        let Some(entry) = entry_of(&given) else { return refused() };
        let key = SegmentKey::of(wanted.interface, wanted.sender, wanted.receiver, &given.segment);
        if self.is_void(&key, &entry) {
            // The next packet causes a new request.
            return Vec::new();
        }
        let mut actions = vec![Action::Write(key, entry)];
        if given.segment.flags.has(SegmentFlags::SINGLE) {
            actions.push(Action::Write(key.for_every_flow(), SegmentEntry::by_flow()));
        }
        // It leaves before the packets to which it is the way back.
        if !answers.is_empty() {
            actions.extend(passed_on::pass_on(&given, wanted, &answers));
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

/// Sends an inner packet under the segment of this entry.
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
