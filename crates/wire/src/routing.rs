//! Fixed paths: segment routing headers (RFC 8754), and proofs that verifiers unlock in the order of the path (wire.md
//! §8.12).
//!
//! This module only reads routing headers: the sender adds them, and routers follow them.

use crate::geneve;
use crate::key::ProofKey;
use crate::mac::{self, MAC_LEN};
use crate::packet::{Packet, UDP};
use crate::proof::{Ends, Message, Proof};
use crate::segment::{PROOFS_MAX, Segment, Vni};
use core::net::{IpAddr, Ipv6Addr};

const IPV6_LEN: usize = 40;
const HEADER_LEN: usize = 8;
/// The IP protocol number of routing headers.
pub(crate) const ROUTING: u8 = 43;
const SEGMENT_ROUTING: u8 = 4;
/// Pointer value in the message from which a lock derives; no proof uses it.
const LOCK: u8 = 7;

/// The addresses of a fixed path, one for each verifier. The last address is the receiving endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hops {
    /// The hops in the order of the header: the last hop first.
    list: [[u8; 16]; PROOFS_MAX as usize],
    len: usize,
}

impl Hops {
    /// Builds hops from addresses in the order of the path. Returns `None` if there are no addresses, or more than the
    /// maximum number of proofs.
    pub fn new(path: &[Ipv6Addr]) -> Option<Self> {
        let mut list = [[0; 16]; PROOFS_MAX as usize];
        if path.is_empty() || path.len() > list.len() {
            return None;
        }
        list.iter_mut().zip(path.iter().rev()).for_each(|(room, hop)| *room = hop.octets());
        Some(Self { list, len: path.len() })
    }

    /// Reads the hops from the routing header of a packet with this segment. The packet has to be at the hop that the
    /// segment's pointer indicates. Returns `None` unless the headers conform to wire.md §8.12.1.
    pub fn of(frame: &[u8], packet: &Packet, segment: &Segment) -> Option<Self> {
        let destination = match packet.destination? {
            IpAddr::V6(address) => address.octets(),
            IpAddr::V4(_) => return None,
        };
        let headers = frame.get(packet.network..packet.transport)?;
        let (ip, routing) = headers.split_first_chunk::<IPV6_LEN>()?;
        let (fixed, list) = routing.split_first_chunk::<HEADER_LEN>()?;
        let (hops, none) = list.as_chunks::<16>();
        let last = segment.count.checked_sub(1)?;
        let left = last.checked_sub(segment.pointer)?;
        let expected = Self::header(segment.count, left);
        let checksum = frame.get(packet.transport + 6..)?.first_chunk::<2>()?;
        let is_right = ip[6] == ROUTING
            && *fixed == expected
            && none.is_empty()
            && hops.len() == usize::from(segment.count)
            && hops.get(usize::from(left)) == Some(&destination)
            && *checksum == [0, 0];
        let mut this = Self { list: [[0; 16]; PROOFS_MAX as usize], len: hops.len() };
        this.list.get_mut(..hops.len())?.copy_from_slice(hops);
        is_right.then_some(this)
    }

    /// Returns the first eight bytes of a routing header with `count` hops, of which `left` remain.
    pub const fn header(count: u8, left: u8) -> [u8; HEADER_LEN] {
        [UDP, 2 * count, SEGMENT_ROUTING, left, count.saturating_sub(1), 0, 0, 0]
    }

    /// Returns the hops in the order of the header: the last hop first.
    pub fn list(&self) -> &[[u8; 16]] {
        self.list.get(..self.len).unwrap_or_default()
    }
}

/// The data that the proofs of a fixed path cover.
#[derive(Clone, Copy)]
pub struct Routed<'a> {
    /// The segment. Its pointer selects the verifier for which the proof is.
    pub segment: &'a Segment,
    /// The number of the virtual network.
    pub vni: Vni,
    /// The addresses of the endpoints, the sender and the receiver. In the message, the hops replace the receiving
    /// endpoint.
    pub ends: &'a Ends,
    /// The hops of the path.
    pub hops: &'a Hops,
}

impl Routed<'_> {
    /// Builds the message for the verifier at the segment's pointer.
    pub fn message(&self) -> Message {
        Message::routed(self.segment, self.vni, self.ends, self.hops.list())
    }

    /// Computes the unlocked proof for the verifier at the segment's pointer.
    pub fn proof(&self, key: &ProofKey) -> Proof {
        Proof(key.mac(self.segment.suite, self.message().bytes()))
    }

    /// Reports whether `proof` is the one that `key` yields for the verifier at the segment's pointer. The comparison
    /// takes constant time.
    pub fn is_proved(&self, proof: &Proof, key: &ProofKey) -> bool {
        mac::tags_equal(&proof.0, &self.proof(key).0)
    }

    /// Derives the lock with which the verifier at the segment's pointer unlocks the next verifier's proof. The
    /// authority has locked that proof with the same lock.
    pub fn lock(&self, key: &ProofKey) -> Lock {
        let segment = Segment { pointer: LOCK, ..*self.segment };
        Lock(Routed { segment: &segment, ..*self }.proof(key).0)
    }
}

/// A key stream that locks or unlocks one proof. Only the authority and the verifier that precedes the proof's verifier
/// can derive it.
pub struct Lock([u8; MAC_LEN]);

impl Lock {
    /// Locks `proof` if it is unlocked, and unlocks it if it is locked.
    pub fn turn(&self, proof: &mut [u8; MAC_LEN]) {
        proof.iter_mut().zip(self.0).for_each(|(byte, key)| *byte ^= key);
    }
}

/// Unlocks the proof for the next verifier, in a packet that the verifier at the segment's pointer forwards. Does
/// nothing if no verifier follows. Returns `None` if the packet is too short.
pub fn open_next(frame: &mut [u8], packet: &Packet, segment: &Segment, lock: &Lock) -> Option<()> {
    let next = segment.pointer + 1;
    if next == segment.count {
        return Some(());
    }
    let authority = if segment.authority.is_ipv6() { 16 } else { 4 };
    let proofs = packet.payload + geneve::PROOFS_AT + authority;
    let proof = frame.get_mut(proofs + usize::from(next) * MAC_LEN..packet.end)?.first_chunk_mut()?;
    lock.turn(proof);
    Some(())
}
