//! Discovery by DNS (wire.md §7): the record in which a domain says which authority protects what, how it is asked for and
//! overheard, and what is known of domains.
//!
//! A record is a hint. Nothing here makes anybody protect, trust or call anything.

pub mod book;
pub mod domain;
pub mod message;
pub mod record;

pub use book::{Book, Proposal, Source};
pub use domain::Domain;
pub use message::{Heard, Told};
pub use record::{AuthorityUrl, Malformed, Record};
