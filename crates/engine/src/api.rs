//! What the authority's HTTPS API says, as types: one definition for the authority and its callers.
//!
//! JSON under `/v1`; errors are [`Problem`] bodies (RFC 9457). Byte strings are lower-case hex. Times are Unix seconds.

mod line;
mod login;
mod report;
mod segment;

pub use line::Line;
pub use login::{
    BrowserLogin, BrowserLoginStarted, Callback, Challenge, DeviceLogin, DeviceLoginStarted, FinishLogin,
    IdentityProvider, LoggedOut, LoginMethods, LoginOutcome, ServiceKey, ServiceLogin, comparison,
};

pub use report::{DropCount, REPORTED_FLOWS_MAX, REPORTED_REASONS_MAX, Report, Reported, ReportedFlow, VerifierState};

pub use segment::{AnswerRequest, PathSegment, ProofKeys, SegmentRequest, SegmentTo, Withdrawal};

use ipnet::IpNet;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use std::net::IpAddr;
use utoipa::ToSchema;
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{ArrayBuilder, KnownFormat, ObjectBuilder, OneOfBuilder, Schema, SchemaFormat, Type};

/// `POST /v1/login`, unauthenticated.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Login {
    /// The account's name.
    pub person: String,
    /// The account's password.
    pub password: String,
    /// The six digits of the account's second factor, where it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub totp: Option<String>,
    /// What the person calls this device: 1 to 64 printable characters.
    #[schema(min_length = 1, max_length = 64, pattern = "^[^\\u0000-\\u001f\\u007f-\\u009f]+$")]
    pub device: String,
}

/// The answer to [`Login`].
#[derive(Clone, Serialize, Deserialize, ToSchema)]
pub struct Session {
    /// The bearer token for later calls. Secret.
    pub token: String,
    /// The person's name.
    pub person: String,
    /// The device's name.
    pub device: String,
    /// When the session ends.
    pub expires: u64,
    /// The authority's clock.
    pub now: u64,
}

/// A span of ports of one protocol, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
pub struct Service {
    /// The IP protocol number; 0 is every protocol.
    pub protocol: u8,
    /// The first port; 0 to 65535 where ports don't matter.
    pub first_port: u16,
    /// The last port.
    pub last_port: u16,
}

impl Service {
    /// Every protocol, every port.
    pub const ALL: Self = Self { protocol: 0, first_port: 0, last_port: u16::MAX };

    /// Whether a packet of `protocol` to `port` is meant.
    pub const fn covers(&self, protocol: u8, port: u16) -> bool {
        self.protocol == 0 || (self.protocol == protocol && self.first_port <= port && port <= self.last_port)
    }
}

impl From<wire::map::Service> for Service {
    fn from(span: wire::map::Service) -> Self {
        Self { protocol: span.protocol, first_port: span.first_port, last_port: span.last_port }
    }
}

/// Something protected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Receiver {
    /// Its name in the policy.
    pub name: String,
    /// Its address or network.
    #[schema(value_type = String, example = "203.0.113.0/28")]
    pub prefix: IpNet,
    /// What of it is protected.
    pub services: Vec<Service>,
}

/// `GET /v1/destinations` of a session: the receivers that some rule lets this person reach.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Destinations {
    /// The receivers.
    pub destinations: Vec<Receiver>,
    /// The authority's clock.
    pub now: u64,
}

/// `POST /v1/grants` of a session: may I send there?
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GrantRequest {
    /// The receiver's address.
    #[schema(schema_with = address, example = "203.0.113.10")]
    pub address: IpAddr,
    /// The IP protocol number.
    #[schema(minimum = 1, maximum = 255)]
    #[serde(deserialize_with = "whole")]
    pub protocol: u8,
    /// The destination port.
    #[schema(maximum = 65535)]
    #[serde(deserialize_with = "whole")]
    pub port: u16,
    /// Whether the person has told the agent to go there: for destinations about which they want to be asked.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub consented: bool,
    /// Whether the client key of the suite `sha224` may come in band, in a packet of this connection (wire.md §5.4.1).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub in_band: bool,
}

/// The answer to [`GrantRequest`] where a rule allows it. A denial is a [`Problem`] with status 403.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
pub struct Grant {
    /// The grant header's 16 bytes, hex; of the suite `sha224` unique id and nonce1, 7 bytes.
    pub header: String,
    /// The grant key's 16 bytes, hex; of the suite `sha224` the client key's 28, or nothing where it comes in band.
    /// Secret.
    pub key: String,
    /// The destination masked to the grant's prefix length.
    #[schema(value_type = String, example = "203.0.113.0/28")]
    pub prefix: IpNet,
    /// The receiver's name.
    pub receiver: String,
    /// The rule that allowed it, `policy.toml:LINE name` or its number.
    pub rule: String,
    /// How the token travels: `tail` or `shim`.
    pub carrier: String,
    /// When it ends.
    pub expires: u64,
    /// The authority's clock.
    pub now: u64,
}

/// `POST /v1/verifiers/enrol`, unauthenticated but for the one-time code.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Enrolment {
    /// The one-time code that `authority verifier add` printed.
    pub code: String,
}

/// The answer to [`Enrolment`].
#[derive(Clone, Serialize, Deserialize, ToSchema)]
pub struct Enrolled {
    /// The verifier's id, which its keys derive from.
    pub verifier: String,
    /// The bearer token for later calls. Secret.
    pub token: String,
}

/// `GET /v1/verifier/config` of a verifier.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VerifierConfig {
    /// The verifier's id.
    pub verifier: String,
    /// Seconds an epoch lasts.
    pub epoch_length: u32,
    /// The longest lifetime of a grant, seconds.
    pub max_lifetime: u32,
    /// What it protects.
    pub receivers: Vec<Receiver>,
    /// Grants that were revoked and have not ended.
    pub revoked: Vec<RevokedGrant>,
    /// Sessions that ended, while a grant of theirs for this verifier has not.
    #[serde(default)]
    pub revoked_sessions: Vec<RevokedSession>,
    /// Pairs of the suite `sha224` that may be used.
    #[serde(default)]
    pub pairs: Vec<LivePair>,
    /// Consent that was withdrawn, where it has proofs to check.
    #[serde(default)]
    pub withdrawn: Vec<Withdrawal>,
    /// The authority's clock.
    pub now: u64,
}

/// A grant of the suite `sha224`: a unique id and a nonce1 whose tokens are to be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LivePair {
    /// Its handle, which is unique id and nonce1.
    #[serde(with = "handle_hex")]
    #[schema(schema_with = handle)]
    pub handle: u64,
    /// The epoch whose application server secret its client key is made with.
    pub epoch: u64,
    /// When it was issued.
    pub issued: u64,
    /// When it ends.
    pub expires: u32,
    /// Who holds it: account and session (wire.md §3.9), which a pair's handle does not say. 0: nobody is named.
    #[serde(default)]
    pub holder: u32,
}

/// A grant that ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RevokedGrant {
    /// The grant's handle.
    #[serde(with = "handle_hex")]
    #[schema(schema_with = handle)]
    pub handle: u64,
    /// When it would have ended.
    pub expires: u32,
}

/// A session that ended: all its grants ended with it, and the verifier cuts all its flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RevokedSession {
    /// The account and the session, as handles name them (wire.md §3.9).
    pub holder: u32,
    /// When the last of its grants would have ended.
    pub expires: u32,
}

/// `GET /v1/verifier/keys?ahead=N`: the previous, the current and the next N epochs (N at most 48).
#[derive(Clone, Serialize, Deserialize, ToSchema)]
pub struct EpochKeys {
    /// One key per epoch, oldest first.
    pub keys: Vec<EpochKey>,
    /// The same for the proofs that it checks, where it is on a path of a virtual network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proofs: Option<ProofKeys>,
    /// The authority's clock.
    pub now: u64,
}

/// A verifier's key for one epoch.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
pub struct EpochKey {
    /// The epoch's whole number.
    pub epoch: u64,
    /// 32 bytes, hex. Secret.
    pub key: String,
}

/// Handles that one [`LiveFlows`] may name.
pub const LIVE_FLOWS_MAX: usize = 4096;

/// `POST /v1/verifier/flows` of a verifier: which of the flows that live are to be cut? A flow may outlive its grant, and
/// [`Event::Revoked`] names only grants that have not ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LiveFlows {
    /// The handles of the grants that admitted them, each once; at most [`LIVE_FLOWS_MAX`].
    #[serde(with = "handles_hex")]
    #[schema(schema_with = handles)]
    pub handles: Vec<u64>,
}

/// The answer to [`LiveFlows`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FlowsToCut {
    /// The grants that were revoked, before or after they ended, whose person or device is gone, or which the policy would
    /// no longer give; and those that the authority doesn't know (any more), as ended at time 0.
    pub cut: Vec<RevokedGrant>,
}

/// Who is behind a handle: an event to the verifier, and `GET /v1/verifier/grants/HANDLE`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GrantOwner {
    /// The grant's handle.
    #[serde(with = "handle_hex")]
    #[schema(schema_with = handle)]
    pub handle: u64,
    /// Whose grant it is.
    pub person: String,
    /// The device it was issued to.
    pub device: String,
    /// The receiver's name.
    pub receiver: String,
    /// The rule that allowed it.
    pub rule: String,
    /// When it was issued.
    pub issued: u64,
    /// When it ends.
    pub expires: u64,
    /// The rule's class, for packet filters behind the verifier; 0 is none.
    #[serde(default)]
    pub class: u8,
}

/// `POST /v1/verifier/explain` of a verifier: would the policy let this person in?
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExplainRequest {
    /// The person's name.
    pub person: String,
    /// The device whose tags they have; else none but a service account's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Groups besides those that the authority knows of.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    /// Tags besides those that the authority knows of.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// The address that they would ask the authority from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(schema_with = address_or_none)]
    pub source: Option<IpAddr>,
    /// The receiver's address.
    #[schema(schema_with = address, example = "203.0.113.10")]
    pub address: IpAddr,
    /// The IP protocol number.
    #[schema(maximum = 255)]
    #[serde(deserialize_with = "whole")]
    pub protocol: u8,
    /// The destination port.
    #[schema(maximum = 65535)]
    #[serde(deserialize_with = "whole")]
    pub port: u16,
}

/// The answer to [`ExplainRequest`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PersonExplanation {
    /// What the policy says.
    #[serde(flatten)]
    pub explanation: Explanation,
    /// What the answer rests on, and what was not known: a line for people each.
    pub taken: Vec<String>,
}

/// What the policy says about somebody and a destination.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Explanation {
    /// Whether a grant would be given.
    pub allowed: bool,
    /// The receiver's name, if the destination is one.
    pub receiver: Option<String>,
    /// The deciding rule, if one matched.
    pub rule: Option<String>,
    /// One sentence for people.
    pub text: String,
}

/// What a verifier confirms by [`Heard`] where it is told on a stream: `?confirm=` of `GET /v1/events`. Whoever asks for such a
/// grant has it only then, so that no first packet is faster than the word of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Confirm {
    /// Nothing.
    #[default]
    Nothing,
    /// Pairs.
    Pairs,
    /// Pairs, and whose grants are.
    Grants,
}

impl Event {
    /// Which verifiers confirm it.
    pub const fn confirm(&self) -> Confirm {
        match self {
            Self::Pair { .. } => Confirm::Pairs,
            Self::Granted { .. } => Confirm::Grants,
            _ => Confirm::Nothing,
        }
    }
}

impl Confirm {
    /// Its name in a query.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Pairs => "pairs",
            Self::Grants => "grants",
        }
    }
}

/// `POST /v1/verifier/heard` of a verifier: of these grants it knows now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Heard {
    /// Their handles; at most [`LIVE_FLOWS_MAX`].
    #[serde(with = "handles_hex")]
    #[schema(schema_with = handles)]
    pub handles: Vec<u64>,
}

/// `GET /v1/events` of a session or a verifier: server-sent events, each one of these as JSON. A stream begins with
/// `Hello`; whoever (re)connects reads configuration or destinations anew after it, so that nothing is missed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// The stream is open.
    Hello,
    /// Sent every 10 s so that a dead connection is noticed.
    Alive,
    /// Receivers or rules changed, or the time made other rules hold: read configuration or destinations anew. A verifier asks about its flows, too.
    Policy,
    /// Grants that have ended were revoked: ask which flows are to be cut (to verifiers only).
    Recheck,
    /// These grants ended; cut their flows.
    Revoked {
        /// The grants.
        grants: Vec<RevokedGrant>,
    },
    /// These sessions ended; cut their flows, and those of their grants (to verifiers only).
    SessionsRevoked {
        /// The sessions.
        sessions: Vec<RevokedSession>,
    },
    /// A grant for this verifier was issued (to verifiers only).
    Granted {
        /// Whose it is.
        owner: GrantOwner,
    },
    /// Tokens of this pair are to be taken (to verifiers only).
    Pair {
        /// The pair.
        pair: LivePair,
    },
    /// Segments are void: check for it (to verifiers on a path), ask anew (to the sessions that asked for them).
    Withdrawn {
        /// Which.
        withdrawn: Vec<Withdrawal>,
    },
    /// The session ended (to sessions only).
    LoggedOut,
}

/// An error body, RFC 9457.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// A stable name, such as `denied`, `not_logged_in`, `wrong_password`.
    pub r#type: String,
    /// One line for people: what went wrong and the way out.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// Particulars, where there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

/// A whole number, however it is written: JSON makes no difference between 6 and 6.0 (RFC 8259 §6), nor do descriptions.
fn whole<'de, D: Deserializer<'de>, T: TryFrom<u32>>(from: D) -> Result<T, D::Error> {
    let number = f64::deserialize(from)?;
    let is_whole = number.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(&number);
    let whole = is_whole.then_some(number as u32).and_then(|whole| T::try_from(whole).ok());
    whole.ok_or_else(|| D::Error::custom(format_args!("{number} is no whole number of this range")))
}

/// An IPv4 or IPv6 address in the description of the API.
fn address() -> Schema {
    let text = |format| ObjectBuilder::new().schema_type(Type::String).format(Some(SchemaFormat::KnownFormat(format)));
    OneOfBuilder::new().item(text(KnownFormat::Ipv4)).item(text(KnownFormat::Ipv6)).build().into()
}

/// An address in it that may be missing.
fn address_or_none() -> Schema {
    let none = ObjectBuilder::new().schema_type(Type::Null);
    OneOfBuilder::new().item(address()).item(none).build().into()
}

/// A handle in it: 16 hex digits.
fn handle() -> Schema {
    ObjectBuilder::new().schema_type(Type::String).pattern(Some("^[0-9a-fA-F]{16}$")).build().into()
}

fn handles() -> Schema {
    ArrayBuilder::new().items(RefOr::T(handle())).max_items(Some(LIVE_FLOWS_MAX)).build().into()
}

mod handles_hex {
    //! A list of handles, each as [`super::handle_hex`] writes one.
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    #[serde(transparent)]
    struct Handle(#[serde(with = "super::handle_hex")] u64);

    pub fn serialize<S: Serializer>(handles: &[u64], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(handles.iter().copied().map(Handle))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u64>, D::Error> {
        let handles = Vec::<Handle>::deserialize(from)?;
        Ok(handles.into_iter().map(|Handle(handle)| handle).collect())
    }
}

mod handle_hex {
    //! A 64-bit handle as 16 hex digits: JSON numbers lose bits beyond 2^53 in many readers.
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(handle: &u64, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&format!("{handle:016x}"))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
        let text = String::deserialize(from)?;
        let wrong = || D::Error::custom("a handle is 16 hex digits");
        let is_handle = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        if is_handle { u64::from_str_radix(&text, 16).map_err(|_| wrong()) } else { Err(wrong()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn live_flows_are_written_and_read_the_same() {
        let asked = LiveFlows { handles: vec![0x0123_4567_89ab_cdef, u64::MAX, 7] };
        let text = serde_json::to_string(&asked).unwrap();
        assert_eq!(text, r#"{"handles":["0123456789abcdef","ffffffffffffffff","0000000000000007"]}"#);
        assert_eq!(serde_json::from_str::<LiveFlows>(&text).unwrap(), asked);
        assert!(serde_json::from_str::<LiveFlows>(r#"{"handles":[7]}"#).is_err());
        let answer = FlowsToCut { cut: vec![RevokedGrant { handle: 7, expires: 0 }] };
        let text = serde_json::to_string(&answer).unwrap();
        assert_eq!(serde_json::from_str::<FlowsToCut>(&text).unwrap(), answer);
    }

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
    fn events_have_stable_names() {
        assert_eq!(serde_json::to_string(&Event::Recheck).unwrap(), r#"{"event":"recheck"}"#);
        assert_eq!(serde_json::from_str::<Event>(r#"{"event":"recheck"}"#).unwrap(), Event::Recheck);
    }
}
