//! Messages of OpenFlow 1.3 (ONF TS-006 to TS-023, "OpenFlow Switch Specification", §7): the subset for a controller
//! that leaves forwarding to the switches.

use super::matching::Match;
use std::fmt;

/// The version number that stands for OpenFlow 1.3 in message headers.
pub const VERSION: u8 = 4;
const HEADER_LEN: usize = 8;
const NO_BUFFER: u32 = u32::MAX;
const ANY: u32 = u32::MAX;

/// Port numbers with a reserved meaning. They say where a rule or a message sends a packet.
pub mod port {
    /// The packet is forwarded as the switch would forward it without a controller.
    pub const NORMAL: u32 = 0xffff_fffa;
    /// The packet goes to the controller.
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

/// An OpenFlow message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// The first message from either side. Its header contains the highest version that the side supports.
    Hello,
    /// The switch could not carry out a request.
    Error {
        /// The error's type.
        class: u16,
        /// The error's code within the type.
        code: u16,
    },
    /// Asks the other side to show that the connection is alive.
    EchoRequest(Vec<u8>),
    /// The answer to `EchoRequest`, which contains the same bytes.
    EchoReply(Vec<u8>),
    /// Request for the switch's identity.
    FeaturesRequest,
    /// The switch's identity.
    FeaturesReply {
        /// The switch's unique number.
        datapath: u64,
    },
    /// Sets how many bytes of a packet the switch sends up.
    SetConfig {
        /// Maximum number of bytes that the switch sends up of a packet that matches no rule.
        miss_send_len: u16,
    },
    /// A packet that the switch sent up to its controller.
    PacketIn {
        /// The cookie of the rule that sent the packet up.
        cookie: u64,
        /// The port at which the packet arrived.
        in_port: u32,
        /// Length of the whole packet, in bytes.
        total_len: u16,
        /// The part of the packet that was sent up.
        frame: Vec<u8>,
    },
    /// A packet that the controller sends to the switch, and the packet's output port.
    PacketOut {
        /// The port at which the packet is assumed to have arrived.
        in_port: u32,
        /// The output port.
        to: u32,
        /// The packet to send.
        frame: Vec<u8>,
    },
    /// A change of the switch's rules.
    FlowMod(FlowMod),
    /// Requests a notice when all earlier messages are processed.
    BarrierRequest,
    /// Notice that all messages before the `BarrierRequest` are processed.
    BarrierReply,
    /// A message of another type; a controller need not understand it.
    Other(u8),
}

/// Operation on the rules of a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Adds a rule, replacing a rule with the same match and priority.
    Add,
    /// Removes all rules whose cookie and match fit.
    Delete,
}

/// A change of the switch's rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowMod {
    /// Whether to add a rule or to delete rules.
    pub command: Command,
    /// Number by which the controller recognises the rule's kind and generation.
    pub cookie: u64,
    /// The bits of the cookie that are compared when rules are deleted.
    pub cookie_mask: u64,
    /// Priority: of the rules that match a packet, the rule with the highest priority applies.
    pub priority: u16,
    /// Seconds without a packet after which the rule expires; 0 for never.
    pub idle_timeout: u16,
    /// Seconds after which the rule expires in any case; 0 for never.
    pub hard_timeout: u16,
    /// The packets to which the rule applies.
    pub matching: Match,
    /// The port of the switch on which the packets are sent; `None` for no port.
    pub to: Option<u32>,
    /// Whether the controller gets a copy of the packet.
    pub copy: bool,
}

/// Reason why bytes are not a valid message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// The message has this version, not 1.3.
    Version(u8),
    /// The length in the header of a message of this type is too small for the header or the type's fields.
    Short(u8),
}

impl fmt::Display for Malformed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // A TLS handshake has its type where OpenFlow has its version.
            Self::Version(22) => write!(
                formatter,
                "the switch uses TLS, but this address accepts plain OpenFlow only: set switches_certificate, \
                 switches_key and switches_ca, or set the controller to `tcp:…` on the switch"
            ),
            Self::Version(version) => write!(
                formatter,
                "the switch uses version {version} of OpenFlow's wire protocol, not 4 (1.3): allow OpenFlow13 on its \
                 bridge"
            ),
            Self::Short(kind) => write!(formatter, "a message of type {kind} is too short for its fields"),
        }
    }
}

/// Assembles messages from the bytes that a switch sends. Holds at most one incomplete message and the bytes received
/// with it.
#[derive(Default)]
pub struct Inbox(Vec<u8>);

impl Inbox {
    /// Appends received bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// Removes and returns the next complete message and its transaction id (`xid`). An answer has the transaction id
    /// of its request. Returns `None` until a message is complete.
    ///
    /// # Errors
    ///
    /// Fails if the bytes are not a valid message. The connection can't be used after that.
    pub fn message(&mut self) -> Result<Option<(u32, Message)>, Malformed> {
        let Some(&[version, kind, high, low, a, b, c, d]) = self.0.first_chunk::<HEADER_LEN>() else { return Ok(None) };
        let len = usize::from(u16::from_be_bytes([high, low]));
        // A HELLO may have any version from this one on, because each side announces its highest.
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
                // The match is padded to a multiple of 8, and followed by two bytes before the packet (§7.4.1).
                let frame = body.get(16 + match_len.next_multiple_of(8) + 2..)?.to_vec();
                let in_port = Match::in_port(body.get(20..16 + match_len)?)?;
                Self::PacketIn { cookie: u64_at(body, 8)?, in_port, total_len: u16_at(body, 4)?, frame }
            }
            kind::BARRIER_REQUEST => Self::BarrierRequest,
            kind::BARRIER_REPLY => Self::BarrierReply,
            other => Self::Other(other),
        })
    }

    /// Encodes the message with this transaction id. Returns `None` if the message is longer than its header can state.
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
            // Delete from every table.
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

/// Encodes the output action; packets to the controller are sent whole (§7.2.5).
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
