//! Runs other programs in the workspace root, with errors that name the failed command.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// Returns the path of the workspace root.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is a folder of the workspace")
}

/// Prepares a command that runs `program` in the workspace root.
pub fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.current_dir(root());
    command
}

/// Prepares a command that runs cargo, without the environment variables that cargo set for this xtask.
pub fn cargo<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> Command {
    let mut cargo = command("cargo");
    forget_outer_cargo(cargo.args(args));
    cargo
}

/// Removes the environment variables of the outer `cargo run` of this xtask.
pub fn forget_outer_cargo(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        let inherited =
            name.to_str().is_some_and(|name| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_"));
        if inherited || name == "RUSTUP_TOOLCHAIN" || name == "CARGO" {
            command.env_remove(name);
        }
    }
}

/// Prepares a command that runs `program` as root: directly if this process is root, or else under sudo.
pub fn command_as_root(program: impl AsRef<OsStr>) -> Command {
    if is_root() {
        return command(program);
    }
    let mut sudo = command("sudo");
    sudo.arg("-E").arg(program);
    sudo
}

/// Reports whether this process runs as root.
pub fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|this| std::os::unix::fs::MetadataExt::uid(&this) == 0)
}

/// Runs a command to its end. Fails if the command fails.
pub fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("could not start {}", shown(command)))?;
    match status.success() {
        true => Ok(()),
        false => bail!("{} failed: {status}", shown(command)),
    }
}

/// Runs a command to its end and returns its standard output. Fails if the command fails.
pub fn output(command: &mut Command) -> Result<String> {
    let output =
        command.stderr(Stdio::inherit()).output().with_context(|| format!("could not start {}", shown(command)))?;
    if !output.status.success() {
        bail!("{} failed: {}", shown(command), output.status);
    }
    String::from_utf8(output.stdout).with_context(|| format!("{} printed text that is not UTF-8", shown(command)))
}

/// Reports whether a command can be run and succeeds. Prints nothing.
pub fn succeeds(command: &mut Command) -> bool {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}
