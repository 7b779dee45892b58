//! The scenarios on the command line. `make demo` and `cargo xtask silence` end here.

mod demo;
mod screenshots;
mod silence;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "lab", about = "Vouchsafe in networks made of namespaces; needs root")]
struct Args {
    #[command(subcommand)]
    scenario: Scenario,
}

#[derive(Subcommand)]
enum Scenario {
    /// See it work
    Demo(demo::Args),
    /// Take pictures of the console's pages
    Screenshots(screenshots::Args),
    /// Show that a protected host answers nothing
    Silence(silence::Args),
}

fn main() -> ExitCode {
    match Args::parse().scenario {
        Scenario::Demo(args) => demo::run(&args),
        Scenario::Screenshots(args) => screenshots::run(&args),
        Scenario::Silence(args) => silence::run(&args),
    }
}
