//! The papers' figures and tables next to those of the run, each with a sentence on what has changed.

mod csra;
mod ls;
mod oslv;

use maud::{Markup, html};

use crate::papers::PAPERS;
use crate::quantity::Quantity;
use crate::rank::rounded;
use crate::results::{Cell, Results};
use crate::stats::Summary;

/// Returns the report's section about the papers.
pub fn section(results: &Results) -> Markup {
    html! {
        p { "Values marked “paper” come from the papers; this run did not measure them. All other values come from this run." }
        ul { @for (name, title) in PAPERS { li { b { (name) } ": " (title) } } }
        (oslv::section(results))
        (csra::section(results))
        (ls::section(results))
    }
}

fn median(results: &Results, name: &str, quantity: Quantity) -> Option<f64> {
    Some(results.solution(name)?.summary(quantity)?.median)
}

fn shown(value: Option<f64>, unit: &str) -> String {
    value.map_or_else(|| "not measured".to_owned(), |value| format!("{} {unit}", rounded(value)))
}

fn ratio(one: Option<f64>, other: Option<f64>) -> String {
    match (one, other) {
        (Some(one), Some(other)) if other > 0.0 => format!("{} times", rounded(one / other)),
        _ => "–".to_owned(),
    }
}

/// Returns a study's cells as a table: each median, and beneath it the interval.
fn cells(results: &Results, study: &str, head: &str) -> Markup {
    let cells = results.study(study);
    let mut columns: Vec<(&str, &str)> = Vec::new();
    let mut rows: Vec<&str> = Vec::new();
    for cell in &cells {
        if !columns.iter().any(|(column, _)| *column == cell.column) {
            columns.push((&cell.column, &cell.unit));
        }
        if !rows.contains(&cell.row.as_str()) {
            rows.push(&cell.row);
        }
    }
    let of = |row: &str, column: &str| {
        let found: Option<&&Cell> = cells.iter().find(|cell| cell.row == row && cell.column == column);
        found.and_then(|cell| Summary::of(&cell.values))
    };
    html! {
        @if cells.is_empty() { p { "This run did not measure it: " code { "vouchsafe-compare run " (study) } " does." } } @else {
            div.wide { table {
                thead { tr { th { (head) } @for (column, unit) in &columns { th { (column) br; small { (unit) } } } } }
                tbody { @for row in &rows { tr {
                    th { (row) }
                    @for (column, _) in &columns { td.number {
                        @match of(row, column) {
                            Some(summary) => {
                                (rounded(summary.median))
                                @if summary.count > 1 { br; small { (rounded(summary.low)) " to " (rounded(summary.high)) } }
                            }
                            None => { "–" }
                        }
                    } }
                } } }
            } }
        }
    }
}
