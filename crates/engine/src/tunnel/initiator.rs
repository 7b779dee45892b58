//! The agent's end of one tunnel (wire.md §9.5, §9.10, §9.12).

use super::link::{Again, Agreed, Link};
use super::phase::Phase;
use super::watch::Watch;
use super::{ATTEMPT, Chance, Dropped, KEEP_ALIVE, LINGER, Millis, NotSealed, Packet, RESEND, Received, UNITS_MAX};
use seal::{Batch, ExchangeSecret};
use wire::seal::record::{OVERHEAD, Unknown};
use wire::seal::{
    Close, Compression, Content, Control, Direction, Handshake, INITIATION_LEN, Initiation, Message, Offer, Part,
    RESPONSE_LEN, RecordHeader, Refusal, Response, Suite, Suites, Treatment,
};
use wire::{Destination, GrantHeader, GrantKey};

/// Milliseconds that an initiator waits after a refusal before it tries again.
const REFUSED: Millis = 10_000;
/// Minimum interval, in milliseconds, between handshakes that messages of type `unknown` begin or hasten. Such a
/// message also has no effect if a record has arrived within this time.
const UNKNOWN: Millis = 1_000;

/// Parameters for the handshakes of a tunnel.
#[derive(Clone)]
pub struct Terms {
    /// Grant for the service at which the verifier accepts tunnels. The handshake proves this grant.
    pub grant: GrantHeader,
    /// The key of the grant `grant`.
    pub key: GrantKey,
    /// The service at which the verifier accepts tunnels.
    pub to: Destination,
    /// Whether the two ends exchange X25519 keys, which gives forward secrecy.
    pub forward: bool,
    /// Suites that this machine can open, and suites that its hardware accelerates.
    pub suites: (Suites, Suites),
    /// Age, in milliseconds, at which a phase is re-keyed.
    pub rekey_after: Millis,
    /// The longest datagram payload that fits the path, in bytes.
    pub room: usize,
}

/// The agent's end of the tunnel to one verifier.
pub struct Initiator {
    terms: Terms,
    attempt: Option<Box<Attempt>>,
    link: Option<Box<Link>>,
    /// Time at which the link's grant expires, in Unix seconds.
    expires: u32,
    /// The link that a newer handshake has replaced, and the time until which this link still opens records in transit.
    before: Option<(Box<Link>, Millis)>,
    refused: Option<(Refusal, Millis)>,
    doubted: Millis,
    wanted: bool,
    watch: Watch,
    /// Number of units sealed in a phase after which the next phase begins.
    worn_at: u64,
}

/// An initiation that awaits its response.
struct Attempt {
    bytes: [u8; INITIATION_LEN],
    expires: u32,
    initiation: Initiation,
    handshake: Handshake,
    secret: ExchangeSecret,
    early: Phase,
    begun: Millis,
    again: Again,
    sent: bool,
}

impl Initiator {
    /// Creates an end that has no tunnel yet. It begins a handshake when the caller passes `true` to [`Self::want`], or
    /// when a packet is to be sealed.
    pub fn new(terms: Terms) -> Self {
        Self {
            expires: 0,
            terms,
            attempt: None,
            link: None,
            before: None,
            refused: None,
            doubted: 0,
            wanted: false,
            watch: Watch::default(),
            worn_at: UNITS_MAX / 2,
        }
    }

    /// Sets new terms, for example with a newer grant. The next handshake uses them. If the age at which phases are
    /// re-keyed is lower than before, this age also applies to the tunnel that is open.
    pub fn renew(&mut self, terms: Terms, now: Millis) {
        if let Some(link) = self.link.as_mut().filter(|link| terms.rekey_after < link.rekey_after()) {
            link.set_rekey_after(terms.rekey_after, now);
        }
        self.terms = terms;
        self.refused = None;
    }

    /// Sets the number of bytes after which a phase is re-keyed. The number is approximate and applies from the next
    /// handshake on. It has no effect if the limit of wire.md §9.10 demands re-keying earlier.
    pub fn rekey_after_bytes(&mut self, bytes: u64) {
        self.worn_at = (bytes / 16).clamp(1, UNITS_MAX / 2);
    }

    /// Sets whether there are flows for the tunnel. With flows, the tunnel stays open even without traffic.
    pub fn want(&mut self, wanted: bool) {
        self.wanted = wanted;
    }

    /// Reports whether a handshake is complete, so that packets are sealed with its keys.
    pub fn is_open(&self, now: Millis) -> bool {
        self.link.as_ref().is_some_and(|link| !link.is_over(now))
    }

    /// Reports whether a packet of this length, in bytes, can be sealed now. This is the case if there is a tunnel, or
    /// if the packet fits behind an initiation and the initiation's grant has not ended.
    pub fn takes(&self, length: usize, (now, wall): (Millis, u32)) -> bool {
        let is_early = wall < self.terms.grant.expires && INITIATION_LEN + OVERHEAD + length <= self.terms.room;
        self.is_open(now) && wall < self.expires || is_early
    }

    /// Returns the number of the phase in which packets are sealed; 0 before the response.
    pub fn phase(&self) -> u32 {
        self.link.as_ref().map_or(0, |link| link.phase())
    }

    /// Returns the suite with which the end would now seal a packet, if the packet's rule allows the suites `allowed`.
    /// Returns `None` if there is no tunnel, or if no suite is supported by both ends and allowed by the rule.
    pub fn suite(&self, allowed: Suites) -> Option<Suite> {
        self.link.as_ref()?.suite(allowed)
    }

    /// Returns the reason why the verifier refused the tunnel, if it did so recently.
    pub fn refused(&self) -> Option<Refusal> {
        self.refused.map(|refused| refused.0)
    }

    /// Seals a packet and appends the datagram to `out`: a record if there is a tunnel, otherwise an early record
    /// behind an initiation. An early record is always encrypted, whatever treatment was requested.
    ///
    /// # Errors
    ///
    /// Returns the reason why the packet was not sealed. The caller must then not send the packet in any other way.
    pub fn seal(
        &mut self,
        packet: &Packet<'_>,
        (now, wall): (Millis, u32),
        chance: &mut dyn Chance,
        out: &mut Batch,
    ) -> Result<(), NotSealed> {
        if let Some(link) = self.link.as_mut().filter(|link| !link.is_over(now) && wall < self.expires) {
            return link.seal(packet, now, out);
        }
        self.attempt((now, wall), chance)?;
        let attempt = self.attempt.as_mut().ok_or(NotSealed::Over)?;
        let body: usize = packet.parts.iter().map(|part| part.len()).sum();
        if INITIATION_LEN + OVERHEAD + body > self.terms.room {
            return Err(NotSealed::Waits);
        }
        // The suites that the other end opens are not known yet: choose among this end's.
        let (suites, helped) = self.terms.suites;
        let suite = Suites::choose(suites.and(packet.suites), helped).ok_or(NotSealed::NoSuite)?;
        let mut record = Batch::default();
        let content = Content::Early { partial: packet.partial };
        attempt.early.seal(content, suite, packet.lane, packet.parts, &mut record)?;
        record.runs().for_each(|run| out.push(&[&attempt.bytes, run.bytes]));
        attempt.sent = true;
        Ok(())
    }

    /// Seals the parts of a block. This is possible only when there is a tunnel. `how` is the treatment and compression
    /// of the block; `of` contains the suites that the rule allows, and the lane.
    ///
    /// # Errors
    ///
    /// Returns the reason why not all parts were sealed. The caller must not send the other parts in any other way.
    pub fn seal_block<'p>(
        &mut self,
        how: (Treatment, Compression),
        of: (Suites, u8),
        parts: impl Iterator<Item = (Part, &'p [u8])>,
        (now, wall): (Millis, u32),
        out: &mut Batch,
    ) -> Result<(), NotSealed> {
        let link = self.link.as_mut().filter(|_| wall < self.expires).ok_or(NotSealed::Waits)?;
        link.seal_block(how, of, parts, now, out)
    }

    pub(super) fn links(&self) -> impl Iterator<Item = &Link> {
        self.link.iter().chain(self.before.iter().map(|before| &before.0)).map(|link| &**link)
    }

    /// Returns the phase of early records, while an initiation awaits its response.
    pub(super) fn early(&self) -> Option<&Phase> {
        self.attempt.as_ref().map(|attempt| &attempt.early)
    }

    /// Reports whether a datagram is possibly for this end. [`Self::receive`] leaves any other datagram unchanged.
    pub fn knows(&self, datagram: &[u8]) -> bool {
        let links = || self.links();
        match Message::read(datagram) {
            Some(Message::Record(header)) => links().any(|link| link.indices().contains(&Some(header.index))),
            Some(Message::Response) => {
                let response = datagram.try_into().ok().and_then(Response::read);
                let attempt = self.attempt.as_ref().map(|attempt| attempt.initiation.index);
                response.is_some_and(|response| Some(response.to) == attempt)
            }
            Some(Message::Unknown(unknown)) => links().any(|link| link.may_have_sealed(unknown.index, unknown.counter)),
            Some(Message::Initiation(_)) | None => false,
        }
    }

    /// Processes a datagram from the tunnel's service, in place.
    ///
    /// # Errors
    ///
    /// Returns the reason why the datagram was dropped. A datagram whose tag is not valid changes nothing but counters.
    pub fn receive<'d>(
        &mut self,
        datagram: &'d mut [u8],
        (now, wall): (Millis, u32),
        chance: &mut dyn Chance,
    ) -> Result<Received<'d>, Dropped> {
        match Message::read(datagram).ok_or(Dropped::Malformed)? {
            Message::Initiation(_) => Err(Dropped::Malformed),
            Message::Response => {
                let bytes: &[u8; RESPONSE_LEN] = (&*datagram).try_into().map_err(|_| Dropped::Malformed)?;
                self.answered(bytes, now)
            }
            Message::Record(header) => self.record(&header, datagram, now, chance),
            Message::Unknown(unknown) => {
                self.unknown(&unknown, (now, wall), chance);
                Ok(Received::Nothing)
            }
        }
    }

    fn answered<'d>(&mut self, bytes: &[u8; RESPONSE_LEN], now: Millis) -> Result<Received<'d>, Dropped> {
        let response = Response::read(bytes).ok_or(Dropped::Malformed)?;
        let attempt = self.attempt.as_ref().filter(|attempt| attempt.initiation.index == response.to);
        let attempt = attempt.ok_or(Dropped::NoTunnel)?;
        let offer = attempt.initiation.offer;
        let Ok((theirs, share)) = response.given else {
            let refusal = attempt.handshake.is_refused(bytes).ok_or(Dropped::BadTag)?;
            self.attempt = None;
            self.refused = Some((refusal, now + REFUSED));
            return Ok(Received::Refused(refusal));
        };
        let shared = attempt.secret.shared(&share).ok_or(Dropped::Malformed)?;
        let secret = attempt.handshake.take(bytes, &shared).ok_or(Dropped::BadTag)?;
        if response.offer.forward != offer.forward {
            return Err(Dropped::Malformed);
        }
        let agreed = Agreed {
            way: Direction::FromInitiator,
            forward: offer.forward,
            suites: offer.suites.and(response.offer.suites),
            helped: offer.helped.and(response.offer.helped),
            rekey_after: self.terms.rekey_after,
            worn_at: self.worn_at,
        };
        let mut link = Box::new(Link::new(agreed, attempt.initiation.index, theirs, secret, now));
        // This first record tells the responder that its response arrived.
        link.say(&Control::Ping([0; 8]), now);
        self.expires = attempt.expires;
        self.attempt = None;
        self.refused = None;
        self.watch = Watch::default();
        if let Some(before) = self.link.replace(link) {
            self.before = Some((before, now + LINGER));
        }
        Ok(Received::Open)
    }

    fn record<'d>(
        &mut self,
        header: &RecordHeader,
        datagram: &'d mut [u8],
        now: Millis,
        chance: &mut dyn Chance,
    ) -> Result<Received<'d>, Dropped> {
        let links = self.link.iter_mut().chain(self.before.iter_mut().map(|before| &mut before.0));
        let mut found = links.filter(|link| link.indices().contains(&Some(header.index)));
        let opened = found.next().ok_or(Dropped::NoTunnel)?.open(header, datagram, now, chance)?;
        if let Received::Closed(_) = opened.brought {
            let is_closed = |link: &Link| link.closed.is_some();
            self.link.take_if(|link| is_closed(link));
            self.before.take_if(|before| is_closed(&before.0));
        }
        Ok(opened.brought)
    }

    /// Handles an unauthenticated claim that the other end doesn't know the tunnel (wire.md §9.12). The claim can cause
    /// a new handshake, or the repetition of an initiation, and has no other effect.
    fn unknown(&mut self, unknown: &Unknown, (now, wall): (Millis, u32), chance: &mut dyn Chance) {
        let is_ours = self.link.as_ref().is_some_and(|link| {
            link.may_have_sealed(unknown.index, unknown.counter) && now.saturating_sub(link.last_received) >= UNKNOWN
        });
        if is_ours && now.saturating_sub(self.doubted) >= UNKNOWN {
            self.doubted = now;
            // If no handshake can begin, the tunnel ends by its timeouts.
            let _ = self.attempt((now, wall), chance);
            if let Some(attempt) = &mut self.attempt {
                attempt.again.hasten(now);
            }
        }
    }

    /// Begins a handshake, unless one is in progress.
    fn attempt(&mut self, (now, wall): (Millis, u32), chance: &mut dyn Chance) -> Result<(), NotSealed> {
        if self.attempt.as_ref().is_some_and(|attempt| now.saturating_sub(attempt.begun) < ATTEMPT) {
            return Ok(());
        }
        if self.refused.is_some_and(|refused| now < refused.1) || wall >= self.terms.grant.expires {
            return Err(NotSealed::Over);
        }
        let Terms { grant, key, to, forward, suites: (suites, helped), .. } = &self.terms;
        let secret = ExchangeSecret::new(chance.bytes(), *forward).ok_or(NotSealed::Impossible)?;
        let offer = Offer { forward: *forward, suites: *suites, helped: *helped };
        let index = chance.index();
        let initiation = Initiation { offer, index, time: wall, grant: *grant, share: *secret.share() };
        let bytes = initiation.seal(key, to);
        let handshake = Handshake::new(key, &bytes, to);
        let secret_early = handshake.early().ok_or(NotSealed::Impossible)?;
        self.attempt = Some(Box::new(Attempt {
            bytes,
            expires: grant.expires,
            initiation,
            handshake,
            secret,
            early: Phase::new(0, index, index, secret_early, Direction::FromInitiator, now),
            begun: now,
            again: Again::new(now),
            sent: false,
        }));
        Ok(())
    }

    /// Does the work that is due, and returns datagrams to send. Call this method after each received datagram, and
    /// about every 50 ms.
    pub fn poll(&mut self, (now, wall): (Millis, u32), chance: &mut dyn Chance) -> Vec<Vec<u8>> {
        let mut out = Vec::new();
        self.before.take_if(|before| now >= before.1);
        self.refused.take_if(|refused| now >= refused.1);
        if wall >= self.expires {
            self.link = None;
        }
        self.link.take_if(|link| link.is_over(now));
        let is_late = self.link.as_ref().is_some_and(|link| link.is_late(now));
        // A newer grant takes over half a minute before the older one ends.
        let is_ending = self.expires.saturating_sub(wall) <= 30 && self.terms.grant.expires > self.expires;
        let is_silent = self.link.as_ref().is_some_and(|link| self.watch.is_silent(link, now));
        if self.wanted && (self.link.is_none() || is_late || is_ending || is_silent) || self.attempt.is_some() {
            // If no handshake can begin, there is nothing to send.
            let _ = self.attempt((now, wall), chance);
        }
        if let Some(attempt) = &mut self.attempt {
            if now.saturating_sub(attempt.begun) >= ATTEMPT {
                self.attempt = None;
            } else if attempt.again.is_due(now) || !attempt.sent {
                attempt.sent = true;
                out.push(attempt.bytes.to_vec());
            }
        }
        if let Some(link) = &mut self.link {
            let begins = link.rekey_after();
            link.poll(now, begins, chance);
            if self.wanted && (self.watch.is_due(link, now) || now.saturating_sub(link.sent) >= KEEP_ALIVE) {
                link.say(&Control::Ping([0; 8]), now);
            }
            out.append(&mut link.out);
        }
        if let Some((before, _)) = &mut self.before {
            before.out.clear();
        }
        out
    }

    /// Returns the time by which the caller has to call [`Self::poll`] next.
    pub fn next_poll(&self, now: Millis) -> Millis {
        now + RESEND.0
    }

    /// Makes this end send a record from which the other end learns this machine's new address. The caller calls this
    /// method after the machine has moved to another network.
    pub fn greet(&mut self, now: Millis) {
        if let Some(link) = &mut self.link {
            link.say(&Control::Ping([0; 8]), now);
        }
    }

    /// Ends the tunnel. If a tunnel was open, returns a datagram that tells the verifier that the tunnel has ended.
    pub fn close(&mut self, reason: Close, now: Millis) -> Option<Vec<u8>> {
        self.attempt = None;
        self.wanted = false;
        self.link.take()?.said(&Control::Close(reason), now)
    }

    #[cfg(test)]
    pub(super) fn wear(&mut self, sealed: u64, failed: u64) {
        if let Some(link) = &mut self.link {
            link.wear(sealed, failed);
        }
    }
}
