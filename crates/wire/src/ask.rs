//! Requests for path segments in one datagram, answered in one (wire.md §8.13). This module does not decide whether a
//! request is new or how to answer it.
//!
//! Every request has the same length, and every answer is shorter. An attacker who sends requests from a forged address
//! therefore can't make the authority send more bytes to that address than the attacker sends.

use crate::segment::{PROOFS_MAX, Vni};
use core::net::{IpAddr, Ipv6Addr};
use core::str;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use zeroize::{Zeroize, ZeroizeOnDrop};

/// Bytes of a request.
pub const REQUEST_LEN: usize = 256;
/// Bytes of an answer.
pub const ANSWER_LEN: usize = 252;
const _: () = assert!(ANSWER_LEN <= REQUEST_LEN, "whoever asks in another's name sends that one no more than it sent");
/// Bytes of a question: the sealed part of a request.
pub const QUESTION_LEN: usize = REQUEST_LEN - REQUEST_HEAD_LEN - TAG_LEN;
/// Bytes of a reply: the sealed part of an answer.
pub const REPLY_LEN: usize = ANSWER_LEN - ANSWER_HEAD_LEN - TAG_LEN;
/// Maximum length of a virtual network's name, in bytes.
pub const NAME_MAX: usize = 64;
/// Maximum length of an option with a segment: five proofs, issued by an authority with an IPv6 address.
pub const OPTION_MAX: usize = 4 + 16 + 16 + 16 * PROOFS_MAX as usize;
/// Maximum length of a refusal's text, in bytes.
pub const TEXT_MAX: usize = REPLY_LEN - 2;

const REQUEST_HEAD_LEN: usize = 4 + 8 + 8;
const ANSWER_HEAD_LEN: usize = 4 + 8;
const TAG_LEN: usize = 16;
const REQUEST_MAGIC: [u8; 4] = *b"VSq\x01";
const ANSWER_MAGIC: [u8; 4] = *b"VSa\x01";
const GIVEN_HEAD_LEN: usize = 28;
const _: () =
    assert!(GIVEN_HEAD_LEN + OPTION_MAX + 16 * PROOFS_MAX as usize == REPLY_LEN, "there is room for the longest");

/// An encoded request.
pub type Request = [u8; REQUEST_LEN];
/// An encoded answer.
pub type Answer = [u8; ANSWER_LEN];

/// The number of a line: random, reveals nothing about its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LineNumber(pub u64);

/// The key of a line.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct LineKey([u8; 32]);

/// Direction of a sealed datagram, part of its nonce.
#[derive(Clone, Copy)]
enum Way {
    Request = 0,
    Answer = 1,
}

impl LineKey {
    /// Wraps 32 random bytes.
    pub const fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Returns all 32 bytes, to be sent to the owner of the line.
    pub const fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Seals a request. Every request sealed with this key must have a different counter. Returns `None` if the library
    /// fails.
    pub fn seal_request(&self, line: LineNumber, counter: u64, question: &[u8; QUESTION_LEN]) -> Option<Request> {
        let mut request = [0; REQUEST_LEN];
        let (head, sealed) = request.split_first_chunk_mut::<REQUEST_HEAD_LEN>()?;
        *head = request_head(line, counter);
        self.seal(Way::Request, counter, head, question, sealed)?;
        Some(request)
    }

    /// Opens a request in place. `envelope` must be the result of [`envelope`] for it, and this must be the key of the
    /// line that it names. Returns `None` if the request was not sealed with this key.
    pub fn open_request<'a>(&self, envelope: Envelope, request: &'a mut [u8]) -> Option<&'a [u8; QUESTION_LEN]> {
        let (head, sealed) = request.split_first_chunk_mut::<REQUEST_HEAD_LEN>()?;
        self.open(Way::Request, envelope.counter, head, sealed)?.first_chunk()
    }

    /// Seals the answer to the request with this counter; a request must get only one answer. Returns `None` if the
    /// library fails.
    pub fn seal_answer(&self, counter: u64, reply: &[u8; REPLY_LEN]) -> Option<Answer> {
        let mut answer = [0; ANSWER_LEN];
        let (head, sealed) = answer.split_first_chunk_mut::<ANSWER_HEAD_LEN>()?;
        *head = answer_head(counter);
        self.seal(Way::Answer, counter, head, reply, sealed)?;
        Some(answer)
    }

    /// Opens an answer in place. Returns the counter of the request that it answers, and the reply, or `None` if the
    /// datagram is not an answer that was sealed with this key.
    pub fn open_answer<'a>(&self, answer: &'a mut [u8]) -> Option<(u64, &'a [u8; REPLY_LEN])> {
        if answer.len() != ANSWER_LEN {
            return None;
        }
        let (head, sealed) = answer.split_first_chunk_mut::<ANSWER_HEAD_LEN>()?;
        let counter = u64::from_be_bytes(*head.last_chunk()?);
        if *head != answer_head(counter) {
            return None;
        }
        let reply = self.open(Way::Answer, counter, head, sealed)?;
        Some((counter, reply.first_chunk()?))
    }

    fn seal(&self, way: Way, counter: u64, head: &[u8], plain: &[u8], sealed: &mut [u8]) -> Option<()> {
        let (text, room) = sealed.split_at_mut_checked(plain.len())?;
        text.copy_from_slice(plain);
        let tag = self.ready()?.seal_in_place_separate_tag(nonce(way, counter), Aad::from(head), text).ok()?;
        room.copy_from_slice(tag.as_ref().get(..room.len())?);
        Some(())
    }

    fn open<'a>(&self, way: Way, counter: u64, head: &[u8], sealed: &'a mut [u8]) -> Option<&'a mut [u8]> {
        self.ready()?.open_in_place(nonce(way, counter), Aad::from(head), sealed).ok()
    }

    fn ready(&self) -> Option<LessSafeKey> {
        UnboundKey::new(&CHACHA20_POLY1305, &self.0).ok().map(LessSafeKey::new)
    }
}

fn nonce(way: Way, counter: u64) -> Nonce {
    let [a, b, c, d, e, f, g, h] = counter.to_be_bytes();
    Nonce::assume_unique_for_key([0, 0, 0, way as u8, a, b, c, d, e, f, g, h])
}

fn request_head(line: LineNumber, counter: u64) -> [u8; REQUEST_HEAD_LEN] {
    let mut head = [0; REQUEST_HEAD_LEN];
    head[..4].copy_from_slice(&REQUEST_MAGIC);
    head[4..12].copy_from_slice(&line.0.to_be_bytes());
    head[12..].copy_from_slice(&counter.to_be_bytes());
    head
}

fn answer_head(counter: u64) -> [u8; ANSWER_HEAD_LEN] {
    let mut head = [0; ANSWER_HEAD_LEN];
    head[..4].copy_from_slice(&ANSWER_MAGIC);
    head[4..].copy_from_slice(&counter.to_be_bytes());
    head
}

/// Unsealed fields of a request, readable without the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// The line that the request claims to belong to.
    pub line: LineNumber,
    /// The counter that the request claims to have.
    pub counter: u64,
}

/// Parses the unsealed fields of a request; returns `None` if the datagram is not a request.
pub fn envelope(datagram: &[u8]) -> Option<Envelope> {
    let (head, sealed) = datagram.split_first_chunk::<REQUEST_HEAD_LEN>()?;
    let (magic, numbers) = head.split_first_chunk::<4>()?;
    let (line, counter) = numbers.split_first_chunk::<8>()?;
    let is_one = *magic == REQUEST_MAGIC && sealed.len() == QUESTION_LEN + TAG_LEN;
    let line = LineNumber(u64::from_be_bytes(*line));
    let envelope = Envelope { line, counter: u64::from_be_bytes(*counter.first_chunk()?) };
    is_one.then_some(envelope)
}

/// The question in a request: whether this sender of a virtual network may send to this receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question<'a> {
    /// The virtual network's name: 1 to [`NAME_MAX`] printable ASCII characters.
    pub network: &'a str,
    /// The sender's address in the virtual network.
    pub sender: IpAddr,
    /// The endpoint that the sender's packets come from.
    pub sending: IpAddr,
    /// The receiver's address.
    pub receiver: IpAddr,
    /// The protocol, which is not 0.
    pub protocol: u8,
    /// The receiver's port.
    pub port: u16,
    /// The port that the sender sends from.
    pub sender_port: u16,
}

impl<'a> Question<'a> {
    const KIND: u8 = 1;
    const HEAD_LEN: usize = 56;

    /// Encodes the question for sealing; returns `None` if the name or the protocol is invalid.
    pub fn encode(&self) -> Option<[u8; QUESTION_LEN]> {
        let mut bytes = [0; QUESTION_LEN];
        if !name_is_valid(self.network.as_bytes()) || self.protocol == 0 {
            return None;
        }
        let (head, rest) = bytes.split_at_mut(Self::HEAD_LEN);
        head[0] = Self::KIND;
        head[1] = self.protocol;
        head[2..4].copy_from_slice(&self.port.to_be_bytes());
        head[4..6].copy_from_slice(&self.sender_port.to_be_bytes());
        head[6] = self.network.len() as u8;
        let (_, addresses) = head.split_at_mut(8);
        for (room, address) in addresses.as_chunks_mut().0.iter_mut().zip([self.sender, self.sending, self.receiver]) {
            *room = octets(address);
        }
        rest.get_mut(..self.network.len())?.copy_from_slice(self.network.as_bytes());
        Some(bytes)
    }

    /// Parses the sealed part of a request. Every question has exactly one encoding.
    pub fn decode(bytes: &'a [u8; QUESTION_LEN]) -> Option<Self> {
        let (head, rest) = bytes.split_at(Self::HEAD_LEN);
        let ([kind, protocol, p0, p1, s0, s1, length, 0], addresses) = head.split_first_chunk()? else { return None };
        let [sender, sending, receiver] = *addresses.as_chunks().0.first_chunk()?;
        let (name, padding) = rest.split_at_checked(usize::from(*length))?;
        if *kind != Self::KIND || *protocol == 0 || !name_is_valid(name) || !is_zero(padding) {
            return None;
        }
        Some(Self {
            network: str::from_utf8(name).ok()?,
            sender: address(sender),
            sending: address(sending),
            receiver: address(receiver),
            protocol: *protocol,
            port: u16::from_be_bytes([*p0, *p1]),
            sender_port: u16::from_be_bytes([*s0, *s1]),
        })
    }
}

/// The reply in an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply<'a> {
    /// The authority issues the segment.
    Given(GivenReply<'a>),
    /// The authority refuses.
    Refused {
        /// Reason for the refusal.
        reason: Refusal,
        /// Reason for the refusal, as text for people.
        text: &'a str,
    },
}

/// A segment that the authority issues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GivenReply<'a> {
    /// The virtual network.
    pub vni: Vni,
    /// The authority's clock, Unix seconds.
    pub now: u32,
    /// The endpoint that packets have to be sent to.
    pub receiving: IpAddr,
    /// The Geneve option with the segment, starting at its class: whole words, at most [`OPTION_MAX`] bytes.
    pub option: &'a [u8],
    /// The hops of a fixed path, in the order of the path.
    pub hops: &'a [[u8; 16]],
}

/// Reason why the authority issues no segment: a numbered, append-only list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Refusal {
    /// A rule denies it.
    Denied = 1,
    /// No rule allows it.
    NoRule = 2,
    /// The policy has no receiver at this address with this service.
    NoReceiver = 3,
    /// The segment is impossible, regardless of the policy.
    NoSegment = 4,
    /// Too many of the segments that were issued have not expired yet, or too many requests arrive at once.
    Busy = 5,
    /// The session ended.
    NotLoggedIn = 6,
    /// The authority failed internally.
    Internal = 7,
}

impl Refusal {
    /// All refusals, in the order of their numbers.
    pub const ALL: [Self; 7] =
        [Self::Denied, Self::NoRule, Self::NoReceiver, Self::NoSegment, Self::Busy, Self::NotLoggedIn, Self::Internal];

    /// Returns the refusal's name. It is also the problem type in the answer to the same question over HTTPS.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Denied => "denied",
            Self::NoRule => "no_rule",
            Self::NoReceiver => "no_receiver",
            Self::NoSegment => "no_segment",
            Self::Busy => "busy",
            Self::NotLoggedIn => "not_logged_in",
            Self::Internal => "internal",
        }
    }
}

impl<'a> Reply<'a> {
    /// Encodes the reply for sealing; returns `None` if the option, the hops or the text are too long.
    pub fn encode(&self) -> Option<[u8; REPLY_LEN]> {
        let mut bytes = [0; REPLY_LEN];
        match self {
            Self::Given(GivenReply { vni, now, receiving, option, hops }) => {
                let (words, none) = option.as_chunks::<4>();
                if !none.is_empty() || option.len() > OPTION_MAX || hops.len() > usize::from(PROOFS_MAX) {
                    return None;
                }
                let (head, rest) = bytes.split_at_mut(GIVEN_HEAD_LEN);
                head[1..4].copy_from_slice(&vni.bytes());
                head[4..8].copy_from_slice(&now.to_be_bytes());
                head[8..24].copy_from_slice(&octets(*receiving));
                (head[24], head[25]) = (words.len() as u8, hops.len() as u8);
                let (here, rest) = rest.split_at_mut_checked(option.len())?;
                here.copy_from_slice(option);
                rest.get_mut(..hops.len() * 16)?.copy_from_slice(hops.as_flattened());
            }
            Self::Refused { reason, text } => {
                let room = bytes.get_mut(2..2 + text.len())?;
                room.copy_from_slice(text.as_bytes());
                (bytes[0], bytes[1]) = (*reason as u8, text.len() as u8);
            }
        }
        Some(bytes)
    }

    /// Parses the sealed part of an answer. Every reply has exactly one encoding.
    pub fn decode(bytes: &'a [u8; REPLY_LEN]) -> Option<Self> {
        let [kind, length, rest @ ..] = bytes;
        if *kind != 0 {
            let reason = Refusal::ALL.into_iter().find(|reason| *reason as u8 == *kind)?;
            let (text, padding) = rest.split_at_checked((*length).into())?;
            let text = str::from_utf8(text).ok()?;
            return is_zero(padding).then_some(Self::Refused { reason, text });
        }
        let (head, rest) = bytes.split_first_chunk::<GIVEN_HEAD_LEN>()?;
        let ([_, v0, v1, v2], now) = head.split_first_chunk::<4>()?;
        let (now, receiving) = now.split_first_chunk::<4>()?;
        let (receiving, [words, hops, 0, 0]) = receiving.split_first_chunk::<16>()? else { return None };
        let (option, rest) = rest.split_at_checked(usize::from(*words) * 4)?;
        let (hops, padding) = rest.split_at_checked(usize::from(*hops) * 16)?;
        if option.len() > OPTION_MAX || hops.len() > 16 * usize::from(PROOFS_MAX) || !is_zero(padding) {
            return None;
        }
        Some(Self::Given(GivenReply {
            vni: Vni::from([*v0, *v1, *v2]),
            now: u32::from_be_bytes(*now),
            receiving: address(*receiving),
            option,
            hops: hops.as_chunks().0,
        }))
    }
}

fn name_is_valid(name: &[u8]) -> bool {
    (1..=NAME_MAX).contains(&name.len()) && name.iter().all(u8::is_ascii_graphic)
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

fn address(octets: [u8; 16]) -> IpAddr {
    Ipv6Addr::from(octets).to_canonical()
}
