//! The stream of events that the authority pushes, and the calls of verifiers that follow from events.

use crate::form::handles_hex;
use crate::segment::Withdrawal;
use crate::verifier::{GrantOwner, LivePair, RevokedGrant, RevokedSession};
use serde::{Deserialize, Serialize};

/// `GET /v1/events` of a session or a verifier: server-sent events, each one of these as JSON. A stream begins with
/// `Hello`; after it, a client that (re)connects reads its configuration or destinations again, so that it misses
/// nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// The stream is open.
    Hello,
    /// Sent every 10 s so that a dead connection is noticed.
    Alive,
    /// Receivers or rules changed, or time windows put other rules into force: the client reads its configuration or
    /// destinations again. A verifier also asks about its flows.
    Policy,
    /// Grants that have ended were revoked: the verifier asks which flows to cut (to verifiers only).
    Recheck,
    /// These grants were revoked; the verifier cuts their flows.
    Revoked {
        /// The revoked grants.
        grants: Vec<RevokedGrant>,
    },
    /// These sessions ended; the verifier cuts their flows and those of their grants (to verifiers only).
    SessionsRevoked {
        /// The ended sessions.
        sessions: Vec<RevokedSession>,
    },
    /// A grant for this verifier was issued (to verifiers only).
    Granted {
        /// The owner of the grant.
        owner: GrantOwner,
    },
    /// The verifier accepts tokens of this pair from now on (to verifiers only).
    Pair {
        /// The pair.
        pair: LivePair,
    },
    /// Path segments are void: a verifier on a path checks for them, a session that requested them requests them again.
    Withdrawn {
        /// The withdrawn consent.
        withdrawn: Vec<Withdrawal>,
    },
    /// The session ended (to sessions only).
    LoggedOut,
}

impl Event {
    /// Returns which verifiers confirm this event.
    pub const fn confirm(&self) -> Confirm {
        match self {
            Self::Pair { .. } => Confirm::Pairs,
            Self::Granted { .. } => Confirm::Grants,
            _ => Confirm::Nothing,
        }
    }
}

/// Events on its stream that a verifier confirms with [`Acknowledgement`]: `?confirm=` of `GET /v1/events`. Before the authority
/// answers the client's request for such a grant, it waits a short time for the confirmation, so that normally no first
/// packet reaches the verifier before the event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Confirm {
    /// No events.
    #[default]
    Nothing,
    /// Events about pairs.
    Pairs,
    /// Events about pairs and about owners of grants.
    Grants,
}

impl Confirm {
    /// Returns the name used in the query.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Pairs => "pairs",
            Self::Grants => "grants",
        }
    }
}

/// `POST /v1/verifier/heard` of a verifier: confirms that it has received these grants.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Acknowledgement {
    /// The handles of the grants; at most [`LIVE_FLOWS_MAX`].
    #[serde(with = "handles_hex")]
    #[cfg_attr(feature = "schema", schema(schema_with = handles))]
    pub handles: Vec<u64>,
}

/// Maximum number of handles in one [`LiveFlows`].
pub const LIVE_FLOWS_MAX: usize = 4096;

/// `POST /v1/verifier/flows` of a verifier: ask which live flows to cut. A flow may outlive its grant, and
/// [`Event::Revoked`] names only grants that have not ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct LiveFlows {
    /// The handles of the grants that admitted the flows, each once; at most [`LIVE_FLOWS_MAX`].
    #[serde(with = "handles_hex")]
    #[cfg_attr(feature = "schema", schema(schema_with = handles))]
    pub handles: Vec<u64>,
}

/// The answer to [`LiveFlows`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct FlowsToCut {
    /// Grants whose flows the verifier cuts: those revoked before or after their end, those whose person or device is
    /// gone, those that the policy would no longer allow, and those that the authority doesn't know (any more), which
    /// it reports as ended at time 0.
    pub cut: Vec<RevokedGrant>,
}

/// Schema of a list of handles.
#[cfg(feature = "schema")]
fn handles() -> utoipa::openapi::Schema {
    let handle = utoipa::openapi::RefOr::T(crate::schema::handle());
    utoipa::openapi::ArrayBuilder::new().items(handle).max_items(Some(LIVE_FLOWS_MAX)).build().into()
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
        let answer = FlowsToCut { cut: vec![RevokedGrant { handle: 7, expires: 0, holder: 0 }] };
        let text = serde_json::to_string(&answer).unwrap();
        assert_eq!(serde_json::from_str::<FlowsToCut>(&text).unwrap(), answer);
    }

    #[test]
    fn events_have_stable_names() {
        assert_eq!(serde_json::to_string(&Event::Recheck).unwrap(), r#"{"event":"recheck"}"#);
        assert_eq!(serde_json::from_str::<Event>(r#"{"event":"recheck"}"#).unwrap(), Event::Recheck);
    }
}
