//! The people, groups and tags whose grants a member examines after their consent has ended. This file calls each of
//! them a person.

use crate::storage::Unexamined;
use std::collections::{BTreeSet, HashMap, HashSet};

/// Maximum number of people whose grants are examined at the same time.
const AT_ONCE: usize = 16;

/// The examinations of grants that this member carries out after the end of a consent, and the time at which the next
/// consent ends.
#[derive(Default)]
pub struct Examinations {
    /// The people whose grants are examined now.
    pub(super) running: HashSet<String>,
    /// The people who were unexamined when this member last looked, each with the number of the change that ended the
    /// consent.
    seen: HashMap<String, i64>,
    /// The people whose agents this member must notify as soon as the other members have followed.
    pub(super) untold: BTreeSet<String>,
    /// Whether a task waits for the other members.
    pub(super) is_telling: bool,
    pub(super) next: Option<NextEnd>,
}

/// The time at which the next consent ends.
#[derive(Clone, Copy)]
pub(super) struct NextEnd {
    pub at: u64,
    /// The state for which the time was computed: the number of changes of consents, and the version of the policy.
    pub basis: (i64, i64),
}

impl Examinations {
    /// Returns the people in `waiting` whose examination has to begin now. For people in `ended`, it begins at once.
    /// For everybody else, it begins only if they were already unexamined when this member last looked, because then
    /// the member that ended their consent has not examined them.
    pub(super) fn begin(&mut self, waiting: Vec<Unexamined>, ended: &[String]) -> Vec<Unexamined> {
        let seen = waiting.iter().map(|of| (of.person.clone(), of.change)).collect();
        let before = std::mem::replace(&mut self.seen, seen);
        let is_due = |of: &Unexamined| ended.contains(&of.person) || before.get(&of.person) == Some(&of.change);
        let mut begun = Vec::new();
        for of in waiting.into_iter().filter(is_due) {
            if self.running.len() >= AT_ONCE {
                break;
            }
            if self.running.insert(of.person.clone()) {
                begun.push(of);
            }
        }
        begun
    }
}
