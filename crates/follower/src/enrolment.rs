//! Enrolment at an authority.

use crate::State;
use anyhow::{Context, Result};
use client::{Authority, Error};
use serde::{Deserialize, Serialize};
use shell::folder::Folder;
use std::fs;
use std::io::Write;
use std::path::Path;
use zeroize::{Zeroize, Zeroizing};

/// A role's identity at its authority. Secret.
#[derive(Clone, Serialize, Deserialize)]
pub struct Enrolment {
    /// The authority's URL (`https://…`), or the name for which DNS lists the authority's servers.
    pub authority: String,
    /// The certificates to trust for the authority, PEM; `None` for the system's.
    pub ca: Option<String>,
    /// The id under which the authority knows the role.
    pub verifier: String,
    /// The bearer token with which the role calls the authority.
    pub token: String,
}

impl Enrolment {
    /// Returns a client of the authority. The client sends this enrolment's token.
    ///
    /// # Errors
    ///
    /// Fails if the URL is malformed, or if there are no certificates to trust.
    pub fn caller(&self) -> Result<Authority, Error> {
        let ca = self.ca.as_deref().map(str::as_bytes);
        Ok(Authority::new(&self.authority, ca)?.with_token(&self.token))
    }

    /// Reads the certificates to trust for the authority, PEM, from a file.
    ///
    /// # Errors
    ///
    /// Fails if the file can't be read.
    pub fn read_ca(path: &Path) -> Result<String> {
        let pem = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        // Only comments between certificates may be other than ASCII.
        Ok(String::from_utf8_lossy(&pem).into_owned())
    }
}

impl Drop for Enrolment {
    fn drop(&mut self) {
        self.token.zeroize();
    }
}

/// Enrols at an authority. The arguments are the authority's URL or name, a file with the certificates to trust for the
/// authority, and the one-time code. Stores the enrolment in the folder under the name `file`, in the form that
/// `encode` returns. Removes the state of an earlier enrolment.
///
/// # Errors
///
/// Fails if the folder can't be written, if the URL is malformed, if the certificates can't be read, or if the
/// authority can't be reached or does not accept the code. Also fails if `encode` fails.
pub async fn enrol(
    folder: &Folder,
    file: &str,
    (authority, ca, code): (&str, Option<&Path>, &str),
    encode: impl FnOnce(&Enrolment) -> Result<Zeroizing<Vec<u8>>>,
) -> Result<Enrolment> {
    folder.make()?;
    let ca = ca.map(Enrolment::read_ca).transpose()?;
    // Created before the code is used up: if the folder can't be written, the code stays valid.
    let mut written = folder.begin()?;
    let caller = Authority::new(authority, ca.as_deref().map(str::as_bytes))?;
    let enrolled = caller.enrol(code).await.context("cannot enrol")?;
    let (verifier, token) = (enrolled.verifier, enrolled.token);
    let enrolment = Enrolment { authority: authority.to_owned(), ca, verifier, token };
    written.write_all(&encode(&enrolment)?)?;
    folder.put(written, file)?;
    // Another authority may know another role by the same id.
    State::remove(folder);
    Ok(enrolment)
}
