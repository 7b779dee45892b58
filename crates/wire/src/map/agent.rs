//! Tables, counters and events of the agent's program.

use super::{address_bytes, address_of};
use crate::Destination;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The agent program's settings, fixed when it is loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct AgentConfig {
    /// Bytes of link header on the interface: 14, or 0 on links without one.
    pub link_header: u32,
    /// 1 if the program is attached by TCX.
    pub tcx: u32,
    /// 1 if the table of owners has a cgroup.
    pub match_cgroups: u32,
    /// 1 if the program passes copies of name servers' answers to user space.
    pub overhear: u32,
}

/// Owner of a packet's traffic, determined from its socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Owner {
    /// One of [`owner`].
    pub kind: u32,
    /// Zero.
    pub reserved: u32,
    /// The user id or cgroup id; 0 for forwarded packets.
    pub id: u64,
}

/// Kinds of [`Owner`].
pub mod owner {
    /// A user id.
    pub const USER: u32 = 1;
    /// A cgroup id: the socket's cgroup or one above it.
    pub const CGROUP: u32 = 2;
    /// Packets without a local socket.
    pub const FORWARDED: u32 = 3;
}

/// Key of the agent's grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct GrantSlot {
    /// The logged-in subject on this machine.
    pub subject: u32,
    /// The destination port, big-endian.
    pub port: [u8; 2],
    /// The protocol.
    pub protocol: u8,
    /// 4 or 6.
    pub family: u8,
    /// The destination.
    pub address: [u8; 16],
}

impl GrantSlot {
    /// Returns the slot of a destination for a subject.
    pub fn new(subject: u32, to: &Destination) -> Self {
        Self {
            subject,
            port: to.port.to_be_bytes(),
            protocol: to.protocol,
            family: if to.address.is_ipv4() { 4 } else { 6 },
            address: address_bytes(to.address),
        }
    }

    /// Returns the destination that the slot is for.
    pub fn destination(&self) -> Destination {
        Destination {
            address: address_of(self.address, self.family),
            protocol: self.protocol,
            port: u16::from_be_bytes(self.port),
        }
    }
}

/// Treatment of first packets to one destination.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct GrantEntry {
    /// The entry is valid until this time, Unix seconds by this machine's clock.
    pub until: u32,
    /// Time when the program last made a token from the entry, Unix seconds by the authority's clock; 0 if it never
    /// did.
    pub used: u32,
    /// 1 if packets are sent as they are, without identity.
    pub plain: u8,
    /// The suite's number.
    pub suite: u8,
    /// Carrier of the tokens: the number of a [`crate::Carrier`].
    pub carrier: u8,
    /// Zero.
    pub reserved: u8,
    /// Difference to add to this machine's clock to get the authority's, seconds.
    pub skew: i32,
    /// The grant header. For a pair: its seven bytes and a zero, then fields that the kernel does not read, which are
    /// the expiry (big-endian) and the prefix length.
    pub header: [u8; 16],
    /// The grant key or client key, padded with zeros.
    pub key: [u8; 32],
    /// Number of the pair's nonces used when the program last made a token from the entry.
    pub spent: u32,
    /// Zero.
    pub reserved2: u32,
}

/// A UDP flow as the agent sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Conversation {
    /// Time when the last token was sent on the flow, Unix seconds.
    pub token: u32,
    /// 1 once a packet came back.
    pub answered: u32,
    /// The subject that the flow belongs to.
    pub subject: u32,
    /// Time when the last datagram was sent on the flow, Unix seconds.
    pub seen: u32,
}

/// Header of a packet that the agent's program passes to user space because its grant is missing. With subject 0, which
/// no user has, the packet is a copy of a name server's answer.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct QueuedHeader {
    /// The destination and subject.
    pub slot: GrantSlot,
    /// The interface's index.
    pub interface: u32,
    /// Bytes of packet that follow.
    pub length: u32,
    /// Payload bytes of each datagram if the packet consists of several (GSO), else 0.
    pub segment: u32,
    /// EtherType of the VLAN tag that the kernel keeps outside the packet data, big-endian; 0 if there is none.
    pub vlan_proto: [u8; 2],
    /// Priority and VLAN id of the VLAN tag.
    pub vlan_tci: u16,
}

/// Index of the agent's counters.
pub mod agent_counter {
    /// Packets that the agent leaves alone.
    pub const OTHER: u32 = 0;
    /// Tokens put into packets.
    pub const TOKENS: u32 = 1;
    /// Datagrams that carried a token alone, sent ahead of a datagram that had no room for one.
    pub const ALONE: u32 = 2;
    /// Packets queued for a grant.
    pub const QUEUED: u32 = 3;
    /// Packets that could not be queued.
    pub const QUEUE_FAILED: u32 = 4;
    /// Packets to protected destinations sent without identity.
    pub const PLAIN: u32 = 5;
    /// Packets of UDP flows that needed no token.
    pub const CONVERSATION: u32 = 6;
    /// Packets that could not be changed, and were dropped.
    pub const FAILED: u32 = 7;
    /// Datagrams on another subject's flow, dropped.
    pub const RIDER: u32 = 8;
    /// First packets to authorities that carry the support option.
    pub const SUPPORT: u32 = 9;
    /// Client keys received in band.
    pub const KEYS: u32 = 10;
    /// Number of counters.
    pub const COUNT: u32 = 16;
}
