//! Shared parts of the benchmarks: figures with yardsticks, and the table that `cargo xtask bench` makes of them.
//!
//! Machines differ by a factor of two, and other work on them comes and goes. So each figure is compared with a
//! yardstick that the same run measures, such as an empty program, an echo, a plain copy or a walk over memory. A bound
//! limits the ratio of the figure to its yardstick. A yardstick that varies within the run shows that the machine was
//! too noisy for a verdict. Each figure names the file and line of the bench that set its bound.
//!
//! ```
//! use measure::{Bound, Figures, Yardstick};
//!
//! let empty = Yardstick::new(vec![20.0, 21.0, 20.0, 20.5]);
//! let mut figures = Figures::default();
//! figures.add("verifier.admitted_ns", "ns", 80.0, &empty, Bound::AtMost(5.0));
//! assert_eq!(figures.get("verifier.admitted_ns").unwrap()["verdict"], "holds");
//! ```

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod memory;
mod parts;
mod samples;
mod stopwatch;

use std::panic::Location;

use serde_json::{Map, Value, json};

pub use parts::run_parts;
pub use samples::{alternate, mean_of_middle, median, quantile};
pub use stopwatch::Stopwatch;

/// Largest [`Yardstick::noise`] with which a figure still gets a verdict.
const NOISE_MAX: f64 = 0.2;

/// The reference for a figure: one kind of work, which is measured several times during the run.
#[derive(Clone, Debug)]
pub struct Yardstick {
    middle: f64,
    noise: f64,
}

impl Yardstick {
    /// Creates a yardstick from samples in the unit of the figure.
    ///
    /// # Panics
    ///
    /// Panics if there is no sample.
    pub fn new(samples: Vec<f64>) -> Self {
        assert!(!samples.is_empty(), "a yardstick was measured");
        let [low, high] = [0.25, 0.75].map(|part| quantile(&samples, part));
        let middle = mean_of_middle(&samples);
        Self { middle, noise: (high - low) / middle }
    }

    /// Creates a yardstick from a value that was not measured in this run: a size, or a published figure.
    pub const fn fixed(value: f64) -> Self {
        Self { middle: value, noise: 0.0 }
    }

    /// Returns a copy of the yardstick for a figure in another unit: its middle value is multiplied by `factor`, and
    /// its noise is the same.
    pub fn scaled(&self, factor: f64) -> Self {
        Self { middle: self.middle * factor, noise: self.noise }
    }

    /// Returns the mean of the middle half of the samples, or the value that [`Self::fixed`] was given.
    pub const fn middle(&self) -> f64 {
        self.middle
    }

    /// Returns the distance between the quartiles of the samples, as a fraction of [`Self::middle`].
    pub const fn noise(&self) -> f64 {
        self.noise
    }
}

/// The limit of a figure's ratio to its yardstick. With [`Figures::count`] and [`Figures::add_time`], it is the limit
/// of the figure's own value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bound {
    /// The ratio must be at most this number.
    AtMost(f64),
    /// The ratio must be at least this number.
    AtLeast(f64),
    /// The figure has no limit.
    None,
}

impl Bound {
    /// Returns the bound as text, and by how much `value` misses it: 0 or less if the bound holds.
    fn compare(self, value: f64) -> Option<(String, f64)> {
        match self {
            Self::AtMost(limit) => Some((format!("<= {limit}"), value - limit)),
            Self::AtLeast(limit) => Some((format!(">= {limit}"), limit - value)),
            Self::None => None,
        }
    }
}

impl From<Option<f64>> for Bound {
    fn from(at_most: Option<f64>) -> Self {
        at_most.map_or(Self::None, Self::AtMost)
    }
}

/// The figures of a benchmark, by name.
#[derive(Default)]
pub struct Figures(Map<String, Value>);

impl Figures {
    /// Adds a figure with its ratio to the yardstick: {value, unit, yardstick, ratio, noise, bound, verdict, at}. `at`
    /// is the place of this call, as file and line. Also prints a progress line to standard error.
    #[track_caller]
    pub fn add(&mut self, name: &str, unit: &str, value: f64, yardstick: &Yardstick, bound: Bound) {
        self.add_compared(name, unit, value, yardstick, value / yardstick.middle, 0.0, bound);
    }

    /// Adds a figure that was sampled in pairs. Each pair has a sample of the figure, and a sample of its yardstick
    /// that was taken at nearly the same time. A disturbance changes both samples of a pair, so the pairs' ratios vary
    /// less than the yardstick does. If the mean ratio misses the bound, but by no more than twice its standard error,
    /// the verdict is `too noisy`.
    ///
    /// # Panics
    ///
    /// Panics if there is no pair.
    #[track_caller]
    pub fn add_pairs(&mut self, name: &str, unit: &str, pairs: &[(f64, f64)], bound: Bound) {
        let (values, beside): (Vec<_>, Vec<_>) = pairs.iter().copied().unzip();
        let ratios: Vec<_> = pairs.iter().map(|(value, beside)| value / beside).collect();
        let (ratio, error) = (mean_of_middle(&ratios), error_of_mean(&ratios));
        self.add_compared(name, unit, mean_of_middle(&values), &Yardstick::new(beside), ratio, error, bound);
    }

    #[allow(clippy::too_many_arguments, reason = "private; the two callers name each")]
    #[track_caller]
    fn add_compared(
        &mut self,
        name: &str,
        unit: &str,
        value: f64,
        yardstick: &Yardstick,
        ratio: f64,
        error: f64,
        bound: Bound,
    ) {
        let compared = bound.compare(ratio);
        let verdict = compared.as_ref().map(|(_, missed_by)| match *missed_by {
            _ if yardstick.noise > NOISE_MAX => "too noisy",
            by if by <= 0.0 => "holds",
            by if by <= error => "too noisy",
            _ => "missed",
        });
        eprintln!(
            "{name} {} {unit}, yardstick {}, ratio {}",
            rounded(value),
            rounded(yardstick.middle),
            rounded(ratio)
        );
        let (bound, at) = (compared.map(|(bound, _)| bound), here());
        let figure = json!({
            "value": rounded(value), "unit": unit, "yardstick": rounded(yardstick.middle), "ratio": rounded(ratio),
            "noise": rounded(yardstick.noise), "bound": bound, "verdict": verdict, "at": at,
        });
        self.0.insert(name.to_owned(), figure);
    }

    /// Adds a figure that was counted rather than timed, so that it needs no yardstick: {value, unit, bound, verdict,
    /// at}. The bound limits the value itself.
    #[track_caller]
    pub fn count(&mut self, name: &str, unit: &str, value: f64, bound: impl Into<Bound>) {
        eprintln!("{name} {} {unit}", rounded(value));
        let compared = bound.into().compare(value);
        let verdict = compared.as_ref().map(|(_, missed_by)| if *missed_by <= 0.0 { "holds" } else { "missed" });
        let (bound, at) = (compared.map(|(bound, _)| format!("count {bound}")), here());
        let figure = json!({ "value": rounded(value), "unit": unit, "bound": bound, "verdict": verdict, "at": at });
        self.0.insert(name.to_owned(), figure);
    }

    /// Adds a time whose bound is also a time, and not a ratio. The figure is printed as {value, unit, yardstick,
    /// noise, bound, verdict, at}. The yardstick only tells whether the machine was quiet.
    #[track_caller]
    pub fn add_time(&mut self, name: &str, unit: &str, value: f64, yardstick: &Yardstick, bound: Bound) {
        eprintln!("{name} {} {unit}, yardstick {}", rounded(value), rounded(yardstick.middle));
        let compared = bound.compare(value);
        let verdict = compared.as_ref().map(|(_, missed_by)| match *missed_by {
            _ if yardstick.noise > NOISE_MAX => "too noisy",
            by if by <= 0.0 => "holds",
            _ => "missed",
        });
        let (bound, at) = (compared.map(|(bound, _)| format!("value {bound}")), here());
        let figure = json!({
            "value": rounded(value), "unit": unit, "yardstick": rounded(yardstick.middle),
            "noise": rounded(yardstick.noise), "bound": bound, "verdict": verdict, "at": at,
        });
        self.0.insert(name.to_owned(), figure);
    }

    /// Returns one figure, as it will be printed.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name)
    }

    /// Adds the figures that another process printed.
    ///
    /// # Errors
    ///
    /// Fails if `printed` is no JSON object.
    pub fn merge(&mut self, printed: &[u8]) -> Result<(), serde_json::Error> {
        self.0.extend(serde_json::from_slice::<Map<_, _>>(printed)?);
        Ok(())
    }

    /// Prints all figures as one line of JSON, which `cargo xtask bench` reads.
    pub fn print(&self) {
        println!("{}", Value::Object(self.0.clone()));
    }
}

/// Returns the place of the call in the bench, as file and line.
#[track_caller]
fn here() -> String {
    let place = Location::caller();
    format!("{}:{}", place.file(), place.line())
}

/// Returns twice the standard error of the samples' mean. In about 19 of 20 runs, the true mean is within this distance
/// of the samples' mean.
fn error_of_mean(samples: &[f64]) -> f64 {
    let count = samples.len() as f64;
    let mean = samples.iter().sum::<f64>() / count;
    let squares: f64 = samples.iter().map(|sample| (sample - mean).powi(2)).sum();
    2.0 * (squares / (count - 1.0).max(1.0) / count).sqrt()
}

/// Rounds to four significant digits.
fn rounded(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let scale = 10_f64.powi(3 - value.abs().log10().floor() as i32);
    if scale > 1.0 { (value * scale).round() / scale } else { value.round() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(value: f64, samples: &[f64], bound: Bound) -> Value {
        let mut figures = Figures::default();
        figures.add("figure", "ns", value, &Yardstick::new(samples.to_vec()), bound);
        figures.get("figure").expect("it was added")["verdict"].clone()
    }

    #[test]
    fn a_time_has_no_verdict_if_its_yardstick_moves() {
        let verdict = |value, samples: [f64; 4]| {
            let mut figures = Figures::default();
            figures.add_time("time", "us", value, &Yardstick::new(samples.to_vec()), Bound::AtMost(200.0));
            figures.get("time").expect("it was added")["verdict"].clone()
        };
        let (quiet, noisy) = ([100.0, 101.0, 99.0, 100.0], [100.0, 200.0, 100.0, 200.0]);
        assert_eq!((verdict(199.0, quiet), verdict(201.0, quiet)), ("holds".into(), "missed".into()));
        assert_eq!((verdict(199.0, noisy), verdict(201.0, noisy)), ("too noisy".into(), "too noisy".into()));
    }

    #[test]
    fn pairs_that_miss_by_less_than_their_error_are_too_noisy() {
        let verdict = |ratios: &[f64]| {
            let pairs: Vec<_> = ratios.iter().map(|ratio| (100.0 * ratio, 100.0)).collect();
            let mut figures = Figures::default();
            figures.add_pairs("figure", "Mbit/s", &pairs, Bound::AtLeast(0.97));
            figures.get("figure").expect("it was added")["verdict"].clone()
        };
        assert_eq!(verdict(&[0.98, 0.99, 0.98, 0.97]), "holds");
        assert_eq!(verdict(&[0.95, 0.98, 0.92, 0.97]), "too noisy");
        assert_eq!(verdict(&[0.95, 0.95, 0.94, 0.95]), "missed");
        assert_eq!(verdict(&[0.95]), "missed", "one pair has no error");
    }

    #[test]
    fn a_ratio_within_its_bound_holds_and_one_beyond_is_missed() {
        let steady = [10.0, 10.0, 10.5, 9.8];
        assert_eq!(verdict(49.0, &steady, Bound::AtMost(5.0)), "holds");
        assert_eq!(verdict(52.0, &steady, Bound::AtMost(5.0)), "missed");
        assert_eq!(verdict(8.0, &steady, Bound::AtLeast(0.9)), "missed");
        assert_eq!(verdict(9.5, &steady, Bound::AtLeast(0.9)), "holds");
        assert_eq!(verdict(1.0, &steady, Bound::None), Value::Null);
    }

    #[test]
    fn a_yardstick_that_moves_gives_no_verdict_either_way() {
        let moving = [10.0, 10.0, 14.0, 14.0];
        for value in [1.0, 1000.0] {
            assert_eq!(verdict(value, &moving, Bound::AtMost(5.0)), "too noisy");
        }
    }

    #[test]
    fn one_disturbed_sample_of_many_does_not_make_a_run_noisy() {
        let mut samples = vec![10.0; 15];
        samples[3] = 90.0;
        let yardstick = Yardstick::new(samples);
        assert!(yardstick.noise() < 0.01 && (yardstick.middle() - 10.0).abs() < 1e-9);
    }

    #[test]
    fn a_count_is_compared_with_its_limit() {
        let mut figures = Figures::default();
        let mut verdict = |value: f64, bound: Bound| {
            figures.count("left", "flows", value, bound);
            figures.get("left").expect("it was added")["verdict"].clone()
        };
        assert_eq!(verdict(1.0, Bound::AtMost(0.0)), "missed");
        assert_eq!(verdict(0.0, Bound::AtMost(0.0)), "holds");
        assert_eq!(verdict(0.9, Bound::AtLeast(1.0)), "missed");
        assert_eq!(verdict(1.0, Bound::None), Value::Null);
        // A value that is no number holds no bound.
        assert_eq!(verdict(f64::NAN, Bound::AtMost(1.0)), "missed");
    }

    #[test]
    fn a_figure_names_the_line_that_sets_its_bound() {
        let mut figures = Figures::default();
        let line = line!() + 1;
        figures.count("left", "flows", 1.0, Bound::None);
        figures.add("ratio", "ns", 1.0, &Yardstick::fixed(1.0), Bound::None);
        figures.add_pairs("pairs", "ns", &[(1.0, 1.0)], Bound::None);
        for (name, line) in [("left", line), ("ratio", line + 1), ("pairs", line + 2)] {
            let at = figures.get(name).expect("it was added")["at"].as_str().expect("a place").to_owned();
            assert!(at.ends_with(&format!("{}:{line}", file!())), "{name}: {at}");
        }
    }

    #[test]
    fn figures_keep_four_digits() {
        assert_eq!([rounded(123_456.7), rounded(0.012_345_6), rounded(1.23456)], [123_457.0, 0.01235, 1.235]);
    }
}
