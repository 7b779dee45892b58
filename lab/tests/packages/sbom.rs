//! The bill of materials: valid by CycloneDX's own schema, and complete.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use anyhow::{Context, ensure};
use lab::package::package;
use lab::{process, test};
use serde_json::Value;
use tempfile::TempDir;

/// Prints what is wrong with a document.
const VALIDATE: &str = "
import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
fault = JsonStrictValidator(SchemaVersion.V1_6).validate_str(open(sys.argv[1]).read())
print(fault or 'valid')
";

fn names<'a>(sbom: &'a Value, kind: &str) -> BTreeSet<&'a str> {
    let components = sbom["components"].as_array().into_iter().flatten();
    let named = components.filter(|component| component["purl"].as_str().is_some_and(|purl| purl.starts_with(kind)));
    named.filter_map(|component| component["name"].as_str()).collect()
}

#[test]
fn a_bill_of_materials_is_valid_and_names_crates_and_libraries() {
    test(|| {
        let out = TempDir::new()?;
        let path = package("sbom", 1, out.path())?;
        let python = lab::built().context("no folder of built programs")?;
        let python = python.with_file_name("tools").join("cyclonedx/bin/python");
        ensure!(python.exists(), "{} is missing: `sh xtask/setup.sh test` installs it", python.display());
        let said = process::output(Command::new(python).args(["-c", VALIDATE]).arg(&path))?;
        ensure!(said.trim() == "valid", "{said}");
        let sbom: Value = serde_json::from_slice(&fs::read(path)?)?;
        let crates = names(&sbom, "pkg:cargo/");
        ensure!(["tokio", "libbpf-sys", "ring", "wire"].iter().all(|name| crates.contains(name)), "{crates:?}");
        ensure!(!crates.contains("lab"), "a crate for tests only is in it");
        let libraries = names(&sbom, "pkg:deb/");
        ensure!(libraries.iter().any(|name| name.starts_with("libelf")), "{libraries:?}");
        let unhashed = sbom["components"].as_array().into_iter().flatten().filter(|component| {
            let purl = component["purl"].as_str().unwrap_or_default();
            purl.starts_with("pkg:cargo/") && !purl.contains('?') && component["hashes"].is_null()
        });
        ensure!(unhashed.count() == 0, "crates of a registry without hashes");
        Ok(())
    });
}
