//! Samples of one measurement, and what is taken from them.

/// Rounds of two measurements that take turns, so that the machine's other work disturbs both: all samples of each.
pub fn alternate(rounds: usize, mut one: impl FnMut() -> f64, mut other: impl FnMut() -> f64) -> (Vec<f64>, Vec<f64>) {
    (0..rounds).map(|_| (one(), other())).unzip()
}

/// The mean of the middle half. Disturbed rounds stay out, and values that a clock cut to whole units average to parts of them.
pub fn mean_of_middle(values: &[f64]) -> f64 {
    let values = sorted(values);
    let quarter = values.len() / 4;
    let half = &values[quarter..values.len() - quarter];
    half.iter().sum::<f64>() / half.len() as f64
}

/// The value below which `part` of the others lie; NaN of none.
pub fn quantile(values: &[f64], part: f64) -> f64 {
    let values = sorted(values);
    let index = ((values.len() as f64 * part) as usize).min(values.len().saturating_sub(1));
    values.get(index).copied().unwrap_or(f64::NAN)
}

/// The middle value.
pub fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values
}
