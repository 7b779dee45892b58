//! Protected receivers, and the grants with which a session may send to them.

use crate::form::whole;
use crate::sealing::GrantSealing;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

/// A span of ports of one protocol, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Service {
    /// The IP protocol number; 0 means every protocol.
    pub protocol: u8,
    /// The first port of the span. A service on all ports has the span 0 to 65535.
    pub first_port: u16,
    /// The last port of the span, which the span includes.
    pub last_port: u16,
}

/// A protected receiver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Receiver {
    /// Name of the receiver in the policy.
    pub name: String,
    /// Address or network of the receiver.
    #[cfg_attr(feature = "schema", schema(value_type = String, example = "203.0.113.0/28"))]
    pub prefix: IpNet,
    /// The protected services of the receiver.
    pub services: Vec<Service>,
}

/// The answer to `GET /v1/destinations` of a session: the receivers that some rule lets this person reach.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Destinations {
    /// The receivers that the person may reach.
    pub destinations: Vec<Receiver>,
    /// The receivers to which packets must travel in a sealed tunnel, and the addresses of the tunnels.
    #[serde(default, skip_serializing_if = "SealedDestinations::is_empty")]
    pub sealed: SealedDestinations,
    /// The URLs of the authorities of the cluster, including the answering authority; empty if the answering authority
    /// is in no cluster. See [`Authorities`](crate::Authorities).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub authorities: Vec<String>,
    /// The current time by the authority's clock, in Unix seconds.
    pub now: u64,
}

/// `POST /v1/grants` of a session: requests a grant to send to a destination.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct GrantRequest {
    /// The receiver's address.
    #[cfg_attr(feature = "schema", schema(schema_with = crate::schema::address, example = "203.0.113.10"))]
    pub address: IpAddr,
    /// The IP protocol number.
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 255))]
    #[serde(deserialize_with = "whole")]
    pub protocol: u8,
    /// The destination port.
    #[cfg_attr(feature = "schema", schema(maximum = 65535))]
    #[serde(deserialize_with = "whole")]
    pub port: u16,
    /// Whether the person has consented to this request. Needed for a destination for which the person's choice is
    /// `ask`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub consented: bool,
    /// Whether the authority is allowed to send the client key of the suite `sha224` in band, in a packet of this
    /// connection (wire.md §5.4.1).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub in_band: bool,
}

/// The answer to [`GrantRequest`] if a rule allows the request. A denial is a [`Problem`](crate::Problem) with status
/// 403.
#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Grant {
    /// The grant header, 16 bytes in hex. For the suite `sha224`: the unique id and nonce1 of the pair, 7 bytes in hex.
    pub header: String,
    /// The grant key, 16 bytes in hex. For the suite `sha224`: the client key, 28 bytes in hex, or empty if the
    /// authority sends the key in band. Secret.
    pub key: String,
    /// The network to which the grant applies: the destination's address, cut to the grant's prefix length.
    #[cfg_attr(feature = "schema", schema(value_type = String, example = "203.0.113.0/28"))]
    pub prefix: IpNet,
    /// The receiver's name.
    pub receiver: String,
    /// The rule that allowed the request: `policy.toml:LINE NAME`, or `policy.toml:LINE rule N` if the rule has no
    /// name.
    pub rule: String,
    /// The carrier of the tokens: `tail` or `shim`.
    pub carrier: String,
    /// The rule's demands on a sealed tunnel, and the addresses of the verifier's tunnels; missing if the verifier has
    /// no tunnel. If the rule demands a treatment, the grant header has the flag SEALED, and the verifier accepts the
    /// grant's tokens only inside a tunnel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sealing: Option<GrantSealing>,
    /// The time at which the grant ends, in Unix seconds.
    pub expires: u64,
    /// The current time by the authority's clock, in Unix seconds.
    pub now: u64,
}

/// Facts about sealed tunnels that a session needs before it requests a grant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SealedDestinations {
    /// The receivers to which packets must travel in a tunnel. The key is the receiver's name, and the value is the
    /// treatment that the policy's rule demands.
    pub demanded: BTreeMap<String, String>,
    /// Receivers to which the person is not allowed to send now, although a rule with a treatment names them. Either
    /// the rule's time window is closed, or another rule denies. The agent sends no packets to these receivers, because
    /// the packets would travel unencrypted outside a tunnel.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub closed: Vec<Receiver>,
    /// Addresses and UDP ports at which the verifiers' tunnels begin.
    #[cfg_attr(feature = "schema", schema(value_type = Vec<String>))]
    pub tunnels: Vec<SocketAddr>,
}

impl SealedDestinations {
    /// Reports whether all fields are empty.
    pub fn is_empty(&self) -> bool {
        self.demanded.is_empty() && self.closed.is_empty() && self.tunnels.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_whole_and_in_their_range() {
        let asked = |protocol: &str, port: &str| {
            let text = format!(r#"{{"address":"::1","protocol":{protocol},"port":{port}}}"#);
            serde_json::from_str::<GrantRequest>(&text).map(|request| (request.protocol, request.port)).ok()
        };
        assert_eq!(asked("6", "65535"), Some((6, 65535)));
        assert_eq!(asked("6.0", "2.2e1"), Some((6, 22)));
        for (protocol, port) in
            [("256", "22"), ("6", "65536"), ("-1", "22"), ("6.5", "22"), ("6", "1e300"), ("6", "\"22\"")]
        {
            assert_eq!(asked(protocol, port), None);
        }
    }

    #[test]
    fn sealed_destinations_without_content_are_short() {
        let text = serde_json::to_string(&SealedDestinations::default()).unwrap();
        assert_eq!(text, r#"{"demanded":{},"tunnels":[]}"#);
    }
}
