//! Devices behind switches whose people log in with a browser at the authority (LS §3.4, wire.md §5.4.4). The
//! controller puts the support option on their connections to the authority, takes client keys out of the authority's
//! answers, and keeps one key for each device.
//!
//! A key transfer does not prove its origin. The controller accepts a transfer only if the transfer's sender knows the
//! connection: both sequence numbers of the packet have to be near those of the handshake. The packet also has to come
//! through the switch's port through which the authority's answer to the SYN came. INVARIANT: packets from other hosts
//! create no entry.

#[cfg(test)]
mod tests;

use super::fate::{Fate, Origin};
use super::rules;
use crate::agent::insertion::{Grant, Inserter};
use crate::model::protected::{Protected, extended};
use crate::model::{Secret, Service};
use ipnet::IpNet;
use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};
use wire::ls::KeyTransfer;
use wire::packet::{Form, Fragment, Packet, TCP, tcp_flags};
use wire::shim::{self, Content, IPIP, SHIM_LEN};
use wire::{Carrier, Handle, ls};

/// Maximum number of connections and of keys that the controller keeps for all ports of all switches together.
const CONNECTIONS_MAX: usize = 4096;
const DEVICES_MAX: usize = 4096;
/// Maximum number of connections and of keys for one port. If there are more, the controller forgets the oldest
/// connection or key of the same port. So a device that invents neighbours takes room from its own port only.
const CONNECTIONS_OF_PORT_MAX: usize = 64;
const DEVICES_OF_PORT_MAX: usize = 64;
/// Number of seconds after a SYN with the support option during which a SYN that is sent again gets no option (wire.md
/// §5.4.1).
const AGAIN: u32 = 60;
/// Time during which a connection accepts transfers, after its opening or after its last accepted transfer, in seconds.
const CONNECTION_LIFE: u16 = 3600;
/// Number of seconds after which the controller forgets a key that was not replaced. The controller needs this limit
/// because a transfer doesn't say when its pair ends.
const KEY_LIFE: u32 = 24 * 3600;
/// Maximum number of bytes that the client may have sent on a connection, since its opening or its last accepted
/// transfer, for a further transfer to be accepted. The second constant is the same maximum for the bytes that the
/// authority may have sent.
const CLIENT_SENT_MAX: u32 = 1 << 22;
const AUTHORITY_SENT_MAX: u32 = 1 << 26;
/// Number of refused packets after which the switch sends no further packets of protocol 4 up for this client and
/// authority, until the client opens another connection.
const REFUSED_MAX: u32 = 64;
/// Number of former pairs of a device that are not taken again, because their nonces are used.
const FORMER_PAIRS: usize = 16;
/// First nonce of a pair that the controller may use; the kernel program uses the nonces below it (wire.md §5.8).
pub(super) const FIRST_NONCE2: u16 = ls::SENDERS_NONCES as u16;
const ETHERNET_LEN: usize = 14;

/// An authority at which people behind switches log in, and the networks in which its client keys are valid.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Realm {
    /// Addresses and ports of the authority.
    pub ends: Vec<SocketAddrV4>,
    /// The networks of the verifier to which the client keys belong.
    pub networks: Vec<IpNet>,
}

/// A device behind a switch. A packet with the same addresses from another switch port belongs to another device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Device {
    origin: Origin,
    mac: [u8; 6],
    address: Ipv4Addr,
}

impl Device {
    fn of(origin: Origin, frame: &[u8], address: Ipv4Addr) -> Option<Self> {
        Some(Self { origin, mac: *frame.get(6..)?.first_chunk()?, address })
    }
}

/// A connection to an authority: the switch, and both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Ends {
    datapath: u64,
    authority: SocketAddrV4,
    client: SocketAddrV4,
}

/// A connection whose SYN had the support option.
struct Connection {
    device: Device,
    realm: usize,
    opened: u32,
    /// Time at which the connection was opened or the last transfer was accepted.
    used: u32,
    /// Sequence number of the SYN. After a key transfer: one less than the sequence number that the latest transfer
    /// acknowledged.
    from: u32,
    /// The port through which the authority's answer came, and the answer's sequence number. After a key transfer: one
    /// less than the sequence number of the latest transfer.
    answer: Option<(u32, u32)>,
    refused: u32,
}

impl Connection {
    const fn is_live(&self, now: u32) -> bool {
        now.wrapping_sub(self.used) < CONNECTION_LIFE as u32
    }
}

/// The key of a device.
struct DeviceKey {
    device: Device,
    realm: usize,
    since: u32,
    /// Makes the device's tokens. Each device has an inserter of its own, so that no device can fill another's tables.
    inserter: Inserter,
    former: VecDeque<Handle>,
}

impl DeviceKey {
    const fn is_live(&self, now: u32) -> bool {
        now.wrapping_sub(self.since) < KEY_LIFE
    }
}

/// The relation of a packet's sender to the devices that have logged in.
pub(super) enum Sender<'l> {
    /// The device has a key for the packet's destination.
    LoggedIn(&'l mut Inserter),
    /// The packet has the address of a device with a key, but comes from another device.
    Spoofed,
    /// No logged-in device has the packet's address, or the device's key is not for the packet's destination.
    Other,
}

/// Counters of device logins since the controller started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoginCounts {
    /// Number of SYNs that got the support option.
    pub support: u64,
    /// Number of keys that were accepted.
    pub keys: u64,
    /// Number of packets of protocol 4 that switches sent up and that were not accepted as transfers.
    pub refused: u64,
}

/// The devices that have logged in, and the connections on which devices may log in.
#[derive(Default)]
pub struct Logins {
    realms: Vec<Realm>,
    connections: BTreeMap<Ends, Connection>,
    /// The keys by switch and address of the device.
    device_keys: BTreeMap<(u64, Ipv4Addr), DeviceKey>,
    counts: LoginCounts,
}

impl Logins {
    /// Replaces the addresses of the authorities. A realm without addresses in `realms` keeps the addresses that it
    /// had. The realms, their order and their networks must not change while the agent runs.
    pub fn set_realms(&mut self, mut realms: Vec<Realm>) {
        // If a name can't be resolved now, the address that it had is better than none.
        for (new, old) in realms.iter_mut().zip(&self.realms).filter(|(new, _)| new.ends.is_empty()) {
            new.ends.clone_from(&old.ends);
        }
        self.realms = realms;
    }

    /// Returns the addresses and ports of all authorities.
    pub fn ends(&self) -> Vec<SocketAddrV4> {
        self.realms.iter().flat_map(|realm| realm.ends.iter().copied()).collect()
    }

    /// Returns the networks of all realms.
    pub fn networks(&self) -> Vec<IpNet> {
        self.realms.iter().flat_map(|realm| realm.networks.iter().copied()).collect()
    }

    /// Returns the counters.
    pub const fn counts(&self) -> LoginCounts {
        self.counts
    }

    /// Returns the number of devices that have a key.
    pub fn devices(&self) -> usize {
        self.device_keys.len()
    }

    /// Handles a packet between a device and an authority. Returns `None` if the packet is not between a device and an
    /// authority.
    pub(super) fn handle(&mut self, origin: Origin, frame: &[u8], packet: &Packet, now: u32) -> Option<Fate> {
        if packet.form != Form::Whole || packet.fragment != Fragment::Whole || packet.network != ETHERNET_LEN {
            return None;
        }
        let (Some(IpAddr::V4(source)), Some(IpAddr::V4(destination))) = (packet.source, packet.destination) else {
            return None;
        };
        if packet.protocol == IPIP && self.realms.iter().flat_map(|realm| &realm.ends).any(|end| *end.ip() == source) {
            return Some(self.transferred(origin, frame, packet, now));
        }
        let (from, to) =
            (SocketAddrV4::new(source, packet.source_port), SocketAddrV4::new(destination, packet.destination_port));
        match (packet.protocol, packet.tcp_flags & (tcp_flags::SYN | tcp_flags::ACK)) {
            (TCP, tcp_flags::SYN) => {
                let realm = self.realm_at(to)?;
                let ends = Ends { datapath: origin.datapath, authority: to, client: from };
                Some(self.opened(origin, frame, packet, (ends, realm), now))
            }
            (TCP, flags) if flags == tcp_flags::SYN | tcp_flags::ACK => {
                self.realm_at(from)?;
                Some(self.answered(
                    Ends { datapath: origin.datapath, authority: from, client: to },
                    origin,
                    frame,
                    packet,
                ))
            }
            _ => None,
        }
    }

    fn realm_at(&self, end: SocketAddrV4) -> Option<usize> {
        self.realms.iter().position(|realm| realm.ends.contains(&end))
    }

    /// Puts the support option on a device's first SYN to an authority.
    fn opened(
        &mut self,
        origin: Origin,
        frame: &[u8],
        packet: &Packet,
        (ends, realm): (Ends, usize),
        now: u32,
    ) -> Fate {
        let mut rules: Vec<_> = rules::flow(packet, false).into_iter().flatten().collect();
        let plain = |rules| Fate::Forward { rules, frames: vec![frame.to_vec()] };
        let asked = self.connections.get(&ends).is_some_and(|known| now.wrapping_sub(known.opened) < AGAIN);
        let Some(device) = Device::of(origin, frame, *ends.client.ip()).filter(|_| !asked) else { return plain(rules) };
        let mut changed = frame.to_vec();
        changed.truncate(packet.end);
        changed.resize(packet.end + SHIM_LEN, 0);
        if !self.make_room(&ends, origin, now) || shim::insert(&mut changed, packet, &Content::Support).is_none() {
            return plain(rules);
        }
        let from = packet.sequence;
        let connection = Connection { device, realm, opened: now, used: now, from, answer: None, refused: 0 };
        self.connections.insert(ends, connection);
        self.counts.support += 1;
        rules.push(rules::answer_to(ends.authority, ends.client));
        Fate::Forward { rules, frames: vec![changed] }
    }

    /// Makes room for a connection. Returns false if other ports use all the room.
    fn make_room(&mut self, ends: &Ends, origin: Origin, now: u32) -> bool {
        self.connections.retain(|_, known| known.is_live(now));
        let of_port = |known: &&Connection| known.device.origin == origin;
        if self.connections.contains_key(ends) {
            return true;
        }
        if self.connections.values().filter(of_port).count() >= CONNECTIONS_OF_PORT_MAX {
            let own = self.connections.iter().filter(|(_, known)| known.device.origin == origin);
            let oldest = own.max_by_key(|(_, known)| now.wrapping_sub(known.used)).map(|(ends, _)| *ends);
            oldest.map(|ends| self.connections.remove(&ends));
        }
        self.connections.len() < CONNECTIONS_MAX
    }

    /// Notes the authority's answer to a SYN. From then on, the switch sends up the packets of protocol 4 from the
    /// authority to this device that come through the same port.
    fn answered(&mut self, ends: Ends, origin: Origin, frame: &[u8], packet: &Packet) -> Fate {
        let mut rules = Vec::new();
        if let Some(known) = self.connections.get_mut(&ends)
            && known.answer.is_none()
            && known.device.origin != origin
            && packet.acknowledgement == known.from.wrapping_add(1)
        {
            known.answer = Some((origin.port, packet.sequence));
            let (authority, client) = (*ends.authority.ip(), *ends.client.ip());
            self.forgive(&ends);
            rules.push(rules::transfers(authority, client, origin.port, CONNECTION_LIFE));
        }
        Fate::Forward { rules, frames: vec![frame.to_vec()] }
    }

    /// Begins to count refused packets anew for all connections between these hosts.
    fn forgive(&mut self, ends: &Ends) {
        for (_, known) in self.connections.iter_mut().filter(|(other, _)| other.concern(ends)) {
            known.refused = 0;
        }
    }

    /// Takes the key out of a packet, or passes the packet on unchanged if it is not one that this controller waits
    /// for. A browser may use one connection all day, so each new key extends the connection's life.
    fn transferred(&mut self, origin: Origin, frame: &[u8], packet: &Packet, now: u32) -> Fate {
        let taken = self.connection_of(origin, frame, packet, now).and_then(|(ends, opened, transfer)| {
            let mut changed = frame.to_vec();
            let len = shim::strip(&mut changed, &opened)?;
            changed.truncate(len);
            Some((ends, opened, transfer, changed))
        });
        let Some((ends, opened, transfer, changed)) = taken else { return self.refuse(origin, frame, packet) };
        let mut rules = Vec::new();
        let known = self.connections.get(&ends).map(|known| (known.device, known.realm));
        // A copy of an earlier transfer extends nothing.
        if known.is_some_and(|(device, realm)| self.take(device, realm, transfer, now))
            && let Some(known) = self.connections.get_mut(&ends)
        {
            known.used = now;
            known.from = opened.acknowledgement.wrapping_sub(1);
            known.answer = Some((origin.port, opened.sequence.wrapping_sub(1)));
            self.forgive(&ends);
            rules.push(rules::transfers(*ends.authority.ip(), *ends.client.ip(), origin.port, CONNECTION_LIFE));
        }
        Fate::Forward { rules, frames: vec![changed] }
    }

    /// Returns the connection to which a transfer belongs, the packet without its shim, and the transfer.
    fn connection_of(
        &self,
        origin: Origin,
        frame: &[u8],
        packet: &Packet,
        now: u32,
    ) -> Option<(Ends, Packet, KeyTransfer)> {
        let (opened, content) = shim::open(frame, packet)?.ok()?;
        let Content::KeyTransfer(bytes) = content else { return None };
        let (IpAddr::V4(source), IpAddr::V4(destination)) = (opened.source?, opened.destination?) else { return None };
        if opened.protocol != TCP || opened.tcp_flags & tcp_flags::ACK == 0 {
            return None;
        }
        let ends = Ends {
            datapath: origin.datapath,
            authority: SocketAddrV4::new(source, opened.source_port),
            client: SocketAddrV4::new(destination, opened.destination_port),
        };
        let known = self.connections.get(&ends)?;
        let (port, first) = known.answer?;
        let expected = port == origin.port
            && known.is_live(now)
            && opened.acknowledgement.wrapping_sub(known.from).wrapping_sub(1) <= CLIENT_SENT_MAX
            && opened.sequence.wrapping_sub(first).wrapping_sub(1) <= AUTHORITY_SENT_MAX;
        expected.then(|| (ends, opened, KeyTransfer::decode(&bytes)))
    }

    fn refuse(&mut self, origin: Origin, frame: &[u8], packet: &Packet) -> Fate {
        self.counts.refused += 1;
        let mut rules = Vec::new();
        if let (Some(IpAddr::V4(authority)), Some(IpAddr::V4(client))) = (packet.source, packet.destination) {
            let concerned = |ends: &Ends| {
                ends.datapath == origin.datapath && *ends.authority.ip() == authority && *ends.client.ip() == client
            };
            let mut count = 0;
            for (_, known) in self.connections.iter_mut().filter(|(ends, _)| concerned(ends)) {
                known.refused += 1;
                count = count.max(known.refused);
            }
            if count == 0 || count >= REFUSED_MAX {
                rules.push(rules::without_transfers(authority, client));
            }
        }
        Fate::Forward { rules, frames: vec![frame.to_vec()] }
    }

    /// Gives a device its key. A transfer whose key is zero ends the login. Returns false if the transfer changes
    /// nothing.
    fn take(&mut self, device: Device, realm: usize, transfer: KeyTransfer, now: u32) -> bool {
        self.device_keys.retain(|_, key| key.is_live(now));
        let place = (device.origin.datapath, device.address);
        if transfer.key.bytes().iter().all(|byte| *byte == 0) {
            let is_own = self.device_keys.get(&place).is_some_and(|key| key.device == device && key.realm == realm);
            return is_own && self.device_keys.remove(&place).is_some();
        }
        let handle = transfer.pair.handle();
        let mut former = VecDeque::new();
        match self.device_keys.get_mut(&place) {
            Some(key) if key.device == device && key.realm == realm => former = std::mem::take(&mut key.former),
            Some(_) => {}
            None => {
                let of_port = self.device_keys.iter().filter(|(_, key)| key.device.origin == device.origin);
                let (count, oldest) =
                    (of_port.clone().count(), of_port.max_by_key(|(_, key)| now.wrapping_sub(key.since)));
                if count >= DEVICES_OF_PORT_MAX {
                    oldest.map(|(place, _)| *place).map(|place| self.device_keys.remove(&place));
                }
                if self.device_keys.len() >= DEVICES_MAX {
                    return false;
                }
            }
        }
        if former.contains(&handle) {
            if let Some(key) = self.device_keys.get_mut(&place) {
                key.former = former;
            }
            return false;
        }
        former.push_back(handle);
        if former.len() > FORMER_PAIRS {
            former.pop_front();
        }
        let networks = self.realms.get(realm).map(|realm| realm.networks.clone()).unwrap_or_default();
        let (protected, _) = extended(&[], &networks, &[Service::ALL]);
        self.device_keys.insert(
            place,
            DeviceKey { device, realm, since: now, inserter: inserter(transfer, protected, now), former },
        );
        self.counts.keys += 1;
        true
    }

    /// Returns the relation of a packet's sender to the devices that have logged in. Removes the key that belongs to
    /// the packet's address if the key is too old, because another device possibly has the address now.
    pub(super) fn sender(&mut self, origin: Origin, frame: &[u8], packet: &Packet, now: u32) -> Sender<'_> {
        let (Some(IpAddr::V4(source)), Some(to)) = (packet.source, packet.destination) else { return Sender::Other };
        if self.device_keys.get(&(origin.datapath, source)).is_some_and(|key| !key.is_live(now)) {
            self.device_keys.remove(&(origin.datapath, source));
        }
        let Some(key) = self.device_keys.get_mut(&(origin.datapath, source)) else { return Sender::Other };
        if !self.realms.get(key.realm).is_some_and(|realm| realm.networks.iter().any(|net| net.contains(&to))) {
            return Sender::Other;
        }
        match Device::of(origin, frame, source) {
            Some(device) if device == key.device => Sender::LoggedIn(&mut key.inserter),
            _ => Sender::Spoofed,
        }
    }
}

impl Ends {
    /// Reports whether both connections are between the same hosts.
    fn concern(&self, other: &Self) -> bool {
        self.datapath == other.datapath
            && self.authority.ip() == other.authority.ip()
            && self.client.ip() == other.client.ip()
    }
}

/// Makes the inserter of one device's tokens.
fn inserter(transfer: KeyTransfer, protected: Vec<Protected>, now: u32) -> Inserter {
    let KeyTransfer { key, pair } = transfer;
    let secret = Some(Secret::Pair(pair, key));
    let everywhere = Grant { until: now.saturating_add(KEY_LIFE), skew: 0, secret, carrier: Carrier::Shim };
    // Any number but 0, which means nobody: nobody else uses this inserter.
    Inserter { subject: 1, protected, everywhere: Some(everywhere), first_nonce2: FIRST_NONCE2, ..Inserter::default() }
}
