//! Requests for path segments and for grants, and the answers to these requests (wire.md §8.13, §8.14). Each request
//! and each answer is one datagram. This module decides neither whether a request is new nor how to answer it.
//!
//! Every request has the same length, and every answer is shorter. An attacker who sends requests from a forged address
//! therefore can't make the authority send more bytes to that address than the attacker sends.

pub mod grant;

use crate::segment::{PROOFS_MAX, Vni};
use core::net::{IpAddr, Ipv6Addr};
use core::str;
use grant::GrantQuestion;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use zeroize::{Zeroize, ZeroizeOnDrop};

/// Length of a request to the authority, in bytes.
pub const REQUEST_LEN: usize = 256;
/// Length of the authority's answer to a request, in bytes.
pub const ANSWER_LEN: usize = 252;
const _: () = assert!(ANSWER_LEN <= REQUEST_LEN, "an answer to a forged source address is no longer than the request");
/// Length of a question, the sealed part of a request, in bytes.
pub const QUESTION_LEN: usize = REQUEST_LEN - REQUEST_HEAD_LEN - TAG_LEN;
/// Length of a reply, the sealed part of an answer, in bytes.
pub const REPLY_LEN: usize = ANSWER_LEN - ANSWER_HEAD_LEN - TAG_LEN;
/// Maximum length of a virtual network's name, in bytes.
pub const NAME_MAX: usize = 64;
/// Maximum length of a Geneve option with a segment, in bytes. The longest option has five proofs, and comes from an
/// authority with an IPv6 address.
pub const OPTION_MAX: usize = 4 + 16 + 16 + 16 * PROOFS_MAX as usize;
/// Maximum total length of the Geneve option, the hops and the return segment in one reply, in bytes.
pub const GIVEN_MAX: usize = REPLY_LEN - GIVEN_HEAD_LEN;
/// The largest number of a path (wire.md §8.16). The first path has the number 0.
pub const PATH_MAX: u8 = 3;
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
/// An encoded answer to a request.
pub type Answer = [u8; ANSWER_LEN];

/// The number that identifies a session's line for requests by UDP. It is random and reveals nothing about the line's
/// owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LineNumber(pub u64);

/// The key of a line.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct LineKey([u8; 32]);

/// Direction of a sealed datagram. It is part of the nonce.
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

    /// Seals a request. The caller must never use a counter twice with the same key. Returns `None` if the
    /// cryptographic library fails.
    pub fn seal_request(&self, line: LineNumber, counter: u64, question: &[u8; QUESTION_LEN]) -> Option<Request> {
        let mut request = [0; REQUEST_LEN];
        let (head, sealed) = request.split_first_chunk_mut::<REQUEST_HEAD_LEN>()?;
        *head = request_head(line, counter);
        self.seal(Way::Request, counter, head, question, sealed)?;
        Some(request)
    }

    /// Opens a request in place. `envelope` must be the result of [`envelope`] for this request, and `self` the key of
    /// the line that the envelope names. Returns `None` if the request was not sealed with this key.
    pub fn open_request<'a>(&self, envelope: Envelope, request: &'a mut [u8]) -> Option<&'a [u8; QUESTION_LEN]> {
        let (head, sealed) = request.split_first_chunk_mut::<REQUEST_HEAD_LEN>()?;
        self.open(Way::Request, envelope.counter, head, sealed)?.first_chunk()
    }

    /// Seals the answer to the request with this counter. The caller must never seal two answers to the same request.
    /// Returns `None` if the cryptographic library fails.
    pub fn seal_answer(&self, counter: u64, reply: &[u8; REPLY_LEN]) -> Option<Answer> {
        let mut answer = [0; ANSWER_LEN];
        let (head, sealed) = answer.split_first_chunk_mut::<ANSWER_HEAD_LEN>()?;
        *head = answer_head(counter);
        self.seal(Way::Answer, counter, head, reply, sealed)?;
        Some(answer)
    }

    /// Opens an answer in place. Returns the counter of the request and the reply. Returns `None` if the datagram is
    /// not an answer that was sealed with this key.
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

/// The unsealed fields of a request, which can be read without the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// The line that the request names.
    pub line: LineNumber,
    /// The counter that the request claims to have.
    pub counter: u64,
}

/// Parses the unsealed fields of a request. Returns `None` if `datagram` is not a request.
pub fn envelope(datagram: &[u8]) -> Option<Envelope> {
    let (head, sealed) = datagram.split_first_chunk::<REQUEST_HEAD_LEN>()?;
    let (magic, numbers) = head.split_first_chunk::<4>()?;
    let (line, counter) = numbers.split_first_chunk::<8>()?;
    let is_one = *magic == REQUEST_MAGIC && sealed.len() == QUESTION_LEN + TAG_LEN;
    let line = LineNumber(u64::from_be_bytes(*line));
    let envelope = Envelope { line, counter: u64::from_be_bytes(*counter.first_chunk()?) };
    is_one.then_some(envelope)
}

/// The content of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnyQuestion<'a> {
    /// The client requests a segment.
    Segment(Question<'a>),
    /// The client requests a grant.
    Grant(GrantQuestion),
}

impl<'a> AnyQuestion<'a> {
    /// Parses the sealed part of a request. Returns `None` if it is not a valid question. Every question has exactly
    /// one encoding.
    pub fn decode(bytes: &'a [u8; QUESTION_LEN]) -> Option<Self> {
        if bytes[0] == GrantQuestion::KIND {
            return GrantQuestion::decode(bytes).map(Self::Grant);
        }
        Question::decode(bytes).map(Self::Segment)
    }
}

/// The question in a request for a segment: whether the authority allows this sender in a virtual network to send to
/// this receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question<'a> {
    /// The virtual network's name: 1 to [`NAME_MAX`] printable ASCII characters.
    pub network: &'a str,
    /// The sender's address in the virtual network.
    pub sender: IpAddr,
    /// The endpoint from which the sender's packets come.
    pub sending: IpAddr,
    /// The receiver's address in the virtual network.
    pub receiver: IpAddr,
    /// The number of the IP protocol, which is not 0.
    pub protocol: u8,
    /// The port of the service at the receiver.
    pub port: u16,
    /// The port from which the sender sends.
    pub sender_port: u16,
    /// Whether the authority should add the return segment to its answer. The client then passes the return segment on
    /// to the receiving endpoint (wire.md §8.15). If the flag is set, only an authority that announces that it knows
    /// the flag answers.
    pub answers: bool,
    /// The number of the path that the segment has to take, at most [`PATH_MAX`] (wire.md §8.16). `None` if the client
    /// does not know that there can be several paths. Only an authority that says that it knows paths answers a
    /// request with a number.
    pub path: Option<u8>,
}

impl<'a> Question<'a> {
    const KIND: u8 = 1;
    const HEAD_LEN: usize = 56;
    const ANSWERS: u8 = 1;
    const PATHS: u8 = 2;
    /// Position of the number of the path in the flags.
    const PATH_SHIFT: u8 = 2;

    /// Encodes the question for sealing. Returns `None` if the name, the protocol or the number of the path is invalid.
    pub fn encode(&self) -> Option<[u8; QUESTION_LEN]> {
        let mut bytes = [0; QUESTION_LEN];
        if !name_is_valid(self.network.as_bytes()) || self.protocol == 0 || self.path > Some(PATH_MAX) {
            return None;
        }
        let (head, rest) = bytes.split_at_mut(Self::HEAD_LEN);
        head[0] = Self::KIND;
        head[1] = self.protocol;
        head[2..4].copy_from_slice(&self.port.to_be_bytes());
        head[4..6].copy_from_slice(&self.sender_port.to_be_bytes());
        head[6] = self.network.len() as u8;
        head[7] = u8::from(self.answers) | self.path.map_or(0, |path| Self::PATHS | path << Self::PATH_SHIFT);
        let (_, addresses) = head.split_at_mut(8);
        for (room, address) in addresses.as_chunks_mut().0.iter_mut().zip([self.sender, self.sending, self.receiver]) {
            *room = octets(address);
        }
        rest.get_mut(..self.network.len())?.copy_from_slice(self.network.as_bytes());
        Some(bytes)
    }

    /// Parses the sealed part of a request. Returns `None` if it is not a valid question. Every question has exactly
    /// one encoding.
    pub fn decode(bytes: &'a [u8; QUESTION_LEN]) -> Option<Self> {
        let (head, rest) = bytes.split_at(Self::HEAD_LEN);
        let ([kind, protocol, p0, p1, s0, s1, length, flags], addresses) = head.split_first_chunk()?;
        let [sender, sending, receiver] = *addresses.as_chunks().0.first_chunk()?;
        let (name, padding) = rest.split_at_checked(usize::from(*length))?;
        let (path, knows_paths) = (*flags >> Self::PATH_SHIFT, *flags & Self::PATHS != 0);
        let flags_are_valid = path <= PATH_MAX && (knows_paths || path == 0);
        if *kind != Self::KIND || *protocol == 0 || !flags_are_valid || !name_is_valid(name) || !is_zero(padding) {
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
            answers: *flags & Self::ANSWERS != 0,
            path: knows_paths.then_some(path),
        })
    }
}

/// The content of an answer to a request for a segment: a segment, or a refusal.
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
    /// The number of the virtual network.
    pub vni: Vni,
    /// The time of the authority's clock, Unix seconds.
    pub now: u32,
    /// The endpoint to which packets have to be sent.
    pub receiving: IpAddr,
    /// The bytes of the Geneve option with the segment, from the option's class on: a multiple of 4 bytes, at most
    /// [`OPTION_MAX`].
    pub option: &'a [u8],
    /// The hops, in the order of the path, if the path is fixed; otherwise empty.
    pub hops: &'a [[u8; 16]],
    /// The return segment, in the form in which the client passes it on (wire.md §8.15.1): a multiple of 4 bytes. Empty
    /// if the answer contains none.
    pub answers: &'a [u8],
    /// Number of other paths that the segment could take, at most [`PATH_MAX`]. 0 if the client does not know paths.
    pub others: u8,
}

/// Reason why the authority issues no segment or no grant. The list is numbered, and new reasons are only added at its
/// end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Refusal {
    /// A rule denies the segment.
    Denied = 1,
    /// No rule allows the segment.
    NoRule = 2,
    /// The policy has no receiver at this address with this service.
    NoReceiver = 3,
    /// No segment is possible for this sender and receiver, whatever the policy says.
    NoSegment = 4,
    /// Too many issued segments have not expired yet, or too many requests are in progress.
    Busy = 5,
    /// The session ended.
    NotLoggedIn = 6,
    /// The authority failed internally.
    Internal = 7,
    /// The person withholds their identity from the destination.
    Withheld = 8,
    /// The policy allows the grant, but no grant can be issued.
    CantIssue = 9,
    /// The session or its account has too many grants.
    TooMany = 10,
    /// The authority has no contact with the majority of its cluster.
    NoMajority = 11,
    /// The request came from an address other than the one from which the session got the line.
    OtherAddress = 12,
    /// The time in the request is not the present time.
    Stale = 13,
    /// The grant does not fit into an answer, or the session has to request it over HTTPS for another reason.
    OverHttps = 14,
}

impl Refusal {
    /// All refusals, in the order of their numbers.
    pub const ALL: [Self; 14] = [
        Self::Denied,
        Self::NoRule,
        Self::NoReceiver,
        Self::NoSegment,
        Self::Busy,
        Self::NotLoggedIn,
        Self::Internal,
        Self::Withheld,
        Self::CantIssue,
        Self::TooMany,
        Self::NoMajority,
        Self::OtherAddress,
        Self::Stale,
        Self::OverHttps,
    ];

    /// Returns the refusal's name. Over HTTPS, the answer to the same question has this name as its problem type. The
    /// last three refusals occur only in answers by UDP.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Denied => "denied",
            Self::NoRule => "no_rule",
            Self::NoReceiver => "no_receiver",
            Self::NoSegment => "no_segment",
            Self::Busy => "busy",
            Self::NotLoggedIn => "not_logged_in",
            Self::Internal => "internal",
            Self::Withheld => "withheld",
            Self::CantIssue => "cant_issue",
            Self::TooMany => "too_many",
            Self::NoMajority => "no_majority",
            Self::OtherAddress => "other_address",
            Self::Stale => "stale",
            Self::OverHttps => "over_https",
        }
    }
}

impl<'a> Reply<'a> {
    /// Encodes the reply for sealing. Returns `None` if the option, the hops or the text are too long, if there is no
    /// room for the return segment, or if there are too many other paths. Also returns `None` if the length of the
    /// option or of the return segment is not a multiple of 4 bytes.
    pub fn encode(&self) -> Option<[u8; REPLY_LEN]> {
        let mut bytes = [0; REPLY_LEN];
        match self {
            Self::Given(GivenReply { vni, now, receiving, option, hops, answers, others }) => {
                let (words, none) = option.as_chunks::<4>();
                let (answer_words, cut) = answers.as_chunks::<4>();
                if !none.is_empty()
                    || !cut.is_empty()
                    || option.len() > OPTION_MAX
                    || hops.len() > usize::from(PROOFS_MAX)
                    || *others > PATH_MAX
                {
                    return None;
                }
                let (head, rest) = bytes.split_at_mut(GIVEN_HEAD_LEN);
                head[1..4].copy_from_slice(&vni.bytes());
                head[4..8].copy_from_slice(&now.to_be_bytes());
                head[8..24].copy_from_slice(&octets(*receiving));
                (head[24], head[25]) = (words.len() as u8, hops.len() as u8);
                (head[26], head[27]) = (u8::try_from(answer_words.len()).ok()?, *others);
                let (here, rest) = rest.split_at_mut_checked(option.len())?;
                here.copy_from_slice(option);
                let (here, rest) = rest.split_at_mut_checked(hops.len() * 16)?;
                here.copy_from_slice(hops.as_flattened());
                rest.get_mut(..answers.len())?.copy_from_slice(answers);
            }
            Self::Refused { reason, text } => {
                let room = bytes.get_mut(2..2 + text.len())?;
                room.copy_from_slice(text.as_bytes());
                (bytes[0], bytes[1]) = (*reason as u8, text.len() as u8);
            }
        }
        Some(bytes)
    }

    /// Parses the sealed part of an answer. Returns `None` if it is not a valid reply. Every reply has exactly one
    /// encoding.
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
        let (receiving, [words, hops, answers, others @ 0..=PATH_MAX]) = receiving.split_first_chunk::<16>()? else {
            return None;
        };
        let (option, rest) = rest.split_at_checked(usize::from(*words) * 4)?;
        let (hops, rest) = rest.split_at_checked(usize::from(*hops) * 16)?;
        let (answers, padding) = rest.split_at_checked(usize::from(*answers) * 4)?;
        if option.len() > OPTION_MAX || hops.len() > 16 * usize::from(PROOFS_MAX) || !is_zero(padding) {
            return None;
        }
        Some(Self::Given(GivenReply {
            vni: Vni::from([*v0, *v1, *v2]),
            now: u32::from_be_bytes(*now),
            receiving: address(*receiving),
            option,
            hops: hops.as_chunks().0,
            answers,
            others: *others,
        }))
    }
}

fn name_is_valid(name: &[u8]) -> bool {
    // Without an early end, the compiler looks at many bytes at once. The same holds for `is_zero`.
    (1..=NAME_MAX).contains(&name.len()) && name.iter().fold(true, |valid, byte| valid & byte.is_ascii_graphic())
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().fold(0, |bits, byte| bits | byte) == 0
}

/// Returns an address as 16 bytes; an IPv4 address is mapped to IPv6.
pub(crate) fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

fn address(octets: [u8; 16]) -> IpAddr {
    Ipv6Addr::from(octets).to_canonical()
}
