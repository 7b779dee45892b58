//! Tests of the library in programs of other languages: the examples next to its header file.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};
use lab::embedded::{embed, library};
use lab::nobody::{said, succeed};
use lab::world::{ECHO, FRONT4, FRONT6};
use lab::{Nobody, process, test};

use super::stage::Stage;

/// Data that no token contains.
const WORDS: &str = "from another language";

/// Copies the library to a user's home folder.
fn give(nobody: &Nobody<'_>, folder: &Path) -> Result<()> {
    let library = std::fs::read(folder.join("libvouchsafe.so"))?;
    nobody.write("libvouchsafe.so", library, 0o755).map(drop)
}

#[test]
fn the_c_example_talks_tcp_and_udp() {
    test(|| {
        let (stage, folder) = (Stage::new()?, library()?);
        let nobody = stage.alice()?;
        give(&nobody, &folder)?;
        let mut compile = Command::new("cc");
        compile
            .args(["-Wall", "-Wextra", "-Werror", "-std=c11", "-D_DEFAULT_SOURCE", "-I"])
            .arg(embed().join("include"));
        compile.arg(embed().join("examples/talk.c")).arg("-o").arg(nobody.path("talk"));
        process::output(compile.arg("-L").arg(nobody.home()).args(["-lvouchsafe", "-Wl,-rpath,$ORIGIN"]))?;
        for host in [FRONT4, FRONT6] {
            let words = [host, &ECHO.to_string(), WORDS];
            let text = succeed(nobody.command(nobody.path("talk")).args(words))?;
            ensure!(text == format!("{WORDS}\n{WORDS}\n"), "{text}");
        }
        succeed(&mut nobody.vouchsafe(["logout"]))?;
        let refused = nobody.command(nobody.path("talk")).args([FRONT4, "7", WORDS]).output()?;
        ensure!(refused.status.code() == Some(1) && said(&refused).contains("vouchsafe login"), "{}", said(&refused));
        Ok(())
    });
}

#[test]
fn the_python_example_connects() {
    test(|| {
        let (stage, folder) = (Stage::new()?, library()?);
        let nobody = stage.alice()?;
        give(&nobody, &folder)?;
        let module = std::fs::read(embed().join("examples/vouchsafe.py"))?;
        let module = nobody.write("vouchsafe.py", module, 0o644)?;
        for host in [FRONT4, FRONT6] {
            let mut python = nobody.command("/usr/bin/python3");
            python.env("VOUCHSAFE_LIBRARY", nobody.path("libvouchsafe.so")).arg(&module);
            let text = succeed(python.args([host, &ECHO.to_string(), WORDS]))?;
            ensure!(text.trim() == WORDS, "{text}");
        }
        Ok(())
    });
}

#[test]
fn the_go_example_connects() {
    test(|| {
        let (stage, folder) = (Stage::new()?, library()?);
        let nobody = stage.alice()?;
        give(&nobody, &folder)?;
        let mut build = Command::new("go");
        build.args(["build", "-o"]).arg(nobody.path("talk")).arg(".").current_dir(embed().join("examples/go"));
        build.env("CGO_ENABLED", "1").env("CGO_CFLAGS", format!("-I{}", embed().join("include").display()));
        process::output(build.env("CGO_LDFLAGS", format!("-L{}", nobody.home().display())))?;
        for host in [FRONT4, FRONT6] {
            let mut talk = nobody.command(nobody.path("talk"));
            let text = succeed(talk.env("LD_LIBRARY_PATH", nobody.home()).args([host, &ECHO.to_string(), WORDS]))?;
            ensure!(text.trim() == WORDS, "{text}");
        }
        Ok(())
    });
}
