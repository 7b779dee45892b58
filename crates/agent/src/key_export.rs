//! The file to which the keys of sealed tunnels are written for debugging (wire.md §9.14), if the administrator has
//! configured it. Everybody who has this file can read all packets of these tunnels.

use anyhow::{Context, Result, bail};
use nix::fcntl::OFlag;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Permissions that anybody but the owner has.
const OTHERS: u32 = 0o077;
/// The first line that each start of an agent appends.
const HEAD: &str = "# Keys of sealed tunnels, for `vouchsafe inspect --keys`. Everybody who has this file can read what the \
                    tunnels carried: delete it after use.";

/// A file of exported keys.
pub struct KeyFile {
    file: File,
    path: PathBuf,
    has_failed: bool,
}

impl KeyFile {
    /// Opens the file, or creates it for its owner only. Warns in the log that keys are exported.
    ///
    /// # Errors
    ///
    /// Fails if the file can't be opened, is a symbolic link, is not a regular file, or has a second hard link. Also
    /// fails if another user owns the file or can access it.
    pub fn open(path: &Path) -> Result<Self> {
        let mut options = OpenOptions::new();
        // Without O_NOFOLLOW, the owner of the folder could choose where the keys go; without O_NONBLOCK, a FIFO would
        // stop the agent.
        let flags = OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
        let file = options.append(true).create(true).mode(0o600).custom_flags(flags.bits()).open(path);
        let file = file.with_context(|| format!("danger_export_keys: cannot open {}", path.display()))?;
        let about = file.metadata()?;
        if !about.is_file() || about.nlink() != 1 {
            bail!("danger_export_keys: {} must be a regular file with a single hard link", path.display());
        }
        if about.uid() != nix::unistd::geteuid().as_raw() || about.mode() & OTHERS != 0 {
            bail!(
                "danger_export_keys: other users can read {} or the keys in it: delete the file, and the agent makes \
                 a new one",
                path.display()
            );
        }
        tracing::warn!(
            file = %path.display(),
            "DANGER: the keys of all sealed tunnels are written to a file. Everybody who has this file can read all that \
             the tunnels carry, now and from captures later. If you are not debugging, remove danger_export_keys from \
             the agent's settings, restart the agent, and delete the file"
        );
        let mut file = Self { file, path: path.to_owned(), has_failed: false };
        file.write(HEAD);
        Ok(file)
    }

    /// Appends a line. If this fails, logs the first failure.
    pub fn write(&mut self, line: &str) {
        let written = self.file.write_all(format!("{line}\n").as_bytes());
        if let Err(error) = written
            && !std::mem::replace(&mut self.has_failed, true)
        {
            tracing::error!(file = %self.path.display(), "cannot write a key of a sealed tunnel: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn the_file_is_for_its_owner_only_and_grows() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("keys");
        for number in 1..=2 {
            KeyFile::open(&path).expect("a file").write("EARLY 00000001 00");
            let text = fs::read_to_string(&path).expect("text");
            assert_eq!(text.lines().filter(|line| line.starts_with("EARLY")).count(), number);
            assert!(text.lines().all(|line| line.starts_with('#') || line.starts_with("EARLY")));
            assert_eq!(fs::metadata(&path).expect("a file").mode() & 0o777, 0o600);
        }
    }

    #[test]
    fn a_file_that_others_can_read_or_choose_gets_no_keys() {
        let dir = tempfile::tempdir().expect("a folder");
        let [open, link, linked, named] = ["open", "link", "linked", "named"].map(|name| dir.path().join(name));
        fs::write(&open, "").expect("a file");
        fs::set_permissions(&open, fs::Permissions::from_mode(0o640)).expect("a mode");
        symlink(dir.path().join("elsewhere"), &link).expect("a link");
        KeyFile::open(&linked).expect("a file");
        fs::hard_link(&linked, &named).expect("a link");
        for path in [&open, &link, &named] {
            assert!(KeyFile::open(path).is_err(), "{}", path.display());
        }
        assert!(!dir.path().join("elsewhere").exists());
        assert_eq!(fs::read_to_string(&open).expect("text"), "");
    }
}
