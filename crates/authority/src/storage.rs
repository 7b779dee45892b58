//! The authority's persistent state: accounts, devices, sessions, verifiers, issued grants and the audit trails, in one
//! SQLite file. The members of a cluster of authorities replicate its transactions (`replica.rs`).
//!
//! [`Database`] opens the file and has a method for each query and change. Commands use it directly. The server uses it
//! through [`Storage`], on separate threads, because the server's tasks must not wait for a disk. Secrets are stored
//! only as hashes, except TOTP secrets, the identity provider's refresh tokens and the key of grants' handles.

mod access;
mod accounts;
mod audit;
mod copies;
mod devices;
mod followed;
mod grants;
mod groups;
mod holders;
mod identities;
mod journal;
mod leases;
mod logins;
mod migration;
mod passkeys;
mod persons;
mod policies;
mod preferences;
mod reach;
mod receivers;
mod replica;
mod resumption;
mod revocation;
mod revoke;
mod scores;
mod sessions;
mod shared;
mod thread;
mod verifiers;

pub use access::{
    AccessEntry, AccessMark, AccessPage, AccessState, Decided, Given, GivingDelegate, NewConsent, NewConsents,
    NewRequest, RequestOutcome, Unexamined, Verdict as AccessVerdict, random_number,
};
pub use accounts::{Account, AccountEntry, SecondFactor};
pub use audit::chain::{AuditHash, Head, NotedHead, Trail, Verdict};
pub use audit::exported::verify_export;
pub use audit::log::AuditLog;
pub use audit::{AuditEntry, AuditEvent, AuditQuery, Operator, Subject};
pub use devices::DeviceEntry;
pub use followed::FollowedGrant;
pub use grants::{Ended, GrantEntry, Issuance};
pub use holders::Recorded;
pub use identities::{NewService, PersonFacts, ProviderSession, Renewable, Renewed, ServiceEntry};
pub use leases::{Announced, LeaseTerms};
pub use logins::{Login, Proof};
pub use passkeys::{Passkey, PasskeyHandle};
pub use policies::{Outdated, PolicyChange, PolicyVersion, Refusal};
pub use reach::Walk;
pub use replica::clock::{Clock, sentence as clock_sentence};
pub use replica::{Changes, ClusterId, ClusterKey, Log, Unavailable};
pub use resumption::Resumed;
pub use revoke::{RevokedCounts, Which};
pub use scores::{Complained, LOW_SCORE, NewComplaint, ScoreEntry, ScoreTerms};
pub use sessions::{Holder, OwnSession, Session, SessionEntry, session_number};
pub use thread::{Basis, Storage, verifiers_line};
#[cfg(test)]
pub(crate) use thread::{Held, revocations_line};
pub use verifiers::VerifierEntry;

use anyhow::{Context, Result, anyhow, bail};
use audit::chain;
use replica::Replica;
use rusqlite::{Connection, OpenFlags, Transaction, TransactionBehavior, params};
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

/// The SHA-256 of a bearer token or one-time code. The database stores the hash in place of the token.
pub type TokenHash = [u8; 32];

/// The format of the database that this version reads and writes.
pub const SCHEMA_VERSION: i64 = 16;
const SCHEMA: &str = "
CREATE TABLE accounts (
    person TEXT PRIMARY KEY, password TEXT NOT NULL, totp BLOB, totp_step INTEGER NOT NULL DEFAULT 0,
    created INTEGER NOT NULL
) STRICT;
CREATE TABLE devices (
    person TEXT NOT NULL, device TEXT NOT NULL, first_login INTEGER NOT NULL, last_login INTEGER NOT NULL,
    PRIMARY KEY (person, device)
) STRICT;
CREATE TABLE device_tags (
    person TEXT NOT NULL, device TEXT NOT NULL, tag TEXT NOT NULL, PRIMARY KEY (person, device, tag)
) STRICT;
CREATE TABLE sessions (
    token BLOB PRIMARY KEY, person TEXT NOT NULL, device TEXT NOT NULL, source TEXT NOT NULL,
    created INTEGER NOT NULL, expires INTEGER NOT NULL, ends INTEGER
) STRICT;
CREATE INDEX sessions_of_person ON sessions (person);
CREATE TABLE verifiers (
    verifier TEXT PRIMARY KEY, token BLOB UNIQUE, code BLOB UNIQUE, code_expires INTEGER,
    created INTEGER NOT NULL, enrolled INTEGER
) STRICT;
CREATE TABLE grants (
    handle INTEGER PRIMARY KEY, session BLOB NOT NULL, person TEXT NOT NULL, device TEXT NOT NULL,
    verifier TEXT NOT NULL, receiver TEXT NOT NULL, rule TEXT NOT NULL, source TEXT NOT NULL,
    address TEXT NOT NULL, protocol INTEGER NOT NULL, port INTEGER NOT NULL, prefix TEXT NOT NULL,
    flags INTEGER NOT NULL, issued INTEGER NOT NULL, expires INTEGER NOT NULL,
    revoked INTEGER, announced INTEGER, sealing TEXT, number INTEGER, lease INTEGER
) STRICT;
CREATE INDEX grants_by_expiry ON grants (expires);
CREATE INDEX grants_of_person ON grants (person, device) WHERE revoked IS NULL;
CREATE INDEX grants_to_announce ON grants (handle) WHERE announced = 0;
CREATE TABLE rechecks (verifier TEXT PRIMARY KEY) STRICT;
CREATE INDEX grants_of_person_by_expiry ON grants (person, expires);
";

/// Maximum number of grants that one transaction deletes.
const PIECE: u32 = 500;

/// The database file. A method that writes does so in one transaction, except [`Self::prune`], [`Self::prune_some`],
/// [`Self::settle_scores`] and methods that end very many sessions or grants.
pub struct Database {
    connection: Connection,
    /// Replicates the transactions; `None` if the authority is in no cluster.
    replica: Option<Replica>,
    /// Whether a commit waits until the disk has the transaction.
    syncs: bool,
}

/// Explains why a database cannot be opened, because SQLite's own message does not distinguish the causes.
fn cannot_open(path: &Path, error: &rusqlite::Error) -> String {
    let shown = path.display();
    match std::fs::File::open(path).map_err(|error| error.kind()) {
        Err(ErrorKind::NotFound) => format!("{shown} does not exist: `vouchsafe authority init` creates it"),
        Err(ErrorKind::PermissionDenied) => {
            format!("no permission to read {shown}: run the command with sudo, or as the owner of the file")
        }
        _ => format!("cannot open {shown}: {error}"),
    }
}

impl Database {
    /// Creates a database file for the authority with this `identity`, the DER form of its CA certificate.
    ///
    /// # Errors
    /// Fails if the file cannot be created or written.
    pub fn create(path: &Path, identity: &[u8]) -> Result<()> {
        Self::forget_journal(path)?;
        let mut connection = Connection::open(path).with_context(|| format!("cannot create {}", path.display()))?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        let transaction = connection.transaction()?;
        transaction.execute_batch(SCHEMA)?;
        transaction.execute_batch(holders::SCHEMA)?;
        leases::begin(&transaction)?;
        transaction.execute_batch(identities::SCHEMA)?;
        transaction.execute_batch(identities::LOGINS)?;
        transaction.execute_batch(passkeys::SCHEMA)?;
        transaction.execute_batch(preferences::SCHEMA)?;
        transaction.execute_batch(chain::SCHEMA)?;
        transaction.execute_batch(policies::SCHEMA)?;
        transaction.execute_batch(scores::SCHEMA)?;
        transaction.execute_batch(scores::CHANGES)?;
        transaction.execute_batch(replica::SCHEMA)?;
        transaction.execute_batch(revocation::RECHECKS)?;
        transaction.execute_batch(access::SCHEMA)?;
        transaction.execute_batch(access::FORMAT_16)?;
        chain::begin(&transaction, identity)?;
        transaction.pragma_update(None, "user_version", SCHEMA_VERSION)?;
        transaction.commit()?;
        connection.close().map_err(|(_, error)| error)?;
        Ok(())
    }

    /// Opens a database file that [`Self::create`] made. A file of an earlier version is first converted to the current
    /// format.
    ///
    /// # Errors
    /// Fails if the file does not exist or cannot be read, its format is too old or too new, or it belongs to a member
    /// of a cluster.
    pub fn open(path: &Path) -> Result<Self> {
        let mut database = Self::open_file(path)?;
        if let Some((cluster, member)) = replica::membership(&database.connection)? {
            // A change that is not in the cluster's log would be in this copy only.
            bail!(
                "{} is the database of member {member} of the cluster {cluster}, but the cluster.toml beside it is \
                 missing: restore cluster.toml and cluster.key, or run `vouchsafe authority cluster leave`",
                path.display()
            );
        }
        database.replay_journal()?;
        Ok(database)
    }

    fn open_file(path: &Path) -> Result<Self> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let mut connection =
            Connection::open_with_flags(path, flags).map_err(|error| anyhow!(cannot_open(path, &error)))?;
        connection.busy_timeout(Duration::from_secs(5))?;
        connection.set_prepared_statement_cache_capacity(64);
        migration::run(&mut connection, path)?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        Ok(Self { connection, replica: None, syncs: true })
    }

    /// Opens the same file on a second connection, read-only.
    fn reader(&self) -> Result<Self> {
        Self::open_to_read(Path::new(self.connection.path().context("the database has no file")?))
    }

    /// Opens the database of a running server for reading only. The server may be a member of a cluster.
    ///
    /// # Errors
    /// Fails if the file does not exist or cannot be read.
    pub fn open_to_read(path: &Path) -> Result<Self> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags)?;
        connection.busy_timeout(Duration::from_secs(5))?;
        connection.set_prepared_statement_cache_capacity(64);
        Ok(Self { connection, replica: None, syncs: true })
    }

    /// Returns a number that changes when another connection has written to the database since the last call.
    ///
    /// # Errors
    /// Fails if the database cannot be read.
    pub fn version(&self) -> Result<i64> {
        Ok(self.connection.pragma_query_value(None, "data_version", |row| row.get(0))?)
    }

    /// Ends expired sessions. Deletes grants `grants_kept` seconds after their end and audit entries `audit_lifetime`
    /// seconds after they were written. Also deletes old refusals, old requests for access, and the complaints of
    /// earlier hours. Works in several transactions.
    ///
    /// # Errors
    /// Fails if the database cannot be written.
    pub fn prune(&mut self, time: u64, grants_kept: u32, audit_lifetime: u32) -> Result<()> {
        while self.prune_some(time, grants_kept, audit_lifetime)? {}
        Ok(())
    }

    /// Performs a part of the work of [`Self::prune`] in two transactions, one of which is not replicated to other
    /// members. Reports whether there is possibly more to delete. Another member may delete the same rows first.
    ///
    /// # Errors
    /// Fails if the database cannot be written.
    pub fn prune_some(&mut self, time: u64, grants_kept: u32, audit_lifetime: u32) -> Result<bool> {
        let (now, ended) = (time.cast_signed(), time.cast_signed() - i64::from(grants_kept));
        let was_cut = self.write_local(|transaction| {
            policies::prune(transaction, now)?;
            chain::cut(transaction, now - i64::from(audit_lifetime), time)
        })?;
        let was_full = self.write_soon(|transaction| {
            let sessions = sessions::end_expired(transaction, time)?;
            let piece = "DELETE FROM grants WHERE handle IN (SELECT handle FROM grants WHERE expires <= ?1 LIMIT ?2)";
            let grants = transaction.execute(piece, params![ended, PIECE])?;
            if grants == PIECE as usize || sessions == PIECE as usize {
                return Ok(true);
            }
            if access::prune(transaction, time)? {
                return Ok(true);
            }
            Ok(holders::prune(transaction, ended)? || scores::prune(transaction, time)?)
        })?;
        Ok(was_cut || was_full)
    }

    /// Calls `read` with a snapshot of the database: `read` sees no changes that other connections write at the same
    /// time.
    ///
    /// # Errors
    /// Fails if the database cannot be read, or `read` failed.
    pub fn snapshot<T>(&self, read: impl FnOnce(&Self) -> Result<T>) -> Result<T> {
        let _unchanged = self.connection.unchecked_transaction()?;
        read(self)
    }

    /// Runs a transaction. A member of a cluster also replicates it.
    fn write<T>(&mut self, work: impl FnOnce(&Transaction<'_>) -> Result<T>) -> Result<T> {
        let Self { connection, replica, .. } = self;
        if let Some(replica) = replica {
            return replica.write(connection, work);
        }
        self.commit(true, work)
    }

    /// Runs a transaction of an authority that is in no cluster. With `syncs`, the commit waits for the disk.
    fn commit<T>(&mut self, syncs: bool, work: impl FnOnce(&Transaction<'_>) -> Result<T>) -> Result<T> {
        // SQLite takes some 10 us to change the setting, and most transactions need the same as the one before.
        if self.syncs != syncs {
            self.connection.pragma_update(None, "synchronous", if syncs { "FULL" } else { "NORMAL" })?;
            self.syncs = syncs;
        }
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let done = work(&transaction)?;
        transaction.commit()?;
        Ok(done)
    }

    /// Runs a transaction that changes only tables which are not replicated: the audit trails, refusals, and the queues
    /// of announcements. The transaction waits neither for the cluster nor, like [`Self::write_soon`], for the disk.
    fn write_local<T>(&mut self, work: impl FnOnce(&Transaction<'_>) -> Result<T>) -> Result<T> {
        let Self { connection, replica, .. } = self;
        match replica {
            Some(replica) => replica.write_local(connection, work),
            None => self.write_soon(work),
        }
    }

    /// Runs a write transaction that does not wait for the disk: a power failure may lose the latest of these writes,
    /// but never a part of one.
    fn write_soon<T>(&mut self, work: impl FnOnce(&Transaction<'_>) -> Result<T>) -> Result<T> {
        if self.replica.is_some() {
            // No transaction of a member waits for its disk: the log has what a power failure takes away.
            return self.write(work);
        }
        self.commit(false, work)
    }
}

/// Reports whether a statement failed because of the data to be written, and not because of the database.
fn is_about_one(error: &anyhow::Error) -> bool {
    let code = error.downcast_ref().and_then(rusqlite::Error::sqlite_error_code);
    code == Some(rusqlite::ErrorCode::ConstraintViolation)
}

/// Parses a list of names that is stored as JSON; NULL and malformed text are an empty list.
fn names(json: Option<String>) -> Vec<String> {
    json.and_then(|json| serde_json::from_str(&json).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests;
