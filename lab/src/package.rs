//! Packages of the program under test.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::process;

/// Makes the package `part` of the program under test in `out` with `cargo xtask package`, and returns its path.
pub fn package(part: &str, revision: u32, out: &Path) -> Result<PathBuf> {
    package_of(&crate::vouchsafe(), &[part, "--revision", &revision.to_string()], out)
}

/// Makes a package of another program, with `words` as further arguments of `cargo xtask package`.
pub fn package_of(program: &Path, words: &[&str], out: &Path) -> Result<PathBuf> {
    let xtask = crate::built().context("cannot find the folder into which cargo built this program")?.join("xtask");
    ensure!(xtask.exists(), "no {}: run `cargo build -p xtask`", xtask.display());
    let mut make = Command::new(xtask);
    make.arg("package").args(words).args(["--quick", "--binary"]).arg(program).arg("--out").arg(out);
    let text = process::output(&mut make)?;
    let path = text.lines().last().and_then(|line| line.split_once(' '));
    Ok(path.with_context(|| format!("xtask printed {text:?}"))?.1.into())
}
