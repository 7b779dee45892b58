//! The push channel from the authority to its listeners (sessions and verifiers). It carries events to them. The
//! acknowledgements and reports that verifiers send back are also here.

pub(crate) mod acknowledgements;
pub(crate) mod activity;
pub(crate) mod events;
pub(crate) mod heard;
pub(crate) mod marks;
pub(crate) mod queue;
pub(crate) mod reports;
pub(crate) mod verifiers;
