//! The state of each user that is kept across restarts: the session and the consent rules. There is one file for each
//! user, which only root can read.

use anyhow::Result;
use engine::agent::ConsentRules;
use reach::kept::KeptSession;
use serde::{Deserialize, Serialize};
use shell::folder::Folder;
use std::collections::BTreeMap;
use std::fs::File;
use std::path::PathBuf;
use zeroize::Zeroizing;

/// The stored state of one user. Has no `Debug` because it contains a secret.
#[derive(Clone, Default, Serialize, Deserialize)]
pub struct Kept {
    /// The user's consent rules, which are kept after the session has ended.
    #[serde(default)]
    pub rules: ConsentRules,
    /// The session, if there is one.
    #[serde(default)]
    pub session: Option<KeptSession>,
}

/// The folder with the states of all users. It is locked, so that no other daemon uses it.
pub struct Sessions {
    folder: Folder,
    _lock: File,
}

impl Sessions {
    /// Opens the folder, creating it if it is missing, and locks it against other daemons.
    ///
    /// # Errors
    ///
    /// Fails if the folder can't be made, or another daemon has locked it.
    pub fn open(path: PathBuf) -> Result<Self> {
        let folder = Folder::at(path);
        folder.make()?;
        let _lock = folder.lock("agent")?;
        Ok(Self { folder, _lock })
    }

    /// Returns the folder, for other files of the daemon.
    #[cfg(feature = "seal")]
    pub fn folder(&self) -> &Folder {
        &self.folder
    }

    /// Reads all stored states, by user id. Files that can't be read are left out.
    ///
    /// # Errors
    ///
    /// Fails if the folder can't be read.
    pub fn load(&self) -> Result<BTreeMap<u32, Kept>> {
        let mut all = BTreeMap::new();
        for name in self.folder.names()? {
            let Some(uid) = name.strip_suffix(".json").and_then(|uid| uid.parse().ok()) else { continue };
            let Some(text) = self.folder.read(&name)?.map(Zeroizing::new) else { continue };
            match serde_json::from_slice(&text) {
                Ok(kept) => drop(all.insert(uid, kept)),
                // A broken file must not affect other users.
                Err(error) => {
                    let file = self.folder.file(&name);
                    let file = file.display();
                    tracing::error!(%file, "cannot read the saved session, so its user has to log in again: {error}");
                }
            }
        }
        Ok(all)
    }

    /// Writes a user's state. The user's file is replaced atomically.
    ///
    /// # Errors
    ///
    /// Fails if the file can't be written.
    pub fn save(&self, uid: u32, kept: &Kept) -> Result<()> {
        self.folder.write(&format!("{uid}.json"), &Zeroizing::new(serde_json::to_vec(kept)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_kept_per_user_and_a_broken_one_is_left_out() {
        let room = tempfile::tempdir().unwrap();
        let path = room.path().join("agent");
        let sessions = Sessions::open(path.clone()).unwrap();
        assert!(Sessions::open(path.clone()).is_err(), "locked");
        sessions.save(1000, &Kept::default()).unwrap();
        std::fs::write(path.join("1001.json"), "{").unwrap();
        std::fs::write(path.join("1002.new"), "{}").unwrap();
        assert_eq!(sessions.load().unwrap().into_keys().collect::<Vec<_>>(), [1000]);
    }
}
