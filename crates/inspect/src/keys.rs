//! Keys of sealed tunnels, from a file that an agent exports for debugging (wire.md §9.14). With them, records in a
//! capture can be opened.

use std::collections::HashMap;
use std::path::Path;

use anyhow::{Context, Result, bail};
use seal::{Decompressor, Joiner, Keys};
use wire::packet::{Packet, TCP};
use wire::seal::record::Content;
use wire::seal::{Control, Direction, Index, PhaseSecret, RecordHeader};
use zeroize::Zeroizing;

use crate::line::{end, names, protocol};

/// The kinds of records, by the key that opens them.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    Early,
    ToResponder,
    ToInitiator,
}

impl Kind {
    const WORDS: [(&'static str, Self); 3] =
        [("EARLY", Self::Early), ("TO_RESPONDER", Self::ToResponder), ("TO_INITIATOR", Self::ToInitiator)];

    const fn direction(self) -> Direction {
        match self {
            Self::Early | Self::ToResponder => Direction::FromInitiator,
            Self::ToInitiator => Direction::FromResponder,
        }
    }
}

/// The keys of a phase in one direction, and the incomplete blocks of this direction.
struct Phase {
    keys: Keys,
    joiner: Joiner,
}

/// The keys from a file that an agent exported.
#[derive(Default)]
pub struct KeyFile {
    phases: HashMap<(Kind, u32), Phase>,
    decompressor: Option<Decompressor>,
}

impl KeyFile {
    /// Reads a file of lines such as `TO_RESPONDER 8f1c2a90 SECRET`. The first word of a line is the kind of records
    /// that the secret opens. The second is the index in the headers of these records, in 8 hex digits. The third is
    /// the secret, in 64 hex digits. Empty lines and lines that begin with `#` are ignored.
    ///
    /// # Errors
    /// Fails if the file can't be read, or if a line is malformed. The error names the malformed line.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).map(Zeroizing::new);
        let text = text.with_context(|| format!("cannot read the keys in {}", path.display()))?;
        let mut phases = HashMap::new();
        for (number, line) in (1..).zip(text.lines()) {
            if line.trim().is_empty() || line.starts_with('#') {
                continue;
            }
            let Some((key, phase)) = phase(line) else {
                bail!(
                    "{}:{number}: not a key; a line is EARLY, TO_RESPONDER or TO_INITIATOR, an index (8 hex digits) and \
                     a secret (64 hex digits)",
                    path.display()
                );
            };
            phases.insert(key, phase);
        }
        Ok(Self { phases, decompressor: Decompressor::new() })
    }

    /// Reports whether the file has a key for records with this header.
    pub fn knows(&self, header: &RecordHeader) -> bool {
        candidates(header).iter().any(|kind| self.phases.contains_key(&(*kind, header.index.get())))
    }

    /// Opens a record. Returns a description of its content, or of the reason why it can't be opened.
    pub fn open(&mut self, header: &RecordHeader, record: &[u8]) -> String {
        let Self { phases, decompressor } = self;
        for kind in candidates(header) {
            let Some(phase) = phases.get_mut(&(*kind, header.index.get())) else { continue };
            let mut record = record.to_vec();
            let Some(body) = phase.keys.open(header, &mut record) else { continue };
            return match header.content {
                Content::Early { .. } | Content::Packet { .. } => packet(body),
                Content::Control => control(body),
                Content::Block { .. } => match phase.joiner.take(header, body) {
                    Err(seal::NotJoined::Missing) => {
                        "part of a block of which other parts have not arrived yet".to_owned()
                    }
                    Err(seal::NotJoined::Malformed) => "a malformed block".to_owned(),
                    Ok(block) => {
                        let plain =
                            decompressor.as_mut().and_then(|how| how.decompress(block.compression, &block.bytes));
                        plain.map_or_else(
                            || "a block that does not decompress".to_owned(),
                            |(head, bytes)| {
                                let segments = match head.segment {
                                    0 => String::new(),
                                    size => format!(", to be cut into segments of {size} bytes"),
                                };
                                format!("{}{segments}, compressed to {} bytes", packet(bytes), block.bytes.len())
                            },
                        )
                    }
                },
            };
        }
        "closed, because no key in the file opens this record".to_owned()
    }
}

/// Returns the kinds of keys that may open a record.
fn candidates(header: &RecordHeader) -> &'static [Kind] {
    if header.content.is_early() { &[Kind::Early] } else { &[Kind::ToResponder, Kind::ToInitiator] }
}

fn phase(line: &str) -> Option<((Kind, u32), Phase)> {
    let mut words = line.split_whitespace();
    let (kind, index, secret) = (words.next()?, words.next()?, words.next()?);
    if words.next().is_some() || index.len() != 8 {
        return None;
    }
    let kind = Kind::WORDS.into_iter().find(|(word, _)| *word == kind)?.1;
    let index = Index::new(u32::from_str_radix(index, 16).ok()?)?.get();
    let mut bytes = Zeroizing::new([0; 32]);
    hex::decode_to_slice(secret, bytes.as_mut()).ok()?;
    let keys = Keys::new(PhaseSecret::new(*bytes), kind.direction());
    Some(((kind, index), Phase { keys, joiner: Joiner::default() }))
}

fn packet(bytes: &[u8]) -> String {
    let inner = Packet::parse_ip(bytes);
    format!("{}, {} bytes", summary(&inner), bytes.len())
}

/// Describes a packet in one line: protocol, source, destination and TCP flags.
fn summary(packet: &Packet) -> String {
    let end = |address, port| end(packet, address, port).unwrap_or_else(|| "?".to_owned());
    let (from, to) = (end(packet.source, packet.source_port), end(packet.destination, packet.destination_port));
    let flags = if packet.protocol == TCP { names(packet.tcp_flags).join(",") } else { String::new() };
    format!("{} {from} > {to}{}{flags}", protocol(packet), if flags.is_empty() { "" } else { " " })
}

fn control(body: &[u8]) -> String {
    match Control::decode(body) {
        None => "a malformed control message".to_owned(),
        Some(Control::Rekey { phase, index, have, .. }) => {
            let have = if have { ", the key share of the other end has arrived" } else { "" };
            format!("rekey: a key share for phase {phase}, index {:08x}{have}", index.get())
        }
        Some(Control::Ping(bytes)) => format!("ping {}", hex::encode(bytes)),
        Some(Control::Pong(bytes)) => format!("pong {}", hex::encode(bytes)),
        Some(Control::Close(reason)) => format!("close: {}", reason.name()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::seal::{Counter, Suite, Treatment};

    fn file(text: &str) -> Result<KeyFile> {
        let file = tempfile::NamedTempFile::new()?;
        std::fs::write(file.path(), text)?;
        KeyFile::read(file.path())
    }

    fn record(direction: Direction, treatment: Treatment) -> (RecordHeader, Vec<u8>) {
        let header = RecordHeader {
            content: Content::Packet { treatment, partial: false },
            suite: Suite::Aes128Gcm,
            index: Index::new(0x8f1c_2a90).unwrap(),
            counter: Counter::new(0, 5).unwrap(),
        };
        let inner = [
            &[0x45, 0, 0, 32, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2][..],
            &[0x9c, 0x40, 0, 53, 0, 12, 0, 0],
            b"abcd",
        ]
        .concat();
        let mut bytes = [&[0; 16][..], &inner, &[0; 16]].concat();
        Keys::new(PhaseSecret::new([7; 32]), direction).seal(&header, &mut bytes).unwrap();
        (header, bytes)
    }

    #[test]
    fn a_key_opens_its_records_and_no_others() {
        let secret = "07".repeat(32);
        let mut keys = file(&format!("# debug\n\nTO_RESPONDER 8f1c2a90 {secret}\n")).unwrap();
        for treatment in Treatment::ALL {
            let (header, bytes) = record(Direction::FromInitiator, treatment);
            assert!(keys.knows(&header));
            assert_eq!(keys.open(&header, &bytes), "udp 10.0.0.1:40000 > 10.0.0.2:53, 32 bytes");
            let (header, bytes) = record(Direction::FromResponder, treatment);
            assert_eq!(keys.open(&header, &bytes), "closed, because no key in the file opens this record");
        }
        let other =
            RecordHeader { index: Index::new(9).unwrap(), ..record(Direction::FromInitiator, Treatment::Encrypt).0 };
        assert!(!keys.knows(&other));
    }

    #[test]
    fn a_line_that_is_no_key_is_named() {
        let secret = "07".repeat(32);
        for wrong in [
            format!("TO_NOBODY 8f1c2a90 {secret}"),
            format!("EARLY 8f1c2a9 {secret}"),
            format!("EARLY 00000000 {secret}"),
            format!("EARLY 8f1c2a90 {secret}00"),
            format!("EARLY 8f1c2a90 {secret} more"),
            "EARLY 8f1c2a90".to_owned(),
        ] {
            let error = file(&format!("# first\n{wrong}\n")).err().unwrap().to_string();
            assert!(error.contains(":2: not a key"), "{error}");
        }
    }
}
