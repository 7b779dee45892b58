//! Builds, for tests, the library for programs in other languages (`crates/embed`).

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::process;

/// Returns the folder of the crate that the library is built from.
pub fn embed() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/embed")
}

/// Returns the folder that contains the library. `$VOUCHSAFE_LIB` names the library if it has been built already, as
/// `cargo xtask test` does; otherwise this builds it.
pub fn library() -> Result<PathBuf> {
    let library = match std::env::var_os("VOUCHSAFE_LIB") {
        Some(path) => PathBuf::from(path),
        None => build()?,
    };
    ensure!(library.exists(), "there is no library {}", library.display());
    Ok(library.parent().context("the library's folder")?.to_owned())
}

/// Builds the library for tests that cargo started, and returns its path.
fn build() -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    process::output(Command::new(cargo).args(["build", "-q", "-p", "embed"]).current_dir(embed()))?;
    Ok(crate::vouchsafe().with_file_name("libvouchsafe.so"))
}
