//! Samples of one measurement, and statistics of them.

/// Runs two measurements in turn, so that other work on the machine disturbs both equally. Returns all samples of each
/// measurement.
pub fn alternate(rounds: usize, mut one: impl FnMut() -> f64, mut other: impl FnMut() -> f64) -> (Vec<f64>, Vec<f64>) {
    (0..rounds).map(|_| (one(), other())).unzip()
}

/// Returns the mean of the middle half of the values. This excludes disturbed rounds, and averages values that a coarse
/// clock rounded to whole units.
pub fn mean_of_middle(values: &[f64]) -> f64 {
    let values = sorted(values);
    let quarter = values.len() / 4;
    let half = &values[quarter..values.len() - quarter];
    half.iter().sum::<f64>() / half.len() as f64
}

/// Returns the value below which the fraction `part` of the values lies; NaN if there are no values.
pub fn quantile(values: &[f64], part: f64) -> f64 {
    let values = sorted(values);
    let index = ((values.len() as f64 * part) as usize).min(values.len().saturating_sub(1));
    values.get(index).copied().unwrap_or(f64::NAN)
}

/// Returns the median of the values; of an even number of values, the upper of the two in the middle.
pub fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values
}
