//! The program that offers the scenarios as commands. `make demo` and `cargo xtask silence` run it.

mod demo;
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
    /// Run the demo
    Demo(demo::Args),
    /// Show that a protected host answers nothing
    Silence(silence::Args),
}

fn main() -> ExitCode {
    match Args::parse().scenario {
        Scenario::Demo(args) => demo::run(&args),
        Scenario::Silence(args) => silence::run(&args),
    }
}
