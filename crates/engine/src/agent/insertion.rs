//! The agent's decision about an outgoing packet (wire.md §4.1, §4.2), as a function of the packet, the agent's tables
//! and the time.
//!
//! The kernel program (`bpf/agent.bpf.c`) decides in the same way; the case table and the differential fuzzer of
//! `datapath` keep the two consistent.

use super::datagrams;
use crate::model::Secret;
use crate::model::protected::Protected;
use ipnet::IpNet;
use std::collections::BTreeMap;
use std::net::IpAddr;
use wire::map::{Conversation, FlowKey, GrantSlot, Services};
use wire::packet::{Form, Fragment, Packet, TCP, UDP};
use wire::shim::{self, Content, SHIM_LEN};
use wire::tail::{self, BLOCK_LEN, FAST_OPEN_MAGIC, MAGIC, STREAM_MAGIC};
use wire::{Carrier, Destination, Handle, LsToken, Token, ls};

/// Longest time, in seconds, for which a verifier keeps a UDP flow after its last datagram. For this time, no other
/// subject is allowed to use the flow's ports.
pub const UDP_OWNED: u32 = 90;
const ETHERNET_LEN: usize = 14;
const IPV4_LEN: usize = 20;

/// Packet size, in bytes, that every IPv6 path can carry (RFC 8200), and in practice every IPv4 path. If a token would
/// make a datagram longer than this, the agent first sends the token in a separate datagram.
pub const SAFE_MTU: usize = 1280;

/// Outcome of the decision about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The packet is not a first packet to a protected destination.
    Other,
    /// The packet is a first packet and is sent without identity, because nobody is logged in or the person denies
    /// consent.
    Plain,
    /// A token was put into the packet.
    Token,
    /// A datagram that contains only a token is sent before the packet.
    Ahead(Alone),
    /// The datagram's flow needs no token now.
    Conversation,
    /// The packet would use a flow that belongs to another subject, and is dropped.
    Rider,
    /// The packet is queued until its grant arrives.
    Queued,
    /// The packet needs a token that can't be put into it, and is dropped.
    Failed,
}

/// Content of the datagram that contains only a token and is sent before a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alone {
    /// A block as the payload.
    Block([u8; BLOCK_LEN]),
    /// An empty payload, in a shim with this content.
    Shim(Content),
}

/// Record of the tokens made from an entry of the grant map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    /// When a token was last made from the entry, in Unix seconds by the authority's clock; 0 if never.
    pub last: u32,
    /// Number of nonces of the entry's pair that were used when the last token was made.
    pub spent: u32,
}

/// An entry of the grant map: how the agent treats first packets to one destination.
#[derive(Clone)]
pub struct Grant {
    /// The time after which the agent no longer uses the entry, in Unix seconds by this machine's clock.
    pub until: u32,
    /// Offset from this machine's clock to the authority's, in seconds.
    pub skew: i32,
    /// Secret from which tokens are made; `None` to send packets without identity.
    pub secret: Option<Secret>,
    /// Carrier of the tokens that are made from the secret.
    pub carrier: Carrier,
}

impl Grant {
    /// Returns the handle of the pair, if the grant is a pair.
    pub fn pair(&self) -> Option<Handle> {
        match &self.secret {
            Some(Secret::Pair(pair, _)) => Some(pair.handle()),
            _ => None,
        }
    }
}

/// The agent's tables for the packets of one subject's sockets. [`Self::insert`] decides about each packet from these
/// tables.
#[derive(Clone, Default)]
pub struct Inserter {
    /// The subject; 0 if nobody is logged in.
    pub subject: u32,
    /// Protected prefixes, each with its protected services.
    pub protected: Vec<Protected>,
    /// Grant for every protected destination, in place of `grants`.
    pub everywhere: Option<Grant>,
    /// Grants that are ready for use, by their subject and destination.
    pub grants: BTreeMap<GrantSlot, Grant>,
    /// UDP flows in which the subject sent datagrams recently.
    pub conversations: BTreeMap<FlowKey, Conversation>,
    /// The nonce of the next token.
    pub nonce: u32,
    /// Number of used nonces of each pair.
    pub spent: BTreeMap<Handle, u32>,
    /// The nonce with which this sender begins to use a pair.
    pub first_nonce2: u16,
    /// Record of the tokens made from each grant.
    pub used: BTreeMap<GrantSlot, Used>,
}

impl Inserter {
    /// Decides on an Ethernet frame at `now` (Unix seconds, this machine's clock), and modifies it accordingly.
    pub fn insert(&mut self, frame: &mut Vec<u8>, now: u32) -> Action {
        let packet = Packet::parse(frame);
        let first = match packet.fragment {
            Fragment::Whole => packet.protocol == UDP || packet.opens(),
            Fragment::First(_) => packet.protocol == UDP,
            Fragment::Later(_) => false,
        };
        let Some(address) = packet.destination.filter(|_| packet.form == Form::Whole && first) else {
            return Action::Other;
        };
        let to = Destination { address, protocol: packet.protocol, port: packet.destination_port };
        if !self.services(address).is_some_and(|services| services.covers(to.protocol, to.port)) {
            return Action::Other;
        }
        // Check this before `has_block`: on an admitted flow, the verifier also passes a payload that only looks like a
        // block.
        if packet.protocol == UDP && self.is_rider(&packet, now) {
            return Action::Rider;
        }
        if has_block(frame, &packet) {
            return Action::Other;
        }
        if self.subject == 0 {
            return Action::Plain;
        }
        let slot = GrantSlot::new(self.subject, &to);
        let grant = self.everywhere.as_ref().or_else(|| self.grants.get(&slot));
        let Some(grant) = grant.filter(|grant| grant.until > now).cloned() else {
            return Action::Queued;
        };
        let Some(secret) = grant.secret else { return Action::Plain };
        if let Secret::Pair(pair, _) = &secret
            && self.spent.get(&pair.handle()).is_some_and(|spent| *spent >= ls::SENDERS_NONCES)
        {
            return Action::Queued;
        }
        if packet.protocol == UDP && !self.udp_needs_token(&packet, now) {
            return Action::Conversation;
        }
        if grant.carrier == Carrier::Shim && !is_plain(&packet) {
            return Action::Failed;
        }
        let time = now.wrapping_add_signed(grant.skew);
        // Nobody asks when a grant for every destination was used: a record of each destination would have no limit.
        let mut unrecorded = Used::default();
        let used = match self.everywhere {
            Some(_) => &mut unrecorded,
            None => self.used.entry(slot).or_default(),
        };
        used.last = time;
        let (header, key) = match secret {
            Secret::Grant(header, key) => (header, key),
            Secret::Pair(pair, key) => {
                let spent = self.spent.entry(pair.handle()).or_default();
                let token = LsToken::new(pair, self.first_nonce2.wrapping_add(*spent as u16), &key);
                *spent += 1;
                used.spent = *spent;
                return wrap(frame, &packet, Content::Ls(token.encode()));
            }
        };
        let nonce = self.nonce;
        self.nonce = nonce.wrapping_add(1);
        let token = Token::new(header, &key, time, nonce, &to).encode();
        if grant.carrier == Carrier::Shim {
            return wrap(frame, &packet, Content::Token(token));
        }
        let block = tail::block(&token);
        if packet.protocol != TCP && has_no_room(frame, &packet, BLOCK_LEN) {
            return Action::Ahead(Alone::Block(block));
        }
        frame.truncate(packet.end);
        frame.extend([0; BLOCK_LEN]);
        match tail::append(frame, &packet, &block) {
            Some(_) => Action::Token,
            None => Action::Failed,
        }
    }

    fn services(&self, address: IpAddr) -> Option<&Services> {
        let around = self.protected.iter().filter(|entry| entry.prefix.contains(&IpNet::from(address)));
        around.max_by_key(|entry| entry.prefix.prefix_len()).map(|entry| &entry.services)
    }

    /// Reports whether the datagram's port was bound again shortly after another subject released it.
    fn is_rider(&mut self, packet: &Packet, now: u32) -> bool {
        let known = FlowKey::to_server(packet).and_then(|key| self.conversations.get_mut(&key));
        let Some(known) = known else { return false };
        if known.subject == self.subject {
            datagrams::note(known, now);
            return false;
        }
        now.wrapping_sub(known.seen).wrapping_add(1) <= UDP_OWNED
    }

    fn udp_needs_token(&mut self, packet: &Packet, now: u32) -> bool {
        let Some(key) = FlowKey::to_server(packet) else { return true };
        let fresh = Conversation { token: now, answered: 0, sent: 0, subject: self.subject, seen: now };
        let known = self.conversations.entry(key).or_insert(fresh);
        if known.subject != self.subject {
            *known = fresh;
        }
        datagrams::needs_token(known, now)
    }
}

/// Reports whether the packet can go into a shim. A packet with a VLAN tag in its frame can't, because the kernel does
/// not see behind the tag.
fn is_plain(packet: &Packet) -> bool {
    !packet.ipv6() && packet.network == ETHERNET_LEN && packet.transport == ETHERNET_LEN + IPV4_LEN
}

/// Wraps the packet in a shim (wire.md §4.3).
fn wrap(frame: &mut Vec<u8>, packet: &Packet, content: Content) -> Action {
    if packet.protocol != TCP && has_no_room(frame, packet, SHIM_LEN) {
        return Action::Ahead(Alone::Shim(content));
    }
    frame.truncate(packet.end);
    frame.extend([0; SHIM_LEN]);
    match shim::insert(frame, packet, &content) {
        Some(_) => Action::Token,
        None => Action::Failed,
    }
}

/// Reports whether the packet carries a block already: VLANs, bonds and bridges pass it to the program again on the
/// interface below, and a process may send a token in its stream.
fn has_block(frame: &[u8], packet: &Packet) -> bool {
    let payload = frame.get(packet.payload..packet.end).unwrap_or_default();
    let begins = payload.starts_with(&STREAM_MAGIC) || payload.starts_with(&FAST_OPEN_MAGIC);
    let is_whole = packet.protocol == TCP && payload.len() == BLOCK_LEN && begins;
    is_whole || payload.last_chunk::<BLOCK_LEN>().is_some_and(|block| block.starts_with(&MAGIC))
}

/// Reports whether the agent has to send the token ahead of the packet. This applies also to an empty datagram, because
/// with a token appended, it would look like a datagram that carries only a token.
fn has_no_room(frame: &[u8], packet: &Packet, more: usize) -> bool {
    let udp_len = frame.get(packet.transport + 4..).and_then(|bytes| bytes.first_chunk().copied());
    packet.fragment != Fragment::Whole
        || packet.payload == packet.end
        || udp_len.is_none_or(|len| usize::from(u16::from_be_bytes(len)) != packet.end - packet.transport)
        || packet.end - packet.network + more > SAFE_MTU
}
