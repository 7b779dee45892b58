//! Terminals: a command line in a pseudo-terminal, at whose keyboard the test types.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::poll;

/// Time limit for a command to end, or to show a text.
const PATIENCE: Duration = Duration::from_secs(180);
/// The end of each question for a password.
const QUESTION: &str = "assword: ";

/// A command line that runs in a terminal. Dropping it ends the command line.
pub struct Terminal {
    child: Child,
    keyboard: ChildStdin,
    log: PathBuf,
    line: String,
    answered: usize,
}

impl Terminal {
    /// Starts `command`, which runs `line` by script(1). The file `log` gets the text that the terminal shows.
    pub(crate) fn start(mut command: Command, line: &str, log: &Path) -> Result<Self> {
        let file = File::create(log).with_context(|| log.display().to_string())?;
        command.stdin(Stdio::piped()).stdout(file.try_clone()?).stderr(file);
        let mut child = command.spawn().with_context(|| format!("could not start `{line}`"))?;
        let keyboard = child.stdin.take().context("the terminal has no keyboard")?;
        Ok(Self { child, keyboard, log: log.to_owned(), line: line.to_owned(), answered: 0 })
    }

    /// Returns the text that the terminal has shown so far.
    pub fn text(&self) -> String {
        fs::read(&self.log).map(|bytes| String::from_utf8_lossy(&bytes).replace('\r', "")).unwrap_or_default()
    }

    /// Types `keys`.
    pub fn type_keys(&mut self, keys: &str) -> Result<()> {
        self.keyboard.write_all(keys.as_bytes()).with_context(|| format!("could not type into `{}`", self.line))?;
        self.keyboard.flush().context("the keyboard")
    }

    /// Waits until the terminal shows `text`.
    pub fn wait_for(&mut self, text: &str) -> Result<()> {
        let mut ended = false;
        let _ = poll(PATIENCE, || {
            // Check this before the text is read, so that the command's last output counts.
            ended = self.child.try_wait().is_ok_and(|status| status.is_some());
            self.text().contains(text) || ended
        });
        let state = if ended { "ended" } else { "runs" };
        ensure!(self.text().contains(text), "`{}` {state} and did not show {text:?}:\n{}", self.line, self.text());
        Ok(())
    }

    /// Waits until the command line ends. Types `password` whenever the command line asks for a password.
    pub fn end(&mut self, password: &str) -> Result<ExitStatus> {
        let mut status = None;
        let mut answers = Ok(());
        let _ = poll(PATIENCE, || {
            status = self.child.try_wait().ok().flatten();
            if status.is_none() && self.text().matches(QUESTION).count() > self.answered {
                self.answered += 1;
                answers = self.type_keys(&format!("{password}\n"));
            }
            status.is_some() || answers.is_err()
        });
        answers?;
        status.with_context(|| format!("`{}` did not end within {PATIENCE:?}:\n{}", self.line, self.text()))
    }

    /// Waits like [`Self::end`], but fails if the command line fails. Returns the text that the terminal has shown.
    pub fn finish(mut self, password: &str) -> Result<String> {
        let status = self.end(password)?;
        let text = self.text();
        ensure!(status.success(), "`{}`: {status}\n{text}", self.line);
        Ok(text)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
