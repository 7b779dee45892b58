//! Sessions: who is logged in, by the hash of the bearer token or, at the console, of the cookie.

use super::holders::{self, Slot};
use super::{AuditEvent, Database, Operator, Proof, TokenHash, devices, identities};
use anyhow::Result;
use engine::policy::Subject;
use rusqlite::{Connection, OptionalExtension, ToSql, Transaction, params};
use serde::Serialize;
use std::net::IpAddr;

/// Sessions that one person may have at a time; the oldest give way.
const MOST_PER_PERSON: i64 = 32;

/// A logged-in person on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// The person's name.
    pub person: String,
    /// The device's name.
    pub device: String,
    /// When it ends, Unix seconds.
    pub expires: u64,
    /// The device's tags.
    pub tags: Vec<String>,
    /// Groups besides those of the policy: the identity provider's, or a service account's.
    pub groups: Vec<String>,
    /// Where it is a browser's at the console: when it ends, however much it is used. Such a session gets no grants.
    pub ends: Option<u64>,
    /// What the handles of its grants say of it. A new session's is given when it is recorded, none at the console.
    pub holder: wire::Holder,
}

impl Session {
    /// Who asks, calling from `source`.
    pub fn subject(&self, source: IpAddr) -> Subject<'_> {
        Subject { person: &self.person, groups: &self.groups, tags: &self.tags, source: Some(source) }
    }

    /// Whether who asks in it is what they were at another time.
    pub(crate) fn allows_as(&self, other: &Self) -> bool {
        std::ptr::eq(self, other) || (&self.groups, &self.tags) == (&other.groups, &other.tags)
    }
}

/// Whose a session is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The person's name.
    pub person: String,
    /// The device's name.
    pub device: String,
}

/// A session as it is listed.
#[derive(Debug, Serialize)]
pub struct SessionEntry {
    /// Whose it is.
    pub person: String,
    /// The device's name.
    pub device: String,
    /// Where the login came from.
    pub source: String,
    /// Groups besides those of the policy.
    pub groups: Vec<String>,
    /// When it began, Unix seconds.
    pub created: u64,
    /// When it ends, Unix seconds.
    pub expires: u64,
    /// When the identity provider was asked about it last, Unix seconds.
    pub renewed: Option<u64>,
}

/// A session as its person sees it.
#[derive(Debug)]
pub struct OwnSession {
    /// The hash of its token.
    pub token: TokenHash,
    /// The device's name; of a session at the console, the browser's.
    pub device: String,
    /// Where the login came from.
    pub source: String,
    /// When it began, Unix seconds.
    pub created: u64,
    /// When it ends, Unix seconds.
    pub expires: u64,
    /// Whether it is one at the console.
    pub console: bool,
}

/// What became of a login.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Login {
    /// It is recorded.
    Done {
        /// Whether older sessions of the person gave way.
        displaced: bool,
        /// The device's tags.
        tags: Vec<String>,
        /// Groups besides those of the policy.
        groups: Vec<String>,
        /// What the handles of its grants say of it.
        holder: wire::Holder,
    },
    /// What was proved is no longer so.
    Outdated,
    /// The account had so many sessions with grants within the lifetime of a grant that another could not be told from them.
    TooMany {
        /// Until it can.
        seconds: u64,
    },
    /// The name is somebody else's: an account's here, a service's, or another of the provider's persons'.
    NameTaken,
}

impl Database {
    /// Records a login, unless what was proved does not hold (any more).
    pub fn add_session(
        &mut self,
        token: TokenHash,
        session: &Session,
        proof: &Proof,
        source: IpAddr,
        now: u64,
    ) -> Result<Login> {
        let Session { person, device, expires, ends, .. } = session;
        self.write(|transaction| {
            if let Some(refused) = identities::check(transaction, person, proof, now)? {
                return Ok(refused);
            }
            let mut holder = wire::Holder::default();
            if ends.is_none() {
                holder = match holders::begin(transaction, &token, person, now)? {
                    Slot::Given(holder) => holder,
                    Slot::NoneFree { seconds } => return Ok(Login::TooMany { seconds }),
                };
            }
            transaction.execute(
                "INSERT INTO sessions (token, person, device, source, created, expires, ends)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
                params![
                    token,
                    person,
                    device,
                    source.to_string(),
                    now.cast_signed(),
                    expires.cast_signed(),
                    ends.map(u64::cast_signed)
                ],
            )?;
            if ends.is_none() {
                transaction.execute(
                    "INSERT INTO devices (person, device, first_login, last_login) VALUES (?1, ?2, ?3, ?3)
                     ON CONFLICT DO UPDATE SET last_login = ?3",
                    params![person, device, now.cast_signed()],
                )?;
                devices::forget_surplus(transaction, person, now)?;
            }
            identities::attach(transaction, &token, proof, now)?;
            let mut surplus = transaction.prepare_cached(
                "SELECT token FROM sessions WHERE person = ?1 AND (ends IS NULL) = ?3
                 ORDER BY created DESC, rowid DESC LIMIT -1 OFFSET ?2",
            )?;
            let tokens = surplus.query_map(params![person, MOST_PER_PERSON, ends.is_none()], |row| row.get(0))?;
            let tokens = tokens.collect::<Result<Vec<TokenHash>, _>>()?;
            for token in &tokens {
                end(transaction, token, now)?;
            }
            let event = if ends.is_some() { "console_login" } else { "login" };
            let event = AuditEvent::new(event).person(person).device(device).source(source);
            event.detail(proof.described()).write(transaction, now)?;
            let tags = devices::tags_of(transaction, person, device)?;
            let groups = identities::groups_of(transaction, person)?;
            Ok(Login::Done { displaced: !tokens.is_empty(), tags, groups, holder })
        })
    }

    /// Ends a session and revokes its grants.
    pub fn end_session(&mut self, token: TokenHash, session: &Session, source: IpAddr, now: u64) -> Result<()> {
        self.write(|transaction| {
            end(transaction, &token, now)?;
            let event = if session.ends.is_some() { "console_logout" } else { "logout" };
            let event = AuditEvent::new(event).person(&session.person).device(&session.device);
            event.source(source).write(transaction, now)
        })
    }

    /// Ends the sessions that have expired, with their grants; gives how many.
    pub fn end_expired_sessions(&mut self, now: u64) -> Result<usize> {
        self.write_soon(|transaction| end_expired(transaction, now))
    }

    /// Whose the session of a token is, unless it has ended.
    pub fn session_of_token(&self, token: &TokenHash, now: u64) -> Result<Option<Holder>> {
        of_token(&self.connection, token, now)
    }

    /// Ends a session of a person's, known by the first bytes of its token's hash, with its grants; false if there is none.
    pub fn end_own_session(&mut self, person: &str, number: u64, by: &Operator, now: u64) -> Result<bool> {
        self.write(|transaction| {
            let own = own_sessions(transaction, person)?;
            let found = own.iter().find(|(token, _)| session_number(token) == number);
            let Some((token, device)) = found else { return Ok(false) };
            end(transaction, token, now)?;
            let event = AuditEvent::new("logout").person(person).device(device).by(by);
            event.detail("ended from elsewhere").write(transaction, now)?;
            Ok(true)
        })
    }

    /// Ends all sessions of a person's but one, with their grants; gives whether there were any.
    pub fn end_other_sessions(&mut self, person: &str, but: &TokenHash, by: &Operator, now: u64) -> Result<bool> {
        self.write(|transaction| {
            let mut others = own_sessions(transaction, person)?;
            others.retain(|(token, _)| token != but);
            for (token, device) in &others {
                end(transaction, token, now)?;
                let event = AuditEvent::new("logout").person(person).device(device).by(by);
                event.detail("ended from elsewhere").write(transaction, now)?;
            }
            Ok(!others.is_empty())
        })
    }

    /// Lets a session at the console last until `expires`, though not beyond its end.
    pub fn prolong_session(&mut self, token: TokenHash, expires: u64) -> Result<()> {
        self.write_soon(|transaction| {
            transaction.execute(
                "UPDATE sessions SET expires = min(?2, ends) WHERE token = ?1 AND ends IS NOT NULL",
                params![token, expires.cast_signed()],
            )?;
            Ok(())
        })
    }

    /// A person's sessions that have not ended, newest first.
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

    /// The accounts and sources of the sessions that have not been dropped.
    pub fn login_sources(&self) -> Result<Vec<(String, IpAddr)>> {
        let mut statement = self.connection.prepare("SELECT DISTINCT person, source FROM sessions")?;
        let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get::<_, String>(1)?)))?;
        let rows: Vec<_> = rows.collect::<Result<_, _>>()?;
        Ok(rows.into_iter().filter_map(|(person, source)| Some((person, source.parse().ok()?))).collect())
    }

    /// The sessions that have not ended, as they are listed.
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
                groups: identities::names(row.get(3)?),
                created: row.get::<_, i64>(4)?.cast_unsigned(),
                expires: row.get::<_, i64>(5)?.cast_unsigned(),
                renewed: row.get::<_, Option<i64>>(6)?.map(i64::cast_unsigned),
            })
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// The sessions that have not ended, with what [`devices`] and [`identities`] know. One statement: all of it is read
    /// whenever anything changes.
    pub fn sessions(&self, now: u64) -> Result<Vec<(TokenHash, Session)>> {
        let mut statement = self.connection.prepare_cached(
            "SELECT token, sessions.person, device, expires, ends, groups, (SELECT json_group_array(tag) FROM (
                SELECT tag FROM device_tags AS tags
                    WHERE tags.person = sessions.person AND tags.device = sessions.device
                UNION SELECT value FROM json_each(identities.tags))), account, slot
             FROM sessions LEFT JOIN identities USING (person) LEFT JOIN session_slots ON session = token
             WHERE expires > ?1",
        )?;
        let rows = statement.query_map([now.cast_signed()], |row| {
            let expires = row.get::<_, i64>(3)?.cast_unsigned();
            let ends = row.get::<_, Option<i64>>(4)?.map(i64::cast_unsigned);
            let (groups, mut tags) = (identities::names(row.get(5)?), identities::names(row.get(6)?));
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

/// What a session is called where its token's hash would be too long: the first bytes of that.
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

pub(super) fn end_expired(transaction: &Transaction<'_>, now: u64) -> Result<usize> {
    end_those(transaction, "expires <= ?1", params![now.cast_signed()], now)
}

/// Ends the sessions that `condition` selects, which is constant text, and their grants; gives how many. However a session ends, it
/// ends here.
fn end_those(transaction: &Transaction<'_>, condition: &'static str, values: &[&dyn ToSql], now: u64) -> Result<usize> {
    let mut delete = transaction.prepare_cached(&format!("DELETE FROM sessions WHERE {condition} RETURNING token"))?;
    let ended = delete.query_map(values, |row| row.get(0))?.collect::<Result<Vec<TokenHash>, _>>()?;
    ended.iter().try_for_each(|token| holders::end(transaction, token, now))?;
    Ok(ended.len())
}
