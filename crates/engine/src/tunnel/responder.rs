//! A verifier's ends of all its tunnels (wire.md §9.5, §9.11).
//!
//! Only the holder of a valid grant can make the verifier store anything. The number of tunnels, and the number of tags
//! remembered against replays, are limited per account. A full table refuses new entries and evicts none.

mod due;
mod numbers;
mod roaming;

use super::limits::Limits;
use super::link::{Agreed, Link, Opened};
use super::phase::Phase;
use super::recent::Recent;
use super::{Chance, Dropped, LINGER, Millis, NotSealed, Packet, REKEY_AFTER, RESEND, Received, UNITS_MAX};
use crate::verifier::{CLOCK_SKEW_MAX, Tables};
use due::Schedule;
use numbers::{OwnNumbers, UnusedIndices};
use seal::{Batch, ExchangeSecret};
use std::collections::HashMap;
use std::net::SocketAddr;
use wire::seal::record::{OVERHEAD, Unknown};
use wire::seal::{
    Close, Compression, Control, Direction, Handshake, INITIATION_LEN, Index, Initiation, Message, Offer, Part,
    RESPONSE_LEN, RecordHeader, Refusal, Response, Suites, Treatment,
};
use wire::{Destination, DropReason, Epoch, Flags, Handle, Holder};

/// Minimum interval, in milliseconds, between pings to a new address of a tunnel (wire.md §9.11).
const CHALLENGE: Millis = RESEND.0;

/// Number of bytes that may be sent to an unconfirmed initiator for each byte of its early datagrams (as in RFC 9000
/// §8.1).
const CREDIT: usize = 3;

/// Number that identifies a tunnel for its lifetime. Numbers are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TunnelId(u64);

/// A datagram to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// Address and port to which the caller has to send the datagram.
    pub to: SocketAddr,
    /// Payload of the datagram.
    pub datagram: Vec<u8>,
}

/// Information about a tunnel. It is shown to users, and the tunnel's packets are checked against it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TunnelInfo {
    /// Account and session to which the tunnel belongs.
    pub holder: Holder,
    /// Handle of the grant with which the tunnel was made.
    pub handle: Handle,
    /// Address to which the tunnel's records are sent.
    pub address: SocketAddr,
    /// Phase in which records are sealed.
    pub phase: u32,
    /// Whether the initiator has shown that it has the keys of a complete handshake.
    pub confirmed: bool,
}

/// All tunnels of a verifier.
pub struct Responder {
    limits: Limits,
    suites: (Suites, Suites),
    rekey_after: Millis,
    tunnels: HashMap<TunnelId, Box<Tunnel>, OwnNumbers>,
    next: u64,
    indices: HashMap<Index, TunnelId, OwnNumbers>,
    /// Tunnels whose early records are still accepted, by the tag of their initiation.
    early: HashMap<[u8; 16], TunnelId>,
    accounts: HashMap<u32, u32>,
    /// The newest tunnel of each holder. The holder's flows use this tunnel.
    newest: HashMap<Holder, TunnelId>,
    /// The holder's latest tunnel whose initiator has not yet shown that it has the keys.
    pending: HashMap<Holder, TunnelId>,
    recent: Recent,
    schedule: Schedule,
}

/// A tunnel of a responder.
pub(super) struct Tunnel {
    holder: Holder,
    handle: Handle,
    expires: u32,
    /// Whether the grant is bound to the initiator's address.
    is_bound: bool,
    address: SocketAddr,
    confirmed: bool,
    /// Number of bytes that the tunnel may still send before the initiator is confirmed.
    credit: usize,
    begun: Millis,
    /// Time at which the tunnel is removed; `None` unless another tunnel has replaced it.
    until: Option<Millis>,
    first: Option<Box<First>>,
    link: Link,
    registered: [Option<Index>; 3],
    challenge: Option<(SocketAddr, [u8; 8], Millis)>,
    /// Time at which the schedule next looks at the tunnel.
    due: Millis,
    /// The shortest age of a phase that the rules of flows in the tunnel demand.
    rekey_after: Option<Millis>,
}

/// State that is needed only while the handshake may be repeated.
struct First {
    tag: [u8; 16],
    response: [u8; RESPONSE_LEN],
    early: Phase,
    until: Millis,
}

/// Reason why a responder did not accept a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotTaken {
    /// The datagram is a record that was dropped for this reason, or it is not a message of a tunnel.
    Record(Dropped),
    /// The datagram is an initiation that was dropped for this reason.
    Initiation(DropReason),
}

impl From<Dropped> for NotTaken {
    fn from(dropped: Dropped) -> Self {
        Self::Record(dropped)
    }
}

impl From<DropReason> for NotTaken {
    fn from(reason: DropReason) -> Self {
        Self::Initiation(reason)
    }
}

impl Responder {
    /// Creates a responder without tunnels. `suites` are the suites that this machine can open, and the suites that its
    /// hardware accelerates.
    pub fn new(limits: Limits, suites: (Suites, Suites)) -> Self {
        Self {
            limits,
            suites,
            rekey_after: REKEY_AFTER,
            tunnels: HashMap::default(),
            next: 0,
            indices: HashMap::default(),
            early: HashMap::new(),
            accounts: HashMap::new(),
            newest: HashMap::new(),
            pending: HashMap::new(),
            recent: Recent::default(),
            schedule: Schedule::default(),
        }
    }

    /// Returns the number of tunnels.
    pub fn len(&self) -> usize {
        self.tunnels.len()
    }

    /// Reports whether the responder stores neither a tunnel nor the tag of an initiation.
    pub fn is_empty(&self) -> bool {
        self.tunnels.is_empty() && self.recent.len() == 0
    }

    /// Returns information about a tunnel.
    pub fn info(&self, id: TunnelId) -> Option<TunnelInfo> {
        let tunnel = self.tunnels.get(&id)?;
        let Tunnel { holder, handle, address, confirmed, .. } = **tunnel;
        Some(TunnelInfo { holder, handle, address, phase: tunnel.link.phase(), confirmed })
    }

    /// Returns the tunnel for packets to a holder. As long as the initiator is not confirmed, the tunnel can send only
    /// a few bytes to the initiator. These bytes are enough for a first answer without another round trip, and too few
    /// to help an attacker who forges the initiator's address.
    pub fn of(&self, holder: Holder) -> Option<TunnelId> {
        self.newest.get(&holder).or_else(|| self.pending.get(&holder)).copied()
    }

    /// Processes, in place, a datagram that arrived at the tunnel's service `to` from the address `from`. Appends to
    /// `out` the datagrams that the caller has to send.
    ///
    /// # Errors
    ///
    /// Returns the reason why the datagram was not accepted. A datagram whose tag is not valid changes nothing but
    /// counters.
    #[allow(clippy::too_many_arguments)]
    pub fn receive<'d>(
        &mut self,
        datagram: &'d mut [u8],
        from: SocketAddr,
        to: &Destination,
        (now, wall): (Millis, u32),
        tables: &(impl Tables + ?Sized),
        chance: &mut dyn Chance,
        out: &mut Vec<Outgoing>,
    ) -> Result<(TunnelId, Received<'d>), NotTaken> {
        if !Message::begins_tunnel(datagram) {
            return self.receive_record(datagram, from, now, chance, out);
        }
        let Some(Message::Initiation(early)) = Message::read(datagram) else { return Err(Dropped::Malformed.into()) };
        let length = datagram.len();
        let (first, record) = datagram.split_first_chunk_mut().ok_or(Dropped::Malformed)?;
        let id = self.initiated(first, from, to, (now, wall), tables, chance, out)?;
        let received = match early {
            Some(header) => self.early(id, &header, record)?,
            None => Received::Nothing,
        };
        // Not for a repeated initiation: its early records were accepted once and must not be again.
        if early.is_some()
            && let Some(tunnel) = self.tunnels.get_mut(&id)
        {
            tunnel.credit += CREDIT * length;
        }
        Ok((id, received))
    }

    /// Processes a datagram that is not an initiation ([`Message::begins_tunnel`]) as [`Self::receive`] does. Needs
    /// none of the verifier's tables.
    ///
    /// # Errors
    ///
    /// Returns the reason why the datagram was not accepted.
    pub fn receive_record<'d>(
        &mut self,
        datagram: &'d mut [u8],
        from: SocketAddr,
        now: Millis,
        chance: &mut dyn Chance,
        out: &mut Vec<Outgoing>,
    ) -> Result<(TunnelId, Received<'d>), NotTaken> {
        let Some(Message::Record(header)) = Message::read(datagram) else { return Err(Dropped::Malformed.into()) };
        let Some(id) = self.indices.get(&header.index).copied() else {
            out.extend(Self::unknown(&header).map(|datagram| Outgoing { to: from, datagram }));
            return Err(Dropped::NoTunnel.into());
        };
        Ok((id, self.record(id, &header, datagram, from, now, chance, out)?))
    }

    fn unknown(header: &RecordHeader) -> Option<Vec<u8>> {
        let unknown = Unknown { index: header.index, counter: header.counter };
        (!header.content.is_early()).then(|| unknown.encode().to_vec())
    }

    /// Verifies an initiation in the order of wire.md §9.5.5. Returns its tunnel: a new tunnel, or the existing tunnel
    /// if the initiation was repeated.
    #[allow(clippy::too_many_arguments)]
    fn initiated(
        &mut self,
        bytes: &[u8; INITIATION_LEN],
        from: SocketAddr,
        to: &Destination,
        (now, wall): (Millis, u32),
        tables: &(impl Tables + ?Sized),
        chance: &mut dyn Chance,
        out: &mut Vec<Outgoing>,
    ) -> Result<TunnelId, DropReason> {
        let initiation = Initiation::read(bytes, to.address.is_ipv6())?;
        let Initiation { grant, time, offer, .. } = &initiation;
        let config = tables.config();
        if !config.speaks(grant.suite as u8) {
            return Err(DropReason::UnknownSuite);
        }
        let current = Epoch::at(wall.into(), config.epoch_length.max(1));
        let key = current.from_wire(grant.epoch).and_then(|epoch| tables.key(epoch));
        let key = key.ok_or(DropReason::UnknownEpoch)?;
        if grant.expires <= wall {
            return Err(DropReason::Expired);
        }
        if grant.expires - wall > config.max_lifetime {
            return Err(DropReason::LifetimeTooLong);
        }
        if time.abs_diff(wall) > CLOCK_SKEW_MAX {
            return Err(DropReason::ClockSkew);
        }
        if tables.has_forgotten(*time) {
            return Err(DropReason::ClockSkew);
        }
        let grant_key = grant.key(&key, to, from.ip());
        if !initiation.is_proved(bytes, &grant_key, to) {
            return Err(DropReason::BadTag);
        }
        // The sender has now proved that it has the grant.
        let holder = Holder::of(grant.handle, &key);
        let tag: [u8; 16] = *bytes.last_chunk().ok_or(DropReason::Malformed)?;
        let is_revoked = tables.is_revoked(grant.handle) || holder.0 != 0 && tables.is_ended(holder);
        let refused = |refusal, out: &mut Vec<Outgoing>| {
            let offer = Offer { suites: self.suites.0, helped: self.suites.1, ..*offer };
            let response = Response { offer, to: initiation.index, given: Err(refusal) };
            let datagram = Handshake::new(&grant_key, bytes, to).refuse(&response);
            out.extend(datagram.map(|datagram| Outgoing { to: from, datagram: datagram.to_vec() }));
        };
        if is_revoked {
            refused(Refusal::Revoked, out);
            return Err(DropReason::Revoked);
        }
        if tables.has_forgotten(grant.expires) {
            return Err(DropReason::Expired);
        }
        if let Some((id, tunnel)) = self.early.get(&tag).and_then(|id| Some((*id, self.tunnels.get_mut(id)?))) {
            if !tunnel.confirmed {
                tunnel.address = from;
                if let Some(first) = &tunnel.first {
                    out.push(Outgoing { to: from, datagram: first.response.to_vec() });
                }
            }
            return Ok(id);
        }
        if self.recent.has(*time, &tag, holder.account()) {
            return Err(DropReason::Replayed);
        }
        let used = self.accounts.get(&holder.account()).copied().unwrap_or(0);
        if offer.suites.and(self.suites.0).iter().next().is_none() {
            refused(Refusal::NoSuite, out);
            return Err(DropReason::UnknownSuite);
        }
        if used >= self.limits.of_account || self.tunnels.len() >= self.limits.tunnels {
            refused(Refusal::Limit, out);
            return Err(DropReason::FlowLimit);
        }
        if !self.recent.note(*time, tag, holder.account(), wall, self.limits.recent) {
            return Err(DropReason::FlowLimit);
        }
        let handshake = Handshake::new(&grant_key, bytes, to);
        let made = self.tunnel(&initiation, &handshake, (holder, tag), from, now, chance);
        let (tunnel, response) = made.ok_or(DropReason::Malformed)?;
        let id = TunnelId(self.next);
        self.next += 1;
        self.accounts.insert(holder.account(), used + 1);
        self.early.insert(tag, id);
        self.pending.insert(holder, id);
        self.tunnels.insert(id, Box::new(tunnel));
        self.register(id);
        self.schedule.add(id);
        self.reschedule(id, now);
        out.push(Outgoing { to: from, datagram: response.to_vec() });
        Ok(id)
    }

    /// Makes the tunnel for a valid initiation. Returns `None` if the initiator's share is invalid.
    fn tunnel(
        &self,
        initiation: &Initiation,
        handshake: &Handshake,
        (holder, tag): (Holder, [u8; 16]),
        from: SocketAddr,
        now: Millis,
        chance: &mut dyn Chance,
    ) -> Option<(Tunnel, [u8; RESPONSE_LEN])> {
        let Initiation { offer, grant, index: theirs, share, .. } = initiation;
        let mut chance = UnusedIndices { chance, taken: &self.indices };
        let secret = ExchangeSecret::new(chance.bytes(), offer.forward)?;
        let mine = chance.index();
        let own = Offer { suites: self.suites.0, helped: self.suites.1, ..*offer };
        let response = Response { offer: own, to: *theirs, given: Ok((mine, *secret.share())) };
        let (response, phase) = handshake.respond(&response, &secret.shared(share)?)?;
        let agreed = Agreed {
            way: Direction::FromResponder,
            forward: offer.forward,
            suites: offer.suites.and(own.suites),
            helped: offer.helped.and(own.helped),
            rekey_after: self.rekey_after,
            worn_at: UNITS_MAX / 2,
        };
        let early = Phase::new(0, *theirs, *theirs, handshake.early()?, Direction::FromResponder, now);
        let tunnel = Tunnel {
            holder,
            handle: grant.handle,
            expires: grant.expires,
            is_bound: grant.flags.has(Flags::SOURCE),
            address: from,
            confirmed: false,
            credit: 0,
            begun: now,
            until: None,
            first: Some(Box::new(First { tag, response, early, until: Millis::MAX })),
            link: Link::new(agreed, mine, *theirs, phase, now),
            registered: [None; 3],
            challenge: None,
            due: Millis::MAX,
            rekey_after: None,
        };
        Some((tunnel, response))
    }

    /// Opens an early record, which follows an initiation.
    fn early<'d>(
        &mut self,
        id: TunnelId,
        header: &RecordHeader,
        record: &'d mut [u8],
    ) -> Result<Received<'d>, Dropped> {
        let tunnel = self.tunnels.get_mut(&id).ok_or(Dropped::NoTunnel)?;
        let first = tunnel.first.as_mut().ok_or(Dropped::NoTunnel)?;
        if first.early.mine != header.index {
            return Err(Dropped::Malformed);
        }
        let (packet, _) = first.early.open(header, record)?;
        let partial = header.content == wire::seal::Content::Early { partial: true };
        let treatment = Treatment::Encrypt;
        Ok(Received::Packet { treatment, suite: header.suite, partial, early: true, packet })
    }

    #[allow(clippy::too_many_arguments)]
    fn record<'d>(
        &mut self,
        id: TunnelId,
        header: &RecordHeader,
        record: &'d mut [u8],
        from: SocketAddr,
        now: Millis,
        chance: &mut dyn Chance,
        out: &mut Vec<Outgoing>,
    ) -> Result<Received<'d>, Dropped> {
        let tunnel = self.tunnels.get_mut(&id).ok_or(Dropped::NoTunnel)?;
        let mut unused = UnusedIndices { chance, taken: &self.indices };
        let was_at_rest = tunnel.link.is_at_rest();
        let opened = tunnel.link.open(header, record, now, &mut unused);
        let is_known = tunnel.confirmed && tunnel.address == from && tunnel.link.indices() == tunnel.registered;
        if opened.is_err() && tunnel.link.is_worn() {
            self.reschedule(id, now);
        }
        let Opened { brought, is_newest, pong } = opened?;
        let is_packet = matches!(brought, Received::Packet { .. } | Received::Block { .. });
        // Most records: nothing about the tunnel has changed.
        if is_packet && is_known && !was_at_rest {
            return Ok(brought);
        }
        let Some(tunnel) = self.tunnels.get_mut(&id) else { return Ok(brought) };
        let mut unused = UnusedIndices { chance, taken: &self.indices };
        if !tunnel.confirmed {
            tunnel.confirmed = true;
            tunnel.address = from;
            if let Some(first) = &mut tunnel.first {
                first.until = now + LINGER;
            }
            let holder = tunnel.holder;
            if self.pending.get(&holder) == Some(&id) {
                self.pending.remove(&holder);
            }
            let before = self.newest.insert(holder, id);
            if let Some((id, before)) = before.and_then(|id| Some((id, self.tunnels.get_mut(&id)?))) {
                before.until = Some(now + LINGER);
                self.reschedule(id, now);
            }
        } else if let Some(datagram) = tunnel.moved(from, is_newest, pong, now, &mut unused) {
            out.push(Outgoing { to: from, datagram });
        }
        self.flush(id, out);
        if let Received::Closed(_) = brought {
            self.forget(id);
        } else {
            self.register(id);
            self.reschedule(id, now);
        }
        Ok(brought)
    }

    fn flush(&mut self, id: TunnelId, out: &mut Vec<Outgoing>) {
        if let Some(tunnel) = self.tunnels.get_mut(&id) {
            let to = tunnel.address;
            out.extend(tunnel.link.out.drain(..).map(|datagram| Outgoing { to, datagram }));
            tunnel.link.out.shrink_to_fit();
        }
    }

    /// Seals a packet for a tunnel and appends the record to `out`. Returns the address to which the caller has to send
    /// the record.
    ///
    /// # Errors
    ///
    /// Returns why the packet was not sealed. The caller must then not send the packet in any other way.
    pub fn seal(
        &mut self,
        id: TunnelId,
        packet: &Packet<'_>,
        (now, wall): (Millis, u32),
        out: &mut Batch,
    ) -> Result<SocketAddr, NotSealed> {
        let tunnel = self.usable(id, wall)?;
        if !tunnel.confirmed {
            let length = OVERHEAD + packet.parts.iter().map(|part| part.len()).sum::<usize>();
            tunnel.credit = tunnel.credit.checked_sub(length).ok_or(NotSealed::Waits)?;
        }
        let was_at_rest = tunnel.link.is_at_rest();
        tunnel.link.seal(packet, now, out)?;
        let address = tunnel.address;
        if was_at_rest || tunnel.link.is_worn() {
            self.reschedule(id, now);
        }
        Ok(address)
    }

    /// Seals the parts of a block for a tunnel. Returns the address to which the caller has to send the records. `how`
    /// is the treatment and compression of the block; `of` contains the suites that the rule allows, and the lane.
    ///
    /// # Errors
    ///
    /// Returns why not all parts were sealed. The caller must not send the other parts in any other way.
    pub fn seal_block<'p>(
        &mut self,
        id: TunnelId,
        how: (Treatment, Compression),
        of: (Suites, u8),
        parts: impl Iterator<Item = (Part, &'p [u8])>,
        (now, wall): (Millis, u32),
        out: &mut Batch,
    ) -> Result<SocketAddr, NotSealed> {
        let tunnel = self.usable(id, wall)?;
        if !tunnel.confirmed {
            return Err(NotSealed::Waits);
        }
        let was_at_rest = tunnel.link.is_at_rest();
        tunnel.link.seal_block(how, of, parts, now, out)?;
        let address = tunnel.address;
        if was_at_rest || tunnel.link.is_worn() {
            self.reschedule(id, now);
        }
        Ok(address)
    }

    fn usable(&mut self, id: TunnelId, wall: u32) -> Result<&mut Tunnel, NotSealed> {
        let tunnel = self.tunnels.get_mut(&id).filter(|tunnel| wall < tunnel.expires);
        tunnel.map(|tunnel| &mut **tunnel).ok_or(NotSealed::Over)
    }

    /// Ends a tunnel. Returns a datagram that tells the other end that the tunnel has ended.
    pub fn close(&mut self, id: TunnelId, reason: Close, now: Millis) -> Option<Outgoing> {
        let tunnel = self.tunnels.get_mut(&id)?;
        let datagram = tunnel.link.said(&Control::Close(reason), now);
        let to = tunnel.address;
        self.forget(id);
        Some(Outgoing { to, datagram: datagram? })
    }

    /// Updates the table that finds the tunnel by its indices.
    fn register(&mut self, id: TunnelId) {
        let Some(tunnel) = self.tunnels.get_mut(&id) else { return };
        let now = tunnel.link.indices();
        if now == tunnel.registered {
            return;
        }
        for gone in tunnel.registered.into_iter().flatten().filter(|index| !now.contains(&Some(*index))) {
            self.indices.remove(&gone);
        }
        for index in now.into_iter().flatten() {
            self.indices.insert(index, id);
        }
        tunnel.registered = now;
    }

    #[cfg(test)]
    pub(super) fn repeats(&self, id: TunnelId) -> bool {
        self.tunnels.get(&id).is_some_and(|tunnel| tunnel.first.is_some())
    }

    #[cfg(test)]
    pub(super) fn wear(&mut self, holder: Holder, sealed: u64, failed: u64) {
        let Some(id) = self.newest.get(&holder).copied() else { return };
        if let Some(tunnel) = self.tunnels.get_mut(&id) {
            tunnel.link.wear(sealed, failed);
        }
        self.reschedule(id, 0);
    }

    fn forget(&mut self, id: TunnelId) {
        let Some(tunnel) = self.tunnels.remove(&id) else { return };
        self.schedule.remove(tunnel.due, id);
        for index in tunnel.registered.into_iter().flatten() {
            self.indices.remove(&index);
        }
        if let Some(first) = &tunnel.first {
            self.early.remove(&first.tag);
        }
        if self.newest.get(&tunnel.holder) == Some(&id) {
            self.newest.remove(&tunnel.holder);
        }
        if self.pending.get(&tunnel.holder) == Some(&id) {
            self.pending.remove(&tunnel.holder);
        }
        if let Some(used) = self.accounts.get_mut(&tunnel.holder.account()) {
            *used -= 1;
            if *used == 0 {
                self.accounts.remove(&tunnel.holder.account());
            }
        }
    }
}
