//! A person's choices at the console. They say which destinations are allowed to learn who the person is. The authority
//! respects these choices even where the policy allows more. The most specific choice about a destination decides, as
//! it does among the consent rules on an agent.

use crate::model::Target;
use crate::policy::Scope;
use ipnet::IpNet;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use wire::Destination;

/// A person's choice about grants for a destination that the policy allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// Grants are issued.
    #[default]
    Allow,
    /// Grants are issued only if the person has also consented on the agent.
    Ask,
    /// Grants are not issued.
    Never,
}

impl Choice {
    /// All choices.
    pub const ALL: [Self; 3] = [Self::Allow, Self::Ask, Self::Never];

    /// Returns the name used in storage and on pages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Ask => "ask",
            Self::Never => "never",
        }
    }
}

impl FromStr for Choice {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        Self::ALL.into_iter().find(|choice| choice.name() == text).ok_or(())
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A person's choice about some destinations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preference {
    /// Destinations to which the choice applies.
    pub target: Target,
    /// The choice about grants for these destinations.
    pub choice: Choice,
}

/// A person's choices, at most one per target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Preferences(Vec<Preference>);

impl Preferences {
    /// Collects choices. Of several choices with the same target, only the last is kept.
    pub fn new(all: impl IntoIterator<Item = Preference>) -> Self {
        let mut kept: Vec<Preference> = Vec::new();
        for one in all {
            kept.retain(|other| other.target != one.target);
            kept.push(one);
        }
        Self(kept)
    }

    /// Returns all choices.
    pub fn all(&self) -> &[Preference] {
        &self.0
    }

    /// Returns the preference that decides about this address and port: of the preferences that match, the one with the
    /// longest prefix. Among preferences of equal prefixes, a preference with a port decides before a preference
    /// without a port.
    pub fn deciding(&self, address: IpAddr, port: u16) -> Option<&Preference> {
        let covering = self.0.iter().filter(|one| one.target.covers(address, port));
        covering.max_by_key(|one| (one.target.prefix.prefix_len(), one.target.port.is_some()))
    }

    /// Returns the choice that forbids a grant for this destination, if there is one. `consented` states whether the
    /// person has consented to the destination on the agent.
    pub fn withholding(&self, to: &Destination, consented: bool) -> Option<&Preference> {
        let deciding = self.deciding(to.address, to.port)?;
        match deciding.choice {
            Choice::Allow => None,
            Choice::Ask if consented => None,
            Choice::Ask | Choice::Never => Some(deciding),
        }
    }

    /// Returns the scope that a grant for `to` is allowed to have. The result is `scope` if all preferences about
    /// destinations in `scope` have the choice [`Choice::Allow`]. Otherwise the result covers only the protocol, port
    /// and address of `to`.
    pub fn narrowed(&self, scope: Scope, to: &Destination) -> Scope {
        if self.0.iter().any(|one| one.choice != Choice::Allow && touches(&one.target, &scope)) {
            return Scope { prefix: IpNet::from(to.address), service: Some((to.protocol, to.port)) };
        }
        scope
    }

    /// Reports whether a grant for `to` with this scope is now forbidden for a person who has not consented on the
    /// agent.
    pub fn forbids(&self, scope: &Scope, to: &Destination) -> bool {
        self.withholding(to, false).is_some() || !self.narrowed(*scope, to).covers(scope)
    }

    /// Reports whether the flows of a grant for `to` with this scope have to end. Assumes that the person has consented
    /// to the destination on the agent, because the grant does not contain this fact.
    pub fn ends_flows(&self, scope: &Scope, to: &Destination) -> bool {
        self.withholding(to, true).is_some() || !self.narrowed(*scope, to).covers(scope)
    }
}

/// Reports whether `scope` and `target` have a destination in common.
fn touches(target: &Target, scope: &Scope) -> bool {
    let prefixes = target.prefix.contains(&scope.prefix) || scope.prefix.contains(&target.prefix);
    let ports = match (target.port, scope.service) {
        (Some(own), Some((_, port))) => own == port,
        _ => true,
    };
    prefixes && ports
}

#[cfg(test)]
mod tests {
    use super::*;

    fn preferences(all: &[(&str, Choice)]) -> Preferences {
        Preferences::new(
            all.iter().map(|(target, choice)| Preference { target: target.parse().unwrap(), choice: *choice }),
        )
    }

    fn to(address: &str, port: u16) -> Destination {
        Destination { address: address.parse().unwrap(), protocol: 6, port }
    }

    #[test]
    fn the_most_specific_choice_decides() {
        let all = preferences(&[
            ("192.0.2.0/24", Choice::Never),
            ("192.0.2.1", Choice::Ask),
            ("192.0.2.1:22", Choice::Allow),
        ]);
        assert!(all.withholding(&to("192.0.2.9", 22), true).is_some());
        assert!(all.withholding(&to("192.0.2.1", 443), false).is_some());
        assert!(all.withholding(&to("192.0.2.1", 443), true).is_none());
        assert!(all.withholding(&to("192.0.2.1", 22), false).is_none());
        assert!(all.withholding(&to("198.51.100.1", 22), false).is_none());
    }

    #[test]
    fn a_wide_grant_is_narrowed_around_what_is_withheld() {
        let wide = Scope { prefix: "192.0.2.0/24".parse().unwrap(), service: None };
        let one = Scope { prefix: "192.0.2.1/32".parse().unwrap(), service: Some((6, 22)) };
        for (target, narrows) in [
            ("192.0.2.9", true),
            ("192.0.2.9:443", true),
            ("192.0.0.0/16", true),
            ("198.51.100.0/24", false),
            ("2001:db8::/32", false),
        ] {
            let all = preferences(&[(target, Choice::Never)]);
            let scope = all.narrowed(wide, &to("192.0.2.1", 22));
            assert_eq!(scope, if narrows { one } else { wide }, "{target}");
            assert_eq!(all.forbids(&wide, &to("192.0.2.1", 22)), narrows, "{target}");
        }
        let allowed = preferences(&[("192.0.2.0/24", Choice::Allow)]);
        assert_eq!(allowed.narrowed(wide, &to("192.0.2.1", 22)), wide);
        let port = preferences(&[("192.0.2.1:443", Choice::Never)]);
        assert!(!port.forbids(&one, &to("192.0.2.1", 22)) && port.forbids(&wide, &to("192.0.2.1", 22)));
    }

    #[test]
    fn a_target_has_one_choice() {
        let all = preferences(&[("192.0.2.1", Choice::Never), ("192.0.2.1", Choice::Allow)]);
        assert_eq!(all.all().len(), 1);
        assert!(all.withholding(&to("192.0.2.1", 22), false).is_none());
    }
}
