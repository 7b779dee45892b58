//! Requests for access to a receiver. A delegate, a person to whom the policy delegates the decision, decides about
//! each request.

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// `POST /v1/access`: the caller asks for access to a receiver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct AccessRequest {
    /// Name of the receiver.
    pub receiver: String,
    /// The services in the notation of the policy file, such as `tcp/22`. If empty, the request is for all services for
    /// which the person may ask.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schema(max_items = 16))]
    pub services: Vec<String>,
    /// The number of seconds for which the person wants access; if absent, the person who decides chooses.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::form::some_whole")]
    #[cfg_attr(feature = "schema", schema(minimum = 60, maximum = 31622400))]
    pub lifetime: Option<u32>,
    /// The reason, for the person who decides: one line.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(max_length = 500, pattern = r"^[^\x00-\x1f\x7f-\x9f]*$"))]
    pub reason: String,
}

/// The answer to [`AccessRequest`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct AccessAsked {
    /// The number of the request, 8 hex digits.
    pub id: String,
}

/// The answer to `GET /v1/access`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct AccessList {
    /// A page of the caller's requests, newest first.
    pub requests: Vec<AccessEntry>,
    /// The value of the parameter `before` with which the caller gets the next page, of older requests. Absent if there
    /// are no older requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// The receivers for which the caller can ask.
    pub requestable: Vec<Requestable>,
    /// The authority's time, in Unix seconds.
    pub now: u64,
}

/// A receiver for which a person can ask.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Requestable {
    /// Name of the receiver.
    pub receiver: String,
    /// The services for which the person can ask, in the notation of the policy file.
    pub services: Vec<String>,
    /// The addresses and networks of the receiver. Earlier versions do not send them.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(value_type = Vec<String>))]
    pub addresses: Vec<IpNet>,
}

/// A request for access, with the decision about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct AccessEntry {
    /// The number of the request, 8 hex digits.
    pub id: String,
    /// Name of the receiver.
    pub receiver: String,
    /// The services in the decision if the request was allowed, otherwise the services for which the person asks.
    pub services: Vec<String>,
    /// The reason that the person gave.
    pub reason: String,
    /// Time of the request, in Unix seconds.
    pub asked: u64,
    /// The state of the request: `open`, `allowed`, `refused`, `withdrawn` or `expired`.
    pub state: String,
    /// The person who decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// The note of the person who decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Time at which the consent ends, in Unix seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<u64>,
}
