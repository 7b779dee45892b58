//! Protected receivers, and grants to send to them.

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
    /// The first port; the span is 0 to 65535 if ports don't matter.
    pub first_port: u16,
    /// The last port.
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

/// `GET /v1/destinations` of a session: the receivers that some rule lets this person reach.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Destinations {
    /// The receivers.
    pub destinations: Vec<Receiver>,
    /// Where packets have to travel in a sealed tunnel.
    #[serde(default, skip_serializing_if = "SealedDestinations::is_empty")]
    pub sealed: SealedDestinations,
    /// The authority's clock.
    pub now: u64,
}

/// `POST /v1/grants` of a session: request a grant to send to a destination.
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
    /// Whether the person has consented to this destination, for destinations where they want to be asked.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub consented: bool,
    /// Whether the authority may send the client key of the suite `sha224` in band, in a packet of this connection
    /// (wire.md §5.4.1).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub in_band: bool,
}

/// The answer to [`GrantRequest`] if a rule allows it. A denial is a [`Problem`] with status 403.
#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Grant {
    /// The grant header's 16 bytes, hex; for the suite `sha224`, unique id and nonce1, 7 bytes.
    pub header: String,
    /// The grant key's 16 bytes, hex; for the suite `sha224`, the client key's 28 bytes, or empty if the key is sent in
    /// band. Secret.
    pub key: String,
    /// The destination masked to the grant's prefix length.
    #[cfg_attr(feature = "schema", schema(value_type = String, example = "203.0.113.0/28"))]
    pub prefix: IpNet,
    /// The receiver's name.
    pub receiver: String,
    /// The rule that allowed it, `policy.toml:LINE name` or its number.
    pub rule: String,
    /// Carrier of the tokens: `tail` or `shim`.
    pub carrier: String,
    /// The rule's demand in a sealed tunnel; missing if the verifier has no tunnel. If a treatment is demanded, the header has
    /// the flag SEALED, and a token admits inside a tunnel only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sealing: Option<GrantSealing>,
    /// End of the grant.
    pub expires: u64,
    /// The authority's clock.
    pub now: u64,
}

/// Facts about sealed tunnels that a session needs before it has any grant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SealedDestinations {
    /// Treatment of the receivers to which packets may travel in a tunnel only, by the receiver's name.
    pub demanded: BTreeMap<String, String>,
    /// Receivers to which a rule would let the person send in a tunnel only, but none does now. Packets to them are not
    /// sent: outside of a tunnel they would be in clear.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub closed: Vec<Receiver>,
    /// Where tunnels begin.
    #[cfg_attr(feature = "schema", schema(value_type = Vec<String>))]
    pub tunnels: Vec<SocketAddr>,
}

impl SealedDestinations {
    /// Reports whether there are no tunnels and nothing is demanded.
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
