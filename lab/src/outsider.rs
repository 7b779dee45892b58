//! Somebody who sends frames by hand and listens for anything that comes of them.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::Result;

use crate::forge::{Packet, Tcp};
use crate::port::Port;
use crate::seen::{Seen, addresses};
use crate::watch::words;
use crate::world::{Network, PUBLIC4, PUBLIC6, in_family};

/// Between two frames: queues of virtual cables are short.
const PACE: Duration = Duration::from_micros(30);

/// Where an outsider stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// On the server's own cable, with the public address of Alice's home: nothing on the way filters what is sent.
    NextDoor,
    /// At Mallory's, behind the same router as Alice.
    Home,
}

/// An outsider with raw access to a device.
pub struct Outsider {
    port: Port,
    server: Port,
    macs: [[u8; 6]; 2],
    /// The address that the frames come from.
    pub source: IpAddr,
    /// The address that the server sees them come from.
    pub shown: IpAddr,
    /// A gateway may show the server another.
    gateway: bool,
}

impl Outsider {
    /// Stands at `place`, from now on seeing all that arrives there and all that gets past the verifier.
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

    /// Hardware addresses of the first cable: ours, the next hop's.
    pub fn macs(&self) -> [[u8; 6]; 2] {
        self.macs
    }

    /// What its frames go through.
    pub fn port(&self) -> &Port {
        &self.port
    }

    /// A packet without a transport.
    pub fn packet(&self, to: IpAddr) -> Packet {
        Packet::new(self.source, to).ethernet(self.macs[0], self.macs[1])
    }

    /// A SYN.
    pub fn syn(&self, from: u16, to: IpAddr, port: u16) -> Packet {
        self.packet(to).tcp(Tcp::syn(from, port))
    }

    /// A datagram.
    pub fn datagram(&self, from: u16, to: IpAddr, port: u16) -> Packet {
        self.packet(to).udp(from, port)
    }

    /// Sends a frame.
    pub fn send(&self, frame: &[u8]) -> Result<()> {
        self.port.send(frame)?;
        std::thread::sleep(PACE);
        Ok(())
    }

    /// What `to`, or anybody on the way there, has sent back so far, listening for `patience` more.
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

    /// What has got past the verifier so far, from the outsider's public address (behind a gateway, from any) to `to`; broken
    /// packets, too.
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
