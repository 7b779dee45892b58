//! Secrets of an initiator's phases, in the form in which they are exported for debugging (wire.md §9.14).

use super::initiator::Initiator;
use super::phase::Phase;
use wire::seal::{Index, PhaseSecret};

/// The records that a secret opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Opens {
    /// Early records.
    Early,
    /// Records to the responder.
    ToResponder,
    /// Records to the initiator.
    ToInitiator,
}

impl Opens {
    /// Returns the word in the file of exported secrets.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Early => "EARLY",
            Self::ToResponder => "TO_RESPONDER",
            Self::ToInitiator => "TO_INITIATOR",
        }
    }
}

impl Initiator {
    /// Calls `take` with each phase secret that this end has now, the kind of records that the secret opens, and the
    /// index in these records. Everybody who has these secrets can read all packets of the tunnel. Must be called only
    /// for the export of wire.md §9.14.
    pub fn danger_secrets<'i>(&'i self, mut take: impl FnMut(Opens, Index, &'i PhaseSecret)) {
        if let Some(early) = self.early() {
            take(Opens::Early, early.theirs, &early.secret);
        }
        for phase in self.links().flat_map(|link| link.phases()) {
            let Phase { mine, theirs, secret, .. } = phase;
            take(Opens::ToResponder, *theirs, secret);
            take(Opens::ToInitiator, *mine, secret);
        }
    }
}
