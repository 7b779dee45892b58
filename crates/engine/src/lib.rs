//! Decisions and state machines of the agent, the authority, the verifier and tunnel endpoints, without IO. Time and
//! randomness are arguments, and effects are return values.
//!
//! There is one module per role. [`model`] contains the types that several roles share. [`document`] reads the files
//! that people write.
//!
//! The policy decides whether Alice may connect to the git server by SSH:
//!
//! ```
//! use engine::policy::{Compiled, Decision, Policy, Request, Subject};
//! use wire::Destination;
//!
//! let text = r#"
//! [[receivers]]
//! name = "git"
//! address = "203.0.113.10"
//! services = ["tcp/22"]
//! verifier = "edge-1"
//!
//! [[rules]]
//! action = "allow"
//! who = ["person:alice"]
//! to = ["git"]
//! "#;
//! let policy = Compiled::new(Policy::parse(text, 3600)?).expect("a policy of this size");
//! let to = Destination { address: "203.0.113.10".parse()?, protocol: 6, port: 22 };
//! let decide = |person| policy.decide(&Request { subject: Subject::person(person), to, now: 1_767_225_600 });
//! assert!(matches!(decide("alice"), Decision::Allowed(permit) if permit.receiver.name == "git"));
//! assert!(matches!(decide("bob"), Decision::DefaultDeny { .. }));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
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
