//! Path segments (wire.md §8): asked for by the endpoint before a sender, and by the one before a receiver that answers.

use super::{address, whole};
use crate::segment::Given;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use utoipa::ToSchema;
use utoipa::openapi::schema::{ArrayBuilder, KnownFormat, ObjectBuilder, Schema, SchemaFormat, Type};
use wire::ask::GivenReply;
use wire::segment::PROOFS_MAX;
use wire::{DropReason, Ends, Epoch, ProofKey, Vni};

/// `POST /v1/segments` of a session: may this sender of a virtual network send there?
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SegmentRequest {
    /// The virtual network's name.
    pub network: String,
    /// The sender's address in it.
    #[schema(schema_with = address, example = "10.0.0.5")]
    pub sender: IpAddr,
    /// The endpoint through which the sender sends.
    #[schema(schema_with = address, example = "192.0.2.1")]
    pub sending: IpAddr,
    /// Where to.
    pub to: SegmentTo,
    /// The port that the sender sends from; counts where the rule allows single flows.
    #[schema(maximum = 65535)]
    #[serde(default, deserialize_with = "whole", skip_serializing_if = "is_zero")]
    pub sender_port: u16,
}

/// A destination in a virtual network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SegmentTo {
    /// The receiver's address.
    #[schema(schema_with = address, example = "10.0.0.7")]
    pub address: IpAddr,
    /// The IP protocol number.
    #[schema(minimum = 1, maximum = 255)]
    #[serde(deserialize_with = "whole")]
    pub protocol: u8,
    /// The destination port.
    #[schema(maximum = 65535)]
    #[serde(deserialize_with = "whole")]
    pub port: u16,
}

/// `POST /v1/segments/answer` of a session: the way back for a segment that a packet came with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AnswerRequest {
    /// The virtual network's number.
    #[schema(maximum = 16777215)]
    #[serde(deserialize_with = "whole")]
    pub vni: u32,
    /// The endpoint that the packet came from.
    #[schema(schema_with = address, example = "192.0.2.1")]
    pub sending: IpAddr,
    /// The endpoint that it came to.
    #[schema(schema_with = address, example = "192.0.2.2")]
    pub receiving: IpAddr,
    /// Who sent it.
    #[schema(schema_with = address, example = "10.0.0.5")]
    pub sender: IpAddr,
    /// Whom it is for, who answers.
    #[schema(schema_with = address, example = "10.0.0.7")]
    pub receiver: IpAddr,
    /// Its Geneve option, whatever its pointer.
    #[schema(pattern = "^([0-9a-fA-F]{2})*$", max_length = 512)]
    pub option: String,
    /// Where the path was fixed, its hops, as the routing header says.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(schema_with = hops)]
    pub hops: Vec<Ipv6Addr>,
}

/// The answer to [`SegmentRequest`] and [`AnswerRequest`]. A denial is a problem with status 403.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PathSegment {
    /// The virtual network's number.
    pub vni: u32,
    /// The endpoint to send to.
    #[schema(schema_with = address, example = "192.0.2.2")]
    pub receiving: IpAddr,
    /// When it ends.
    pub expires: u64,
    /// Whether the receiver may answer.
    pub reply: bool,
    /// The Geneve option with the segment and its proofs (wire.md §8.4), from its class on, with pointer 0: hex.
    pub option: String,
    /// Where the path is fixed (wire.md §8.12), the addresses that packets are led through, first to last: one for each verifier,
    /// the last of them `receiving`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(schema_with = hops)]
    pub hops: Vec<Ipv6Addr>,
    /// The authority's clock.
    pub now: u64,
}

impl PathSegment {
    /// As the API tells it.
    pub fn new(given: &Given, now: u64) -> Self {
        Self {
            vni: given.vni.number(),
            receiving: given.ends.receiving,
            expires: given.segment.expires.into(),
            reply: given.segment.flags.has(wire::SegmentFlags::REPLY),
            option: hex::encode(given.option()),
            hops: given.hops.clone(),
            now,
        }
    }

    /// As an answer by UDP tells it (wire.md §8.13.4); `None` if that is broken.
    pub fn heard(reply: &GivenReply<'_>) -> Option<Self> {
        let (_, data) = reply.option.split_first_chunk::<4>()?;
        let (segment, _) = wire::Segment::decode(data).ok()?;
        Some(Self {
            vni: reply.vni.number(),
            receiving: reply.receiving,
            expires: segment.expires.into(),
            reply: segment.flags.has(wire::SegmentFlags::REPLY),
            option: hex::encode(reply.option),
            hops: reply.hops.iter().map(|hop| (*hop).into()).collect(),
            now: reply.now.into(),
        })
    }

    /// The segment for packets from `sender` to `receiver` by the endpoint `sending`.
    pub fn given(&self, sending: IpAddr, sender: IpAddr, receiver: IpAddr) -> Result<Given, DropReason> {
        let ends = Ends { sending, receiving: self.receiving, sender, receiver };
        read(&self.option, self.vni, ends, &self.hops)
    }
}

impl AnswerRequest {
    /// Asks for the way back of a segment.
    pub fn new(shown: &Given) -> Self {
        let Ends { sending, receiving, sender, receiver } = shown.ends;
        let option = hex::encode(shown.option());
        Self { vni: shown.vni.number(), sending, receiving, sender, receiver, option, hops: shown.hops.clone() }
    }

    /// The segment that is shown.
    pub fn shown(&self) -> Result<Given, DropReason> {
        let [sending, receiving, sender, receiver] =
            [self.sending, self.receiving, self.sender, self.receiver].map(|address| address.to_canonical());
        read(&self.option, self.vni, Ends { sending, receiving, sender, receiver }, &self.hops)
    }
}

fn read(option: &str, vni: u32, ends: Ends, hops: &[Ipv6Addr]) -> Result<Given, DropReason> {
    let vni = Vni::new(vni).ok_or(DropReason::Malformed)?;
    let option = hex::decode(option).map_err(|_| DropReason::Malformed)?;
    Given::from_option(&option, vni, ends, hops.to_vec())
}

fn hops() -> Schema {
    let hop = ObjectBuilder::new().schema_type(Type::String).format(Some(SchemaFormat::KnownFormat(KnownFormat::Ipv6)));
    ArrayBuilder::new().items(hop).max_items(Some(PROOFS_MAX.into())).build().into()
}

/// Consent that was withdrawn: segments from that sender to that receiver that end by then are void (wire.md §8.10).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Withdrawal {
    /// The virtual network's number.
    pub vni: u32,
    /// The receiver.
    #[schema(schema_with = address, example = "10.0.0.7")]
    pub receiver: IpAddr,
    /// The sender; where absent, every one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(schema_with = super::address_or_none)]
    pub sender: Option<IpAddr>,
    /// Until when segments may end that are void.
    pub until: u32,
}

impl Withdrawal {
    /// Whether one of these, as [`Self::add`] leaves them, voids a segment of this sender's to this receiver that ends then.
    pub fn any_voids(known: &[Self], vni: Vni, sender: IpAddr, receiver: IpAddr, expires: u32) -> bool {
        [None, Some(sender)].into_iter().any(|sender| {
            let place = known.binary_search_by_key(&(vni.number(), receiver, sender), Self::about);
            place.is_ok_and(|place| expires <= known[place].until)
        })
    }

    fn about(&self) -> (u32, IpAddr, Option<IpAddr>) {
        (self.vni, self.receiver, self.sender)
    }

    /// Adds what was just heard of, leaves out what has ended, and brings all in order.
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

/// A verifier's keys for the proofs that one authority gives.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
pub struct ProofKeys {
    /// The authority's address, as segments name it.
    #[schema(schema_with = address, example = "198.51.100.1")]
    pub authority: IpAddr,
    /// One key per epoch, oldest first.
    pub keys: Vec<super::EpochKey>,
}

impl ProofKeys {
    /// The keys themselves; the error is the epoch of one that is broken.
    pub fn read(&self) -> Result<Vec<(IpAddr, Epoch, ProofKey)>, u64> {
        let read = |key: &super::EpochKey| {
            let mut bytes = [0; 32];
            hex::decode_to_slice(&key.key, &mut bytes).map_err(|_| key.epoch)?;
            Ok((self.authority, Epoch(key.epoch), ProofKey::new(bytes)))
        };
        self.keys.iter().map(read).collect()
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

    #[test]
    fn a_withdrawal_voids_what_ends_by_then_of_its_sender_or_of_all() {
        let [sender, other, receiver] = [5, 6, 7].map(|last| IpAddr::from([10, 0, 0, last]));
        let [vni, red] = [100, 200].map(|number| Vni::new(number).unwrap());
        let own = Withdrawal { vni: 100, receiver, sender: Some(sender), until: 50 };
        let mut known = Vec::new();
        let unlike =
            [(99, receiver), (100, other), (200, other)].map(|(vni, receiver)| Withdrawal { vni, receiver, ..own });
        Withdrawal::add(&mut known, &[unlike[2], own, unlike[0], unlike[1]], 40);
        let voids = |from, to, vni, expires| Withdrawal::any_voids(&known, vni, from, to, expires);
        assert!(voids(sender, receiver, vni, 50) && !voids(sender, receiver, vni, 51));
        assert!(
            !voids(other, receiver, vni, 50) && !voids(receiver, sender, vni, 50) && !voids(sender, receiver, red, 50)
        );
        let mut all = known.clone();
        Withdrawal::add(&mut all, &[Withdrawal { sender: None, ..own }], 40);
        assert!(Withdrawal::any_voids(&all, vni, other, receiver, 50));
    }

    #[test]
    fn a_broken_key_names_its_epoch() {
        let key = |epoch, key: String| super::super::EpochKey { epoch, key };
        let authority = IpAddr::from([192, 0, 2, 1]);
        let keys = |second: &str| ProofKeys { authority, keys: vec![key(7, "ab".repeat(32)), key(8, second.into())] };
        let read = keys(&"cd".repeat(32)).read().ok().unwrap();
        assert_eq!(
            read.iter().map(|(from, epoch, _)| (*from, epoch.0)).collect::<Vec<_>>(),
            [(authority, 7), (authority, 8)]
        );
        assert_eq!(keys("cd").read().err(), Some(8));
    }

    #[test]
    fn an_option_that_is_none_is_told() {
        let text = r#"{"vni":1,"sending":"::1","receiving":"::1","sender":"::1","receiver":"::1","option":"ff"}"#;
        let request: AnswerRequest = serde_json::from_str(text).unwrap();
        for (vni, option) in [(1, "ff"), (1, "x"), (1 << 24, ""), (1, "")] {
            let request = AnswerRequest { vni, option: option.into(), ..request.clone() };
            assert!(request.shown().is_err(), "{vni} {option}");
        }
    }
}
