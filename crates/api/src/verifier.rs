//! Messages of a verifier's calls about its enrolment, its configuration and the owners of grants.

use crate::form::handle_hex;
use crate::grant::Receiver;
use crate::sealing::Sealing;
use crate::segment::Withdrawal;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// `POST /v1/verifiers/enrol`, authenticated only by the one-time code: enrols a verifier.
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
    /// The verifier's id. The authority derives the verifier's keys from the master key and this id.
    pub verifier: String,
    /// The bearer token for later calls. Secret.
    pub token: String,
}

/// The answer to `GET /v1/verifier/config` of a verifier: its configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct VerifierConfig {
    /// The verifier's id.
    pub verifier: String,
    /// The length of an epoch, in seconds.
    pub epoch_length: u32,
    /// The longest lifetime of a grant, in seconds.
    pub max_lifetime: u32,
    /// The receivers that the verifier protects.
    pub receivers: Vec<Receiver>,
    /// Revoked grants that would still be valid without the revocation.
    pub revoked: Vec<RevokedGrant>,
    /// Ended sessions whose last grant for this verifier would still be valid.
    #[serde(default)]
    pub revoked_sessions: Vec<RevokedSession>,
    /// The pairs of the suite `sha224` whose tokens the verifier accepts.
    #[serde(default)]
    pub pairs: Vec<LivePair>,
    /// Withdrawals of consent that have not expired; empty for a verifier that checks no proofs.
    #[serde(default)]
    pub withdrawn: Vec<Withdrawal>,
    /// Addresses and UDP ports at which the verifier's sealed tunnels begin, at most one per address family; empty if
    /// the policy names no tunnel for this verifier.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schema(value_type = Vec<String>, example = json!(["203.0.113.10:4499"])))]
    pub tunnels: Vec<SocketAddr>,
    /// The URLs of the authorities of the cluster, including the answering authority; empty if the answering authority
    /// is in no cluster. See [`Authorities`](crate::Authorities).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub authorities: Vec<String>,
    /// The current time by the authority's clock, in Unix seconds.
    pub now: u64,
}

/// A pair of the suite `sha224`: a unique id and a nonce1. The verifier accepts tokens of this pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct LivePair {
    /// The handle of the grant: the pair's unique id and nonce1.
    #[serde(with = "handle_hex")]
    #[cfg_attr(feature = "schema", schema(schema_with = crate::schema::handle))]
    pub handle: u64,
    /// The epoch of the application server secret from which the client key is made.
    pub epoch: u64,
    /// The time of issue, in Unix seconds.
    pub issued: u64,
    /// The time at which the pair ends, in Unix seconds.
    pub expires: u32,
    /// The number of the account and session to which the pair was issued (wire.md §3.9); 0 if there are none. The
    /// pair's handle does not contain this number.
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
    /// The time at which the grant would have ended, in Unix seconds.
    pub expires: u32,
    /// The account and session to which the grant was issued. Only the grant's verifier can read them from the handle
    /// (wire.md §3.9). 0 if there are none, and always 0 in events to sessions.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub holder: u32,
}

fn is_zero(holder: &u32) -> bool {
    *holder == 0
}

/// A session that ended. All grants of the session ended with it, and the verifier cuts all flows of the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RevokedSession {
    /// The account and the session, as handles contain them (wire.md §3.9).
    pub holder: u32,
    /// The time at which the last of the session's grants would have ended, in Unix seconds.
    pub expires: u32,
}

/// The owner of a grant: the content of [`Event::Granted`](crate::Event::Granted), and the answer to `GET
/// /v1/verifier/grants/HANDLE` of a verifier.
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
    /// The rule that allowed the grant.
    pub rule: String,
    /// The time of issue, in Unix seconds.
    pub issued: u64,
    /// The time at which the grant ends, in Unix seconds.
    pub expires: u64,
    /// The rule's class, for packet filters behind the verifier; 0 means none.
    #[serde(default)]
    pub class: u8,
    /// The rule's demands on a sealed tunnel; missing if the rule has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sealing: Option<Sealing>,
}
