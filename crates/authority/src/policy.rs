//! Puts policies in force. First, a policy is read from its text and checked, and the policy's own tests are run. Then
//! the policy is recorded as a version and comes into force, as a whole or not at all.

pub(crate) mod candidate;
mod enforcer;
mod following;
mod in_force;
mod preference_table;
mod preferences;
pub mod replay;
pub(crate) mod score_settings;
mod scores;

pub(crate) use enforcer::Enforcer;
pub(crate) use in_force::PolicyInForce;
pub(crate) use preference_table::PreferenceTable;
pub(crate) use preferences::Choices;
pub(crate) use scores::Scores;
