//! The report of a run: one self-contained HTML file, and tables as CSV in the same folder.

mod figures;
mod page;
mod papers;
pub mod readme;
pub mod style;
mod tables;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::quantity::Quantity;
use crate::record::Property;
use crate::results::Results;

pub use tables::markdown;

/// Writes `report.html`, `figures.csv` and `security.csv` to a folder; returns the page's path.
///
/// # Errors
///
/// Fails if a plot can't be drawn or a file can't be written.
pub fn write(results: &Results, dir: &Path) -> Result<PathBuf> {
    fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let file = dir.join("report.html");
    fs::write(&file, page::render(results)?).with_context(|| format!("cannot write {}", file.display()))?;
    figures_csv(results, &dir.join("figures.csv"))?;
    security_csv(results, &dir.join("security.csv"))?;
    Ok(file)
}

fn figures_csv(results: &Results, file: &Path) -> Result<()> {
    let mut csv = csv::Writer::from_path(file).with_context(|| format!("cannot write {}", file.display()))?;
    csv.write_record(["solution", "quantity", "unit", "runs", "median", "low", "high", "coverage"])?;
    for solution in &results.solutions {
        for quantity in Quantity::ALL {
            let Some(summary) = solution.summary(*quantity) else { continue };
            let numbers =
                [summary.median, summary.low, summary.high, summary.coverage].map(|number| number.to_string());
            let [median, low, high, coverage] = &numbers;
            let count = summary.count.to_string();
            csv.write_record([&solution.name, quantity.name(), quantity.unit(), &count, median, low, high, coverage])?;
        }
    }
    csv.flush().with_context(|| format!("cannot write {}", file.display()))
}

fn security_csv(results: &Results, file: &Path) -> Result<()> {
    let mut csv = csv::Writer::from_path(file).with_context(|| format!("cannot write {}", file.display()))?;
    csv.write_record(["solution", "property", "holds", "evidence"])?;
    for solution in &results.solutions {
        for property in Property::ALL {
            let Some(observed) = solution.observed.get(&property) else { continue };
            let holds = observed.holds.map_or("unknown", |holds| if holds { "yes" } else { "no" });
            csv.write_record([&solution.name, property.name(), holds, &observed.evidence])?;
        }
    }
    csv.flush().with_context(|| format!("cannot write {}", file.display()))
}
