//! The error of a change that the cluster cannot record.

use std::fmt;

/// Error: the cluster cannot record a change now. Handlers answer with status 503.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unavailable {
    /// The reason why the cluster cannot record a change.
    pub why: String,
    /// Whether the log may contain the change.
    pub maybe_done: bool,
}

impl Unavailable {
    /// Creates the error for a change that was certainly not recorded.
    pub(crate) fn now(why: String) -> Self {
        Self { why, maybe_done: false }
    }
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let did = if self.maybe_done { "may have recorded" } else { "cannot record" };
        write!(f, "the cluster {did} this change: {}", self.why)
    }
}

impl std::error::Error for Unavailable {}
