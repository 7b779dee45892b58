//! Which crate of the workspace may depend on which, and that no files of a crate import each other: the shape of the code, checked.

mod cycles;

use anyhow::{Result, ensure};
use cargo_metadata::{DependencyKind, Metadata, MetadataCommand};

use crate::run::root;

/// For each crate: what its code may use, and what only its tests may use besides.
const ALLOWED: &[(&str, &[&str], &[&str])] = &[
    ("wire", &[], &["measure"]),
    ("engine", &["wire", "seal"], &["measure", "shell"]),
    ("seal", &["wire"], &["measure"]),
    ("client", &["wire", "engine"], &[]),
    ("proofs", &["wire", "engine"], &["measure"]),
    ("shell", &[], &[]),
    ("measure", &[], &[]),
    ("datapath", &["wire", "engine"], &["lab", "measure", "proofs"]),
    ("authority", &["wire", "engine", "shell"], &["client", "measure"]),
    ("agent", &["wire", "engine", "client", "datapath", "shell"], &["lab"]),
    ("verifier", &["wire", "engine", "client", "datapath", "inspect", "proofs", "shell"], &["authority", "measure"]),
    ("svtep", &["wire", "engine", "client", "datapath", "shell"], &[]),
    ("doctor", &["wire", "datapath"], &[]),
    ("inspect", &["wire", "shell"], &[]),
    ("transfer", &["wire", "engine", "datapath", "shell"], &[]),
    (
        "vouchsafe",
        &["authority", "agent", "verifier", "svtep", "doctor", "inspect", "transfer"],
        &["client", "datapath", "engine", "lab"],
    ),
    ("lab", &["wire"], &["client", "engine", "datapath", "measure"]),
    ("browser", &["lab"], &[]),
    ("harness", &["wire", "engine", "seal"], &["lab"]),
    ("model", &["wire"], &["lab"]),
    ("xtask", &[], &[]),
];

/// Crates that still have cycles: their number may only fall.
const KNOTS: &[(&str, usize)] = &[("authority", 1)];

/// Fails with every arrow that isn't allowed, naming the Cargo.toml that draws it, and with every import cycle.
pub fn run() -> Result<()> {
    let metadata = MetadataCommand::new().current_dir(root()).no_deps().exec()?;
    let mut violations = violations(&metadata);
    for package in &metadata.packages {
        let source = package.manifest_path.with_file_name("src");
        let known = KNOTS.iter().find(|(name, _)| *name == package.name.as_str()).map_or(0, |(_, count)| *count);
        let found = cycles::find(source.as_std_path())?;
        if found.len() > known {
            let cycles =
                found.iter().map(|cycle| format!("  {source}: files import each other:\n{}", cycles::lines(cycle)));
            violations.extend(cycles);
        } else if found.len() < known {
            violations.push(format!("  {source}: {} cycles are left: lower KNOTS in xtask/src/arrows.rs", found.len()));
        }
    }
    ensure!(violations.is_empty(), "arrows: not allowed:\n{}", violations.join("\n"));
    println!("arrows: {} crates, all as allowed", metadata.packages.len());
    Ok(())
}

fn violations(metadata: &Metadata) -> Vec<String> {
    let mut violations = Vec::new();
    for package in &metadata.packages {
        let manifest = package.manifest_path.strip_prefix(&metadata.workspace_root).unwrap_or(&package.manifest_path);
        let Some((_, code, tests)) = ALLOWED.iter().find(|(name, ..)| *name == package.name.as_str()) else {
            violations.push(format!("  {manifest}: {} has no place in xtask/src/arrows.rs", package.name));
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
