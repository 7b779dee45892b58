//! Sessions: who is logged in, by the hash of the bearer token.

use super::{AuditEvent, Database, TokenHash, devices, grants};
use anyhow::{Result, bail};
use engine::policy::Subject;
use rusqlite::{Transaction, params};
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
}

impl Session {
    /// Who asks, calling from `source`.
    pub fn subject(&self, source: IpAddr) -> Subject<'_> {
        Subject { person: &self.person, tags: &self.tags, source: Some(source), ..Subject::default() }
    }
}

impl Database {
    /// Records a login; gives the device's tags, and true if older sessions of the person gave way. Fails where the account or the password that was
    /// checked is gone by then.
    pub fn add_session(
        &mut self,
        token: TokenHash,
        session: &Session,
        password: &str,
        source: IpAddr,
        now: u64,
    ) -> Result<(Vec<String>, bool)> {
        let Session { person, device, expires, .. } = session;
        self.write(|transaction| {
            let count: i64 = transaction.query_row(
                "SELECT count(*) FROM accounts WHERE person = ?1 AND password = ?2",
                [person.as_str(), password],
                |row| row.get(0),
            )?;
            if count == 0 {
                bail!("the account of {person} changed during its login");
            }
            transaction.execute(
                "INSERT INTO sessions (token, person, device, source, created, expires) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
                params![token, person, device, source.to_string(), now.cast_signed(), expires.cast_signed()],
            )?;
            transaction.execute(
                "INSERT INTO devices (person, device, first_login, last_login) VALUES (?1, ?2, ?3, ?3)
                 ON CONFLICT DO UPDATE SET last_login = ?3",
                params![person, device, now.cast_signed()],
            )?;
            let mut surplus = transaction.prepare_cached(
                "SELECT token FROM sessions WHERE person = ?1 ORDER BY created DESC, rowid DESC LIMIT -1 OFFSET ?2",
            )?;
            let tokens = surplus.query_map(params![person, MOST_PER_PERSON], |row| row.get(0))?;
            let tokens = tokens.collect::<Result<Vec<TokenHash>, _>>()?;
            for token in &tokens {
                end(transaction, token, person, now)?;
            }
            AuditEvent::new("login").person(person).device(device).source(source).write(transaction, now)?;
            Ok((devices::tags_of(transaction, person, device)?, !tokens.is_empty()))
        })
    }

    /// Ends a session and revokes its grants.
    pub fn end_session(&mut self, token: TokenHash, session: &Session, source: IpAddr, now: u64) -> Result<()> {
        self.write(|transaction| {
            end(transaction, &token, &session.person, now)?;
            let event = AuditEvent::new("logout").person(&session.person).device(&session.device);
            event.source(source).write(transaction, now)
        })
    }

    /// The accounts and sources of the sessions that have not been dropped.
    pub fn login_sources(&self) -> Result<Vec<(String, IpAddr)>> {
        let mut statement = self.connection.prepare("SELECT DISTINCT person, source FROM sessions")?;
        let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get::<_, String>(1)?)))?;
        let rows: Vec<_> = rows.collect::<Result<_, _>>()?;
        Ok(rows.into_iter().filter_map(|(person, source)| Some((person, source.parse().ok()?))).collect())
    }

    /// The sessions that have not ended.
    pub fn sessions(&self, now: u64) -> Result<Vec<(TokenHash, Session)>> {
        let mut statement =
            self.connection.prepare_cached("SELECT token, person, device, expires FROM sessions WHERE expires > ?1")?;
        let rows = statement.query_and_then([now.cast_signed()], |row| {
            let expires = row.get::<_, i64>(3)?.cast_unsigned();
            let (person, device): (String, String) = (row.get(1)?, row.get(2)?);
            let tags = devices::tags_of(&self.connection, &person, &device)?;
            Ok((row.get(0)?, Session { person, device, expires, tags }))
        })?;
        rows.collect()
    }
}

fn end(transaction: &Transaction<'_>, token: &TokenHash, person: &str, now: u64) -> Result<()> {
    transaction.execute("DELETE FROM sessions WHERE token = ?1", [token])?;
    grants::revoke_of_session(transaction, token, person, now)
}

pub(super) fn end_of_person(transaction: &Transaction<'_>, person: &str, now: u64) -> Result<()> {
    transaction.execute("DELETE FROM sessions WHERE person = ?1", [person])?;
    grants::revoke_of_person(transaction, person, now)
}

pub(super) fn end_of_device(transaction: &Transaction<'_>, person: &str, device: &str) -> Result<()> {
    transaction.execute("DELETE FROM sessions WHERE person = ?1 AND device = ?2", [person, device])?;
    Ok(())
}
