//! The clock of one host. All namespaces have the kernel's time of day, so a library that the authority loads shifts
//! the time for this process alone.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use lab::Namespace;
use lab::world::Authority;

/// The clock of a host's authority.
pub struct Clock(File);

impl Clock {
    /// Gives an authority that does not run a clock of its own, which is right at first. `library` is the path that
    /// [`library`] returned.
    pub fn of(authority: &mut Authority, namespace: &Namespace, library: &Path) -> Result<Self> {
        let path = namespace.dir().join("clock");
        let file = File::options().read(true).write(true).create(true).truncate(false).open(&path);
        let this = Self(file.with_context(|| path.display().to_string())?);
        this.set(0)?;
        authority.set_variable("LD_PRELOAD", library);
        authority.set_variable("LAB_CLOCK", &path);
        Ok(this)
    }

    /// Sets the clock to this number of seconds after the right time.
    pub fn set(&self, seconds: i64) -> Result<()> {
        self.0.write_all_at(&seconds.to_ne_bytes(), 0).context("cannot set the clock")
    }
}

/// Compiles the library in `dir`, and returns its path.
pub fn library(dir: &Path) -> Result<PathBuf> {
    let (source, library) = (dir.join("clock.c"), dir.join("clock.so"));
    fs::write(&source, include_str!("clock.c"))?;
    let mut compile = Command::new("cc");
    compile.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O2", "-shared", "-fPIC", "-o"]);
    let output = compile.arg(&library).arg(&source).output().context("cc")?;
    ensure!(output.status.success(), "cc: {}", String::from_utf8_lossy(&output.stderr));
    Ok(library)
}
