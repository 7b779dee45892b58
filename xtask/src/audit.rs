//! Audits the dependencies: licences, duplicates, unused dependencies, and advisories. It reads cargo's metadata, so it
//! works offline.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use cargo_metadata::{Dependency, DependencyKind, Metadata, MetadataCommand, Node, Package, PackageId, TargetKind};

use crate::licence;
use crate::run::{self, cargo, root};

const SHIPPED: &str = "vouchsafe";
const EXCEPTIONS: &str = "xtask/audit-exceptions.txt";

/// Checks licences, duplicates, unused dependencies and advisories, and prints a line for each check. Fails with all
/// findings together.
pub fn run() -> Result<()> {
    let metadata = MetadataCommand::new()
        .current_dir(root())
        .other_options(["--locked", "--filter-platform", "x86_64-unknown-linux-gnu"].map(String::from).to_vec())
        .exec()
        .context("cargo metadata")?;
    let graph = Graph::new(&metadata)?;
    let mut exceptions = exceptions(&fs::read_to_string(root().join(EXCEPTIONS)).context(EXCEPTIONS)?)?;
    let mut findings = Vec::new();

    let linked = graph.reach(metadata.workspace_members.iter(), |_, kind| kind != DependencyKind::Development);
    let packages = || linked.iter().map(|id| graph.packages[id]);
    let refused = packages().filter(|package| !package.license.as_deref().is_some_and(licence::is_allowed));
    for package in refused {
        if exceptions.remove(&format!("licence {}", package.name)).is_none() {
            let finding = format!("{} {}: licence {:?} is not allowed", package.name, package.version, package.license);
            findings.push(finding);
        }
    }
    println!("audit: licences of {} crates", linked.len());

    let duplicates = graph.duplicates()?;
    for (name, versions) in &duplicates {
        if exceptions.remove(&format!("duplicate {name}")).is_none() {
            findings.push(format!("{SHIPPED} contains {name} in several versions: {}", versions.join(", ")));
        }
    }
    println!("audit: duplicates in {SHIPPED}: {}", duplicates.len());

    let mut listed = 0;
    for member in metadata.workspace_packages() {
        listed += member.dependencies.len();
        for name in unused(member)? {
            if exceptions.remove(&format!("unused {}/{name}", member.name)).is_none() {
                findings.push(format!("{} lists {name} as a dependency and does not use it", member.name));
            }
        }
    }
    println!("audit: uses of {listed} dependencies");

    advisories(&mut findings);
    findings
        .extend(exceptions.keys().map(|what| format!("{EXCEPTIONS}: the exception \"{what}\" is not needed any more")));
    ensure!(
        findings.is_empty(),
        "audit found:\n  {}\nA finding with a good reason goes into {EXCEPTIONS}.",
        findings.join("\n  ")
    );
    Ok(())
}

/// The resolved dependency graph.
pub struct Graph<'a> {
    /// Every package, by its id.
    pub packages: HashMap<&'a PackageId, &'a Package>,
    /// The dependencies of each package.
    pub nodes: HashMap<&'a PackageId, &'a Node>,
}

impl<'a> Graph<'a> {
    /// Reads the graph from cargo's metadata.
    pub fn new(metadata: &'a Metadata) -> Result<Self> {
        let resolve = metadata.resolve.as_ref().context("cargo metadata resolved no dependencies")?;
        Ok(Self {
            packages: metadata.packages.iter().map(|package| (&package.id, package)).collect(),
            nodes: resolve.nodes.iter().map(|node| (&node.id, node)).collect(),
        })
    }

    /// Returns the packages that can be reached from `from` over edges that `follow` accepts, including those in
    /// `from`.
    pub fn reach(
        &self,
        from: impl Iterator<Item = &'a PackageId>,
        follow: impl Fn(&Package, DependencyKind) -> bool,
    ) -> BTreeSet<&'a PackageId> {
        let mut seen = BTreeSet::new();
        let mut open: Vec<_> = from.collect();
        while let Some(id) = open.pop() {
            if seen.insert(id) {
                let wanted = |dependency: &&cargo_metadata::NodeDep| {
                    dependency.dep_kinds.iter().any(|info| follow(self.packages[&dependency.pkg], info.kind))
                };
                open.extend(self.nodes[id].deps.iter().filter(wanted).map(|dependency| &dependency.pkg));
            }
        }
        seen
    }

    /// Returns the crate of the binary that Vouchsafe ships.
    pub fn shipped(&self) -> Result<&'a Package> {
        let mut packages = self.packages.values().copied();
        packages
            .find(|package| package.name == SHIPPED)
            .with_context(|| format!("the workspace has no package {SHIPPED}"))
    }

    /// Returns the crates of which the shipped binary contains more than one version. Dependencies of proc macros are
    /// not in the binary.
    fn duplicates(&self) -> Result<BTreeMap<&'a str, Vec<String>>> {
        let shipped = self.shipped()?;
        let in_binary = self.reach([&shipped.id].into_iter(), |package, kind| {
            kind == DependencyKind::Normal
                && !package.targets.iter().any(|target| target.kind.contains(&TargetKind::ProcMacro))
        });
        let mut versions = BTreeMap::<&str, Vec<String>>::new();
        for package in in_binary.iter().map(|id| self.packages[id]) {
            versions.entry(&package.name).or_default().push(package.version.to_string());
        }
        versions.retain(|_, versions| versions.len() > 1);
        Ok(versions)
    }
}

/// Parses the file of exceptions. Returns the reason for each accepted finding.
fn exceptions(text: &str) -> Result<BTreeMap<String, String>> {
    let mut exceptions = BTreeMap::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        match line.split_once(": ") {
            Some((what, reason)) if !reason.trim().is_empty() => exceptions.insert(what.into(), reason.trim().into()),
            _ => bail!("{EXCEPTIONS}: \"{line}\" gives no reason"),
        };
    }
    Ok(exceptions)
}

/// Returns the names of those dependencies of `member` that its sources do not use.
fn unused(member: &Package) -> Result<Vec<String>> {
    let dir = member.manifest_path.parent().context("the manifest has no folder")?.as_std_path();
    let mut code = String::new();
    for part in ["src", "tests", "benches", "examples"] {
        read_sources(&dir.join(part), &mut code)?;
    }
    let build = fs::read_to_string(dir.join("build.rs")).map(|text| without_comments(&text)).unwrap_or_default();
    let is_unused = |dependency: &&Dependency| {
        let identifier = dependency.rename.as_ref().unwrap_or(&dependency.name).replace('-', "_");
        !names(if dependency.kind == DependencyKind::Build { &build } else { &code }, &identifier)
    };
    Ok(member.dependencies.iter().filter(is_unused).map(|dependency| dependency.name.clone()).collect())
}

fn read_sources(dir: &Path, code: &mut String) -> Result<()> {
    let Ok(entries) = fs::read_dir(dir) else { return Ok(()) };
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            read_sources(&path, code)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            code.push_str(&without_comments(&fs::read_to_string(&path).with_context(|| path.display().to_string())?));
        }
    }
    Ok(())
}

fn without_comments(code: &str) -> String {
    code.lines().filter(|line| !line.trim_start().starts_with("//")).flat_map(|line| [line, "\n"]).collect()
}

/// Reports whether `code` uses the crate `name`, as `name::…`, `use name` or `extern crate name`.
fn names(code: &str, name: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(name).any(|(at, _)| {
        let (before, after) = (code[..at].trim_end_matches(is_word), &code[at + name.len()..]);
        if before.len() != at || after.starts_with(is_word) {
            return false;
        }
        let before = before.trim_end();
        after.starts_with("::") || before.ends_with("use") || before.ends_with("extern crate")
    })
}

/// Checks RustSec's advisories if cargo-audit and its database are on this machine. Downloads nothing.
fn advisories(findings: &mut Vec<String>) {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".cargo")));
    let database = home.map(|home| home.join("advisory-db")).filter(|database| database.is_dir());
    if database.is_none() || !run::succeeds(&mut cargo(["audit", "--version"])) {
        println!("audit: advisories SKIPPED: cargo-audit and its database are not here, and this check works offline");
        return;
    }
    match run::run(&mut cargo(["audit", "--no-fetch", "--stale"])) {
        Ok(()) => println!("audit: advisories"),
        Err(error) => findings.push(format!("advisories: {error:#}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crate_is_used_by_path_or_import_only() {
        for code in
            ["let x = hex::encode(y);", "use hex;", "use hex as h;", "pub use hex::decode;", "extern crate hex;"]
        {
            assert!(names(code, "hex"), "{code}");
        }
        for code in ["let hex = 1;", "self.hex", "use hexyl::x;", "unhex::x()", "hex: u8", ""] {
            assert!(!names(code, "hex"), "{code}");
        }
        assert!(!names(&without_comments("/// see hex::encode\n"), "hex"));
    }

    #[test]
    fn an_exception_needs_a_reason() {
        let good = exceptions("# head\n\nduplicate syn: two worlds\n").unwrap();
        assert_eq!(good["duplicate syn"], "two worlds");
        assert!(exceptions("duplicate syn").is_err());
        assert!(exceptions("duplicate syn: ").is_err());
    }
}
