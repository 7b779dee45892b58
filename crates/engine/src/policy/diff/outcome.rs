//! Outcomes of a policy, reduced to the parts that matter for a comparison.

use super::Kind;
use crate::document::duration;
use crate::policy::{Action, Granularity, Policy, Rule, Terms};
use std::fmt;
use wire::Carrier;

pub(super) enum Outcome<'p> {
    Unprotected,
    NoRule,
    Denied(&'p Rule),
    Allowed(&'p Rule),
}

impl<'p> Outcome<'p> {
    pub(super) fn of(rule: Option<&'p Rule>) -> Self {
        match rule {
            None => Self::NoRule,
            Some(rule) if rule.action == Action::Allow => Self::Allowed(rule),
            Some(rule) => Self::Denied(rule),
        }
    }

    /// Returns the kind of change between the two outcomes.
    pub(super) fn kind([old, new]: &[Self; 2]) -> Option<Kind> {
        match (old.is_open(), new.is_open()) {
            (false, false) => None,
            (false, true) => Some(Kind::Gains),
            (true, false) => Some(Kind::Loses),
            (true, true) => (old != new).then_some(Kind::Terms),
        }
    }

    pub(super) fn said(&self) -> Said {
        match self {
            Self::Unprotected => Said::Unprotected,
            Self::NoRule => Said::NoRule,
            Self::Denied(rule) | Self::Allowed(rule) => Said::By(rule.number),
        }
    }

    fn is_open(&self) -> bool {
        matches!(self, Self::Unprotected | Self::Allowed(_))
    }
}

/// Outcomes are equal if they have the same effect for the subject, even by different rules.
impl PartialEq for Outcome<'_> {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Allowed(one), Self::Allowed(two)) => one.terms == two.terms,
            (Self::Unprotected, Self::Unprotected) => true,
            (one, two) => !one.is_open() && !two.is_open(),
        }
    }
}

/// An outcome that refers to its rule by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Said {
    Unprotected,
    NoRule,
    By(usize),
}

impl Said {
    pub(super) fn in_words(self, policy: &Policy) -> String {
        let rule = match self {
            Self::Unprotected => return "not protected".into(),
            Self::NoRule => return "no rule allows it".into(),
            Self::By(number) => policy.rule_numbered(number),
        };
        match rule.action {
            Action::Deny => format!("denied by {}", rule.label()),
            Action::Allow => format!("allowed by {} ({})", rule.label(), Words(&rule.terms)),
        }
    }
}

struct Words<'t>(&'t Terms);

impl fmt::Display for Words<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Terms { granularity, lifetime, single, reply, bind_source, suite, carrier, class, sealing } = self.0;
        f.write_str(match granularity {
            Granularity::Application if *single => "flow",
            Granularity::Application => "application",
            Granularity::Host => "host",
            Granularity::Network => "network",
        })?;
        write!(f, ", {}, {}", duration(*lifetime), suite.name())?;
        let single = *single && *granularity != Granularity::Application;
        let shim = *carrier == Carrier::Shim;
        for (set, word) in
            [(single, "one flow"), (*reply, "reply"), (*bind_source, "bound to the source"), (shim, "by shim")]
        {
            if set {
                write!(f, ", {word}")?;
            }
        }
        if *class != 0 {
            write!(f, ", class {class}")?;
        }
        if sealing.is_sealed() {
            write!(f, ", {}", sealing.words())?;
        }
        Ok(())
    }
}
