//! Decisions and state machines of the agent, the authority, the verifier and tunnel endpoints, without IO. Time and
//! randomness are arguments, and effects are return values.
//!
//! There is one module per role. [`model`] contains the types that several roles share. [`document`] reads the files
//! that people write.
#![deny(unsafe_code)]

pub mod agent;
pub mod discovery;
pub mod document;
pub mod endpoint;
pub mod issuing;
pub mod model;
pub mod openflow;
pub mod policy;
#[cfg(feature = "tunnel")]
pub mod tunnel;
pub mod verifier;
