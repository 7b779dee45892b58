//! An initiator's watch over the path to its responder (wire.md §9.10.3). The watch is needed because the network can
//! at any time route packets to another responder, which does not know the tunnel. An initiator that only waits for
//! packets would not notice the change.

use super::Millis;
use super::link::Link;

/// Shortest and longest pause between pings without an answer.
const PAUSE: (Millis, Millis) = (1_000, 8_000);
/// Time without a record after which a new handshake begins, even if no responder has said that it does not know the
/// tunnel.
const SILENCE: Millis = 5_000;

/// Decides when the initiator of a tunnel pings the responder.
#[derive(Default)]
pub(super) struct Watch {
    /// Time at which the latest ping was sent; `None` after a record has arrived.
    pinged: Option<Millis>,
    /// Time at which the latest ping was answered.
    checked: Millis,
}

impl Watch {
    /// Reports whether a ping is due now. If so, the caller has to send it.
    pub fn is_due(&mut self, link: &Link, now: Millis) -> bool {
        if self.pinged.is_some_and(|pinged| link.last_received >= pinged) {
            (self.checked, self.pinged) = (link.last_received, None);
        }
        let silence = now.saturating_sub(link.silent_since());
        let pause = (silence / 4).clamp(PAUSE.0, PAUSE.1);
        let is_due = link.used >= self.checked
            && silence >= PAUSE.0
            && self.pinged.is_none_or(|pinged| now.saturating_sub(pinged) >= pause);
        if is_due {
            self.pinged = Some(now);
        }
        is_due
    }

    /// Reports whether the responder has not answered for so long that another handshake is due.
    pub fn is_silent(&self, link: &Link, now: Millis) -> bool {
        let is_unanswered = self.pinged.is_some_and(|pinged| link.last_received < pinged);
        is_unanswered && now.saturating_sub(link.silent_since()) >= SILENCE
    }
}
