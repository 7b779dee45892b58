//! Figures by name, each with its baseline of the same run.

use serde_json::{Map, Value, json};

/// All figures of a run.
#[derive(Default)]
pub struct Figures(Map<String, Value>);

/// What a figure must stay within.
#[derive(Clone, Copy)]
pub enum Bound {
    /// Its value is at most this.
    AtMost(f64),
    /// Its ratio to the baseline is at least this.
    RatioAtLeast(f64),
    /// It is shown only.
    None,
}

impl Figures {
    /// Takes a figure down.
    pub fn add(&mut self, name: &str, unit: &str, value: f64, baseline: f64, bound: Bound) {
        let ratio = value / baseline;
        let (limit, holds) = match bound {
            Bound::AtMost(limit) => (Some(limit), value <= limit),
            Bound::RatioAtLeast(limit) => (Some(limit), ratio >= limit),
            Bound::None => (None, true),
        };
        let round = |value: f64| (value * 1000.0).round() / 1000.0;
        let figure = json!({
            "value": round(value), "unit": unit, "baseline": round(baseline), "ratio": round(ratio),
            "bound": limit, "holds": holds,
        });
        self.0.insert(name.to_owned(), figure);
    }

    /// One line of JSON.
    pub fn json(&self) -> String {
        Value::Object(self.0.clone()).to_string()
    }
}

/// The value below which `part` of the others lie.
pub fn quantile(values: &mut [f64], part: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let index = ((values.len() as f64 * part) as usize).min(values.len().saturating_sub(1));
    values.get(index).copied().unwrap_or(f64::NAN)
}

/// The middle value.
pub fn median(values: &mut [f64]) -> f64 {
    quantile(values, 0.5)
}

/// The mean of the middle half.
pub fn middle(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let quarter = values.len() / 4;
    let half = values.get(quarter..values.len() - quarter).unwrap_or_default();
    half.iter().sum::<f64>() / half.len() as f64
}
