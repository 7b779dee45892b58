//! Sealed tunnels: the messages and the key schedule (wire.md §9). The `seal` crate encrypts and decrypts; `engine`
//! decides what either end does.

pub mod control;
pub mod handshake;
pub mod record;
pub mod schedule;
pub mod suite;

pub use control::{Close, Control};
pub use handshake::{INITIATION_LEN, Initiation, Offer, RESPONSE_LEN, Refusal, Response};
pub use record::{BlockHead, Compression, Content, Counter, Index, Part, RecordHeader, Treatment, Unknown};
pub use schedule::{Direction, Handshake, PhaseSecret, RecordKey, Shared};
pub use suite::{Suite, Suites};

/// The contribution of one end of a tunnel to the key exchange: an X25519 public key or, without forward secrecy, 32
/// random bytes (wire.md §9.5).
pub type Share = [u8; 32];

/// Form of a datagram in a tunnel's UDP flow (wire.md §9.1, §9.2). Nothing in the datagram is authenticated yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// An initiation in the first [`INITIATION_LEN`] bytes, optionally followed by an early record.
    Initiation(Option<RecordHeader>),
    /// A response.
    Response,
    /// A packet, block or control record.
    Record(RecordHeader),
    /// A notice that the other end does not know a record's index.
    Unknown(Unknown),
}

impl Message {
    /// Reports whether a datagram begins with the first byte of an initiation. The datagram can be `malformed`
    /// nevertheless.
    pub fn begins_tunnel(datagram: &[u8]) -> bool {
        datagram.first() == Some(&handshake::INITIATION)
    }

    /// Returns the form of a datagram with its fields. Returns `None` if the datagram is `malformed`.
    pub fn read(datagram: &[u8]) -> Option<Self> {
        match *datagram.first()? {
            handshake::INITIATION => {
                let (_, early) = datagram.split_first_chunk::<INITIATION_LEN>()?;
                if early.is_empty() {
                    return Some(Self::Initiation(None));
                }
                let header = RecordHeader::of(early)?;
                header.content.is_early().then_some(Self::Initiation(Some(header)))
            }
            handshake::RESPONSE => (datagram.len() == RESPONSE_LEN).then_some(Self::Response),
            record::UNKNOWN => Unknown::decode(datagram.try_into().ok()?).map(Self::Unknown),
            _ => {
                let header = RecordHeader::of(datagram)?;
                (!header.content.is_early()).then_some(Self::Record(header))
            }
        }
    }
}
