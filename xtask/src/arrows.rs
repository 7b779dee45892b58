//! Checks the structure of the code. The crates of the workspace may use only certain other crates, and the files of a
//! crate must not import each other in a cycle.

mod cycles;

use anyhow::{Result, ensure};
use cargo_metadata::{DependencyKind, Metadata, MetadataCommand};

use crate::run::root;

/// For each crate, the crates that its code may use, and further crates that only its tests may use.
const ALLOWED: &[(&str, &[&str], &[&str])] = &[
    ("wire", &[], &["measure"]),
    ("api", &["wire"], &[]),
    ("engine", &["wire", "seal"], &["measure", "shell"]),
    ("seal", &["wire"], &["measure"]),
    ("tunnel", &["wire", "engine", "seal"], &["lab", "measure"]),
    ("client", &["wire", "api", "engine"], &[]),
    ("follower", &["api", "engine", "client", "shell"], &[]),
    ("proofs", &["wire", "engine"], &["measure"]),
    ("shell", &[], &[]),
    ("measure", &[], &[]),
    // The tests of `etcd` need its feature `stage`, so the crate is among its own dev-dependencies.
    ("etcd", &[], &["etcd"]),
    ("datapath", &["wire", "engine"], &["lab", "measure", "proofs"]),
    ("authority", &["wire", "api", "engine", "etcd", "shell"], &["client", "measure"]),
    ("reach", &["wire", "api", "engine", "client", "shell"], &[]),
    ("user", &["wire", "api", "engine", "reach", "shell"], &[]),
    ("whois", &[], &[]),
    ("embed", &["reach", "whois"], &[]),
    ("agent", &["wire", "api", "engine", "client", "datapath", "reach", "shell", "tunnel", "user"], &["lab"]),
    (
        "verifier",
        &["wire", "api", "engine", "client", "datapath", "follower", "inspect", "proofs", "shell", "tunnel"],
        &["authority", "measure"],
    ),
    ("svtep", &["wire", "api", "engine", "client", "datapath", "follower", "shell"], &[]),
    ("doctor", &["wire", "datapath"], &[]),
    ("inspect", &["wire", "seal", "shell"], &[]),
    ("key_transfer", &["wire", "api", "datapath", "shell"], &[]),
    (
        "vouchsafe",
        &["authority", "agent", "verifier", "svtep", "doctor", "inspect", "key_transfer", "user"],
        &["api", "client", "datapath", "lab"],
    ),
    ("lab", &["wire"], &["api", "browser", "client", "datapath", "engine", "measure", "seal", "whois"]),
    ("browser", &["lab"], &[]),
    ("compare", &["lab", "wire"], &[]),
    ("harness", &["wire", "api", "engine", "seal", "whois"], &["lab"]),
    ("model", &["wire"], &["lab"]),
    ("xtask", &[], &[]),
];

/// Checks the dependencies and the imports. Fails with a list of every disallowed dependency, with its Cargo.toml, and
/// of every import cycle.
pub fn run() -> Result<()> {
    let metadata = MetadataCommand::new().current_dir(root()).no_deps().exec()?;
    let mut violations = violations(&metadata);
    for package in &metadata.packages {
        let source = package.manifest_path.with_file_name("src");
        for cycle in cycles::find(source.as_std_path())? {
            violations.push(format!("  {source}: files import each other:\n{}", cycles::lines(&cycle)));
        }
    }
    ensure!(violations.is_empty(), "arrows: these are not allowed:\n{}", violations.join("\n"));
    println!("arrows: {} crates, all as allowed", metadata.packages.len());
    Ok(())
}

fn violations(metadata: &Metadata) -> Vec<String> {
    let mut violations = Vec::new();
    for package in &metadata.packages {
        let manifest = package.manifest_path.strip_prefix(&metadata.workspace_root).unwrap_or(&package.manifest_path);
        let Some((_, code, tests)) = ALLOWED.iter().find(|(name, ..)| *name == package.name.as_str()) else {
            violations.push(format!("  {manifest}: add {} to xtask/src/arrows.rs", package.name));
            continue;
        };
        for dependency in package.dependencies.iter().filter(|dependency| dependency.path.is_some()) {
            let name = dependency.name.as_str();
            let is_test = dependency.kind == DependencyKind::Development;
            if !(code.contains(&name) || is_test && tests.contains(&name)) {
                let section = if is_test { "dev-dependencies" } else { "dependencies" };
                violations.push(format!("  {manifest}: {} must not have {name} among its {section}", package.name));
            }
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_arrow_leads_back() {
        for (name, code, _) in ALLOWED {
            for used in *code {
                let (_, theirs, _) = ALLOWED.iter().find(|(name, ..)| name == used).expect("every target is listed");
                assert!(!theirs.contains(name), "{name} and {used} use each other");
            }
        }
    }

    #[test]
    fn roles_are_not_on_each_other() {
        let roles = ["authority", "agent", "verifier", "svtep"];
        for (name, code, _) in ALLOWED.iter().filter(|(name, ..)| roles.contains(name)) {
            assert!(code.iter().all(|used| !roles.contains(used)), "{name}");
        }
    }
}
