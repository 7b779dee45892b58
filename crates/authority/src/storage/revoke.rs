//! Revocation of a grant, a session, a device, or everything that a person has, at the request of a person or
//! administrator.

use super::grants::ENTRIES;
use super::revocation::{HELD, REVOKED_AT_ONCE, ended_by, mark, revoke_forbidden};
use super::{AuditEvent, Database, Operator, TokenHash, devices, sessions};
use anyhow::{Result, bail};
use rusqlite::{OptionalExtension, ToSql, Transaction};
use wire::Handle;

/// The numbers of live sessions and grants that a revocation ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RevokedCounts {
    /// Number of sessions.
    pub sessions: usize,
    /// Number of grants, including the grants of the sessions.
    pub grants: usize,
}

/// The target of a revocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Which {
    /// A single grant.
    Grant(Handle),
    /// A single grant, if it belongs to this person.
    OwnGrant(String, Handle),
    /// All grants and sessions of a person.
    Person(String),
    /// All grants and sessions of one device of a person.
    Device(String, String),
    /// One session with all its grants.
    Session(TokenHash),
}

impl Database {
    /// Reports whether the target of a revocation exists. A grant exists as long as it is recorded, even if it has
    /// ended. A person or device that was removed counts as existing as long as one of their grants is recorded.
    ///
    /// # Errors
    /// Fails if the database cannot be read.
    pub fn has(&self, which: &Which) -> Result<bool> {
        let has = |sql: &str, values: &[&dyn ToSql]| -> Result<bool> {
            Ok(self.connection.prepare_cached(sql)?.exists(values)?)
        };
        match which {
            Which::Grant(handle) => {
                let first = self.first_handle(*handle)?;
                has("SELECT 1 FROM grants WHERE handle = ?1", &[&first.0.cast_signed()])
            }
            Which::OwnGrant(person, handle) => {
                let first = self.first_handle(*handle)?;
                has("SELECT 1 FROM grants WHERE person = ?1 AND handle = ?2", &[person, &first.0.cast_signed()])
            }
            Which::Person(person) => {
                Ok(self.knows(person)? || has("SELECT 1 FROM grants WHERE person = ?1", &[person])?)
            }
            Which::Session(token) => has("SELECT 1 FROM sessions WHERE token = ?1", &[token]),
            Which::Device(person, device) => {
                let known = devices::is_known(&self.connection, person, device)?;
                Ok(known || has("SELECT 1 FROM grants WHERE person = ?1 AND device = ?2", &[person, device])?)
            }
        }
    }

    /// Revokes the grants and ends the sessions that `which` selects. Returns the numbers of live grants and sessions
    /// that ended. If `which` is a device without a session, returns `None` and writes no audit entry, because users
    /// can repeat such a call any number of times.
    ///
    /// # Errors
    /// Fails if there is no such grant or session, or the database cannot be written.
    pub fn revoke(&mut self, which: &Which, by: &Operator, now: u64) -> Result<Option<RevokedCounts>> {
        let which = match which {
            Which::Grant(handle) => &Which::Grant(self.first_handle(*handle)?),
            Which::OwnGrant(person, handle) => &Which::OwnGrant(person.clone(), self.first_handle(*handle)?),
            others => others,
        };
        self.write(|transaction| {
            let (grants, mut sessions) = (count_live(transaction, which, now)?, 0);
            let event = match which {
                Which::Grant(handle) => {
                    let holder = holder(transaction, *handle)?;
                    let Some(holder) = holder else {
                        bail!("no grant {handle}: `vouchsafe authority grants --all` lists the grants")
                    };
                    mark(transaction, "handle = ?3", now, &[&handle.0.cast_signed()])?;
                    AuditEvent::new("revoked").person(&holder).detail(handle.to_string())
                }
                Which::OwnGrant(person, handle) => {
                    if holder(transaction, *handle)?.as_ref() != Some(person) {
                        bail!("{person} has no grant {handle}");
                    }
                    mark(transaction, "handle = ?3", now, &[&handle.0.cast_signed()])?;
                    AuditEvent::new("revoked").person(person).detail(handle.to_string())
                }
                Which::Person(person) => {
                    sessions = sessions::end_of_person(transaction, person, now)?;
                    AuditEvent::new("revoked").person(person).detail("all sessions and grants")
                }
                Which::Session(token) => {
                    let Some(session) = sessions::of_token(transaction, token, now)? else {
                        bail!("there is no such session: `vouchsafe authority session list` lists the sessions");
                    };
                    sessions = sessions::end(transaction, token, now)?;
                    AuditEvent::new("revoked").person(&session.person).device(&session.device).detail("one session")
                }
                Which::Device(person, device) => {
                    sessions = sessions::end_of_device(transaction, person, device, now)?;
                    if sessions == 0 {
                        return Ok(None);
                    }
                    AuditEvent::new("revoked").person(person).device(device).detail("all sessions and grants")
                }
            };
            event.by(by).write(transaction, now)?;
            Ok(Some(RevokedCounts { sessions, grants }))
        })
    }

    /// Revokes these grants because the policy denies them. The audit trail records the reason `why` and the person of
    /// each grant.
    ///
    /// # Errors
    /// Fails if the database cannot be written.
    pub fn revoke_forbidden(&mut self, grants: &[(Handle, String)], why: &str, now: u64) -> Result<()> {
        let mut pieces = grants.chunks(REVOKED_AT_ONCE as usize);
        pieces.try_for_each(|piece| self.write(|transaction| revoke_forbidden(transaction, piece, why, now)))
    }
}

/// Returns the number of live grants that a revocation would end.
fn count_live(transaction: &Transaction<'_>, which: &Which, now: u64) -> Result<usize> {
    let count = |condition: &str, values: &[&dyn ToSql]| -> Result<usize> {
        let mut statement = transaction
            .prepare_cached(&format!("SELECT count(*) FROM {ENTRIES} WHERE expires > ?1 AND {HELD} AND {condition}"))?;
        let (since, mut all): (_, Vec<&dyn ToSql>) = (ended_by(now), Vec::new());
        all.push(&since);
        all.extend(values);
        let count: i64 = statement.query_row(all.as_slice(), |row| row.get(0))?;
        Ok(usize::try_from(count)?)
    };
    match which {
        Which::Grant(handle) | Which::OwnGrant(_, handle) => count("handle = ?2", &[&handle.0.cast_signed()]),
        Which::Person(person) => count("person = ?2", &[person]),
        Which::Device(person, device) => count("person = ?2 AND device = ?3", &[person, device]),
        Which::Session(token) => {
            count("person = (SELECT person FROM sessions WHERE token = ?2) AND session = ?2", &[token])
        }
    }
}

fn holder(transaction: &Transaction<'_>, handle: Handle) -> Result<Option<String>> {
    let mut statement = transaction.prepare_cached("SELECT person FROM grants WHERE handle = ?1")?;
    Ok(statement.query_row([handle.0.cast_signed()], |row| row.get(0)).optional()?)
}
