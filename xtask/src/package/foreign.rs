//! Debian's part of packages for another processor: a compiler, an emulator, and the libraries of that processor, which
//! `sh xtask/setup.sh package-arm64` fetches.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::Arch;
use crate::run::command;
use crate::target_dir;

/// Settings by which cargo and build scripts compile and link for arm64.
const FOR_ARM64: [(&str, &str); 5] = [
    ("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", "aarch64-linux-gnu-gcc"),
    ("CC_aarch64_unknown_linux_gnu", "aarch64-linux-gnu-gcc"),
    ("AR_aarch64_unknown_linux_gnu", "aarch64-linux-gnu-ar"),
    ("CFLAGS_aarch64_unknown_linux_gnu", "-idirafter /mnt/foreign/root/usr/include"),
    ("LIBBPF_SYS_LIBRARY_PATH_aarch64_unknown_linux_gnu", "/mnt/foreign/root/usr/lib/aarch64-linux-gnu"),
];

/// Returns the folder with the libraries for `arch`. Its subfolder `root` has all of them; each other subfolder is an
/// unpacked package.
pub fn parts(arch: Arch) -> Result<PathBuf> {
    if arch != Arch::Arm64 || std::env::consts::ARCH != "x86_64" {
        bail!("packages for {} can be made only on a machine with such a processor", arch.debian());
    }
    let parts = target_dir().join("parts/arm64");
    ensure!(
        parts.join("made").exists(),
        "no libraries for arm64 in {}: `sh xtask/setup.sh package-arm64` fetches them, on Debian",
        parts.display()
    );
    Ok(parts)
}

/// Returns the environment variables that a build for `arch` needs, with their values.
pub fn settings(arch: Arch) -> Result<&'static [(&'static str, &'static str)]> {
    parts(arch)?;
    Ok(&FOR_ARM64)
}

/// Prepares the emulator, which takes the program's path as its next argument.
pub fn emulator(arch: Arch) -> Result<Command> {
    let mut emulator = command("qemu-aarch64");
    emulator.arg("-L").arg(parts(arch)?.join("root"));
    Ok(emulator)
}

/// Returns the folders of the unpacked packages.
pub fn packages(arch: Arch) -> Result<Vec<PathBuf>> {
    let parts = parts(arch)?;
    let entries = fs::read_dir(&parts).with_context(|| parts.display().to_string())?;
    let mut packages: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    packages.retain(|path| path.join("DEBIAN").is_dir());
    packages.sort();
    Ok(packages)
}

/// Returns the package that has a library, with its version.
pub fn owner(arch: Arch, library: &Path) -> Result<(String, String)> {
    let name = library.strip_prefix("/usr").or(library.strip_prefix("/")).unwrap_or(library);
    // A library is below /lib or below /usr/lib, and programs find it under both names where /usr is merged.
    let has = |package: &PathBuf| package.join(name).exists() || package.join("usr").join(name).exists();
    let package = packages(arch)?.into_iter().find(has);
    let package = package.with_context(|| format!("no package has {}", library.display()))?;
    let control = fs::read_to_string(package.join("DEBIAN/control"))?;
    let field = |name: &str| {
        let value = control.lines().find_map(|line| line.strip_prefix(name)).map(|value| value.trim().to_owned());
        value.with_context(|| format!("{} has no field {name}", package.display()))
    };
    Ok((field("Package:")?, field("Version:")?))
}
