//! Path segments (wire.md §8): requested by the sender's endpoint, and by the endpoint of a receiver that answers.

use crate::form::whole;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};

/// `POST /v1/segments` of a session: request a segment for a sender of a virtual network to a destination.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct SegmentRequest {
    /// The virtual network's name.
    pub network: String,
    /// The sender's address in the virtual network.
    #[cfg_attr(feature = "schema", schema(schema_with = crate::schema::address, example = "10.0.0.5"))]
    pub sender: IpAddr,
    /// The endpoint through which the sender sends.
    #[cfg_attr(feature = "schema", schema(schema_with = crate::schema::address, example = "192.0.2.1"))]
    pub sending: IpAddr,
    /// The destination.
    pub to: SegmentTo,
    /// The port that the sender sends from; used if the rule allows single flows.
    #[cfg_attr(feature = "schema", schema(maximum = 65535))]
    #[serde(default, deserialize_with = "whole", skip_serializing_if = "is_zero")]
    pub sender_port: u16,
}

/// A destination in a virtual network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct SegmentTo {
    /// The receiver's address.
    #[cfg_attr(feature = "schema", schema(schema_with = crate::schema::address, example = "10.0.0.7"))]
    pub address: IpAddr,
    /// The IP protocol number.
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 255))]
    #[serde(deserialize_with = "whole")]
    pub protocol: u8,
    /// The destination port.
    #[cfg_attr(feature = "schema", schema(maximum = 65535))]
    #[serde(deserialize_with = "whole")]
    pub port: u16,
}

/// `POST /v1/segments/answer` of a session: request a segment for the way back, showing the one that a packet arrived
/// with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct AnswerRequest {
    /// The virtual network's number.
    #[cfg_attr(feature = "schema", schema(maximum = 16777215))]
    #[serde(deserialize_with = "whole")]
    pub vni: u32,
    /// The endpoint from which the packet came.
    #[cfg_attr(feature = "schema", schema(schema_with = crate::schema::address, example = "192.0.2.1"))]
    pub sending: IpAddr,
    /// The endpoint at which the packet arrived.
    #[cfg_attr(feature = "schema", schema(schema_with = crate::schema::address, example = "192.0.2.2"))]
    pub receiving: IpAddr,
    /// The sender of the packet.
    #[cfg_attr(feature = "schema", schema(schema_with = crate::schema::address, example = "10.0.0.5"))]
    pub sender: IpAddr,
    /// The receiver of the packet, which answers.
    #[cfg_attr(feature = "schema", schema(schema_with = crate::schema::address, example = "10.0.0.7"))]
    pub receiver: IpAddr,
    /// The packet's Geneve option, with any pointer.
    #[cfg_attr(feature = "schema", schema(pattern = "^([0-9a-fA-F]{2})*$", max_length = 512))]
    pub option: String,
    /// The hops of a fixed path, as in the routing header.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schema(schema_with = hops))]
    pub hops: Vec<Ipv6Addr>,
}

/// The answer to [`SegmentRequest`] and [`AnswerRequest`]. A denial is a problem with status 403.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PathSegment {
    /// The virtual network's number.
    pub vni: u32,
    /// The endpoint to send to.
    #[cfg_attr(feature = "schema", schema(schema_with = crate::schema::address, example = "192.0.2.2"))]
    pub receiving: IpAddr,
    /// End of the segment.
    pub expires: u64,
    /// Whether the receiver may answer.
    pub reply: bool,
    /// The Geneve option with the segment and its proofs (wire.md §8.4), from its class on, with pointer 0: hex.
    pub option: String,
    /// The addresses of a fixed path (wire.md §8.12) through which packets are routed, first to last: one for each
    /// verifier, the last of them `receiving`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schema(schema_with = hops))]
    pub hops: Vec<Ipv6Addr>,
    /// The authority's clock.
    pub now: u64,
}

/// Schema of the hops of a fixed path.
#[cfg(feature = "schema")]
fn hops() -> utoipa::openapi::Schema {
    use utoipa::openapi::schema::{ArrayBuilder, KnownFormat, ObjectBuilder, SchemaFormat, Type};
    let hop = ObjectBuilder::new().schema_type(Type::String).format(Some(SchemaFormat::KnownFormat(KnownFormat::Ipv6)));
    ArrayBuilder::new().items(hop).max_items(Some(wire::segment::PROOFS_MAX.into())).build().into()
}

/// Withdrawn consent: segments from that sender to that receiver that end by `until` are void (wire.md §8.10).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Withdrawal {
    /// The virtual network's number.
    pub vni: u32,
    /// The receiver.
    #[cfg_attr(feature = "schema", schema(schema_with = crate::schema::address, example = "10.0.0.7"))]
    pub receiver: IpAddr,
    /// The sender; all senders if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(schema_with = crate::schema::address_or_none))]
    pub sender: Option<IpAddr>,
    /// Latest end of the segments that are void.
    pub until: u32,
}

impl Withdrawal {
    fn about(&self) -> (u32, IpAddr, Option<IpAddr>) {
        (self.vni, self.receiver, self.sender)
    }

    /// Adds new withdrawals, removes those that have ended, and sorts the list.
    pub fn add(known: &mut Vec<Self>, news: &[Self], now: u64) {
        let mut all: BTreeMap<(u32, IpAddr, Option<IpAddr>), u32> = BTreeMap::new();
        for one in known.iter().chain(news).filter(|one| u64::from(one.until) >= now) {
            let until = all.entry(one.about()).or_default();
            *until = one.until.max(*until);
        }
        let all = all.into_iter();
        *known = all.map(|((vni, receiver, sender), until)| Self { vni, receiver, sender, until }).collect();
    }
}

fn is_zero(number: &u16) -> bool {
    *number == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_without_the_senders_port_is_one_from_any() {
        let text = r#"{"network":"blue","sender":"10.0.0.5","sending":"192.0.2.1",
            "to":{"address":"10.0.0.7","protocol":6,"port":443}}"#;
        let request: SegmentRequest = serde_json::from_str(text).unwrap();
        assert_eq!((request.sender_port, request.to.port), (0, 443));
        assert!(!serde_json::to_string(&request).unwrap().contains("sender_port"));
    }

    #[test]
    fn of_two_withdrawals_the_later_counts_and_what_has_ended_goes() {
        let one = |sender: Option<&str>, until| Withdrawal {
            vni: 7,
            receiver: IpAddr::from([10, 0, 0, 7]),
            sender: sender.and_then(|sender| sender.parse().ok()),
            until,
        };
        let mut known = vec![one(Some("10.0.0.5"), 200), one(None, 99)];
        Withdrawal::add(&mut known, &[one(Some("10.0.0.5"), 150), one(Some("10.0.0.6"), 300)], 100);
        assert_eq!(known, [one(Some("10.0.0.5"), 200), one(Some("10.0.0.6"), 300)]);
    }
}
