//! What an agent does with a packet on its way out (wire.md §4.1, §4.2), as a function of the packet, its tables and the
//! time.
//!
//! The kernel program (`bpf/agent.bpf.c`) decides the same; the case table and the differential fuzzer of `datapath` hold
//! the two together.

use crate::protected::Protected;
use ipnet::IpNet;
use std::collections::BTreeMap;
use std::net::IpAddr;
use wire::map::{Conversation, FlowKey, GrantEntry, GrantSlot, Services, address_bytes};
use wire::packet::{Form, Fragment, Packet, TCP, UDP};
use wire::shim::{self, Content, SHIM_LEN};
use wire::tail::{self, BLOCK_LEN, MAGIC};
use wire::{Carrier, ClientKey, Destination, GrantHeader, GrantKey, Handle, LsToken, Pair, Token, ls};

/// A UDP flow in use gets a token at least this often, seconds (wire.md §4.1).
pub const UDP_TOKEN_EVERY: u32 = 15;
/// A verifier may hold a flow for this long after its last datagram, seconds: until then its ports are nobody else's.
pub const UDP_OWNED: u32 = 90;
const ETHERNET_LEN: usize = 14;
const IPV4_LEN: usize = 20;

/// Every IPv6 path carries this much (RFC 8200), and in practice every IPv4 path: longer datagrams are preceded.
pub const SAFE_MTU: usize = 1280;

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// It is no first packet to a protected destination.
    Other,
    /// It is, but goes without identity: nobody logged in, or the person wants it so.
    Plain,
    /// It got a token.
    Token,
    /// A datagram with a token alone goes ahead of it: this block, or an empty one in a shim with this content.
    Ahead(Alone),
    /// Its flow needs no token.
    Conversation,
    /// It would ride on a flow that is somebody else's, and is dropped.
    Rider,
    /// It waits for a grant.
    Held,
    /// It could not be changed and is dropped.
    Failed,
}

/// What a datagram that goes ahead carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alone {
    /// This payload.
    Block([u8; BLOCK_LEN]),
    /// Nothing, in a shim with this content.
    Shim(Content),
}

/// What tokens are made with. Has no `Debug`.
#[derive(Clone)]
pub enum Secret {
    /// A grant (wire.md §3).
    Grant(GrantHeader, GrantKey),
    /// A pair of the scheme of LS (wire.md §5); its tokens travel by shim only.
    Pair(Pair, ClientKey),
}

impl Secret {
    /// What an entry of the kernel's grants makes tokens with; nothing if packets go without identity.
    pub fn of_entry(entry: &GrantEntry) -> Option<Self> {
        if entry.plain != 0 {
            return None;
        }
        if entry.suite == ls::SUITE {
            let pair = Pair::from_bytes(*entry.header.first_chunk()?);
            return Some(Self::Pair(pair, ClientKey::new(*entry.key.first_chunk()?)));
        }
        let header = GrantHeader::decode(&entry.header).ok()?;
        Some(Self::Grant(header, GrantKey::new(*entry.key.first_chunk()?)))
    }
}

/// What was made of an entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    /// When a token was last made from it, Unix seconds by the authority's clock; 0 if never.
    pub last: u32,
    /// How many nonces of its pair were used by then.
    pub spent: u32,
}

/// What an agent does with first packets to one destination.
#[derive(Clone)]
pub struct Grant {
    /// Use it until then, Unix seconds by this machine's clock.
    pub until: u32,
    /// What to add to this machine's clock for the authority's, seconds.
    pub skew: i32,
    /// What its tokens are made with, or nothing: send packets without identity.
    pub secret: Option<Secret>,
    /// How its tokens travel.
    pub carrier: Carrier,
}

impl Grant {
    /// The handle of its pair, if it is one.
    pub fn pair(&self) -> Option<Handle> {
        match &self.secret {
            Some(Secret::Pair(pair, _)) => Some(pair.handle()),
            _ => None,
        }
    }
}

/// An agent's tables for the sockets of one subject.
#[derive(Clone, Default)]
pub struct Inserter {
    /// The subject; 0 if nobody has logged in.
    pub subject: u32,
    /// Protected destinations.
    pub protected: Vec<Protected>,
    /// Grants ready for use.
    pub grants: BTreeMap<GrantSlot, Grant>,
    /// UDP flows.
    pub conversations: BTreeMap<FlowKey, Conversation>,
    /// The next nonce.
    pub nonce: u32,
    /// How many nonces of each pair were used.
    pub spent: BTreeMap<Handle, u32>,
    /// The first nonce of pairs that is this sender's.
    pub first_nonce2: u16,
    /// What was made of the grants.
    pub used: BTreeMap<GrantSlot, Used>,
}

impl Inserter {
    /// Decides on an Ethernet frame at `now` (Unix seconds, this machine's clock), and changes it.
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
        if has_block(frame, &packet) {
            return Action::Other;
        }
        if packet.protocol == UDP && self.is_rider(&packet, now) {
            return Action::Rider;
        }
        if self.subject == 0 {
            return Action::Plain;
        }
        let slot = slot(self.subject, &to);
        let Some(grant) = self.grants.get(&slot).filter(|grant| grant.until > now).cloned() else {
            return Action::Held;
        };
        let Some(secret) = grant.secret else { return Action::Plain };
        if let Secret::Pair(pair, _) = &secret
            && self.spent.get(&pair.handle()).is_some_and(|spent| *spent >= ls::SENDERS_NONCES)
        {
            return Action::Held;
        }
        if packet.protocol == UDP && !self.udp_needs_token(&packet, now) {
            return Action::Conversation;
        }
        if grant.carrier == Carrier::Shim && !is_plain(&packet) {
            return Action::Failed;
        }
        let time = now.wrapping_add_signed(grant.skew);
        let used = self.used.entry(slot).or_default();
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

    /// Whether the datagram's port was bound right after another subject left it.
    fn is_rider(&mut self, packet: &Packet, now: u32) -> bool {
        let known = FlowKey::to_server(packet).and_then(|key| self.conversations.get_mut(&key));
        let Some(known) = known else { return false };
        if known.subject == self.subject {
            known.seen = now;
            return false;
        }
        now.wrapping_sub(known.seen).wrapping_add(1) <= UDP_OWNED
    }

    fn udp_needs_token(&mut self, packet: &Packet, now: u32) -> bool {
        let Some(key) = FlowKey::to_server(packet) else { return true };
        let fresh = Conversation { token: now, answered: 0, subject: self.subject, seen: now };
        let known = self.conversations.entry(key).or_insert(fresh);
        if known.subject != self.subject {
            *known = fresh;
        }
        if known.answered != 0 && (now.wrapping_sub(known.token) as i32) < UDP_TOKEN_EVERY as i32 {
            return false;
        }
        known.token = now;
        true
    }
}

/// Whether the packet can go into a shim. The kernel does not see behind a VLAN tag in the frame.
fn is_plain(packet: &Packet) -> bool {
    !packet.ipv6() && packet.network == ETHERNET_LEN && packet.transport == ETHERNET_LEN + IPV4_LEN
}

/// Puts the packet into a shim (wire.md §4.3).
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

/// Where the grant for packets to `to` is looked up.
pub fn slot(subject: u32, to: &Destination) -> GrantSlot {
    GrantSlot {
        subject,
        port: to.port.to_be_bytes(),
        protocol: to.protocol,
        family: if to.address.is_ipv4() { 4 } else { 6 },
        address: address_bytes(to.address),
    }
}

/// Whether the packet carries a block already: VLANs, bonds and bridges pass it to the program once more on the interface
/// below.
fn has_block(frame: &[u8], packet: &Packet) -> bool {
    let payload = frame.get(packet.payload..packet.end).unwrap_or_default();
    payload.last_chunk::<BLOCK_LEN>().is_some_and(|block| block.starts_with(&MAGIC))
}

/// An empty datagram with a token would look like a token alone, so it is preceded too.
fn has_no_room(frame: &[u8], packet: &Packet, more: usize) -> bool {
    let udp_len = frame.get(packet.transport + 4..).and_then(|bytes| bytes.first_chunk().copied());
    packet.fragment != Fragment::Whole
        || packet.payload == packet.end
        || udp_len.is_none_or(|len| usize::from(u16::from_be_bytes(len)) != packet.end - packet.transport)
        || packet.end - packet.network + more > SAFE_MTU
}
