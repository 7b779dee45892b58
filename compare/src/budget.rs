//! Plans a run so that it ends within a given time. From the measured time of each turn, chooses the number of rounds
//! that follow and the length of their transfers.

use std::collections::BTreeMap;
use std::time::Duration;

/// Length of the shortest transfers, as a fraction of the length in the plan. In shorter transfers, TCP's slow start
/// would weigh more than its steady rate.
const LEAST: f64 = 0.35;
/// Smallest number of rounds in which transfers may be longer than [`LEAST`]. If the time does not suffice for so many
/// rounds, all of it goes into more rounds, with transfers of the shortest length.
const FEWEST: u32 = 5;
/// Assumed time of a turn beside its transfers, before any turn was measured.
const TYPICAL: Cost = Cost { fixed: 8.0, once: 25.0 };
/// Fraction of the remaining time for which the budget plans. The rest is a reserve for turns that take longer than
/// before.
const PLANNED: f64 = 0.97;

/// The time of a turn beside its transfers, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Cost {
    /// Time of starting, stopping and waiting, in seconds. Every round needs it.
    fixed: f64,
    /// Time that only the first round needs, in seconds.
    once: f64,
}

/// A turn (one round of one solution or study) that is still to come.
#[derive(Clone, Debug, PartialEq)]
pub struct Coming {
    /// Name of the solution or study.
    pub name: String,
    /// Number of the round, from 0.
    pub round: u32,
    /// Time that the turn's transfers would take at the plan's full length, in seconds.
    pub transfers: f64,
}

/// A turn (one round of one solution or study) that was measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Spent {
    /// Name of the solution or study.
    pub name: String,
    /// Time of the whole turn, in seconds.
    pub seconds: f64,
    /// The part of `seconds` that the turn spends on measurements that later rounds do not repeat.
    pub once: f64,
    /// The part of `seconds` that the turn's transfers took.
    pub transfers: f64,
}

/// The decision about how thorough the coming rounds are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// Length of the transfers, as a fraction of the length in the plan.
    pub scale: f64,
    /// Number of rounds of the whole run, including those already measured.
    pub rounds: u32,
    /// Expected time of the remaining turns, in seconds, with this `scale` and these `rounds`.
    pub seconds: f64,
}

/// The time limit of a run, and the turns that have used time so far.
#[derive(Clone, Debug, Default)]
pub struct Budget {
    whole: Option<f64>,
    spent: Vec<Spent>,
}

impl Budget {
    /// Makes a budget for a run with the time limit `whole`. `None` stands for no limit: [`Self::choose`] then shortens
    /// nothing.
    pub fn new(whole: Option<Duration>) -> Self {
        Self { whole: whole.map(|time| time.as_secs_f64()), spent: Vec::new() }
    }

    /// Adds a measured turn. It counts against the time limit, even if it was measured before the run was stopped and
    /// continued.
    pub fn took(&mut self, spent: Spent) {
        self.spent.push(spent);
    }

    /// Returns the number of seconds until the time limit, negative after it; `None` if there is no limit.
    pub fn left(&self) -> Option<f64> {
        Some(self.whole? - self.spent.iter().map(|spent| spent.seconds).sum::<f64>())
    }

    /// Chooses the number of rounds, at most `rounds`, and the length of their transfers. `coming` are the remaining
    /// turns.
    pub fn choose(&self, coming: &[Coming], rounds: u32) -> Choice {
        let costs = self.costs();
        let known: Vec<Cost> = costs.values().copied().collect();
        let mean = |of: fn(&Cost) -> f64, typical: f64| {
            if known.is_empty() { typical } else { known.iter().map(of).sum::<f64>() / known.len() as f64 }
        };
        let other = Cost { fixed: mean(|cost| cost.fixed, TYPICAL.fixed), once: mean(|cost| cost.once, TYPICAL.once) };
        // Returns the seconds that the rounds before `end` need: without transfers, and for transfers at full length.
        let needed = |end: u32| {
            coming.iter().filter(|turn| turn.round < end).fold((0.0, 0.0), |(fixed, transfers), turn| {
                let cost = costs.get(&turn.name).copied().unwrap_or(other);
                let once = if turn.round == 0 { cost.once } else { 0.0 };
                (fixed + cost.fixed + once, transfers + turn.transfers)
            })
        };
        let at = |end: u32, scale: f64| {
            let (fixed, transfers) = needed(end);
            fixed + scale * transfers
        };
        let Some(left) = self.left().map(|left| left * PLANNED) else {
            return Choice { scale: 1.0, rounds, seconds: at(rounds, 1.0) };
        };
        let longest = |end: u32| {
            let (fixed, transfers) = needed(end);
            if transfers > 0.0 { (left - fixed) / transfers } else { 1.0 }
        };
        let fewest = FEWEST.min(rounds);
        let enough = (fewest..=rounds).rev().find(|end| longest(*end) >= LEAST);
        let end = enough.or_else(|| (1..fewest).rev().find(|end| longest(*end) >= LEAST)).unwrap_or(1);
        // If there are fewer rounds than that, no time is spent on longer transfers.
        let scale = if end < fewest { LEAST } else { longest(end).clamp(LEAST, 1.0) };
        Choice { scale, rounds: end, seconds: at(end, scale) }
    }

    fn costs(&self) -> BTreeMap<String, Cost> {
        let mut of: BTreeMap<String, Vec<&Spent>> = BTreeMap::new();
        for spent in &self.spent {
            of.entry(spent.name.clone()).or_default().push(spent);
        }
        let cost = |turns: Vec<&Spent>| {
            let fixed = turns.iter().map(|spent| (spent.seconds - spent.once - spent.transfers).max(0.0));
            Cost {
                fixed: fixed.sum::<f64>() / turns.len() as f64,
                once: turns.iter().map(|spent| spent.once).fold(0.0, f64::max),
            }
        };
        of.into_iter().map(|(name, turns)| (name, cost(turns))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn coming(names: &[&str], rounds: std::ops::Range<u32>) -> Vec<Coming> {
        let of = |round| names.iter().map(move |name| Coming { name: (*name).to_owned(), round, transfers: 10.0 });
        rounds.flat_map(of).collect()
    }

    fn spent(name: &str, seconds: f64, once: f64) -> Spent {
        Spent { name: name.to_owned(), seconds, once, transfers: 10.0 }
    }

    #[test]
    fn without_a_limit_everything_is_as_planned() {
        let choice = Budget::new(None).choose(&coming(&["a", "b"], 0..6), 6);
        assert_eq!((choice.scale, choice.rounds), (1.0, 6));
    }

    #[test]
    fn transfers_become_shorter_before_rounds_are_left_out() {
        let mut budget = Budget::new(Some(Duration::from_secs(1000)));
        budget.took(spent("a", 60.0, 30.0));
        // 940 s are left, of which 902.4 are planned with: for 5 turns of 20 s and their transfers, far more than
        // enough.
        assert_eq!(budget.choose(&coming(&["a"], 1..6), 6).scale, 1.0);
        let tight = Budget { whole: Some(60.0 + 125.0 / PLANNED), ..budget.clone() };
        let choice = tight.choose(&coming(&["a"], 1..6), 6);
        assert!(choice.rounds == 6 && (choice.scale - 0.5).abs() < 1e-9, "{choice:?}");
        assert!((choice.seconds - 125.0).abs() < 1e-9, "{choice:?}");
        // 100 s: six rounds would leave nothing for transfers, five leave half of their length.
        let tighter = Budget { whole: Some(60.0 + 100.0 / PLANNED), ..budget };
        let choice = tighter.choose(&coming(&["a"], 1..6), 6);
        assert!(choice.rounds == 5 && (choice.scale - 0.5).abs() < 1e-9, "{choice:?}");
    }

    #[test]
    fn a_slow_solution_is_planned_with_its_own_time_and_an_unknown_one_with_the_mean() {
        let mut budget = Budget::new(Some(Duration::from_secs(10_000)));
        budget.took(spent("slow", 110.0, 0.0));
        budget.took(spent("fast", 12.0, 0.0));
        let seconds = |names: &[&str]| budget.choose(&coming(names, 1..2), 6).seconds;
        assert_eq!([seconds(&["slow"]), seconds(&["fast"]), seconds(&["unknown"])], [110.0, 12.0, 61.0]);
    }

    #[test]
    fn what_only_the_first_round_tries_is_not_planned_again() {
        let mut budget = Budget::new(Some(Duration::from_secs(10_000)));
        budget.took(spent("a", 50.0, 30.0));
        assert_eq!(budget.choose(&coming(&["a"], 1..2), 6).seconds, 20.0);
        assert_eq!(budget.choose(&coming(&["a"], 0..1), 6).seconds, 50.0, "in another run's first round it is");
    }

    #[test]
    fn at_least_one_round_is_tried_however_short_the_time() {
        let choice = Budget::new(Some(Duration::from_secs(1))).choose(&coming(&["a", "b"], 0..6), 6);
        assert_eq!((choice.scale, choice.rounds), (LEAST, 1));
    }
}
