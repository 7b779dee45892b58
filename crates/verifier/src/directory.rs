//! The verifier's directory: enrolment and settings, the replay seed, and the authority's last state. The directory has
//! mode 0700, its files 0600; writes are atomic.

use crate::settings::{self, Options, TEMPLATE};
use anyhow::{Context, Result, bail};
use api::{EpochKeys, VerifierConfig};
use serde::{Deserialize, Serialize};
use shell::folder::Folder;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

/// The verifier's identity at its authority. Secret.
#[derive(Clone)]
pub struct Enrolment {
    /// The authority's URL.
    pub authority: String,
    /// The CA file to trust, relative to the directory; the system's CAs if absent.
    pub ca: Option<PathBuf>,
    /// The verifier's id.
    pub verifier: String,
    /// The bearer token.
    pub token: Zeroizing<String>,
}

/// The authority's last state, with which a start without the authority still protects. Secret.
#[derive(Clone, Serialize, Deserialize)]
pub struct Cache {
    /// The receivers to protect, and the revocations.
    pub config: VerifierConfig,
    /// The epoch keys.
    pub keys: EpochKeys,
}

/// Handle to the verifier's directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directory(Folder);

impl Directory {
    /// Returns a handle to the directory at `path`, which need not exist.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self(Folder::at(path))
    }

    /// Returns the path of the file with enrolment and settings.
    pub fn file(&self) -> PathBuf {
        self.0.file("verifier.toml")
    }

    /// Reads `verifier.toml`; if it is missing, there is no enrolment and every setting has its default.
    pub fn read(&self) -> Result<(Option<Enrolment>, Options)> {
        let path = self.file();
        let text = match fs::read_to_string(&path) {
            Ok(text) => Zeroizing::new(text),
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok((None, Options::default())),
            Err(error) => return Err(error).with_context(|| format!("can't read {}", path.display())),
        };
        let mode = fs::metadata(&path)?.mode();
        if mode & 0o077 != 0 {
            bail!("{} is open to others (mode {:03o}): chmod 600 it", path.display(), mode & 0o777);
        }
        settings::parse(&text).map_err(|faults| anyhow::anyhow!(faults.in_file(&path.display().to_string())))
    }

    /// Enrols at the authority with the one-time code and stores the answer. Settings in the file are kept.
    pub async fn enrol(&self, authority: &str, ca: Option<&Path>, code: &str) -> Result<Enrolment> {
        self.0.make()?;
        let pem = match ca {
            Some(ca) => Some(fs::read(ca).with_context(|| format!("can't read {}", ca.display()))?),
            None => None,
        };
        // Created before the code is used up: if the directory can't be written, the code stays valid.
        let mut file = self.0.begin()?;
        let caller = client::Authority::new(authority, pem.as_deref())?;
        let enrolled = caller.enrol(code).await.context("can't enrol")?;
        let enrolment = Enrolment {
            authority: authority.to_owned(),
            ca: ca.map(|_| "ca.pem".into()),
            verifier: enrolled.verifier,
            token: Zeroizing::new(enrolled.token),
        };
        let before = fs::read_to_string(self.file()).unwrap_or_else(|_| TEMPLATE.to_owned());
        file.write_all(with_enrolment(&before, &enrolment).as_bytes())?;
        if let Some(pem) = &pem {
            self.0.write("ca.pem", pem)?;
        }
        self.0.put(file, "verifier.toml")?;
        Ok(enrolment)
    }

    /// Returns an API client with this enrolment's credentials.
    pub fn caller(&self, enrolment: &Enrolment) -> Result<client::Authority> {
        let pem = match enrolment.ca.as_ref().map(|ca| self.0.file(ca)) {
            Some(ca) => Some(fs::read(&ca).with_context(|| format!("can't read {}", ca.display()))?),
            None => None,
        };
        Ok(client::Authority::new(&enrolment.authority, pem.as_deref())?.with_token(&enrolment.token))
    }

    /// Returns the random seed that picks a token's bucket. It is created once and stored, because tables that outlive
    /// this process depend on it.
    pub fn replay_seed(&self) -> Result<u64> {
        if let Ok(Some(bytes)) = self.0.read("replay_seed")
            && let Ok(bytes) = bytes.try_into()
        {
            return Ok(u64::from_ne_bytes(bytes));
        }
        let seed = getrandom::u64().context("no randomness")?;
        self.0.write("replay_seed", &seed.to_ne_bytes())?;
        Ok(seed)
    }

    /// Returns the authority's last state, if it can be read.
    pub fn cache(&self) -> Option<Cache> {
        serde_json::from_slice(&Zeroizing::new(self.0.read("cache.json").ok()??)).ok()
    }

    /// Stores the authority's state.
    pub fn set_cache(&self, cache: &Cache) -> Result<()> {
        self.0.write("cache.json", &Zeroizing::new(serde_json::to_vec(cache)?))
    }

    /// Takes the lock that excludes a second verifier; it is released when the file is dropped.
    pub fn lock(&self) -> Result<File> {
        self.0.lock("verifier")
    }
}

/// Returns the file's text with a new enrolment at its head; settings and comments are kept.
fn with_enrolment(text: &str, enrolment: &Enrolment) -> Zeroizing<String> {
    const KEYS: [&str; 4] = ["authority", "ca", "verifier", "token"];
    const HEAD: &str = "# The enrolment, written by `vouchsafe verifier enrol`; the token is a secret.";
    let quoted = |text: &str| format!("{text:?}");
    let mut new = Zeroizing::new(format!("{HEAD}\nauthority = {}\n", quoted(&enrolment.authority)));
    if let Some(ca) = &enrolment.ca {
        new.push_str(&format!("ca = {}\n", quoted(&ca.to_string_lossy())));
    }
    new.push_str(&format!("verifier = {}\ntoken = {}\n", quoted(&enrolment.verifier), quoted(&enrolment.token)));
    let is_old = |line: &&str| {
        let key = line.split_once('=').map_or("", |(key, _)| key.trim());
        *line == HEAD || KEYS.contains(&key)
    };
    for line in text.lines().filter(|line| !is_old(line)) {
        new.push_str(line);
        new.push('\n');
    }
    new
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enrolment(token: &str) -> Enrolment {
        let (authority, verifier) = ("https://authority:8443".into(), "edge-1".into());
        Enrolment { authority, ca: Some("ca.pem".into()), verifier, token: Zeroizing::new(token.into()) }
    }

    #[test]
    fn enrolling_again_keeps_settings() {
        let first = with_enrolment(TEMPLATE, &enrolment("one"));
        let edited = first.replacen("#interface", "interface", 1);
        let second = with_enrolment(&edited, &enrolment("two"));
        let (read, options) = settings::parse(&second).expect("valid");
        assert_eq!(read.expect("an enrolment").token.as_str(), "two");
        assert_eq!(options.interface, ["eth0"]);
        assert_eq!(second.len(), edited.len());
    }

    #[test]
    fn the_seed_stays() {
        let room = tempfile::tempdir().expect("room");
        let directory = Directory::at(room.path().join("verifier"));
        directory.0.make().expect("made");
        assert_eq!(directory.replay_seed().expect("seed"), directory.replay_seed().expect("seed"));
        let mode = fs::metadata(room.path().join("verifier/replay_seed")).expect("there").mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}
