//! Explanations of the policy's decisions.

use crate::form::whole;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// `POST /v1/verifier/explain` of a verifier: asks whether the policy would grant a person access to a destination.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ExplainRequest {
    /// The name of the person whose access the verifier asks about.
    pub person: String,
    /// The device whose tags count for the decision. Without a device, only the tags of a service account count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Groups of the person, in addition to those that the authority knows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    /// Tags of the device, in addition to those that the authority knows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// The address from which the person would call the authority; without it, rules about addresses do not match.
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
    /// The facts on which the decision is based: one readable line about groups, one about tags, and one about the
    /// source address. The line of an unknown fact says that the fact is unknown. Groups and tags that only the
    /// authority knows are not named.
    pub taken: Vec<String>,
}

/// The policy's decision about a person and a destination.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Explanation {
    /// Whether the authority would issue a grant.
    pub allowed: bool,
    /// The receiver's name, if the destination belongs to a receiver.
    pub receiver: Option<String>,
    /// The label of the deciding rule, if a rule matched.
    pub rule: Option<String>,
    /// The reason for the decision in one readable sentence.
    pub text: String,
}
