//! What user space sends: datagrams that waited for their segment, and frames that tell tenants something.

use anyhow::{Context, Result};
use datapath::packet_socket::PacketSocket;
use std::net::{IpAddr, SocketAddr, UdpSocket};

/// Bytes of the headers before a datagram's payload, with IPv4 and with IPv6.
const HEADERS: (usize, usize) = (28, 48);

/// The sockets.
pub struct Outlets {
    underlay: UdpSocket,
    address: IpAddr,
    mtu: usize,
    frames: PacketSocket,
}

impl Outlets {
    /// Opens them, for the endpoint with this address and longest packet.
    pub fn open(address: IpAddr, mtu: u32) -> Result<Self> {
        let underlay = UdpSocket::bind(SocketAddr::new(address, 0));
        let underlay =
            underlay.with_context(|| format!("cannot send from {address}: is it this host's (see `ip address`)?"))?;
        // A full queue loses a packet, as any queue may.
        underlay.set_nonblocking(true)?;
        Ok(Self { underlay, address, mtu: mtu as usize, frames: PacketSocket::new()? })
    }

    /// Sends a tunnelled packet from one endpoint to another. What a verifier would get in pieces is not sent, nor what would
    /// be this host's own: their senders try again, by the kernel's way.
    pub fn send(&self, from: IpAddr, to: IpAddr, datagram: &[u8]) -> Result<()> {
        let headers = if to.is_ipv4() { HEADERS.0 } else { HEADERS.1 };
        if from != self.address || from == to || datagram.len() + headers > self.mtu {
            return Ok(());
        }
        let sent = self.underlay.send_to(datagram, SocketAddr::new(to, wire::geneve::PORT));
        sent.map(drop).with_context(|| format!("cannot send to {to}"))
    }

    /// Sends a frame to who is behind an interface.
    pub fn tell(&self, interface: u32, frame: &[u8]) -> Result<()> {
        let Some([high, low]) = frame.get(12..14).and_then(|kind| kind.first_chunk()) else { return Ok(()) };
        let kind = u16::from_be_bytes([*high, *low]);
        self.frames.send(interface, kind, frame).context("cannot tell a tenant")
    }
}
