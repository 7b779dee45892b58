//! Clients in sealed tunnels and their inside addresses. Gateways exchange this information with each other (wire.md
//! §6.11.4).

use std::net::IpAddr;

/// A client in a tunnel: its account and session, and the address from which its packets come inside the tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lessee {
    /// Account and session.
    pub holder: u32,
    /// The client's own address in the tunnel.
    pub address: IpAddr,
}

/// The table of the inside addresses of clients in tunnels.
pub trait Lessees: Send + Sync {
    /// Returns the client that has an inside address.
    fn of(&self, inside: IpAddr) -> Option<Lessee>;

    /// Gives a client the inside address that it has at another gateway. Returns whether the client then has it here.
    fn take_over(&self, lessee: Lessee, inside: IpAddr) -> bool;
}

#[cfg(feature = "seal")]
impl Lessees for std::sync::Mutex<tunnel::Inside> {
    fn of(&self, inside: IpAddr) -> Option<Lessee> {
        let client = self.lock().unwrap_or_else(std::sync::PoisonError::into_inner).client(inside)?;
        Some(Lessee { holder: client.holder.0, address: client.address })
    }

    fn take_over(&self, lessee: Lessee, inside: IpAddr) -> bool {
        let client = tunnel::Client { holder: wire::Holder(lessee.holder), address: lessee.address };
        let mut table = self.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        table.take_over(client, inside, tunnel::times().0)
    }
}
