//! Reports of a verifier about itself: its state, its counters and a sample of its live flows. A report names grants
//! only by their handles; the authority knows the owners of the grants.

use crate::form::some_object;
use crate::sealing::SealedFlow;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::net::IpAddr;

/// Maximum number of flows in one [`Report`].
pub const REPORTED_FLOWS_MAX: usize = 256;
/// Maximum number of drop reasons in one [`Report`].
pub const REPORTED_REASONS_MAX: usize = 64;
/// The largest number that every JSON reader represents exactly.
const MOST: u64 = (1 << 53) - 1;

/// `POST /v1/verifier/report` of a verifier, sent every few seconds. The counters start at 0 when protection begins;
/// the authority computes the increase since the previous report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// State of the verifier.
    pub state: VerifierState,
    /// The time until which the verifier has keys, in Unix seconds; absent if the verifier has no key for the current
    /// epoch.
    #[cfg_attr(feature = "schema", schema(nullable = false, maximum = 9007199254740991_i64))]
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some_whole")]
    pub keys_until: Option<u64>,
    /// Number of first packets that were admitted by a token.
    #[cfg_attr(feature = "schema", schema(maximum = 9007199254740991_i64))]
    #[serde(deserialize_with = "whole")]
    pub admitted: u64,
    /// Number of packets that passed as part of an admitted flow.
    #[cfg_attr(feature = "schema", schema(maximum = 9007199254740991_i64))]
    #[serde(deserialize_with = "whole")]
    pub passed: u64,
    /// Numbers of dropped packets by drop reason, at most [`REPORTED_REASONS_MAX`] entries. If the verifier only
    /// observes, the numbers of packets that it would have dropped.
    #[cfg_attr(feature = "schema", schema(max_items = 64))]
    pub drops: Vec<DropCount>,
    /// Number of live flows of the verifier.
    #[cfg_attr(feature = "schema", schema(maximum = 9007199254740991_i64))]
    #[serde(deserialize_with = "whole")]
    pub live: u64,
    /// The live flows that the verifier admitted last; at most [`REPORTED_FLOWS_MAX`].
    #[cfg_attr(feature = "schema", schema(max_items = 256))]
    pub flows: Vec<ReportedFlow>,
}

/// State of a verifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum VerifierState {
    /// The verifier drops first packets without a valid token, and packets that belong to no admitted flow.
    Protecting,
    /// The verifier counts the packets that it would drop, and drops none.
    Observing,
    /// The verifier protects on trial: protection ends after some time unless an administrator confirms it.
    Trying,
    /// The verifier admits no new flow, because its table of revocations was full when a revocation arrived.
    Closed,
}

impl VerifierState {
    /// All states.
    pub const ALL: [Self; 4] = [Self::Protecting, Self::Observing, Self::Trying, Self::Closed];

    /// Returns the name of the state as it is written in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Protecting => "protecting",
            Self::Observing => "observing",
            Self::Trying => "trying",
            Self::Closed => "closed",
        }
    }
}

/// Number of packets dropped for one reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct DropCount {
    /// The drop reason's number (wire.md §6.7).
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 255))]
    #[serde(deserialize_with = "reason")]
    pub reason: u8,
    /// Number of packets that were dropped for this reason.
    #[cfg_attr(feature = "schema", schema(maximum = 9007199254740991_i64))]
    #[serde(deserialize_with = "whole")]
    pub packets: u64,
}

/// A live flow, as a verifier reports it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ReportedFlow {
    /// The client's address, as the server sees it.
    #[cfg_attr(feature = "schema", schema(schema_with = crate::schema::address))]
    pub client: IpAddr,
    /// The client's port.
    #[cfg_attr(feature = "schema", schema(maximum = 65535))]
    #[serde(deserialize_with = "crate::form::whole")]
    pub client_port: u16,
    /// The server's address.
    #[cfg_attr(feature = "schema", schema(schema_with = crate::schema::address))]
    pub server: IpAddr,
    /// The server's port.
    #[cfg_attr(feature = "schema", schema(maximum = 65535))]
    #[serde(deserialize_with = "crate::form::whole")]
    pub server_port: u16,
    /// The IP protocol number.
    #[cfg_attr(feature = "schema", schema(maximum = 255))]
    #[serde(deserialize_with = "crate::form::whole")]
    pub protocol: u8,
    /// The grant that admitted the flow; absent if the flow was established before protection began.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        serialize_with = "some_handle_hex",
        deserialize_with = "some_handle"
    )]
    #[cfg_attr(feature = "schema", schema(schema_with = crate::schema::handle))]
    pub handle: Option<u64>,
    /// The time at which the verifier admitted the flow, in Unix seconds.
    #[cfg_attr(feature = "schema", schema(maximum = 9007199254740991_i64))]
    #[serde(deserialize_with = "whole")]
    pub since: u64,
    /// The time of the flow's latest packet, in Unix seconds.
    #[cfg_attr(feature = "schema", schema(maximum = 9007199254740991_i64))]
    #[serde(deserialize_with = "whole")]
    pub seen: u64,
    /// Number of packets towards the server.
    #[cfg_attr(feature = "schema", schema(maximum = 9007199254740991_i64))]
    #[serde(deserialize_with = "whole")]
    pub packets: u64,
    /// Number of bytes in IP packets towards the server.
    #[cfg_attr(feature = "schema", schema(maximum = 9007199254740991_i64))]
    #[serde(deserialize_with = "whole")]
    pub bytes: u64,
    /// How the flow's packets travel in a sealed tunnel; absent if they travel outside.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some_object")]
    pub sealed: Option<SealedFlow>,
}

/// The answer to [`Report`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Reported {
    /// Seconds until the authority expects the next report.
    pub pause: u32,
    /// The current time by the authority's clock, in Unix seconds.
    pub now: u64,
}

/// Reads a whole number up to [`MOST`] that is written as 6 or as 6.0.
fn whole<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    let number = f64::deserialize(from)?;
    let is_whole = number.fract() == 0.0 && (0.0..=MOST as f64).contains(&number);
    let wrong = || D::Error::custom(format_args!("{number} is not a whole number in the permitted range"));
    is_whole.then_some(number as u64).ok_or_else(wrong)
}

fn reason<'de, D: Deserializer<'de>>(from: D) -> Result<u8, D::Error> {
    match crate::form::whole(from)? {
        0 => Err(D::Error::custom("0 is not a drop reason")),
        reason => Ok(reason),
    }
}

fn some_whole<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    whole(from).map(Some)
}

fn some_handle<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    crate::form::handle_hex::deserialize(from).map(Some)
}

fn some_handle_hex<S: Serializer>(handle: &Option<u64>, to: S) -> Result<S::Ok, S::Error> {
    match handle {
        Some(handle) => crate::form::handle_hex::serialize(handle, to),
        None => to.serialize_none(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(handle: Option<u64>) -> ReportedFlow {
        let [client, server] = ["203.0.113.5", "2001:db8::1"].map(|text| text.parse().unwrap());
        let ports = (4711, 22);
        ReportedFlow {
            client,
            client_port: ports.0,
            server,
            server_port: ports.1,
            protocol: 6,
            handle,
            since: 1,
            seen: 2,
            packets: 3,
            bytes: MOST,
            sealed: None,
        }
    }

    #[test]
    fn a_report_is_written_and_read_the_same() {
        let report = Report {
            state: VerifierState::Trying,
            keys_until: Some(7),
            admitted: 1,
            passed: 2,
            drops: vec![DropCount { reason: 1, packets: MOST }],
            live: 2,
            flows: vec![flow(Some(0x0123_4567_89ab_cdef)), flow(None)],
        };
        let text = serde_json::to_string(&report).unwrap();
        assert!(text.contains(r#""handle":"0123456789abcdef""#) && text.matches("handle").count() == 1, "{text}");
        assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), report);
        for (right, wrong) in [
            ("\"trying\"", "\"idle\""),
            ("\"keys_until\":7", "\"keys_until\":null"),
            ("\"live\":2", "\"live\":9007199254740992"),
            ("\"reason\":1", "\"reason\":0"),
            ("\"live\":2", "\"live\":2.5"),
            ("\"live\":2", "\"live\":2,\"person\":\"alice\""),
        ] {
            assert!(serde_json::from_str::<Report>(&text.replace(right, wrong)).is_err(), "{wrong}");
        }
    }

    #[test]
    fn states_have_the_names_that_are_sent() {
        for state in VerifierState::ALL {
            assert_eq!(serde_json::to_string(&state).unwrap(), format!("{:?}", state.name()));
        }
    }
}
