//! Checks on the text of the code: formatting, forbidden words, clippy, and clang's warnings on the kernel programs.

mod comments;
mod places;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use cargo_metadata::MetadataCommand;
use clap::ValueEnum;

use crate::run::{cargo, command, output, root, run as run_command};
use crate::target_dir;

/// A check that `lint` runs.
#[derive(Clone, Copy, PartialEq, ValueEnum)]
pub enum Check {
    /// rustfmt
    Fmt,
    /// Forbidden words, broken links in documents, comments that begin with a relative clause, files that are too long
    Style,
    /// clippy, every warning an error
    Clippy,
    /// The kernel programs under -Wall -Wextra -Wno-unused-parameter -Werror
    Clang,
}

/// Strings that must not be committed. They are split so that this file does not contain them.
const FORBIDDEN: &[[&str; 2]] = &[["todo", "!("], ["unimplemented", "!("], ["dbg", "!("], ["../", "shared"]];

/// Maximum number of lines of a source file.
const LONG_FILE: usize = 600;

/// Runs the checks in `only`, or all checks if it is empty.
pub fn run(only: &[Check]) -> Result<()> {
    for check in Check::value_variants().iter().filter(|check| only.is_empty() || only.contains(check)) {
        match check {
            Check::Fmt => run_command(&mut cargo(["fmt", "--all", "--check"]))?,
            Check::Style => style()?,
            Check::Clippy => {
                run_command(&mut cargo(["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]))?
            }
            Check::Clang => clang()?,
        }
    }
    Ok(())
}

fn style() -> Result<()> {
    let mut findings = Vec::new();
    // Do not use git, because it refuses to read a checkout that another user owns.
    let built = "-name target -o -name .git -o -name corpus -o -name artifacts -o -name Cargo.lock".split(' ');
    let files =
        output(command("find").args([".", "("]).args(built).args([")", "-prune", "-o", "-type", "f", "-print"]))?;
    for name in files.lines().map(|name| name.trim_start_matches("./")) {
        // Binary files have no text to check.
        let Ok(text) = fs::read_to_string(root().join(name)) else { continue };
        for (number, line) in text.lines().enumerate() {
            findings.extend(forbidden(line).map(|word| format!("{name}:{}: {word}", number + 1)));
            if name.ends_with(".md") {
                let folder = root().join(name);
                let folder = folder.parent().context("the file has no folder")?;
                let lost = links(line).filter(|link| !folder.join(link).exists());
                findings.extend(
                    lost.map(|link| format!("{name}:{}: the link {link} leads to no file or heading", number + 1)),
                );
            }
        }
        let sentences = marks(name).map(|marks| comments::relative_clauses(&text, marks)).unwrap_or_default();
        findings.extend(sentences.iter().map(|(line, words)| format!("{name}:{line}: name the actor first: {words}")));
        if name == "CONTRIBUTING.md" {
            let found = places::findings(&text, root());
            findings.extend(found.iter().map(|(line, what)| format!("{name}:{line}: {what}")));
        }
        let lines = text.lines().count();
        let is_code = [".rs", ".c", ".h"].iter().any(|ending| name.ends_with(ending));
        if is_code && lines > LONG_FILE {
            findings.push(format!("{name}: {lines} lines, but a file may have at most {LONG_FILE}: divide it by duty"));
        }
    }
    ensure!(findings.is_empty(), "style: correct these findings:\n  {}", findings.join("\n  "));
    Ok(())
}

/// Returns the targets of a Markdown line's links, without those to other sites or within the same document.
fn links(line: &str) -> impl Iterator<Item = &str> {
    let targets = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let within = targets.filter(|target| !target.contains("://") && !target.starts_with('#'));
    within.filter_map(|target| target.split('#').next())
}

/// Returns the markers that begin comment lines in the language of a file; `None` if comments in it are not checked.
fn marks(name: &str) -> Option<&'static [&'static str]> {
    match name.rsplit_once('.')?.1 {
        "rs" => Some(&["///", "//!", "//"]),
        "c" | "h" => Some(&["/*", "*", "//"]),
        "py" | "sh" => Some(&["#"]),
        _ => None,
    }
}

fn forbidden(line: &str) -> impl Iterator<Item = String> {
    FORBIDDEN.iter().map(|pieces| pieces.concat()).filter(|word| line.contains(word))
}

/// Compiles bpf/*.bpf.c as the build of `datapath` does, but with warnings as errors.
fn clang() -> Result<()> {
    let bpf = root().join("bpf");
    let is_program = |path: &PathBuf| path.to_string_lossy().ends_with(".bpf.c");
    let mut programs: Vec<_> = fs::read_dir(&bpf).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    programs.retain(is_program);
    programs.sort();
    if programs.is_empty() {
        println!("clang: no programs in {}", bpf.display());
    }
    let headers = libbpf_headers()?;
    for program in &programs {
        let object = target_dir()
            .join("lint")
            .join(program.with_extension("o").file_name().context("the program's path names no file")?);
        run_command(
            command("clang")
                .args("-Wall -Wextra -Wno-unused-parameter -Werror -target bpf -O2 -g -mcpu=v3 -c".split(' '))
                .arg(if cfg!(target_arch = "aarch64") { "-D__TARGET_ARCH_arm64" } else { "-D__TARGET_ARCH_x86" })
                // The UAPI's <asm/…> headers are below the host's multiarch folder, which -target bpf does not search.
                .args(["-idirafter", &format!("/usr/include/{}-linux-gnu", std::env::consts::ARCH)])
                .arg("-isystem")
                .arg(&headers)
                .arg("-I")
                .arg(bpf.join("include"))
                .arg("-o")
                .arg(object)
                .arg(program),
        )?;
    }
    println!("clang: {} programs without a warning", programs.len());
    Ok(())
}

/// Returns a folder in which `<bpf/…>` headers are found: those of the libbpf version that cargo builds.
fn libbpf_headers() -> Result<PathBuf> {
    let metadata = MetadataCommand::new().current_dir(root()).exec()?;
    let Some(sys) = metadata.packages.iter().find(|package| package.name == "libbpf-sys") else {
        bail!("libbpf-sys is not among the dependencies");
    };
    let sources = sys.manifest_path.parent().context("the manifest has no folder")?.join("libbpf/src");
    let dir = target_dir().join("lint");
    fs::create_dir_all(&dir)?;
    let link = dir.join("bpf");
    if fs::read_link(&link).ok().as_deref() != Some(Path::new(sources.as_str())) {
        let _ = fs::remove_file(&link);
        symlink(&sources, &link).with_context(|| format!("could not link {}", link.display()))?;
    }
    Ok(dir)
}

#[cfg(test)]
mod tests {
    use super::{forbidden, links};

    #[test]
    fn links_within_the_tree_are_found() {
        let line = "see [a](docs/a.md#b), [c](https://example.org/c), [d](#e) and [f](../f)";
        assert_eq!(links(line).collect::<Vec<_>>(), ["docs/a.md", "../f"]);
    }

    #[test]
    fn forbidden_words_are_found() {
        assert_eq!(forbidden(&["    to", "do!()"].concat()).count(), 1);
        assert_eq!(forbidden("// the todo list").count(), 0);
    }
}
