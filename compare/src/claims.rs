//! Statements that a solution's documentation makes about the solution. They are not measured.

use serde::{Deserialize, Serialize};

/// The carrier of the data between client and server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Transport {
    /// No carrier: packets travel unchanged.
    None,
    /// UDP datagrams, or IP packets with a protocol number of the solution's own.
    Udp,
    /// A TCP connection.
    Tcp,
}

/// The place at which a solution processes packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Plane {
    /// The kernel processes packets.
    Kernel,
    /// A process in user space processes packets.
    Process,
}

/// A capability that a solution's documentation claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Feature {
    /// Observers of the path don't see the inner address with which a client talks.
    HidesAddresses,
    /// Observers can't read payload.
    Encrypts,
    /// Changed packets are dropped.
    Authenticates,
    /// Somebody who learns the long-term key can't decrypt earlier captures.
    ForwardSecrecy,
    /// Clients get an address in the inside network.
    InsideAddress,
    /// Access is granted per receiver and service, not per network.
    PerService,
    /// Access of one person can be withdrawn while connections are open.
    Revocation,
    /// Clients reach each other without going through the server.
    Mesh,
    /// The solution works through a NAT in front of the client.
    PassesNat,
    /// The solution works where only TCP passes.
    OnlyTcp,
    /// There are clients for Windows.
    Windows,
    /// There are clients for macOS.
    MacOs,
    /// There are clients for Android.
    Android,
    /// There are clients for iOS.
    Ios,
    /// Users log in at an identity provider of the organisation.
    SingleSignOn,
}

impl Feature {
    /// All features, in the order of the report.
    pub const ALL: [Self; 15] = [
        Self::HidesAddresses,
        Self::Encrypts,
        Self::Authenticates,
        Self::ForwardSecrecy,
        Self::InsideAddress,
        Self::PerService,
        Self::Revocation,
        Self::Mesh,
        Self::PassesNat,
        Self::OnlyTcp,
        Self::Windows,
        Self::MacOs,
        Self::Android,
        Self::Ios,
        Self::SingleSignOn,
    ];

    /// Returns the name that reports and files of weights use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::HidesAddresses => "hides-addresses",
            Self::Encrypts => "encrypts",
            Self::Authenticates => "authenticates",
            Self::ForwardSecrecy => "forward-secrecy",
            Self::InsideAddress => "inside-address",
            Self::PerService => "per-service",
            Self::Revocation => "revocation",
            Self::Mesh => "mesh",
            Self::PassesNat => "passes-nat",
            Self::OnlyTcp => "only-tcp",
            Self::Windows => "windows",
            Self::MacOs => "mac-os",
            Self::Android => "android",
            Self::Ios => "ios",
            Self::SingleSignOn => "single-sign-on",
        }
    }
}

/// A solution's description.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claims {
    /// Name of the solution in the report.
    pub title: String,
    /// Name of the group to which the solution belongs. The solutions of a group have the same protocol.
    pub family: String,
    /// The carrier of the data.
    pub transport: Transport,
    /// The place where packets are processed.
    pub plane: Plane,
    /// Cipher and authentication of the data, as configured here.
    pub cipher: String,
    /// The features that the documentation claims.
    pub features: Vec<Feature>,
    /// Whether the protocol is a published standard that others implement, too.
    pub standard: bool,
}

impl Claims {
    /// Reports whether the solution claims the feature.
    pub fn has(&self, feature: Feature) -> bool {
        self.features.contains(&feature)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_have_the_same_names_in_files() {
        for feature in Feature::ALL {
            assert_eq!(serde_json::to_value(feature).unwrap(), feature.name());
        }
    }
}
