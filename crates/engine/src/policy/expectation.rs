//! Tests in the policy file: they state which decisions the author expects. The authority does not put a policy in
//! force if one of its tests fails.

use super::{Compiled, Decision, OwnedSubject, Policy, Request};
use crate::model::Treatment;
use std::fmt;
use wire::Destination;

/// A test in a policy file: a question, and the expected decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expectation {
    /// The line on which the test begins.
    pub line: usize,
    /// Name of the test, if it has one.
    pub name: Option<String>,
    /// The subject about which the test asks.
    pub who: OwnedSubject,
    /// The destination about which the test asks.
    pub to: Destination,
    /// The time of the test, Unix seconds.
    pub at: u64,
    /// The expected outcome.
    pub outcome: Outcome,
    /// Name of the rule that has to decide; `None` if it doesn't matter which rule decides.
    pub rule: Option<String>,
    /// The virtual network of the destination, if any.
    pub network: Option<String>,
    /// The treatment that the decision has to demand; `None` if the treatment doesn't matter.
    pub treatment: Option<Treatment>,
}

/// Outcome of a policy's decision, as a test states it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// A grant is allowed.
    Allow,
    /// A grant is denied, by a rule or because no rule matches.
    Deny,
    /// The destination is not protected: packets pass without a grant.
    Unprotected,
}

impl Outcome {
    /// The words for the outcomes in a policy file.
    pub const WORDS: [(&'static str, Self); 3] =
        [("allow", Self::Allow), ("deny", Self::Deny), ("unprotected", Self::Unprotected)];

    /// Returns the outcome of a decision.
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

/// A failed test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The line of the failed test.
    pub line: usize,
    /// Text with the expected and the actual outcome.
    pub message: String,
}

impl Policy {
    /// Returns the tests in the policy file.
    pub fn expectations(&self) -> &[Expectation] {
        &self.expectations
    }
}

impl Compiled {
    /// Runs the tests in the policy file, and returns those that fail.
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
        let demanded = match &decision {
            Decision::Allowed(permit) => permit.terms.sealing.treatment,
            _ => Treatment::None,
        };
        let as_expected = Outcome::of(&decision) == self.outcome
            && self.treatment.is_none_or(|treatment| treatment == demanded)
            && self.rule.as_ref().is_none_or(|name| deciding.is_some_and(|rule| rule.name.as_ref() == Some(name)));
        if as_expected {
            return None;
        }
        let rule = self.rule.as_ref().map(|rule| format!(" by `{rule}`")).unwrap_or_default();
        let name = self.name.as_ref().map(|name| format!("{name}: ")).unwrap_or_default();
        let treatment = |treatment: Treatment| format!(" with treatment {}", treatment.name());
        let (wanted, got) = match self.treatment {
            Some(wanted) => (treatment(wanted), treatment(demanded)),
            None => Default::default(),
        };
        let why = decision.explain(&request).text;
        let message = format!("{name}expected {}{rule}{wanted}, but {why}{got}", self.outcome);
        Some(Failure { line: self.line, message })
    }
}
