//! What is kept per user across restarts: the session and the person's rules, one file each, for root's eyes only.

use anyhow::{Context, Result};
use engine::agent::ConsentRules;
use engine::api::Receiver;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::PathBuf;

/// What is kept of one user. No `Debug`: it holds a secret.
#[derive(Clone, Default, Serialize, Deserialize)]
pub struct Kept {
    /// The person's rules; they outlive sessions.
    #[serde(default)]
    pub rules: ConsentRules,
    /// The session, while there is one.
    #[serde(default)]
    pub session: Option<KeptSession>,
}

/// A session.
#[derive(Clone, Serialize, Deserialize)]
pub struct KeptSession {
    /// The authority's address.
    pub authority: String,
    /// The certificates it is trusted by, PEM; the system's where there are none.
    pub ca: Option<String>,
    /// The bearer token. Secret.
    pub token: String,
    /// The person's name.
    pub person: String,
    /// The device's name.
    pub device: String,
    /// When the session ends, Unix seconds.
    pub expires: u64,
    /// What the person could reach when last asked.
    #[serde(default)]
    pub receivers: Vec<Receiver>,
    /// How many seconds the authority's clock was ahead of this machine's.
    #[serde(default)]
    pub skew: i32,
}

/// The folder of all users' files.
pub struct Folder {
    path: PathBuf,
    _lock: nix::fcntl::Flock<File>,
}

impl Folder {
    /// Opens the folder, making it if it is missing; one daemon at a time.
    pub fn open(path: PathBuf) -> Result<Self> {
        let make = || {
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent)?;
            }
            // Only its own: others have theirs beside it.
            match fs::DirBuilder::new().mode(0o700).create(&path) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
                made => made,
            }
        };
        make().with_context(|| format!("cannot make {}", path.display()))?;
        let lock = OpenOptions::new().create(true).append(true).mode(0o600).open(path.join("lock"));
        let lock = lock.with_context(|| format!("cannot write in {}", path.display()))?;
        let lock = nix::fcntl::Flock::lock(lock, nix::fcntl::FlockArg::LockExclusiveNonblock);
        let lock = lock.map_err(|(_, error)| error);
        let _lock = lock.with_context(|| format!("another agent works in {}", path.display()))?;
        Ok(Self { path, _lock })
    }

    /// Everything kept, by user id.
    pub fn load(&self) -> Result<BTreeMap<u32, Kept>> {
        let mut all = BTreeMap::new();
        for entry in fs::read_dir(&self.path).with_context(|| format!("cannot read {}", self.path.display()))? {
            let path = entry?.path();
            let uid = path.file_name().and_then(|name| name.to_str()?.strip_suffix(".json")?.parse().ok());
            let Some(uid) = uid else { continue };
            let text = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
            match serde_json::from_slice(&text) {
                Ok(kept) => drop(all.insert(uid, kept)),
                // One broken file must not keep everybody else offline.
                Err(error) => tracing::error!(file = %path.display(), "can't be read, its user has to log in: {error}"),
            }
        }
        Ok(all)
    }

    /// Keeps what is to be kept of a user; the file is replaced in one step.
    pub fn save(&self, uid: u32, kept: &Kept) -> Result<()> {
        let (path, new) = (self.path.join(format!("{uid}.json")), self.path.join(format!("{uid}.new")));
        let text = serde_json::to_vec(kept)?;
        let write = || {
            let mut file = OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&new)?;
            file.write_all(&text)?;
            file.sync_all()?;
            fs::rename(&new, &path)
        };
        write().with_context(|| format!("cannot write {}", path.display()))
    }
}
