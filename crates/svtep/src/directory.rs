//! The endpoint's folder: its enrolment as a verifier of proofs, the authority's latest state, and its sessions. All of
//! it is secret.

use anyhow::{Context, Result};
use api::{EpochKeys, VerifierConfig};
use client::Authority;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use shell::folder::Folder;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

const ENROLMENT: &str = "enrolment.json";
const CACHE: &str = "cache.json";

/// Enrolment of this endpoint at its authority as a verifier.
#[derive(Clone, Serialize, Deserialize)]
pub struct Enrolment {
    /// The authority's URL.
    pub authority: String,
    /// The certificates to trust for the authority, PEM; without any, the system's.
    pub ca: Option<String>,
    /// The verifier's id.
    pub verifier: String,
    token: String,
}

/// The authority's latest state, so that an endpoint that starts without the authority still delivers.
#[derive(Clone, Serialize, Deserialize)]
pub struct Cache {
    /// The configuration: time limits and withdrawn consent.
    pub config: VerifierConfig,
    /// The keys.
    pub keys: EpochKeys,
}

/// A session of a service account.
#[derive(Clone, Serialize, Deserialize)]
pub struct Kept {
    /// URL of the authority that the session belongs to.
    pub authority: String,
    /// The bearer token.
    pub token: String,
    /// Start and end of the session, Unix seconds.
    pub lasts: (u64, u64),
}

/// The folder.
#[derive(Clone, Debug)]
pub struct Directory(Folder);

impl Directory {
    /// Returns the folder at `path`, which need not exist.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self(Folder::at(path))
    }

    /// Returns the folder's path.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Takes the lock that prevents a second daemon; held until the file is dropped.
    pub fn lock(&self) -> Result<File> {
        self.0.make()?;
        self.0.lock("tunnel endpoint")
    }

    /// Reads the enrolment, if there is one.
    pub fn enrolment(&self) -> Result<Option<Enrolment>> {
        let Some(bytes) = self.0.read(ENROLMENT)?.map(Zeroizing::new) else { return Ok(None) };
        serde_json::from_slice(&bytes)
            .map(Some)
            .with_context(|| format!("{} is broken: `vouchsafe svtep enrol --again`", self.0.file(ENROLMENT).display()))
    }

    /// Enrols at the authority with the one-time code, and stores the enrolment.
    pub async fn enrol(&self, authority: &str, ca: Option<&Path>, code: &str) -> Result<Enrolment> {
        self.0.make()?;
        let read =
            |path: &Path| std::fs::read_to_string(path).with_context(|| format!("can't read {}", path.display()));
        let ca = ca.map(read).transpose()?;
        // Create the file before the code is used up: a folder that can't be written then costs no code.
        let mut file = self.0.begin()?;
        let caller = Authority::new(authority, ca.as_deref().map(str::as_bytes))?;
        let enrolled = caller.enrol(code).await.context("can't enrol")?;
        let (authority, verifier, token) = (authority.to_owned(), enrolled.verifier, enrolled.token);
        let enrolment = Enrolment { authority, ca, verifier, token };
        file.write_all(&Zeroizing::new(serde_json::to_vec(&enrolment)?))?;
        self.0.put(file, ENROLMENT)?;
        self.0.remove(CACHE);
        Ok(enrolment)
    }

    /// Reads the authority's latest state for this verifier, if there is a readable one.
    pub fn cache(&self, verifier: &str) -> Option<Cache> {
        self.read::<Cache>(CACHE).filter(|cache| cache.config.verifier == verifier)
    }

    /// Stores the authority's latest state.
    pub fn set_cache(&self, cache: &Cache) -> Result<()> {
        self.0.write(CACHE, &Zeroizing::new(serde_json::to_vec(cache)?))
    }

    /// Reads the stored session of a service account.
    pub fn session(&self, service: &str) -> Option<Kept> {
        self.read(&session(service))
    }

    /// Stores the session, or removes it.
    pub fn set_session(&self, service: &str, kept: Option<&Kept>) -> Result<()> {
        match kept {
            Some(kept) => self.0.write(&session(service), &Zeroizing::new(serde_json::to_vec(kept)?)),
            None => {
                self.0.remove(&session(service));
                Ok(())
            }
        }
    }

    fn read<T: DeserializeOwned>(&self, name: &str) -> Option<T> {
        serde_json::from_slice(&Zeroizing::new(self.0.read(name).ok()??)).ok()
    }
}

impl Enrolment {
    /// Returns a client of the authority with this enrolment's token.
    pub fn caller(&self) -> Result<Authority> {
        let ca = self.ca.as_deref().map(str::as_bytes);
        Ok(Authority::new(&self.authority, ca)?.with_token(&self.token))
    }
}

/// Returns the file name of a service's session. The name is encoded because it may contain characters that paths may
/// not.
fn session(service: &str) -> String {
    format!("session-{}.json", hex::encode(service))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_are_kept_apart_and_forgotten() {
        let room = tempfile::tempdir().unwrap();
        let directory = Directory::at(room.path().join("svtep"));
        let _lock = directory.lock().unwrap();
        let kept = |token: &str| Kept { authority: "https://a".into(), token: token.into(), lasts: (1, 2) };
        directory.set_session("../blue", Some(&kept("one"))).unwrap();
        directory.set_session("red", Some(&kept("two"))).unwrap();
        assert_eq!(directory.session("../blue").unwrap().token, "one");
        directory.set_session("../blue", None).unwrap();
        assert!(directory.session("../blue").is_none() && directory.session("red").is_some());
        assert!(directory.enrolment().unwrap().is_none());
    }
}
