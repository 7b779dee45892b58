//! Puts policies in force. The authority first reads the policy from its text, checks it, and runs the policy's own
//! tests. Then it records the policy as a version and puts the whole policy in force, or nothing.

pub(crate) mod access;
pub(crate) mod candidate;
mod consent_end;
mod consent_table;
mod enforcer;
mod examinations;
mod following;
mod in_force;
mod list_service;
mod preference_table;
mod preferences;
pub mod replay;
pub(crate) mod score_settings;
mod scores;

pub(crate) use access::AccessRequests;
pub(crate) use consent_table::ConsentTable;
pub(crate) use enforcer::Enforcer;
pub(crate) use in_force::PolicyInForce;
pub(crate) use list_service::ListService;
pub(crate) use preference_table::PreferenceTable;
pub(crate) use preferences::Choices;
pub(crate) use scores::Scores;
