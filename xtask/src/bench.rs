//! `make bench`: runs the benches, prints one table of their figures, and writes the figures to
//! target/bench/summary.json.

use std::fs;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Map, Value};

use crate::run::{cargo, is_root};
use crate::{build, target_dir};

/// The benches: package and target. The target is the name on the command line. Each prints one line of JSON, {name:
/// {value, unit, yardstick, ratio, noise, bound, verdict}} (see `measure::Figures`).
const BENCHES: [(&str, &str); 11] = [
    ("wire", "overhead"),
    ("engine", "engine"),
    ("engine", "segments"),
    ("proofs", "verify"),
    ("seal", "records"),
    ("authority", "asking"),
    ("authority", "grants"),
    ("authority", "http"),
    ("datapath", "kernel"),
    ("datapath", "forward"),
    ("lab", "network"),
];

/// Returns the names of all benches, for the command line.
pub fn targets() -> [&'static str; BENCHES.len()] {
    BENCHES.map(|(_, target)| target)
}

/// Runs all benches, or only those whose targets are named.
pub fn run(parts: &[String]) -> Result<()> {
    let vouchsafe = build::release()?;
    let mut figures = Map::new();
    let mut failed = Vec::new();
    let wanted = BENCHES.iter().filter(|(_, target)| parts.is_empty() || parts.iter().any(|part| part == target));
    for (package, target) in wanted {
        eprintln!("bench {target}");
        let begun = Instant::now();
        // If one bench cannot measure, the figures of the others are still worth keeping.
        match bench(package, target, &vouchsafe) {
            Ok((measured, whole)) => {
                figures.extend(measured);
                if !whole {
                    failed.push(format!("bench {target}: a part of it failed; its output is above"));
                }
            }
            Err(error) => failed.push(format!("bench {target}: {error:#}")),
        }
        eprintln!("bench {target} took {:.0} s", begun.elapsed().as_secs_f64());
    }
    print(&figures);
    let summary = target_dir().join("bench/summary.json");
    fs::create_dir_all(summary.with_file_name("")).context("target/bench")?;
    let with_verdict = |verdict: &str| {
        let names = figures.iter().filter(|(_, figure)| figure["verdict"] == verdict).map(|(name, _)| name.as_str());
        names.collect::<Vec<_>>().join(", ")
    };
    let (missed, noisy) = (with_verdict("missed"), with_verdict("too noisy"));
    fs::write(&summary, serde_json::to_string_pretty(&Value::Object(figures))? + "\n")
        .with_context(|| format!("could not write {}", summary.display()))?;
    println!("\n{}", summary.display());
    ensure!(failed.is_empty(), "{}", failed.join("\n"));
    ensure!(missed.is_empty(), "out of bounds: {missed}");
    ensure!(
        noisy.is_empty(),
        "the machine was too noisy for a verdict on {noisy}: run again while it does nothing else"
    );
    Ok(())
}

/// Runs a bench; returns its figures and whether every part of it could measure.
fn bench(package: &str, target: &str, vouchsafe: &PathBuf) -> Result<(Map<String, Value>, bool)> {
    let mut command = cargo(["bench", "--quiet", "--package", package, "--bench", target]);
    command.env("VOUCHSAFE_BIN", vouchsafe);
    if !is_root() {
        command.env("CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER", "sudo -E");
    }
    let run = command.stderr(Stdio::inherit()).output().with_context(|| format!("could not start bench {target}"))?;
    let printed = String::from_utf8_lossy(&run.stdout);
    let last = printed.lines().rev().find(|line| line.starts_with('{'));
    match last.map(serde_json::from_str) {
        Some(Ok(Value::Object(figures))) => Ok((figures, run.status.success())),
        _ => bail!("bench {target} printed no figures:\n{printed}"),
    }
}

fn print(figures: &Map<String, Value>) {
    let row = |cells: [&str; 7]| {
        let [name, value, unit, yardstick, ratio, bound, verdict] = cells;
        println!("{name:44} {value:>12} {unit:10} {yardstick:>12} {ratio:>8} {bound:>12}  {verdict}");
    };
    row(["FIGURE", "VALUE", "UNIT", "YARDSTICK", "RATIO", "BOUND", ""]);
    for (name, figure) in figures {
        let cell = |key: &str| match &figure[key] {
            Value::Null => "-".to_owned(),
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let cells = ["value", "unit", "yardstick", "ratio", "bound"].map(cell);
        let verdict = match &figure["verdict"] {
            Value::String(verdict) if verdict == "too noisy" => {
                format!(
                    "too noisy: the yardstick moved by {:.0} %",
                    figure["noise"].as_f64().unwrap_or(f64::NAN) * 100.0
                )
            }
            Value::String(verdict) if verdict == "missed" => "MISSED".to_owned(),
            Value::String(verdict) => verdict.clone(),
            _ => String::new(),
        };
        row([name, &cells[0], &cells[1], &cells[2], &cells[3], &cells[4], &verdict]);
    }
}
