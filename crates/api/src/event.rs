//! Events that the authority pushes to sessions and verifiers, and the calls that a verifier makes in response to them.

use crate::form::{handle_hex, handles_hex};
use crate::segment::Withdrawal;
use crate::verifier::{GrantOwner, LivePair, RevokedGrant, RevokedSession};
use serde::{Deserialize, Serialize};

/// An event that the authority pushes to a session or a verifier on the stream of `GET /v1/events`. The stream consists
/// of server-sent events; the data of each is one `Event` in JSON. Every stream begins with [`Event::Hello`]. After
/// `Hello`, a client requests its configuration or its destinations again, because they may have changed while the
/// client was not connected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// The stream is open.
    Hello,
    /// Sent every 10 s, so that the client notices a dead connection.
    Alive,
    /// Receivers or rules of the policy changed, or a rule's time window opened or closed. A session reads its
    /// destinations again, and a verifier reads its configuration again. A verifier also asks which live flows to cut,
    /// with [`LiveFlows`].
    Policy,
    /// Grants that have already ended were revoked, so [`Event::Revoked`] does not name them. The verifier asks which
    /// live flows to cut, with [`LiveFlows`] (sent to verifiers only).
    Recheck,
    /// Grants were revoked. A verifier cuts their flows; an agent no longer uses them.
    Revoked {
        /// The revoked grants.
        grants: Vec<RevokedGrant>,
    },
    /// Sessions ended: the verifier cuts the flows of these sessions and of their grants (sent to verifiers only).
    SessionsRevoked {
        /// The ended sessions.
        sessions: Vec<RevokedSession>,
    },
    /// A grant for this verifier was issued (sent to verifiers only).
    Granted {
        /// The owner of the grant.
        owner: GrantOwner,
    },
    /// The verifier accepts tokens of this pair from now on (sent to verifiers only).
    Pair {
        /// The pair that the verifier accepts.
        pair: LivePair,
    },
    /// Consent was withdrawn, which makes path segments void. A verifier on a path rejects these segments; a session
    /// that requested such a segment requests a new segment.
    Withdrawn {
        /// The withdrawn consent.
        withdrawn: Vec<Withdrawal>,
    },
    /// The session ended (sent to sessions only).
    LoggedOut,
    /// The authority is about to stop, or to give up its role in the cluster. The client opens its event stream at
    /// another authority, and sends its calls there.
    RoleChange {
        /// The URL of the authority to prefer; missing if the client should choose.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        next: Option<String>,
    },
    /// A mark. The verifier confirms it with an [`Acknowledgement`] after it has carried out all events that came
    /// before the mark on the same stream (sent to verifiers only, if they opened the stream with `marks=true`).
    Mark {
        /// The number with which the verifier confirms the mark.
        #[serde(with = "handle_hex")]
        #[cfg_attr(feature = "schema", schema(schema_with = crate::schema::handle))]
        mark: u64,
    },
}

impl Event {
    /// Returns the weakest setting of [`Confirm`] with which a verifier confirms this event. Returns
    /// [`Confirm::Nothing`] if no verifier confirms it.
    pub const fn confirm(&self) -> Confirm {
        match self {
            Self::Pair { .. } => Confirm::Pairs,
            Self::Granted { .. } => Confirm::Grants,
            _ => Confirm::Nothing,
        }
    }

    /// Reports whether the authority sends a mark after this event, so that the verifier confirms that it has carried
    /// out the event.
    pub const fn is_marked(&self) -> bool {
        matches!(
            self,
            Self::Hello
                | Self::Policy
                | Self::Recheck
                | Self::Revoked { .. }
                | Self::SessionsRevoked { .. }
                | Self::Withdrawn { .. }
        )
    }
}

/// The events that a verifier confirms with an [`Acknowledgement`]: the parameter `confirm` of `GET /v1/events`. If the
/// event announces a new grant, the authority waits a short time for the confirmation before it gives the grant to the
/// client. So the first packet with this grant normally reaches the verifier after the event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Confirm {
    /// The verifier confirms no events.
    #[default]
    Nothing,
    /// The verifier confirms events about pairs.
    Pairs,
    /// The verifier confirms events about pairs and about owners of grants.
    Grants,
}

impl Confirm {
    /// Returns the text that stands for this setting in the query parameter `confirm`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Pairs => "pairs",
            Self::Grants => "grants",
        }
    }
}

/// `POST /v1/verifier/heard` of a verifier: confirms that the verifier has received the events about these grants, and
/// that it has carried out all events before these marks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Acknowledgement {
    /// The handles of the grants; at most [`LIVE_FLOWS_MAX`].
    #[serde(with = "handles_hex")]
    #[cfg_attr(feature = "schema", schema(schema_with = handles))]
    pub handles: Vec<u64>,
    /// The marks; at most [`MARKS_MAX`]. Each has the form of a handle.
    #[serde(default, skip_serializing_if = "Vec::is_empty", with = "handles_hex")]
    #[cfg_attr(feature = "schema", schema(schema_with = marks))]
    pub marks: Vec<u64>,
}

/// Maximum number of marks in one [`Acknowledgement`]. There is normally one, because an authority sends the next mark
/// on a stream only after the verifier has confirmed the previous one.
pub const MARKS_MAX: usize = 4;

/// Maximum number of handles in one [`LiveFlows`] or [`Acknowledgement`].
pub const LIVE_FLOWS_MAX: usize = 4096;

/// `POST /v1/verifier/flows` of a verifier: asks which live flows the verifier must cut. This call is also for flows
/// whose grants have ended, because [`Event::Revoked`] does not name such grants.
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
    /// The grants whose flows the verifier cuts: those that were revoked (before or after they ended), those whose
    /// person or device no longer exists, and those that the policy would no longer allow. They also include grants
    /// that the authority does not know, unless the authority lacks the latest changes of its cluster. The `expires` of
    /// an unknown grant is 0.
    pub cut: Vec<RevokedGrant>,
}

/// Returns the schema of a list of handles.
#[cfg(feature = "schema")]
fn handles() -> utoipa::openapi::Schema {
    let handle = utoipa::openapi::RefOr::T(crate::schema::handle());
    utoipa::openapi::ArrayBuilder::new().items(handle).max_items(Some(LIVE_FLOWS_MAX)).build().into()
}

/// Returns the schema of a list of marks.
#[cfg(feature = "schema")]
fn marks() -> utoipa::openapi::Schema {
    let mark = utoipa::openapi::RefOr::T(crate::schema::handle());
    utoipa::openapi::ArrayBuilder::new().items(mark).max_items(Some(MARKS_MAX)).build().into()
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
    fn an_acknowledgement_without_marks_is_the_one_of_earlier_releases() {
        let acknowledged = Acknowledgement { handles: vec![7], marks: Vec::new() };
        let text = serde_json::to_string(&acknowledged).unwrap();
        assert_eq!(text, r#"{"handles":["0000000000000007"]}"#);
        assert_eq!(serde_json::from_str::<Acknowledgement>(&text).unwrap(), acknowledged);
        let marked = Acknowledgement { handles: Vec::new(), marks: vec![9] };
        let text = serde_json::to_string(&marked).unwrap();
        assert_eq!(text, r#"{"handles":[],"marks":["0000000000000009"]}"#);
        assert_eq!(serde_json::from_str::<Acknowledgement>(&text).unwrap(), marked);
    }

    #[test]
    fn events_have_stable_names() {
        assert_eq!(serde_json::to_string(&Event::Recheck).unwrap(), r#"{"event":"recheck"}"#);
        assert_eq!(serde_json::from_str::<Event>(r#"{"event":"recheck"}"#).unwrap(), Event::Recheck);
        let text = r#"{"event":"role_change","next":"https://b:8443"}"#;
        let stops = Event::RoleChange { next: Some("https://b:8443".into()) };
        assert_eq!(serde_json::to_string(&stops).unwrap(), text);
        let mark = r#"{"event":"mark","mark":"00000000000000ff"}"#;
        assert_eq!(serde_json::to_string(&Event::Mark { mark: 255 }).unwrap(), mark);
        assert_eq!(serde_json::from_str::<Event>(mark).unwrap(), Event::Mark { mark: 255 });
        let somewhere = Event::RoleChange { next: None };
        assert_eq!(serde_json::from_str::<Event>(r#"{"event":"role_change","later":1}"#).unwrap(), somewhere);
    }
}
