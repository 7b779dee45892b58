//! What the agent's program looks up, remembers, counts and hands over.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The agent program's settings, fixed when it is loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct AgentConfig {
    /// Bytes of link header on the interface: 14, or 0 on links without one.
    pub link_header: u32,
    /// 1 if attached by TCX.
    pub tcx: u32,
    /// 1 if some owner is a cgroup.
    pub match_cgroups: u32,
    /// 1 if copies of name servers' answers are handed over.
    pub hear: u32,
}

/// Whose traffic a socket's packets are.
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

/// What the agent's grants are looked up by.
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

/// What the agent does with first packets to one destination.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct GrantEntry {
    /// Use it until then, Unix seconds by this machine's clock.
    pub until: u32,
    /// When the program last made a token from it, Unix seconds by the authority's clock; 0 if it never did.
    pub used: u32,
    /// 1: send packets as they are, without identity.
    pub plain: u8,
    /// The suite's number.
    pub suite: u8,
    /// How tokens travel: the number of a [`Carrier`].
    pub carrier: u8,
    /// Zero.
    pub reserved: u8,
    /// What to add to this machine's clock for the authority's, seconds.
    pub skew: i32,
    /// The grant header; of a pair its seven bytes and zero, then what the kernel does not read: when it ends (big-endian)
    /// and the prefix length.
    pub header: [u8; 16],
    /// The grant key or client key, and zeros.
    pub key: [u8; 32],
    /// How many nonces of its pair were used when the program last made a token from it.
    pub spent: u32,
    /// Zero.
    pub reserved2: u32,
}

/// A UDP flow as the agent sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Conversation {
    /// When its last token was sent, Unix seconds.
    pub token: u32,
    /// 1 once something came back.
    pub answered: u32,
    /// Whose it is.
    pub subject: u32,
    /// When its last datagram was sent, Unix seconds.
    pub seen: u32,
}

/// What precedes a packet that the agent's program hands over because its grant is missing; with subject 0, which is
/// nobody's, a copy of a name server's answer.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct HeldHeader {
    /// The destination and subject.
    pub slot: GrantSlot,
    /// The interface's index.
    pub interface: u32,
    /// Bytes of packet that follow.
    pub length: u32,
    /// Payload bytes of each datagram if the packet is several (GSO), else 0.
    pub segment: u32,
    /// EtherType of the VLAN tag beside the packet, big-endian; 0 if there is none.
    pub vlan_proto: [u8; 2],
    /// That tag's priority and VLAN.
    pub vlan_tci: u16,
}

/// Index of the agent's counters.
pub mod agent_counter {
    /// Packets that were none of the agent's business.
    pub const OTHER: u32 = 0;
    /// Tokens put into packets.
    pub const TOKENS: u32 = 1;
    /// Datagrams that carried a token alone, ahead of one that had no room.
    pub const ALONE: u32 = 2;
    /// Packets held for a grant.
    pub const HELD: u32 = 3;
    /// Packets that could not be held.
    pub const HOLD_FAILED: u32 = 4;
    /// Packets to protected destinations sent without identity.
    pub const PLAIN: u32 = 5;
    /// Packets of UDP flows that needed no token.
    pub const CONVERSATION: u32 = 6;
    /// Packets that could not be changed, and were dropped.
    pub const FAILED: u32 = 7;
    /// Datagrams on a flow of somebody else's, dropped.
    pub const RIDER: u32 = 8;
    /// First packets to authorities that carry the support option.
    pub const SUPPORT: u32 = 9;
    /// Client keys that came in band.
    pub const KEYS: u32 = 10;
    /// Number of counters.
    pub const COUNT: u32 = 16;
}
