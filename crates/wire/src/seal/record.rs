//! Records: header, body, tag (wire.md §9.3, §9.4).

use super::suite::Suite;
use core::num::NonZeroU32;

/// Length of the shortest [`super::Control`] in bytes.
const CONTROL_MIN: usize = 4;

/// Length of a record's header in bytes.
pub const HEADER_LEN: usize = 16;
/// Length of a record's tag in bytes, for every suite.
pub const TAG_LEN: usize = 16;
/// Number of bytes by which a record is longer than its body.
pub const OVERHEAD: usize = HEADER_LEN + TAG_LEN;
/// Number of lanes of the counter (wire.md §9.7).
pub const LANES: u8 = 8;
/// Length of the longest IP packet that a tunnel carries, in bytes: an IPv6 header of 40 bytes, and the longest payload
/// that this header can announce.
pub const PACKET_MAX: usize = 40 + 65_535;
/// Length of the longest block after decompression, in bytes (wire.md §9.4.2).
pub const BLOCK_MAX: usize = BlockHead::LEN + PACKET_MAX;
/// Maximum number of parts of a block (wire.md §9.4.1).
pub const PARTS_MAX: usize = 128;

const EARLY: u8 = 3;
const PACKET: u8 = 4;
const BLOCK: u8 = 5;
const CONTROL: u8 = 6;
pub(super) const UNKNOWN: u8 = 7;
const PARTIAL: u8 = 1;
const LAST: u8 = 0x80;
const NUMBER_BITS: u32 = 56;

/// Protection of a record's body (wire.md §9.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Treatment {
    /// The body is not encrypted. The receiver detects changes.
    Authenticate = 1,
    /// The body is encrypted. The receiver detects changes.
    Encrypt = 2,
}

impl Treatment {
    /// Both treatments, in the order of their numbers: from the weaker to the stronger.
    pub const ALL: [Self; 2] = [Self::Authenticate, Self::Encrypt];

    /// Returns the name used in policies, metrics and documents.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Authenticate => "authenticate",
            Self::Encrypt => "encrypt",
        }
    }
}

/// Compression of a block (wire.md §9.3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Compression {
    /// The LZ4 block format.
    Lz4 = 1,
    /// One frame of RFC 8878.
    Zstd = 2,
}

impl Compression {
    /// All compressions, in the order of their numbers.
    pub const ALL: [Self; 2] = [Self::Lz4, Self::Zstd];

    /// Returns the name used in metrics and documents.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
        }
    }
}

/// The part of a block that a record carries (wire.md §9.4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    number: u8,
    /// Whether this is the last part.
    pub last: bool,
}

impl Part {
    /// Returns the part with this number, counted from 0. Returns `None` if the number is [`PARTS_MAX`] or more.
    pub const fn new(number: usize, last: bool) -> Option<Self> {
        if number < PARTS_MAX { Some(Self { number: number as u8, last }) } else { None }
    }

    /// Returns the number of the part, counted from 0.
    pub const fn number(self) -> u8 {
        self.number
    }
}

/// Content of a record, with those header fields whose meaning depends on the content. A header with any other
/// combination of fields is invalid (wire.md §9.3.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// An encrypted IP packet that is sent before the response has arrived.
    Early {
        /// Whether the transport checksum is partial: its field holds only the pseudo-header's sum (wire.md §9.4).
        partial: bool,
    },
    /// An IP packet.
    Packet {
        /// Protection of the body.
        treatment: Treatment,
        /// Whether the transport checksum is partial: its field holds only the pseudo-header's sum (wire.md §9.4).
        partial: bool,
    },
    /// A part of a block: a compressed packet or super-packet.
    Block {
        /// Protection of the body.
        treatment: Treatment,
        /// Compression of the block.
        compression: Compression,
        /// The part of the block.
        part: Part,
    },
    /// An encrypted control message, a [`super::Control`].
    Control,
}

impl Content {
    /// Returns the treatment of the body.
    pub const fn treatment(self) -> Treatment {
        match self {
            Self::Early { .. } | Self::Control => Treatment::Encrypt,
            Self::Packet { treatment, .. } | Self::Block { treatment, .. } => treatment,
        }
    }

    /// Reports whether this is an early record, which follows an initiation in the same datagram.
    pub const fn is_early(self) -> bool {
        matches!(self, Self::Early { .. })
    }

    const fn kind(self) -> u8 {
        match self {
            Self::Early { .. } => EARLY,
            Self::Packet { .. } => PACKET,
            Self::Block { .. } => BLOCK,
            Self::Control => CONTROL,
        }
    }

    const fn compression(self) -> u8 {
        match self {
            Self::Block { compression, .. } => compression as u8,
            _ => 0,
        }
    }

    const fn detail(self) -> u8 {
        match self {
            Self::Early { partial } | Self::Packet { partial, .. } => {
                if partial {
                    PARTIAL
                } else {
                    0
                }
            }
            Self::Block { part, .. } => part.number | if part.last { LAST } else { 0 },
            Self::Control => 0,
        }
    }
}

/// The number by which a receiver identifies a phase of a tunnel. It is random and never 0 (wire.md §9.6.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Index(NonZeroU32);

impl Index {
    /// Returns the index with this number; `None` for 0.
    pub const fn new(number: u32) -> Option<Self> {
        match NonZeroU32::new(number) {
            Some(number) => Some(Self(number)),
            None => None,
        }
    }

    /// Returns the index's number.
    pub const fn get(self) -> u32 {
        self.0.get()
    }
}

/// The counter of a record: a lane, and the record's number in that lane (wire.md §9.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Counter(u64);

impl Counter {
    /// The largest record number in a lane.
    pub const NUMBER_MAX: u64 = (1 << NUMBER_BITS) - 1;

    /// Returns the counter with this lane and number; `None` if the lane is not below [`LANES`] or the number exceeds
    /// [`Self::NUMBER_MAX`].
    pub const fn new(lane: u8, number: u64) -> Option<Self> {
        if lane < LANES && number <= Self::NUMBER_MAX {
            Some(Self((lane as u64) << NUMBER_BITS | number))
        } else {
            None
        }
    }

    /// Returns the lane, which is less than [`LANES`].
    pub const fn lane(self) -> u8 {
        (self.0 >> NUMBER_BITS) as u8
    }

    /// Returns the record's number in its lane.
    pub const fn number(self) -> u64 {
        self.0 & Self::NUMBER_MAX
    }

    /// Parses the eight bytes of a counter. Returns `None` if the lane is not below [`LANES`].
    pub const fn from_bytes(bytes: [u8; 8]) -> Option<Self> {
        let all = u64::from_be_bytes(bytes);
        Self::new((all >> NUMBER_BITS) as u8, all & Self::NUMBER_MAX)
    }

    /// Returns the eight bytes that travel in the header and enter the nonce.
    pub const fn bytes(self) -> [u8; 8] {
        self.0.to_be_bytes()
    }
}

/// Header of a record. It can be read without the key, and the tag covers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    /// The record's content and treatment.
    pub content: Content,
    /// The AEAD that seals the record.
    pub suite: Suite,
    /// The index by which the receiver identifies the phase. In an early record, it is the index of the initiator, who
    /// sends the record.
    pub index: Index,
    /// The record's counter.
    pub counter: Counter,
}

impl RecordHeader {
    /// Returns the 16 bytes on the wire.
    pub fn encode(&self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[0] = self.content.kind();
        bytes[1] = self.content.compression() << 4 | self.content.treatment() as u8;
        bytes[2] = self.suite as u8;
        bytes[3] = self.content.detail();
        bytes[4..8].copy_from_slice(&self.index.get().to_be_bytes());
        bytes[8..].copy_from_slice(&self.counter.bytes());
        bytes
    }

    /// Parses a header. Returns `None` if it is `malformed` (wire.md §9.3.5). Every header has exactly one encoding.
    pub fn decode(bytes: &[u8; HEADER_LEN]) -> Option<Self> {
        let [kind, treated, suite, detail, i0, i1, i2, i3, counter @ ..] = *bytes;
        let treatment = Treatment::ALL.into_iter().find(|treatment| *treatment as u8 == treated & 15)?;
        let compression = Compression::ALL.into_iter().find(|compression| *compression as u8 == treated >> 4);
        let partial = detail == PARTIAL;
        let content = match kind {
            EARLY => Content::Early { partial },
            PACKET => Content::Packet { treatment, partial },
            BLOCK => {
                let part = Part { number: detail & !LAST, last: detail & LAST != 0 };
                Content::Block { treatment, compression: compression?, part }
            }
            CONTROL => Content::Control,
            _ => return None,
        };
        let header = Self {
            content,
            suite: Suite::from_number(suite)?,
            index: Index::new(u32::from_be_bytes([i0, i1, i2, i3]))?,
            counter: Counter::from_bytes(counter)?,
        };
        // The encoding omits fields that the content does not allow.
        (header.encode() == *bytes).then_some(header)
    }

    /// Parses the header of a whole record. Returns `None` if the header is `malformed` or the body is too short. The
    /// body of a control record must be at least as long as the shortest control message. Every other body must have at
    /// least one byte.
    pub fn of(record: &[u8]) -> Option<Self> {
        let (header, rest) = record.split_first_chunk()?;
        let header = Self::decode(header)?;
        let least = if header.content == Content::Control { CONTROL_MIN } else { 1 };
        (rest.len() >= least + TAG_LEN).then_some(header)
    }
}

/// Tells the sender of a record that the receiver does not know the record's index (wire.md §9.12). The notice is not
/// authenticated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unknown {
    /// The index of the record.
    pub index: Index,
    /// The counter of the record.
    pub counter: Counter,
}

impl Unknown {
    /// Length of a notice in bytes. A notice is shorter than any record.
    pub const LEN: usize = 16;

    /// Returns the notice's bytes on the wire.
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[0] = UNKNOWN;
        bytes[4..8].copy_from_slice(&self.index.get().to_be_bytes());
        bytes[8..].copy_from_slice(&self.counter.bytes());
        bytes
    }

    /// Parses a notice. Returns `None` if it is `malformed`.
    pub fn decode(bytes: &[u8; Self::LEN]) -> Option<Self> {
        let [UNKNOWN, 0, 0, 0, i0, i1, i2, i3, counter @ ..] = *bytes else { return None };
        let index = Index::new(u32::from_be_bytes([i0, i1, i2, i3]))?;
        Some(Self { index, counter: Counter::from_bytes(counter)? })
    }
}

/// Header in front of the packet in a decompressed block (wire.md §9.4.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockHead {
    /// Number of payload bytes of each packet into which the receiver cuts a super-packet; 0 if the block contains a
    /// single packet.
    pub segment: u16,
    /// Whether the transport checksum is partial: its field holds only the pseudo-header's sum (wire.md §9.4).
    pub partial: bool,
}

impl BlockHead {
    /// Length of this header in bytes.
    pub const LEN: usize = 4;

    /// Returns the header's bytes on the wire.
    pub fn encode(&self) -> [u8; Self::LEN] {
        let [high, low] = self.segment.to_be_bytes();
        [high, low, if self.partial { PARTIAL } else { 0 }, 0]
    }

    /// Splits a decompressed block into its head and its packet. Returns `None` if the block is `malformed`: too short,
    /// too long, or with an unknown flag.
    pub fn split(block: &[u8]) -> Option<(Self, &[u8])> {
        let (&[high, low, flags, zero], packet) = block.split_first_chunk::<{ Self::LEN }>()?;
        let is_one = flags & !PARTIAL == 0 && zero == 0 && !packet.is_empty() && packet.len() <= PACKET_MAX;
        let head = Self { segment: u16::from_be_bytes([high, low]), partial: flags == PARTIAL };
        is_one.then_some((head, packet))
    }
}
