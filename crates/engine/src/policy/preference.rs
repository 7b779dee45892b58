//! A person's choices at the console about the destinations that may learn their identity. The authority respects them
//! whatever the policy allows. The most specific choice about a destination decides, as among the rules on an agent.

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
    /// Grants are issued only to an agent on which the person has consented, too.
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

/// A choice about a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preference {
    /// Destination that the choice is about.
    pub target: Target,
    /// The person's choice.
    pub choice: Choice,
}

/// A person's choices, at most one per target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Preferences(Vec<Preference>);

impl Preferences {
    /// Collects preferences. If several are about the same target, the last one counts.
    pub fn new(all: impl IntoIterator<Item = Preference>) -> Self {
        let mut kept: Vec<Preference> = Vec::new();
        for one in all {
            kept.retain(|other| other.target != one.target);
            kept.push(one);
        }
        Self(kept)
    }

    /// Returns all preferences.
    pub fn all(&self) -> &[Preference] {
        &self.0
    }

    /// Returns the preference that decides: the one with the longest prefix. Among preferences of equal prefixes, one
    /// with a port decides before one without.
    pub fn deciding(&self, address: IpAddr, port: u16) -> Option<&Preference> {
        let covering = self.0.iter().filter(|one| one.target.covers(address, port));
        covering.max_by_key(|one| (one.target.prefix.prefix_len(), one.target.port.is_some()))
    }

    /// Returns the preference because of which no grant may be issued for this destination, if there is one.
    /// `consented` says whether the person has consented to the destination on the agent.
    pub fn withholding(&self, to: &Destination, consented: bool) -> Option<&Preference> {
        let deciding = self.deciding(to.address, to.port)?;
        match deciding.choice {
            Choice::Allow => None,
            Choice::Ask if consented => None,
            Choice::Ask | Choice::Never => Some(deciding),
        }
    }

    /// Returns a scope for a grant for `to` that includes no destination whose grants a preference withholds: all of
    /// `scope` if that is so, otherwise only the one application.
    pub fn narrowed(&self, scope: Scope, to: &Destination) -> Scope {
        if self.0.iter().any(|one| one.choice != Choice::Allow && touches(&one.target, &scope)) {
            return Scope { prefix: IpNet::from(to.address), service: Some((to.protocol, to.port)) };
        }
        scope
    }

    /// Reports whether a grant of this scope, which was issued for `to`, could no longer be issued with this scope.
    pub fn forbids(&self, scope: &Scope, to: &Destination) -> bool {
        self.withholding(to, false).is_some() || !self.narrowed(*scope, to).covers(scope)
    }

    /// Reports whether flows of a grant of this scope, which was issued for `to`, have to end. Assumes that the person
    /// consented to the destination on the agent, because the grant does not say whether they did.
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
