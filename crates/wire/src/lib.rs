//! Formats on the wire and in kernel maps: suites, keys, grants, tokens, carriers, drop reasons, packets.
//!
//! No standard library, no allocation, no panic: every decoder takes untrusted bytes. Clauses cited as `wire.md §n`
//! are those of `docs/wire.md`. This crate decides nothing; decisions are `engine`'s.
#![no_std]
#![forbid(unsafe_code)]

pub mod drop_reason;
pub mod grant;
pub mod key;
pub mod mac;
pub mod map;
pub mod packet;
pub mod tail;
pub mod token;

pub use drop_reason::DropReason;
pub use grant::{Destination, Flags, GrantHeader, Handle};
pub use key::{Epoch, GrantKey, MasterKey, VerifierKey};
pub use mac::Suite;
pub use token::Token;
