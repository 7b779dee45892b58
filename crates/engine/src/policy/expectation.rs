//! Tests that stand in the policy file beside the rules: what somebody is expected to get. A policy whose tests fail is not
//! put in force.

use super::{Asker, Compiled, Decision, Policy, Request};
use std::fmt;
use wire::Destination;

/// One test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expectation {
    /// The line it begins on.
    pub line: usize,
    /// Its name, where it has one.
    pub name: Option<String>,
    /// Who asks.
    pub who: Asker,
    /// Where to.
    pub to: Destination,
    /// When, Unix seconds.
    pub at: u64,
    /// What is expected.
    pub outcome: Outcome,
    /// The name of the rule that is to decide, if that matters.
    pub rule: Option<String>,
    /// The virtual network that it is about.
    pub network: Option<String>,
}

/// What a decision comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// A grant is given.
    Allow,
    /// It is refused, by a rule or for want of one.
    Deny,
    /// Nothing is protected there: packets pass without a grant.
    Unprotected,
}

impl Outcome {
    /// The words for them.
    pub const WORDS: [(&'static str, Self); 3] =
        [("allow", Self::Allow), ("deny", Self::Deny), ("unprotected", Self::Unprotected)];

    /// What a decision comes to.
    pub fn of(decision: &Decision<'_>) -> Self {
        match decision {
            Decision::NoReceiver => Self::Unprotected,
            Decision::DefaultDeny { .. } | Decision::Denied { .. } => Self::Deny,
            Decision::Allowed(_) => Self::Allow,
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::WORDS.iter().find(|(_, outcome)| outcome == self).map_or("", |(word, _)| word))
    }
}

/// A test that fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The line of the test.
    pub line: usize,
    /// What was expected, and what is.
    pub message: String,
}

impl Policy {
    /// The tests of the file.
    pub fn expectations(&self) -> &[Expectation] {
        &self.expectations
    }
}

impl Compiled {
    /// The tests of the file that fail.
    pub fn failures(&self) -> Vec<Failure> {
        self.policy().expectations.iter().filter_map(|test| test.failure(self)).collect()
    }
}

impl Expectation {
    fn failure(&self, policy: &Compiled) -> Option<Failure> {
        let request = Request { subject: self.who.subject(), to: self.to, now: self.at };
        let part = self.network.as_ref().map(|network| policy.network(network));
        let decision = match part {
            None => policy.decide(&request),
            Some(Some(part)) => part.decide(&request),
            Some(None) => Decision::NoReceiver,
        };
        let deciding = decision.rule();
        let as_expected = Outcome::of(&decision) == self.outcome
            && self.rule.as_ref().is_none_or(|name| deciding.is_some_and(|rule| rule.name.as_ref() == Some(name)));
        if as_expected {
            return None;
        }
        let rule = self.rule.as_ref().map(|rule| format!(" by `{rule}`")).unwrap_or_default();
        let name = self.name.as_ref().map(|name| format!("{name}: ")).unwrap_or_default();
        let why = decision.explain(&request).text;
        let message = format!("{name}expected {}{rule}, and yet: {why}", self.outcome);
        Some(Failure { line: self.line, message })
    }
}
