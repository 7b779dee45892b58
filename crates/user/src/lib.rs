//! The commands for people: about their session ([`commands`]), and for reaching protected destinations without an
//! agent ([`connect`], [`run`], [`proxy`]).
//!
//! ```no_run
//! use clap::Parser;
//!
//! #[derive(Parser)]
//! struct Arguments {
//!     #[command(subcommand)]
//!     command: user::ReachCommand,
//! }
//!
//! // This is what `vouchsafe connect git.example.org 22` does.
//! let arguments = Arguments::parse_from(["vouchsafe", "connect", "git.example.org", "22"]);
//! let code = user::reach(arguments.command)?;
//! # anyhow::Ok(())
//! ```

pub mod at;
pub mod commands;
pub mod connect;
mod copy;
pub mod proxy;
#[cfg(target_os = "linux")]
pub mod run;

use anyhow::Result;
use clap::Subcommand;
use std::process::ExitCode;

const CONNECT: &str = "Examples:
  ssh -o ProxyCommand='vouchsafe connect --pass-fd %h %p' -o ProxyUseFdpass=yes git.example.org
  vouchsafe connect server.example.org 25";
#[cfg(target_os = "linux")]
const RUN: &str = "Examples:
  vouchsafe run -- curl https://wiki.example.org/
  vouchsafe run -- git fetch

It is a convenience and no security boundary: the command can get around it, and then its packets carry no token.";
const PROXY: &str = "Examples:
  vouchsafe proxy
  vouchsafe proxy --listen 127.0.0.1:1080 &
  curl --proxy socks5h://127.0.0.1:1080 https://wiki.example.org/";

/// The commands that reach protected destinations without an agent
#[derive(Subcommand, Debug)]
pub enum ReachCommand {
    /// Connect to a host, for ssh's ProxyCommand or between standard input and output
    #[command(after_help = CONNECT)]
    Connect(connect::ConnectArguments),
    /// Run a command whose connections to protected destinations carry tokens
    #[cfg(target_os = "linux")]
    #[command(after_help = RUN)]
    Run(run::RunArguments),
    /// Serve as a SOCKS5 and HTTP proxy, for browsers
    #[command(after_help = PROXY)]
    Proxy(proxy::ProxyArguments),
}

/// Runs a command in the calling thread, which must be allowed to block. Returns exit code 1 if the answer is no; for
/// `vouchsafe run`, returns the exit code of the command that it runs.
///
/// # Errors
///
/// Fails if the command could not be carried out; the caller then exits with code 2.
pub fn reach(command: ReachCommand) -> Result<ExitCode> {
    match command {
        ReachCommand::Connect(arguments) => connect::run(&arguments),
        #[cfg(target_os = "linux")]
        ReachCommand::Run(arguments) => run::run(&arguments),
        ReachCommand::Proxy(arguments) => proxy::run(&arguments),
    }
}
