//! `vouchsafe doctor`: what this kernel and its interfaces can do for verifiers and agents, and what to do about what is
//! missing. It tries things, and leaves no program behind.

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

/// Show what this kernel and its interfaces can do, and what to do about what is missing
///
/// Loads the programs of verifier and agent and attaches nothing of them. To an interface that is named, unless it has an
/// XDP program, it attaches one that passes everything, for a moment, as the verifier would: some network cards pause
/// meanwhile, and generic XDP turns the card's merging of received packets off. For others it asks the driver. Run it as
/// root. Exit code 1 if something is missing.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// Look at this interface, and try XDP on it: it has to be good for a verifier; may be repeated [default: all but
    /// loopback, without trying]
    #[arg(long = "interface", value_name = "IF")]
    interfaces: Vec<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Checks, prints what was found; exit code 1 if something is missing.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let checks = checks(&arguments.interfaces)?;
    let text = match arguments.json {
        true => format!("{}\n", serde_json::to_string_pretty(&checks)?),
        false => check::report(&checks),
    };
    match std::io::stdout().write_all(text.as_bytes()) {
        // A reader that has enough, such as `head`.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
        written => written.context("cannot write to standard output")?,
    }
    let missing = checks.iter().any(|check| check.state == State::Missing);
    Ok(if missing { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Everything found out about this host and the interfaces called `names`, or all if there are none.
///
/// # Errors
/// If an interface is not there.
pub fn checks(names: &[String]) -> Result<Vec<Check>> {
    let interfaces = match names {
        [] => Interface::all()?,
        names => names.iter().map(|name| Interface::named(name)).collect::<Result<_>>()?,
    };
    let rights = host::rights();
    let may = rights.state == State::Ok;
    let mut checks = vec![host::kernel(), rights];
    // What follows would fail for want of rights only, and say nothing about the kernel.
    let probe = may.then(Probe::load);
    checks.extend(probe.iter().flat_map(host::programs));
    checks.extend([host::btf(), host::file_system(), clock::synchronised()]);
    checks.extend(host::pinned());
    checks.extend(exposure::outside());
    let probe = probe.and_then(Result::ok);
    for interface in &interfaces {
        checks.extend(interface::checks(interface, probe.as_ref(), !names.is_empty()));
    }
    Ok(checks)
}
