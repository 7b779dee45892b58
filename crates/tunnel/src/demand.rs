//! What rules demand of the packets of a flow.

use seal::Mode;
use wire::seal::{Suite, Suites, Treatment};

/// The least that a rule demands. More is always allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// The treatment.
    pub treatment: Treatment,
    /// The suites that may seal.
    pub suites: Suites,
    /// Whether blocks are compressed.
    pub compress: Mode,
}

impl Default for Demand {
    /// What is demanded where nobody knows the rule: the strongest treatment.
    fn default() -> Self {
        Self { treatment: Treatment::Encrypt, suites: Suites::ALL, compress: Mode::Never }
    }
}

impl Demand {
    /// Reports whether a record of this treatment and suite is enough.
    pub fn is_met(&self, treatment: Treatment, suite: Suite) -> bool {
        treatment >= self.treatment && self.suites.has(suite)
    }
}
