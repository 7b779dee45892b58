//! Work of a responder that is due at certain times. Each tunnel has its own time for re-keying and removal. The grants
//! of all tunnels are checked in turn, to see whether they have ended. So the cost of a call depends on the work that
//! is due, and not on the number of tunnels.

use super::{Chance, Close, Control, Millis, Outgoing, Responder, Tables, Tunnel, TunnelId, UnusedIndices};
use crate::tunnel::ATTEMPT;
use std::collections::{BTreeSet, VecDeque};

/// A responder begins a new phase this much later than an initiator would. Without this delay, both ends would begin a
/// new phase each time.
const PATIENCE: Millis = 10_000;
/// Time within which every tunnel's grant is checked, unless [`Responder::recheck`] asks for it at once.
const ROUND: Millis = 1_000;

/// The times at which the responder has to look at its tunnels.
#[derive(Default)]
pub(super) struct Schedule {
    due: BTreeSet<(Millis, TunnelId)>,
    /// The tunnels in the order in which their grants are checked next. Some of these tunnels may no longer exist.
    checks: VecDeque<TunnelId>,
    checked: Millis,
    /// Whether the next check concerns the grants of all tunnels.
    all: bool,
}

impl Schedule {
    pub fn add(&mut self, id: TunnelId) {
        self.checks.push_back(id);
    }

    pub fn remove(&mut self, due: Millis, id: TunnelId) {
        self.due.remove(&(due, id));
    }

    /// Returns the number of grants to check now.
    fn share(&mut self, now: Millis) -> usize {
        let passed = now.saturating_sub(self.checked).min(ROUND);
        self.checked = now;
        let count = self.checks.len();
        if std::mem::take(&mut self.all) { count } else { (count * passed as usize).div_ceil(ROUND as usize) }
    }
}

impl Responder {
    /// Performs work that is due, and ends tunnels whose grants have expired or are revoked. The caller calls this
    /// method about every 50 ms. The responder notices a grant's end within a second, and at once after
    /// [`Self::recheck`].
    pub fn poll(
        &mut self,
        (now, wall): (Millis, u32),
        tables: &(impl Tables + ?Sized),
        chance: &mut dyn Chance,
        out: &mut Vec<Outgoing>,
    ) {
        self.recent.forget(wall);
        for _ in 0..self.schedule.share(now) {
            let Some(id) = self.schedule.checks.pop_front() else { break };
            if let Some(ended) = self.ended(id, wall, tables) {
                if let Some(reason) = ended {
                    self.end(id, reason, now, out);
                } else {
                    self.schedule.checks.push_back(id);
                }
            }
        }
        while let Some((_, id)) = self.schedule.due.first().copied().filter(|first| first.0 <= now) {
            self.schedule.due.pop_first();
            self.tend(id, now, chance, out);
        }
    }

    /// Makes the next [`Self::poll`] check all grants. Call this method after grants were revoked.
    pub fn recheck(&mut self) {
        self.schedule.all = true;
    }

    /// Makes a tunnel re-key its phases at the age `age`, which the rule of one of its flows demands. If several ages
    /// are demanded, the shortest applies.
    pub fn demand_rekey(&mut self, id: TunnelId, age: Millis, now: Millis) {
        let Some(tunnel) = self.tunnels.get_mut(&id) else { return };
        if tunnel.rekey_after.is_none_or(|known| age < known) {
            tunnel.rekey_after = Some(age);
            tunnel.link.set_rekey_after(age, now);
            self.reschedule(id, now);
        }
    }

    /// Returns the reason why a tunnel has to end, or `Some(None)` if it can continue. Returns `None` if the tunnel
    /// does not exist any more.
    fn ended(&self, id: TunnelId, wall: u32, tables: &(impl Tables + ?Sized)) -> Option<Option<Close>> {
        let tunnel = self.tunnels.get(&id)?;
        if tables.is_revoked(tunnel.handle) || tunnel.holder.0 != 0 && tables.is_ended(tunnel.holder) {
            return Some(Some(Close::Revoked));
        }
        Some((wall >= tunnel.expires).then_some(Close::Expired))
    }

    fn end(&mut self, id: TunnelId, reason: Close, now: Millis, out: &mut Vec<Outgoing>) {
        if let Some(tunnel) = self.tunnels.get_mut(&id) {
            tunnel.link.say(&Control::Close(reason), now);
        }
        self.flush(id, out);
        self.forget(id);
    }

    /// Does the work that is due in a tunnel.
    fn tend(&mut self, id: TunnelId, now: Millis, chance: &mut dyn Chance, out: &mut Vec<Outgoing>) {
        let Some(tunnel) = self.tunnels.get_mut(&id) else { return };
        tunnel.due = Millis::MAX;
        let is_stale = !tunnel.confirmed && now.saturating_sub(tunnel.begun) >= ATTEMPT;
        if is_stale || tunnel.link.is_over(now) || tunnel.until.is_some_and(|until| now >= until) {
            return self.forget(id);
        }
        if let Some(first) = tunnel.first.take_if(|first| now >= first.until) {
            self.early.remove(&first.tag);
        }
        // Nothing is sent to an initiator that has not shown that it has the keys.
        if tunnel.confirmed {
            let mut unused = UnusedIndices { chance, taken: &self.indices };
            let begins = tunnel.begins();
            tunnel.link.poll(now, begins, &mut unused);
        }
        self.flush(id, out);
        self.register(id);
        self.reschedule(id, now);
    }

    /// Moves a tunnel forward in the schedule if the tunnel's next work is due earlier than scheduled. If the work is
    /// due later, the schedule keeps the old time, and the responder looks at the tunnel once in vain.
    pub(super) fn reschedule(&mut self, id: TunnelId, now: Millis) {
        let Some(tunnel) = self.tunnels.get_mut(&id) else { return };
        let due = tunnel.work().max(now + 1);
        if due < tunnel.due {
            self.schedule.due.remove(&(tunnel.due, id));
            self.schedule.due.insert((due, id));
            tunnel.due = due;
        }
    }
}

impl Tunnel {
    /// Returns the age of a phase at which this end begins the next phase.
    fn begins(&self) -> Millis {
        self.link.rekey_after() + PATIENCE
    }

    /// Returns the time at which the tunnel's next work is due.
    fn work(&self) -> Millis {
        let own = if self.confirmed { self.link.due(self.begins()) } else { self.begun + ATTEMPT };
        let first = self.first.as_ref().map_or(Millis::MAX, |first| first.until);
        own.min(first).min(self.until.unwrap_or(Millis::MAX)).min(self.link.ends())
    }
}
