//! Builds, for tests, the library for programs in other languages (`crates/embed`).

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::process;

/// Returns the folder of the crate that the library is built from.
pub fn embed() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/embed")
}

/// Builds the library, and returns the folder that contains it.
pub fn library() -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    process::output(Command::new(cargo).args(["build", "-q", "-p", "embed"]).current_dir(embed()))?;
    let binary = crate::vouchsafe();
    let folder = binary.parent().context("the binary's folder")?.to_owned();
    ensure!(folder.join("libvouchsafe.so").exists(), "no library in {}", folder.display());
    Ok(folder)
}
