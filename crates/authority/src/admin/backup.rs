//! Backup and restore of the authority's directory as one tar file. The server may be running during a backup, because
//! SQLite copies the database consistently. A restore checks the backup before it creates the directory, and never
//! replaces an existing directory.
//!
//! A backup contains every secret of the authority. The backup is not encrypted, because its encryption key would need
//! the same protection as the backup. The command writes the backup to a file of mode 0600, or to standard output for a
//! program that encrypts it.

use crate::admin::verify_audit;
use crate::cluster::{config, contact};
use crate::directory::OF_THE_SERVER;
use crate::lists::Store;
use crate::storage::{AuditEvent, Database, Head, Operator, Verdict};
use crate::{Directory, now, tls};
use anyhow::{Context, Result, bail, ensure};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Files of the directory that a backup leaves out in addition to [`OF_THE_SERVER`]: those that make the authority a
/// member of a cluster. A restored authority is in no cluster, because an old copy must not continue as a member. A
/// copy of the database is added separately.
const LEFT_OUT: &[&str] = &[config::FILE, config::KEY_FILE, contact::FILE];

/// Writes a backup of `directory` to `out`, whether or not the server is running. The audit trail records the backup
/// under the name `named`.
///
/// # Errors
/// Fails if a file of the directory cannot be read, the directory contains an unexpected entry that is not a regular
/// file, or `out` cannot be written.
pub fn write(directory: &Directory, out: impl Write, named: &str) -> Result<()> {
    let mut database = directory.open_database()?;
    database.audit(&AuditEvent::new("backup").detail(named).by(&Operator::current()), now())?;
    let room = tempfile::Builder::new().prefix(".backup-").tempdir_in(directory.path())?;
    let copy = room.path().join("authority.db");
    database.copy_to(&copy).context("cannot copy the database")?;
    let mut archive = tar::Builder::new(out);
    archive.append_path_with_name(&copy, "authority.db")?;
    if let Some(lists) = Store::open(directory)? {
        let copy = room.path().join("lists.db");
        lists.copy_to(&copy).context("cannot copy the lists")?;
        archive.append_path_with_name(&copy, "lists.db")?;
    }
    let entries =
        fs::read_dir(directory.path()).with_context(|| format!("cannot read {}", directory.path().display()))?;
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        let hidden = name.as_encoded_bytes().starts_with(b".");
        if hidden || OF_THE_SERVER.iter().chain(LEFT_OUT).any(|left_out| name == *left_out) {
            continue;
        }
        ensure!(
            entry.file_type()?.is_file(),
            "cannot back up {}: it is not a file. Move it out of the authority's directory",
            entry.path().display()
        );
        archive.append_path_with_name(entry.path(), &name)?;
    }
    archive.into_inner()?.flush()?;
    Ok(())
}

/// Writes a backup to a new file of mode 0600, completely or not at all.
///
/// # Errors
/// Fails if the file exists already or cannot be written, or [`write()`] fails.
pub fn write_file(directory: &Directory, path: &Path) -> Result<()> {
    let path = std::path::absolute(path)?;
    ensure!(!path.exists(), "{} already exists: name a new file", path.display());
    let parent = path.parent().context("the backup's path must name a file")?;
    let aside = tempfile::NamedTempFile::new_in(parent);
    let aside = aside.with_context(|| format!("cannot write to {}", parent.display()))?;
    write(directory, aside.as_file(), &path.display().to_string())?;
    aside.as_file().sync_all()?;
    aside.persist_noclobber(&path).with_context(|| format!("cannot create {}", path.display()))?;
    Ok(())
}

/// Restores `directory` from a backup and returns the heads of its audit trails. Ends all sessions unless
/// `keep_sessions` is set, because some of them may have been ended after the backup was made. `named` is the backup's
/// name in error messages and in the audit trail.
///
/// # Errors
/// Fails if the directory exists and is not empty, or the backup is damaged or incomplete. In each case nothing is
/// restored.
pub fn restore(directory: &Directory, backup: impl Read, named: &str, keep_sessions: bool) -> Result<Vec<Head>> {
    directory.make(|aside| {
        let mut archive = tar::Archive::new(backup);
        for entry in archive.entries().with_context(|| format!("{named} is not a backup"))? {
            // The tar error is dropped, because it would quote the beginning of the file, which may be a secret.
            let mut entry = entry.ok().with_context(|| format!("{named} is not a backup, or is damaged"))?;
            let name = entry.path()?.into_owned();
            let is_plain = name.file_name() == Some(name.as_os_str()) && entry.header().entry_type().is_file();
            ensure!(is_plain, "{named} is not a backup: it contains {}", name.display());
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(aside.path().join(name))?;
            std::io::copy(&mut entry, &mut file).with_context(|| format!("{named} is damaged"))?;
            file.sync_all()?;
        }
        check(aside).with_context(|| format!("{named} is incomplete; nothing was restored"))?;
        let mut database = Database::open(&aside.database())?;
        let sessions = if keep_sessions { "sessions are kept" } else { "all sessions ended" };
        let event = AuditEvent::new("restored").detail(format!("from {named}; {sessions}")).by(&Operator::current());
        database.restored(&event, keep_sessions, now())?;
        database.audit_heads()
    })
}

/// Checks that a server could run in this directory.
fn check(directory: &Directory) -> Result<()> {
    directory.settings()?;
    directory.read_policy(None)?;
    directory.read_master_keys()?;
    tls::server_config(&directory.certificate(), &directory.certificate_key())?;
    Database::open(&directory.database())?.is_sound()?;
    match verify_audit(directory, &[])? {
        Verdict::Whole(_) => Ok(()),
        Verdict::Broken(what) => bail!("its audit trail failed verification: {what}"),
    }
}

/// Opens a backup file for reading.
///
/// # Errors
/// Fails if the file cannot be opened.
pub fn open(path: &Path) -> Result<File> {
    File::open(path).with_context(|| format!("cannot read {}", path.display()))
}
