//! The rows of requests for access.

use crate::storage::names;
use anyhow::{Context, Result};
use engine::model::Service;
use engine::policy::delegation::{Applicant, RequestId};
use engine::policy::{Subject, parse_service};
use rusqlite::Row;
use serde::Serialize;
use std::num::NonZeroU32;

/// The columns that [`read`] reads.
pub(super) const COLUMNS: &str = "id, person, receiver, services, lifetime, reason, asked, state, delegation, decider, \
                                  decided, note, until, ended, ender, delegations, coalesce(generation = (SELECT \
                                  of.generation FROM access_receivers AS of WHERE of.receiver = \
                                  access_requests.receiver), 0)";

/// The state of a request for access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AccessState {
    /// Nobody has decided.
    Open,
    /// A delegate or an operator has consented, and the consent has not ended.
    Allowed,
    /// A delegate has refused.
    Refused,
    /// The request or the consent was withdrawn, or the name of its receiver now means another receiver, or none.
    Withdrawn,
    /// The consent has ended by itself.
    Expired,
}

impl AccessState {
    const ALL: [Self; 5] = [Self::Open, Self::Allowed, Self::Refused, Self::Withdrawn, Self::Expired];

    /// Reports whether the request waits for a decision, or the consent is in effect.
    pub const fn is_live(self) -> bool {
        matches!(self, Self::Open | Self::Allowed)
    }

    /// Returns the name in storage, lists and answers.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Allowed => "allowed",
            Self::Refused => "refused",
            Self::Withdrawn => "withdrawn",
            Self::Expired => "expired",
        }
    }
}

/// A request for access, with the decision about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AccessEntry {
    /// The number of the request, 8 hex digits.
    #[serde(serialize_with = "as_text")]
    pub id: RequestId,
    /// The person who asks. For a consent without a request, the person, or `group:NAME` or `tag:NAME`.
    pub person: String,
    /// Name of the receiver.
    pub receiver: String,
    /// The services in the notation of the policy file: those of the consent if there is one, otherwise those that the
    /// person asks for.
    pub services: Vec<String>,
    /// The number of seconds for which the person wants access, if they said so.
    pub lifetime: Option<u32>,
    /// The reason that the person gives.
    pub reason: String,
    /// Time of the request, in Unix seconds.
    pub asked: u64,
    /// The state of the request.
    pub state: AccessState,
    /// Name of the delegation on which the decision rests.
    pub delegation: Option<String>,
    /// The person who decided. For a consent without a request that an operator gave, the operator.
    pub decider: Option<String>,
    /// Time of the decision, in Unix seconds.
    pub decided: Option<u64>,
    /// The note of the person who decided.
    pub note: Option<String>,
    /// Time at which the consent ends, or would have ended if it had not been withdrawn, in Unix seconds.
    pub until: Option<u64>,
    /// Time at which the request or consent was withdrawn, expired or became outdated, in Unix seconds.
    pub ended: Option<u64>,
    /// The person or operator who withdrew the request or consent.
    pub ender: Option<String>,
    /// Names of the delegations that covered the person when they asked. Empty for a consent without a request; `None`
    /// if an earlier version of Vouchsafe recorded the request.
    #[serde(skip)]
    pub delegations: Option<Vec<String>>,
    /// Whether the name of the receiver still means the receiver for which the person asked.
    #[serde(skip)]
    pub is_current: bool,
}

fn as_text<S: serde::Serializer>(id: &RequestId, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(id)
}

impl AccessEntry {
    /// Returns the [`Applicant`] for decisions about the request: the person who asks, with these groups and tags.
    pub fn applicant<'a>(&'a self, groups: &'a [String], tags: &'a [String]) -> Applicant<'a> {
        let subject = Subject { groups, tags, ..Subject::person(&self.person) };
        let is_unasked = self.is_unasked();
        Applicant { subject, delegations: self.delegations.as_deref().filter(|_| !is_unasked), is_unasked }
    }

    /// Reports whether this is a consent that was given without a request.
    pub fn is_unasked(&self) -> bool {
        self.delegations.as_ref().is_some_and(Vec::is_empty)
    }

    /// Returns the services. Leaves out text that is not a service.
    pub fn parsed_services(&self) -> Vec<Service> {
        self.services.iter().filter_map(|text| parse_service(text).ok()).collect()
    }
}

/// Returns the number of a request.
pub(super) fn number(id: i64) -> Result<RequestId> {
    let number = u32::try_from(id).ok().and_then(NonZeroU32::new);
    number.map(RequestId).context("the table access_requests contains a malformed number")
}

/// Collects the entries of a list.
pub(super) fn entries(rows: impl Iterator<Item = rusqlite::Result<Stored>>) -> Result<Vec<AccessEntry>> {
    rows.map(|row| row?.try_into()).collect()
}

/// A row as it is stored: its number and its state are not yet checked.
pub(super) struct Stored {
    id: i64,
    state: String,
    entry: AccessEntry,
}

impl TryFrom<Stored> for AccessEntry {
    type Error = anyhow::Error;

    fn try_from(Stored { id, state, entry }: Stored) -> Result<Self> {
        let state = AccessState::ALL.into_iter().find(|known| known.name() == state);
        let state = state.context("the table access_requests contains an unknown state")?;
        Ok(Self { id: number(id)?, state, ..entry })
    }
}

/// Reads a row with [`COLUMNS`].
pub(super) fn read(row: &Row<'_>) -> rusqlite::Result<Stored> {
    let time = |column: usize| Ok::<_, rusqlite::Error>(row.get::<_, Option<i64>>(column)?.map(i64::cast_unsigned));
    let entry = AccessEntry {
        id: RequestId(NonZeroU32::MAX),
        person: row.get(1)?,
        receiver: row.get(2)?,
        services: names(row.get(3)?),
        lifetime: row.get(4)?,
        reason: row.get(5)?,
        asked: row.get::<_, i64>(6)?.cast_unsigned(),
        state: AccessState::Open,
        delegation: row.get(8)?,
        decider: row.get(9)?,
        decided: time(10)?,
        note: row.get(11)?,
        until: time(12)?,
        ended: time(13)?,
        ender: row.get(14)?,
        delegations: row.get::<_, Option<String>>(15)?.map(|json| names(Some(json))),
        is_current: row.get(16)?,
    };
    Ok(Stored { id: row.get(0)?, state: row.get(7)?, entry })
}
