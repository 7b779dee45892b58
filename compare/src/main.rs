//! `vouchsafe-compare`: run, list, rank, advise, report.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand};
use compare::driver::{obstacle, version};
use compare::drivers;
use compare::run::Depth;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

/// Where results are kept unless `--out` or `--from` says otherwise.
const RESULTS: &str = "target/compare";

#[derive(Parser)]
#[command(name = "vouchsafe-compare", about = "Measures VPNs and Vouchsafe side by side", disable_version_flag = true)]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Measure solutions in turns; needs root. Interrupt it to stop, and run it again to continue
    Run(RunArguments),
    /// List the solutions, and why some can't run here
    List,
}

#[derive(Args)]
struct RunArguments {
    /// Solutions to measure
    #[arg(required_unless_present_any = ["all", "quick"])]
    solutions: Vec<String>,
    /// Measure all solutions
    #[arg(long, conflicts_with = "solutions")]
    all: bool,
    /// Measure the plain path, WireGuard, OpenVPN and Vouchsafe, in short turns
    #[arg(long, conflicts_with_all = ["solutions", "all"])]
    quick: bool,
    /// Take short turns
    #[arg(long)]
    short: bool,
    /// Take the shortest turns: only to see whether solutions work
    #[arg(long, conflicts_with = "short")]
    smoke: bool,
    /// Number of rounds
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,
    /// The folder of the results
    #[arg(long, value_name = "DIR", default_value = RESULTS)]
    out: PathBuf,
}

fn main() -> ExitCode {
    let done = match Arguments::parse().task {
        Task::Run(arguments) => run(&arguments),
        Task::List => list(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("vouchsafe-compare: {error:#}");
            ExitCode::from(2)
        }
    }
}

static STOP: AtomicBool = AtomicBool::new(false);

extern "C" fn stop(_: libc::c_int) {
    STOP.store(true, Relaxed);
}

fn run(arguments: &RunArguments) -> Result<()> {
    let solutions = if arguments.all {
        drivers::all().into_iter().filter(|driver| !driver.is_for_tests()).collect()
    } else if arguments.quick {
        drivers::named(&drivers::QUICK.map(str::to_owned))?
    } else {
        drivers::named(&arguments.solutions)?
    };
    let depth = match (arguments.smoke, arguments.short || arguments.quick) {
        (true, _) => Depth::Smoke,
        (false, true) => Depth::Quick,
        (false, false) => Depth::Full,
    };
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let action = SigAction::new(SigHandler::Handler(stop), SaFlags::empty(), SigSet::empty());
        // SAFETY: the handler only stores to an atomic variable, which a signal handler may do.
        unsafe { sigaction(signal, &action) }.with_context(|| format!("{signal}"))?;
    }
    let rounds = arguments.rounds.unwrap_or(depth.rounds());
    compare::run::run(&solutions, rounds, &depth.plan(), &arguments.out, &STOP, |line| eprintln!("compare: {line}"))?;
    println!("{}", arguments.out.join("records.jsonl").display());
    Ok(())
}

fn list() -> Result<()> {
    for driver in drivers::all() {
        let state = obstacle(driver.as_ref()).unwrap_or_else(|| version(driver.as_ref()));
        println!("{:20} {:50} {state}", driver.name(), driver.claims().title);
    }
    Ok(())
}
