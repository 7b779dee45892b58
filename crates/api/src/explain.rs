//! Explanations of the policy's decisions.

use crate::form::whole;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// `POST /v1/verifier/explain` of a verifier: ask whether the policy would let a person in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ExplainRequest {
    /// The person's name.
    pub person: String,
    /// The device whose tags the person has; without it, only a service account's own tags.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Groups in addition to those that the authority knows of.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    /// Tags in addition to those that the authority knows of.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// The address from which the person would call the authority.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(schema_with = crate::schema::address_or_none))]
    pub source: Option<IpAddr>,
    /// The receiver's address.
    #[cfg_attr(feature = "schema", schema(schema_with = crate::schema::address, example = "203.0.113.10"))]
    pub address: IpAddr,
    /// The IP protocol number.
    #[cfg_attr(feature = "schema", schema(maximum = 255))]
    #[serde(deserialize_with = "whole")]
    pub protocol: u8,
    /// The destination port.
    #[cfg_attr(feature = "schema", schema(maximum = 65535))]
    #[serde(deserialize_with = "whole")]
    pub port: u16,
}

/// The answer to [`ExplainRequest`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PersonExplanation {
    /// The policy's decision.
    #[serde(flatten)]
    pub explanation: Explanation,
    /// The facts that the answer is based on, and those that were not known: one readable line each.
    pub taken: Vec<String>,
}

/// The policy's decision about a person and a destination.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Explanation {
    /// Whether the authority would issue a grant.
    pub allowed: bool,
    /// The receiver's name, if the destination belongs to one.
    pub receiver: Option<String>,
    /// The deciding rule, if one matched.
    pub rule: Option<String>,
    /// One readable sentence.
    pub text: String,
}
