//! Messages of sealed tunnels (wire.md §9.2): handshakes and the headers of records, which everybody can read.

use std::collections::HashSet;
use std::net::SocketAddr;

use serde::Serialize;
use wire::packet::{Form, Packet, UDP};
use wire::seal::record::Content;
use wire::seal::{INITIATION_LEN, Initiation, Message, RESPONSE_LEN, RecordHeader, Response, Suite, Suites};
use wire::tail;

use crate::keys::KeyFile;

/// Maximum number of tunnels to remember. Beyond it, all are forgotten.
const MOST: usize = 1 << 16;

/// A message of a sealed tunnel.
#[derive(Serialize)]
#[serde(tag = "message", rename_all = "snake_case")]
pub enum Sealed {
    /// A request for a tunnel.
    Initiation {
        /// Handle of the grant under which the request is made.
        handle: String,
        forward_secrecy: bool,
        suites: Vec<&'static str>,
        index: String,
        time: u32,
        /// The sealed packet that follows the initiation in the same datagram.
        early: Option<Record>,
    },
    /// An answer to an initiation: accepts it, or gives the reason for refusing.
    Response { to: String, index: Option<String>, suites: Vec<&'static str>, refused: Option<&'static str> },
    /// A sealed packet, block or control message.
    Record(Record),
    /// An answer to a record whose index the other end does not know.
    Unknown { index: String },
}

/// The header of a record, and the record's content if a key for it is known.
#[derive(Serialize)]
pub struct Record {
    /// Kind of the record: `early`, `packet`, `block` or `control`.
    pub kind: &'static str,
    pub treatment: &'static str,
    pub compression: Option<&'static str>,
    pub suite: &'static str,
    pub index: String,
    pub lane: u8,
    pub number: u64,
    /// Length of the body, in bytes.
    pub body: usize,
    /// Number of the part within its block, counted from 0.
    pub part: Option<u8>,
    /// Description of the record's content, or the reason why the record can't be opened; `None` if the user gave no
    /// file of keys.
    pub opened: Option<String>,
}

/// The sealed tunnels that were seen in a capture, each as the addresses and ports of its two ends.
#[derive(Default)]
pub struct Tunnels {
    ends: HashSet<(SocketAddr, SocketAddr)>,
    /// Keys with which records are opened, for debugging; `None` if the user gave no file of keys.
    pub keys: Option<KeyFile>,
}

impl Tunnels {
    /// Returns the message of a sealed tunnel in a frame; `None` if there is none. The bytes alone don't show whether a
    /// datagram is a record. So, if the initiation of a tunnel was not captured, a record of it is recognised only if
    /// there is a key for the record.
    pub fn find(&mut self, frame: &[u8], packet: &Packet) -> Option<Sealed> {
        let whole = packet.protocol == UDP && packet.form == Form::Whole;
        let (from, to) = (packet.source.filter(|_| whole)?, packet.destination?);
        let ends = (SocketAddr::new(from, packet.source_port), SocketAddr::new(to, packet.destination_port));
        let end = packet.end - if tail::find(frame, packet).is_some() { tail::BLOCK_LEN } else { 0 };
        let datagram = frame.get(packet.payload..end)?;
        let known = self.ends.contains(&ends) || self.ends.contains(&(ends.1, ends.0));
        match Message::read(datagram)? {
            Message::Initiation(early) => {
                let (head, rest) = datagram.split_first_chunk::<INITIATION_LEN>()?;
                let initiation = Initiation::read(head, packet.ipv6()).ok()?;
                if self.ends.len() >= MOST {
                    self.ends.clear();
                }
                self.ends.insert(ends);
                Some(Sealed::Initiation {
                    handle: initiation.grant.handle.to_string(),
                    forward_secrecy: initiation.offer.forward,
                    suites: names(initiation.offer.suites),
                    index: format!("{:08x}", initiation.index.get()),
                    time: initiation.time,
                    early: early.map(|header| self.record(&header, rest)),
                })
            }
            Message::Response if known => {
                let response = Response::read(datagram.first_chunk::<RESPONSE_LEN>()?)?;
                Some(Sealed::Response {
                    to: format!("{:08x}", response.to.get()),
                    index: response.given.ok().map(|(index, _)| format!("{:08x}", index.get())),
                    suites: names(response.offer.suites),
                    refused: response.given.err().map(|refusal| refusal.name()),
                })
            }
            Message::Record(header) if known || self.keys.as_ref().is_some_and(|keys| keys.knows(&header)) => {
                Some(Sealed::Record(self.record(&header, datagram)))
            }
            Message::Unknown(unknown) if known => {
                Some(Sealed::Unknown { index: format!("{:08x}", unknown.index.get()) })
            }
            _ => None,
        }
    }

    fn record(&mut self, header: &RecordHeader, record: &[u8]) -> Record {
        let (kind, compression, part) = match header.content {
            Content::Early { .. } => ("early", None, None),
            Content::Packet { .. } => ("packet", None, None),
            Content::Block { compression, part, .. } => ("block", Some(compression.name()), Some(part.number())),
            Content::Control => ("control", None, None),
        };
        Record {
            kind,
            treatment: header.content.treatment().name(),
            compression,
            suite: header.suite.name(),
            index: format!("{:08x}", header.index.get()),
            lane: header.counter.lane(),
            number: header.counter.number(),
            body: record.len().saturating_sub(wire::seal::record::OVERHEAD),
            part,
            opened: self.keys.as_mut().map(|keys| keys.open(header, record)),
        }
    }
}

impl Sealed {
    /// Describes the message in some lines of text.
    pub fn lines(&self) -> Vec<String> {
        match self {
            Self::Initiation { handle, forward_secrecy, suites, index, early, .. } => {
                let forward = if *forward_secrecy { "with forward secrecy" } else { "without forward secrecy" };
                let first = format!("initiation of a sealed tunnel by grant {handle}, index {index}, {forward}");
                let mut lines = vec![first, format!("the initiator can open {}", suites.join(", "))];
                lines.extend(early.iter().flat_map(Record::lines));
                lines
            }
            Self::Response { refused: Some(why), to, .. } => {
                vec![format!("response to index {to}: tunnel refused, {why}")]
            }
            Self::Response { to, index, suites, .. } => {
                let index = index.as_deref().unwrap_or("-");
                vec![format!(
                    "response to index {to}: the tunnel has index {index}, and the responder can open {}",
                    suites.join(", ")
                )]
            }
            Self::Record(record) => record.lines(),
            Self::Unknown { index } => {
                vec![format!("unknown index: the sender of this message has no tunnel with index {index}")]
            }
        }
    }
}

impl Record {
    fn lines(&self) -> Vec<String> {
        let Self { kind, treatment, compression, suite, index, lane, number, body, part, opened } = self;
        let compression = compression.map(|how| format!(", {how}")).unwrap_or_default();
        let part = part.map(|part| format!(", part {part}")).unwrap_or_default();
        let head = format!("{kind} record to index {index}, number {number} of lane {lane}: {body} bytes");
        let mut lines = vec![format!("{head}, {treatment}, {suite}{compression}{part}")];
        lines.extend(opened.iter().map(|opened| format!("content: {opened}")));
        lines
    }
}

fn names(suites: Suites) -> Vec<&'static str> {
    suites.iter().map(Suite::name).collect()
}
