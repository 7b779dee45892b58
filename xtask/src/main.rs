//! The developer's commands, which `cargo xtask help` lists.
//!
//! Each command is one module; this file only declares the command line. Nothing here is part of the product.

mod arrows;
mod audit;
mod bench;
mod build;
mod chart;
mod kernels;
mod licence;
mod lint;
mod package;
mod run;
mod setup;
mod simulate;
mod tests;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, ensure};
use clap::{Parser, Subcommand};

use crate::run::{cargo, command, root, run};

#[derive(Parser)]
#[command(
    name = "cargo xtask",
    bin_name = "cargo xtask",
    about = "Everything a developer runs",
    disable_version_flag = true
)]
struct Args {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Install the packages for one purpose (Debian 12, Ubuntu 24.04)
    Setup {
        /// The purpose; `test` includes all others, except the programs that `compare` measures
        #[arg(default_value = "test", value_parser = setup::PURPOSES)]
        purpose: String,
    },
    /// Run the checks of CI: lint, audit, arrows, every test
    Ci,
    /// Run every test, here as root and in a booted 6.1 kernel
    Test {
        /// Skip the booted kernel
        #[arg(long)]
        no_kernels: bool,
        /// Build everything that the tests need, and run nothing
        #[arg(long, conflicts_with_all = ["no_kernels", "args"])]
        no_run: bool,
        /// Arguments for `cargo test`
        #[arg(last = true)]
        args: Vec<String>,
    },
    /// Run the datapath's `kernel_…` tests in Debian 12's 6.1 kernel
    Kernels(kernels::Args),
    /// Run the demo: the whole system in network namespaces
    #[command(disable_help_flag = true)]
    Demo {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Measure how long a newcomer waits for the demo, in a bare Debian system; needs a mirror (Debian 12, Ubuntu 24.04)
    Newcomer,
    /// Build the rootless client as static binaries, for x86-64 and arm64 (needs musl-tools and clang)
    Static {
        /// Then run the tests of the rootless client with the binary for x86-64
        #[arg(long)]
        test: bool,
    },
    /// Check that the rootless client's code for macOS compiles; nobody has run it (needs musl-tools and clang)
    Macos,
    /// Make the packages in target/package: deb, OCI image, bill of materials; the same commit gives the same bytes
    Package(package::Args),
    /// Check the Helm chart with helm, and write its plain manifests to packaging/kubernetes
    Chart,
    /// Run the benches; figures go to target/bench/summary.json
    Bench {
        /// Run only these benches
        #[arg(value_parser = bench::targets())]
        parts: Vec<String>,
    },
    /// Measure VPNs and Vouchsafe side by side, rank, advise, report (docs/compare.md)
    #[command(disable_help_flag = true)]
    Compare {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Take pictures of the console's pages, for docs/console
    Screenshots,
    /// Show that a protected host answers nothing
    #[command(disable_help_flag = true)]
    Silence {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Send forged first packets at full rate; fail if any is admitted or answered, or a table grows
    Soak {
        /// Number of forged packets that the verifier is to check
        #[arg(long, value_name = "N", default_value_t = 1_000_000_000)]
        forged: u64,
    },
    /// Check formatting, forbidden words, clippy, and warnings in the kernel programs
    Lint {
        /// Run only these checks
        #[arg(value_enum)]
        only: Vec<lint::Check>,
    },
    /// Check licences, duplicate and unused dependencies, and known advisories; works offline
    Audit,
    /// Check the dependencies and import cycles of the workspace's crates
    Arrows,
    /// Run each fuzz target for a while (nightly)
    Fuzz {
        /// Seconds for each target
        #[arg(long, default_value_t = 60)]
        seconds: u32,
        /// Run only these targets
        targets: Vec<String>,
    },
    /// Compute how long requests for consent take, from a table of round-trip times
    Simulate(simulate::Args),
    /// Write man pages and shell completions to target/gen
    Gen,
}

fn main() -> ExitCode {
    let task = Args::parse().task;
    match perform(task) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn perform(task: Task) -> Result<()> {
    match task {
        Task::Setup { purpose } => setup::run(&purpose),
        Task::Ci => run(&mut command(".ci/run")),
        Task::Test { no_run: true, .. } => build::for_tests().map(drop),
        Task::Test { no_kernels, args, .. } => tests::run(no_kernels, &args),
        Task::Kernels(args) => kernels::run(&args),
        Task::Demo { args } => build::scenario("lab", "lab", [&["demo".to_owned()], &args[..]].concat()),
        Task::Newcomer => run(run::command_as_root("sh").arg("xtask/newcomer.sh")),
        Task::Static { test } => {
            build::rootless()?;
            if test { tests::of_static_client() } else { Ok(()) }
        }
        Task::Macos => build::check_for_macos(),
        Task::Bench { parts } => bench::run(&parts),
        Task::Compare { args } => build::compare(args),
        Task::Screenshots => {
            build::scenario("browser", "screenshots", [root().join("docs/console").to_string_lossy().into_owned()])
        }
        Task::Silence { args } => build::scenario("lab", "lab", [&["silence".to_owned()], &args[..]].concat()),
        Task::Soak { forged } => soak(forged),
        Task::Lint { only } => lint::run(&only),
        Task::Audit => audit::run(),
        Task::Arrows => arrows::run(),
        Task::Fuzz { seconds, targets } => fuzz(seconds, targets),
        Task::Simulate(args) => simulate::run(&args),
        Task::Chart => chart::write(),
        Task::Package(args) => package::run(&args),
        Task::Gen => build::documents(),
    }
}

fn soak(forged: u64) -> Result<()> {
    let binary = build::for_tests()?;
    let mut soak = cargo(["test", "--package", "lab", "--test", "soak", "--", "--nocapture"]);
    run(tests::with_settings(&mut soak, &binary).env("VOUCHSAFE_SOAK_FORGED", forged.to_string()))
}

fn fuzz(seconds: u32, mut targets: Vec<String>) -> Result<()> {
    ensure!(root().join("fuzz/Cargo.toml").exists(), "the folder fuzz/ is missing");
    if !run::succeeds(&mut cargo(["+nightly", "--version"])) {
        run(command("rustup").args(["toolchain", "install", "nightly", "--profile", "minimal"]))?;
    }
    if !run::succeeds(&mut cargo(["fuzz", "--version"])) {
        run(&mut cargo(["install", "--locked", "cargo-fuzz"]))?;
    }
    if targets.is_empty() {
        targets =
            run::output(&mut cargo(["+nightly", "fuzz", "list"]))?.split_whitespace().map(str::to_owned).collect();
    }
    for target in &targets {
        eprintln!("xtask: fuzzing {target} for {seconds} s");
        // New inputs go to the first folder. The committed corpus is extended only by hand.
        let found = target_dir().join("fuzz").join(target);
        std::fs::create_dir_all(&found)?;
        let mut fuzz = cargo(["+nightly", "fuzz", "run", target]);
        fuzz.arg(&found).arg(format!("fuzz/corpus/{target}"));
        run(fuzz.args(["--", "-timeout=10", "-max_len=2048"]).arg(format!("-max_total_time={seconds}")))?;
    }
    Ok(())
}

/// Returns the path of cargo's target directory.
fn target_dir() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |dir| root().join(dir))
}

#[cfg(test)]
mod tests_of_arguments {
    use super::*;

    #[test]
    fn the_help_of_a_program_is_that_programs_own() {
        for task in ["demo", "silence", "compare"] {
            let parsed = Args::try_parse_from(["xtask", task, "--help"]).map(|args| args.task);
            let Ok(Task::Demo { args } | Task::Silence { args } | Task::Compare { args }) = parsed else {
                panic!("{task} shows the help of xtask");
            };
            assert_eq!(args, ["--help"]);
        }
    }
}
