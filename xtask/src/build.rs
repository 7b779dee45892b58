//! Builds the product and runs it, or runs the lab on it.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::run::{cargo, command, command_as_root, run};
use crate::target_dir;

/// Builds the binary `vouchsafe` for the tests and returns its path. Builds the binary, the library for programs in
/// other languages and all tests in one run of cargo, because separate runs would build many dependencies twice, with
/// different features.
pub fn for_tests() -> Result<PathBuf> {
    run(&mut cargo(["build", "--workspace", "--lib", "--bins", "--tests"]))?;
    Ok(target_dir().join("debug/vouchsafe"))
}

/// The profile in Cargo.toml that builds fastest. It is for trying the product, not for shipping or measuring it.
const DEMO: &str = "demo";

/// Builds `vouchsafe` and the crate `package` for a demonstration. Then replaces this process by `program ARGS…`, run
/// as root.
pub fn scenario(package: &str, program: &str, args: impl IntoIterator<Item = String>) -> Result<()> {
    run(&mut cargo([
        "build",
        "--profile",
        DEMO,
        "--no-default-features",
        "--features",
        "vouchsafe/roles",
        "--package",
        "vouchsafe",
        "--package",
        package,
    ]))?;
    let built = target_dir().join(DEMO);
    let program = built.join(program);
    // Pass the path as an argument of env, because sudo may refuse to keep a variable.
    let mut setting = OsString::from("VOUCHSAFE_BIN=");
    setting.push(built.join("vouchsafe"));
    let error = command_as_root("env").arg(setting).arg(&program).args(args).exec();
    Err(error).with_context(|| format!("could not start {}", program.display()))
}

/// Builds the comparison and, if its arguments ask for a run, also `vouchsafe` as it is shipped. Then replaces this
/// process by the comparison.
pub fn compare(args: Vec<String>) -> Result<()> {
    let runs = args.first().is_some_and(|word| word == "run" || word == "check");
    let mut build = cargo(["build", "--release", "--package", "compare"]);
    if runs {
        build.args(["--package", "vouchsafe"]);
    }
    run(&mut build)?;
    let built = target_dir().join("release");
    let (program, vouchsafe) = (built.join("vouchsafe-compare"), built.join("vouchsafe"));
    let mut command = if runs { command_as_root("env") } else { command("env") };
    let mut path = OsString::from("PATH=");
    path.push(with_peers());
    command.arg(path);
    if vouchsafe.exists() {
        let mut setting = OsString::from("VOUCHSAFE_BIN=");
        setting.push(vouchsafe);
        command.arg(setting);
    }
    let error = command.arg(&program).args(args).exec();
    Err(error).with_context(|| format!("could not start {}", program.display()))
}

/// Returns the search path for programs. It begins with the folder of the VPNs that `xtask/peers.sh` has built.
pub fn with_peers() -> OsString {
    let mut path = target_dir().join("parts/peers").into_os_string();
    if let Some(usual) = std::env::var_os("PATH") {
        path.push(":");
        path.push(usual);
    }
    path
}

/// Makes `vouchsafe` write its man pages and shell completions to target/gen.
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

/// The targets of the static rootless client, each with environment variables for compiling its dependencies' C code
/// and for linking it.
const STATIC: [(&str, &[(&str, &str)]); 2] = [
    ("x86_64-unknown-linux-musl", &[("CC_x86_64_unknown_linux_musl", "musl-gcc")]),
    (
        "aarch64-unknown-linux-musl",
        &[
            ("CC_aarch64_unknown_linux_musl", "clang"),
            // The headers are those of musl-tools. The few headers that are used are the same for both processors.
            ("CFLAGS_aarch64_unknown_linux_musl", "--target=aarch64-linux-musl -I/usr/include/x86_64-linux-musl"),
            ("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_LINKER", "rust-lld"),
        ],
    ),
];

/// Builds the rootless client as a static binary for each target.
pub fn rootless() -> Result<()> {
    for (target, settings) in STATIC {
        let mut build =
            cargo(["build", "--release", "--package", "vouchsafe", "--no-default-features", "--target", target]);
        build.envs(settings.iter().copied());
        run(&mut build).with_context(|| {
            format!("could not build for {target}; if this target is not installed, run `rustup target add {target}`")
        })?;
        println!("{}", target_dir().join(target).join("release/vouchsafe").display());
    }
    Ok(())
}

/// The target of the code for macOS.
const MACOS: &str = "aarch64-apple-darwin";
/// Content that stands in for macOS's header `TargetConditionals.h`: the lines that the C code of dependencies needs.
const TARGET_CONDITIONALS: &str = "#define TARGET_OS_MAC 1\n#define TARGET_OS_OSX 1\n#define TARGET_OS_IPHONE 0\n";

/// Checks that the rootless client's code for macOS compiles. It makes no program. Nothing is linked, so the headers of
/// musl-tools serve in place of an SDK.
pub fn check_for_macos() -> Result<()> {
    let headers = target_dir().join("macos");
    fs::create_dir_all(&headers).with_context(|| format!("could not make {}", headers.display()))?;
    fs::write(headers.join("TargetConditionals.h"), TARGET_CONDITIONALS)?;
    let flags = format!("-ffreestanding -isystem {} -isystem /usr/include/x86_64-linux-musl", headers.display());
    let mut check = cargo(["check", "--package", "vouchsafe", "--no-default-features", "--package", "embed"]);
    check.args(["--target", MACOS]).env("CFLAGS_aarch64_apple_darwin", flags).env("SDKROOT", "/");
    check.env("CC_aarch64_apple_darwin", "clang").env("AR_aarch64_apple_darwin", "ar");
    run(&mut check).with_context(|| {
        format!("could not check for {MACOS}; if this target is not installed, run `rustup target add {MACOS}`")
    })
}

/// Returns the path of the static rootless client for x86-64.
pub fn static_client() -> PathBuf {
    let (target, _) = STATIC[0];
    target_dir().join(target).join("release/vouchsafe")
}

/// Builds `vouchsafe` as it is shipped and returns its path.
pub fn release() -> Result<PathBuf> {
    run(&mut cargo(["build", "--release", "--package", "vouchsafe"]))?;
    Ok(target_dir().join("release/vouchsafe"))
}
