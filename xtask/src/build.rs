//! Builds the product and runs it, or the lab on it.

use std::fs::{self, File};
use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::run::{cargo, command, command_as_root, run};
use crate::target_dir;

/// Cargo's build profiles that are used here.
#[derive(Clone, Copy, PartialEq)]
pub enum Profile {
    /// For tests.
    Debug,
    /// For people and measurements.
    Release,
}

/// Builds the binary `vouchsafe` and says where it is.
pub fn vouchsafe(profile: Profile) -> Result<PathBuf> {
    build(profile, &["vouchsafe"])
}

/// Builds `vouchsafe` and `lab`, then runs `lab SCENARIO ARGS…` as root.
pub fn lab(scenario: &str, args: &[String]) -> Result<()> {
    let vouchsafe = build(Profile::Release, &["vouchsafe", "lab"])?;
    let lab = vouchsafe.with_file_name("lab");
    // As an argument of env, because sudo may refuse to keep a variable.
    let mut setting = std::ffi::OsString::from("VOUCHSAFE_BIN=");
    setting.push(&vouchsafe);
    run(command_as_root("env").arg(setting).arg(lab).arg(scenario).args(args))
}

/// Man pages and shell completions, as the binary itself writes them.
pub fn documents() -> Result<()> {
    let vouchsafe = vouchsafe(Profile::Release)?;
    let (man, completions) = (target_dir().join("gen/man"), target_dir().join("gen/completions"));
    for dir in [&man, &completions] {
        fs::create_dir_all(dir).with_context(|| format!("could not make {}", dir.display()))?;
    }
    run(command(&vouchsafe).arg("man").arg(&man))?;
    for (shell, name) in [("bash", "vouchsafe.bash"), ("zsh", "_vouchsafe"), ("fish", "vouchsafe.fish")] {
        let path = completions.join(name);
        let file = File::create(&path).with_context(|| format!("could not write {}", path.display()))?;
        run(command(&vouchsafe).args(["completions", shell]).stdout(file))?;
    }
    println!("{}\n{}", man.display(), completions.display());
    Ok(())
}

fn build(profile: Profile, packages: &[&str]) -> Result<PathBuf> {
    let mut build = cargo(["build"]);
    for package in packages {
        build.args(["--package", package]);
    }
    if profile == Profile::Release {
        build.arg("--release");
    }
    run(&mut build)?;
    Ok(target_dir().join(if profile == Profile::Release { "release" } else { "debug" }).join("vouchsafe"))
}
