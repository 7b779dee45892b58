//! What a tunnel endpoint does about tenants' packets that its kernel programs could not send (wire.md §8): what it asks the
//! authority, which packets wait meanwhile, what tables and tenants are told. Effects are values; it keeps no clock.
//!
//! Nothing that a tenant sends makes it hold or ask for more than fixed bounds.

mod too_long;

use crate::agent::frame::complete_checksum;
use crate::api::{AnswerRequest, PathSegment, SegmentRequest, SegmentTo};
use crate::segment::Given;
use std::collections::BTreeMap;
use std::net::IpAddr;
use wire::geneve::{Encapsulation, Payload};
use wire::inner::Ports;
use wire::map::{Consent, SegmentEntry, SegmentKey};
use wire::packet::Packet;
use wire::{Ends, Hops, Inner, SegmentFlags, Vni};

/// How many questions are open at a time for one tenant.
const OPEN_MAX: usize = 64;
/// How many packets wait for one answer.
const HELD_MAX: usize = 4;
/// For how long nobody is asked again after a denial, seconds.
pub const REFUSED_FOR: u32 = 5;
/// A segment that was used this shortly before its end is renewed, seconds.
pub const RENEWED_BEFORE: u32 = 30;

const ETHERNET_LEN: usize = 14;

/// Who is behind an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenant {
    /// The virtual network's name.
    pub network: String,
    /// Its number.
    pub vni: Vni,
    /// The addresses that the tenant may send from.
    pub addresses: Vec<IpAddr>,
}

/// What is asked for: a tenant's packets to a service, or its answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Wanted {
    /// The tenant's interface.
    pub interface: u32,
    sender: IpAddr,
    receiver: IpAddr,
    protocol: u8,
    ports: (u16, u16),
}

/// A tenant's packet that was handed over.
#[derive(Clone, Copy, Debug)]
pub struct Unsent<'a> {
    /// The tenant's interface.
    pub interface: u32,
    /// The longest packet that would get through; 0: there is no segment for it.
    pub limit: u32,
    /// Whether it is a super-packet.
    pub is_super: bool,
    /// The frame, which may have been cut.
    pub frame: &'a [u8],
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Ask the authority for a segment, and tell [`Endpoint::answered`] what it says.
    Ask(Wanted, SegmentRequest),
    /// The same for the way back of a segment that came in.
    AskBack(Wanted, AnswerRequest),
    /// Write this into the table of segments.
    Write(SegmentKey, SegmentEntry),
    /// Send the tunnelled packet as a datagram from the sending endpoint to Geneve's port there.
    Send {
        /// The sending endpoint.
        from: IpAddr,
        /// The receiving endpoint.
        to: IpAddr,
        /// Geneve's header and the inner packet.
        datagram: Vec<u8>,
    },
    /// Send a frame to the tenant.
    Tell {
        /// The tenant's interface.
        interface: u32,
        /// The frame.
        frame: Vec<u8>,
    },
}

/// Why there is no segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The authority says no.
    Denied,
    /// It could not be asked.
    Unreachable,
}

/// A question that is open.
struct Open {
    /// Where what is asked for goes out.
    sending: IpAddr,
    /// Inner packets that wait.
    held: Vec<Vec<u8>>,
}

/// A tunnel endpoint's state.
pub struct Endpoint {
    /// Its addresses on the underlay, the one that counts for a family first.
    addresses: Vec<IpAddr>,
    tenants: BTreeMap<u32, Tenant>,
    open: BTreeMap<Wanted, Open>,
    spoofed: u64,
}

impl Endpoint {
    /// An endpoint with these addresses, of which the first is what it sends from, and without tenants.
    pub const fn new(addresses: Vec<IpAddr>) -> Self {
        Self { addresses, tenants: BTreeMap::new(), open: BTreeMap::new(), spoofed: 0 }
    }

    /// Takes a tenant in.
    pub fn admit(&mut self, interface: u32, tenant: Tenant) {
        self.tenants.insert(interface, tenant);
    }

    /// Forgets a tenant, and what it waits for.
    pub fn forget(&mut self, interface: u32) {
        self.tenants.remove(&interface);
        self.open.retain(|wanted, _| wanted.interface != interface);
    }

    /// Packets that tenants sent from others' addresses.
    pub const fn spoofed(&self) -> u64 {
        self.spoofed
    }

    /// Questions that are open.
    pub fn open(&self) -> usize {
        self.open.len()
    }

    /// What to do about a packet. `consent` looks up what came in and may be answered.
    pub fn handed_over(
        &mut self,
        unsent: &Unsent<'_>,
        consent: impl Fn(&SegmentKey) -> Option<Consent>,
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
        let held = (!unsent.is_super).then(|| whole(unsent.frame)).flatten();
        if let Some(open) = self.open.get_mut(&wanted) {
            open.held.extend(held.filter(|_| open.held.len() < HELD_MAX));
            return None;
        }
        if self.open.range(Wanted::all_of(interface)).count() >= OPEN_MAX {
            return None;
        }
        let (action, sending) = self.question(wanted, &inner, consent, now)?;
        self.open.insert(wanted, Open { sending, held: held.into_iter().collect() });
        Some(action)
    }

    /// Asks again for a segment that is in use and ends soon, or that consent was given anew to answer. Until there is an
    /// answer, packets go on under the old one.
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
        // An earlier process may have written it for another tenant.
        let is_tenants = |tenant: &Tenant| tenant.addresses.contains(&inner.sender);
        if self.open.contains_key(&wanted) || !self.tenants.get(&key.interface).is_some_and(is_tenants) {
            return None;
        }
        let later = |key: &SegmentKey| consent(key).filter(|consent| consent.expires > entry.until);
        let (action, sending) = self.question(wanted, &inner, later, now)?;
        if key.is_back() && matches!(action, Action::Ask(..)) {
            return None;
        }
        self.open.insert(wanted, Open { sending, held: Vec::new() });
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
        let shown = keys.iter().filter_map(consent).filter(|consent| consent.expires > now);
        if let Some(shown) = shown.filter_map(|consent| given(&consent, inner)).next() {
            return Some((Action::AskBack(wanted, AnswerRequest::new(&shown)), shown.ends.receiving));
        }
        let sending = *self.addresses.first()?;
        let to = SegmentTo { address: wanted.receiver, protocol: wanted.protocol, port: wanted.ports.1 };
        let request = SegmentRequest {
            network: tenant.network.clone(),
            sender: wanted.sender,
            sending,
            to,
            sender_port: wanted.ports.0,
        };
        Some((Action::Ask(wanted, request), sending))
    }

    /// What to do about the authority's answer.
    pub fn answered(&mut self, wanted: &Wanted, answer: Result<&PathSegment, Refusal>, now: u32) -> Vec<Action> {
        let Some(open) = self.open.remove(wanted) else { return Vec::new() };
        let Some(tenant) = self.tenants.get(&wanted.interface) else { return Vec::new() };
        let refused = || {
            let key = SegmentKey::to_service(wanted.interface, &wanted.inner());
            vec![Action::Write(key, SegmentEntry::refused(now.saturating_add(REFUSED_FOR)))]
        };
        let segment = match answer {
            Ok(segment) => segment,
            Err(Refusal::Denied) => return refused(),
            // The next packet asks again.
            Err(Refusal::Unreachable) => return Vec::new(),
        };
        let given = segment.given(open.sending, wanted.sender, wanted.receiver).ok();
        // An answer to another question is none.
        let fits = |given: &Given| given.vni == tenant.vni && given.segment.serves(&wanted.inner());
        let Some(given) = given.filter(fits) else { return refused() };
        let payload = if wanted.sender.is_ipv4() { Payload::Ipv4 } else { Payload::Ipv6 };
        let Ends { sending, receiving, .. } = given.ends;
        let entry = SegmentEntry::given(&given.encapsulation(payload), sending, receiving);
        let is_fixed = !given.hops.is_empty();
        let along = |entry: SegmentEntry| if is_fixed { entry.along(&Hops::new(&given.hops)?) } else { Some(entry) };
        let Some(entry) = entry.and_then(along) else { return refused() };
        let key = SegmentKey::of(wanted.interface, wanted.sender, wanted.receiver, &given.segment);
        let mut actions = vec![Action::Write(key, entry)];
        if given.segment.flags.has(SegmentFlags::SINGLE) {
            actions.push(Action::Write(key.for_every_flow(), SegmentEntry::by_flow()));
        }
        if is_fixed {
            // A datagram of a socket has no such headers. Senders try again, and then there is a segment.
            return actions;
        }
        let send =
            |inner: Vec<u8>| Action::Send { from: sending, to: receiving, datagram: [entry.geneve(), &inner].concat() };
        actions.extend(open.held.into_iter().map(send));
        actions
    }
}

impl Wanted {
    fn new(interface: u32, inner: &Inner) -> Option<Self> {
        let Ports::Shown(source, destination) = inner.ports else { return None };
        let &Inner { sender, receiver, protocol, .. } = inner;
        Some(Self { interface, sender, receiver, protocol, ports: (source, destination) })
    }

    /// A packet of it.
    fn inner(&self) -> Inner {
        let &Self { sender, receiver, protocol, ports: (source, destination), .. } = self;
        Inner { sender, receiver, protocol, ports: Ports::Shown(source, destination) }
    }

    /// All of a tenant's.
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

/// The segment that came in, to be shown, if it is about the other direction of these addresses.
fn given(consent: &Consent, inner: &Inner) -> Option<Given> {
    let (encapsulation, _) = Encapsulation::decode(consent.geneve()).ok()?;
    let (sending, receiving) = consent.endpoints();
    let ends = Ends { sending, receiving, sender: inner.receiver, receiver: inner.sender };
    let Encapsulation { segment, vni, proofs, .. } = encapsulation;
    Some(Given { segment, vni, ends, proofs: proofs.to_vec(), hops: consent.hops().collect() })
}

/// The packet in a tenant's frame, as verifiers will read it.
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

/// The packet in a tenant's frame, with the checksum that a network card would have finished.
fn whole(frame: &[u8]) -> Option<Vec<u8>> {
    let mut frame = frame.to_vec();
    let packet = Packet::parse(&frame);
    // What has no checksum to complete goes as it is.
    let _ = complete_checksum(&mut frame, &packet);
    frame.get(ETHERNET_LEN..packet.end.max(ETHERNET_LEN)).map(<[u8]>::to_vec).filter(|packet| !packet.is_empty())
}

#[cfg(test)]
mod tests;
