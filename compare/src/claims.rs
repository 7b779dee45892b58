//! A solution's own statements: taken from its documentation, not measured.

use serde::{Deserialize, Serialize};

/// The carrier of the data between client and server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Transport {
    /// Nothing of its own: packets travel as they are.
    None,
    /// Datagrams of UDP, or IP packets of a protocol of its own.
    Udp,
    /// A TCP connection.
    Tcp,
}

/// The place where packets are processed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Plane {
    /// In the kernel.
    Kernel,
    /// In a process.
    Process,
}

/// An offer of a solution beside its figures: a claim of the solution's documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Feature {
    /// Observers of the path don't see with which inner address a client talks.
    HidesAddresses,
    /// Observers can't read payload.
    Encrypts,
    /// Changed packets are dropped.
    Authenticates,
    /// Old captures stay closed after the long-term key is known.
    ForwardSecrecy,
    /// Clients get an address in the inside network.
    InsideAddress,
    /// Access is granted per receiver and service, not per network.
    PerService,
    /// Access of one person can be withdrawn while connections are open.
    Revocation,
    /// Clients reach each other without going through the server.
    Mesh,
    /// Passes a NAT in front of the client.
    PassesNat,
    /// Works where only TCP passes.
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
    /// All features.
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

    /// Returns the name in weights and reports.
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
    /// Name for people.
    pub title: String,
    /// The group in tables: solutions with the same protocol.
    pub family: String,
    /// The carrier of the data.
    pub transport: Transport,
    /// The place where packets are processed.
    pub plane: Plane,
    /// Cipher and authentication of the data, as configured here.
    pub cipher: String,
    /// Features.
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
