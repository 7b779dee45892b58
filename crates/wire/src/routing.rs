//! Fixed paths: segment routing headers (RFC 8754), and proofs that are opened in the order of the path (wire.md §8.12).
//!
//! Only reads headers. Who sends puts them in; who routes follows them.

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
/// In the place of a pointer: what is made over a message with it locks a proof and is none.
const LOCK: u8 = 7;

/// The addresses that a fixed path leads through: one per verifier, and the last is the receiving endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hops {
    /// As in the header: the last first.
    list: [[u8; 16]; PROOFS_MAX as usize],
    len: usize,
}

impl Hops {
    /// Hops in the order of the path; `None` if there are none, or more than there can be proofs.
    pub fn new(path: &[Ipv6Addr]) -> Option<Self> {
        let mut list = [[0; 16]; PROOFS_MAX as usize];
        if path.is_empty() || path.len() > list.len() {
            return None;
        }
        list.iter_mut().zip(path.iter().rev()).for_each(|(room, hop)| *room = hop.octets());
        Some(Self { list, len: path.len() })
    }

    /// The routing header of a packet whose segment this is, and which is where the segment's pointer says. `None` unless
    /// all is as wire.md §8.12.1 says.
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

    /// What a routing header with so many hops, of which so many are left, begins with.
    pub(crate) const fn header(count: u8, left: u8) -> [u8; HEADER_LEN] {
        [UDP, 2 * count, SEGMENT_ROUTING, left, count.saturating_sub(1), 0, 0, 0]
    }

    /// As the header lists them: the last first.
    pub fn list(&self) -> &[[u8; 16]] {
        self.list.get(..self.len).unwrap_or_default()
    }
}

/// What the proofs of a fixed path are made over.
#[derive(Clone, Copy)]
pub struct Routed<'a> {
    /// The segment; its pointer says for which verifier.
    pub segment: &'a Segment,
    /// The virtual network.
    pub vni: Vni,
    /// The addresses; of the receiving endpoint the hops say more.
    pub ends: &'a Ends,
    /// The path.
    pub hops: &'a Hops,
}

impl Routed<'_> {
    /// The message for the verifier at the segment's pointer.
    pub fn message(&self) -> Message {
        Message::routed(self.segment, self.vni, self.ends, self.hops.list())
    }

    /// That verifier's proof, open.
    pub fn proof(&self, key: &ProofKey) -> Proof {
        Proof(self.segment.suite.mac(key.of(self.segment.suite), &[self.message().bytes()]))
    }

    /// Whether `proof` is the one that `key` gives at the segment's pointer; constant time.
    pub fn is_proved(&self, proof: &Proof, key: &ProofKey) -> bool {
        mac::tags_equal(&proof.0, &self.proof(key).0)
    }

    /// What that verifier opens the next one's proof with, and the authority closes it.
    pub fn lock(&self, key: &ProofKey) -> Lock {
        let segment = Segment { pointer: LOCK, ..*self.segment };
        Lock(Routed { segment: &segment, ..*self }.proof(key).0)
    }
}

/// Opens one proof, or closes it. A secret of who may pass a packet on.
pub struct Lock([u8; MAC_LEN]);

impl Lock {
    /// Closes an open proof, opens a closed one.
    pub fn turn(&self, proof: &mut [u8; MAC_LEN]) {
        proof.iter_mut().zip(self.0).for_each(|(byte, key)| *byte ^= key);
    }
}

/// Opens the proof behind the pointer's in a packet that the verifier at the pointer passes on; behind the last there is none.
/// `None` if the packet is too short.
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
