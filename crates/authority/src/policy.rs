//! Puts the text of a policy in force: the text is read within limits, checked by its own tests, recorded as a version,
//! and put in force as a whole or not at all.

pub(crate) mod candidate;
mod enforcer;
mod in_force;
mod preference_table;
mod preferences;
pub mod replay;

pub(crate) use enforcer::Enforcer;
pub(crate) use in_force::PolicyInForce;
pub(crate) use preference_table::PreferenceTable;
pub(crate) use preferences::Choices;
