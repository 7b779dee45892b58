//! Places of addresses in virtual networks, as a tunnel endpoint sees its own.

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// `GET /v1/verifier/places` of a verifier: what `networks.toml` says of the tunnel endpoints to which a path leads that
/// ends with this verifier.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct EndpointPlaces {
    /// The addresses of these endpoints.
    #[cfg_attr(feature = "schema", schema(schema_with = crate::schema::addresses))]
    pub endpoints: Vec<IpAddr>,
    /// Places behind them, and exceptions: longer prefixes that are behind other endpoints. As everywhere, the longest
    /// prefix around an address counts.
    pub places: Vec<EndpointPlace>,
    /// The authority's clock.
    pub now: u64,
}

/// The place of a prefix in a virtual network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct EndpointPlace {
    /// The network's name.
    pub network: String,
    /// The network's number.
    pub vni: u32,
    /// The addresses.
    #[cfg_attr(feature = "schema", schema(value_type = String, example = "10.0.0.5/32"))]
    pub prefix: IpNet,
    /// Where they are; absent if they are behind an endpoint of another verifier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub behind: Option<Behind>,
}

/// A place behind one of the verifier's own endpoints.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Behind {
    /// The endpoint.
    #[cfg_attr(feature = "schema", schema(schema_with = crate::schema::address, example = "192.0.2.1"))]
    pub endpoint: IpAddr,
    /// The id of the interface at that endpoint.
    pub interface: u16,
    /// The accounts that may request segments for the addresses, such as `person:host-1` or `group:hosts`; absent if
    /// every account may.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked_by: Option<Vec<String>>,
}
