//! `cargo xtask simulate`: the time that a request for consent adds to a first round trip, for several placements of
//! authorization delegates.
//!
//! The simulation uses a table of measured round-trip times and measures nothing itself. The same seed gives the same
//! figures, which docs/simulation.md explains.

mod picture;
mod placement;
mod times;

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use serde_json::json;

use crate::run::root;
use crate::target_dir;
use picture::{Axis, Curve};
use placement::{PLACEMENTS, Sample, samples};
use times::Times;

/// Input, parameters and output folder of the simulation.
#[derive(clap::Args)]
pub struct Args {
    /// Round-trip times: CSV with a row and a column per region, in milliseconds; empty where both are the same region
    #[arg(long, value_name = "FILE", default_value = "docs/simulation/azure-2026-07.csv")]
    table: PathBuf,
    /// Seed of the random placements
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Number of random placements for every pair of regions
    #[arg(long, value_name = "TIMES", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    draws: u32,
    /// Output folder for pictures and summary.json
    #[arg(long, value_name = "FOLDER", default_value = "target/simulation")]
    into: PathBuf,
}

/// Simulates every placement. Writes two pictures of distributions and a summary, and prints the summary.
pub fn run(args: &Args) -> Result<()> {
    let file = root().join(&args.table);
    let text = fs::read_to_string(&file).with_context(|| format!("could not read {}", file.display()))?;
    let times = Times::read(&text).with_context(|| file.display().to_string())?;
    let results = simulate(&times, args.seed, args.draws);
    let into = match args.into.strip_prefix("target") {
        Ok(rest) => target_dir().join(rest),
        Err(_) => root().join(&args.into),
    };
    fs::create_dir_all(&into).with_context(|| format!("could not make {}", into.display()))?;
    let rows: Vec<_> = results.iter().map(|(name, samples)| json(name, &Row::of(samples))).collect();
    let summary = json!({ "regions": times.len(), "seed": args.seed, "draws": args.draws, "placements": rows });
    let mut files = pictures(&results).to_vec();
    files.push(("summary.json", serde_json::to_string_pretty(&summary)? + "\n"));
    print!("{}", table(&results));
    for (name, text) in files {
        let file = into.join(name);
        fs::write(&file, text).with_context(|| format!("could not write {}", file.display()))?;
        println!("{}", file.display());
    }
    Ok(())
}

type Results = Vec<(&'static str, Vec<Sample>)>;

fn simulate(times: &Times, seed: u64, draws: u32) -> Results {
    PLACEMENTS.iter().map(|(name, placement)| (*name, samples(times, *placement, seed, draws))).collect()
}

fn pictures(results: &Results) -> [(&'static str, String); 2] {
    let curves = |of: fn(&Sample) -> f64| -> Vec<_> {
        results.iter().map(|(name, samples)| Curve { name, values: samples.iter().map(of).collect() }).collect()
    };
    let added = Axis { title: "What asking for consent adds to a first round trip", unit: " ms", from: 0.0, to: 350.0 };
    let inflation = Axis {
        title: "First round trip with consent, in multiples of the one without",
        unit: " ×",
        from: 1.0,
        to: 6.0,
    };
    [
        ("added.svg", picture::draw(&added, &curves(|sample| sample.asking.into()))),
        ("inflation.svg", picture::draw(&inflation, &curves(Sample::inflation))),
    ]
}

/// The figures of one placement: quantiles of the added time in milliseconds, and of the inflation.
struct Row {
    added: [f64; 3],
    inflation: [f64; 3],
}

/// The quantiles that the summary contains.
const PARTS: [f64; 3] = [0.5, 0.9, 0.99];

impl Row {
    fn of(samples: &[Sample]) -> Self {
        let added = quantiles(samples.iter().map(|sample| sample.asking.into()).collect());
        Self { added, inflation: quantiles(samples.iter().map(Sample::inflation).collect()) }
    }
}

fn quantiles(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    PARTS.map(|part| {
        let rank = (part * values.len() as f64).ceil() as usize;
        values.get(rank.saturating_sub(1)).copied().unwrap_or(f64::NAN)
    })
}

fn json(name: &str, row: &Row) -> serde_json::Value {
    let of = |values: &[f64; 3]| json!({ "p50": values[0], "p90": values[1], "p99": values[2] });
    json!({ "placement": name, "added_ms": of(&row.added), "inflation": of(&row.inflation) })
}

/// Returns the summary as a Markdown table.
fn table(results: &Results) -> String {
    let mut text =
        "| delegates | added: half of all | 90 % | 99 % | inflation: half of all | 90 % | 99 % |\n".to_owned();
    text.push_str("|---|---|---|---|---|---|---|\n");
    for (name, samples) in results {
        let Row { added: [a, b, c], inflation: [d, e, f] } = Row::of(samples);
        writeln!(text, "| {name} | {a:.0} ms | {b:.0} ms | {c:.0} ms | {d:.2} | {e:.2} | {f:.2} |")
            .expect("a string takes everything");
    }
    text
}

#[cfg(test)]
mod tests;
