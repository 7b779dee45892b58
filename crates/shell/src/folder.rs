//! A daemon's own folder. The folder has mode 0700 and its files mode 0600. Writes are atomic, and only one daemon at a
//! time can use the folder.

use anyhow::{Context, Result, bail};
use std::fs::{self, File, OpenOptions, Permissions, TryLockError};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// A folder that belongs to one daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Folder(PathBuf);

impl Folder {
    /// Returns the folder at `path`, which need not exist.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// Returns the path of the folder.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Returns the path of one of the folder's files.
    pub fn file(&self, name: impl AsRef<Path>) -> PathBuf {
        self.0.join(name)
    }

    /// Creates the folder and its parents if they are missing, and sets the folder's mode to 0700.
    ///
    /// # Errors
    ///
    /// Fails if the folder can't be created, or if its mode can't be set.
    pub fn make(&self) -> Result<()> {
        let make = || {
            if let Some(parent) = self.0.parent() {
                fs::create_dir_all(parent)?;
            }
            // Other programs may use the parent, so only this folder is private.
            match fs::DirBuilder::new().mode(0o700).create(&self.0) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists && self.0.is_dir() => {
                    fs::set_permissions(&self.0, Permissions::from_mode(0o700))
                }
                made => made,
            }
        };
        make().with_context(|| format!("cannot create {}", self.0.display()))
    }

    /// Takes the lock that prevents a second daemon of this `role` from using the folder. Dropping the returned file
    /// releases the lock.
    ///
    /// # Errors
    ///
    /// Fails if another daemon holds the lock, or if the lock file can't be opened.
    pub fn lock(&self, role: &str) -> Result<File> {
        let path = self.file("lock");
        let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path);
        let file = file.with_context(|| format!("cannot open {}", path.display()))?;
        match file.try_lock() {
            Ok(()) => Ok(file),
            Err(TryLockError::WouldBlock) => bail!("another {role} is running in {}", self.0.display()),
            Err(TryLockError::Error(error)) => bail!("cannot lock {}: {error}", path.display()),
        }
    }

    /// Returns the names of the folder's files.
    ///
    /// # Errors
    ///
    /// Fails if the folder can't be read.
    pub fn names(&self) -> Result<Vec<String>> {
        let entries = fs::read_dir(&self.0).with_context(|| format!("cannot read {}", self.0.display()))?;
        let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
        names.collect()
    }

    /// Returns the contents of a file; `None` if it does not exist.
    ///
    /// # Errors
    ///
    /// Fails if the file exists and can't be read.
    pub fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
        match fs::read(self.file(name)) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("cannot read {}", self.file(name).display())),
        }
    }

    /// Writes a file atomically.
    ///
    /// # Errors
    ///
    /// Fails if the folder can't be written.
    pub fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let mut file = self.begin()?;
        file.write_all(bytes)?;
        self.put(file, name)
    }

    /// Removes a file. Does nothing if the file does not exist or cannot be removed.
    pub fn remove(&self, name: &str) {
        let _ = fs::remove_file(self.file(name));
    }

    /// Creates a temporary file in the folder, for [`Self::put`]. Success shows that the folder is writable.
    ///
    /// # Errors
    ///
    /// Fails if the folder can't be written.
    pub fn begin(&self) -> Result<NamedTempFile> {
        NamedTempFile::new_in(&self.0).with_context(|| format!("cannot write to {}", self.0.display()))
    }

    /// Syncs a file from [`Self::begin`] to disk and renames it to `name`, replacing an existing file.
    ///
    /// # Errors
    ///
    /// Fails if the file can't be synced or renamed.
    pub fn put(&self, file: NamedTempFile, name: &str) -> Result<()> {
        let path = self.file(name);
        file.as_file().sync_all()?;
        file.persist(&path).with_context(|| format!("cannot write {}", path.display()))?;
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
        assert_eq!(folder.names().unwrap(), ["state"]);
        folder.remove("state");
        assert_eq!(folder.names().unwrap(), [""; 0]);
    }

    #[test]
    fn a_folder_that_others_can_enter_is_closed_to_them_and_its_parents_are_not() {
        let room = tempfile::tempdir().unwrap();
        let folder = Folder::at(room.path().join("vouchsafe/agent"));
        fs::create_dir_all(folder.path()).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        let parent = room.path().join("vouchsafe");
        for path in [folder.path(), &parent] {
            fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
        }
        folder.make().unwrap();
        assert_eq!((mode(folder.path()), mode(&parent)), (0o700, 0o755));
    }

    #[test]
    fn a_second_daemon_is_kept_out() {
        let room = tempfile::tempdir().unwrap();
        let folder = Folder::at(room.path());
        let first = folder.lock("verifier").unwrap();
        assert!(folder.lock("verifier").unwrap_err().to_string().starts_with("another verifier is running in"));
        drop(first);
        assert!(folder.lock("verifier").is_ok());
    }
}
