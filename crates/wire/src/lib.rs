//! Formats on the wire and in kernel maps: suites, keys, grants, tokens, carriers, segments, proofs, requests for
//! segments, sealed tunnels, drop reasons, packets.
//!
//! The crate needs no standard library, allocates nothing and never panics: every decoder accepts untrusted bytes.
//! `wire.md §n` cites a clause of `docs/wire.md`. This crate decides nothing; the decisions are in `engine`.
//!
//! An agent makes a token with a grant's key. The verifier derives the same key, and checks the token with it:
//!
//! ```
//! use wire::{Destination, Flags, GrantHeader, Handle, Suite, Token, VerifierKey};
//!
//! let verifier_key = VerifierKey::new([7; 32]);
//! let to = Destination { address: "203.0.113.10".parse()?, protocol: 6, port: 22 };
//! let header = GrantHeader {
//!     suite: Suite::Siphash,
//!     flags: Flags::PORT,
//!     epoch: 1,
//!     prefix_length: 32,
//!     expires: 1_767_225_900,
//!     handle: Handle(42),
//! };
//! // The source address has no effect on the key unless the grant has `Flags::SOURCE`.
//! let source = "198.51.100.7".parse()?;
//! let key = header.key(&verifier_key, &to, source);
//! let (time, nonce) = (1_767_225_600, 1);
//! let bytes = Token::new(header, &key, time, nonce, &to).encode();
//!
//! let token = Token::decode(&bytes, false).expect("a well-formed token for IPv4");
//! assert!(token.proves(&token.header.key(&verifier_key, &to, source), &to));
//! # Ok::<(), std::net::AddrParseError>(())
//! ```
#![no_std]
#![forbid(unsafe_code)]

pub mod answers;
pub mod ask;
pub mod carrier;
pub mod checksum;
mod cmac;
pub mod drop_reason;
pub mod geneve;
pub mod grant;
pub mod holder;
pub mod inner;
pub mod key;
pub mod ls;
pub mod mac;
pub mod map;
pub mod packet;
pub mod proof;
pub mod reorder;
mod replay_window;
pub mod routing;
pub mod seal;
pub mod segment;
pub mod shim;
pub mod tail;
pub mod token;

pub use carrier::Carrier;
pub use drop_reason::DropReason;
pub use grant::{Destination, Flags, GrantHeader, Handle, NoHandle};
pub use holder::Holder;
pub use inner::Inner;
pub use key::{Epoch, GrantKey, MasterKey, ProofKey, VerifierKey};
pub use ls::{ClientKey, LsToken, Pair, ServerSecret};
pub use mac::Suite;
pub use proof::{Ends, Proof};
pub use replay_window::ReplayWindow;
pub use routing::{Hops, Routed};
pub use segment::{InterfaceId, Segment, SegmentFlags, Vni};
pub use token::Token;
