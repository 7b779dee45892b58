//! Times at which two policies are compared: one for each set of rules that hold at the same time.

use super::{Here, TooLarge};
use crate::policy::{Policy, When};
use std::collections::BTreeSet;

/// Period for which times are compared, in seconds. It is a day more than a week, because weekly windows repeat after a
/// week.
const WEEK: u64 = 8 * 86_400;
/// Maximum number of queries for a window's next change.
const MOST_STEPS: usize = 200_000;

/// Returns times from `now` on. For every weekly pattern that occurs, they include one time for each set of rules that
/// hold at the same time.
pub(super) fn of(policies: [&Policy; 2], now: u64) -> Result<Vec<u64>, TooLarge> {
    let mut windows: Vec<&When> = Vec::new();
    for rule in policies.into_iter().flat_map(|policy| &policy.rules) {
        if !rule.when.is_always() && !windows.contains(&&rule.when) {
            windows.push(&rule.when);
        }
    }
    let mut times = BTreeSet::from([now]);
    let starts: BTreeSet<_> = windows.iter().flat_map(|when| when.turns(now)).chain([now]).collect();
    let mut steps = 0;
    for start in starts.into_iter().filter(|start| *start >= now) {
        let mut at = start;
        times.insert(at);
        while let Some(next) = windows.iter().filter_map(|when| when.next_change(at)).min() {
            steps += windows.len();
            if steps > MOST_STEPS {
                return Err(TooLarge("too many time windows"));
            }
            if next > start + WEEK {
                break;
            }
            times.insert(next);
            at = next;
        }
    }
    let mut seen = BTreeSet::new();
    let holding = |at: &u64| windows.iter().map(|when| when.covers(*at)).collect::<Vec<_>>();
    Ok(times.into_iter().filter(|at| seen.insert(holding(at))).collect())
}

/// Returns the first of these times for each set of a place's rules that hold at the same time.
pub(super) fn distinct(times: &[u64], rules: &[Here<'_>; 2]) -> Vec<u64> {
    let timed: Vec<_> = rules.iter().flatten().flatten().filter(|rule| !rule.when.is_always()).collect();
    if timed.is_empty() {
        return times.iter().take(1).copied().collect();
    }
    let mut seen = BTreeSet::new();
    let holding = |at: u64| timed.iter().map(|rule| rule.when.covers(at)).collect::<Vec<_>>();
    times.iter().copied().filter(|at| seen.insert(holding(*at))).collect()
}
