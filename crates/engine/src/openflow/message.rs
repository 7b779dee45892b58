//! Messages of OpenFlow 1.3 (ONF TS-006 to TS-023, "OpenFlow Switch Specification", §7), as far as a controller that lets
//! switches forward by themselves needs them.

use super::matching::Match;
use std::fmt;

/// OpenFlow 1.3's number on the wire.
pub const VERSION: u8 = 4;
const HEADER_LEN: usize = 8;
const NO_BUFFER: u32 = u32::MAX;
const ANY: u32 = u32::MAX;

/// Ports that stand for something.
pub mod port {
    /// What the switch would do without a controller: learn and forward.
    pub const NORMAL: u32 = 0xffff_fffa;
    /// The controller.
    pub const CONTROLLER: u32 = 0xffff_fffd;
}

/// Message types (§7.1.1).
mod kind {
    pub const HELLO: u8 = 0;
    pub const ERROR: u8 = 1;
    pub const ECHO_REQUEST: u8 = 2;
    pub const ECHO_REPLY: u8 = 3;
    pub const FEATURES_REQUEST: u8 = 5;
    pub const FEATURES_REPLY: u8 = 6;
    pub const SET_CONFIG: u8 = 9;
    pub const PACKET_IN: u8 = 10;
    pub const PACKET_OUT: u8 = 13;
    pub const FLOW_MOD: u8 = 14;
    pub const BARRIER_REQUEST: u8 = 20;
    pub const BARRIER_REPLY: u8 = 21;
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// The first one of either side; its header tells the highest version.
    Hello,
    /// The switch could not do what it was asked.
    Error {
        /// The error's type.
        class: u16,
        /// Its code within the type.
        code: u16,
    },
    /// Asks whether the other side is there.
    EchoRequest(Vec<u8>),
    /// Answers with the same bytes.
    EchoReply(Vec<u8>),
    /// Asks who the switch is.
    FeaturesRequest,
    /// Who the switch is.
    FeaturesReply {
        /// Its number among all switches.
        datapath: u64,
    },
    /// How much of a packet comes up.
    SetConfig {
        /// Bytes, of packets for which no rule says more.
        miss_send_len: u16,
    },
    /// A packet comes up.
    PacketIn {
        /// The cookie of the rule that sent it.
        cookie: u64,
        /// The port that it came in by.
        in_port: u32,
        /// How long it was.
        total_len: u16,
        /// What of it was sent.
        frame: Vec<u8>,
    },
    /// A packet goes down, and where to.
    PacketOut {
        /// The port that it counts as having come in by.
        in_port: u32,
        /// The port that it leaves by.
        to: u32,
        /// The packet.
        frame: Vec<u8>,
    },
    /// A change of the switch's rules.
    FlowMod(FlowMod),
    /// Asks to be told when all before it is done.
    BarrierRequest,
    /// It is.
    BarrierReply,
    /// Of a type that a controller need not understand.
    Other(u8),
}

/// What is to happen to rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Adds one, in the place of one with the same match and priority.
    Add,
    /// Takes out all whose cookie and match fit.
    Delete,
}

/// A change of the switch's rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowMod {
    /// What is to happen.
    pub command: Command,
    /// Tells whose a rule is.
    pub cookie: u64,
    /// The bits of the cookie that count when rules are taken out.
    pub cookie_mask: u64,
    /// The highest priority decides.
    pub priority: u16,
    /// Seconds without a packet after which the rule goes; 0 for never.
    pub idle_timeout: u16,
    /// Seconds after which it goes in any case; 0 for never.
    pub hard_timeout: u16,
    /// What it is for.
    pub matching: Match,
    /// The port that packets leave by, or nothing.
    pub to: Option<u32>,
    /// Whether a copy comes up to the controller.
    pub copy: bool,
}

/// Why bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// A version other than 1.3.
    Version(u8),
    /// The length in the header is shorter than a header, or than this type's fields.
    Short(u8),
}

impl fmt::Display for Malformed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // The type of a TLS handshake is where OpenFlow has its version.
            Self::Version(22) => write!(
                formatter,
                "the switch speaks TLS, and this address takes plain OpenFlow only: name certificates by \
                 switches_certificate, switches_key and switches_ca, or the controller `tcp:…` on the switch"
            ),
            Self::Version(version) => write!(
                formatter,
                "the switch speaks OpenFlow version {version} on the wire, not 4 (1.3): allow OpenFlow13 on its bridge"
            ),
            Self::Short(kind) => write!(formatter, "a message of type {kind} is shorter than its fields"),
        }
    }
}

/// Bytes on their way from a switch, cut into messages. Never holds more than one message and what came with it.
#[derive(Default)]
pub struct Inbox(Vec<u8>);

impl Inbox {
    /// Takes bytes in.
    pub fn push(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// The next whole message, and the number that ties answers to questions.
    pub fn message(&mut self) -> Result<Option<(u32, Message)>, Malformed> {
        let Some(&[version, kind, high, low, a, b, c, d]) = self.0.first_chunk::<HEADER_LEN>() else { return Ok(None) };
        let len = usize::from(u16::from_be_bytes([high, low]));
        // A HELLO may come in any version: what counts is whether ours is spoken.
        if version < VERSION || version > VERSION && kind != kind::HELLO {
            return Err(Malformed::Version(version));
        }
        if len < HEADER_LEN {
            return Err(Malformed::Short(kind));
        }
        let Some(body) = self.0.get(HEADER_LEN..len) else { return Ok(None) };
        let message = Message::decode(kind, body).ok_or(Malformed::Short(kind))?;
        self.0.drain(..len);
        Ok(Some((u32::from_be_bytes([a, b, c, d]), message)))
    }
}

impl Message {
    fn decode(kind: u8, body: &[u8]) -> Option<Self> {
        Some(match kind {
            kind::HELLO => Self::Hello,
            kind::ERROR => Self::Error { class: u16_at(body, 0)?, code: u16_at(body, 2)? },
            kind::ECHO_REQUEST => Self::EchoRequest(body.to_vec()),
            kind::ECHO_REPLY => Self::EchoReply(body.to_vec()),
            kind::FEATURES_REQUEST => Self::FeaturesRequest,
            kind::FEATURES_REPLY => Self::FeaturesReply { datapath: u64_at(body, 0)? },
            kind::PACKET_IN => {
                let match_len = usize::from(u16_at(body, 18)?);
                // The match is filled up to a multiple of 8, and two bytes stand between it and the packet (§7.4.1).
                let frame = body.get(16 + match_len.next_multiple_of(8) + 2..)?.to_vec();
                let in_port = Match::in_port(body.get(20..16 + match_len)?)?;
                Self::PacketIn { cookie: u64_at(body, 8)?, in_port, total_len: u16_at(body, 4)?, frame }
            }
            kind::BARRIER_REQUEST => Self::BarrierRequest,
            kind::BARRIER_REPLY => Self::BarrierReply,
            other => Self::Other(other),
        })
    }

    /// The message as it is sent. `None` if it is too long for its header.
    pub fn encode(&self, xid: u32) -> Option<Vec<u8>> {
        let mut bytes = vec![VERSION, 0, 0, 0];
        bytes.extend(xid.to_be_bytes());
        bytes[1] = match self {
            Self::Hello => kind::HELLO,
            Self::Error { class, code } => {
                bytes.extend([class.to_be_bytes(), code.to_be_bytes()].concat());
                kind::ERROR
            }
            Self::EchoRequest(data) => {
                bytes.extend(data);
                kind::ECHO_REQUEST
            }
            Self::EchoReply(data) => {
                bytes.extend(data);
                kind::ECHO_REPLY
            }
            Self::FeaturesRequest => kind::FEATURES_REQUEST,
            Self::FeaturesReply { datapath } => {
                bytes.extend(datapath.to_be_bytes());
                bytes.extend([0; 16]);
                kind::FEATURES_REPLY
            }
            Self::SetConfig { miss_send_len } => {
                bytes.extend([0; 2]);
                bytes.extend(miss_send_len.to_be_bytes());
                kind::SET_CONFIG
            }
            Self::PacketIn { cookie, in_port, total_len, frame } => {
                bytes.extend(NO_BUFFER.to_be_bytes());
                bytes.extend(total_len.to_be_bytes());
                bytes.extend([1, 0]);
                bytes.extend(cookie.to_be_bytes());
                Match { in_port: Some(*in_port), ..Match::default() }.encode(&mut bytes);
                bytes.extend([0; 2]);
                bytes.extend(frame);
                kind::PACKET_IN
            }
            Self::PacketOut { in_port, to, frame } => {
                let actions = output(*to);
                bytes.extend(NO_BUFFER.to_be_bytes());
                bytes.extend(in_port.to_be_bytes());
                bytes.extend((actions.len() as u16).to_be_bytes());
                bytes.extend([0; 6]);
                bytes.extend(actions);
                bytes.extend(frame);
                kind::PACKET_OUT
            }
            Self::FlowMod(change) => {
                change.encode(&mut bytes);
                kind::FLOW_MOD
            }
            Self::BarrierRequest => kind::BARRIER_REQUEST,
            Self::BarrierReply => kind::BARRIER_REPLY,
            Self::Other(kind) => *kind,
        };
        let len = u16::try_from(bytes.len()).ok()?;
        bytes[2..4].copy_from_slice(&len.to_be_bytes());
        Some(bytes)
    }
}

impl FlowMod {
    fn encode(&self, bytes: &mut Vec<u8>) {
        const APPLY_ACTIONS: u16 = 4;
        bytes.extend(self.cookie.to_be_bytes());
        bytes.extend(self.cookie_mask.to_be_bytes());
        bytes.extend(match self.command {
            Command::Add => [0, 0],
            // Out of every table.
            Command::Delete => [0xff, 3],
        });
        for number in [self.idle_timeout, self.hard_timeout, self.priority] {
            bytes.extend(number.to_be_bytes());
        }
        for number in [NO_BUFFER, ANY, ANY] {
            bytes.extend(number.to_be_bytes());
        }
        bytes.extend([0; 4]);
        self.matching.encode(bytes);
        if let Some(to) = self.to {
            let mut actions = output(to);
            if self.copy {
                actions.extend(output(port::CONTROLLER));
            }
            bytes.extend(APPLY_ACTIONS.to_be_bytes());
            bytes.extend((actions.len() as u16 + 8).to_be_bytes());
            bytes.extend([0; 4]);
            bytes.extend(actions);
        }
    }
}

/// The action "send it there, and the controller all of it" (§7.2.5).
fn output(to: u32) -> Vec<u8> {
    const NO_BUFFER_LEN: u16 = 0xffff;
    let mut bytes = vec![0, 0, 0, 16];
    bytes.extend(to.to_be_bytes());
    bytes.extend(NO_BUFFER_LEN.to_be_bytes());
    bytes.extend([0; 6]);
    bytes
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|chunk| u16::from_be_bytes(*chunk))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|chunk| u64::from_be_bytes(*chunk))
}
