//! The tables of flows.

use super::{address_bytes, address_of};
use crate::packet::{Packet, TCP};
use core::net::IpAddr;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Key of a flow: client, server and protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct FlowKey {
    /// The client's address.
    pub client: [u8; 16],
    /// The server's address.
    pub server: [u8; 16],
    /// The client's port, big-endian.
    pub client_port: [u8; 2],
    /// The server's port, big-endian.
    pub server_port: [u8; 2],
    /// Number of the IP protocol.
    pub protocol: u8,
    /// Family of the addresses: 4 or 6.
    pub family: u8,
    /// The way in which the flow's packets travel (its *side*): 0 outside of sealed tunnels, 1 inside one, 2 as UDP
    /// datagrams that carry TCP segments (wire.md §4.8). A packet belongs to the flow only if the packet is on the same
    /// side (wire.md §6.11.2).
    pub tunnel: u8,
    /// Reserved; zero.
    pub reserved: u8,
}

impl FlowKey {
    /// Returns the key of the flow between a client and a server, outside of sealed tunnels.
    pub fn new(client: IpAddr, client_port: u16, server: IpAddr, server_port: u16, protocol: u8) -> Self {
        Self {
            client: address_bytes(client),
            server: address_bytes(server),
            client_port: client_port.to_be_bytes(),
            server_port: server_port.to_be_bytes(),
            protocol,
            family: if server.is_ipv4() { 4 } else { 6 },
            tunnel: 0,
            reserved: 0,
        }
    }

    /// Returns the key of the flow between the same two ends that is inside a sealed tunnel (if `tunnel` is true) or
    /// outside (otherwise).
    pub const fn within(self, tunnel: bool) -> Self {
        Self { tunnel: tunnel as u8, ..self }
    }

    /// Returns the key of the TCP flow that has the same two ends, but whose segments travel as UDP datagrams (wire.md
    /// §4.8).
    pub const fn in_datagrams(self) -> Self {
        Self { tunnel: 2, protocol: TCP, ..self }
    }

    /// Returns the key of the flow to which a packet to the server belongs. Returns `None` if the parser did not find
    /// the packet's addresses.
    pub fn to_server(packet: &Packet) -> Option<Self> {
        let (client, server) = (packet.source?, packet.destination?);
        Some(Self::new(client, packet.source_port, server, packet.destination_port, packet.protocol))
    }

    /// Returns the key of the flow to which a packet to the client belongs. Returns `None` if the parser did not find
    /// the packet's addresses.
    pub fn to_client(packet: &Packet) -> Option<Self> {
        let (server, client) = (packet.source?, packet.destination?);
        Some(Self::new(client, packet.destination_port, server, packet.source_port, packet.protocol))
    }

    /// Returns the client's address and port.
    pub fn client(&self) -> (IpAddr, u16) {
        (address_of(self.client, self.family), u16::from_be_bytes(self.client_port))
    }

    /// Returns the server's address and port.
    pub fn server(&self) -> (IpAddr, u16) {
        (address_of(self.server, self.family), u16::from_be_bytes(self.server_port))
    }
}

/// Key of a flow between IPv4 addresses, in the shorter form that the kernel looks up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct FlowKey4 {
    /// The client's address.
    pub client: [u8; 4],
    /// The server's address.
    pub server: [u8; 4],
    /// The client's port, big-endian.
    pub client_port: [u8; 2],
    /// The server's port, big-endian.
    pub server_port: [u8; 2],
    /// Number of the IP protocol.
    pub protocol: u8,
    /// The flow's side, with the same values as [`FlowKey::tunnel`].
    pub tunnel: u8,
    /// Reserved; zero.
    pub reserved: [u8; 2],
}

impl FlowKey4 {
    /// Returns the short form of `key`, or `None` if the addresses are not IPv4.
    pub fn of(key: &FlowKey) -> Option<Self> {
        let ([a, b, c, d, ..], [e, f, g, h, ..]) = (key.client, key.server);
        (key.family == 4).then_some(Self {
            client: [a, b, c, d],
            server: [e, f, g, h],
            client_port: key.client_port,
            server_port: key.server_port,
            protocol: key.protocol,
            tunnel: key.tunnel,
            reserved: [0; 2],
        })
    }

    /// Returns the long form of this key.
    pub fn long(&self) -> FlowKey {
        let port = u16::from_be_bytes;
        let (client, server) = (IpAddr::V4(self.client.into()), IpAddr::V4(self.server.into()));
        let key = FlowKey::new(client, port(self.client_port), server, port(self.server_port), self.protocol);
        FlowKey { tunnel: self.tunnel, ..key }
    }
}

/// An admitted flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Flow {
    /// Handle of the grant that admitted the flow; 0 if no grant did.
    pub handle: u64,
    /// Number of bytes in the IP packets to the server since the flow was admitted. The number is approximate if the
    /// interface has several receive queues.
    pub bytes: u64,
    /// Number of packets to the server since the flow was admitted.
    pub packets: u64,
    /// Time when the flow was admitted, Unix seconds. For TCP: time of the last SYN of the flow's client.
    pub since: u32,
    /// Time of the flow's last packet, Unix seconds.
    pub seen: u32,
    /// State of the connection: one of [`stage`].
    pub stage: u8,
    /// Origin of the flow: one of [`origin`].
    pub origin: u8,
    /// The client's port as the inside of a gateway sees it, big-endian.
    pub inside_port: [u8; 2],
    /// The slot of the client's inside address plus one; 0 if the inside sees the client's own address.
    pub inside: u32,
    /// Account and session to which the grant that admitted the flow was issued (wire.md §3.9); 0 if unknown.
    pub holder: u32,
    /// For TCP: the next sequence number that is expected from the client.
    pub next: u32,
    /// For TCP on gateways: the initial sequence number of the server, plus one.
    pub answer: u32,
    /// For UDP: time of the last token, Unix seconds. For TCP: sequence number of a FIN that arrived before the data
    /// that precedes it, or 0 if there is no such FIN.
    pub proved: u32,
}

impl Flow {
    /// Reports whether a grant admitted the flow.
    pub const fn by_grant(&self) -> bool {
        self.origin == origin::TOKEN
    }

    /// Reports whether the flow counts towards the maximum number of flows of a grant.
    pub const fn has_grant(&self) -> bool {
        matches!(self.origin, origin::TOKEN | origin::ENDED)
    }

    /// Returns the entry that a gateway keeps for the flow after the flow has ended at `now` (Unix seconds). While the
    /// entry exists, packets from the inside can't open the flow again as an outbound flow.
    pub const fn over(self, now: u32) -> Self {
        Self { origin: origin::ENDED, stage: stage::OVER, seen: now, inside: 0, inside_port: [0; 2], ..self }
    }
}

/// Origins of a flow.
pub mod origin {
    /// A client opened the flow with a token.
    pub const TOKEN: u8 = 0;
    /// The flow was established before protection started.
    pub const ADOPTED: u8 = 1;
    /// The flow was opened from inside a gateway. Packets from outside are the answers.
    pub const INSIDE: u8 = 2;
    /// On a gateway: a client opened the flow with a token, and the flow has ended. The entry stays as long as the
    /// inside continues to send packets in the flow.
    pub const ENDED: u8 = 3;
}

/// States of a TCP connection, as far as they can be inferred from the client's packets. The verifier forgets a
/// connection soon if its state is not [`stage::OPEN`].
pub mod stage {
    /// Data can arrive. Flows of other protocols than TCP also have this state.
    pub const OPEN: u8 = 0;
    /// The SYN was admitted and nothing else has arrived.
    pub const OPENING: u8 = 1;
    /// The client sent FIN, and no payload since then.
    pub const CLOSING: u8 = 2;
    /// The client sent RST, and nothing since then.
    pub const RESET: u8 = 3;
    /// Any protocol: the flow has ended and its entry stays for some time; see [`super::origin::ENDED`].
    pub const OVER: u8 = 253;
    /// Any protocol: a core is moving the flow to another grant. The flow's packets pass.
    pub const CHANGING: u8 = 254;
    /// Any protocol: a core is removing the flow.
    pub const LEAVING: u8 = 255;
}
