//! The bill of materials: CycloneDX 1.6, as JSON, of all crates that are linked into the program or run while it is
//! built.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::{fs, iter};

use anyhow::{Context, Result};
use cargo_metadata::{DependencyKind, MetadataCommand, Package};
use serde_json::{Value, json};

use super::{Job, program};
use crate::audit::Graph;
use crate::run::{command, output};

/// Writes the bill of materials and returns its path.
pub fn make(job: &Job, source: &Path) -> Result<PathBuf> {
    let path = job.out.join(format!("vouchsafe_{}_{}.cdx.json", job.version, job.arch.debian()));
    fs::write(&path, text(job, source)?).with_context(|| path.display().to_string())?;
    Ok(path)
}

/// Returns the bill of materials as JSON.
pub fn text(job: &Job, source: &Path) -> Result<String> {
    let metadata = MetadataCommand::new()
        .current_dir(source)
        .other_options(["--locked", "--filter-platform", job.arch.rust()].map(String::from).to_vec())
        .exec()
        .context("cargo metadata")?;
    let graph = Graph::new(&metadata)?;
    let shipped = graph.shipped()?;
    let used = graph.reach(iter::once(&shipped.id), |_, kind| kind != DependencyKind::Development);
    let linked = graph.reach(iter::once(&shipped.id), |_, kind| kind == DependencyKind::Normal);
    let hashes = hashes(&fs::read_to_string(source.join("Cargo.lock")).context("Cargo.lock")?);

    let packages = || used.iter().map(|id| graph.packages[*id]);
    let mut components: Vec<_> = packages()
        .filter(|package| package.id != shipped.id)
        .map(|package| component(package, "library", &hashes, linked.contains(&package.id)))
        .collect();
    for (name, version) in program::packages(job.arch, &job.program)? {
        let purl =
            format!("pkg:deb/{}/{name}@{}?arch={}", distribution()?, version.replace('+', "%2B"), job.arch.debian());
        components.push(json!({
            "type": "library", "bom-ref": purl, "name": name, "version": version, "scope": "required", "purl": purl,
        }));
    }
    components.sort_by_key(reference);
    let mut dependencies: Vec<_> = used
        .iter()
        .map(|id| {
            let to = graph.nodes[*id].deps.iter().map(|dependency| &dependency.pkg).filter(|to| used.contains(to));
            let to: BTreeSet<_> = to.map(|to| purl(graph.packages[to])).collect();
            json!({ "ref": purl(graph.packages[*id]), "dependsOn": to })
        })
        .collect();
    dependencies.sort_by_key(|entry| entry["ref"].to_string());
    let time = output(command("date").args(["--utc", "+%Y-%m-%dT%H:%M:%SZ", "--date", &format!("@{}", job.epoch)]))?;
    let sbom = json!({
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": time.trim(),
            "component": component(shipped, "application", &hashes, true),
        },
        "components": components,
        "dependencies": dependencies,
    });
    Ok(serde_json::to_string_pretty(&sbom)? + "\n")
}

fn component(package: &Package, kind: &str, hashes: &BTreeMap<String, String>, linked: bool) -> Value {
    let mut component = json!({
        "type": kind,
        "bom-ref": purl(package),
        "name": *package.name,
        "version": package.version.to_string(),
        "scope": if linked { "required" } else { "excluded" },
        "purl": purl(package),
    });
    if let Some(licence) = &package.license {
        // The old form of "or".
        component["licenses"] = json!([{ "expression": licence.replace('/', " OR ") }]);
    }
    if let Some(hash) = hashes.get(&format!("{} {}", package.name, package.version)) {
        component["hashes"] = json!([{ "alg": "SHA-256", "content": hash }]);
    }
    component
}

fn reference(component: &Value) -> String {
    component["bom-ref"].to_string()
}

/// Returns a crate's package URL. The crates of this repository are on no registry.
fn purl(package: &Package) -> String {
    let name = format!("pkg:cargo/{}@{}", package.name, package.version.to_string().replace('+', "%2B"));
    match package.source {
        Some(_) => name,
        None => name + "?repository_url=none",
    }
}

/// Returns the name of this system in package URLs.
fn distribution() -> Result<String> {
    let release = fs::read_to_string("/etc/os-release").context("/etc/os-release")?;
    let id = release.lines().find_map(|line| line.strip_prefix("ID="));
    Ok(id.context("/etc/os-release has no ID")?.trim_matches('"').to_owned())
}

/// Returns the hashes in Cargo.lock, by name and version.
fn hashes(lock: &str) -> BTreeMap<String, String> {
    let value = |block: &str, key: &str| {
        let line = block.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = \""))?;
        line.strip_suffix('"').map(str::to_owned)
    };
    let of = |block: &str| {
        Some((format!("{} {}", value(block, "name")?, value(block, "version")?), value(block, "checksum")?))
    };
    lock.split("[[package]]").filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::hashes;

    #[test]
    fn hashes_are_those_of_the_lock_file() {
        let lock = "version = 4\n\n[[package]]\nname = \"a\"\nversion = \"1.0.0\"\nsource = \"x\"\nchecksum = \"abc\"\n\n\
                    [[package]]\nname = \"ours\"\nversion = \"0.1.0\"\n";
        assert_eq!(hashes(lock), [("a 1.0.0".to_owned(), "abc".to_owned())].into());
    }
}
