//! The journal of grants: a file beside the database, to which the authority writes a grant before the client gets it.
//! The storage thread records the grant in the database soon afterwards. If the process is killed in between, the next
//! process that opens the database records the grant.
//!
//! The journal, like the database, does not wait for the disk: a power failure may lose the latest records. The running
//! server holds a lock on the file. A process that cannot get the lock leaves the file alone.

use super::{Database, Issuance, LeaseTerms, TokenHash, is_about_one};
use crate::now;
use anyhow::{Context, Result};
use api::GrantOwner;
use engine::policy::Scope;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use wire::{Destination, Flags, Handle};

/// Minimum length, in bytes, at which the file is emptied when all of its grants are recorded. A shorter file is kept,
/// because appending to pages that the kernel has in memory is faster.
const LONG: u64 = 256 << 10;
/// Length of a record's head: the length of its text, and the beginning of the text's SHA-256.
const HEAD: usize = 12;

/// The text of a record which states that all grants before it are recorded.
const MARK: &[u8] = b"";

/// The open journal. The process holds a lock on the file.
pub(super) struct Journal {
    file: File,
    /// Length of the complete records.
    length: u64,
    /// Whether the file ends with a part of a record that could not be removed.
    is_broken: bool,
}

/// A grant as the journal contains it, in JSON.
#[derive(Serialize, Deserialize)]
struct Record {
    session: String,
    owner: GrantOwner,
    verifier: String,
    source: IpAddr,
    to: (IpAddr, u8, u16),
    prefix: IpNet,
    service: Option<(u8, u16)>,
    flags: u8,
    /// Number, time of issue, length of a lease, and the end of the last lease.
    renewable: Option<(u32, u64, u32, u64)>,
}

impl Record {
    fn of(grant: &Issuance) -> Self {
        let Issuance { session, owner, verifier, source, to, scope, flags, renewable } = grant;
        Self {
            session: hex::encode(session),
            owner: owner.clone(),
            verifier: verifier.clone(),
            source: *source,
            to: (to.address, to.protocol, to.port),
            prefix: scope.prefix,
            service: scope.service,
            flags: flags.0,
            renewable: renewable.map(|(LeaseTerms { number, issued, lease }, until)| (number, issued, lease, until)),
        }
    }

    fn into_grant(self) -> Option<Issuance> {
        let Self { session, owner, verifier, source, to, prefix, service, flags, renewable } = self;
        let session: TokenHash = hex::decode(session).ok()?.try_into().ok()?;
        let (address, protocol, port) = to;
        let renewable = renewable.map(|(number, issued, lease, until)| (LeaseTerms { number, issued, lease }, until));
        let (to, scope) = (Destination { address, protocol, port }, Scope { prefix, service });
        Some(Issuance { session, owner, verifier, source, to, scope, flags: Flags(flags), renewable })
    }
}

impl Journal {
    /// Opens the journal of a database, and locks it. Returns `None` if another process has locked it.
    fn open(path: &Path) -> Result<Option<Self>> {
        let opened = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path);
        let file = opened.with_context(|| format!("cannot open the journal of grants {}", path.display()))?;
        if file.try_lock().is_err() {
            return Ok(None);
        }
        let length = file.metadata()?.len();
        Ok(Some(Self { file, length, is_broken: false }))
    }

    /// Appends a grant.
    pub(super) fn append(&mut self, grant: &Issuance) -> std::io::Result<()> {
        self.write(&serde_json::to_vec(&Record::of(grant))?)
    }

    /// States that all grants in the file are recorded. Empties the file if it is long.
    pub(super) fn note_recorded(&mut self) {
        if self.length < LONG && !self.is_broken {
            // If this mark cannot be written, the next start looks for the grants in the database once more.
            let _ = self.write(MARK);
        } else if self.file.set_len(0).is_ok() {
            (self.length, self.is_broken) = (0, false);
        }
    }

    /// Reports whether the file is so long that it must be emptied before it takes more grants.
    pub(super) fn is_long(&self) -> bool {
        self.length >= LONG
    }

    fn write(&mut self, text: &[u8]) -> std::io::Result<()> {
        if self.is_broken {
            return Err(std::io::Error::other("an earlier record could not be written as a whole"));
        }
        let record = record(text)?;
        if let Err(error) = self.file.write_all(&record) {
            self.is_broken = self.file.set_len(self.length).is_err();
            return Err(error);
        }
        self.length += record.len() as u64;
        Ok(())
    }

    /// Returns the grants that are not known to be recorded, up to the first record that is not whole.
    fn grants(&mut self) -> Result<Vec<Issuance>> {
        let (mut bytes, mut grants) = (Vec::new(), Vec::new());
        self.file.read_to_end(&mut bytes)?;
        let mut rest = bytes.as_slice();
        while let Some((grant, after)) = next(rest) {
            match grant {
                Some(grant) => grants.push(grant),
                None => grants.clear(),
            }
            rest = after;
        }
        if !rest.is_empty() {
            tracing::warn!(bytes = rest.len(), "ignoring the incomplete record at the end of the journal of grants");
        }
        Ok(grants)
    }
}

fn record(text: &[u8]) -> std::io::Result<Vec<u8>> {
    let length = u32::try_from(text.len()).map_err(|_| ErrorKind::InvalidInput)?;
    Ok([&length.to_be_bytes()[..], &checksum(text), text].concat())
}

/// Returns the content of the first record, and the bytes after it. The content is a grant, or `None` for a mark.
fn next(bytes: &[u8]) -> Option<(Option<Issuance>, &[u8])> {
    let (head, rest) = bytes.split_at_checked(HEAD)?;
    let (length, sum) = head.split_first_chunk()?;
    let (text, rest) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
    if checksum(text) != *sum {
        return None;
    }
    if text == MARK {
        return Some((None, rest));
    }
    let record: Record = serde_json::from_slice(text).ok()?;
    Some((Some(record.into_grant()?), rest))
}

fn checksum(text: &[u8]) -> [u8; HEAD - 4] {
    let digest: [u8; 32] = Sha256::digest(text).into();
    std::array::from_fn(|index| digest[index])
}

/// Returns the path of the journal that belongs to a database.
fn path_of(database: &Path) -> PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push("-grants");
    name.into()
}

/// Returns the records of these grants, as a journal contains them.
#[cfg(test)]
pub(super) fn records(grants: &[Issuance]) -> Vec<u8> {
    let text = |grant| serde_json::to_vec(&Record::of(grant)).unwrap();
    grants.iter().flat_map(|grant| record(&text(grant)).unwrap()).collect()
}

impl Database {
    /// Removes the journal of an earlier database at this path.
    pub(super) fn forget_journal(path: &Path) -> Result<()> {
        let path = path_of(path);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(error).with_context(|| format!("cannot remove {}", path.display()))
            }
            _ => Ok(()),
        }
    }

    /// Records the grants of the journal that the database does not contain, if there is a journal and no server uses
    /// it.
    pub(super) fn replay_journal(&mut self) -> Result<()> {
        let path = path_of(Path::new(self.connection.path().context("the database has no file")?));
        let is_empty = std::fs::metadata(&path).map_or(true, |found| found.len() == 0);
        let journal = if is_empty { None } else { Journal::open(&path)? };
        match journal {
            Some(mut journal) => self.replay(&mut journal),
            None => Ok(()),
        }
    }

    /// Locks the journal for a server that is in no cluster, and records its grants. Returns `None` for a member of a
    /// cluster, and if another process has locked the journal.
    pub(super) fn take_journal(&mut self) -> Result<Option<Journal>> {
        if self.is_member() {
            return Ok(None);
        }
        let path = path_of(Path::new(self.connection.path().context("the database has no file")?));
        let mut journal = Journal::open(&path)?;
        match &mut journal {
            Some(journal) => self.replay(journal)?,
            None => tracing::warn!(
                "another process has locked {}: until the next start, each new grant waits for the database",
                path.display()
            ),
        }
        Ok(journal)
    }

    /// Records one grant, if that is possible.
    fn replay_one(&mut self, grant: &Issuance) {
        if let Err(error) = self.add_journaled([(grant, false)], now()) {
            let handle = Handle(grant.owner.handle);
            tracing::error!(%handle, "a grant of the journal cannot be recorded: {error:#}");
        }
    }

    /// Records the grants of the journal, and empties it.
    fn replay(&mut self, journal: &mut Journal) -> Result<()> {
        let grants = journal.grants()?;
        if !grants.is_empty() {
            match self.add_journaled(grants.iter().map(|grant| (grant, false)), now()) {
                Err(error) if is_about_one(&error) => grants.iter().for_each(|grant| self.replay_one(grant)),
                recorded => drop(recorded.context("cannot record the grants of the journal")?),
            }
        }
        journal.file.set_len(0).context("cannot empty the journal of grants")?;
        journal.length = 0;
        Ok(())
    }
}
