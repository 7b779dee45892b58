//! JSON messages between the authority, its clients (agents, verifiers, tunnel endpoints) and its helper `vouchsafe
//! transfer`. Both ends of a connection use the same types.
//!
//! The authority's HTTPS API is JSON under `/v1`; errors are [`Problem`] bodies (RFC 9457). Byte strings are lower-case
//! hex. Times are Unix seconds. The feature `schema` adds descriptions of the types for OpenAPI.
//!
//! These types contain no logic. `client` and `authority` convert them from and to the types of `engine`, which makes
//! the decisions.
//!
//! ```
//! use api::GrantRequest;
//!
//! let request: GrantRequest = serde_json::from_str(r#"{"address": "203.0.113.10", "protocol": 6, "port": 22}"#)?;
//! assert_eq!(request.port, 22);
//! // The authority refuses unknown fields of a request. If it ignored a misspelt field, it would ignore a wish.
//! let misspelt = r#"{"address": "203.0.113.10", "protocol": 6, "port": 22, "consent": true}"#;
//! assert!(serde_json::from_str::<GrantRequest>(misspelt).is_err());
//! # Ok::<(), serde_json::Error>(())
//! ```
#![forbid(unsafe_code)]

mod access;
mod authorities;
mod complaint;
mod event;
mod explain;
mod form;
mod grant;
pub mod key_transfer;
mod keys;
mod line;
mod login;
mod place;
mod problem;
mod report;
#[cfg(feature = "schema")]
mod schema;
mod sealing;
mod segment;
mod verifier;

pub use access::{AccessAsked, AccessEntry, AccessList, AccessRequest, Requestable};
pub use authorities::{AUTHORITIES_MAX, Authorities};
pub use complaint::{COMPLAINT_POINTS_MAX, Complaint, Misconduct, Standing};
pub use event::{Acknowledgement, Confirm, Event, FlowsToCut, LIVE_FLOWS_MAX, LiveFlows, MARKS_MAX};
pub use explain::{ExplainRequest, Explanation, PersonExplanation};
pub use grant::{Destinations, Grant, GrantRequest, Receiver, SealedDestinations, Service};
pub use keys::{EpochKey, EpochKeys, ProofKeys};
pub use line::Line;
pub use login::{
    BrowserLogin, BrowserLoginStarted, Callback, Challenge, DeviceLogin, DeviceLoginStarted, FinishLogin,
    IdentityProvider, LoggedOut, Login, LoginMethods, LoginOutcome, ServiceKey, ServiceLogin, Session, comparison,
};
pub use place::{Behind, EndpointPlace, EndpointPlaces};
pub use problem::Problem;
pub use report::{DropCount, REPORTED_FLOWS_MAX, REPORTED_REASONS_MAX, Report, Reported, ReportedFlow, VerifierState};
pub use sealing::{GrantSealing, SealedFlow, Sealing};
pub use segment::{AnswerRequest, PathSegment, SegmentRequest, SegmentTo, Withdrawal};
pub use verifier::{Enrolled, Enrolment, GrantOwner, LivePair, RevokedGrant, RevokedSession, VerifierConfig};
