//! Packets of the plain form: IPv4 in IPv4 with an IPv4 authority address, no optional parts, suite `aes-cmac`.
//!
//! This parser reads the same fields as [`wire`]'s decoders, and accepts only packets that the decoders accept. If it
//! accepts a packet, the packet conforms to the format rules of wire.md §8.3 to §8.7. Where a rule depends on the value
//! of a field, the code looks the rule up in a table, because a branch costs more than a look-up.

use wire::geneve::{OPTION_CLASS, OPTION_TYPE, PORT};
use wire::packet::{TCP, UDP};
use wire::segment::PROOFS_MAX;
use wire::{SegmentFlags, Suite};

pub const NETWORK: usize = 14;
pub const TRANSPORT: usize = NETWORK + 20;
pub const GENEVE: usize = TRANSPORT + 8;
pub const VNI: usize = GENEVE + 4;
/// Offset of the Geneve option's data in a frame, in bytes. The data begins with the head of the segment.
pub const HEAD: usize = GENEVE + 12;
pub const AUTHORITY: usize = HEAD + 16;
pub const PROOFS: usize = AUTHORITY + 4;
/// Number of bytes that are read of the inner packet: its header, and the ports if the protocol has any.
pub const INNER_LEN: usize = 24;
/// Offset of the first of the 64 bytes that are compared.
const FIRST: usize = PROOFS - 64;

/// Mask of the bits that hold the number of proofs, in the byte at [`HEAD`].
#[cfg(target_arch = "x86_64")]
pub const COUNT: u8 = 0x38;

pub const RETURN: u8 = SegmentFlags::RETURN.0;
pub const REPLY: u8 = SegmentFlags::REPLY.0;
pub const WITH_PORT: u8 = SegmentFlags::PORT.0;
pub const SINGLE: u8 = SegmentFlags::SINGLE.0;

/// Layout that all frames with the same number of proofs and pointer have in common.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Form {
    /// The bytes from [`FIRST`] on that [`RULES`] compares.
    bytes: [u8; 64],
    /// Offset of the inner packet.
    inner: usize,
    /// Offset of the proof at the pointer.
    proof: usize,
}

/// Mask of the compared bits in the bytes from [`FIRST`] on.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Rule([u8; 64]);

/// Forms by number of proofs and pointer. A form fixes type and version, fragment and protocol, port, Geneve's flags
/// and type, lengths of options, reserved bytes, and suite. A form for an impossible pointer matches no frame that has
/// this pointer.
static FORMS: [Form; 64] = {
    let mut forms = [Form { bytes: [0; 64], inner: 0, proof: 0 }; 64];
    let [p0, p1] = PORT.to_be_bytes();
    let [c0, c1] = OPTION_CLASS.to_be_bytes();
    let mut place = 0;
    while place < 64 {
        let (count, pointer) = (place as u8 >> 3, place as u8 & 7);
        let is_one = pointer < count && count <= PROOFS_MAX;
        let words = 5 + 4 * count;
        let suite = (Suite::AesCmac as u8) << 6;
        let fixed = [
            (12, 0x08),
            (NETWORK, 0x45),
            (NETWORK + 9, UDP),
            (TRANSPORT + 2, p0),
            (TRANSPORT + 3, p1),
            (GENEVE, words + 1),
            (GENEVE + 1, 0x40),
            (GENEVE + 2, 0x08),
            (GENEVE + 8, c0),
            (GENEVE + 9, c1),
            (GENEVE + 10, OPTION_TYPE),
            (GENEVE + 11, words),
            (HEAD, suite | if is_one { place as u8 } else { !(place as u8) & 0x3f }),
        ];
        let mut index = 0;
        while index < fixed.len() {
            let (at, byte) = fixed[index];
            forms[place].bytes[at - FIRST] = byte;
            index += 1;
        }
        forms[place].inner = PROOFS + 16 * count as usize;
        forms[place].proof = PROOFS + 16 * pointer as usize;
        place += 1;
    }
    forms
};

/// Masks by the lower four flags of the segment.
static RULES: [Rule; 16] = {
    let mut rules = [Rule([0; 64]); 16];
    let mut flags = 0;
    while flags < 16 {
        let set = flags as u8;
        let with_port = set & WITH_PORT != 0;
        let single = set & SINGLE != 0;
        // For an invalid combination of flags, the mask compares all flags with 0, so no frame with this combination
        // matches.
        let wrong = set & RETURN != 0 && set & REPLY != 0 || single && !with_port;
        let fixed = [
            (12, 2, 0xff),
            (NETWORK, 1, 0xff),
            (NETWORK + 6, 1, 0x3f),
            (NETWORK + 7, 1, 0xff),
            (NETWORK + 9, 1, 0xff),
            (TRANSPORT + 2, 2, 0xff),
            (GENEVE, 4, 0xff),
            (GENEVE + 7, 5, 0xff),
            (HEAD, 1, 0xff),
            // Endpoints, ends and authority are IPv4; the path is not fixed.
            (HEAD + 1, 1, if wrong { 0xff } else { 0xf0 }),
            (HEAD + 2, 1, if with_port { 0 } else { 0xff }),
            (HEAD + 10, 2, if with_port { 0 } else { 0xff }),
            (HEAD + 12, 2, if single { 0 } else { 0xff }),
            (HEAD + 14, 2, 0xff),
        ];
        let mut index = 0;
        while index < fixed.len() {
            let (at, len, bits) = fixed[index];
            let mut byte = at;
            while byte < at + len {
                rules[flags].0[byte - FIRST] = bits;
                byte += 1;
            }
            index += 1;
        }
        flags += 1;
    }
    rules
};

/// A packet of the plain form that the module describes, split into the parts that the check of a proof reads.
#[derive(Clone, Copy)]
pub struct Plain<'a> {
    outer: &'a [u8; PROOFS],
    inner: &'a [u8; INNER_LEN],
    proof: &'a [u8; 16],
}

#[inline(always)]
fn array<const N: usize>(bytes: &[u8], at: usize) -> &[u8; N] {
    bytes[at..].first_chunk().expect("callers stay inside")
}

#[inline(always)]
fn be16(bytes: &[u8], at: usize) -> usize {
    u16::from_be_bytes(*array(bytes, at)).into()
}

#[inline(always)]
fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(*array(bytes, at))
}

#[inline(always)]
fn le16(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(*array(bytes, at))
}

#[inline(always)]
fn le32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(*array(bytes, at))
}

#[inline(always)]
fn le64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(*array(bytes, at))
}

/// Reports whether bits under the mask differ.
#[inline(always)]
fn differs(frame: &[u8; 64], form: &[u8; 64], rules: &[u8; 64]) -> bool {
    let mut wrong = 0;
    for at in 0..64 {
        wrong |= (frame[at] ^ form[at]) & rules[at];
    }
    wrong != 0
}

impl<'a> Plain<'a> {
    /// A placeholder full of zeros, for use where there is no packet.
    pub const NONE: Plain<'static> = Plain { outer: &[0; PROOFS], inner: &[0; INNER_LEN], proof: &[0; 16] };

    /// Reads a frame; returns `None` if it is not of the plain form.
    #[inline(always)]
    pub fn read(frame: &'a [u8]) -> Option<Self> {
        let outer: &[u8; PROOFS] = frame.first_chunk()?;
        let form = &FORMS[usize::from(outer[HEAD] & 0x3f)];
        let rule = &RULES[usize::from(outer[HEAD + 1] & 15)];
        if differs(array(outer, FIRST), &form.bytes, &rule.0) {
            return None;
        }
        let end = NETWORK + be16(outer, NETWORK + 2);
        if end > frame.len() || be16(outer, TRANSPORT + 4) + TRANSPORT != end {
            return None;
        }
        let inner: &[u8; INNER_LEN] = frame.get(form.inner..form.inner + INNER_LEN)?.first_chunk()?;
        let inner_len = be16(inner, 2);
        // Check version, header length, and that this is not a later fragment.
        let plain = le64(inner, 0) & 0xff1f_0000_0000_00ff == 0x45;
        if !plain || inner_len < INNER_LEN || form.inner + inner_len > end {
            return None;
        }
        Some(Self { outer, inner, proof: frame.get(form.proof..form.proof + 16)?.first_chunk()? })
    }

    /// Reports whether the segment is for the inner packet's service.
    #[inline(always)]
    pub fn serves(&self) -> bool {
        let (flags, protocol) = (self.outer[HEAD + 1], self.inner[9]);
        if flags & WITH_PORT == 0 {
            return true;
        }
        if protocol != self.outer[HEAD + 2] {
            return false;
        }
        if !matches!(protocol, TCP | UDP) {
            return le32(self.outer, HEAD + 10) == 0;
        }
        // Compare source and destination, swapped for answers.
        let back = usize::from(flags & RETURN);
        le16(self.outer, HEAD + 10) == le16(self.inner, 22 - back)
            && (flags & SINGLE == 0 || le16(self.outer, HEAD + 12) == le16(self.inner, 20 + back))
    }

    /// Returns the proof for the verifier at the segment's pointer.
    #[inline(always)]
    pub fn proof(&self) -> &[u8; 16] {
        self.proof
    }

    /// Returns the segment's head as encoded.
    #[inline(always)]
    pub fn head(&self) -> &[u8; 16] {
        array(self.outer, HEAD)
    }

    /// Returns the three bytes of the VNI and the zero byte that follows them.
    #[inline(always)]
    pub fn vni(&self) -> &[u8; 4] {
        array(self.outer, VNI)
    }

    /// Returns the addresses of the endpoints.
    #[inline(always)]
    pub fn endpoints(&self) -> &[u8; 8] {
        array(self.outer, NETWORK + 12)
    }

    /// Returns the addresses of sender and receiver.
    #[inline(always)]
    pub fn ends(&self) -> &[u8; 8] {
        array(self.inner, 12)
    }

    /// Returns the authority's address.
    #[inline(always)]
    pub fn authority(&self) -> u32 {
        be32(self.outer, AUTHORITY)
    }

    /// Returns the low 8 bits of the number of the segment's epoch.
    #[inline(always)]
    pub fn epoch(&self) -> u8 {
        self.outer[HEAD + 3]
    }

    /// Returns the segment's expiry, Unix seconds.
    #[inline(always)]
    pub fn expires(&self) -> u32 {
        be32(self.outer, HEAD + 4)
    }

    /// Returns the address of the receiving endpoint. The address's first byte is in the lowest bits of the result.
    #[inline(always)]
    pub fn receiving(&self) -> u32 {
        le32(self.outer, NETWORK + 16)
    }

    /// Returns the receiver's address.
    #[inline(always)]
    pub fn receiver(&self) -> u32 {
        be32(self.inner, 16)
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The data that a MAC covers, and the proof.
    #[derive(Clone, Copy, Debug)]
    pub struct Parts {
        outer: [u8; PROOFS],
        inner: [u8; INNER_LEN],
        pub proof: [u8; 16],
    }

    impl Parts {
        pub fn packet(&self) -> Plain<'_> {
            Plain { outer: &self.outer, inner: &self.inner, proof: &self.proof }
        }
    }

    impl Arbitrary for Parts {
        type Parameters = ();
        type Strategy = BoxedStrategy<Self>;

        fn arbitrary_with((): ()) -> Self::Strategy {
            any::<([[u8; 32]; 2], [u8; 10], [u8; INNER_LEN])>()
                .prop_map(|(front, back, inner)| {
                    let mut outer = [0; PROOFS];
                    outer[..64].copy_from_slice(front.as_flattened());
                    outer[64..].copy_from_slice(&back);
                    Self { outer, inner, proof: [0; 16] }
                })
                .boxed()
        }
    }
}
