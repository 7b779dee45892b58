//! `vouchsafe doctor`: checks whether this kernel and its interfaces can run verifiers and agents, and suggests
//! remedies. The checks test features, and leave no program behind.
//!
//! ```no_run
//! // No names: all interfaces.
//! for check in doctor::checks(&[])? {
//!     println!("{}: {}", check.check, check.found);
//! }
//! # anyhow::Ok(())
//! ```

mod check;
mod clock;
mod exposure;
mod host;
mod interface;

pub use check::{Check, State};

use anyhow::{Context, Result};
use clap::Args;
use datapath::interface::Interface;
use datapath::probe::Probe;
use std::io::{ErrorKind, Write};
use std::process::ExitCode;

const EXAMPLES: &str = "Examples:
  sudo vouchsafe doctor
  sudo vouchsafe doctor --interface eth0
  sudo vouchsafe doctor --json | jq '.[] | select(.state != \"ok\")'";

/// Show what this kernel and its interfaces can do, with remedies for what is missing
///
/// Loads the programs of verifier and agent, but does not attach them. To each given interface, attaches for a moment a
/// program that lets every packet pass, unless the interface has an XDP program already. Meanwhile, some network cards
/// pause, and generic XDP turns off the card's merging of received packets (LRO and hardware GRO). For other
/// interfaces, asks only the driver. Must be run as root. Exit code 1 if something is missing.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// Check this interface and try XDP on it, as a verifier requires; may be repeated [default: all but loopback,
    /// without trying XDP]
    #[arg(long = "interface", value_name = "IF")]
    interfaces: Vec<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the checks and prints the results; exit code 1 if something is missing.
///
/// # Errors
///
/// Fails if an interface does not exist, or if standard output can't be written.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let checks = checks(&arguments.interfaces)?;
    let text = match arguments.json {
        true => format!("{}\n", serde_json::to_string_pretty(&checks)?),
        false => check::report(&checks),
    };
    match std::io::stdout().write_all(text.as_bytes()) {
        // The reader has closed the pipe, as `head` does.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
        written => written.context("cannot write to standard output")?,
    }
    let missing = checks.iter().any(|check| check.state == State::Missing);
    Ok(if missing { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Checks this host and the interfaces with the names `names`, or all interfaces if `names` is empty.
///
/// # Errors
///
/// Fails if an interface does not exist.
pub fn checks(names: &[String]) -> Result<Vec<Check>> {
    let interfaces = match names {
        [] => Interface::all()?,
        names => names.iter().map(|name| Interface::named(name)).collect::<Result<_>>()?,
    };
    let rights = host::rights();
    let may = rights.state == State::Ok;
    let mut checks = vec![host::kernel(), rights];
    // Without the privileges these checks would fail, and say nothing about the kernel.
    let probe = may.then(Probe::load);
    checks.extend(probe.iter().flat_map(host::programs));
    checks.extend([host::btf(), host::file_system(), host::tunnels(), clock::synchronised()]);
    checks.extend(host::pinned());
    checks.extend(exposure::outside());
    let probe = probe.and_then(Result::ok);
    for interface in &interfaces {
        checks.extend(interface::checks(interface, probe.as_ref(), !names.is_empty()));
    }
    Ok(checks)
}
