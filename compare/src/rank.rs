//! Ranks the solutions of a run by a person's needs.
//!
//! Each criterion gives every solution a value from 0 to 1, and the weights combine the values. Two solutions tie
//! unless the difference between them is larger than the uncertainty of the measured values. If a solution is best in a
//! criterion, a higher weight of this criterion never lowers the solution's place, see [`rank`].

pub mod oslv;
pub mod presets;
pub mod weights;

use std::collections::BTreeMap;

use crate::claims::Feature;
use crate::quantity::{Better, Quantity};
use crate::record::Property;
use crate::results::{Results, Solution};

pub use weights::{Criterion, Must, Weights};

/// Error of a value that was measured only once: half of the scale.
const UNKNOWN_ERROR: f64 = 0.5;

/// A solution's value in one criterion, and the value's error.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Value {
    /// The value, from 0 (worst) to 1 (best).
    pub value: f64,
    /// Half the width of the value's interval.
    pub error: f64,
}

/// A solution's place in the list.
#[derive(Clone, Debug, PartialEq)]
pub struct Place {
    /// The place, from 1. Solutions that tie with the first also have place 1.
    pub place: usize,
    /// The solution's name.
    pub name: String,
    /// Weighted mean of the solution's values, from 0 to 1.
    pub score: f64,
    /// Half the width of the score's interval.
    pub error: f64,
    /// Reasons for the place: what raised and lowered the score most, compared with the mean of all solutions.
    pub reasons: Vec<String>,
}

/// The result of a ranking.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ranking {
    /// The solutions that meet all musts, best first.
    pub places: Vec<Place>,
    /// The solutions that are not ranked, each with the user's conditions (*musts*) that it does not meet.
    pub excluded: Vec<(String, Vec<String>)>,
}

/// Ranks the solutions of a run by `weights`.
///
/// Solution Y is placed before X if the sum over criteria of weight × (value of Y − value of X) is larger than the
/// error of that sum. X's place is one more than the number of solutions that are placed before it. If X is best in a
/// criterion, a higher weight of that criterion lowers the sum for every Y and raises its error, so that no Y passes X.
pub fn rank(results: &Results, weights: &Weights) -> Ranking {
    let mut ranking = Ranking::default();
    let mut able: Vec<&Solution> = Vec::new();
    // The plain path serves for comparison only and has no place.
    for solution in results.solutions.iter().filter(|solution| solution.claims.family != "none") {
        let lacks: Vec<_> =
            weights.musts().filter(|must| !must.is_met(solution)).map(|must| must.to_string()).collect();
        match lacks.is_empty() {
            true => able.push(solution),
            false => ranking.excluded.push((solution.name.clone(), lacks)),
        }
    }
    let criteria: Vec<(Criterion, f64)> = weights.positive().collect();
    let columns: Vec<Vec<Value>> = criteria.iter().map(|(criterion, _)| values(*criterion, &able)).collect();
    let whole: f64 = criteria.iter().map(|(_, weight)| weight).sum();
    let totals: Vec<Value> = (0..able.len())
        .map(|row| {
            let parts = || criteria.iter().zip(&columns).map(|((_, weight), column)| (weight, column[row]));
            let value = parts().map(|(weight, value)| weight * value.value).sum();
            let error = parts().map(|(weight, value)| (weight * value.error).powi(2)).sum::<f64>().sqrt();
            Value { value, error }
        })
        .collect();
    for (row, solution) in able.iter().enumerate() {
        let own = totals[row];
        let better =
            totals.iter().filter(|other| other.value - own.value > other.error.hypot(own.error) + 1e-12).count();
        ranking.places.push(Place {
            place: better + 1,
            name: solution.name.clone(),
            score: if whole > 0.0 { own.value / whole } else { 0.0 },
            error: if whole > 0.0 { own.error / whole } else { 0.0 },
            reasons: reasons(&criteria, &columns, row, solution),
        });
    }
    ranking.places.sort_by(|a, b| a.place.cmp(&b.place).then(b.score.total_cmp(&a.score)).then(a.name.cmp(&b.name)));
    ranking
}

/// Returns each solution's value in a criterion.
pub fn values(criterion: Criterion, solutions: &[&Solution]) -> Vec<Value> {
    let yes_or_no = |holds: bool| Value { value: if holds { 1.0 } else { 0.0 }, error: 0.0 };
    match criterion {
        Criterion::Quantity(quantity) => measured(quantity, solutions),
        Criterion::Attribute(attribute) => {
            let quantities = Quantity::ALL.iter().filter(|quantity| quantity.attribute() == attribute);
            let known =
                quantities.filter(|quantity| solutions.iter().any(|solution| solution.summary(**quantity).is_some()));
            let columns: Vec<_> = known.map(|quantity| measured(*quantity, solutions)).collect();
            let count = columns.len().max(1) as f64;
            let mean = |row: usize| {
                let sum: f64 = columns.iter().map(|column| column[row].value).sum();
                let squares: f64 = columns.iter().map(|column| column[row].error.powi(2)).sum();
                Value { value: sum / count, error: squares.sqrt() / count }
            };
            (0..solutions.len()).map(mean).collect()
        }
        Criterion::Property(property) => {
            solutions.iter().map(|solution| yes_or_no(solution.holds(property) == Some(true))).collect()
        }
        Criterion::Feature(feature) => {
            solutions.iter().map(|solution| yes_or_no(solution.claims.has(feature))).collect()
        }
    }
}

/// Returns the values for a quantity: 1 for the best median, and 0 for the worst and for solutions without a
/// measurement. Between them the scale is logarithmic, because twice as fast is worth as much at any speed.
fn measured(quantity: Quantity, solutions: &[&Solution]) -> Vec<Value> {
    let summaries: Vec<_> = solutions.iter().map(|solution| solution.summary(quantity)).collect();
    let medians = || summaries.iter().flatten().map(|summary| summary.median);
    // Zero has no logarithm, so it counts as a thousandth of the largest value.
    let floor = (medians().fold(0.0, f64::max) / 1000.0).max(f64::MIN_POSITIVE);
    let scale = |value: f64| match quantity.better() {
        Better::More => value.max(floor).ln(),
        Better::Less => -value.max(floor).ln(),
    };
    let (worst, best) =
        medians().map(scale).fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(value), high.max(value)));
    let span = best - worst;
    let value = |summary: &Option<crate::stats::Summary>| {
        let Some(summary) = summary else { return Value::default() };
        if span <= 0.0 {
            return Value { value: 1.0, error: 0.0 };
        }
        // A single sample does not show how far it is from the truth.
        let error = match summary.count {
            1 if !quantity.is_counted() => UNKNOWN_ERROR,
            _ => (scale(summary.high) - scale(summary.low)).abs() / 2.0 / span,
        };
        Value { value: (scale(summary.median) - worst) / span, error }
    };
    summaries.iter().map(value).collect()
}

/// Returns what raises and what lowers a solution's score most, compared with the mean of all.
fn reasons(criteria: &[(Criterion, f64)], columns: &[Vec<Value>], row: usize, solution: &Solution) -> Vec<String> {
    let mut parts: Vec<(f64, String)> = Vec::new();
    for ((criterion, weight), column) in criteria.iter().zip(columns) {
        let mean = column.iter().map(|value| value.value).sum::<f64>() / column.len() as f64;
        let gain = weight * (column[row].value - mean);
        let best = column.iter().all(|other| other.value <= column[row].value + 1e-12);
        parts.push((gain, criterion.words(solution, best, gain >= 0.0)));
    }
    parts.retain(|(gain, _)| gain.abs() > 1e-9);
    parts.sort_by(|a, b| b.0.abs().total_cmp(&a.0.abs()));
    parts.truncate(4);
    parts.into_iter().map(|(_, words)| words).collect()
}

impl Criterion {
    fn words(self, solution: &Solution, best: bool, raises: bool) -> String {
        let figure = |quantity: Quantity| {
            solution.summary(quantity).map_or_else(
                || "not measured".to_owned(),
                |summary| format!("{} {}", rounded(summary.median), quantity.unit()),
            )
        };
        match self {
            Self::Quantity(quantity) => format!("{}: {}", quantity.title(), figure(quantity)),
            Self::Attribute(attribute) => {
                let word = match (best, raises) {
                    (true, _) => "best",
                    (false, true) => "better than most",
                    (false, false) => "worse than most",
                };
                let known =
                    |quantity: &&Quantity| quantity.attribute() == attribute && solution.summary(**quantity).is_some();
                let quantity = Quantity::ALL.iter().find(known);
                let example = quantity.map(|quantity| format!(" ({}: {})", quantity.title(), figure(*quantity)));
                format!("{word} in {}{}", attribute.name(), example.unwrap_or_default())
            }
            Self::Property(property) => {
                let word = match solution.holds(property) {
                    Some(true) => "seen",
                    Some(false) => "seen not to hold",
                    None => "not tried",
                };
                format!("{}: {word}", property.title())
            }
            Self::Feature(feature) => {
                format!("{}: {}", feature.name(), if solution.claims.has(feature) { "yes" } else { "no" })
            }
        }
    }
}

/// Formats a number with three significant digits, but keeps all digits before the decimal point.
pub fn rounded(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return format!("{value}");
    }
    let digits = (2 - value.abs().log10().floor() as i32).max(0) as usize;
    format!("{value:.digits$}")
}

/// Reports whether two solutions tie in a quantity: their intervals overlap, or one of them has only a single sample of
/// a timed quantity. Returns `None` if one of them was not measured.
pub fn tie(one: &Solution, other: &Solution, quantity: Quantity) -> Option<bool> {
    let (one, other) = (one.summary(quantity)?, other.summary(quantity)?);
    let single = one.count == 1 || other.count == 1;
    Some(single && !quantity.is_counted() || !one.differs_from(&other))
}

/// Returns, for each feature and property, the number of solutions that claim or show it. This is a check of weights: a
/// criterion in which all solutions are equal decides nothing.
pub fn spread(results: &Results) -> BTreeMap<String, usize> {
    let properties = Property::ALL.map(|property| {
        let count = results.solutions.iter().filter(|solution| solution.holds(property) == Some(true)).count();
        (property.name().to_owned(), count)
    });
    let features = Feature::ALL.map(|feature| {
        let count = results.solutions.iter().filter(|solution| solution.claims.has(feature)).count();
        (feature.name().to_owned(), count)
    });
    properties.into_iter().chain(features).collect()
}
