//! Webhooks: programs of the operator that the authority tells about requests for access, and about the decisions. So
//! delegates learn of a request without looking at the console. Each message contains a link to the console, where
//! delegates decide.
//!
//! Messages have the form of the Standard Webhooks specification. They wait in memory, in a bounded queue for each
//! webhook. In a cluster, the member that records a change sends the message about it. A message may arrive twice, with
//! the same id, because an answer can get lost. A message may also be lost. The authority logs the loss, and the
//! console always shows every request.

mod dispatch;
mod endpoint;
mod message;
mod queue;
mod settings;

pub(crate) use dispatch::Webhooks;
pub use dispatch::{test, unknown_delegations};
pub use endpoint::WebhookState;
pub(crate) use message::Notice;
pub use settings::WebhookSettings;
