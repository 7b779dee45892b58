//! Adds man pages and shell completions to a package. The program that is packaged writes them itself.

use std::fs;

use anyhow::{Context, Result};

use super::tree::Tree;
use super::{Job, program};
use crate::run::{output, run};

/// Completions: the shell, and where Debian has its files.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "usr/share/bash-completion/completions/vouchsafe"),
    ("zsh", "usr/share/zsh/vendor-completions/_vouchsafe"),
    ("fish", "usr/share/fish/vendor_completions.d/vouchsafe.fish"),
];

/// Adds man pages and completions to a tree.
pub fn add(job: &Job, tree: &Tree) -> Result<()> {
    let man = tree.folder("usr/share/man/man1", 0o755)?;
    run(program::command_for(job.arch, &job.program)?.arg("man").arg(&man))?;
    for page in fs::read_dir(&man)? {
        let name = page?.file_name().into_string().ok().context("the name of a man page is not UTF-8")?;
        let path = format!("usr/share/man/man1/{name}");
        let text = fs::read(man.join(&name))?;
        tree.put(&path, 0o644, text)?;
        tree.gzip(&path)?;
    }
    for (shell, path) in COMPLETIONS {
        tree.put(path, 0o644, output(program::command_for(job.arch, &job.program)?.args(["completions", shell]))?)?;
    }
    Ok(())
}
