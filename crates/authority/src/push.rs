//! The push channel between the authority and its listeners (sessions and verifiers): the events that they receive, and
//! the acknowledgements and reports that verifiers send back.

pub(crate) mod acknowledgements;
pub(crate) mod activity;
pub(crate) mod events;
pub(crate) mod queue;
pub(crate) mod reports;
pub(crate) mod verifiers;
