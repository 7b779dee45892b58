//! Packages for arm64: what they have of the processor, whatever the program does. The program here is a small one,
//! because building ours for another processor takes longer than all other tests of packages.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use lab::package::package_of;
use lab::{process, test};
use tempfile::TempDir;

use super::image::layer;

/// Does what the packaging asks of the program, by the libraries that the program needs.
const PROGRAM: &str = r#"
#include <libelf.h>
#include <stdio.h>
#include <string.h>
#include <zlib.h>

int main(int count, char **words)
{
    char path[4096];
    FILE *page;

    if (elf_version(EV_CURRENT) == EV_NONE || crc32(0, (void *)"a", 1) == 0)
        return 1;
    if (count < 3 || strcmp(words[1], "man"))
        return puts("for arm64") == EOF;
    snprintf(path, sizeof path, "%s/vouchsafe.1", words[2]);
    page = fopen(path, "w");
    return !page || fputs(".TH vouchsafe 1\n", page) == EOF || fclose(page);
}
"#;
/// The processor's number in ELF files.
const AARCH64: [u8; 2] = [183, 0];

/// Returns the folder with arm64's libraries; `None` where the setup has none to offer.
fn libraries() -> Result<Option<PathBuf>> {
    let root = lab::built().context("no folder of built programs")?.with_file_name("parts").join("arm64/root");
    let is_debian = fs::read_to_string("/etc/os-release")?.lines().any(|line| line == "ID=debian");
    if !is_debian || std::env::consts::ARCH != "x86_64" {
        eprintln!("SKIPPED: packages for arm64 are made on Debian with an x86-64 processor");
        return Ok(None);
    }
    ensure!(root.exists(), "{} is missing: `sh xtask/setup.sh test` makes it", root.display());
    Ok(Some(root))
}

fn compile(root: &Path, dir: &Path) -> Result<PathBuf> {
    let (source, program) = (dir.join("program.c"), dir.join("program"));
    fs::write(&source, PROGRAM)?;
    let mut compiler = Command::new("aarch64-linux-gnu-gcc");
    compiler.arg("-idirafter").arg(root.join("usr/include")).arg("-o").arg(&program).arg(&source);
    process::output(compiler.arg("-L").arg(root.join("usr/lib/aarch64-linux-gnu")).args(["-lelf", "-lz"]))?;
    Ok(program)
}

fn is_for_arm64(file: &Path) -> Result<bool> {
    let content = fs::read(file).with_context(|| file.display().to_string())?;
    Ok(content.starts_with(b"\x7fELF") && content.get(18..20) == Some(&AARCH64))
}

#[test]
fn packages_for_arm64_have_its_program_its_libraries_and_its_name() {
    test(|| {
        let Some(root) = libraries()? else { return Ok(()) };
        let dir = TempDir::with_prefix("vouchsafe-arm64-")?;
        let program = compile(&root, dir.path())?;
        let package = |part: &str| package_of(&program, &[part, "--arch", "arm64"], dir.path());

        let deb = package("deb")?;
        ensure!(deb.to_string_lossy().ends_with("_arm64.deb"), "{}", deb.display());
        let field = |name: &str| process::output(Command::new("dpkg-deb").arg("--field").arg(&deb).arg(name));
        ensure!(field("Architecture")?.trim() == "arm64", "{}", field("Architecture")?);
        let depends = field("Depends")?;
        ensure!(["libc6 (>= ", "libelf1 (>= ", "zlib1g (>= "].iter().all(|name| depends.contains(name)), "{depends}");
        let content = dir.path().join("content");
        process::output(Command::new("dpkg-deb").arg("--extract").arg(&deb).arg(&content))?;
        ensure!(is_for_arm64(&content.join("usr/bin/vouchsafe"))?, "another processor's program is in the package");
        ensure!(content.join("usr/share/man/man1/vouchsafe.1.gz").exists(), "no man page");

        let (image, layout) = (package("image")?, TempDir::new()?);
        let (layer, config) = layer(&image, layout.path())?;
        ensure!(config["architecture"] == "arm64", "{config}");
        let content = dir.path().join("image-content");
        fs::create_dir(&content)?;
        process::output(Command::new("tar").arg("-xf").arg(layer).arg("-C").arg(&content))?;
        for library in ["ld-linux-aarch64.so.1", "aarch64-linux-gnu/libelf.so.1", "aarch64-linux-gnu/libz.so.1"] {
            ensure!(is_for_arm64(&content.join("usr/lib").join(library))?, "{library} is another processor's");
        }
        let mut emulator = Command::new("qemu-aarch64");
        let said = process::output(emulator.arg("-L").arg(&content).arg(content.join("usr/bin/vouchsafe")))?;
        ensure!(said.trim() == "for arm64", "{said}");

        let sbom = fs::read_to_string(package("sbom")?)?;
        ensure!(sbom.contains("/libelf1@") && sbom.contains("?arch=arm64") && !sbom.contains("arch=amd64"), "{sbom}");
        Ok(())
    });
}

#[test]
fn a_program_for_another_processor_is_refused() {
    test(|| {
        if libraries()?.is_none() {
            return Ok(());
        }
        let dir = TempDir::new()?;
        let Err(refused) = package_of(&lab::vouchsafe(), &["deb", "--arch", "arm64"], dir.path()) else {
            bail!("a program for x86-64 is in a package for arm64");
        };
        ensure!(format!("{refused:#}").contains("is no program for arm64"), "{refused:#}");
        Ok(())
    });
}
