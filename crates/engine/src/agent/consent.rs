//! A person's rules on the destinations to which the person's identity is allowed to go. Each rule applies to some
//! destinations. If several rules match, the most specific one decides.

use crate::model::Target;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use std::str::FromStr;

/// Maximum number of a person's rules. The number is limited because each packet that the agent queues is compared with
/// all rules.
pub const RULES_MAX: usize = 256;

/// Whether first packets are allowed to carry the person's tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Consent {
    /// First packets are allowed to carry tokens.
    #[default]
    Allow,
    /// First packets are sent unchanged, without the person's identity.
    Deny,
}

impl Consent {
    /// Returns the name used in configuration and output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
        }
    }
}

impl FromStr for Consent {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        [Self::Allow, Self::Deny].into_iter().find(|consent| consent.name() == text).ok_or(())
    }
}

/// A person's rule about consent to some destinations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConsentRule {
    /// Destinations to which the rule applies.
    pub target: Target,
    /// Whether the person's identity is allowed to go to these destinations.
    pub consent: Consent,
}

/// A person's rules, at most one per target.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ConsentRules(Vec<ConsentRule>);

impl ConsentRules {
    /// Returns the rules in the order in which they were made.
    pub fn all(&self) -> &[ConsentRule] {
        &self.0
    }

    /// Adds a rule, replacing an earlier one for the same target.
    pub fn set(&mut self, target: Target, consent: Consent) {
        self.forget(&target);
        self.0.push(ConsentRule { target, consent });
    }

    /// Reports whether [`Self::set`] can store a rule for this target. This is the case if the limit is not reached, or
    /// if the new rule replaces an earlier rule for the same target.
    pub fn have_room_for(&self, target: &Target) -> bool {
        self.0.len() < RULES_MAX || self.0.iter().any(|rule| rule.target == *target)
    }

    /// Removes the rule for exactly this target. Returns whether there was such a rule.
    pub fn forget(&mut self, target: &Target) -> bool {
        let before = self.0.len();
        self.0.retain(|rule| rule.target != *target);
        self.0.len() != before
    }

    /// Returns the rule that decides about this address and port: of the rules that match, the one with the longest
    /// prefix. Among rules of equal prefixes, a rule with a port decides before a rule without a port.
    pub fn deciding(&self, address: IpAddr, port: u16) -> Option<&ConsentRule> {
        let covering = self.0.iter().filter(|rule| rule.target.covers(address, port));
        covering.max_by_key(|rule| (rule.target.prefix.prefix_len(), rule.target.port.is_some()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(text: &str) -> Target {
        text.parse().expect("a target")
    }

    #[test]
    fn the_most_specific_rule_decides() {
        let mut rules = ConsentRules::default();
        rules.set(target("192.0.2.0/24"), Consent::Deny);
        rules.set(target("192.0.2.1"), Consent::Allow);
        rules.set(target("192.0.2.1:22"), Consent::Deny);
        let says = |address: &str, port| rules.deciding(address.parse().ok()?, port).map(|rule| rule.consent);
        assert_eq!(says("192.0.2.9", 22), Some(Consent::Deny));
        assert_eq!(says("192.0.2.1", 443), Some(Consent::Allow));
        assert_eq!(says("192.0.2.1", 22), Some(Consent::Deny));
        assert_eq!(says("198.51.100.1", 22), None);
    }

    #[test]
    fn a_target_has_one_rule() {
        let mut rules = ConsentRules::default();
        rules.set(target("192.0.2.1"), Consent::Deny);
        rules.set(target("192.0.2.1"), Consent::Allow);
        assert_eq!(rules.all().len(), 1);
        assert!(rules.forget(&target("192.0.2.1")) && !rules.forget(&target("192.0.2.1")));
    }
}
