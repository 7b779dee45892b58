//! Grants as their holders have them.

use super::sealing::Sealing;
use ipnet::IpNet;
use std::net::SocketAddr;
use wire::map::GrantEntry;
use wire::{Carrier, ClientKey, Destination, GrantHeader, GrantKey, Pair, ls};

/// The secret that tokens are made with. Has no `Debug`.
#[derive(Clone)]
pub enum Secret {
    /// A grant (wire.md §3).
    Grant(GrantHeader, GrantKey),
    /// A pair of the scheme of LS (wire.md §5); its tokens travel by shim only.
    Pair(Pair, ClientKey),
}

impl Secret {
    /// Returns the secret of an entry of the kernel's grants; `None` if packets go without identity.
    pub fn of_entry(entry: &GrantEntry) -> Option<Self> {
        if entry.plain != 0 {
            return None;
        }
        if entry.suite == ls::SUITE {
            let pair = Pair::from_bytes(*entry.header.first_chunk()?);
            return Some(Self::Pair(pair, ClientKey::new(*entry.key.first_chunk()?)));
        }
        let header = GrantHeader::decode(&entry.header).ok()?;
        Some(Self::Grant(header, GrantKey::new(*entry.key.first_chunk()?)))
    }
}

/// A request for a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrantRequest {
    /// Requested destination.
    pub to: Destination,
    /// Whether the person has consented on the agent, for destinations about which they want to be asked.
    pub consented: bool,
}

/// A grant as the authority gives it to its holder. Has no `Debug`: it holds the key.
#[derive(Clone)]
pub struct Grant {
    /// Secret that tokens are made with.
    pub secret: Secret,
    /// The destination masked to the grant's prefix length.
    pub prefix: IpNet,
    /// Name of the receiver.
    pub receiver: String,
    /// The rule that allowed the grant.
    pub rule: String,
    /// Carrier of the grant's tokens.
    pub carrier: Carrier,
    /// The rule's demand for packets in a sealed tunnel.
    pub sealing: Sealing,
    /// Where the sealed tunnels of the receiver's verifier begin; empty if it has none.
    pub tunnels: Vec<SocketAddr>,
    /// End of the grant, in Unix seconds.
    pub expires: u32,
}
