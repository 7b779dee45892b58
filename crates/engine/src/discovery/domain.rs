//! Domain names in one canonical form for comparison: ASCII, lower case, no dot at the end.

use std::fmt;
use std::str::FromStr;

/// The label below a domain at which its record is always found (wire.md §7.1).
pub const LABEL: &str = "_vouchsafe";
/// The labels below a name at which the SRV records of its authority's servers are found (wire.md §7.3).
const SERVICE: &str = "_vouchsafe._tcp";
/// Longest domain name, in bytes, that leaves room for [`LABEL`] and a dot before it (RFC 1035 §2.3.4).
const LONGEST: usize = 253 - LABEL.len() - 1;
const LONGEST_LABEL: usize = 63;

/// A domain name: labels of letters, digits and hyphens. Names in other scripts use their ASCII form (`xn--…`).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Domain(String);

/// Error: this text is not a domain name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a domain: write a name such as example.org; if the name has letters beyond ASCII, write its xn--… \
     form"
)]
pub struct NoDomain(String);

impl Domain {
    /// Returns the domain name, in canonical form.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the name under which the domain's record is always published: [`LABEL`], a dot, and the domain.
    pub fn record_name(&self) -> String {
        format!("{LABEL}.{}", self.0)
    }

    /// Returns the name under which DNS lists the servers of the authority that has this name.
    pub fn service_name(&self) -> String {
        format!("{SERVICE}.{}", self.0)
    }

    /// Reports whether `host` is this domain or a name below it.
    pub fn has(&self, host: &str) -> bool {
        let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
        host.strip_suffix(&self.0).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    }

    /// Reports whether the domain has only one label. Such a domain belongs to a registry, or is a name of a local
    /// network.
    pub fn is_top(&self) -> bool {
        !self.0.contains('.')
    }
}

impl FromStr for Domain {
    type Err = NoDomain;

    fn from_str(text: &str) -> Result<Self, NoDomain> {
        let name = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
        let is_label = |label: &str| {
            (1..=LONGEST_LABEL).contains(&label.len())
                && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
                && !label.starts_with('-')
                && !label.ends_with('-')
        };
        let is_address = name.rsplit('.').next().is_some_and(|last| last.bytes().all(|byte| byte.is_ascii_digit()));
        if name.len() > LONGEST || is_address || !name.split('.').all(is_label) {
            return Err(NoDomain(text.chars().take(LONGEST).collect()));
        }
        Ok(Self(name))
    }
}

impl fmt::Display for Domain {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_domain_has_one_form() {
        let domain: Domain = "Example.ORG.".parse().unwrap();
        assert_eq!((domain.as_str(), domain.record_name().as_str()), ("example.org", "_vouchsafe.example.org"));
        assert_eq!(domain.service_name(), "_vouchsafe._tcp.example.org");
        let long = format!("{}.org", "a".repeat(64));
        let deep = "a.".repeat(130);
        for wrong in ["", ".", "a..b", "-a.org", "a-.org", "a b.org", "bücher.de", "192.0.2.1", "_x.org", &long, &deep]
        {
            assert!(wrong.parse::<Domain>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_only_ends_alike_is_not_below() {
        let domain: Domain = "example.org".parse().unwrap();
        assert!(domain.has("example.org") && domain.has("a.b.EXAMPLE.org."));
        assert!(!domain.has("badexample.org") && !domain.has("example.org.evil.net") && !domain.has("org"));
    }
}
