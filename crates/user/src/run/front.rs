//! The front process: passes signals to the command, and ends in the way in which the command ended.

use anyhow::{Context, Result, bail};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigHandler, SigSet, Signal, kill, raise, signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::Pid;
use std::ffi::OsStr;
use std::io::{ErrorKind, PipeReader, Read};
use std::os::fd::AsFd;
use std::process::ExitCode;

/// Length of a report in bytes. A report consists of its kind and a number.
pub const REPORT_LEN: usize = 8;

/// A report from the supervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// The command runs, with this process id.
    Runs(i32),
    /// The command ended with this exit code.
    Ended(i32),
    /// This signal ended the command.
    Killed(i32),
}

impl Report {
    /// Returns the report as the supervisor writes it into the pipe to the front.
    pub fn encode(self) -> [u8; REPORT_LEN] {
        let (kind, number) = match self {
            Self::Runs(pid) => (0_i32, pid),
            Self::Ended(code) => (1, code),
            Self::Killed(signal) => (2, signal),
        };
        let mut bytes = [0; REPORT_LEN];
        bytes[..4].copy_from_slice(&kind.to_ne_bytes());
        bytes[4..].copy_from_slice(&number.to_ne_bytes());
        bytes
    }

    fn decode(bytes: [u8; REPORT_LEN]) -> Option<Self> {
        let [kind, number] =
            [0, 4].map(|at| i32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]));
        [Self::Runs(number), Self::Ended(number), Self::Killed(number)].into_iter().nth(usize::try_from(kind).ok()?)
    }
}

/// Returns the signals that the front passes on to the command.
pub fn signals() -> SigSet {
    use Signal::{SIGALRM, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
    [SIGALRM, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2].into_iter().collect()
}

/// Waits until the command has ended. Returns its exit code. If a signal ended the command, this process ends by the
/// same signal.
///
/// # Errors
///
/// Fails if the supervisor ends without a report.
pub fn run(supervisor: Pid, mut reports: &PipeReader) -> Result<ExitCode> {
    let asked = SignalFd::with_flags(&signals(), SfdFlags::SFD_CLOEXEC).context("cannot wait for signals")?;
    let mut command = None;
    // Signals that arrive before the supervisor reports the command's process id. The command may already run.
    let mut early = Vec::new();
    loop {
        let mut ready =
            [PollFd::new(reports.as_fd(), PollFlags::POLLIN), PollFd::new(asked.as_fd(), PollFlags::POLLIN)];
        match poll(&mut ready, PollTimeout::NONE) {
            Err(nix::errno::Errno::EINTR) => continue,
            polled => polled.context("cannot wait for the command")?,
        };
        let [reported, signalled] = ready.map(|one| one.revents().is_some_and(|events| !events.is_empty()));
        if signalled && let Some(sent) = asked.read_signal()? {
            // A signal from the terminal has reached the command, too, so only signals from processes are passed on.
            let by_process = sent.ssi_code <= 0;
            let signal = i32::try_from(sent.ssi_signo).ok().and_then(|number| Signal::try_from(number).ok());
            match (command, signal.filter(|_| by_process)) {
                (Some(command), Some(signal)) => drop(kill(command, signal)),
                (None, Some(signal)) => early.push(signal),
                (_, None) => {}
            }
        }
        if !reported {
            continue;
        }
        let mut report = [0; REPORT_LEN];
        if let Err(error) = reports.read_exact(&mut report) {
            let _ = nix::sys::wait::waitpid(supervisor, None);
            bail!("the supervisor ended before the command did: {error}");
        }
        match Report::decode(report).context("the supervisor's report is malformed")? {
            Report::Runs(pid) => {
                let pid = Pid::from_raw(pid);
                command = Some(pid);
                early.drain(..).for_each(|signal| {
                    let _ = kill(pid, signal);
                });
            }
            Report::Ended(code) => return Ok(ExitCode::from(code as u8)),
            Report::Killed(number) => return Ok(die(number)),
        }
    }
}

/// Ends this process by the signal that ended the command.
fn die(number: i32) -> ExitCode {
    if let Ok(by) = Signal::try_from(number) {
        let _ = nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_CORE, 0, 0);
        // SAFETY: the default action needs no handler.
        let _ = unsafe { signal(by, SigHandler::SigDfl) };
        let _ = raise(by);
        let _ = [by].into_iter().collect::<SigSet>().thread_unblock();
    }
    // The signal's default action does not end a process, or the signal has no number here.
    ExitCode::from((128 + number) as u8)
}

/// Prints the reason why a command can't be started. Returns the exit code that shells use in this case.
pub fn cannot_start(program: &OsStr, error: &std::io::Error) -> ExitCode {
    eprintln!("vouchsafe: cannot run {}: {error}", program.to_string_lossy());
    ExitCode::from(code_of(error) as u8)
}

/// Returns the exit code that shells use for a command that can't be started because of this error: 127 if there is no
/// such program, otherwise 126.
pub fn code_of(error: &std::io::Error) -> i32 {
    if error.kind() == ErrorKind::NotFound { 127 } else { 126 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_read_as_they_are_written() {
        for report in [Report::Runs(7), Report::Ended(3), Report::Killed(15)] {
            assert_eq!(Report::decode(report.encode()), Some(report));
        }
        assert_eq!(Report::decode([9; REPORT_LEN]), None);
    }
}
