//! Sessions. They are stored under the hash of the bearer token or, at the console, of the cookie.

use super::{AuditEvent, Database, LOW_SCORE, Operator, PIECE, TokenHash, holders, names};
use anyhow::Result;
use engine::policy::Subject;
use rusqlite::{Connection, OptionalExtension, ToSql, Transaction, params};
use serde::Serialize;
use std::net::IpAddr;

/// The session of a logged-in person or service account on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// The person's name.
    pub person: String,
    /// The device's name.
    pub device: String,
    /// Time of expiry, in Unix seconds.
    pub expires: u64,
    /// The current tags of the device or service account, and [`LOW_SCORE`] if the person's score is low.
    pub tags: Vec<String>,
    /// Groups, except groups that the policy defines: those that the identity provider reports, or those of a service
    /// account.
    pub groups: Vec<String>,
    /// The latest end of a browser's console session, in Unix seconds. Use of the session does not postpone this end.
    /// `None` for other sessions. Console sessions get no grants.
    pub ends: Option<u64>,
    /// The holder that the handles of the session's grants contain. It is assigned when the session is recorded.
    /// Console sessions have the default holder.
    pub holder: wire::Holder,
}

impl Session {
    /// Returns the subject of a request from `source`.
    pub fn subject(&self, source: IpAddr) -> Subject<'_> {
        Subject { person: &self.person, groups: &self.groups, tags: &self.tags, source: Some(source) }
    }

    /// Reports whether both sessions have the same groups and tags, and so the same permissions.
    pub(crate) fn allows_as(&self, other: &Self) -> bool {
        std::ptr::eq(self, other) || (&self.groups, &self.tags) == (&other.groups, &other.tags)
    }
}

/// The person and the device of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The person's name.
    pub person: String,
    /// The device's name.
    pub device: String,
}

/// An entry of the list of sessions for administrators.
#[derive(Debug, Serialize)]
pub struct SessionEntry {
    /// The person whose session it is.
    pub person: String,
    /// The device's name.
    pub device: String,
    /// Source address of the login.
    pub source: String,
    /// Groups of the person, except groups that the policy defines.
    pub groups: Vec<String>,
    /// Time of the login, in Unix seconds.
    pub created: u64,
    /// Time of expiry, in Unix seconds.
    pub expires: u64,
    /// Time at which the identity provider last vouched for the person, in Unix seconds; `None` if the session does not
    /// come from a login at the provider.
    pub renewed: Option<u64>,
}

/// An entry of the list of a person's own sessions.
#[derive(Debug)]
pub struct OwnSession {
    /// The hash of the session's token.
    pub token: TokenHash,
    /// The device's name; for a console session, the browser's.
    pub device: String,
    /// Source address of the login.
    pub source: String,
    /// Time of the login, in Unix seconds.
    pub created: u64,
    /// Time of expiry, in Unix seconds.
    pub expires: u64,
    /// Whether the session is a console session.
    pub console: bool,
}

impl Database {
    /// Ends the sessions that have expired at `now`, with their grants, and returns their number.
    ///
    /// # Errors
    /// Fails if the database cannot be written.
    pub fn end_expired_sessions(&mut self, now: u64) -> Result<usize> {
        let expired = "SELECT EXISTS (SELECT 1 FROM sessions WHERE expires <= ?1)";
        let mut count = 0;
        while self.connection.query_row(expired, [now.cast_signed()], |row| row.get::<_, bool>(0))? {
            let ended = self.write_soon(|transaction| end_expired(transaction, now))?;
            count += ended;
            // Another process, or another member of the cluster, was faster.
            if ended == 0 {
                break;
            }
        }
        Ok(count)
    }

    /// Returns person and device of the session with this token, or `None` if the session has ended.
    ///
    /// # Errors
    /// Fails if the database cannot be read.
    pub fn session_of_token(&self, token: &TokenHash, now: u64) -> Result<Option<Holder>> {
        of_token(&self.connection, token, now)
    }

    /// Returns the source address of the login that began a session, or `None` if the session has ended.
    ///
    /// # Errors
    /// Fails if the database cannot be read.
    pub fn source_of(&self, token: &TokenHash) -> Result<Option<IpAddr>> {
        let mut statement = self.connection.prepare_cached("SELECT source FROM sessions WHERE token = ?1")?;
        let source: Option<String> = statement.query_row([token], |row| row.get(0)).optional()?;
        Ok(source.and_then(|source| source.parse().ok()))
    }

    /// Ends the session of a person with this [`session_number`], with its grants. If it is a session at the console,
    /// the sessions of devices that were logged in from it also end. Returns false if the person has no such session.
    ///
    /// # Errors
    /// Fails if the database cannot be written.
    pub fn end_own_session(&mut self, person: &str, number: u64, by: &Operator, now: u64) -> Result<bool> {
        self.write(|transaction| {
            let own = own_sessions(transaction, person)?;
            let found = own.iter().find(|(token, _)| session_number(token) == number);
            let Some((token, device)) = found else { return Ok(false) };
            let mut console =
                transaction.prepare_cached("SELECT 1 FROM sessions WHERE token = ?1 AND ends IS NOT NULL")?;
            let is_console = console.exists([token])?;
            end(transaction, token, now)?;
            if is_console {
                end_login(transaction, token, "its session at the console was ended", now)?;
            }
            let event = AuditEvent::new("logout").person(person).device(device).by(by);
            event.detail("ended from another session").write(transaction, now)?;
            Ok(true)
        })
    }

    /// Ends all sessions of a person except the session `but`, with their grants. Reports whether there were any.
    ///
    /// # Errors
    /// Fails if the database cannot be written.
    pub fn end_other_sessions(&mut self, person: &str, but: &TokenHash, by: &Operator, now: u64) -> Result<bool> {
        self.write(|transaction| {
            let mut others = own_sessions(transaction, person)?;
            others.retain(|(token, _)| token != but);
            for (token, device) in &others {
                end(transaction, token, now)?;
                let event = AuditEvent::new("logout").person(person).device(device).by(by);
                event.detail("ended from another session").write(transaction, now)?;
            }
            Ok(!others.is_empty())
        })
    }

    /// Extends a console session to `expires`, in Unix seconds, but not beyond its latest end.
    ///
    /// # Errors
    /// Fails if the database cannot be written.
    pub fn prolong_session(&mut self, token: TokenHash, expires: u64) -> Result<()> {
        self.write_soon(|transaction| {
            transaction.execute(
                "UPDATE sessions SET expires = min(?2, ends) WHERE token = ?1 AND ends IS NOT NULL",
                params![token, expires.cast_signed()],
            )?;
            Ok(())
        })
    }

    /// Returns the sessions of a person that are live at `now`, newest first.
    ///
    /// # Errors
    /// Fails if the database cannot be read.
    pub fn sessions_of(&self, person: &str, now: u64) -> Result<Vec<OwnSession>> {
        let mut statement = self.connection.prepare_cached(
            "SELECT token, device, source, created, expires, ends IS NOT NULL FROM sessions
             WHERE person = ?1 AND expires > ?2 ORDER BY created DESC, rowid DESC",
        )?;
        let rows = statement.query_map(params![person, now.cast_signed()], |row| {
            Ok(OwnSession {
                token: row.get(0)?,
                device: row.get(1)?,
                source: row.get(2)?,
                created: row.get::<_, i64>(3)?.cast_unsigned(),
                expires: row.get::<_, i64>(4)?.cast_unsigned(),
                console: row.get(5)?,
            })
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Returns each combination of person and source address that occurs in the stored sessions.
    ///
    /// # Errors
    /// Fails if the database cannot be read.
    pub fn login_sources(&self) -> Result<Vec<(String, IpAddr)>> {
        let mut statement = self.connection.prepare("SELECT DISTINCT person, source FROM sessions")?;
        let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get::<_, String>(1)?)))?;
        let rows: Vec<_> = rows.collect::<Result<_, _>>()?;
        Ok(rows.into_iter().filter_map(|(person, source)| Some((person, source.parse().ok()?))).collect())
    }

    /// Returns all sessions that are live at `now`, sorted by person and time of login.
    ///
    /// # Errors
    /// Fails if the database cannot be read.
    pub fn session_entries(&self, now: u64) -> Result<Vec<SessionEntry>> {
        let mut statement = self.connection.prepare(
            "SELECT sessions.person, device, source, groups, sessions.created, expires, renewed FROM sessions
             LEFT JOIN identities USING (person) LEFT JOIN provider_sessions USING (token)
             WHERE expires > ?1 ORDER BY sessions.person, sessions.created",
        )?;
        let rows = statement.query_map([now.cast_signed()], |row| {
            Ok(SessionEntry {
                person: row.get(0)?,
                device: row.get(1)?,
                source: row.get(2)?,
                groups: names(row.get(3)?),
                created: row.get::<_, i64>(4)?.cast_unsigned(),
                expires: row.get::<_, i64>(5)?.cast_unsigned(),
                renewed: row.get::<_, Option<i64>>(6)?.map(i64::cast_unsigned),
            })
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Returns all sessions that are live at `now`, with their groups and tags. The key is the hash of the session's
    /// token. One SQL statement reads all of them, because this function runs after every change of the database.
    ///
    /// # Errors
    /// Fails if the database cannot be read.
    pub fn sessions(&self, now: u64) -> Result<Vec<(TokenHash, Session)>> {
        let mut statement = self.connection.prepare_cached(
            "SELECT token, sessions.person, device, expires, ends, groups, (SELECT json_group_array(tag) FROM (
                SELECT tag FROM device_tags AS tags
                    WHERE tags.person = sessions.person AND tags.device = sessions.device
                UNION SELECT value FROM json_each(identities.tags)
                UNION SELECT ?2 FROM scores WHERE scores.person = sessions.person AND low = 1)), account, slot
             FROM sessions LEFT JOIN identities USING (person) LEFT JOIN session_slots ON session = token
             WHERE expires > ?1",
        )?;
        let rows = statement.query_map(params![now.cast_signed(), LOW_SCORE], |row| {
            let expires = row.get::<_, i64>(3)?.cast_unsigned();
            let ends = row.get::<_, Option<i64>>(4)?.map(i64::cast_unsigned);
            let (groups, mut tags) = (names(row.get(5)?), names(row.get(6)?));
            tags.sort_unstable();
            let holder = holders::of(row.get(7)?, row.get(8)?);
            Ok((row.get(0)?, Session { person: row.get(1)?, device: row.get(2)?, expires, tags, groups, ends, holder }))
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }
}

pub(super) fn of_token(connection: &Connection, token: &TokenHash, now: u64) -> Result<Option<Holder>> {
    let mut statement =
        connection.prepare_cached("SELECT person, device FROM sessions WHERE token = ?1 AND expires > ?2")?;
    let holder = statement
        .query_row(params![token, now.cast_signed()], |row| Ok(Holder { person: row.get(0)?, device: row.get(1)? }));
    Ok(holder.optional()?)
}

/// Returns a short number that identifies a session: the first 8 bytes of its token's hash.
pub fn session_number(token: &TokenHash) -> u64 {
    token[..8].iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fn own_sessions(transaction: &Transaction<'_>, person: &str) -> Result<Vec<(TokenHash, String)>> {
    let mut statement = transaction.prepare_cached("SELECT token, device FROM sessions WHERE person = ?1")?;
    let rows = statement.query_map([person], |row| Ok((row.get(0)?, row.get(1)?)))?;
    Ok(rows.collect::<Result<_, _>>()?)
}

pub(super) fn end(transaction: &Transaction<'_>, token: &TokenHash, now: u64) -> Result<usize> {
    end_those(transaction, "token = ?1", params![token], now)
}

pub(super) fn end_of_person(transaction: &Transaction<'_>, person: &str, now: u64) -> Result<usize> {
    end_those(transaction, "person = ?1", params![person], now)
}

pub(super) fn end_of_device(transaction: &Transaction<'_>, person: &str, device: &str, now: u64) -> Result<usize> {
    end_those(transaction, "person = ?1 AND device = ?2", params![person, device], now)
}

pub(super) fn end_all(transaction: &Transaction<'_>, now: u64) -> Result<usize> {
    end_those(transaction, "1 = 1", params![], now)
}

/// Ends at most [`PIECE`] expired sessions.
pub(super) fn end_expired(transaction: &Transaction<'_>, now: u64) -> Result<usize> {
    let expired = "token IN (SELECT token FROM sessions WHERE expires <= ?1 LIMIT ?2)";
    end_those(transaction, expired, params![now.cast_signed(), PIECE], now)
}

/// Ends the sessions that `condition` (constant text) selects, with their grants, and returns their number. All
/// sessions end through this function.
fn end_those(transaction: &Transaction<'_>, condition: &'static str, values: &[&dyn ToSql], now: u64) -> Result<usize> {
    let mut delete = transaction.prepare_cached(&format!("DELETE FROM sessions WHERE {condition} RETURNING token"))?;
    let ended = delete.query_map(values, |row| row.get(0))?.collect::<Result<Vec<TokenHash>, _>>()?;
    ended.iter().try_for_each(|token| holders::end(transaction, token, now))?;
    Ok(ended.len())
}

/// Ends all sessions of a login at the provider, including sessions of devices, and returns their number.
pub(super) fn end_login(transaction: &Transaction<'_>, login: &TokenHash, why: &str, now: u64) -> Result<usize> {
    let mut statement = transaction.prepare_cached(
        "SELECT token, person FROM provider_sessions JOIN sessions USING (token) WHERE login = ?1 ORDER BY created",
    )?;
    let rows = statement.query_map([login], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let rows: Vec<(TokenHash, String)> = rows.collect::<Result<_, _>>()?;
    rows.iter().try_for_each(|(token, person)| end_one(transaction, token, person, why, now))?;
    Ok(rows.len())
}

pub(super) fn end_one(
    transaction: &Transaction<'_>,
    token: &TokenHash,
    person: &str,
    why: &str,
    now: u64,
) -> Result<()> {
    end(transaction, token, now)?;
    AuditEvent::new("logout").person(person).detail(why).write(transaction, now)
}
