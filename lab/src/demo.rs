//! The demo: the whole system, step by step, for a person to watch.

use std::process::ExitCode;

/// Options of `demo`.
#[derive(clap::Args)]
pub struct Args {}

/// Runs the scenario; exit codes as everywhere: 0 done, 1 the answer is no, 2 could not be done.
pub fn run(_: &Args) -> ExitCode {
    eprintln!("demo: not written");
    ExitCode::from(2)
}
