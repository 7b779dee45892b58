//! Grants in the form in which the authority gives them to their holders.

use super::sealing::Sealing;
use ipnet::IpNet;
use std::net::SocketAddr;
use wire::map::GrantEntry;
use wire::{Carrier, ClientKey, Destination, Flags, GrantHeader, GrantKey, Pair, ls};

/// The secret from which tokens are made. Has no `Debug`.
#[derive(Clone)]
pub enum Secret {
    /// A grant (wire.md §3).
    Grant(GrantHeader, GrantKey),
    /// A pair of the scheme of LS (wire.md §5); its tokens travel by shim only.
    Pair(Pair, ClientKey),
}

impl Secret {
    /// Returns the secret in an entry of the kernel's grant map; `None` if the entry lets packets go without identity,
    /// or is malformed.
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
    /// The destination to which the person wants to send.
    pub to: Destination,
    /// Whether the person has consented to this destination on the agent. The authority needs this if the person has
    /// chosen to be asked about the destination.
    pub consented: bool,
}

/// A grant as the authority gives it to its holder. Has no `Debug` because it contains the key.
#[derive(Clone)]
pub struct Grant {
    /// Secret from which tokens are made.
    pub secret: Secret,
    /// The network that the grant covers: the requested destination, masked to the grant's prefix length.
    pub prefix: IpNet,
    /// Name of the receiver.
    pub receiver: String,
    /// Name of the rule that allowed the grant.
    pub rule: String,
    /// Carrier of the grant's tokens.
    pub carrier: Carrier,
    /// The protection that the rule demands for packets in a sealed tunnel.
    pub sealing: Sealing,
    /// Addresses and ports at which the receiver's verifier accepts sealed tunnels; empty if it accepts none.
    pub tunnels: Vec<SocketAddr>,
    /// End of the grant, in Unix seconds.
    pub expires: u32,
}

impl Grant {
    /// Reports whether the grant admits packets only inside a sealed tunnel.
    pub fn admits_in_tunnel_only(&self) -> bool {
        let is_marked = matches!(&self.secret, Secret::Grant(header, _) if header.flags.has(Flags::SEALED));
        is_marked || self.sealing.is_sealed()
    }
}
