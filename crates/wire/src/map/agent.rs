//! Tables, counters and events of the agent's program.

use super::{address_bytes, address_of};
use crate::Destination;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The agent program's settings, fixed when it is loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct AgentConfig {
    /// Length of the link header on the interface, in bytes: 14, or 0 on links without a link header.
    pub link_header: u32,
    /// 1 if the program is attached by TCX, otherwise 0.
    pub tcx: u32,
    /// 1 if the table of owners contains at least one cgroup, otherwise 0.
    pub match_cgroups: u32,
    /// 1 if the program passes copies of name servers' answers to user space, otherwise 0.
    pub overhear: u32,
}

/// The part of the agent's state that its programs need for steering packets into sealed tunnels. User space writes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Steering {
    /// Cookie of the UDP socket through which the tunnels send; 0 if there is no such socket. The programs never steer
    /// packets of this socket.
    pub cookie: u64,
    /// Index of the device through which steered packets enter the tunnels; 0 if there is no such device.
    pub device: u32,
    /// 1 as soon as a sealed prefix or a wish has been set for the first time, otherwise 0. While it is 0, the programs
    /// steer no packets.
    pub seals: u32,
    /// A combination of the bits [`KEEPS_FLOWS`], [`ASKS`] and [`ASKS_BY_CGROUP`].
    pub asks: u32,
    /// Reserved; zero.
    pub reserved: u32,
}

/// Bit of [`Steering::asks`]: a flow that began in a tunnel stays in the tunnel, even if the rule for its receiver no
/// longer demands a treatment.
pub const KEEPS_FLOWS: u32 = 4;
/// Bit of [`Steering::asks`]: the programs look up whether the sender of a packet asks for a treatment.
pub const ASKS: u32 = 1;
/// Bit of [`Steering::asks`]: at least one cgroup asks for a treatment, so the programs also look up the sender's
/// cgroup and the cgroups around it.
pub const ASKS_BY_CGROUP: u32 = 2;

/// A flow whose packets the program steers into a sealed tunnel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Steered {
    /// Number of the subject that opened the flow.
    pub subject: u32,
    /// The treatment and compression that the flow's sender asks for (the *wish*). The bits in [`Self::TREATMENT`] are
    /// the number of the treatment, as in records, or 0 if the sender asks for none. The bits [`Self::COMPRESS`] and
    /// [`Self::COMPRESS_ALWAYS`] ask for compression.
    pub wish: u32,
}

impl Steered {
    /// Mask of the bits of [`Self::wish`] that hold the number of the treatment. If several wishes apply to a packet,
    /// the greatest of their treatments counts.
    pub const TREATMENT: u32 = 0xff;
    /// Bit of [`Self::wish`]: the sender asks to compress a block only if a sample of the block shrinks.
    pub const COMPRESS: u32 = 1 << 8;
    /// Bit of [`Self::wish`]: the sender asks to compress every block that shrinks.
    pub const COMPRESS_ALWAYS: u32 = 1 << 9;
    /// Bit of [`Self::wish`]: the flow is in the tunnel because the agent's ladder chose this way. In the header of a
    /// queued packet, the bit marks the copy of a first packet that was sent.
    pub const LADDER: u32 = 1 << 10;
    /// Bit of the priority of a packet that user space sends: the packet travels outside of the tunnel, unless the rule
    /// demands otherwise.
    pub const OUTSIDE: u32 = 1 << 11;
    /// Bit of [`Self::wish`]: the flow's client has received an answer in the tunnel. The program sets the bit.
    pub const ANSWERED: u32 = 1 << 12;
    /// Bit of the priority of a packet that user space sends: the packet's token travels by the carrier `fast_open`. In
    /// the header of the copy of a first packet, the bit says that the first packet was sent by this carrier.
    pub const FAST_OPEN: u32 = 1 << 13;
    /// Bit of the priority of a packet that user space sends, and of the header of the copy of a first packet: the
    /// packet travels by the carrier `tcp_in_udp`.
    pub const DATAGRAM: u32 = 1 << 14;
    /// Treatment of flows that the ladder leads into a tunnel: `authenticate`. No treatment of records is weaker.
    pub const LADDER_TREATMENT: u32 = 1;
}

/// The rung with which a subject's connections to a destination begin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Ladder {
    /// The rung (the way in which the agent tries to send a first packet). 0: the packet itself carries the token. 1:
    /// the packet carries the token by the carrier `fast_open`. 2: by the carrier `tcp_in_udp`. 3: the packet travels
    /// in the tunnel.
    pub rung: u32,
    /// If not 0: one in this many connections begins with rung 0 instead of `rung`. If 0, no connection does.
    pub every: u32,
    /// Number of connections that the program has counted, in order to apply `every`. It counts them only while neither
    /// `rung` nor `every` is 0.
    pub count: u32,
    /// Reserved; zero.
    pub reserved: u32,
}

/// The times at which the first packet of a connection was sent and answered, in nanoseconds since boot. A time is 0 if
/// the event has not happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct FirstPacket {
    /// Time at which the first packet was sent.
    pub sent: u64,
    /// Time at which the first packet was answered outside of the tunnel.
    pub outside: u64,
    /// Time at which the client sent its next packet (the one after the first packet) in the tunnel. This packet shows
    /// that an answer arrived there.
    pub inside: u64,
    /// Number of the subject that sent the first packet.
    pub subject: u32,
    /// Sequence number of the first packet, a SYN. An answer acknowledges it.
    pub sequence: u32,
    /// Time at which the first packet was answered in a UDP datagram (wire.md §4.8).
    pub datagram: u64,
}

/// The pair of devices through which TCP segments pass before they become UDP datagrams (wire.md §4.8).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct HelpingDevices {
    /// Index of the device into which the programs send the segments; 0 if there is no such device.
    pub out: u32,
    /// Index of the device out of which the segments come.
    pub back: u32,
}

/// A TCP connection whose SYN has left in a UDP datagram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DatagramFlow {
    /// Index of the interface through which the connection's datagrams leave.
    pub interface: u32,
    /// Number of the subject whose connection this is.
    pub subject: u32,
    /// The SYN's sequence number.
    pub sequence: u32,
    /// Time of the connection's last datagram, Unix seconds.
    pub seen: u32,
    /// State of the connection: 0 if no answer has arrived yet; 1 if the first answer arrived in a datagram; 2 if the
    /// first answer arrived in another form; 3 if one end has sent FIN or RST.
    pub state: u32,
    /// Reserved; zero.
    pub reserved: u32,
}

/// The owner of a packet, or a sender who asks for a treatment. The agent's program finds out either of them from the
/// packet's socket or, for [`owner::DSCP`], from the IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Owner {
    /// Kind of the owner: one of the constants in [`owner`].
    pub kind: u32,
    /// Reserved; zero.
    pub reserved: u32,
    /// The user id, the cgroup id or the DSCP, depending on the kind; 0 for forwarded packets.
    pub id: u64,
}

/// Kinds of [`Owner`].
pub mod owner {
    /// A user id.
    pub const USER: u32 = 1;
    /// The id of the socket's cgroup, or of a cgroup above it.
    pub const CGROUP: u32 = 2;
    /// Packets without a local socket.
    pub const FORWARDED: u32 = 3;
    /// A code point of differentiated services (DSCP). Only senders who ask for a treatment are of this kind.
    pub const DSCP: u32 = 4;
}

/// Key of the agent's grant map: a subject, and the destination of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct GrantSlot {
    /// The subject's number on this machine.
    pub subject: u32,
    /// The destination port, big-endian.
    pub port: [u8; 2],
    /// The protocol's number.
    pub protocol: u8,
    /// Family of the address: 4 or 6.
    pub family: u8,
    /// The destination address.
    pub address: [u8; 16],
}

impl GrantSlot {
    /// Returns the key for a subject's packets to a destination.
    pub fn new(subject: u32, to: &Destination) -> Self {
        Self {
            subject,
            port: to.port.to_be_bytes(),
            protocol: to.protocol,
            family: if to.address.is_ipv4() { 4 } else { 6 },
            address: address_bytes(to.address),
        }
    }

    /// Returns the destination that is part of this key.
    pub fn destination(&self) -> Destination {
        Destination {
            address: address_of(self.address, self.family),
            protocol: self.protocol,
            port: u16::from_be_bytes(self.port),
        }
    }
}

/// The instructions to the agent's program for a subject's first packets to one destination.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct GrantEntry {
    /// Time until which the entry is valid, in Unix seconds of this machine's clock.
    pub until: u32,
    /// Time when the program last made a token from the entry, in Unix seconds of the authority's clock; 0 if the
    /// program never made one.
    pub used: u32,
    /// 1 if the program sends the packets without a token, otherwise 0.
    pub plain: u8,
    /// The number of the suite with which tokens are made.
    pub suite: u8,
    /// Carrier of the tokens: the number of a [`crate::Carrier`].
    pub carrier: u8,
    /// Reserved; zero.
    pub reserved: u8,
    /// Number of seconds by which the authority's clock is ahead of this machine's clock; negative if the authority's
    /// clock is behind.
    pub skew: i32,
    /// The grant header. In an entry for a pair, these bytes are the pair's seven bytes and a zero byte, followed by
    /// the expiry (big-endian) and the prefix length. The program does not read the expiry and the prefix length.
    pub header: [u8; 16],
    /// The grant key, or the client key in an entry for a pair; padded with zeros.
    pub key: [u8; 32],
    /// In an entry for a pair: number of the pair's nonces that the program had used when it last made a token from
    /// this entry, including this token's nonce. Other entries for the same pair use nonces, too.
    pub spent: u32,
    /// Reserved; zero.
    pub reserved2: u32,
}

/// The agent's state of a UDP flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Conversation {
    /// Time when the flow's last token was sent, Unix seconds.
    pub token: u32,
    /// 0 if the flow is unanswered. A packet from the other end sets the value to 1. After that, the first datagram
    /// that the flow sends in each second adds 1 until the value is 3. The next such datagram sets it to 0, and so does
    /// every datagram that the flow sends after 15 s of silence.
    pub answered: u16,
    /// Number of datagrams that the flow has sent since it began, or since its last 15 s of silence; at most 65 535.
    /// Datagrams without a grant are not counted.
    pub sent: u16,
    /// Number of the subject to which the flow belongs.
    pub subject: u32,
    /// Time when the flow's last datagram was sent, Unix seconds.
    pub seen: u32,
}

/// Header of a packet that the agent's program passes to user space, because the grant for the packet is missing. The
/// copy of a first packet that was sent has this header, too: see [`Steered::LADDER`]. If `slot.subject` is 0, which is
/// no user's number, the packet is a copy of a name server's answer.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct QueuedHeader {
    /// The packet's subject and destination.
    pub slot: GrantSlot,
    /// Index of the packet's interface.
    pub interface: u32,
    /// Length of the packet in bytes. At most its first 32 768 bytes follow this header.
    pub length: u32,
    /// Payload bytes of each datagram if the packet is a super-packet (GSO), otherwise 0.
    pub segment: u16,
    /// The wish of the packet's sender, in the form of [`Steered::wish`]. When user space sends the packet again, the
    /// kernel program does not see the sender's socket. So user space states the wish as the packet's priority.
    pub wish: u16,
    /// EtherType of the VLAN tag that the kernel keeps outside the packet data, big-endian; 0 if there is none.
    pub vlan_proto: [u8; 2],
    /// Priority and VLAN id of the VLAN tag.
    pub vlan_tci: u16,
}

/// Indices of the agent's counters. The comment of each index says what its counter counts.
pub mod agent_counter {
    /// Number of packets that need no token. Does not include the packets that [`CONVERSATION`] counts.
    pub const OTHER: u32 = 0;
    /// Number of tokens that the program put into packets.
    pub const TOKENS: u32 = 1;
    /// Number of datagrams that contained only a token. Each of them was sent before a datagram that had no room for a
    /// token.
    pub const ALONE: u32 = 2;
    /// Number of packets that were queued until their grant arrives.
    pub const QUEUED: u32 = 3;
    /// Number of packets that could not be queued.
    pub const QUEUE_FAILED: u32 = 4;
    /// Number of packets to protected destinations that the program sent without a token.
    pub const PLAIN: u32 = 5;
    /// Number of packets that needed no token because the verifier knew their UDP flow.
    pub const CONVERSATION: u32 = 6;
    /// Number of packets that could not be changed and were dropped.
    pub const FAILED: u32 = 7;
    /// Number of datagrams that were dropped because they would have used another subject's flow.
    pub const RIDER: u32 = 8;
    /// Number of first packets that went to an authority, and to which the program added the support option.
    pub const SUPPORT: u32 = 9;
    /// Number of client keys received in band.
    pub const KEYS: u32 = 10;
    /// Number of packets that the program sent to the device of the sealed tunnels.
    pub const STEERED: u32 = 11;
    /// Number of packets that were dropped because they may travel only in a sealed tunnel, and the program could not
    /// send them there.
    pub const NO_TUNNEL: u32 = 12;
    /// Number of packets that were dropped because they arrived outside of the sealed tunnel in which their flow has to
    /// travel.
    pub const UNSEALED: u32 = 13;
    /// Number of first packets that user space watches, because their connections may travel by more than one rung.
    pub const WATCHED: u32 = 14;
    /// Number of first packets for the tunnel that were dropped because an answer had already arrived outside of the
    /// tunnel.
    pub const LATE: u32 = 15;
    /// Number of entries in the table of counters.
    pub const COUNT: u32 = 16;
}
