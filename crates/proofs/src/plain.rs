//! Packets in the plain form: IPv4 in IPv4 with the authority's address in IPv4, nothing optional anywhere, suite `aes-cmac`.
//!
//! Reads exactly what [`wire`]'s decoders would, and takes only what they would take: all of form (wire.md §8.3 to §8.7) has been
//! checked of what is read here.

use crate::aes::Message;
use wire::geneve::{OPTION_CLASS, OPTION_TYPE, PORT};
use wire::packet::{TCP, UDP};
use wire::segment::PROOFS_MAX;
use wire::{SegmentFlags, Suite};

const NETWORK: usize = 14;
const TRANSPORT: usize = NETWORK + 20;
const GENEVE: usize = TRANSPORT + 8;
/// Where the option's data is: the head of the segment.
pub const HEAD: usize = GENEVE + 12;
const AUTHORITY: usize = HEAD + 16;
const PROOFS: usize = AUTHORITY + 4;
const INNER_LEN: usize = 20;
/// The first word of eight that is compared.
const FIRST: usize = 8;

const RETURN: u8 = SegmentFlags::RETURN.0;
const WITH_PORT: u8 = SegmentFlags::PORT.0;
const SINGLE: u8 = SegmentFlags::SINGLE.0;

/// What the frame's bytes from [`FIRST`] to 56 have to be, and which bits of them: type and version, fragment and protocol, port,
/// Geneve's flags and type, reserved byte, option, suite.
const FORM: ([u8; 48], [u8; 48]) = {
    let (mut form, mut mask) = ([0; 48], [0; 48]);
    let [p0, p1] = PORT.to_be_bytes();
    let [c0, c1] = OPTION_CLASS.to_be_bytes();
    let fixed = [
        (12, 0x08, 0xff),
        (13, 0x00, 0xff),
        (NETWORK, 0x45, 0xff),
        (NETWORK + 6, 0, 0x3f),
        (NETWORK + 7, 0, 0xff),
        (NETWORK + 9, UDP, 0xff),
        (TRANSPORT + 2, p0, 0xff),
        (TRANSPORT + 3, p1, 0xff),
        (GENEVE + 1, 0x40, 0xff),
        (GENEVE + 2, 0x08, 0xff),
        (GENEVE + 3, 0x00, 0xff),
        (GENEVE + 7, 0, 0xff),
        (GENEVE + 8, c0, 0xff),
        (GENEVE + 9, c1, 0xff),
        (GENEVE + 10, OPTION_TYPE, 0xff),
        (HEAD, (Suite::AesCmac as u8) << 6, 0xc0),
        // Endpoints, ends and authority are IPv4; the highest bit is reserved.
        (HEAD + 1, 0, 0xf0),
    ];
    let mut index = 0;
    while index < fixed.len() {
        let (at, byte, bits) = fixed[index];
        form[at - FIRST] = byte;
        mask[at - FIRST] = bits;
        index += 1;
    }
    (form, mask)
};

/// A bit for each pair of number of proofs and pointer that there may be.
const PLACES: u64 = {
    let (mut places, mut count) = (0, 1);
    while count <= PROOFS_MAX {
        places |= ((1 << count) - 1) << (count * 8);
        count += 1;
    }
    places
};

/// A bit for each set of the lower four flags that there may be: not RETURN with REPLY, nor SINGLE without PORT.
const FLAGS: u16 = {
    let (mut sets, mut flags) = (0, 0u8);
    while flags < 16 {
        let both = RETURN | SegmentFlags::REPLY.0;
        if flags & both != both && (flags & SINGLE == 0 || flags & WITH_PORT != 0) {
            sets |= 1 << flags;
        }
        flags += 1;
    }
    sets
};

/// Where a message has the VNI: in the place of the epoch, and of the two zero bytes.
const VNI: [u64; 2] = [0xff << 24, 0xffff << 48];

/// What the check of a packet needs.
pub struct Plain {
    pub message: Message,
    pub proof: [u64; 2],
    /// The authority's address.
    pub authority: u32,
    /// The low bits of its epoch.
    pub epoch: u8,
    pub expires: u32,
    /// The receiving endpoint.
    pub receiving: u32,
    /// Of the receiver.
    pub class: usize,
    /// Whether its service is the segment's.
    pub serves: bool,
}

#[inline(always)]
fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[at..at + N]);
    array
}

#[inline(always)]
fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(array(bytes, at))
}

#[inline(always)]
fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(array(bytes, at))
}

#[inline(always)]
fn le64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array(bytes, at))
}

impl Plain {
    /// Reads a frame; `None` if it has any other form.
    #[inline(always)]
    pub fn read(frame: &[u8]) -> Option<Self> {
        let outer: &[u8; PROOFS] = frame.first_chunk()?;
        let total = usize::from(be16(outer, NETWORK + 2));
        let (place, flags) = (outer[HEAD], outer[HEAD + 1]);
        let (count, pointer) = (usize::from(place >> 3 & 7), usize::from(place & 7));
        let words = 5 + 4 * count;
        let mut wrong = 0;
        for word in 0..6 {
            wrong |= (le64(outer, FIRST + word * 8) ^ le64(&FORM.0, word * 8)) & le64(&FORM.1, word * 8);
        }
        let with_port = flags & WITH_PORT != 0;
        let (port, sender_port) = (be16(outer, HEAD + 10), be16(outer, HEAD + 12));
        let expected = wrong == 0
            && PLACES >> (place & 0x3f) & u64::from(FLAGS >> (flags & 15)) & 1 != 0
            && usize::from(outer[GENEVE]) == words + 1
            && usize::from(outer[GENEVE + 11]) == words
            && usize::from(be16(outer, TRANSPORT + 4)) + 20 == total
            && NETWORK + total <= frame.len()
            && be16(outer, HEAD + 14) == 0
            && (flags & SINGLE != 0 || sender_port == 0)
            && (with_port || outer[HEAD + 2] == 0 && port == 0);
        if !expected {
            return None;
        }
        let inner = frame.get(PROOFS + 16 * count..NETWORK + total)?;
        let header: &[u8; INNER_LEN] = inner.first_chunk()?;
        let inner_total = usize::from(be16(header, 2));
        if header[0] != 0x45 || be16(header, 6) & 0x1fff != 0 || inner_total > inner.len() || inner_total < INNER_LEN {
            return None;
        }
        let proof: &[u8; 16] = frame.get(PROOFS + 16 * pointer..)?.first_chunk()?;
        let serves = !with_port || {
            let protocol = header[9];
            let (source, destination) = if matches!(protocol, TCP | UDP) {
                let ports: &[u8; 4] = inner.get(INNER_LEN..inner_total)?.first_chunk()?;
                (be16(ports, 0), be16(ports, 2))
            } else {
                (0, 0)
            };
            let (sender, service) = if flags & RETURN != 0 { (destination, source) } else { (source, destination) };
            outer[HEAD + 2] == protocol && port == service && (flags & SINGLE == 0 || sender_port == sender)
        };
        let vni = u64::from(be32(outer, GENEVE + 4));
        Some(Self {
            message: [
                le64(outer, HEAD) & !VNI[0] | vni & VNI[0],
                le64(outer, HEAD + 8) & !VNI[1] | (vni & 0xff_0000) << 32 | (vni & 0xff00) << 48,
                le64(outer, NETWORK + 12),
                le64(header, 12),
            ],
            proof: [le64(proof, 0), le64(proof, 8)],
            authority: be32(outer, AUTHORITY),
            epoch: outer[HEAD + 3],
            expires: be32(outer, HEAD + 4),
            receiving: be32(outer, NETWORK + 16),
            class: class(be32(header, 16)),
            serves,
        })
    }
}

/// One of 65 536 classes of receivers. Most share theirs with none that has withdrawn.
#[inline(always)]
pub fn class(receiver: u32) -> usize {
    (receiver.wrapping_mul(0x9e37_79b1) >> 16) as usize
}
