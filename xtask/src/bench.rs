//! `make bench`: runs the benches, prints one table of their figures, and writes the figures to
//! target/bench/summary.json.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Map, Value};

use crate::run::cargo;
use crate::{build, target_dir, tests};

/// The benches of `make bench`, each as package and target. The command line names benches by their target. Each bench
/// prints one line of JSON: {name: {value, unit, yardstick, ratio, noise, bound, verdict, at}} (see
/// `measure::Figures`).
const BENCHES: [(&str, &str); 16] = [
    ("wire", "overhead"),
    ("engine", "engine"),
    ("engine", "segments"),
    ("proofs", "verify"),
    ("seal", "records"),
    ("tunnel", "seal"),
    ("authority", "asking"),
    ("authority", "cluster"),
    ("authority", "grants"),
    ("authority", "http"),
    ("authority", "leases"),
    ("authority", "lists"),
    ("authority", "streams"),
    ("datapath", "kernel"),
    ("datapath", "forward"),
    ("lab", "network"),
];

/// Benches that take too long for `make bench` and run only when they are named: name, package, target, argument.
const LONG: [(&str, &str, &str, &str); 3] = [
    ("seal-rekey", "tunnel", "seal", "rekey-long"),
    ("segments-whole", "engine", "segments", "whole"),
    ("lists-whole", "authority", "lists", "whole"),
];

/// Returns the names of all benches, for the command line.
pub fn targets() -> Vec<&'static str> {
    BENCHES.iter().map(|(_, target)| *target).chain(LONG.iter().map(|(name, ..)| *name)).collect()
}

/// Runs the benches named in `parts`. If none is named, runs all benches except the long ones.
pub fn run(parts: &[String]) -> Result<()> {
    let vouchsafe = build::release()?;
    let mut figures = Map::new();
    let mut failed = Vec::new();
    let is_named = |name: &str| parts.iter().any(|part| part == name);
    let usual = BENCHES.iter().filter(|(_, target)| parts.is_empty() || is_named(target));
    let usual = usual.map(|(package, target)| (*target, *package, *target, None));
    let long = LONG.iter().filter(|(name, ..)| is_named(name));
    let long = long.map(|(name, package, target, argument)| (*name, *package, *target, Some(*argument)));
    for (name, package, target, argument) in usual.chain(long) {
        eprintln!("bench {name}");
        let begun = Instant::now();
        // If one bench cannot measure, the figures of the others are still useful.
        match until_quiet(name, || bench(package, target, argument, &vouchsafe)) {
            Ok((measured, whole)) => {
                figures.extend(measured);
                if !whole {
                    failed.push(format!("bench {name}: a part of it failed; its output is above"));
                }
            }
            Err(error) => failed.push(format!("bench {name}: {error:#}")),
        }
        eprintln!("bench {name} took {:.0} s", begun.elapsed().as_secs_f64());
    }
    print(&figures);
    let summary = target_dir().join("bench/summary.json");
    fs::create_dir_all(summary.with_file_name("")).context("target/bench")?;
    let (missed, noisy) = (with_verdict(&figures, MISSED).join(", "), with_verdict(&figures, NOISY).join(", "));
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

/// The verdict on a figure whose yardstick moved too much.
const NOISY: &str = "too noisy";
/// The verdict on a figure that is out of its bound.
const MISSED: &str = "missed";
/// Maximum number of times that a bench is run again because the machine was too noisy for a verdict.
const AGAIN_MAX: u32 = 2;

/// Measures again while the machine is too noisy for a verdict on some figures. A further run replaces these figures,
/// and each figure that misses its bound in the further run. A bound that was missed once stays missed.
fn until_quiet(name: &str, measure: impl Fn() -> Result<Measured>) -> Result<Measured> {
    let (mut figures, mut whole) = measure()?;
    for _ in 0..AGAIN_MAX {
        let noisy: Vec<_> = with_verdict(&figures, NOISY).into_iter().map(str::to_owned).collect();
        if noisy.is_empty() {
            break;
        }
        eprintln!("bench {name}: the machine was too noisy for a verdict on {}: measuring again", noisy.join(", "));
        let Ok((again, is_whole)) = measure().inspect_err(|error| eprintln!("bench {name}: {error:#}")) else {
            whole = false;
            break;
        };
        whole &= is_whole;
        let counts = |name: &String, figure: &Value| noisy.contains(name) || figure["verdict"] == MISSED;
        figures.extend(again.into_iter().filter(|(name, figure)| counts(name, figure)));
    }
    Ok((figures, whole))
}

fn with_verdict<'a>(figures: &'a Map<String, Value>, verdict: &str) -> Vec<&'a str> {
    figures.iter().filter(|(_, figure)| figure["verdict"] == verdict).map(|(name, _)| name.as_str()).collect()
}

/// The figures of a bench, and whether none of its parts failed.
type Measured = (Map<String, Value>, bool);

/// Runs a bench.
fn bench(package: &str, target: &str, argument: Option<&str>, vouchsafe: &Path) -> Result<Measured> {
    let mut command = cargo(["bench", "--quiet", "--package", package, "--bench", target]);
    command.args(argument.into_iter().flat_map(|argument| ["--", argument]));
    tests::with_settings(&mut command, vouchsafe);
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
            Value::String(verdict) if verdict == NOISY => {
                format!(
                    "too noisy: the yardstick moved by {:.0} %",
                    figure["noise"].as_f64().unwrap_or(f64::NAN) * 100.0
                )
            }
            Value::String(verdict) if verdict == MISSED => format!("MISSED; the bound is in {}", cell("at")),
            Value::String(verdict) => verdict.clone(),
            _ => String::new(),
        };
        row([name, &cells[0], &cells[1], &cells[2], &cells[3], &cells[4], &verdict]);
    }
}

#[cfg(test)]
mod tests_of_repetitions {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn only_figures_without_a_verdict_are_measured_again() {
        let runs = Cell::new(0);
        let measure = || {
            runs.set(runs.get() + 1);
            let verdicts = match runs.get() {
                1 => [MISSED, NOISY, NOISY, "holds", "holds"],
                _ => ["holds", "holds", NOISY, "holds", MISSED],
            };
            let figure = |verdict| serde_json::json!({"verdict": verdict, "value": runs.get()});
            Ok((["a", "b", "c", "d", "e"].map(str::to_owned).into_iter().zip(verdicts.map(figure)).collect(), true))
        };
        let (figures, whole) = until_quiet("x", measure).unwrap();
        assert!(whole && runs.get() == 3);
        assert_eq!(with_verdict(&figures, MISSED), ["a", "e"]);
        assert_eq!(with_verdict(&figures, NOISY), ["c"]);
        let values: Vec<_> = ["a", "b", "d"].iter().map(|name| figures[*name]["value"].as_u64()).collect();
        assert_eq!(values, [Some(1), Some(2), Some(1)]);
    }
}
