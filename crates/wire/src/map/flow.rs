//! The tables of flows.

use super::{address_bytes, address_of};
use crate::packet::Packet;
use core::net::IpAddr;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A flow: who talks to which service.
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
    /// The protocol.
    pub protocol: u8,
    /// 4 or 6.
    pub family: u8,
    /// Zero.
    pub reserved: [u8; 2],
}

impl FlowKey {
    /// The flow between a client and a server.
    pub fn new(client: IpAddr, client_port: u16, server: IpAddr, server_port: u16, protocol: u8) -> Self {
        Self {
            client: address_bytes(client),
            server: address_bytes(server),
            client_port: client_port.to_be_bytes(),
            server_port: server_port.to_be_bytes(),
            protocol,
            family: if server.is_ipv4() { 4 } else { 6 },
            reserved: [0; 2],
        }
    }

    /// The flow of a packet on its way to the server.
    pub fn to_server(packet: &Packet) -> Option<Self> {
        let (client, server) = (packet.source?, packet.destination?);
        Some(Self::new(client, packet.source_port, server, packet.destination_port, packet.protocol))
    }

    /// The flow of a packet on its way back to the client.
    pub fn to_client(packet: &Packet) -> Option<Self> {
        let (server, client) = (packet.source?, packet.destination?);
        Some(Self::new(client, packet.destination_port, server, packet.source_port, packet.protocol))
    }

    /// The client's address and port.
    pub fn client(&self) -> (IpAddr, u16) {
        (address_of(self.client, self.family), u16::from_be_bytes(self.client_port))
    }

    /// The server's address and port.
    pub fn server(&self) -> (IpAddr, u16) {
        (address_of(self.server, self.family), u16::from_be_bytes(self.server_port))
    }
}

/// A flow of IPv4 addresses, in the shorter form that the kernel looks up.
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
    /// The protocol.
    pub protocol: u8,
    /// Zero.
    pub reserved: [u8; 3],
}

impl FlowKey4 {
    /// The short form, if the addresses are IPv4.
    pub fn of(key: &FlowKey) -> Option<Self> {
        let ([a, b, c, d, ..], [e, f, g, h, ..]) = (key.client, key.server);
        (key.family == 4).then_some(Self {
            client: [a, b, c, d],
            server: [e, f, g, h],
            client_port: key.client_port,
            server_port: key.server_port,
            protocol: key.protocol,
            reserved: [0; 3],
        })
    }

    /// The long form.
    pub fn long(&self) -> FlowKey {
        let port = u16::from_be_bytes;
        let (client, server) = (IpAddr::V4(self.client.into()), IpAddr::V4(self.server.into()));
        FlowKey::new(client, port(self.client_port), server, port(self.server_port), self.protocol)
    }
}

/// An admitted flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Flow {
    /// The grant that admitted it; 0 if none did.
    pub handle: u64,
    /// IP bytes towards the server since it was admitted. Approximate under several receive queues.
    pub bytes: u64,
    /// Packets towards the server since it was admitted.
    pub packets: u64,
    /// When it was admitted, Unix seconds.
    pub since: u32,
    /// When its last packet came, Unix seconds.
    pub seen: u32,
    /// How far its connection is: one of [`stage`].
    pub stage: u8,
    /// Who opened it: one of [`origin`].
    pub origin: u8,
    /// The client's port as the inside of a gateway sees it, big-endian.
    pub inside_port: [u8; 2],
    /// The slot of the address that the inside sees it by, and one more; 0 if that is its own.
    pub inside: u32,
    /// Whose grant admitted it: an account and its session (wire.md §3.9); 0 if nobody is known.
    pub holder: u32,
    /// TCP: the client's expected sequence number.
    pub next: u32,
    /// TCP, on gateways: the number behind the server's first one.
    pub answer: u32,
    /// UDP: when its last token came, Unix seconds. TCP: where a FIN is that came before the data in front of it; 0 if none
    /// did.
    pub proved: u32,
}

impl Flow {
    /// Whether a grant admitted it.
    pub const fn by_grant(&self) -> bool {
        self.origin == origin::TOKEN
    }

    /// Whether a grant counts it among its flows.
    pub const fn has_grant(&self) -> bool {
        matches!(self.origin, origin::TOKEN | origin::ENDED)
    }

    /// What is left of it on a gateway once it is over, at `now` (Unix seconds): the inside's answers don't open it anew.
    pub const fn over(self, now: u32) -> Self {
        Self { origin: origin::ENDED, stage: stage::OVER, seen: now, inside: 0, inside_port: [0; 2], ..self }
    }
}

/// Who opened a flow.
pub mod origin {
    /// A client, by a token.
    pub const TOKEN: u8 = 0;
    /// It was established before protection started.
    pub const ADOPTED: u8 = 1;
    /// The inside of a gateway: what comes in are its answers.
    pub const INSIDE: u8 = 2;
    /// On a gateway: a client, by a token, and it is over. It stays while the inside goes on sending on it.
    pub const ENDED: u8 = 3;
}

/// Where a TCP connection stands, as far as the client's packets show. All but an open one are forgotten soon.
pub mod stage {
    /// Data may come; also every flow that is not TCP's.
    pub const OPEN: u8 = 0;
    /// Its SYN was admitted and nothing else has come.
    pub const OPENING: u8 = 1;
    /// The client sent FIN, and no payload since.
    pub const CLOSING: u8 = 2;
    /// The client sent RST, and nothing since.
    pub const RESET: u8 = 3;
    /// Of any protocol: it is over, and stays for a while: see [`super::origin::ENDED`].
    pub const OVER: u8 = 253;
    /// Of any protocol: a core is giving the flow to another grant at this moment. Its packets pass.
    pub const CHANGING: u8 = 254;
    /// Of any protocol: a core is removing the flow at this moment.
    pub const LEAVING: u8 = 255;
}
