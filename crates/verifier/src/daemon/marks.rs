//! Confirms the marks on the event stream. A mark is confirmed when everything that the authority announced before it
//! is in force in the kernel: the follower has applied the state, the flows are rechecked, and a sweep has removed the
//! revoked flows. The sweep begins some time after the last change, because a kernel program possibly processed a
//! packet during the change and admitted its flow.

use follower::Acknowledger;
use std::time::Duration;
use tokio::time::Instant;

/// Delay of the second cut after a revocation. By then the kernel programs have finished with packets that they were
/// processing during the first cut.
pub(super) const SECOND_CUT: Duration = Duration::from_millis(75);

/// The step that has to come next before a mark is confirmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// This number of answers about live flows has to come.
    Recheck(u8),
    /// The next sweep has to begin at this time. By then, the kernel programs have finished with the packets that they
    /// were processing.
    Settle(Instant),
    /// This number of sweeps has to end: 1, or 2 if the sweep in progress began too early.
    Sweep(u8),
}

/// The mark that has to be confirmed, and its confirmation. A newer mark replaces it, because the authority sends a
/// mark only after the previous one was confirmed or its stream has ended.
pub(super) struct Marks {
    acknowledger: Acknowledger,
    pending: Option<(u64, Step)>,
}

impl Marks {
    pub(super) const fn new(acknowledger: Acknowledger) -> Self {
        Self { acknowledger, pending: None }
    }

    /// Begins with a mark. `rechecks` is the number of answers about live flows that have to come first.
    pub(super) fn begin(&mut self, mark: u64, rechecks: u8, now: Instant) {
        let step = if rechecks == 0 { Step::Settle(now + SECOND_CUT) } else { Step::Recheck(rechecks) };
        self.pending = Some((mark, step));
    }

    /// Notes an answer about live flows, after their flows were cut. `is_complete` says whether the authority answered
    /// for all flows. If not, another request follows. It begins later than everything that was announced so far.
    pub(super) fn rechecked(&mut self, is_complete: bool, now: Instant) {
        if let Some((_, step @ Step::Recheck(_))) = &mut self.pending {
            *step = match step {
                Step::Recheck(1) if is_complete => Step::Settle(now + SECOND_CUT),
                _ => Step::Recheck(1),
            };
        }
    }

    /// Returns the time at which the mark's sweep has to begin; `None` if that is not the next step.
    pub(super) const fn cut_at(&self) -> Option<Instant> {
        match self.pending {
            Some((_, Step::Settle(at))) => Some(at),
            _ => None,
        }
    }

    /// Notes that the caller now begins a sweep or, if one is in progress, begins another one after it.
    pub(super) fn sweep(&mut self, is_in_progress: bool, now: Instant) {
        if let Some((_, step @ Step::Settle(_))) = &mut self.pending
            && matches!(step, Step::Settle(at) if *at <= now)
        {
            *step = Step::Sweep(if is_in_progress { 2 } else { 1 });
        }
    }

    /// Notes the end of a sweep, and confirms the mark if the sweep was the last step. If the sweep failed, the next
    /// sweep that succeeds confirms the mark.
    pub(super) fn swept(&mut self, is_done: bool) {
        match self.pending {
            Some((mark, Step::Sweep(1))) if is_done => {
                self.pending = None;
                self.acknowledger.confirm(mark);
            }
            Some((mark, Step::Sweep(_))) => self.pending = Some((mark, Step::Sweep(1))),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marks() -> Marks {
        Marks::new(Acknowledger::new(client::Authority::new("https://127.0.0.1:9", None).unwrap()))
    }

    fn step(marks: &Marks) -> Option<Step> {
        marks.pending.map(|(_, step)| step)
    }

    #[tokio::test]
    async fn a_mark_is_confirmed_after_a_sweep_that_began_late_enough() {
        let (mut marks, now) = (marks(), Instant::now());
        let due = now + SECOND_CUT;
        marks.begin(7, 0, now);
        assert_eq!(marks.cut_at(), Some(due));
        marks.sweep(false, now);
        marks.swept(true);
        assert_eq!(step(&marks), Some(Step::Settle(due)), "a sweep that began before says nothing");
        marks.sweep(true, due);
        marks.swept(true);
        assert_eq!(step(&marks), Some(Step::Sweep(1)), "this sweep was in progress before");
        marks.swept(false);
        assert_eq!(step(&marks), Some(Step::Sweep(1)), "this one failed");
        marks.swept(true);
        assert_eq!(step(&marks), None);
    }

    #[tokio::test]
    async fn a_mark_waits_for_rechecks_that_began_after_the_announcements() {
        let (mut marks, now) = (marks(), Instant::now());
        marks.begin(7, 2, now);
        assert_eq!(marks.cut_at(), None);
        marks.rechecked(true, now);
        assert_eq!(step(&marks), Some(Step::Recheck(1)));
        marks.rechecked(false, now);
        assert_eq!(step(&marks), Some(Step::Recheck(1)));
        marks.rechecked(true, now);
        assert_eq!(step(&marks), Some(Step::Settle(now + SECOND_CUT)));
        marks.rechecked(false, now);
        assert_eq!(step(&marks), Some(Step::Settle(now + SECOND_CUT)), "a later request concerns later events");
    }

    #[tokio::test]
    async fn a_newer_mark_replaces_the_one_of_an_earlier_stream() {
        let (mut marks, now) = (marks(), Instant::now());
        marks.begin(7, 0, now);
        marks.sweep(false, now + SECOND_CUT);
        marks.begin(8, 1, now);
        marks.swept(true);
        assert_eq!(marks.pending, Some((8, Step::Recheck(1))));
    }
}
