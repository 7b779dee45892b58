//! The folder of a tunnel endpoint. It contains the endpoint's enrolment as a verifier of proofs, the authority's
//! latest state, and the endpoint's sessions. All of this is secret.

use anyhow::{Context, Result};
use follower::Enrolment;
use serde::{Deserialize, Serialize};
use shell::folder::Folder;
use std::fs::File;
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

const ENROLMENT: &str = "enrolment.json";

/// A session of a service account.
#[derive(Clone, Serialize, Deserialize)]
pub struct Kept {
    /// URL of the authority that the session belongs to.
    pub authority: String,
    /// URLs of all authorities in the cluster of `authority`; empty if `authority` is in no cluster.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub authorities: Vec<String>,
    /// The bearer token of the session.
    pub token: String,
    /// Start and end of the session, Unix seconds.
    pub lasts: (u64, u64),
}

/// The folder of a tunnel endpoint.
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

    /// Returns the folder itself, for access to the authority's state in it.
    pub fn folder(&self) -> &Folder {
        &self.0
    }

    /// Takes the lock that prevents a second daemon. The lock is released when the returned file is dropped.
    pub fn lock(&self) -> Result<File> {
        self.0.make()?;
        self.0.lock("tunnel endpoint")
    }

    /// Reads the enrolment, if there is one.
    pub fn enrolment(&self) -> Result<Option<Enrolment>> {
        let Some(bytes) = self.0.read(ENROLMENT)?.map(Zeroizing::new) else { return Ok(None) };
        serde_json::from_slice(&bytes).map(Some).with_context(|| {
            format!("{} is damaged: run `vouchsafe svtep enrol --again`", self.0.file(ENROLMENT).display())
        })
    }

    /// Enrols at the authority with the one-time code `code`, and stores the enrolment.
    pub async fn enrol(&self, authority: &str, ca: Option<&Path>, code: &str) -> Result<Enrolment> {
        let encode = |enrolment: &Enrolment| Ok(Zeroizing::new(serde_json::to_vec(enrolment)?));
        follower::enrol(&self.0, ENROLMENT, (authority, ca, code), encode).await
    }

    /// Reads the stored session of a service account. Returns `None` if there is none, or if it can't be read.
    pub fn session(&self, service: &str) -> Option<Kept> {
        serde_json::from_slice(&Zeroizing::new(self.0.read(&session(service)).ok()??)).ok()
    }

    /// Stores the session `kept` of a service account. If it is `None`, removes the stored session.
    pub fn set_session(&self, service: &str, kept: Option<&Kept>) -> Result<()> {
        match kept {
            Some(kept) => self.0.write(&session(service), &Zeroizing::new(serde_json::to_vec(kept)?)),
            None => {
                self.0.remove(&session(service));
                Ok(())
            }
        }
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
        let kept = |token: &str| Kept {
            authority: "https://a".into(),
            authorities: vec!["https://a".into(), "https://b".into()],
            token: token.into(),
            lasts: (1, 2),
        };
        directory.set_session("../blue", Some(&kept("one"))).unwrap();
        directory.set_session("red", Some(&kept("two"))).unwrap();
        let blue = directory.session("../blue").unwrap();
        assert_eq!((blue.token.as_str(), blue.authorities.len()), ("one", 2));
        directory.set_session("../blue", None).unwrap();
        assert!(directory.session("../blue").is_none() && directory.session("red").is_some());
        assert!(directory.enrolment().unwrap().is_none());
    }
}
