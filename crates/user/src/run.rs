//! `vouchsafe run`: runs a command whose connections to protected destinations carry tokens, even if it is statically
//! linked.
//!
//! Three processes take part. The caller starts the *front*, which waits, passes signals on, and ends in the way in
//! which the command ends. Its child, the *supervisor*, starts the command under a seccomp filter, by which the kernel
//! asks the supervisor about some system calls (seccomp_unotify(2)). The supervisor stays until the last descendant of
//! the command has ended. The supervisor is the command's parent because Yama (ptrace_scope 1) allows only ancestors to
//! copy a process's sockets.
//!
//! This is not a security boundary. A command can avoid the system calls that the filter watches, or change the
//! arguments of a call in memory after the supervisor has read them. The command's packets then carry no token, and the
//! verifier drops them.

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
    /// Add no tokens to datagrams: programs that call sendmsg(2) very often then run at full speed
    #[arg(long)]
    tcp_only: bool,
    /// Time to wait for a connection, in seconds; a shorter time limit of the program takes precedence
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    wait: u64,
    /// Seal the command's packets to protected destinations with this treatment (authenticate or encrypt, optionally
    /// followed by ,compress), or with a stronger one if a rule demands it; needs the agent
    #[arg(long, value_name = "TREATMENT[,compress]")]
    treatment: Option<String>,
    /// The command and its arguments
    #[arg(required = true, last = true)]
    command: Vec<OsString>,
}

/// How the supervisor handles calls.
#[derive(Clone, Copy, Debug)]
struct Settings {
    tcp_only: bool,
    wait: Duration,
}

/// Runs the command and returns its exit code. If the user is logged in at the agent, the command replaces this
/// process. Returns 1 if the user is not logged in, 126 or 127 if the command can't be executed, and 2 if it can't be
/// supervised. This process must have only one thread.
///
/// # Errors
///
/// Fails if the session can't be opened, or if [`Using::treat`] fails. Also fails if the supervisor can't be started,
/// or ends before the command.
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
    if let Some(treatment) = &arguments.treatment {
        arguments.using.treat(treatment)?;
    }
    if session.way() == Way::Agent {
        // The user is logged in at the agent, which puts tokens into every program's packets.
        let error = command.exec();
        return Ok(front::cannot_start(program, &error));
    }
    let settings = Settings { tcp_only: arguments.tcp_only, wait: Duration::from_secs(arguments.wait) };
    let (reports, reporter) = std::io::pipe().context("cannot make a pipe")?;
    let mut before = SigSet::empty();
    sigprocmask(SigmaskHow::SIG_BLOCK, Some(&front::signals()), Some(&mut before))?;
    // SAFETY: this process has only one thread, so the child may do everything.
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
