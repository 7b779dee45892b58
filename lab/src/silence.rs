//! What an outsider sees of a protected host.

use std::process::ExitCode;

/// Options of `silence`.
#[derive(clap::Args)]
pub struct Args {}

/// Runs the scenario; exit codes as everywhere: 0 done, 1 the answer is no, 2 could not be done.
pub fn run(_: &Args) -> ExitCode {
    eprintln!("silence: not written");
    ExitCode::from(2)
}
