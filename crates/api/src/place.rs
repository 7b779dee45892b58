//! Places of addresses in virtual networks. The verifier before a tunnel endpoint needs them.

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// The answer to `GET /v1/verifier/places` of a verifier. It contains the entries of `networks.toml` about some tunnel
/// endpoints: those for which this verifier is the last verifier on a path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct EndpointPlaces {
    /// The outer addresses of the tunnel endpoints for which this verifier is the last verifier on a path.
    #[cfg_attr(feature = "schema", schema(schema_with = crate::schema::addresses))]
    pub endpoints: Vec<IpAddr>,
    /// The prefixes behind the endpoints in `endpoints`, and the longer prefixes within them that are behind other
    /// endpoints. The longest prefix that contains an address gives the address's place.
    pub places: Vec<EndpointPlace>,
    /// The current time by the authority's clock, in Unix seconds.
    pub now: u64,
}

/// The place of a prefix in a virtual network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct EndpointPlace {
    /// The network's name.
    pub network: String,
    /// The virtual network's number (VNI).
    pub vni: u32,
    /// The prefix of addresses in the virtual network.
    #[cfg_attr(feature = "schema", schema(value_type = String, example = "10.0.0.5/32"))]
    pub prefix: IpNet,
    /// The endpoint and interface through which the addresses in `prefix` are reached; absent if the endpoint belongs
    /// to another verifier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub behind: Option<Behind>,
}

/// The endpoint and interface of a place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Behind {
    /// The outer address of the tunnel endpoint.
    #[cfg_attr(feature = "schema", schema(schema_with = crate::schema::address, example = "192.0.2.1"))]
    pub endpoint: IpAddr,
    /// The id of the interface at the tunnel endpoint.
    pub interface: u16,
    /// The accounts that may request segments on behalf of the addresses at this place, such as `person:host-1` or
    /// `group:hosts`. If absent, every account may.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked_by: Option<Vec<String>>,
}
