//! A daemon's own folder: mode 0700, its files 0600, every write whole or not at all, one daemon at a time.

use anyhow::{Context, Result, bail};
use std::fs::{self, File, OpenOptions, Permissions, TryLockError};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// The folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Folder(PathBuf);

impl Folder {
    /// The folder at `path`, which need not exist.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Where one of its files is.
    pub fn file(&self, name: impl AsRef<Path>) -> PathBuf {
        self.0.join(name)
    }

    /// Makes it, if it is missing.
    pub fn make(&self) -> Result<()> {
        fs::create_dir_all(&self.0).with_context(|| format!("can't make {}", self.0.display()))?;
        Ok(fs::set_permissions(&self.0, Permissions::from_mode(0o700))?)
    }

    /// Takes the lock that keeps a second daemon of this `role` out; held until the file is dropped.
    pub fn lock(&self, role: &str) -> Result<File> {
        let path = self.file("lock");
        let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path);
        let file = file.with_context(|| format!("can't open {}", path.display()))?;
        match file.try_lock() {
            Ok(()) => Ok(file),
            Err(TryLockError::WouldBlock) => bail!("another {role} runs in {}", self.0.display()),
            Err(TryLockError::Error(error)) => bail!("can't lock {}: {error}", path.display()),
        }
    }

    /// What is in a file; `None` if it is not there.
    pub fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
        match fs::read(self.file(name)) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("can't read {}", self.file(name).display())),
        }
    }

    /// Writes a file.
    pub fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let mut file = self.begin()?;
        file.write_all(bytes)?;
        self.put(file, name)
    }

    /// Removes a file, if it is there.
    pub fn remove(&self, name: &str) {
        let _ = fs::remove_file(self.file(name));
    }

    /// A file without a name yet: that it can be made shows that the folder can be written.
    pub fn begin(&self) -> Result<NamedTempFile> {
        NamedTempFile::new_in(&self.0).with_context(|| format!("can't write in {}", self.0.display()))
    }

    /// Gives such a file its name, in the place of one that has it.
    pub fn put(&self, file: NamedTempFile, name: &str) -> Result<()> {
        let path = self.file(name);
        file.as_file().sync_all()?;
        file.persist(&path).with_context(|| format!("can't write {}", path.display()))?;
        Ok(File::open(&self.0)?.sync_all()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn files_are_the_owners_only_and_replaced_in_one_step() {
        let room = tempfile::tempdir().unwrap();
        let folder = Folder::at(room.path().join("svtep"));
        folder.make().unwrap();
        assert_eq!(folder.read("state").unwrap(), None);
        folder.write("state", b"one").unwrap();
        folder.write("state", b"two").unwrap();
        assert_eq!(folder.read("state").unwrap().as_deref(), Some(&b"two"[..]));
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!((mode(folder.path()), mode(&folder.file("state"))), (0o700, 0o600));
        folder.remove("state");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_second_daemon_is_kept_out() {
        let room = tempfile::tempdir().unwrap();
        let folder = Folder::at(room.path());
        let first = folder.lock("verifier").unwrap();
        assert!(folder.lock("verifier").unwrap_err().to_string().starts_with("another verifier runs in"));
        drop(first);
        assert!(folder.lock("verifier").is_ok());
    }
}
