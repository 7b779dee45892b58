//! Formats on the wire and in kernel maps: suites, keys, grants, tokens, carriers, drop reasons, packets.
//!
//! No standard library, no allocation, no panic: every decoder takes untrusted bytes. Clauses cited as `wire.md §n`
//! are those of `docs/wire.md`. This crate decides nothing; decisions are `engine`'s.
#![no_std]
#![forbid(unsafe_code)]

pub mod carrier;
pub mod drop_reason;
pub mod grant;
pub mod key;
pub mod ls;
pub mod mac;
pub mod map;
pub mod packet;
pub mod shim;
pub mod tail;
pub mod token;

pub use carrier::Carrier;
pub use drop_reason::DropReason;
pub use grant::{Destination, Flags, GrantHeader, Handle};
pub use key::{Epoch, GrantKey, MasterKey, VerifierKey};
pub use ls::{ClientKey, LsToken, Pair, ServerSecret};
pub use mac::Suite;
pub use token::Token;
