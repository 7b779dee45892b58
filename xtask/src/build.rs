//! Builds the product and runs it, or runs the lab on it.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::run::{cargo, command, command_as_root, run};
use crate::target_dir;

/// Builds the binary `vouchsafe` for the tests and returns its path. All tests are built together with it, because
/// cargo would otherwise build many dependencies twice, with the features of each selection of crates.
pub fn for_tests() -> Result<PathBuf> {
    run(&mut cargo(["build", "--workspace", "--bins", "--tests"]))?;
    Ok(target_dir().join("debug/vouchsafe"))
}

/// The profile in Cargo.toml that builds fastest: for trying the product, not for shipping or measuring it.
const DEMO: &str = "demo";

/// Builds `vouchsafe` and the crate `package` for a demonstration, then replaces this process by `program ARGS…` as
/// root, whose exit code becomes ours.
pub fn scenario(package: &str, program: &str, args: impl IntoIterator<Item = String>) -> Result<()> {
    run(&mut cargo([
        "build",
        "--profile",
        DEMO,
        "--no-default-features",
        "--package",
        "vouchsafe",
        "--package",
        package,
    ]))?;
    let built = target_dir().join(DEMO);
    let program = built.join(program);
    // Passed as an argument of env, because sudo may refuse to keep a variable.
    let mut setting = OsString::from("VOUCHSAFE_BIN=");
    setting.push(built.join("vouchsafe"));
    let error = command_as_root("env").arg(setting).arg(&program).args(args).exec();
    Err(error).with_context(|| format!("could not start {}", program.display()))
}

/// Makes `vouchsafe` write its man pages and shell completions.
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

/// Builds `vouchsafe` as it is shipped and returns its path.
pub fn release() -> Result<PathBuf> {
    run(&mut cargo(["build", "--release", "--package", "vouchsafe"]))?;
    Ok(target_dir().join("release/vouchsafe"))
}
