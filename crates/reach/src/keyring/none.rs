//! A replacement on systems without kernel keyrings: it stores nothing, so that the caller uses a file.

use crate::Error;
use zeroize::Zeroizing;

/// Stores nothing, and returns `false`: this system has no keyring.
pub fn write(_: &str, _: &str, _: u64) -> bool {
    false
}

/// Returns `None`: this system has no keyring.
pub fn read(_: &str) -> Result<Option<Zeroizing<String>>, Error> {
    Ok(None)
}

/// Does nothing: this system has no keyring.
pub fn remove(_: &str) {}
