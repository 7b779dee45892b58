//! Sends packets from user space: tenants' datagrams that waited for their segment, and frames to tenants.

use anyhow::{Context, Result};
use datapath::packet_socket::PacketSocket;
use datapath::routed;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use wire::Hops;
use wire::geneve::PORT;

/// Length of the IP and UDP headers of a datagram in bytes: with IPv4, and with IPv6.
const HEADERS: (usize, usize) = (28, 48);
/// Length of a routing header in bytes: without hops, and for each hop.
const ROUTING: (usize, usize) = (8, 16);

/// The sockets through which user space sends packets.
pub struct Outlets {
    underlay: UdpSocket,
    address: IpAddr,
    mtu: usize,
    frames: PacketSocket,
}

impl Outlets {
    /// Opens the sockets for the endpoint with this address and MTU.
    pub fn open(address: IpAddr, mtu: u32) -> Result<Self> {
        let underlay = UdpSocket::bind(SocketAddr::new(address, 0));
        let underlay = underlay.with_context(|| {
            format!("cannot send from {address}: check whether this host has the address (see `ip address`)")
        })?;
        // A full queue drops packets, as any queue may.
        underlay.set_nonblocking(true)?;
        Ok(Self { underlay, address, mtu: mtu as usize, frames: PacketSocket::new()? })
    }

    /// Sends a tunnelled packet from the endpoint `from` to the endpoint `to`, through the hops if the path is fixed.
    /// Does nothing if `from` is not the address for which the sockets were opened, if `to` is the same address, or if
    /// the packet would be longer than the underlay's MTU. In these cases, the tenant sends its packet again, and the
    /// kernel program handles that packet.
    pub fn send(&self, from: IpAddr, to: IpAddr, hops: &[Ipv6Addr], datagram: &[u8]) -> Result<()> {
        let headers = if to.is_ipv4() { HEADERS.0 } else { HEADERS.1 };
        let routing = if hops.is_empty() { 0 } else { ROUTING.0 + ROUTING.1 * hops.len() };
        if from != self.address || from == to || datagram.len() + headers + routing > self.mtu {
            return Ok(());
        }
        let sent = match (from, to, Hops::new(hops)) {
            (IpAddr::V6(from), IpAddr::V6(to), Some(hops)) => {
                routed::send(from, SocketAddrV6::new(to, PORT, 0, 0), &hops, datagram)
            }
            _ => self.underlay.send_to(datagram, SocketAddr::new(to, PORT)).map(drop),
        };
        sent.with_context(|| format!("cannot send to {to}"))
    }

    /// Sends a frame to the tenant behind the interface with the index `interface`.
    pub fn tell(&self, interface: u32, frame: &[u8]) -> Result<()> {
        let Some([high, low]) = frame.get(12..14).and_then(|kind| kind.first_chunk()) else { return Ok(()) };
        let kind = u16::from_be_bytes([*high, *low]);
        self.frames
            .send(interface, kind, frame)
            .with_context(|| format!("cannot send a frame to the tenant behind interface number {interface}"))
    }
}
