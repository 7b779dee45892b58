//! Senders who ask for a treatment in a sealed tunnel. The configuration names such senders by DSCP, user or cgroup.
//! Each command of `vouchsafe run --treatment` is such a sender, too, in a cgroup of its own. The treatment that a
//! sender asks for (its *wish*) can only be stronger than what the rule demands, never weaker.

use crate::owners::{cgroup, root, user};
use anyhow::{Context, Result, bail};
use engine::model::Wish;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use wire::map::{ASKS, ASKS_BY_CGROUP, KEEPS_FLOWS, Owner, owner};

/// Beginning of the names of the cgroups that the agent makes for commands.
const NAME: &str = "vouchsafe-treatment-";
/// Maximum numbers of commands with a wish at a time: of all users together, and of one user.
const COMMANDS: (usize, usize) = (512, 32);
/// Maximum depth of a cgroup whose wish the kernel's program finds (`ASKER_LEVELS` in bpf/include/layout.h).
const DEPTH: usize = 8;
/// Number of names that are tried for a new cgroup. The user owns the folder around it, and may already use some of the
/// names.
const NAMES_TRIED: usize = 64;

/// A sender and the sender's wish, in the form of an entry in the kernel's table.
pub type Wished = (Owner, u32);

/// Reads a setting such as `dscp:10=encrypt` or `user:alice=authenticate,compress`.
///
/// # Errors
///
/// Fails if the setting is invalid, or if the user or cgroup can't be found.
pub fn setting(text: &str) -> Result<Wished> {
    let form =
        "write KIND:NAME=TREATMENT, such as dscp:10=encrypt, user:alice=authenticate or cgroup:/a=encrypt,compress";
    let (asker, words) = text.rsplit_once('=').with_context(|| format!("treatment: {text:?} is invalid: {form}"))?;
    let (kind, name) = asker.split_once(':').with_context(|| format!("treatment: {text:?} is invalid: {form}"))?;
    let asker = match kind {
        "dscp" => {
            let number = name.parse().ok().filter(|number| (1..64).contains(number));
            let id =
                number.with_context(|| format!("treatment: {name:?} is not a DSCP: write a number from 1 to 63"))?;
            Owner { kind: owner::DSCP, reserved: 0, id }
        }
        "user" => Owner { kind: owner::USER, reserved: 0, id: user(name).context("treatment")?.user().into() },
        "cgroup" => cgroup(name).context("treatment")?,
        _ => bail!("treatment: {text:?} is invalid: {form}"),
    };
    Ok((asker, wish(words)?.bits()))
}

/// Reads a wish in words, such as `encrypt,compress`.
///
/// # Errors
///
/// Fails if a word is unknown or names a suite. Only a rule can select suites.
pub fn wish(words: &str) -> Result<Wish> {
    let wish = Wish::from_words(words).map_err(|word| {
        anyhow::anyhow!(
            "{word:?} is not a treatment: write `authenticate` or `encrypt`, optionally followed by `,compress`"
        )
    })?;
    if wish.suites.is_some() {
        bail!(
            "{words:?} names a suite, but only a rule can select suites: write a treatment, optionally followed by \
             `,compress`"
        );
    }
    Ok(wish)
}

/// The wishes of the configuration and of all running commands.
#[derive(Default)]
pub struct Wishes {
    configured: Vec<Wished>,
    commands: Vec<Command>,
    next: u32,
}

/// A command of `vouchsafe run --treatment`.
struct Command {
    user: u32,
    cgroup: PathBuf,
    wished: Wished,
}

impl Wishes {
    /// Combines the wishes in the configuration with `known`, the entries of the kernel's table. From `known`, takes
    /// over only the wishes of commands for which an earlier process of the agent made a cgroup.
    pub fn new(configured: Vec<Wished>, known: &[Wished]) -> Self {
        let mut wishes = Self { configured, ..Self::default() };
        if known.iter().any(|(asker, _)| asker.kind == owner::CGROUP)
            && let Ok(root) = root()
        {
            wishes.find(&root, known, DEPTH);
        }
        wishes
    }

    fn find(&mut self, folder: &Path, known: &[Wished], depth: usize) {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
            if name.starts_with(NAME) {
                let (inode, user) = entry.metadata().map(|data| (data.ino(), data.uid())).unwrap_or_default();
                let wished = known.iter().find(|(asker, _)| asker.kind == owner::CGROUP && asker.id == inode);
                self.commands.extend(wished.map(|wished| Command { user, cgroup: path, wished: *wished }));
            } else if depth > 0 {
                self.find(&path, known, depth - 1);
            }
        }
    }

    /// Returns all wishes, and the bits of `Steering::asks` with which the kernel's programs follow these wishes.
    pub fn all(&self) -> (Vec<Wished>, u32) {
        let all: Vec<_> =
            self.configured.iter().chain(self.commands.iter().map(|command| &command.wished)).copied().collect();
        let by_cgroup = all.iter().any(|(asker, _)| asker.kind == owner::CGROUP);
        let asks = if all.is_empty() { 0 } else { KEEPS_FLOWS | ASKS };
        (all, asks | if by_cgroup { ASKS_BY_CGROUP } else { 0 })
    }

    /// Puts a process of a user into a new cgroup, and adds the wish in `words` for this cgroup. Processes that the
    /// process starts later are in the same cgroup. The new cgroup is below the present cgroup of the process, so that
    /// the limits of the present cgroup still apply.
    ///
    /// # Errors
    ///
    /// Fails if `words` are invalid, if the process is not the user's, if too many commands have a wish already, if the
    /// present cgroup is nested too deeply, or if the new cgroup can't be made or entered.
    pub fn command(&mut self, user: u32, process: u32, words: &str) -> Result<()> {
        let bits = wish(words)?.bits();
        let of_user = self.commands.iter().filter(|command| command.user == user).count();
        if self.commands.len() >= COMMANDS.0 || of_user >= COMMANDS.1 {
            bail!("too many commands with a treatment run already: wait for one to end");
        }
        let owner =
            fs::metadata(format!("/proc/{process}")).with_context(|| format!("there is no process {process}"))?.uid();
        if user != 0 && owner != user {
            bail!("process {process} is not yours");
        }
        let root = root()?;
        let lines =
            fs::read_to_string(format!("/proc/{process}/cgroup")).context("cannot find the process's cgroup")?;
        let now = lines.lines().find_map(|line| line.strip_prefix("0::")).context("the process has no cgroup2")?;
        let now = Path::new(now.trim_start_matches('/'));
        if now.components().count() >= DEPTH {
            bail!(
                "the process's cgroup {} is nested too deeply: the agent supports treatments only for cgroups up to \
                 depth {DEPTH}. Start the command in another cgroup, for example in a new login session",
                now.display()
            );
        }
        let cgroup = self.folder_below(&root.join(now))?;
        let entered = fs::write(cgroup.join("cgroup.procs"), process.to_string());
        if let Err(error) = entered {
            let _ = fs::remove_dir(&cgroup);
            return Err(error).with_context(|| format!("cannot put the process into {}", cgroup.display()));
        }
        let id = fs::metadata(&cgroup)?.ino();
        // After a restart of the agent, the owner of the cgroup's folder shows whose command it is.
        let _ = std::os::unix::fs::chown(&cgroup, Some(user), None);
        let wished = (Owner { kind: owner::CGROUP, reserved: 0, id }, bits);
        self.commands.push(Command { user, cgroup, wished });
        Ok(())
    }

    /// Makes a folder with a new name.
    fn folder_below(&mut self, parent: &Path) -> Result<PathBuf> {
        for _ in 0..NAMES_TRIED {
            self.next = self.next.wrapping_add(1);
            let folder = parent.join(format!("{NAME}{}", self.next));
            match fs::create_dir(&folder) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                made => {
                    made.with_context(|| format!("cannot make the cgroup {}", folder.display()))?;
                    return Ok(folder);
                }
            }
        }
        bail!("{} has too many cgroups named {NAME}…: remove them", parent.display())
    }

    /// Removes the cgroups and wishes of commands that have ended. Returns whether any command has ended.
    pub fn sweep(&mut self) -> bool {
        // The kernel refuses to remove a cgroup with processes in it.
        let is_over = |command: &mut Command| fs::remove_dir(&command.cgroup).is_ok() || !command.cgroup.exists();
        self.commands.extract_if(.., is_over).count() > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::model::Treatment;
    use wire::map::Steered;

    #[test]
    fn settings_are_read() {
        let dscp = Owner { kind: owner::DSCP, reserved: 0, id: 10 };
        assert_eq!(setting("dscp:10=encrypt").unwrap(), (dscp, Treatment::Encrypt as u32));
        let (asker, bits) = setting("user:0=authenticate,compress").unwrap();
        assert_eq!((asker.kind, asker.id), (owner::USER, 0));
        assert_eq!(bits, Treatment::Authenticate as u32 | Steered::COMPRESS);
        for wrong in
            ["encrypt", "dscp:0=encrypt", "dscp:64=encrypt", "program:x=encrypt", "dscp:1=veil", "dscp:1=aes-128-gcm"]
        {
            assert!(setting(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn names_that_are_taken_are_passed_over_and_numbers_never_overflow() {
        let parent = std::env::temp_dir().join(format!("vouchsafe-wishes-{}", std::process::id()));
        fs::create_dir(&parent).unwrap();
        let mut wishes = Wishes { next: u32::MAX - 1, ..Wishes::default() };
        fs::create_dir(parent.join(format!("{NAME}{}", u32::MAX))).unwrap();
        let made = wishes.folder_below(&parent).unwrap();
        assert_eq!(made, parent.join(format!("{NAME}0")));
        fs::remove_dir_all(&parent).unwrap();
    }

    #[test]
    fn the_kernel_s_number_of_a_treatment_is_that_of_records() {
        for treatment in Treatment::ALL {
            let number = treatment.of_records().map_or(0, |records| records as u32);
            assert_eq!(number, treatment as u32);
        }
    }
}
