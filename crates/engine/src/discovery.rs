//! Discovery by DNS (wire.md §7). A domain's record names the domain's authority and the networks that this authority
//! protects. This module has the record, the queries for records, overheard records, and the cache of all results. It
//! also has the SRV records that list the servers of an authority.
//!
//! A record is only a hint. Nothing here causes a machine to protect, trust or call anything.

pub mod cache;
pub mod domain;
pub mod message;
pub mod record;
pub mod servers;

pub use cache::{Cache, Proposal, Source};
pub use domain::Domain;
pub use message::{Answer, Overheard};
pub use record::{AuthorityUrl, Malformed, Record};
pub use servers::Server;
