//! A tunnel after its handshake, with the same rules for both ends: phases, re-keying, contents of records (wire.md
//! §9.8 to §9.10).

use super::phase::Phase;
use super::{Chance, Dropped, LINGER, Millis, NotSealed, Packet, REKEY_GRACE, RESEND, REST, Received};
use seal::{Batch, ExchangeSecret, Joiner, NotJoined};
use std::mem;
use std::num::NonZeroU32;
use wire::seal::record::LANES;
use wire::seal::{
    Close, Content, Control, Direction, Index, PhaseSecret, RecordHeader, Share, Suite, Suites, Treatment,
};

/// Parameters on which both ends agreed in the handshake.
#[derive(Clone, Copy)]
pub(super) struct Agreed {
    /// Direction of this end's records.
    pub way: Direction,
    pub forward: bool,
    /// Suites that the other end can open and this end can seal.
    pub suites: Suites,
    /// Suites that both ends' hardware accelerates.
    pub helped: Suites,
    pub rekey_after: Millis,
    /// Number of units (see [`super::UNITS_MAX`]) that this end seals in a phase before it begins the next phase.
    pub worn_at: u64,
}

/// A tunnel after its handshake, which can seal and open records.
pub(super) struct Link {
    agreed: Agreed,
    latest: Phase,
    /// This end's index and share for the latest phase; `None` in phase 1.
    own: Option<(Index, Share)>,
    /// Time at which this end learned the age at which phases are re-keyed; 0 if it has known this age from the
    /// beginning.
    age_since: Millis,
    previous: Option<Box<(Phase, Millis)>>,
    next: Option<Box<Next>>,
    joiner: Joiner,
    /// Time at which the last authentic record arrived.
    pub last_received: Millis,
    pub sent: Millis,
    /// Time at which the last packet was sealed or opened.
    pub used: Millis,
    /// Time at which the oldest unanswered packet was sealed. A packet is unanswered as long as no record has arrived
    /// after it.
    unanswered: Option<Millis>,
    pub closed: Option<Close>,
    /// Control records to send to the other end.
    pub out: Vec<Vec<u8>>,
    /// Whether the keys that can be derived again were discarded, and nothing was sent or received since then.
    is_at_rest: bool,
}

/// A phase that is being negotiated.
struct Next {
    number: NonZeroU32,
    mine: Index,
    secret: ExchangeSecret,
    theirs: Option<(Index, Share)>,
    /// The phase; `None` until both shares are known.
    phase: Option<Phase>,
    again: Again,
}

/// Timer for sending a message again.
pub(super) struct Again {
    at: Millis,
    pause: Millis,
}

impl Again {
    pub fn new(now: Millis) -> Self {
        Self { at: now + RESEND.0, pause: RESEND.0 }
    }

    /// Reports whether it is time to send the message again. If so, doubles the interval until the next time, up to the
    /// maximum.
    pub fn is_due(&mut self, now: Millis) -> bool {
        let is_due = now >= self.at;
        if is_due {
            self.pause = (self.pause * 2).min(RESEND.1);
            self.at = now + self.pause;
        }
        is_due
    }

    /// Makes the message due now, and begins with the shortest interval again.
    pub fn hasten(&mut self, now: Millis) {
        (self.at, self.pause) = (now, RESEND.0 / 2);
    }
}

/// The effect of a record that was opened.
pub(super) struct Opened<'r> {
    pub brought: Received<'r>,
    /// Whether the record belongs to the latest phase, and its number is the highest so far in its lane.
    pub is_newest: bool,
    pub pong: Option<[u8; 8]>,
}

impl Link {
    /// Creates a tunnel in phase 1.
    pub fn new(agreed: Agreed, mine: Index, theirs: Index, secret: PhaseSecret, now: Millis) -> Self {
        Self {
            agreed,
            latest: Phase::new(1, mine, theirs, secret, agreed.way, now),
            own: None,
            age_since: 0,
            previous: None,
            next: None,
            joiner: Joiner::default(),
            last_received: now,
            sent: now,
            used: now,
            unanswered: None,
            closed: None,
            out: Vec::new(),
            is_at_rest: false,
        }
    }

    /// Returns the indices that the other end can write into its records.
    pub fn indices(&self) -> [Option<Index>; 3] {
        let next = self.next.as_ref().map(|next| next.mine);
        [Some(self.latest.mine), self.previous.as_ref().map(|previous| previous.0.mine), next]
    }

    /// Returns the phases whose records this end seals or opens.
    pub fn phases(&self) -> impl Iterator<Item = &Phase> {
        let previous = self.previous.as_ref().map(|previous| &previous.0);
        let next = self.next.as_ref().and_then(|next| next.phase.as_ref());
        [Some(&self.latest), previous, next].into_iter().flatten()
    }

    pub fn phase(&self) -> u32 {
        self.latest.number
    }

    /// Reports whether the tunnel has ended. This end must then not send in the tunnel any more (wire.md §9.10.1).
    pub fn is_over(&self, now: Millis) -> bool {
        self.closed.is_some() || now >= self.ends()
    }

    /// Reports whether the other end has not answered for so long that a new handshake is due.
    pub fn is_late(&self, now: Millis) -> bool {
        self.is_over(now + REKEY_GRACE / 2)
    }

    pub fn suite(&self, allowed: Suites) -> Option<Suite> {
        Suites::choose(self.agreed.suites.and(allowed), self.agreed.helped)
    }

    pub fn seal(&mut self, packet: &Packet<'_>, now: Millis, out: &mut Batch) -> Result<(), NotSealed> {
        if self.is_over(now) {
            return Err(NotSealed::Over);
        }
        let suite = self.suite(packet.suites).ok_or(NotSealed::NoSuite)?;
        let content = Content::Packet { treatment: packet.treatment, partial: packet.partial };
        self.latest.seal(content, suite, packet.lane, packet.parts, out)?;
        self.sealed(now);
        Ok(())
    }

    /// Seals the parts of a block, with consecutive counters.
    ///
    /// # Errors
    ///
    /// Returns why not all parts were sealed.
    pub fn seal_block(
        &mut self,
        (treatment, compression): (Treatment, wire::seal::Compression),
        (suites, lane): (Suites, u8),
        parts: impl Iterator<Item = (wire::seal::Part, impl AsRef<[u8]>)>,
        now: Millis,
        out: &mut Batch,
    ) -> Result<(), NotSealed> {
        if self.is_over(now) {
            return Err(NotSealed::Over);
        }
        let suite = self.suite(suites).ok_or(NotSealed::NoSuite)?;
        for (part, bytes) in parts {
            let content = Content::Block { treatment, compression, part };
            self.latest.seal(content, suite, lane, &[bytes.as_ref()], out)?;
        }
        self.sealed(now);
        Ok(())
    }

    fn sealed(&mut self, now: Millis) {
        (self.sent, self.used, self.is_at_rest) = (now, now, false);
        self.unanswered.get_or_insert(now);
    }

    /// Returns the time since which this end waits for a record. This is the time at which the oldest unanswered packet
    /// was sealed or, if all are answered, the time of the last record.
    pub fn silent_since(&self) -> Millis {
        self.unanswered.unwrap_or(self.last_received)
    }

    /// Queues a control message for the other end. If the message can't be sealed, queues nothing, and the tunnel has
    /// ended.
    pub fn say(&mut self, control: &Control, now: Millis) {
        if let Some(record) = self.said(control, now) {
            self.out.push(record);
        }
    }

    /// Returns the record that carries a control message; `None` if the message can't be sealed.
    pub fn said(&mut self, control: &Control, now: Millis) -> Option<Vec<u8>> {
        if self.is_over(now) {
            return None;
        }
        let mut batch = Batch::default();
        let suite = self.suite(Suites::ALL)?;
        // Control records use the last lane, which packets may use as well: a lane is only a counter.
        self.latest.seal(Content::Control, suite, LANES - 1, &[control.encode().bytes()], &mut batch).ok()?;
        (self.sent, self.is_at_rest) = (now, false);
        batch.runs().next().map(|run| run.bytes.to_vec())
    }

    /// Opens a record of this tunnel. The record's index must be one of [`Self::indices`].
    ///
    /// # Errors
    ///
    /// Returns why the record was dropped.
    pub fn open<'r>(
        &mut self,
        header: &RecordHeader,
        record: &'r mut [u8],
        now: Millis,
        chance: &mut dyn Chance,
    ) -> Result<Opened<'r>, Dropped> {
        let index = header.index;
        let is_previous = self.previous.as_ref().is_some_and(|previous| previous.0.mine == index);
        let (body, mut is_newest) = if index == self.latest.mine {
            self.latest.open(header, record)?
        } else if let Some(previous) = self.previous.as_mut().filter(|_| is_previous) {
            (previous.0.open(header, record)?.0, false)
        } else {
            let next = self.next.as_mut().filter(|next| next.mine == index).ok_or(Dropped::NoTunnel)?;
            // Before both shares are known, no end can have sealed a record in this phase.
            let opened = next.phase.as_mut().ok_or(Dropped::BadTag)?.open(header, record)?;
            self.adopt(now);
            opened
        };
        is_newest &= !is_previous;
        (self.last_received, self.unanswered, self.is_at_rest) = (now, None, false);
        if matches!(header.content, Content::Packet { .. } | Content::Block { .. }) {
            self.used = now;
        }
        let mut pong = None;
        let brought = match header.content {
            Content::Packet { treatment, partial } => {
                Received::Packet { treatment, suite: header.suite, partial, early: false, packet: body }
            }
            Content::Block { .. } => match self.joiner.take(header, body) {
                Ok(block) => Received::Block { suite: header.suite, block },
                Err(NotJoined::Missing) => Received::Nothing,
                Err(NotJoined::Malformed) => return Err(Dropped::Malformed),
            },
            Content::Early { .. } => return Err(Dropped::Malformed),
            Content::Control => match Control::decode(body).ok_or(Dropped::Malformed)? {
                Control::Ping(bytes) => {
                    self.say(&Control::Pong(bytes), now);
                    Received::Nothing
                }
                Control::Pong(bytes) => {
                    pong = Some(bytes);
                    Received::Nothing
                }
                Control::Close(reason) => {
                    self.closed = Some(reason);
                    Received::Closed(reason)
                }
                Control::Rekey { have, phase, index, share } => {
                    self.rekeyed(phase, (index, share), have, is_previous, now, chance)?;
                    Received::Nothing
                }
            },
        };
        Ok(Opened { brought, is_newest, pong })
    }

    /// Processes the other end's share (wire.md §9.9).
    fn rekeyed(
        &mut self,
        number: NonZeroU32,
        theirs: (Index, Share),
        have: bool,
        is_previous: bool,
        now: Millis,
        chance: &mut dyn Chance,
    ) -> Result<(), Dropped> {
        if number.get() == self.latest.number {
            // The other end has not noticed yet that this end already sends in this phase.
            if is_previous && let Some((index, share)) = self.own {
                self.say(&Control::Rekey { have: true, phase: number, index, share }, now);
            }
            return Ok(());
        }
        if Some(number.get()) != self.latest.number.checked_add(1) {
            return Ok(());
        }
        // If this end had not begun the phase, the other end can't have this end's share for it.
        let have = have && self.next.is_some();
        self.prepare(now, chance).ok_or(Dropped::Limit)?;
        self.derive(theirs, now).ok_or(Dropped::Malformed)?;
        let Some(next) = &self.next else { return Ok(()) };
        let (index, share) = (next.mine, *next.secret.share());
        if have {
            self.adopt(now);
        }
        self.say(&Control::Rekey { have: true, phase: number, index, share }, now);
        Ok(())
    }

    /// Draws a share for the next phase, unless this end has already drawn one.
    fn prepare(&mut self, now: Millis, chance: &mut dyn Chance) -> Option<()> {
        if self.next.is_none() {
            let number = NonZeroU32::new(self.latest.number.checked_add(1)?)?;
            let secret = ExchangeSecret::new(chance.bytes(), self.agreed.forward)?;
            let mine = chance.index();
            let again = Again::new(now);
            self.next = Some(Box::new(Next { number, mine, secret, theirs: None, phase: None, again }));
        }
        Some(())
    }

    /// Derives the next phase, unless this end has already done so. Returns `None` if the other end's share is invalid,
    /// or differs from the share that it sent before.
    fn derive(&mut self, theirs: (Index, Share), now: Millis) -> Option<()> {
        let way = self.agreed.way;
        let next = self.next.as_mut()?;
        if let Some(before) = next.theirs {
            return (before == theirs).then_some(());
        }
        let shared = next.secret.shared(&theirs.1)?;
        let (mine, its) = ((next.mine, next.secret.share()), (theirs.0, &theirs.1));
        let (initiator, responder) = match way {
            Direction::FromInitiator => (mine, its),
            Direction::FromResponder => (its, mine),
        };
        let secret = self.latest.secret.next(&shared, next.number, initiator, responder)?;
        next.phase = Some(Phase::new(next.number.get(), next.mine, theirs.0, secret, way, now));
        next.theirs = Some(theirs);
        Some(())
    }

    /// Switches to the next phase. The other end can already open the records of this phase.
    fn adopt(&mut self, now: Millis) {
        let Some(next) = self.next.take() else { return };
        let Next { mine, secret, phase: Some(phase), .. } = *next else { return };
        self.own = Some((mine, *secret.share()));
        let before = mem::replace(&mut self.latest, phase);
        self.previous = Some(Box::new((before, now + LINGER)));
    }

    /// Begins the next phase, unless its negotiation is in progress.
    fn begin(&mut self, now: Millis, chance: &mut dyn Chance) {
        if self.next.is_some() || self.prepare(now, chance).is_none() {
            return;
        }
        self.ask(now);
    }

    fn ask(&mut self, now: Millis) {
        let Some(next) = &self.next else { return };
        let (phase, index, share) = (next.number, next.mine, *next.secret.share());
        self.say(&Control::Rekey { have: next.theirs.is_some(), phase, index, share }, now);
    }

    /// Does the work that is due. `begins` is the age of a phase, in milliseconds, at which this end begins the next
    /// phase.
    pub fn poll(&mut self, now: Millis, begins: Millis, chance: &mut dyn Chance) {
        if self.previous.as_ref().is_some_and(|previous| now >= previous.1) {
            self.previous = None;
        }
        if now.saturating_sub(self.last_received) >= REST {
            self.joiner.clear();
            if now.saturating_sub(self.sent) >= REST && !self.is_at_rest {
                self.latest.rest();
                self.is_at_rest = true;
            }
        }
        if self.is_over(now) {
            return;
        }
        if self.next.as_mut().is_some_and(|next| next.again.is_due(now)) {
            self.ask(now);
        } else if self.is_worn() || now.saturating_sub(self.latest.begun) >= begins {
            self.begin(now, chance);
        }
    }

    /// Returns the next time at which [`Self::poll`] has work to do. `begins` has the same meaning as in
    /// [`Self::poll`].
    pub fn due(&self, begins: Millis) -> Millis {
        let previous = self.previous.as_ref().map_or(Millis::MAX, |previous| previous.1);
        let rest = if self.is_at_rest { Millis::MAX } else { self.last_received.max(self.sent) + REST };
        let blocks = if self.joiner.is_waiting() { self.last_received + REST } else { Millis::MAX };
        let next = match &self.next {
            Some(next) => next.again.at,
            None if self.is_worn() => 0,
            None => self.latest.begun + begins,
        };
        previous.min(rest).min(blocks).min(next)
    }

    /// Returns the time at which the tunnel ends if no new phase begins before.
    pub fn ends(&self) -> Millis {
        // A rule whose first packet comes late in a phase demands a new phase, and not the end of the tunnel.
        (self.latest.begun + self.agreed.rekey_after).max(self.age_since) + REKEY_GRACE + 1
    }

    /// Reports whether the keys that can be derived again have been discarded.
    pub fn is_at_rest(&self) -> bool {
        self.is_at_rest
    }

    /// Reports whether the phase has used so much of its keys that the next phase should begin.
    pub fn is_worn(&self) -> bool {
        self.latest.is_worn(self.agreed.worn_at)
    }

    /// Reports whether it is possible that this end recently sealed a record with this index and counter.
    pub fn may_have_sealed(&self, index: Index, counter: wire::seal::Counter) -> bool {
        self.latest.theirs == index && self.latest.may_have_sealed(counter)
    }

    pub fn rekey_after(&self) -> Millis {
        self.agreed.rekey_after
    }

    /// Makes phases re-key at another age from now on.
    pub fn set_rekey_after(&mut self, age: Millis, now: Millis) {
        (self.agreed.rekey_after, self.age_since) = (age, now);
    }

    #[cfg(test)]
    pub fn wear(&mut self, sealed: u64, failed: u64) {
        self.latest.wear(sealed, failed);
    }
}
