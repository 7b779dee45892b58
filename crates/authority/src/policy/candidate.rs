//! A policy that can be put in force, and functions to read its text and to keep it in memory.

use crate::Directory;
use anyhow::{Context, Result, bail};
use engine::policy::{Compiled, MOST_TEXT, Policy};
use shell::table::count;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Maximum number of failing tests that a message lists.
pub const MOST_LISTED: usize = 20;

/// A policy that can be put in force: it is valid and not too large, and its own tests passed.
pub struct Candidate {
    /// The policy, in compiled form.
    pub policy: Compiled,
    /// The text of the policy.
    pub text: String,
}

impl Candidate {
    /// Reads the policy from `file` or, if it is `None`, from the directory's own policy file, and runs the policy's
    /// own tests.
    ///
    /// # Errors
    /// Fails if the configuration or the policy file cannot be read, the policy is not valid or too large, or one of
    /// its tests fails.
    pub fn read(directory: &Directory, file: Option<&Path>) -> Result<Self> {
        let (policy, text) = directory.read_policy(file)?;
        let path = file.map_or_else(|| directory.policy(), Path::to_owned);
        Self::tested(policy, text, &path.display().to_string())
    }

    /// Parses a policy and runs its own tests. Error messages call the text `name`.
    ///
    /// # Errors
    /// Fails if the policy is not valid or too large, or one of its tests fails.
    pub fn new(text: String, name: &str, max_lifetime: u32) -> Result<Self> {
        match Policy::parse(&text, max_lifetime) {
            Ok(policy) => Self::tested(policy, text, name),
            Err(faults) => bail!(faults.in_file(name)),
        }
    }

    /// Returns the numbers of receivers and rules in words, such as `3 receivers and 1 rule`.
    pub fn summary(&self) -> String {
        let policy = self.policy.policy();
        format!("{} and {}", count(policy.receiver_count(), "receiver"), count(policy.rules().len(), "rule"))
    }

    fn tested(policy: Policy, text: String, name: &str) -> Result<Self> {
        let policy = Compiled::new(policy).with_context(|| name.to_owned())?;
        let failures = policy.failures();
        if failures.is_empty() {
            return Ok(Self { policy, text });
        }
        let listed = failures.iter().take(MOST_LISTED);
        let mut lines: Vec<_> = listed.map(|failure| format!("{name}:{}: {}", failure.line, failure.message)).collect();
        if failures.len() > MOST_LISTED {
            lines.push(format!(
                "… and {} more: `vouchsafe authority policy test` shows all",
                failures.len() - MOST_LISTED
            ));
        }
        bail!("{}\nfailing tests of the policy: {}; nothing was changed", lines.join("\n"), failures.len());
    }
}

/// Moves the process's memory into huge pages, in the background. Decisions access a large policy at random places,
/// which is faster in huge pages.
pub(crate) fn into_huge_pages() {
    tokio::task::spawn_blocking(|| match shell::memory::into_huge_pages() {
        Ok(0) => {}
        Ok(bytes) => tracing::info!(bytes, "moved memory to huge pages"),
        Err(error) => tracing::warn!("cannot move memory to huge pages: {error}"),
    });
}

/// Reads the text of a policy. Stops one byte beyond the maximum length of a policy, however long the file is.
///
/// # Errors
/// Fails if the file cannot be read, is too long, or is not valid UTF-8.
pub(crate) fn read_text(path: &Path) -> Result<String> {
    let shown = path.display();
    let file = File::open(path).with_context(|| format!("cannot read {shown}"))?;
    let mut text = Vec::new();
    file.take(MOST_TEXT as u64 + 1).read_to_end(&mut text).with_context(|| format!("cannot read {shown}"))?;
    if text.len() > MOST_TEXT {
        bail!("{shown}:1:1: the policy exceeds the maximum of {MOST_TEXT} bytes");
    }
    String::from_utf8(text).map_err(|error| {
        let line =
            1 + error.as_bytes()[..error.utf8_error().valid_up_to()].iter().filter(|byte| **byte == b'\n').count();
        anyhow::anyhow!("{shown}:{line}: the text is not valid UTF-8 from here on")
    })
}
