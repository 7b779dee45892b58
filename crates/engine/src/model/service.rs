//! Protected receivers and their services.

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// A range of ports of one protocol, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Service {
    /// The IP protocol number; 0 means every protocol.
    pub protocol: u8,
    /// The first port of the range. If ports don't matter, the range is 0 to 65535.
    pub first_port: u16,
    /// The last port of the range.
    pub last_port: u16,
}

impl Service {
    /// The service that includes every port of every protocol.
    pub const ALL: Self = Self { protocol: 0, first_port: 0, last_port: u16::MAX };

    /// Reports whether the service includes packets of `protocol` to `port`.
    pub const fn covers(&self, protocol: u8, port: u16) -> bool {
        self.protocol == 0 || (self.protocol == protocol && self.first_port <= port && port <= self.last_port)
    }
}

impl From<wire::map::Service> for Service {
    fn from(span: wire::map::Service) -> Self {
        Self { protocol: span.protocol, first_port: span.first_port, last_port: span.last_port }
    }
}

/// A protected receiver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receiver {
    /// Name of the receiver in the policy.
    pub name: String,
    /// Address or network of the receiver.
    pub prefix: IpNet,
    /// The protected services of the receiver.
    pub services: Vec<Service>,
}
