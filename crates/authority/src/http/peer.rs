//! The remote end of a connection, and the credential that it has shown.

use std::net::{IpAddr, SocketAddr, SocketAddrV4};
use std::sync::{Arc, OnceLock};

/// The remote end of a connection. Clones share the record of the credential that the peer has shown.
#[derive(Clone)]
pub struct Peer {
    /// The peer's address. An IPv4-mapped IPv6 address is stored as IPv4.
    pub address: IpAddr,
    /// The addresses and ports of both ends of the connection, the peer's first; `None` if the connection does not run
    /// over IPv4.
    pub ends: Option<(SocketAddrV4, SocketAddrV4)>,
    /// The holder of the first valid credential that the peer has shown on the connection. The listener closes
    /// connections on which no credential is shown.
    pub member: Arc<OnceLock<Member>>,
}

/// The holder of a credential.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Member {
    /// A person, or a service account.
    Person(String),
    /// A verifier, by id.
    Verifier(String),
}

impl Peer {
    /// Creates the peer of a connection from `address` that has shown no credential yet. `local` is the authority's end
    /// of the connection.
    pub fn new(address: SocketAddr, local: Option<SocketAddr>) -> Self {
        let v4 = |end: SocketAddr| match end.ip().to_canonical() {
            IpAddr::V4(ip) => Some(SocketAddrV4::new(ip, end.port())),
            IpAddr::V6(_) => None,
        };
        let ends = v4(address).zip(local.and_then(v4));
        Self { address: address.ip().to_canonical(), ends, member: Arc::default() }
    }

    /// Records that the peer has shown a valid credential. `who` returns the holder of the credential. If the
    /// connection already has a holder, does nothing and does not call `who`.
    pub fn prove(&self, who: impl FnOnce() -> Member) {
        self.member.get_or_init(who);
    }

    /// Reports whether the peer has shown a valid credential.
    pub fn is_proven(&self) -> bool {
        self.member.get().is_some()
    }
}
