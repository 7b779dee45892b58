//! Sealed tunnels: the formats of their messages, and the opening of records.

use seal::{Decompressor, Joiner, Keys};
use wire::seal::record::BLOCK_MAX;
use wire::seal::{
    BlockHead, Compression, Content, Control, Counter, Direction, Index, Initiation, Message, Part, PhaseSecret,
    RecordHeader, Response, Treatment,
};

/// Outcome of trying to open a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unsealed {
    /// The input does not have the form of a record.
    Malformed,
    /// The record was not sealed with the key.
    BadTag,
    /// The record was opened.
    Opened,
}

/// Returns the keys with which the records in the corpus are sealed.
pub fn keys(direction: Direction) -> Keys {
    Keys::new(PhaseSecret::new([7; 32]), direction)
}

/// Checks that decoded input has exactly one encoding, that a record opens only unchanged and with its own key, and
/// that no block decompresses to more than its limit.
pub fn seal(input: &[u8]) {
    forms(input);
    unsealed(input);
    let [first, body @ ..] = input else { return };
    sealed(*first, body);
    unpacked(input);
    joined(input);
}

fn forms(input: &[u8]) {
    match Message::read(input) {
        Some(Message::Record(header)) => assert!(input.starts_with(&header.encode()), "one form only"),
        Some(Message::Unknown(unknown)) => assert_eq!(unknown.encode(), input, "one form only"),
        Some(Message::Initiation(_)) => {
            let first = input.first_chunk().expect("it is as long as an initiation");
            for ipv6 in [false, true] {
                if let Ok(read) = Initiation::read(first, ipv6) {
                    assert_eq!(read.grant.encode(), first[16..32], "one form only");
                }
            }
        }
        Some(Message::Response) => {
            let _ = Response::read(input.try_into().expect("it is as long as a response"));
        }
        None => {}
    }
    if let Some(read) = Control::decode(input) {
        assert!(matches!(read, Control::Close(_)) || read.encode().bytes() == input, "one form only");
    }
    if let Some((head, packet)) = BlockHead::split(input) {
        assert_eq!([&head.encode()[..], packet].concat(), input, "one form only");
    }
}

/// Tries to open the input as a record from the initiator, and returns the outcome. If the record opens, checks that no
/// other key opens it, and that sealing its body again yields the same record.
pub fn unsealed(input: &[u8]) -> Unsealed {
    let Some(header) = RecordHeader::of(input) else { return Unsealed::Malformed };
    let mine = keys(Direction::FromInitiator);
    let mut record = input.to_vec();
    if mine.open(&header, &mut record).is_none() {
        return Unsealed::BadTag;
    }
    mine.seal(&header, &mut record).expect("it was sealed once");
    assert_eq!(record, input, "a record has one form");
    assert!(keys(Direction::FromResponder).open(&header, &mut input.to_vec()).is_none(), "the other direction");
    let other = Keys::new(PhaseSecret::new([8; 32]), Direction::FromInitiator);
    assert!(other.open(&header, &mut input.to_vec()).is_none(), "another phase");
    Unsealed::Opened
}

/// Seals `body` with every parameter that the first byte selects. Checks that the record does not open after a change
/// of any byte of the header or of some others.
fn sealed(pick: u8, body: &[u8]) {
    if body.is_empty() || body.len() > 2000 {
        return;
    }
    let treatment = Treatment::ALL[usize::from(pick) % 2];
    let compression = Compression::ALL[usize::from(pick >> 1) % 2];
    let part = Part::new(usize::from(pick >> 2) % 128, pick & 2 == 0).expect("small");
    let content = match pick >> 3 & 3 {
        0 => Content::Early { partial: pick & 1 == 0 },
        1 => Content::Packet { treatment, partial: pick & 2 == 0 },
        2 => Content::Block { treatment, compression, part },
        _ => Content::Packet { treatment, partial: false },
    };
    let header = RecordHeader {
        content,
        suite: wire::seal::Suite::ALL[usize::from(pick) % 3],
        index: Index::new(u32::from(pick) + 1).expect("not 0"),
        counter: Counter::new(pick & 7, u64::from(pick) << 40).expect("in bounds"),
    };
    let mine = keys(Direction::FromInitiator);
    let mut record = [&[0; 16], body, &[0; 16]].concat();
    mine.seal(&header, &mut record).expect("it seals");
    let opened = mine.open(&header, &mut record.clone()).map(|body| body.to_vec());
    assert_eq!(opened.as_deref(), Some(body));
    let rest = (16..record.len()).step_by(1 + record.len() / 16);
    for at in (0..16).chain(rest).chain([record.len() - 1]) {
        let mut changed = record.clone();
        changed[at] ^= 1 << (pick & 7);
        if let Some(header) = RecordHeader::of(&changed) {
            assert!(mine.open(&header, &mut changed).is_none(), "byte {at}");
        }
    }
}

fn unpacked(input: &[u8]) {
    let mut decompressor = Decompressor::new().expect("memory");
    for how in Compression::ALL {
        if let Some((_, packet)) = decompressor.decompress(how, input) {
            assert!(!packet.is_empty() && packet.len() + BlockHead::LEN <= BLOCK_MAX);
        }
    }
}

/// Reads the input as parts of blocks: each has a header of four bytes (part, lane, counter, length) and a body.
fn joined(input: &[u8]) {
    let mut joiner = Joiner::default();
    let mut rest = input;
    while let [detail, lane, number, len, behind @ ..] = rest {
        let (body, behind) = behind.split_at(behind.len().min(usize::from(*len)));
        rest = behind;
        let part = Part::new(usize::from(detail & 127), detail & 128 != 0).expect("small");
        let content = Content::Block { treatment: Treatment::Encrypt, compression: Compression::Lz4, part };
        let counter = Counter::new(lane & 7, u64::from(*number)).expect("in bounds");
        let index = Index::new(1).expect("not 0");
        let header = RecordHeader { content, suite: wire::seal::Suite::Aes128Gcm, index, counter };
        if let Ok(block) = joiner.take(&header, body) {
            assert!(block.bytes.len() <= BLOCK_MAX);
        }
    }
}
