//! An outsider that sends handmade frames and records the packets that come back or get past the verifier.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::Result;

use crate::forge::{Packet, Tcp};
use crate::port::Port;
use crate::seen::{Seen, addresses};
use crate::watch::words;
use crate::world::{Network, PUBLIC4, PUBLIC6, in_family};

/// Pause between two frames, because queues of virtual cables are short.
const PACE: Duration = Duration::from_micros(30);

/// Position of an outsider in the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// On the server's own cable, with the public address of Alice's home. No router filters the frames on their path.
    NextDoor,
    /// On Mallory's machine, behind the same router as Alice.
    Home,
}

/// An outsider with raw access to a device.
pub struct Outsider {
    port: Port,
    server: Port,
    macs: [[u8; 6]; 2],
    /// The source address of the outsider's frames.
    pub source: IpAddr,
    /// The source address as the server sees it.
    pub shown: IpAddr,
    /// Whether a gateway may replace the source address before the server sees it.
    gateway: bool,
}

impl Outsider {
    /// Places an outsider, with an IPv6 address if `six` is set and an IPv4 address otherwise. From then on, the
    /// outsider records all frames that arrive at `place`, and all frames that get past the verifier.
    pub fn new(network: &Network, place: Place, six: bool) -> Result<Self> {
        let shown = in_family(six, PUBLIC4, PUBLIC6);
        let (namespace, device, source) = match place {
            Place::NextDoor => (&network.internet, "dc", shown),
            Place::Home => (&network.mallory, "eth0", in_family(six, "10.2.0.1", "fd02::1")),
        };
        let next = match place {
            Place::NextDoor => network.front().mac("eth0")?,
            Place::Home => network.router.mac("lan-mallory")?,
        };
        let macs = [namespace.mac(device)?, next];
        let (port, server) = (Port::open(namespace, device)?, Port::open(&network.server, "eth0")?);
        Ok(Self { port, server, macs, source, shown, gateway: network.gateway.is_some() })
    }

    /// Returns the hardware addresses of the outsider and of the next hop.
    pub fn macs(&self) -> [[u8; 6]; 2] {
        self.macs
    }

    /// Returns the port that sends the outsider's frames.
    pub fn port(&self) -> &Port {
        &self.port
    }

    /// Builds a packet to `to` without a transport header.
    pub fn packet(&self, to: IpAddr) -> Packet {
        Packet::new(self.source, to).ethernet(self.macs[0], self.macs[1])
    }

    /// Builds a SYN from port `from` to `port` of `to`.
    pub fn syn(&self, from: u16, to: IpAddr, port: u16) -> Packet {
        self.packet(to).tcp(Tcp::syn(from, port))
    }

    /// Builds a UDP datagram from port `from` to `port` of `to`.
    pub fn datagram(&self, from: u16, to: IpAddr, port: u16) -> Packet {
        self.packet(to).udp(from, port)
    }

    /// Sends a frame unchanged, and pauses briefly.
    pub fn send(&self, frame: &[u8]) -> Result<()> {
        self.port.send(frame)?;
        std::thread::sleep(PACE);
        Ok(())
    }

    /// Listens until the time `patience` has passed. Returns the packets that `to`, or any host on the path to `to`,
    /// has sent back so far.
    pub fn came_back(&self, to: IpAddr, patience: Duration) -> Vec<String> {
        let mut found = Vec::new();
        self.port.receive(patience, |frame| {
            let seen = Seen::frame(frame).filter(|seen| seen.destination == self.source)?;
            let answers = seen.source == to || seen.quoted().is_some_and(|quoted| quoted.destination == to);
            if answers && !seen.is_neighbour_discovery() {
                found.push(words(&seen));
            }
            None::<()>
        });
        found
    }

    /// Returns the packets to `to` that have got past the verifier so far, malformed ones included. Their source is the
    /// outsider's public address or, behind a gateway, any address.
    pub fn got_through(&self, to: IpAddr) -> Vec<String> {
        let mut found = Vec::new();
        self.server.receive(Duration::ZERO, |frame| {
            let ours = addresses(frame).filter(|(source, _)| *source == self.shown || self.gateway);
            if ours.is_some_and(|(_, destination)| destination == to) {
                let seen = Seen::frame(frame);
                found.push(seen.map_or_else(|| format!("unreadable: {}", hex::encode(frame)), |seen| words(&seen)));
            }
            None::<()>
        });
        found
    }
}
