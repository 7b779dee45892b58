//! Destinations as people name them in their rules and choices.

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// Destinations to which a rule applies: an address or network, with or without a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Target {
    /// The network, without bits set beyond its prefix length.
    pub prefix: IpNet,
    /// The port to which the rule applies; all ports if absent.
    pub port: Option<u16>,
}

impl Target {
    /// Returns the target for one address.
    pub fn host(address: IpAddr, port: Option<u16>) -> Self {
        Self { prefix: address.to_canonical().into(), port }
    }

    /// Reports whether this target includes an address and port.
    pub fn covers(&self, address: IpAddr, port: u16) -> bool {
        self.prefix.contains(&address) && self.port.is_none_or(|own| own == port)
    }
}

/// Error: this text is not a [`Target`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a destination: write 192.0.2.1, 192.0.2.0/24, 192.0.2.1:22, 2001:db8::1 or [2001:db8::/32]:22")]
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
}
