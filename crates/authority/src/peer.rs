//! The other end of a connection, and what it has shown of itself.

use std::net::{IpAddr, SocketAddr, SocketAddrV4};
use std::sync::{Arc, OnceLock};

/// The other end of a connection.
#[derive(Clone)]
pub struct Peer {
    /// Its address; an IPv4 one even where it came mapped into IPv6.
    pub address: IpAddr,
    /// Both ends of the connection, the caller's first, where it is one over IPv4.
    pub ends: Option<(SocketAddrV4, SocketAddrV4)>,
    /// Who it is by the first valid credential that it showed; connections that show none are closed.
    pub member: Arc<OnceLock<Member>>,
}

/// Who has a credential.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Member {
    /// A person, or a service account.
    Person(String),
    /// A verifier, by id.
    Verifier(String),
}

impl Peer {
    /// A connection from `address`, which has shown nothing yet; `local` is our end.
    pub fn new(address: SocketAddr, local: Option<SocketAddr>) -> Self {
        let v4 = |end: SocketAddr| match end.ip().to_canonical() {
            IpAddr::V4(ip) => Some(SocketAddrV4::new(ip, end.port())),
            IpAddr::V6(_) => None,
        };
        let ends = v4(address).zip(local.and_then(v4));
        Self { address: address.ip().to_canonical(), ends, member: Arc::default() }
    }

    /// Notes that it showed the valid credential of this member.
    pub fn prove(&self, who: impl FnOnce() -> Member) {
        self.member.get_or_init(who);
    }

    /// Whether it showed a valid credential.
    pub fn is_proven(&self) -> bool {
        self.member.get().is_some()
    }
}
