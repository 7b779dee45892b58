//! Builds the program so that the same source gives the same bytes on every machine, for every user and in every
//! folder.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::{Arch, foreign};
use crate::run::{command, forget_outer_cargo, is_root, output, run};

/// Script that runs a command in a mount namespace, with source, dependencies and results at fixed paths. Compilers
/// write these paths into the program.
const AT_FIXED_PATHS: &str = r#"
mount -t tmpfs -o mode=755 none /mnt
mkdir /mnt/source /mnt/cargo /mnt/target
mount --bind "$SOURCE" /mnt/source
mount --bind "$CARGO" /mnt/cargo
mount --bind "$TARGET" /mnt/target
if [ -n "$FOREIGN" ]; then
    mkdir /mnt/foreign
    mount --bind "$FOREIGN" /mnt/foreign
fi
cd /mnt/source
export CARGO_HOME=/mnt/cargo CARGO_TARGET_DIR=/mnt/target
exec "$@"
"#;

/// A build of the program.
pub struct Build<'a> {
    /// The checkout.
    pub source: &'a Path,
    /// The folder for results.
    pub target: &'a Path,
    pub arch: Arch,
    /// Cargo's profile.
    pub profile: &'a str,
    /// Unix time that compilers use in place of the present time.
    pub epoch: &'a str,
}

/// A library that a program loads.
pub struct Library {
    /// The path under which the program finds the library.
    pub path: PathBuf,
    /// The library's file on this machine.
    pub file: PathBuf,
}

/// Builds `vouchsafe` with all its features, and returns its path.
pub fn build(build: &Build) -> Result<PathBuf> {
    let &Build { source, target, arch, profile, epoch } = build;
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let registry = std::env::var_os("CARGO_HOME").map_or_else(|| home.join(".cargo"), PathBuf::from);
    fs::create_dir_all(target).with_context(|| format!("could not make {}", target.display()))?;
    let mut unshare = command("unshare");
    forget_outer_cargo(unshare.arg("--mount"));
    if !is_root() {
        unshare.arg("--map-root-user");
    }
    unshare.args(["sh", "-ec", AT_FIXED_PATHS, "sh", "cargo", "build", "--profile", profile, "--locked"]);
    unshare.args(["--package", "vouchsafe", "--target", arch.rust()]);
    unshare.env("SOURCE", source).env("CARGO", &registry).env("TARGET", target).env("FOREIGN", "");
    unshare.env("SOURCE_DATE_EPOCH", epoch).env_remove("RUSTFLAGS").env("CARGO_INCREMENTAL", "0");
    if !arch.is_native() {
        unshare.env("FOREIGN", foreign::parts(arch)?).envs(foreign::settings(arch)?.iter().copied());
    }
    run(&mut unshare).with_context(|| {
        let needs = match is_root() {
            true => "",
            false => ", and without root the kernel has to permit user namespaces, which Ubuntu restricts",
        };
        format!("could not build for {0}: the target has to be installed (`rustup target add {0}`){needs}", arch.rust())
    })?;
    Ok(target.join(arch.rust()).join(profile).join("vouchsafe"))
}

/// Copies a program without its symbols. Fails if it is for another processor.
pub fn strip(arch: Arch, from: &Path, to: &Path) -> Result<()> {
    let program = fs::read(from).with_context(|| from.display().to_string())?;
    let machine = program.get(18..20).map(|bytes| u16::from_le_bytes([bytes[0], bytes[1]]));
    let fits = program.starts_with(b"\x7fELF") && machine == Some(arch.elf());
    ensure!(fits, "{} is no program for {}", from.display(), arch.debian());
    let strip = if arch.is_native() { "strip".to_owned() } else { format!("{}-strip", gnu(arch)) };
    run(command(strip).arg("-o").arg(to).arg(from))
}

/// Returns the processor's prefix in the names of GNU's tools.
fn gnu(arch: Arch) -> String {
    arch.rust().replace("-unknown", "")
}

/// Prepares a command that runs a program for `arch`, under an emulator where necessary.
pub fn command_for(arch: Arch, program: &Path) -> Result<Command> {
    if arch.is_native() {
        return Ok(command(program));
    }
    let mut emulator = foreign::emulator(arch)?;
    emulator.arg(program);
    Ok(emulator)
}

/// Returns the libraries and the loader of a program.
pub fn libraries(arch: Arch, program: &Path) -> Result<Vec<Library>> {
    let (mut list, root) = match arch.is_native() {
        true => (command("ldd"), None),
        false => (foreign::emulator(arch)?, Some(foreign::parts(arch)?.join("root"))),
    };
    if root.is_some() {
        // The loader prints the list in place of starting the program; ldd does the same.
        list.args(["-E", "LD_TRACE_LOADED_OBJECTS=1"]);
    }
    let listing = output(list.arg(program))?;
    ensure!(!listing.contains("not found"), "libraries are missing here:\n{listing}");
    let paths = listing.split_whitespace().filter(|word| word.starts_with('/'));
    let library = |path: &str| {
        let file = match &root {
            Some(root) => root.join(path.trim_start_matches('/')),
            None => PathBuf::from(path),
        };
        Library { path: path.into(), file }
    };
    Ok(paths.map(library).collect())
}

/// Returns the Debian packages of a program's libraries, with their versions.
pub fn packages(arch: Arch, program: &Path) -> Result<BTreeMap<String, String>> {
    let of = |library: Library| match arch.is_native() {
        true => owner(&library.path),
        false => foreign::owner(arch, &library.path),
    };
    libraries(arch, program)?.into_iter().map(of).collect()
}

/// Returns the package of this machine that has a library, with its version.
fn owner(library: &Path) -> Result<(String, String)> {
    // dpkg knows a library by its path without symbolic links, or by its path before /usr was merged.
    let real = library.canonicalize().with_context(|| library.display().to_string())?;
    let old = Path::new("/").join(real.strip_prefix("/usr").unwrap_or(&real));
    let owner = [real.as_path(), &old].into_iter().find_map(|path| {
        let found = command("dpkg-query").arg("--search").arg(path).output().ok()?;
        let line = String::from_utf8(found.stdout).ok().filter(|_| found.status.success())?;
        Some(line.split(':').next()?.to_owned())
    });
    let owner = owner.with_context(|| format!("no package has {}", library.display()))?;
    let version = output(command("dpkg-query").args(["--show", "--showformat=${Version}\n", &owner]))?;
    Ok((owner, version.lines().next().unwrap_or_default().to_owned()))
}
