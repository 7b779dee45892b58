//! `vouchsafe run`: a command whose connections to protected destinations carry tokens, whatever it is linked to.
//!
//! Three processes take part. The *front*, which the caller started, waits, passes signals on, and ends as the command
//! does. Its child, the *supervisor*, starts the command under a seccomp filter that has the kernel ask the supervisor
//! about some system calls (seccomp_unotify(2)), and stays until the last descendant of the command has ended. It is
//! the command's parent because Yama (ptrace_scope 1) lets only ancestors take a process's sockets.
//!
//! Nothing of this is a security boundary: a command can avoid the filter's calls, or change a call's memory after the
//! supervisor has read it. Then its packets carry no token, and the verifier drops them.

mod child;
mod datagrams;
mod filter;
mod front;
mod notification;
mod supervisor;
mod target;

use crate::at::Using;
use anyhow::{Context, Result};
use clap::Args;
use nix::sys::signal::{SigSet, SigmaskHow, sigprocmask};
use nix::unistd::{ForkResult, fork};
use reach::{Error, Session, Way};
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::time::Duration;

/// Run a command
#[derive(Args, Clone, Debug)]
pub struct RunArguments {
    #[command(flatten)]
    using: Using,
    /// Leave datagrams alone: programs that send much by sendmsg(2) run at full speed
    #[arg(long)]
    tcp_only: bool,
    /// Time to wait for a connection, in seconds; a program's own shorter time limit goes before
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    wait: u64,
    /// The command and its arguments
    #[arg(required = true, last = true)]
    command: Vec<OsString>,
}

/// How the supervisor treats calls.
#[derive(Clone, Copy, Debug)]
struct Settings {
    tcp_only: bool,
    wait: Duration,
}

/// Runs the command; returns its exit code. The caller has one thread only.
///
/// # Errors
///
/// Fails if the session can't be opened, or the command not be started.
pub fn run(arguments: &RunArguments) -> Result<ExitCode> {
    let session = match Session::open(&arguments.using.places()?) {
        Ok(session) => session,
        Err(error @ Error::NotLoggedIn) => {
            eprintln!("vouchsafe: {error}");
            return Ok(ExitCode::FAILURE);
        }
        Err(error) => return Err(error.into()),
    };
    let [program, rest @ ..] = &arguments.command[..] else { anyhow::bail!("no command given") };
    let mut command = Command::new(program);
    command.args(rest);
    if session.way() == Way::Agent {
        // The agent puts tokens into every program's packets.
        let error = command.exec();
        return Ok(front::cannot_start(program, &error));
    }
    let settings = Settings { tcp_only: arguments.tcp_only, wait: Duration::from_secs(arguments.wait) };
    let (reports, reporter) = std::io::pipe().context("cannot make a pipe")?;
    let mut before = SigSet::empty();
    sigprocmask(SigmaskHow::SIG_BLOCK, Some(&front::signals()), Some(&mut before))?;
    // SAFETY: this process has one thread, so that the child may do everything.
    match unsafe { fork() }.context("cannot start a process")? {
        ForkResult::Parent { child } => {
            drop(reporter);
            front::run(child, &reports)
        }
        ForkResult::Child => {
            drop(reports);
            supervisor::run(&session, settings, command, program, &before, reporter)
        }
    }
}
