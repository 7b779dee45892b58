//! The heuristic of Khanvilkar and Khokhar (2004): rank the solutions in each attribute of their Figure 3, and order
//! them by the weighted mean of the ranks.

use crate::claims::{Claims, Plane, Transport};
use crate::quantity::{Better, Quantity};
use crate::results::{Results, Solution};

/// The attributes of the paper's Figure 3, and the quantity that stands for each.
pub const ATTRIBUTES: [(&str, Quantity); 4] = [
    ("overhead", Quantity::WireLater),
    ("bandwidth", Quantity::TcpUp),
    ("latency", Quantity::RttIdle),
    ("jitter", Quantity::JitterIdle),
];

/// Returns the ranks of the values: 1 for the best; equal values share the mean of their ranks.
pub fn ranks(values: &[f64], better: Better) -> Vec<f64> {
    let ahead = |one: f64, other: f64| match better {
        Better::More => one > other,
        Better::Less => one < other,
    };
    let rank = |value: &f64| {
        let before = values.iter().filter(|other| ahead(**other, *value)).count() as f64;
        let equal = values.iter().filter(|other| !ahead(**other, *value) && !ahead(*value, **other)).count() as f64;
        before + f64::midpoint(1.0, equal)
    };
    values.iter().map(rank).collect()
}

/// Returns the names with their weighted mean ranks, best first. `table` has a row for each solution, `better` and
/// `weights` an entry for each column.
pub fn weighted<const N: usize>(
    table: &[(String, [f64; N])],
    better: [Better; N],
    weights: [f64; N],
) -> Vec<(String, f64)> {
    let column = |at: usize| ranks(&table.iter().map(|(_, row)| row[at]).collect::<Vec<_>>(), better[at]);
    let columns: [Vec<f64>; N] = std::array::from_fn(column);
    let whole: f64 = weights.iter().sum();
    let mean =
        |row: usize| columns.iter().zip(weights).map(|(column, weight)| column[row] * weight).sum::<f64>() / whole;
    let mut list: Vec<_> = table.iter().enumerate().map(|(row, (name, _))| (name.clone(), mean(row))).collect();
    list.sort_by(|a, b| a.1.total_cmp(&b.1).then(a.0.cmp(&b.0)));
    list
}

/// Applies the heuristic to a run. Leaves out the plain path, and solutions that lack one of the four quantities.
pub fn of(results: &Results, weights: [f64; 4]) -> Vec<(String, f64)> {
    let row = |solution: &Solution| {
        let values = ATTRIBUTES.map(|(_, quantity)| solution.summary(quantity).map(|summary| summary.median));
        let whole: Option<Vec<f64>> = values.into_iter().collect();
        whole.and_then(|values| Some((solution.name.clone(), <[f64; 4]>::try_from(values).ok()?)))
    };
    let candidates = results.solutions.iter().filter(|solution| solution.claims.family != "none");
    let table: Vec<_> = candidates.filter_map(row).collect();
    weighted(&table, ATTRIBUTES.map(|(_, quantity)| quantity.better()), weights)
}

/// A quantity's means over two groups of solutions, such as tunnels over UDP and tunnels over TCP.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Contrast {
    /// Mean over the first group.
    pub first: f64,
    /// Mean over the second group.
    pub second: f64,
}

impl Contrast {
    /// Returns by how many percent the first mean exceeds the second.
    pub fn percent(&self) -> f64 {
        (self.first / self.second - 1.0) * 100.0
    }
}

/// Returns a quantity's mean for tunnels over UDP, and its mean for tunnels over TCP; `None` if one group is empty.
/// Only tunnels in processes count, because the speed of tunnels in the kernel would hide the difference.
pub fn udp_and_tcp(results: &Results, quantity: Quantity) -> Option<Contrast> {
    let of = |transport| {
        let belongs = move |claims: &Claims| claims.transport == transport && claims.plane == Plane::Process;
        mean(results, quantity, move |solution| belongs(&solution.claims))
    };
    Some(Contrast { first: of(Transport::Udp)?, second: of(Transport::Tcp)? })
}

/// Returns a quantity's mean for kernel tunnels, and its mean for tunnels in processes; `None` if one group is empty.
pub fn kernel_and_process(results: &Results, quantity: Quantity) -> Option<Contrast> {
    let tunnel = |claims: &Claims| claims.transport != Transport::None;
    let of = |plane| mean(results, quantity, move |one| one.claims.plane == plane && tunnel(&one.claims));
    Some(Contrast { first: of(Plane::Kernel)?, second: of(Plane::Process)? })
}

fn mean(results: &Results, quantity: Quantity, belongs: impl Fn(&Solution) -> bool) -> Option<f64> {
    let group = results.solutions.iter().filter(|one| one.claims.family != "none" && belongs(one));
    let medians: Vec<f64> = group.filter_map(|one| one.summary(quantity)).map(|summary| summary.median).collect();
    (!medians.is_empty()).then(|| medians.iter().sum::<f64>() / medians.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BETTER: [Better; 2] = [Better::Less, Better::More];

    fn table() -> Vec<(String, [f64; 2])> {
        [("a", [10.0, 5.0]), ("b", [20.0, 9.0]), ("c", [30.0, 7.0])].map(|(name, row)| (name.to_owned(), row)).to_vec()
    }

    #[test]
    fn ranks_begin_with_the_best_and_equals_share() {
        assert_eq!(ranks(&[3.0, 1.0, 2.0], Better::More), [1.0, 3.0, 2.0]);
        assert_eq!(ranks(&[3.0, 1.0, 2.0], Better::Less), [3.0, 1.0, 2.0]);
        assert_eq!(ranks(&[5.0, 5.0, 1.0], Better::More), [1.5, 1.5, 3.0]);
    }

    #[test]
    fn with_equal_weights_the_mean_rank_decides() {
        // Overhead ranks a b c = 1 2 3, bandwidth ranks = 3 1 2: means 2, 1.5, 2.5.
        let list = weighted(&table(), BETTER, [1.0, 1.0]);
        assert_eq!(list, [("b".to_owned(), 1.5), ("a".to_owned(), 2.0), ("c".to_owned(), 2.5)]);
    }

    #[test]
    fn weights_move_the_order_and_their_scale_does_not() {
        let first = |weights| weighted(&table(), BETTER, weights)[0].0.clone();
        assert_eq!(first([3.0, 1.0]), "a");
        assert_eq!(first([0.0, 1.0]), "b");
        assert_eq!(weighted(&table(), BETTER, [2.0, 6.0]), weighted(&table(), BETTER, [1.0, 3.0]));
    }

    #[test]
    fn a_contrast_is_told_in_percent_of_the_second() {
        assert!((Contrast { first: 180.0, second: 100.0 }.percent() - 80.0).abs() < 1e-9);
    }
}
