//! Builds the product and runs it, or the lab on it.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::run::{cargo, command, command_as_root, run};
use crate::target_dir;

/// Builds the binary `vouchsafe` for the tests and says where it is. Together with all tests, because cargo would build
/// many dependencies twice, once with the features that each selection of crates needs.
pub fn for_tests() -> Result<PathBuf> {
    run(&mut cargo(["build", "--workspace", "--bins", "--tests"]))?;
    Ok(target_dir().join("debug/vouchsafe"))
}

/// The profile in Cargo.toml that builds fastest: for looking at the product, not for shipping or measuring it.
const DEMO: &str = "demo";

/// Builds `vouchsafe` and the crate `package` for a demonstration, then becomes `program ARGS…` as root: its exit code is ours.
pub fn scenario(package: &str, program: &str, args: impl IntoIterator<Item = String>) -> Result<()> {
    run(&mut cargo(["build", "--profile", DEMO, "--package", "vouchsafe", "--package", package]))?;
    let built = target_dir().join(DEMO);
    let program = built.join(program);
    // As an argument of env, because sudo may refuse to keep a variable.
    let mut setting = OsString::from("VOUCHSAFE_BIN=");
    setting.push(built.join("vouchsafe"));
    let error = command_as_root("env").arg(setting).arg(&program).args(args).exec();
    Err(error).with_context(|| format!("could not start {}", program.display()))
}

/// Man pages and shell completions, as the binary itself writes them.
pub fn documents() -> Result<()> {
    let vouchsafe = release()?;
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

/// Builds `vouchsafe` as it is shipped and says where it is.
pub fn release() -> Result<PathBuf> {
    run(&mut cargo(["build", "--release", "--package", "vouchsafe"]))?;
    Ok(target_dir().join("release/vouchsafe"))
}
