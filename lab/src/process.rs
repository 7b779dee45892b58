//! Programs that run concurrently with a test, with their output in a log.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::poll;

/// Time that a program has to end after SIGTERM, before SIGKILL.
const PATIENCE: Duration = Duration::from_secs(3);

/// A running program. Dropping it ends the program.
pub struct Process {
    child: Child,
    log: PathBuf,
    shown: String,
}

impl Process {
    /// Starts `command`. Both of its outputs go to a new log file in `dir`.
    pub fn start(mut command: Command, dir: &Path) -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let shown = shown(&command);
        let words = shown.rsplit(" -- ").next().unwrap_or(&shown);
        let program = Path::new(words.split(' ').next().unwrap_or(words)).file_name().unwrap_or_default();
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let log = dir.join(format!("{}-{number}.log", program.to_string_lossy()));
        let file = File::create(&log).with_context(|| log.display().to_string())?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let child = command.spawn().with_context(|| format!("could not start {shown}"))?;
        Ok(Self { child, log, shown })
    }

    /// Returns the program's process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the path of the log.
    pub fn log_path(&self) -> &Path {
        &self.log
    }

    /// Returns the program's output so far.
    pub fn log(&self) -> String {
        fs::read(&self.log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }

    /// Waits until the program has printed `text`. If the program ends first or takes longer than `within`, the error
    /// contains its output.
    pub fn wait_for(&mut self, text: &str, within: Duration) -> Result<()> {
        let mut ended = None;
        let done = poll(within, || {
            // Check this before the log is read, so that the program's last output counts.
            ended = self.child.try_wait().ok().flatten();
            self.log().contains(text) || ended.is_some()
        });
        ensure!(
            done && self.log().contains(text),
            "{} did not say {text:?} within {within:?} ({}); it said:\n{}",
            self.shown,
            ended.map_or("still running".into(), |status| status.to_string()),
            self.log()
        );
        Ok(())
    }

    /// Returns the exit status; `None` while the program runs.
    pub fn exit(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Waits until the program ends by itself.
    pub fn wait(&mut self, within: Duration) -> Result<ExitStatus> {
        ensure!(
            poll(within, || self.exit().is_some()),
            "{} did not end within {within:?}; it said:\n{}",
            self.shown,
            self.log()
        );
        self.child.wait().with_context(|| self.shown.clone())
    }

    /// Sends the program a signal.
    pub fn signal(&mut self, signal: Signal) -> Result<()> {
        if self.exit().is_some() {
            bail!("{} has ended already", self.shown);
        }
        // The child has not been reaped yet, so its id cannot belong to another process.
        kill(Pid::from_raw(self.child.id().cast_signed()), signal).with_context(|| self.shown.clone())
    }

    /// Ends the program by SIGTERM or, if it does not end soon, by SIGKILL. Returns its exit status.
    pub fn stop(&mut self) -> Result<ExitStatus> {
        if self.signal(Signal::SIGTERM).is_ok() && !poll(PATIENCE, || self.exit().is_some()) {
            self.child.kill().with_context(|| self.shown.clone())?;
        }
        self.child.wait().with_context(|| self.shown.clone())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Err(error) = self.stop() {
            eprintln!("lab: {error:#}");
        }
    }
}

/// Runs `command` to its end and returns its standard output. If the command fails, the error contains all its output.
pub fn output(command: &mut Command) -> Result<String> {
    let output =
        command.stdin(Stdio::null()).output().with_context(|| format!("could not start {}", shown(command)))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        bail!("{}: {}\n{text}{}", shown(command), output.status, String::from_utf8_lossy(&output.stderr));
    }
    Ok(text)
}

fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}
