//! Path segments (wire.md §8): the requests of the sender's tunnel endpoint, the requests of a receiver's endpoint for
//! its answers, and withdrawals of consent.

use crate::form::whole;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};

/// `POST /v1/segments` of a session: requests a segment with which a sender of a virtual network may send to a
/// destination.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct SegmentRequest {
    /// The virtual network's name.
    pub network: String,
    /// The sender's address in the virtual network.
    #[cfg_attr(feature = "schema", schema(schema_with = crate::schema::address, example = "10.0.0.5"))]
    pub sender: IpAddr,
    /// The outer address of the tunnel endpoint through which the sender sends.
    #[cfg_attr(feature = "schema", schema(schema_with = crate::schema::address, example = "192.0.2.1"))]
    pub sending: IpAddr,
    /// The destination to which the sender wants to send.
    pub to: SegmentTo,
    /// The sender's port; 0 if it is not known. It matters only if the rule limits segments to single flows.
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

/// `POST /v1/segments/answer` of a session: requests a return segment for a packet, and presents the segment with which
/// that packet arrived.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct AnswerRequest {
    /// The virtual network's number.
    #[cfg_attr(feature = "schema", schema(maximum = 16777215))]
    #[serde(deserialize_with = "whole")]
    pub vni: u32,
    /// The outer address of the tunnel endpoint that sent the packet.
    #[cfg_attr(feature = "schema", schema(schema_with = crate::schema::address, example = "192.0.2.1"))]
    pub sending: IpAddr,
    /// The outer address of the tunnel endpoint at which the packet arrived.
    #[cfg_attr(feature = "schema", schema(schema_with = crate::schema::address, example = "192.0.2.2"))]
    pub receiving: IpAddr,
    /// The address of the packet's sender in the virtual network.
    #[cfg_attr(feature = "schema", schema(schema_with = crate::schema::address, example = "10.0.0.5"))]
    pub sender: IpAddr,
    /// The receiver of the packet, which wants to answer the packet.
    #[cfg_attr(feature = "schema", schema(schema_with = crate::schema::address, example = "10.0.0.7"))]
    pub receiver: IpAddr,
    /// The packet's Geneve option with the segment, in hex. The value of the segment's pointer does not matter.
    #[cfg_attr(feature = "schema", schema(pattern = "^([0-9a-fA-F]{2})*$", max_length = 512))]
    pub option: String,
    /// The hops of the fixed path, in the order of the packet's routing header; empty if the path is not fixed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schema(schema_with = hops))]
    pub hops: Vec<Ipv6Addr>,
}

/// The answer to [`SegmentRequest`] and [`AnswerRequest`]. A denial is a [`Problem`](crate::Problem) with status 403.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PathSegment {
    /// The virtual network's number.
    pub vni: u32,
    /// The outer address of the tunnel endpoint to which packets are sent.
    #[cfg_attr(feature = "schema", schema(schema_with = crate::schema::address, example = "192.0.2.2"))]
    pub receiving: IpAddr,
    /// The time at which the segment ends, in Unix seconds.
    pub expires: u64,
    /// Whether the receiver is allowed to request a segment for its answers.
    pub reply: bool,
    /// The Geneve option with the segment and its proofs (wire.md §8.4), in hex. It begins with the option's class, and
    /// the segment's pointer in it is 0.
    pub option: String,
    /// The addresses through which segment routing leads packets on a fixed path (wire.md §8.12), first to last: one
    /// address for each verifier. The last address is `receiving`. Empty if the path is not fixed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schema(schema_with = hops))]
    pub hops: Vec<Ipv6Addr>,
    /// The segment for the receiver's answers, in hex, in the form in which the sender's endpoint passes it on to the
    /// receiver's endpoint (wire.md §8.15.1). Empty unless the call had the query parameter `answers=true` and the
    /// authority issued such a segment.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub answers: String,
    /// Number of other paths that the segment could take (wire.md §8.16).
    #[cfg_attr(feature = "schema", schema(maximum = 3))]
    #[serde(default)]
    pub others: u8,
    /// The current time by the authority's clock, in Unix seconds.
    pub now: u64,
}

/// Returns the schema of the hops of a fixed path.
#[cfg(feature = "schema")]
fn hops() -> utoipa::openapi::Schema {
    use utoipa::openapi::schema::{ArrayBuilder, KnownFormat, ObjectBuilder, SchemaFormat, Type};
    let hop = ObjectBuilder::new().schema_type(Type::String).format(Some(SchemaFormat::KnownFormat(KnownFormat::Ipv6)));
    ArrayBuilder::new().items(hop).max_items(Some(wire::segment::PROOFS_MAX.into())).build().into()
}

/// A withdrawal of consent (wire.md §8.10): segments from `sender` to `receiver` that end at `until` or earlier are
/// void.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Withdrawal {
    /// The virtual network's number.
    pub vni: u32,
    /// The receiver whose consent is withdrawn.
    #[cfg_attr(feature = "schema", schema(schema_with = crate::schema::address, example = "10.0.0.7"))]
    pub receiver: IpAddr,
    /// The sender whose segments are void; all senders if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(schema_with = crate::schema::address_or_none))]
    pub sender: Option<IpAddr>,
    /// A time in Unix seconds: segments that end at this time or earlier are void.
    pub until: u32,
}

impl Withdrawal {
    fn about(&self) -> (u32, IpAddr, Option<IpAddr>) {
        (self.vni, self.receiver, self.sender)
    }

    /// Adds the withdrawals `news` to `known`, removes those whose `until` is before `now`, and sorts the list. Of two
    /// withdrawals of the same consent, the one with the later `until` remains.
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
