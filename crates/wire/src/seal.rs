//! Sealed tunnels: what travels, and how keys come about (wire.md §9). The seals themselves are `seal`'s, what either end does
//! is `engine`'s to decide.

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

/// A share of the key exchange: an X25519 public key, or 32 random bytes without forward secrecy (wire.md §9.5).
pub type Share = [u8; 32];

/// What a datagram in a tunnel's UDP flow holds, by its form alone (wire.md §9.1, §9.2). Nothing of it is proved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// An initiation in the first [`INITIATION_LEN`] bytes, and behind it maybe an early record.
    Initiation(Option<RecordHeader>),
    /// A response.
    Response,
    /// A packet, block or control record.
    Record(RecordHeader),
    /// Nobody there has a record's index.
    Unknown(Unknown),
}

impl Message {
    /// Reads a datagram's form; `None` if it is `malformed`.
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
