//! Lists of requests and consents, in pages.

use super::entry::{AccessEntry, COLUMNS, entries, read};
use crate::storage::Database;
use anyhow::Result;
use engine::policy::delegation::RequestId;
use rusqlite::ToSql;
use std::fmt;
use std::str::FromStr;

/// Maximum number of entries on a page.
pub(super) const PAGE: usize = 100;

/// The position in a list after which the next page begins: the time and the number of the last entry of the page
/// before. It stays valid if this entry is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessMark {
    time: u64,
    id: RequestId,
}

impl fmt::Display for AccessMark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.time, self.id)
    }
}

impl FromStr for AccessMark {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_time = |time: &str| time.len() <= 10 && time.bytes().all(|digit| digit.is_ascii_digit());
        let parts = text.split_once('-').filter(|(time, _)| is_time(time));
        let parts = parts.and_then(|(time, id)| Some((time.parse::<u64>().ok()?, id.parse::<RequestId>().ok()?)));
        let fault = || "the start of the page is malformed: use the value of `next` on the page before".to_owned();
        parts.map(|(time, id)| Self { time, id }).ok_or_else(fault)
    }
}

/// A page of a list of requests and consents, with at most 100 entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessPage {
    /// The entries.
    pub entries: Vec<AccessEntry>,
    /// The place at which the next page begins; `None` if this is the last page.
    pub next: Option<AccessMark>,
}

impl Database {
    /// Returns a page of a person's requests and consents, newest first.
    ///
    /// # Errors
    /// Fails if the database cannot be read.
    pub fn access_requests_of(&self, person: &str, after: Option<AccessMark>) -> Result<AccessPage> {
        self.newest("person = ?3", after, &[&person])
    }

    /// Returns a page of the open requests about these receivers, newest first. A request is included if one of these
    /// delegations covered the person when they asked. Leaves out the requests of `delegate`.
    ///
    /// # Errors
    /// Fails if the database cannot be read.
    pub fn open_access_requests(
        &self,
        receivers: &[String],
        delegations: &[String],
        delegate: &str,
        after: Option<AccessMark>,
    ) -> Result<AccessPage> {
        let (receivers, delegations) = (serde_json::to_string(receivers)?, serde_json::to_string(delegations)?);
        let which = "state = 'open' AND receiver IN (SELECT value FROM json_each(?3)) AND person <> ?5 AND (
            delegations IS NULL OR EXISTS (
                SELECT 1 FROM json_each(access_requests.delegations) AS own
                WHERE own.value IN (SELECT value FROM json_each(?4))))";
        self.newest(which, after, &[&receivers, &delegations, &delegate])
    }

    /// Returns a page of the consents in effect for these receivers, beginning with the one that ends first.
    ///
    /// # Errors
    /// Fails if the database cannot be read.
    pub fn consents_for(&self, receivers: &[String], after: Option<AccessMark>) -> Result<AccessPage> {
        let receivers = serde_json::to_string(receivers)?;
        let which = "allowed = 1 AND receiver IN (SELECT value FROM json_each(?3)) AND (until, id) > (?1, ?2)
                     ORDER BY until, id";
        let (time, id) = after.map_or((-1, 0), stored);
        self.page(which, &[&time, &id, &receivers], |entry| entry.until.unwrap_or_default())
    }

    /// Returns a page of the requests that the SQL text `which` selects, newest first. Its values begin with `?3`.
    fn newest(&self, which: &str, after: Option<AccessMark>, values: &[&dyn ToSql]) -> Result<AccessPage> {
        let (time, id) = after.map_or((i64::MAX, 0), stored);
        let which = format!("{which} AND (asked, id) < (?1, ?2) ORDER BY asked DESC, id DESC");
        let begin: [&dyn ToSql; 2] = [&time, &id];
        let values: Vec<_> = begin.into_iter().chain(values.iter().copied()).collect();
        self.page(&which, &values, |entry| entry.asked)
    }

    fn page(&self, which: &str, values: &[&dyn ToSql], time: impl Fn(&AccessEntry) -> u64) -> Result<AccessPage> {
        let sql = format!("SELECT {COLUMNS} FROM access_requests WHERE {which} LIMIT {}", PAGE + 1);
        let mut page = entries(self.connection.prepare_cached(&sql)?.query_map(values, read)?)?;
        let is_full = page.len() > PAGE;
        page.truncate(PAGE);
        let last = page.last().filter(|_| is_full).map(|last| AccessMark { time: time(last), id: last.id });
        page.retain(|entry| entry.is_current || !entry.state.is_live());
        Ok(AccessPage { entries: page, next: last })
    }
}

/// Returns the values that the database compares.
fn stored(mark: AccessMark) -> (i64, i64) {
    (mark.time.cast_signed(), mark.id.0.get().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_in_a_list_is_read_as_it_is_written() {
        let mark: AccessMark = "1772000000-0a1b2c3d".parse().unwrap();
        assert_eq!(mark.to_string(), "1772000000-0a1b2c3d");
        for wrong in
            ["", "-", "1-", "x-0a1b2c3d", "1-00000000", "99999999999-0a1b2c3d", "-1-0a1b2c3d", "1-0a1b2c3d' OR 1"]
        {
            assert!(wrong.parse::<AccessMark>().is_err(), "{wrong}");
        }
    }
}
