//! Values that several roles share: receivers, grants and path segments in the form in which their holders have them,
//! and names of destinations and protocols.

mod grant;
mod passed_on;
pub(crate) mod prefixes;
pub mod protected;
pub mod protocol;
pub mod random_keys;
mod sealing;
mod segment;
mod service;
pub mod target;
mod withdrawal;
pub(crate) mod work;

pub use grant::{Grant, GrantRequest, Secret};
pub use passed_on::Issued;
pub use sealing::{Compress, Sealing, Treatment, Wish};
pub use segment::{Given, Place, SegmentRequest};
pub use service::{Receiver, Service};
pub use target::Target;
pub use withdrawal::{Withdrawal, Withdrawals};
