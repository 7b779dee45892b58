//! A person's say in where their identity goes: rules per destination, the most specific one decides.

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// Whether first packets may carry the person's tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Consent {
    /// They may.
    #[default]
    Allow,
    /// They go as they are, without identity.
    Deny,
}

impl Consent {
    /// The name used in configuration and output.
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

/// What a rule is about: an address or network, with or without port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Target {
    /// The network; no bit is set behind its prefix.
    pub prefix: IpNet,
    /// The port; every one where there is none.
    pub port: Option<u16>,
}

impl Target {
    /// One address.
    pub fn host(address: IpAddr, port: Option<u16>) -> Self {
        Self { prefix: address.to_canonical().into(), port }
    }

    /// Whether an address and port are among what it is about.
    pub fn covers(&self, address: IpAddr, port: u16) -> bool {
        self.prefix.contains(&address) && self.port.is_none_or(|own| own == port)
    }
}

/// A text that is no [`Target`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no destination: write 192.0.2.1, 192.0.2.0/24, 192.0.2.1:22, 2001:db8::1 or [2001:db8::/32]:22")]
pub struct NoTarget(String);

impl FromStr for Target {
    type Err = NoTarget;

    fn from_str(text: &str) -> Result<Self, NoTarget> {
        let no = || NoTarget(text.to_owned());
        let net = |text: &str| match text.parse::<IpNet>() {
            Ok(net) => Some(net.trunc()),
            Err(_) => text.parse::<IpAddr>().ok().map(|address| address.to_canonical().into()),
        };
        if let Some(prefix) = net(text) {
            return Ok(Self { prefix, port: None });
        }
        let (host, port) = text.rsplit_once(':').ok_or_else(no)?;
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let prefix = net(bare.unwrap_or(host)).filter(|net| bare.is_some() || matches!(net, IpNet::V4(_)));
        Ok(Self { prefix: prefix.ok_or_else(no)?, port: Some(port.parse().map_err(|_| no())?) })
    }
}

impl TryFrom<String> for Target {
    type Error = NoTarget;

    fn try_from(text: String) -> Result<Self, NoTarget> {
        text.parse()
    }
}

impl From<Target> for String {
    fn from(target: Target) -> Self {
        target.to_string()
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = match self.prefix {
            IpNet::V4(net) if net.prefix_len() == 32 => net.addr().to_string(),
            IpNet::V6(net) if net.prefix_len() == 128 => net.addr().to_string(),
            net => net.to_string(),
        };
        match (self.port, self.prefix) {
            (None, _) => f.write_str(&host),
            (Some(port), IpNet::V4(_)) => write!(f, "{host}:{port}"),
            (Some(port), IpNet::V6(_)) => write!(f, "[{host}]:{port}"),
        }
    }
}

/// One rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConsentRule {
    /// What it is about.
    pub target: Target,
    /// What it says.
    pub consent: Consent,
}

/// A person's rules, at most one per target.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ConsentRules(Vec<ConsentRule>);

impl ConsentRules {
    /// The rules, in the order they were made.
    pub fn all(&self) -> &[ConsentRule] {
        &self.0
    }

    /// Makes a rule; it takes the place of an earlier one for the same target.
    pub fn set(&mut self, target: Target, consent: Consent) {
        self.forget(&target);
        self.0.push(ConsentRule { target, consent });
    }

    /// Removes the rule for exactly this target; says whether there was one.
    pub fn forget(&mut self, target: &Target) -> bool {
        let before = self.0.len();
        self.0.retain(|rule| rule.target != *target);
        self.0.len() != before
    }

    /// The rule that decides: the longest prefix, and with a port before without.
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
    fn targets_read_as_they_are_written() {
        for text in ["192.0.2.1", "192.0.2.0/24", "192.0.2.1:22", "2001:db8::1", "[2001:db8::/32]:443", "[::1]:1"] {
            assert_eq!(target(text).to_string(), text);
        }
        assert_eq!(target("192.0.2.7/24").to_string(), "192.0.2.0/24");
        assert_eq!(target("::ffff:192.0.2.1").to_string(), "192.0.2.1");
        for wrong in ["", "host", "192.0.2.1:", "192.0.2.1:70000", "2001:db8::/32:443", "[192.0.2.1"] {
            assert!(wrong.parse::<Target>().is_err(), "{wrong}");
        }
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
