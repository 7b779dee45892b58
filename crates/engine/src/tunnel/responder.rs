//! A verifier's ends of all its tunnels (wire.md §9.5, §9.11).
//!
//! Only the holder of a valid grant can make the verifier store anything. Tunnels, and the tags that stop replays, are
//! limited per account. A full table refuses new entries and evicts none.

mod roaming;

use super::limits::Limits;
use super::link::{Agreed, Link, Opened};
use super::phase::Phase;
use super::recent::Recent;
use super::{ATTEMPT, Chance, Dropped, LINGER, Millis, NotSealed, Packet, REKEY_AFTER, RESEND, Received};
use crate::verifier::{CLOCK_SKEW_MAX, Tables};
use seal::{Batch, ExchangeSecret};
use std::collections::HashMap;
use std::net::SocketAddr;
use wire::seal::record::{OVERHEAD, Unknown};
use wire::seal::{
    Close, Compression, Control, Direction, Handshake, INITIATION_LEN, Index, Initiation, Message, Offer, Part,
    RESPONSE_LEN, RecordHeader, Refusal, Response, Suites, Treatment,
};
use wire::{Destination, DropReason, Epoch, Flags, Handle, Holder};

/// A responder begins a new phase this much later than an initiator would: otherwise both would begin one each time.
const PATIENCE: Millis = 10_000;
/// Minimum interval between pings to a new address of a tunnel (wire.md §9.11).
const CHALLENGE: Millis = RESEND.0;

/// Bytes that may be sent to an initiator that is not confirmed, for each byte of its early datagrams (as RFC 9000 §8.1).
const CREDIT: usize = 3;

/// Identifies a tunnel for its lifetime; identifiers are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TunnelId(u64);

/// A datagram to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// Destination address and port.
    pub to: SocketAddr,
    /// Payload of the datagram.
    pub datagram: Vec<u8>,
}

/// Information about a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TunnelInfo {
    /// Account and session that the tunnel belongs to.
    pub holder: Holder,
    /// Handle of the grant that the tunnel was made with.
    pub handle: Handle,
    /// Address that the tunnel's records are sent to.
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
    tunnels: HashMap<TunnelId, Box<Tunnel>>,
    next: u64,
    indices: HashMap<Index, TunnelId>,
    /// Tunnels whose early records are still accepted, by the tag of their initiation.
    early: HashMap<[u8; 16], TunnelId>,
    accounts: HashMap<u32, u32>,
    /// The newest tunnel of each holder, which the holder's flows use.
    newest: HashMap<Holder, TunnelId>,
    /// A holder's latest tunnel whose initiator has not shown yet that it has the keys.
    pending: HashMap<Holder, TunnelId>,
    recent: Recent,
}

/// A tunnel of the responder.
pub(super) struct Tunnel {
    holder: Holder,
    handle: Handle,
    expires: u32,
    /// Whether the grant is bound to the initiator's address.
    is_bound: bool,
    address: SocketAddr,
    confirmed: bool,
    /// Bytes that may be sent before the initiator is confirmed.
    credit: usize,
    begun: Millis,
    /// When the tunnel is forgotten, if another tunnel has replaced it.
    until: Option<Millis>,
    first: Option<Box<First>>,
    link: Link,
    registered: [Option<Index>; 3],
    challenge: Option<(SocketAddr, [u8; 8], Millis)>,
}

/// State that is needed only while the handshake may be repeated.
struct First {
    tag: [u8; 16],
    response: [u8; RESPONSE_LEN],
    early: Phase,
    until: Millis,
}

/// A source of indices that no phase of this responder uses.
struct UnusedIndices<'c> {
    chance: &'c mut dyn Chance,
    taken: &'c HashMap<Index, TunnelId>,
}

impl Chance for UnusedIndices<'_> {
    fn bytes(&mut self) -> [u8; 32] {
        self.chance.bytes()
    }

    fn index(&mut self) -> Index {
        loop {
            let index = self.chance.index();
            if !self.taken.contains_key(&index) {
                return index;
            }
        }
    }
}

/// Reason why a datagram was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotTaken {
    /// Reason for a record, or for a datagram that is no message.
    Record(Dropped),
    /// Reason for an initiation.
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
    /// Creates a responder without tunnels. `suites` has the suites that it opens, and those that its hardware
    /// accelerates.
    pub fn new(limits: Limits, suites: (Suites, Suites)) -> Self {
        Self {
            limits,
            suites,
            rekey_after: REKEY_AFTER,
            tunnels: HashMap::new(),
            next: 0,
            indices: HashMap::new(),
            early: HashMap::new(),
            accounts: HashMap::new(),
            newest: HashMap::new(),
            pending: HashMap::new(),
            recent: Recent::default(),
        }
    }

    /// Returns the number of tunnels.
    pub fn len(&self) -> usize {
        self.tunnels.len()
    }

    /// Reports whether nothing is remembered: no tunnel, and no tag of an initiation.
    pub fn is_empty(&self) -> bool {
        self.tunnels.is_empty() && self.recent.len() == 0
    }

    /// Returns information about a tunnel.
    pub fn info(&self, id: TunnelId) -> Option<TunnelInfo> {
        let tunnel = self.tunnels.get(&id)?;
        let Tunnel { holder, handle, address, confirmed, .. } = **tunnel;
        Some(TunnelInfo { holder, handle, address, phase: tunnel.link.phase(), confirmed })
    }

    /// Returns the tunnel that packets to a holder use. Before the initiator is confirmed, that tunnel takes only a few:
    /// the first answer needs no further round trip, and whoever sends from a forged address gains little.
    pub fn of(&self, holder: Holder) -> Option<TunnelId> {
        self.newest.get(&holder).or_else(|| self.pending.get(&holder)).copied()
    }

    /// Processes, in place, a datagram that arrived at the tunnel's service `to` from the address `from`. Datagrams to
    /// send are appended to `out`.
    ///
    /// # Errors
    /// [`NotTaken`]. Until a tag is verified, the datagram changes nothing.
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
        match Message::read(datagram).ok_or(Dropped::Malformed)? {
            Message::Response | Message::Unknown(_) => Err(Dropped::Malformed.into()),
            Message::Initiation(early) => {
                let length = datagram.len();
                let (first, record) = datagram.split_first_chunk_mut().ok_or(Dropped::Malformed)?;
                let id = self.initiated(first, from, to, (now, wall), tables, chance, out)?;
                let received = match early {
                    Some(header) => self.early(id, &header, record)?,
                    None => Received::Nothing,
                };
                // Only for what is not a repetition: early records are taken once.
                if early.is_some()
                    && let Some(tunnel) = self.tunnels.get_mut(&id)
                {
                    tunnel.credit += CREDIT * length;
                }
                Ok((id, received))
            }
            Message::Record(header) => {
                let Some(id) = self.indices.get(&header.index).copied() else {
                    let Some(unknown) = Self::unknown(&header) else { return Err(Dropped::NoTunnel.into()) };
                    out.push(Outgoing { to: from, datagram: unknown });
                    return Err(Dropped::NoTunnel.into());
                };
                Ok((id, self.record(id, &header, datagram, from, now, chance, out)?))
            }
        }
    }

    fn unknown(header: &RecordHeader) -> Option<Vec<u8>> {
        let unknown = Unknown { index: header.index, counter: header.counter };
        (!header.content.is_early()).then(|| unknown.encode().to_vec())
    }

    /// Verifies an initiation in the order of wire.md §9.5.5, and returns its tunnel: a new tunnel, or the existing one
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
        };
        Some((tunnel, response))
    }

    /// Opens an early record.
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
        let Opened { brought, is_newest, pong } = tunnel.link.open(header, record, now, &mut unused)?;
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
            if let Some(before) = self.newest.insert(holder, id).and_then(|before| self.tunnels.get_mut(&before)) {
                before.until = Some(now + LINGER);
            }
        } else if let Some(datagram) = tunnel.moved(from, is_newest, pong, now, chance) {
            out.push(Outgoing { to: from, datagram });
        }
        self.flush(id, out);
        if let Received::Closed(_) = brought {
            self.forget(id);
        } else {
            self.register(id);
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

    /// Seals a packet for a tunnel and appends it to `out`; returns the address to send it to.
    ///
    /// # Errors
    /// [`NotSealed`]: the packet must then not be sent in any way.
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
        tunnel.link.seal(packet, now, out)?;
        Ok(tunnel.address)
    }

    /// Seals the parts of a block for a tunnel; returns the address to send them to.
    ///
    /// # Errors
    /// [`NotSealed`]: parts that were not sealed must not be sent.
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
        tunnel.link.seal_block(how, of, parts, now, out)?;
        Ok(tunnel.address)
    }

    fn usable(&mut self, id: TunnelId, wall: u32) -> Result<&mut Tunnel, NotSealed> {
        let tunnel = self.tunnels.get_mut(&id).filter(|tunnel| wall < tunnel.expires);
        tunnel.map(|tunnel| &mut **tunnel).ok_or(NotSealed::Over)
    }

    /// Performs work that is due, and ends tunnels whose grants have expired or are revoked. Call it about every 50 ms.
    pub fn poll(
        &mut self,
        (now, wall): (Millis, u32),
        tables: &(impl Tables + ?Sized),
        chance: &mut dyn Chance,
        out: &mut Vec<Outgoing>,
    ) {
        self.recent.forget(wall);
        let ids: Vec<_> = self.tunnels.keys().copied().collect();
        for id in ids {
            let Some(tunnel) = self.tunnels.get_mut(&id) else { continue };
            let ended = tables.is_revoked(tunnel.handle) || tunnel.holder.0 != 0 && tables.is_ended(tunnel.holder);
            let reason = match () {
                () if ended => Some(Close::Revoked),
                () if wall >= tunnel.expires => Some(Close::Expired),
                () => None,
            };
            if let Some(reason) = reason {
                tunnel.link.say(&Control::Close(reason), now);
                self.flush(id, out);
                self.forget(id);
                continue;
            }
            let is_stale = !tunnel.confirmed && now.saturating_sub(tunnel.begun) >= ATTEMPT;
            if is_stale || tunnel.link.is_over(now) || tunnel.until.is_some_and(|until| now >= until) {
                self.forget(id);
                continue;
            }
            if let Some(first) = tunnel.first.take_if(|first| now >= first.until) {
                self.early.remove(&first.tag);
            }
            let mut unused = UnusedIndices { chance, taken: &self.indices };
            // Nothing is sent to an initiator that has not shown that it has the keys.
            if tunnel.confirmed {
                let begins = tunnel.link.rekey_after() + PATIENCE;
                tunnel.link.poll(now, begins, &mut unused);
            }
            self.flush(id, out);
            self.register(id);
        }
    }

    /// Ends a tunnel and returns the datagram that tells its other end.
    pub fn close(&mut self, id: TunnelId, reason: Close, now: Millis) -> Option<Outgoing> {
        let tunnel = self.tunnels.get_mut(&id)?;
        let datagram = tunnel.link.said(&Control::Close(reason), now);
        let to = tunnel.address;
        self.forget(id);
        Some(Outgoing { to, datagram: datagram? })
    }

    /// Updates the indices that lead to the tunnel.
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
        if let Some(tunnel) = self.newest.get(&holder).and_then(|id| self.tunnels.get_mut(id)) {
            tunnel.link.wear(sealed, failed);
        }
    }

    fn forget(&mut self, id: TunnelId) {
        let Some(tunnel) = self.tunnels.remove(&id) else { return };
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
