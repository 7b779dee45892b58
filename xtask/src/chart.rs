//! The Helm chart, and the plain manifests that it renders with its defaults.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::run::{command, output, root, run};
use crate::target_dir;

const CHART: &str = "packaging/helm/vouchsafe";
const MANIFESTS: &str = "packaging/kubernetes/vouchsafe.yaml";
const HEAD: &str =
    "# Written by `cargo xtask chart` from packaging/helm/vouchsafe, with its default values: docs/kubernetes.md.\n";

/// Checks the Helm chart, and renders it into packaging/kubernetes/vouchsafe.yaml.
pub fn write() -> Result<()> {
    let helm = helm().context("no helm: `sh xtask/setup.sh test` builds it, with Go 1.24 or later")?;
    run(command(helm).args(["lint", "--strict", CHART]))?;
    let path = root().join(MANIFESTS);
    fs::write(&path, render(&[])?).with_context(|| path.display().to_string())?;
    println!("{}", path.display());
    Ok(())
}

/// Returns the path of helm: the one that the setup has built, else the system's.
fn helm() -> Option<PathBuf> {
    let built = fs::read_dir(target_dir().join("parts/helm")).into_iter().flatten().flatten();
    let mut built: Vec<_> = built.map(|version| version.path().join("helm")).filter(|helm| helm.exists()).collect();
    built.sort();
    built.pop().or_else(|| {
        let paths = std::env::var_os("PATH")?;
        std::env::split_paths(&paths).map(|dir| dir.join("helm")).find(|helm| helm.exists())
    })
}

/// Returns the manifests that the chart renders with these values.
fn render(values: &[&str]) -> Result<String> {
    let mut template = command(helm().context("no helm")?);
    template.args(["template", "vouchsafe", CHART, "--namespace", "vouchsafe"]);
    for value in values {
        template.args(["--set", value]);
    }
    Ok(HEAD.to_owned() + &output(&mut template)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::io::Write;

    fn manifests() -> String {
        fs::read_to_string(root().join(MANIFESTS)).unwrap()
    }

    /// Reports whether helm is on this machine, and prints a line if it is not. The tests that need helm then check
    /// nothing.
    fn has_helm() -> bool {
        let found = helm().is_some();
        if !found {
            // Standard error itself, because the test harness hides the output of `eprintln!` when a test passes.
            let why = "SKIPPED: no helm here; `sh xtask/setup.sh test` builds it, with Go 1.24 or later";
            let _ = writeln!(std::io::stderr(), "{why}");
        }
        found
    }

    #[test]
    fn helm_finds_no_fault_in_the_chart() {
        if has_helm() {
            output(command(helm().unwrap()).args(["lint", "--strict", CHART])).unwrap();
        }
    }

    #[test]
    fn the_plain_manifests_are_what_the_chart_renders() {
        if has_helm() {
            assert_eq!(render(&[]).unwrap(), manifests(), "run `cargo xtask chart`");
        }
    }

    #[test]
    fn values_reach_the_daemons_and_wrong_ones_are_refused() {
        if !has_helm() {
            return;
        }
        let text = render(&["verifier.settings.max_flows=1000", "agent.enabled=false"]).unwrap();
        assert!(text.contains("- name: VOUCHSAFE_MAX_FLOWS\n              value: \"1000\""), "{text}");
        assert!(!text.contains("vouchsafe-agent"), "{text}");
        for wrong in
            ["authority=http://authority.example.org", "verifier.settings.interface=null", "verifer.enabled=true"]
        {
            assert!(render(&[wrong]).is_err(), "{wrong}");
        }
    }

    #[test]
    fn containers_have_the_capabilities_of_their_units_and_no_others() {
        let text = manifests();
        let in_braces = |line: &str, key: &str| -> Option<BTreeSet<String>> {
            let list = line.trim().strip_prefix(key)?.strip_suffix(']')?;
            Some(list.split(", ").map(str::to_owned).collect())
        };
        for role in ["verifier", "agent"] {
            let document =
                text.split("\n---\n").find(|document| document.contains(&format!("name: vouchsafe-{role}\n")));
            let document = document.unwrap();
            let unit = root().join(format!("packaging/systemd/vouchsafe-{role}.service"));
            let unit = fs::read_to_string(unit).unwrap();
            let unit = unit.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet=")).unwrap();
            let wanted: BTreeSet<_> = unit.split(' ').map(|name| name.trim_start_matches("CAP_").to_owned()).collect();
            let added: Vec<_> = document.lines().filter_map(|line| in_braces(line, "add: [")).collect();
            assert_eq!(added, [wanted], "{role}");
            let containers = document.matches("\n          image: ").count();
            for needed in ["drop: [ALL]", "allowPrivilegeEscalation: false", "readOnlyRootFilesystem: true"] {
                assert_eq!(document.matches(needed).count(), containers, "{role}: {needed}");
            }
            assert!(!document.contains("privileged: true"));
        }
    }
}
