//! The calls of a verifier: its enrolment, its configuration, its keys, and the owners of grants.

use crate::form::handle_hex;
use crate::grant::Receiver;
use crate::sealing::Sealing;
use crate::segment::Withdrawal;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// `POST /v1/verifiers/enrol`, authenticated only by the one-time code.
#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Enrolment {
    /// The one-time code that `authority verifier add` printed.
    pub code: String,
}

/// The answer to [`Enrolment`].
#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Enrolled {
    /// The verifier's id, from which its keys are derived.
    pub verifier: String,
    /// The bearer token for later calls. Secret.
    pub token: String,
}

/// `GET /v1/verifier/config` of a verifier.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct VerifierConfig {
    /// The verifier's id.
    pub verifier: String,
    /// Length of an epoch, seconds.
    pub epoch_length: u32,
    /// The longest lifetime of a grant, seconds.
    pub max_lifetime: u32,
    /// The receivers that the verifier protects.
    pub receivers: Vec<Receiver>,
    /// Revoked grants that would not have ended yet.
    pub revoked: Vec<RevokedGrant>,
    /// Ended sessions with a grant for this verifier that would not have ended yet.
    #[serde(default)]
    pub revoked_sessions: Vec<RevokedSession>,
    /// Pairs of the suite `sha224` that are valid.
    #[serde(default)]
    pub pairs: Vec<LivePair>,
    /// Withdrawn consent, for a verifier that checks proofs.
    #[serde(default)]
    pub withdrawn: Vec<Withdrawal>,
    /// Where the verifier's sealed tunnels begin: addresses and UDP ports, one for each family at most; empty if the
    /// policy names no tunnel behind it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schema(value_type = Vec<String>, example = json!(["203.0.113.10:4499"])))]
    pub tunnels: Vec<SocketAddr>,
    /// The authority's clock.
    pub now: u64,
}

/// A grant of the suite `sha224`: a unique id and a nonce1 whose tokens the verifier accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct LivePair {
    /// The handle, which consists of unique id and nonce1.
    #[serde(with = "handle_hex")]
    #[cfg_attr(feature = "schema", schema(schema_with = crate::schema::handle))]
    pub handle: u64,
    /// The epoch of the application server secret from which the client key is made.
    pub epoch: u64,
    /// Time of issue.
    pub issued: u64,
    /// End of the pair.
    pub expires: u32,
    /// Account and session that the pair was issued to (wire.md §3.9), which its handle does not contain. 0: none.
    #[serde(default)]
    pub holder: u32,
}

/// A grant that was ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RevokedGrant {
    /// The grant's handle.
    #[serde(with = "handle_hex")]
    #[cfg_attr(feature = "schema", schema(schema_with = crate::schema::handle))]
    pub handle: u64,
    /// The time at which it would have ended.
    pub expires: u32,
    /// Account and session that the handle names to its verifier (wire.md §3.9); only verifiers get it. 0: none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub holder: u32,
}

fn is_zero(holder: &u32) -> bool {
    *holder == 0
}

/// A session that ended: all its grants ended with it, and the verifier cuts all its flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RevokedSession {
    /// The account and the session, as handles name them (wire.md §3.9).
    pub holder: u32,
    /// The time at which the last of its grants would have ended.
    pub expires: u32,
}

/// Owner of a handle: an event to the verifier, and `GET /v1/verifier/grants/HANDLE`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct GrantOwner {
    /// The grant's handle.
    #[serde(with = "handle_hex")]
    #[cfg_attr(feature = "schema", schema(schema_with = crate::schema::handle))]
    pub handle: u64,
    /// The person to whom the grant was issued.
    pub person: String,
    /// The device to which the grant was issued.
    pub device: String,
    /// The receiver's name.
    pub receiver: String,
    /// The rule that allowed it.
    pub rule: String,
    /// Time of issue.
    pub issued: u64,
    /// End of the grant.
    pub expires: u64,
    /// The rule's class, for packet filters behind the verifier; 0 means none.
    #[serde(default)]
    pub class: u8,
    /// The rule's demand in a sealed tunnel; missing if it demands nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sealing: Option<Sealing>,
}
