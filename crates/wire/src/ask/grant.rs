//! Requests for grants, and the answers to these requests (wire.md §8.14). They travel on the lines of [`super`], in
//! datagrams of the same form.

use super::{QUESTION_LEN, REPLY_LEN, Refusal, Reply, address, is_zero, octets};
use crate::seal::{Suites, Treatment};
use crate::{Carrier, Destination, GrantHeader, GrantKey};
use core::net::{Ipv4Addr, Ipv6Addr};
use core::str;

/// Maximum length of a receiver's name and a rule's label together, in bytes.
pub const NAMES_MAX: usize = REPLY_LEN - HEAD_LEN;
/// Maximum difference between the time in a request and the authority's clock, in seconds.
pub const TIME_MAX: u32 = 30;

/// The largest number for compression (wire.md §8.14.2).
const COMPRESS_MAX: u8 = 3;
/// The first byte of a reply that contains a grant. Numbers of refusals are smaller.
const GRANT: u8 = 128;
const CONSENTED: u8 = 1;
const QUESTION_HEAD_LEN: usize = 25;
const HEAD_LEN: usize = 8 + 16 + 16 + TERMS_LEN;
const TERMS_LEN: usize = 8 + 6 + 18;
/// Flags of the terms of a tunnel.
const PRESENT: u8 = 1;
const FORWARD: u8 = 2;

/// The question in a request for a grant: whether the authority allows the session to send to this destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrantQuestion {
    /// The destination. Its protocol is not 0.
    pub to: Destination,
    /// Whether the person has consented to this request.
    pub consented: bool,
    /// The time of the request by the authority's clock, as the client knows it, in Unix seconds.
    pub time: u32,
}

impl GrantQuestion {
    pub(super) const KIND: u8 = 2;

    /// Encodes the question for sealing. Returns `None` if the protocol is 0.
    pub fn encode(&self) -> Option<[u8; QUESTION_LEN]> {
        if self.to.protocol == 0 {
            return None;
        }
        let mut bytes = [0; QUESTION_LEN];
        bytes[0] = Self::KIND;
        bytes[1] = self.to.protocol;
        bytes[2..4].copy_from_slice(&self.to.port.to_be_bytes());
        bytes[4..8].copy_from_slice(&self.time.to_be_bytes());
        bytes[8..24].copy_from_slice(&octets(self.to.address));
        bytes[24] = if self.consented { CONSENTED } else { 0 };
        Some(bytes)
    }

    /// Parses the sealed part of a request. Returns `None` if it is not a valid question for a grant. Every question
    /// has exactly one encoding.
    pub fn decode(bytes: &[u8; QUESTION_LEN]) -> Option<Self> {
        let (head, padding) = bytes.split_first_chunk::<QUESTION_HEAD_LEN>()?;
        let [kind, protocol, p0, p1, t0, t1, t2, t3, octets @ .., flags] = *head;
        if kind != Self::KIND || protocol == 0 || flags & !CONSENTED != 0 || !is_zero(padding) {
            return None;
        }
        let to = Destination { address: address(octets), protocol, port: u16::from_be_bytes([p0, p1]) };
        Some(Self { to, consented: flags == CONSENTED, time: u32::from_be_bytes([t0, t1, t2, t3]) })
    }
}

/// A grant that the authority issues. Has no `Debug`, because it contains the grant's key.
#[derive(Clone)]
pub struct GrantReply<'a> {
    /// The time of the authority's clock, in Unix seconds.
    pub now: u32,
    /// The grant's header.
    pub header: GrantHeader,
    /// The grant's key.
    pub key: GrantKey,
    /// The carrier of the grant's tokens: [`Carrier::Tail`] or [`Carrier::Shim`].
    pub carrier: Carrier,
    /// The receiver's name.
    pub receiver: &'a str,
    /// The label of the rule that allows the grant.
    pub rule: &'a str,
    /// The terms of sealed tunnels; `None` if the grant's verifier has no tunnel.
    pub tunnel: Option<TunnelTerms>,
}

/// The rule's demands on a sealed tunnel, and the addresses at which the verifier accepts tunnels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TunnelTerms {
    /// The weakest treatment that the packets are allowed to have; `None` if they may travel outside a tunnel.
    pub treatment: Option<Treatment>,
    /// Whether packets are compressed: 0 if the rule leaves this to the sender, 1 never, 2 if it helps, 3 always.
    pub compress: u8,
    /// The suites that are allowed to seal the packets.
    pub suites: Suites,
    /// Whether the tunnel's keys have to come from a key exchange.
    pub forward_secrecy: bool,
    /// The age at which the tunnel's keys are renewed, in seconds.
    pub rekey: u32,
    /// The IPv4 address and UDP port at which the verifier accepts tunnels; `None` if it has none. The port is not 0.
    pub ipv4: Option<(Ipv4Addr, u16)>,
    /// The IPv6 address and UDP port at which the verifier accepts tunnels; `None` if it has none. The port is not 0.
    pub ipv6: Option<(Ipv6Addr, u16)>,
}

/// The content of an answer to a request for a grant: a grant, or a refusal.
#[derive(Clone)]
pub enum GrantAnswer<'a> {
    /// The authority issues the grant.
    Given(GrantReply<'a>),
    /// The authority refuses.
    Refused {
        /// Reason for the refusal.
        reason: Refusal,
        /// Reason for the refusal, as text for people. If a rule denies the request, a line feed and the rule's label
        /// follow.
        text: &'a str,
    },
}

impl GrantReply<'_> {
    /// Encodes the reply for sealing. Returns `None` if the names are too long, or if a value is invalid.
    pub fn encode(&self) -> Option<[u8; REPLY_LEN]> {
        let (receiver, rule) = (self.receiver.as_bytes(), self.rule.as_bytes());
        let mut bytes = [0; REPLY_LEN];
        let (head, names) = bytes.split_first_chunk_mut::<HEAD_LEN>()?;
        head[0] = GRANT;
        head[1] = number(self.carrier)?;
        (head[2], head[3]) = (u8::try_from(receiver.len()).ok()?, u8::try_from(rule.len()).ok()?);
        head[4..8].copy_from_slice(&self.now.to_be_bytes());
        head[8..24].copy_from_slice(&self.header.encode());
        head[24..40].copy_from_slice(self.key.bytes());
        if let Some(terms) = &self.tunnel {
            *head.last_chunk_mut()? = terms.encode()?;
        }
        let (here, rest) = names.split_at_mut_checked(receiver.len())?;
        here.copy_from_slice(receiver);
        rest.get_mut(..rule.len())?.copy_from_slice(rule);
        Some(bytes)
    }
}

impl<'a> GrantReply<'a> {
    fn decode(bytes: &'a [u8; REPLY_LEN]) -> Option<Self> {
        let (head, names) = bytes.split_first_chunk::<HEAD_LEN>()?;
        let ([_, carrier, receiver, rule, now @ ..], rest) = head.split_first_chunk::<8>()?;
        let (header, rest) = rest.split_first_chunk::<16>()?;
        let (key, terms) = rest.split_first_chunk::<16>()?;
        let (receiver, names) = names.split_at_checked((*receiver).into())?;
        let (rule, padding) = names.split_at_checked((*rule).into())?;
        let carrier = Carrier::from_number(*carrier)?;
        number(carrier)?;
        is_zero(padding).then_some(Self {
            now: u32::from_be_bytes(*now),
            header: GrantHeader::decode(header).ok()?,
            key: GrantKey::new(*key),
            carrier,
            receiver: str::from_utf8(receiver).ok()?,
            rule: str::from_utf8(rule).ok()?,
            tunnel: TunnelTerms::decode(terms.first_chunk()?)?,
        })
    }
}

impl TunnelTerms {
    fn encode(&self) -> Option<[u8; TERMS_LEN]> {
        let mut bytes = [0; TERMS_LEN];
        let has_port_0 = matches!(self.ipv4, Some((_, 0))) || matches!(self.ipv6, Some((_, 0)));
        if self.compress > COMPRESS_MAX || has_port_0 {
            return None;
        }
        bytes[0] = PRESENT | if self.forward_secrecy { FORWARD } else { 0 };
        bytes[1] = self.treatment.map_or(0, |treatment| treatment as u8);
        (bytes[2], bytes[3]) = (self.compress, self.suites.0);
        bytes[4..8].copy_from_slice(&self.rekey.to_be_bytes());
        if let Some((address, port)) = self.ipv4 {
            bytes[8..12].copy_from_slice(&address.octets());
            bytes[12..14].copy_from_slice(&port.to_be_bytes());
        }
        if let Some((address, port)) = self.ipv6 {
            bytes[14..30].copy_from_slice(&address.octets());
            bytes[30..].copy_from_slice(&port.to_be_bytes());
        }
        Some(bytes)
    }

    /// Parses the terms. Returns `None` if they are malformed, and `Some(None)` if there are none.
    fn decode(bytes: &[u8; TERMS_LEN]) -> Option<Option<Self>> {
        let [flags, treatment, compress, suites, r0, r1, r2, r3, ends @ ..] = bytes;
        if *flags == 0 {
            return is_zero(bytes).then_some(None);
        }
        if flags & PRESENT == 0 || flags & !(PRESENT | FORWARD) != 0 || *compress > COMPRESS_MAX {
            return None;
        }
        let treatment = match *treatment {
            0 => None,
            number => Some(Treatment::ALL.into_iter().find(|treatment| *treatment as u8 == number)?),
        };
        let ([ipv4 @ .., p0, p1], ends) = ends.split_first_chunk::<6>()?;
        let [ipv6 @ .., q0, q1] = ends.first_chunk::<18>()?;
        let [port4, port6] = [[*p0, *p1], [*q0, *q1]].map(u16::from_be_bytes);
        if port4 == 0 && !is_zero(ipv4) || port6 == 0 && !is_zero(ipv6) {
            return None;
        }
        Some(Some(Self {
            treatment,
            compress: *compress,
            suites: Suites(*suites),
            forward_secrecy: flags & FORWARD != 0,
            rekey: u32::from_be_bytes([*r0, *r1, *r2, *r3]),
            ipv4: (port4 != 0).then(|| (Ipv4Addr::from(*ipv4), port4)),
            ipv6: (port6 != 0).then(|| (Ipv6Addr::from(*ipv6), port6)),
        }))
    }
}

impl<'a> GrantAnswer<'a> {
    /// Encodes the answer for sealing. Returns `None` if the names or the text are too long, or if a value is invalid.
    pub fn encode(&self) -> Option<[u8; REPLY_LEN]> {
        match self {
            Self::Given(reply) => reply.encode(),
            Self::Refused { reason, text } => Reply::Refused { reason: *reason, text }.encode(),
        }
    }

    /// Parses the sealed part of an answer to a request for a grant. Returns `None` if it is not a valid answer. Every
    /// answer has exactly one encoding.
    pub fn decode(bytes: &'a [u8; REPLY_LEN]) -> Option<Self> {
        if bytes[0] == GRANT {
            return GrantReply::decode(bytes).map(Self::Given);
        }
        match Reply::decode(bytes)? {
            Reply::Refused { reason, text } => Some(Self::Refused { reason, text }),
            Reply::Given(_) => None,
        }
    }
}

/// Returns the number of a carrier; `None` for a carrier that the authority does not name.
fn number(carrier: Carrier) -> Option<u8> {
    matches!(carrier, Carrier::Tail | Carrier::Shim).then_some(carrier as u8)
}
