//! Histories of operations on a cluster, and a check that they could have happened one after the other at a single
//! authority.
//!
//! A history is linearizable if every operation can be given one moment between its call and its answer so that all
//! answers follow from the operations before. The specification is stateright's
//! [`SequentialSpec`](stateright::semantics::SequentialSpec). The search remembers the situations that it has left
//! without success, as Lowe's variant of Wing and Gong's algorithm does, because a history of ten minutes has thousands
//! of operations, and stateright's own tester tries every order of concurrent operations again. On short random
//! histories, the two agree.

use std::collections::{BTreeSet, HashSet};
use std::fmt;
use std::time::Duration;

use stateright::semantics::SequentialSpec;

/// Number of histories that are recorded at the same time, each about one receiver and one person. Operations on
/// different receivers and people do not depend on each other, except by the policy, which is in each history.
pub const PARTS: usize = 2;

/// An operation about one receiver and one person.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Puts a version of the policy in force, which allows the person to send to the receiver, or does not.
    Apply {
        /// The version.
        version: u32,
        /// Whether the person may send to the receiver.
        allowed: bool,
    },
    /// Ends all sessions and grants of the person.
    Revoke,
    /// Begins a session of the person.
    Login(u32),
    /// Requests a new grant in this session.
    Issue(u32),
}

/// The answer to an operation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Ret {
    /// It was carried out.
    Done,
    /// A grant by this version of the policy.
    Granted(u32),
    /// The policy denies the grant.
    Denied,
    /// There is no such session.
    Gone,
}

/// The specification: one authority that does one operation after the other.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Single {
    version: u32,
    allowed: bool,
    live: BTreeSet<u32>,
}

impl Single {
    /// An authority without sessions, with version 0 of the policy in force, which allows the grant.
    pub fn new() -> Self {
        Self { version: 0, allowed: true, live: BTreeSet::new() }
    }
}

impl SequentialSpec for Single {
    type Op = Op;
    type Ret = Ret;

    fn invoke(&mut self, op: &Op) -> Ret {
        match op {
            Op::Apply { version, allowed } => (self.version, self.allowed) = (*version, *allowed),
            Op::Revoke => self.live.clear(),
            Op::Login(session) => drop(self.live.insert(*session)),
            Op::Issue(session) if !self.live.contains(session) => return Ret::Gone,
            Op::Issue(_) if !self.allowed => return Ret::Denied,
            Op::Issue(_) => return Ret::Granted(self.version),
        }
        Ret::Done
    }
}

/// An operation, with the times of its call and its answer since the history's beginning.
#[derive(Clone, Debug)]
pub struct Call {
    /// The operation.
    pub op: Op,
    /// The time of the call.
    pub from: Duration,
    /// The answer and its time; `None` if the caller doesn't know whether the operation was carried out.
    pub came: Option<(Ret, Duration)>,
    /// Where the operation was requested, for messages.
    pub place: String,
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { op, from, place, .. } = self;
        match &self.came {
            Some((ret, to)) => write!(f, "{from:.3?} to {to:.3?} at {place}: {op:?} gave {ret:?}"),
            None => write!(f, "{from:.3?} at {place}: {op:?} without an answer"),
        }
    }
}

/// The point at which the search for an order got no further.
#[derive(Debug)]
pub struct Stuck {
    /// The number of operations that can be ordered.
    pub ordered: usize,
    /// The state of the single authority after them, and the operations that could come next, of which none fits.
    pub text: String,
}

/// A set of operations that have been ordered, and the state after them. Operations with an answer are numbered by the
/// time of their call: all below `next` are ordered, and those in `ahead`.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Situation {
    next: usize,
    ahead: BTreeSet<usize>,
    unanswered: BTreeSet<usize>,
    state: Single,
}

/// Checks a history. Everything that has an effect must be linearizable, above all grants. An answer that gives nothing
/// comes from the memory of one authority. So it only must follow from a state that this authority may still have,
/// because the change after it had not returned when the request was made.
///
/// # Errors Fails if an answer is wrong.
pub fn check(history: &[Call]) -> Result<(), Stuck> {
    let gives_nothing = |call: &Call| matches!(call.came, Some((Ret::Denied | Ret::Gone, _)));
    for call in history.iter().filter(|call| gives_nothing(call)) {
        if !may_give_nothing(history, call) {
            return Err(Stuck { ordered: 0, text: format!("because of one answer: {call}") });
        }
    }
    let rest: Vec<_> = history.iter().filter(|call| !gives_nothing(call)).cloned().collect();
    linearize(&rest)
}

fn may_give_nothing(history: &[Call], call: &Call) -> bool {
    let Some((ret, to)) = &call.came else { return true };
    let Op::Issue(session) = call.op else { return true };
    let begun = history.iter().filter(|other| other.from < *to);
    let ended_before = |other: &Call, time: Duration| other.came.as_ref().is_some_and(|(_, to)| *to < time);
    if *ret == Ret::Denied {
        let versions = begun.filter_map(|other| match other.op {
            Op::Apply { version, allowed } => Some((version, allowed, ended_before(other, call.from))),
            _ => None,
        });
        let versions: Vec<_> = versions.collect();
        let oldest = versions.iter().filter(|(_, _, returned)| *returned).map(|(version, ..)| *version).max();
        return versions.iter().any(|(version, allowed, _)| !allowed && Some(*version) >= oldest);
    }
    let login = history.iter().find(|other| other.op == Op::Login(session)).map_or(Duration::ZERO, |login| login.from);
    let mut begun = begun;
    begun.any(|other| other.op == Op::Revoke && !ended_before(other, login))
}

/// Checks whether a history is linearizable. Operations without an answer may have been carried out at any time after
/// their call, or never.
///
/// # Errors
/// Fails if it is not.
pub fn linearize(history: &[Call]) -> Result<(), Stuck> {
    let mut calls: Vec<_> = history.iter().filter_map(|call| Some((call, call.came.as_ref()?))).collect();
    calls.sort_by_key(|(call, _)| call.from);
    let seen: HashSet<_> = calls.iter().filter_map(|(_, (ret, _))| version_of(ret)).collect();
    let unanswered: Vec<_> = history.iter().filter(|call| call.came.is_none() && explains(&call.op, &seen)).collect();
    let mut left = HashSet::new();
    let first = Situation { next: 0, ahead: BTreeSet::new(), unanswered: BTreeSet::new(), state: Single::new() };
    let mut stack = vec![first];
    let mut furthest = (0, String::new());
    while let Some(situation) = stack.pop() {
        if situation.next == calls.len() {
            return Ok(());
        }
        if !left.insert(situation.clone()) {
            continue;
        }
        // An operation can come next if no other one had its answer before this one's call.
        let mut earliest = Duration::MAX;
        let mut possible = Vec::new();
        for (at, (call, (_, to))) in calls.iter().enumerate().skip(situation.next) {
            if call.from > earliest {
                break;
            }
            if !situation.ahead.contains(&at) {
                earliest = earliest.min(*to);
                possible.push(at);
            }
        }
        possible.retain(|at| calls[*at].0.from <= earliest);
        let ordered = situation.next + situation.ahead.len();
        if ordered >= furthest.0 {
            let lines = possible.iter().map(|at| format!("\n  {}", calls[*at].0));
            furthest = (ordered, format!("{:?}{}", situation.state, lines.collect::<String>()));
        }
        for (at, call) in unanswered.iter().enumerate() {
            if call.from <= earliest && !situation.unanswered.contains(&at) {
                let mut then = situation.clone();
                then.state.invoke(&call.op);
                then.unanswered.insert(at);
                stack.push(then);
            }
        }
        // The stack's top is tried first: the operation that was answered first.
        possible.sort_by_key(|at| std::cmp::Reverse(calls[*at].1.1));
        for at in possible {
            let (call, (ret, _)) = &calls[at];
            let mut then = situation.clone();
            if !then.state.is_valid_step(&call.op, ret) {
                continue;
            }
            then.ahead.insert(at);
            while then.ahead.remove(&then.next) {
                then.next += 1;
            }
            stack.push(then);
        }
    }
    let (ordered, text) = furthest;
    Err(Stuck { ordered, text: format!("after {ordered} of {} operations: {text}", calls.len()) })
}

fn version_of(ret: &Ret) -> Option<u32> {
    if let Ret::Granted(version) = ret { Some(*version) } else { None }
}

/// Reports whether an operation without an answer can explain anything. A version of the policy that allows the grant
/// explains only grants by this version: where none was seen, every order without the operation is also one.
fn explains(op: &Op, seen: &HashSet<u32>) -> bool {
    match op {
        Op::Apply { version, allowed: true } => seen.contains(version),
        Op::Apply { .. } | Op::Revoke | Op::Login(_) => true,
        Op::Issue(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use stateright::semantics::{ConsistencyTester, LinearizabilityTester};

    use super::*;
    use crate::chance::Chance;

    fn call(op: Op, ret: Option<Ret>, from: u64, to: u64) -> Call {
        let at = Duration::from_millis;
        Call { op, from: at(from), came: ret.map(|ret| (ret, at(to))), place: "a test".into() }
    }

    /// Asks stateright. Each call has a thread of its own unless it follows another one of the thread.
    fn stateright(history: &[(usize, Call)]) -> bool {
        let mut events = Vec::new();
        for (thread, call) in history {
            events.push((call.from, *thread, Some(&call.op), None));
            if let Some((ret, to)) = &call.came {
                events.push((*to, *thread, None, Some(ret)));
            }
        }
        events.sort_by_key(|event| event.0);
        let mut tester = LinearizabilityTester::new(Single::new());
        for (_, thread, op, ret) in events {
            match (op, ret) {
                (Some(op), _) => drop(tester.on_invoke(thread, op.clone()).unwrap()),
                (_, Some(ret)) => drop(tester.on_return(thread, ret.clone()).unwrap()),
                _ => {}
            }
        }
        tester.is_consistent()
    }

    fn both(history: &[(usize, Call)]) -> bool {
        let ours = linearize(&history.iter().map(|(_, call)| call.clone()).collect::<Vec<_>>()).is_ok();
        assert_eq!(ours, stateright(history), "{history:#?}");
        ours
    }

    #[test]
    fn a_grant_by_the_old_policy_is_found_if_it_was_asked_for_after_the_new_one_was_there() {
        let apply = call(Op::Apply { version: 1, allowed: true }, Some(Ret::Done), 10, 20);
        let issue = |from, to, version| call(Op::Issue(7), Some(Ret::Granted(version)), from, to);
        let login = call(Op::Login(7), Some(Ret::Done), 0, 5);
        let history = |issued| vec![(0, login.clone()), (1, apply.clone()), (2, issued)];
        assert!(both(&history(issue(11, 30, 0))), "the two were concurrent");
        assert!(both(&history(issue(12, 30, 1))));
        assert!(!both(&history(issue(21, 30, 0))), "the new version was in force");
        assert!(!both(&history(issue(6, 9, 1))), "the new version was not in force");
    }

    #[test]
    fn a_grant_of_a_revoked_session_is_found() {
        let login = call(Op::Login(7), Some(Ret::Done), 0, 5);
        let revoke = call(Op::Revoke, Some(Ret::Done), 10, 20);
        let issue = |from, to| call(Op::Issue(7), Some(Ret::Granted(0)), from, to);
        let history = |issued| vec![(0, login.clone()), (1, revoke.clone()), (2, issued)];
        assert!(both(&history(issue(15, 30))));
        assert!(!both(&history(issue(21, 30))));
        let gone = call(Op::Issue(7), Some(Ret::Gone), 21, 30);
        assert!(both(&history(gone)));
    }

    #[test]
    fn a_refusal_may_be_late_but_not_wrong() {
        let apply = |version, allowed, from| call(Op::Apply { version, allowed }, Some(Ret::Done), from, from + 10);
        let login = call(Op::Login(7), Some(Ret::Done), 0, 5);
        let asked = |ret, from| call(Op::Issue(7), Some(ret), from, from + 5);
        let holds = |answer: Call| {
            let revoke = call(Op::Revoke, Some(Ret::Done), 100, 110);
            check(&[login.clone(), apply(1, false, 20), apply(2, true, 40), revoke, answer]).is_ok()
        };
        assert!(!holds(asked(Ret::Denied, 6)) && holds(asked(Ret::Denied, 32)) && holds(asked(Ret::Denied, 45)));
        assert!(!holds(asked(Ret::Denied, 60)), "the version that allows it had returned");
        assert!(!holds(asked(Ret::Gone, 90)) && holds(asked(Ret::Gone, 99)) && holds(asked(Ret::Gone, 120)));
    }

    #[test]
    fn an_operation_without_an_answer_may_have_happened_or_not() {
        let login = call(Op::Login(7), Some(Ret::Done), 0, 5);
        let apply = call(Op::Apply { version: 1, allowed: true }, None, 10, 0);
        let issue = |from, version| call(Op::Issue(7), Some(Ret::Granted(version)), from, from + 1);
        let history = |issued: &[(u64, u32)]| {
            let mut all = vec![(0, login.clone()), (1, apply.clone())];
            all.extend(issued.iter().map(|(from, version)| (2, issue(*from, *version))));
            all
        };
        assert!(both(&history(&[(20, 0), (30, 0)])) && both(&history(&[(20, 0), (30, 1)])));
        assert!(!both(&history(&[(20, 1), (30, 0)])), "a version does not go away again");
        assert!(!both(&history(&[(6, 1)])));
    }

    #[test]
    fn the_search_agrees_with_stateright_on_random_histories() {
        let mut chance = Chance::new(1);
        let mut linearizable = 0;
        for _ in 0..3000 {
            let mut history = Vec::new();
            for thread in 0..3_usize {
                let mut time = chance.below(20) * 8 + thread as u64;
                for _ in 0..1 + chance.below(3) {
                    let version = 1 + chance.below(2) as u32;
                    let (op, ret) = match chance.below(8) {
                        0 | 1 => (Op::Apply { version, allowed: chance.below(3) > 0 }, Ret::Done),
                        2 => (Op::Revoke, Ret::Done),
                        3 => (Op::Login(1), Ret::Done),
                        4 => (Op::Issue(1), Ret::Gone),
                        5 => (Op::Issue(1), Ret::Denied),
                        _ => (Op::Issue(1), Ret::Granted(version % 2)),
                    };
                    let to = time + 8 * (1 + chance.below(12));
                    let is_lost = chance.below(8) == 0;
                    history.push((thread, call(op, (!is_lost).then_some(ret), time, to)));
                    if is_lost {
                        break;
                    }
                    time = to + 8 * (1 + chance.below(4));
                }
            }
            linearizable += u32::from(both(&history));
        }
        assert!((300..2700).contains(&linearizable), "{linearizable} of 3000 are linearizable: the test shows little");
    }

    #[test]
    fn a_long_history_is_checked_at_once_and_a_late_fault_in_it_found() {
        let mut history = vec![call(Op::Login(1), Some(Ret::Done), 0, 5)];
        let mut version = 0;
        for round in 1..2000_u64 {
            let at = round * 100;
            let next = version + 1;
            history.push(call(Op::Apply { version: next, allowed: true }, Some(Ret::Done), at, at + 60));
            // Three clients ask while the version is put in force, and see it one after the other.
            for (client, seen) in [version, version, next].into_iter().enumerate() {
                let from = at + 5 + client as u64;
                history.push(call(Op::Issue(1), Some(Ret::Granted(seen)), from, from + 50));
            }
            history.push(call(Op::Issue(1), Some(Ret::Granted(next)), at + 70, at + 90));
            version = next;
        }
        assert!(check(&history).is_ok());
        history.push(call(Op::Issue(1), Some(Ret::Granted(version - 1)), 200_001, 200_010));
        let stuck = check(&history).unwrap_err();
        assert_eq!(stuck.ordered, history.len() - 1, "{}", stuck.text);
    }
}
