//! Decisions and state machines without IO: time and chance come in as arguments, effects go out as values.
#![deny(unsafe_code)]

pub mod activity;
pub mod agent;
pub mod api;
pub mod discovery;
pub mod document;
pub mod endpoint;
pub mod insertion;
pub mod issue;
pub mod key_transfer;
pub mod lines;
pub mod networks;
pub mod openflow;
pub mod policy;
pub mod preference;
pub mod proofs;
pub mod protected;
pub mod protocol;
pub mod rulebook;
pub mod segment;
#[cfg(feature = "tunnel")]
pub mod tunnel;
pub mod verifier;
