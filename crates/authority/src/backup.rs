//! Backup and restore: the directory as one tar file. The database is copied by SQLite while the server runs; what is put
//! back is judged first, and takes no other directory's place.
//!
//! A backup holds every secret there is. It is not encrypted, as its key would have to be kept as safe as it itself: it has
//! mode 0600, or goes to standard output, for a program that encrypts.

use crate::admin::verify_audit;
use crate::storage::{AuditEvent, Database, Head, Operator, Verdict};
use crate::{Directory, now, tls};
use anyhow::{Context, Result, bail, ensure};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// What the server makes for itself.
const LEFT_OUT: &[&str] =
    &["lock", "rotate.lock", "control.sock", "authority.db", "authority.db-wal", "authority.db-shm"];

/// Writes everything to `out`. The server may run.
pub fn write(directory: &Directory, out: impl Write, named: &str) -> Result<()> {
    let mut database = Database::open(&directory.database())?;
    database.audit(&AuditEvent::new("backup").detail(named).by(&Operator::current()), now())?;
    let room = tempfile::Builder::new().prefix(".backup-").tempdir_in(directory.path())?;
    let copy = room.path().join("authority.db");
    database.copy_to(&copy).context("can't copy the database")?;
    let mut archive = tar::Builder::new(out);
    archive.append_path_with_name(&copy, "authority.db")?;
    let entries =
        fs::read_dir(directory.path()).with_context(|| format!("can't read {}", directory.path().display()))?;
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        let hidden = name.as_encoded_bytes().starts_with(b".");
        if hidden || LEFT_OUT.iter().any(|left_out| name == *left_out) {
            continue;
        }
        ensure!(entry.file_type()?.is_file(), "{} is no file: it can't be backed up", entry.path().display());
        archive.append_path_with_name(entry.path(), &name)?;
    }
    archive.into_inner()?.flush()?;
    Ok(())
}

/// Writes everything to a new file of mode 0600, whole or not at all.
pub fn write_file(directory: &Directory, path: &Path) -> Result<()> {
    let path = std::path::absolute(path)?;
    ensure!(!path.exists(), "{} is there already", path.display());
    let parent = path.parent().context("a backup is a file")?;
    let aside = tempfile::NamedTempFile::new_in(parent);
    let aside = aside.with_context(|| format!("can't write in {}", parent.display()))?;
    write(directory, aside.as_file(), &path.display().to_string())?;
    aside.as_file().sync_all()?;
    aside.persist_noclobber(&path).with_context(|| format!("can't make {}", path.display()))?;
    Ok(())
}

/// Makes `directory` of a backup; gives the ends of its audit trails. Sessions end unless they are kept: some may have
/// been ended since the backup was made. Refuses a directory that has anything in it, and a backup that is not whole.
pub fn restore(directory: &Directory, backup: impl Read, named: &str, keep_sessions: bool) -> Result<Vec<Head>> {
    directory.make(|aside| {
        let mut archive = tar::Archive::new(backup);
        for entry in archive.entries().with_context(|| format!("{named} is no backup"))? {
            // The cause would quote what the file begins with, which may be a secret.
            let mut entry = entry.ok().with_context(|| format!("{named} is no backup, or is broken"))?;
            let name = entry.path()?.into_owned();
            let is_plain = name.file_name() == Some(name.as_os_str()) && entry.header().entry_type().is_file();
            ensure!(is_plain, "{named} is no backup: it holds {}", name.display());
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(aside.path().join(name))?;
            std::io::copy(&mut entry, &mut file).with_context(|| format!("{named} is broken"))?;
            file.sync_all()?;
        }
        judge(aside).with_context(|| format!("{named} is not whole; nothing was restored"))?;
        let mut database = Database::open(&aside.database())?;
        let sessions = if keep_sessions { "sessions are kept" } else { "all sessions ended" };
        let event = AuditEvent::new("restored").detail(format!("from {named}; {sessions}")).by(&Operator::current());
        database.restored(&event, keep_sessions, now())?;
        database.audit_heads()
    })
}

/// Whether a server could run in it.
fn judge(directory: &Directory) -> Result<()> {
    directory.config()?;
    directory.read_policy(None)?;
    directory.read_master_keys()?;
    tls::server_config(&directory.certificate(), &directory.certificate_key())?;
    Database::open(&directory.database())?.is_sound()?;
    match verify_audit(directory, &[])? {
        Verdict::Whole(_) => Ok(()),
        Verdict::Broken(what) => bail!("its audit trail is broken: {what}"),
    }
}

/// Opens a backup file.
pub fn open(path: &Path) -> Result<File> {
    File::open(path).with_context(|| format!("can't read {}", path.display()))
}
