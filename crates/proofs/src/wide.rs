//! Verification of packets of the plain form, four at a time in one register (AVX-512). This module decides about the
//! valid packets of a batch, and leaves all others to [`crate::batch`].
//!
//! The module loads two pieces of each packet: 64 bytes at fixed offsets, and the 64 bytes that end with the inner
//! packet's ports. It compares the first piece with the values that all packets of the plain form have there. Then it
//! gathers the fields from both pieces, and checks the fields of four packets at once.

use crate::BATCH;
use crate::aes::native::Expanded;
use crate::keys::{HASH, Keys, NUMBER};
use crate::plain::{
    AUTHORITY, COUNT, GENEVE, HEAD, INNER_LEN, NETWORK, PROOFS, REPLY, RETURN, SINGLE, TRANSPORT, VNI, WITH_PORT,
};
use std::arch::asm;
use std::arch::x86_64::*;
use std::mem::MaybeUninit;
use wire::Suite;
use wire::geneve::{OPTION_CLASS, OPTION_TYPE, PORT};
use wire::packet::{TCP, UDP};
use wire::segment::PROOFS_MAX;

/// Number of packets whose fields share a register.
const FOUR: usize = 4;
/// Offset of the 64 bytes at fixed offsets.
const FIRST: usize = PROOFS - 64;
/// Number of bytes before the inner packet in the 64 bytes that end with the inner packet's ports.
const BEFORE: usize = 64 - INNER_LEN;

/// 64 bytes: one value per packet, or per offset.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Row([u8; 64]);

/// Bytes at fixed offsets that all packets of the form share, and a mask of the compared bits.
static FORM: [Row; 2] = {
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
        // Endpoints, ends and authority are IPv4; the path is not fixed.
        (HEAD + 1, 0, 0xf0),
        (HEAD + 14, 0, 0xff),
        (HEAD + 15, 0, 0xff),
    ];
    let mut form = [Row([0; 64]); 2];
    let mut index = 0;
    while index < fixed.len() {
        let (at, byte, bits) = fixed[index];
        form[0].0[at - FIRST] = byte;
        form[1].0[at - FIRST] = bits;
        index += 1;
    }
    form
};

/// Source of each byte of the gathered fields. The fields have four quarters. The first two quarters are the two blocks
/// of the message. The third quarter has the values that are checked against bounds. The fourth has the values that are
/// subtracted from the third quarter or compared with the first block.
#[derive(Clone, Copy)]
struct Places {
    from: Row,
    /// A mask that selects the bytes for which `from` has a source.
    taken: Row,
}

impl Places {
    const fn of(moves: &[(usize, usize, usize)]) -> Self {
        // A byte without a source comes from here, which is zero in a packet of the form.
        let mut places = Self { from: Row([(HEAD + 15 - FIRST) as u8; 64]), taken: Row([0; 64]) };
        let mut index = 0;
        while index < moves.len() {
            let (to, from, len) = moves[index];
            let mut byte = 0;
            while byte < len {
                places.from.0[to + byte] = (from + byte) as u8;
                places.taken.0[to + byte] = 0xff;
                byte += 1;
            }
            index += 1;
        }
        places
    }
}

const SECOND_BLOCK: usize = 16;
const BOUNDED: usize = 32;
const COMPARED: usize = 48;

/// Sources in the bytes at fixed offsets. Numbers are byte-swapped: the lowest byte comes first.
static OUTER: Places = Places::of(&[
    (0, HEAD - FIRST, 3),
    (3, VNI - FIRST, 1),
    (4, HEAD + 4 - FIRST, 10),
    (14, VNI + 1 - FIRST, 2),
    (SECOND_BLOCK, NETWORK + 12 - FIRST, 8),
    // The packet's length, twice; the lengths in Geneve's header and in the option; authority and epoch.
    (BOUNDED + 2, NETWORK + 3 - FIRST, 1),
    (BOUNDED + 3, NETWORK + 2 - FIRST, 1),
    (BOUNDED + 4, NETWORK + 3 - FIRST, 1),
    (BOUNDED + 5, NETWORK + 2 - FIRST, 1),
    (BOUNDED + 6, GENEVE - FIRST, 1),
    (BOUNDED + 7, GENEVE + 11 - FIRST, 1),
    (BOUNDED + 8, AUTHORITY + 3 - FIRST, 1),
    (BOUNDED + 9, AUTHORITY + 2 - FIRST, 1),
    (BOUNDED + 10, AUTHORITY + 1 - FIRST, 1),
    (BOUNDED + 11, AUTHORITY - FIRST, 1),
    (BOUNDED + 12, HEAD + 3 - FIRST, 1),
    // The length in the UDP header.
    (COMPARED + 4, TRANSPORT + 5 - FIRST, 1),
    (COMPARED + 5, TRANSPORT + 4 - FIRST, 1),
]);

/// Sources in the inner packet.
static INNER: Places = Places::of(&[
    (SECOND_BLOCK + 8, BEFORE + 12, 8),
    // The inner packet's length, twice.
    (BOUNDED, BEFORE + 3, 1),
    (BOUNDED + 1, BEFORE + 2, 1),
    (COMPARED + 2, BEFORE + 3, 1),
    (COMPARED + 3, BEFORE + 2, 1),
    // Version, fragment, protocol, destination port, source port.
    (COMPARED + 8, BEFORE, 1),
    (COMPARED + 9, BEFORE + 6, 2),
    (COMPARED + 11, BEFORE + 9, 1),
    (COMPARED + 12, BEFORE + 22, 2),
    (COMPARED + 14, BEFORE + 20, 2),
]);

/// By number of proofs and pointer: the offset of the 64 bytes that end with the inner packet's ports, and the offset
/// of the proof. For an impossible pointer, the offset of the 64 bytes takes the place of the proof's offset.
static BEGINS: [(u8, u8); 64] = {
    let mut begins = [(0, 0); 64];
    let mut place = 0;
    while place < 64 {
        let (count, pointer) = (place >> 3, place & 7);
        let before = PROOFS + 16 * count - BEFORE;
        let proof = if pointer < count { PROOFS + 16 * pointer } else { before };
        // INVARIANT: the proof does not reach beyond the 64 bytes that end with the ports.
        assert!(proof + 16 <= before + 64);
        begins[place] = (before as u8, proof as u8);
        place += 1;
    }
    begins
};

/// Non-zero for each invalid combination of number of proofs and pointer.
static POINTERS: Row = {
    let mut wrong = Row([0xff; 64]);
    let mut count = 1;
    while count <= PROOFS_MAX {
        let mut pointer = 0;
        while pointer < count {
            wrong.0[(count << 3 | pointer) as usize] = 0;
            pointer += 1;
        }
        count += 1;
    }
    wrong
};

/// Non-zero for each invalid combination of the lower flags.
static FLAGS: Row = {
    let mut wrong = Row([0xff; 64]);
    let mut flags = 0;
    while flags < 16 {
        let both = flags & RETURN != 0 && flags & REPLY != 0;
        if !both && (flags & SINGLE == 0 || flags & WITH_PORT != 0) {
            wrong.0[flags as usize] = 0;
        }
        flags += 1;
    }
    wrong
};

/// Truth table for three operands: bits of the third operand where the first two differ.
const DIFFERS: i32 = 0x28;
/// Truth table: the first operand, or both others set.
const OR_AND: i32 = 0xf8;
/// Truth table: the first operand, or the others differ.
const OR_XOR: i32 = 0xf6;
/// Truth table: the OR of all three operands.
const OR_OR: i32 = 0xfe;
/// Truth table: the XOR of all three operands.
const XOR_XOR: i32 = 0x96;

/// The shortest frame of the plain form.
const SHORTEST: usize = PROOFS + 16 + INNER_LEN;

/// A placeholder for a frame that is shorter than its lengths say. It is not of the plain form.
#[cold]
fn other() -> &'static [u8] {
    &[0; SHORTEST]
}

/// A value of this type exists only if the processor has the features that this module needs.
#[derive(Clone, Copy)]
pub struct Wide(());

/// The receiving endpoints and the expiries that are valid. A packet is valid only if its receiving endpoint is in one
/// of the networks `endpoints`, and the expiry of its segment is within `expires`.
#[derive(Clone, Copy)]
pub struct Limits<'a> {
    /// The endpoints, each as a network and its mask. The first byte of the address is in the lowest bits.
    pub endpoints: &'a [(u32, u32)],
    /// The earliest and the latest expiry that a segment is allowed to have, Unix seconds.
    pub expires: (u32, u32),
}

/// Message blocks and proofs of four packets.
#[derive(Clone, Copy)]
struct Lanes {
    first: __m512i,
    second: __m512i,
    proof: __m512i,
    /// For each packet, the number of its key.
    keys: __m256i,
}

macro_rules! with_features {
    ($($item:item)*) => {
        $(
            #[target_feature(enable = "aes,avx2,bmi1,bmi2,movbe,avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,vaes")]
            $item
        )*
    };
}

/// Evaluates an expression for each round. `array::map` with a closure would compile to a call.
macro_rules! rounds {
    (|$at:ident: usize| $round:expr) => {{
        macro_rules! round {
            ($number:literal) => {{
                let $at = $number;
                $round
            }};
        }
        [
            round!(0),
            round!(1),
            round!(2),
            round!(3),
            round!(4),
            round!(5),
            round!(6),
            round!(7),
            round!(8),
            round!(9),
            round!(10),
        ]
    }};
}

impl Wide {
    pub fn detect() -> Option<Self> {
        let has_all = is_x86_feature_detected!("aes")
            && is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("bmi1")
            && is_x86_feature_detected!("bmi2")
            && is_x86_feature_detected!("movbe")
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vbmi")
            && is_x86_feature_detected!("vaes");
        has_all.then_some(Self(()))
    }

    /// Checks up to 32 packets. The first result has one bit for each packet, which is set if the packet has the plain
    /// form (see the module `plain`) and its fields are valid. In the second result, a packet's bit is set if the
    /// packet's proof is also right.
    pub fn verify(self, keys: &Keys<Expanded>, frames: &[&mut [u8]], limits: Limits<'_>) -> (u32, u32) {
        // SAFETY: a `Wide` exists only if the processor has the features.
        unsafe { verify(keys, frames, limits) }
    }
}

with_features! {
    fn verify(keys: &Keys<Expanded>, frames: &[&mut [u8]], limits: Limits<'_>) -> (u32, u32) {
        let mut lanes = [const { MaybeUninit::uninit() }; BATCH / FOUR];
        let (whole, rest) = frames.as_chunks::<FOUR>();
        let (mut fit, mut one, mut only) = (0, u8::MAX, _mm256_setzero_si256());
        let mut groups = 0;
        for (group, lanes) in lanes.iter_mut().take(frames.len().div_ceil(FOUR)).enumerate() {
            let four = match (whole.get(group), rest) {
                (Some([a, b, c, d]), _) => [&**a, &**b, &**c, &**d],
                (None, [a]) => [&**a; FOUR],
                (None, [a, b]) => [&**a, &**b, &**b, &**b],
                (None, [a, b, c, ..]) => [&**a, &**b, &**c, &**c],
                (None, []) => break,
            };
            let (read, bits) = read(four, keys, limits);
            if group == 0 {
                only = _mm256_broadcastq_epi64(_mm256_castsi256_si128(read.keys));
            }
            one &= _mm256_cmpeq_epi64_mask(read.keys, only);
            fit |= bits << (group * FOUR);
            lanes.write(read);
            groups = group + 1;
        }
        if frames.len() < BATCH {
            fit &= (1 << frames.len()) - 1;
        }
        if fit == 0 {
            return (0, 0);
        }
        // SAFETY: the first `groups` elements have been written.
        let lanes = unsafe { std::slice::from_raw_parts(lanes.as_ptr().cast::<Lanes>(), groups) };
        let right = if one == 0xf {
            with_one_key(lanes, keys.numbered(_mm256_extract_epi64::<0>(only) as usize))
        } else {
            with_keys(lanes, keys)
        };
        (fit, right & fit)
    }

    /// Returns these four numbers, repeated for each packet.
    #[inline]
    fn quarter(a: u32, b: u32, c: u32, d: u32) -> __m512i {
        _mm512_broadcast_i32x4(_mm_setr_epi32(a as i32, b as i32, c as i32, d as i32))
    }

    #[inline]
    fn load(bytes: &[u8; 64]) -> __m512i {
        // SAFETY: the reference makes 64 bytes readable, at any alignment.
        unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
    }

    #[inline]
    fn together([a, b, c, d]: [__m128i; FOUR]) -> __m512i {
        let all = _mm512_inserti32x4::<1>(_mm512_castsi128_si512(a), b);
        _mm512_inserti32x4::<3>(_mm512_inserti32x4::<2>(all, c), d)
    }

    /// Reads four frames and looks up their keys; returns one bit for each frame with valid fields.
    #[inline]
    fn read(frames: [&[u8]; FOUR], keys: &Keys<Expanded>, limits: Limits<'_>) -> (Lanes, u32) {
        let (form, rules) = (load(&FORM[0].0), load(&FORM[1].0));
        let (outer_from, inner_from, inner_taken) = (load(&OUTER.from.0), load(&INNER.from.0), load(&INNER.taken.0));
        macro_rules! lane {
            ($at:literal) => {{
                let mut frame = frames[$at];
                if frame.len() < SHORTEST {
                    frame = other();
                }
                let mut begins = BEGINS[usize::from(frame[HEAD] & 0x3f)];
                let end = NETWORK + usize::from(u16::from_be_bytes([frame[NETWORK + 2], frame[NETWORK + 3]]));
                if usize::from(begins.0) + 64 > frame.len() || end > frame.len() {
                    (frame, begins) = (other(), BEGINS[0]);
                }
                // SAFETY: each frame is at least as long as these reads, and its proof lies within them.
                unsafe {
                    let begin = frame.as_ptr();
                    let outer = load_here(begin.add(FIRST));
                    let inner = load_here(begin.add(begins.0.into()));
                    (outer, inner, begin.add(begins.1.into()).cast::<__m128i>())
                }
            }};
        }
        let (outer_a, inner_a, proof_a) = lane!(0);
        let (outer_b, inner_b, proof_b) = lane!(1);
        let (outer_c, inner_c, proof_c) = lane!(2);
        let (outer_d, inner_d, proof_d) = lane!(3);
        macro_rules! row {
            ($outer:ident, $inner:ident) => {{
                let outer = _mm512_permutexvar_epi8(outer_from, $outer);
                let inner = _mm512_permutexvar_epi8(inner_from, $inner);
                _mm512_ternarylogic_epi64::<OR_AND>(outer, inner, inner_taken)
            }};
        }
        let (a, b) = (row!(outer_a, inner_a), row!(outer_b, inner_b));
        let (c, d) = (row!(outer_c, inner_c), row!(outer_d, inner_d));
        // Collect the same quarter of all four packets.
        let low = [_mm512_shuffle_i64x2::<0x44>(a, b), _mm512_shuffle_i64x2::<0x44>(c, d)];
        let high = [_mm512_shuffle_i64x2::<0xee>(a, b), _mm512_shuffle_i64x2::<0xee>(c, d)];
        let first = _mm512_shuffle_i64x2::<0x88>(low[0], low[1]);
        let second = _mm512_shuffle_i64x2::<0xdd>(low[0], low[1]);
        let bounded = _mm512_shuffle_i64x2::<0x88>(high[0], high[1]);
        let compared = _mm512_shuffle_i64x2::<0xdd>(high[0], high[1]);
        // SAFETY: the offsets were checked against the lengths of the frames.
        let proof = unsafe {
            together([
                _mm_loadu_si128(proof_a), _mm_loadu_si128(proof_b), _mm_loadu_si128(proof_c), _mm_loadu_si128(proof_d),
            ])
        };
        let (numbers, has_key) = find(keys, bounded);
        let fit = fit(first, second, bounded, compared, limits) & has_key;
        let lanes = Lanes { first, second, proof, keys: numbers };
        // Bits where the frame differs from the form under the mask.
        let differs_a = _mm512_ternarylogic_epi64::<DIFFERS>(outer_a, form, rules);
        let differs_b = _mm512_ternarylogic_epi64::<DIFFERS>(outer_b, form, rules);
        let differs_c = _mm512_ternarylogic_epi64::<DIFFERS>(outer_c, form, rules);
        let differs_d = _mm512_ternarylogic_epi64::<DIFFERS>(outer_d, form, rules);
        let differs = _mm512_ternarylogic_epi64::<OR_OR>(differs_a, differs_b, _mm512_or_si512(differs_c, differs_d));
        if _mm512_test_epi64_mask(differs, differs) == 0 {
            return (lanes, fit);
        }
        let mut plain = 0;
        for (lane, differs) in [differs_a, differs_b, differs_c, differs_d].into_iter().enumerate() {
            plain |= u32::from(_mm512_test_epi64_mask(differs, differs) == 0) << lane;
        }
        (lanes, fit & plain)
    }

    /// Returns the numbers of four keys, and one bit for each key that exists.
    #[inline]
    fn find(keys: &Keys<Expanded>, fields: __m512i) -> (__m256i, u32) {
        let names = _mm512_permutexvar_epi64(_mm512_setr_epi64(1, 3, 5, 7, 1, 3, 5, 7), fields);
        let names = _mm512_castsi512_si256(names);
        let (slots, shift) = keys.slots();
        let hashes = _mm256_mullo_epi64(names, _mm256_set1_epi64x(HASH as i64));
        let at = _mm256_srl_epi64(hashes, _mm_cvtsi64_si128(shift.into()));
        // SAFETY: the shift leaves only as many bits as an index of a slot has.
        let slots = unsafe { _mm256_i64gather_epi64::<8>(slots.as_ptr().cast(), at) };
        let same = _mm256_cmpeq_epi64_mask(_mm256_srli_epi64::<{ NUMBER as i32 }>(slots), names);
        let numbers = _mm256_and_si256(slots, _mm256_set1_epi64x((1 << NUMBER) - 1));
        let found = same & _mm256_test_epi64_mask(numbers, numbers);
        if found == 0xf {
            return (numbers, 0xf);
        }
        // Some key is missing, or not in the first slot of its search.
        let mut all = [0i64; FOUR];
        // SAFETY: the array has room for four.
        unsafe { _mm256_storeu_si256(all.as_mut_ptr().cast(), names) };
        let all = all.map(|name| keys.number(name as u64) as i64);
        let numbers = _mm256_setr_epi64x(all[0], all[1], all[2], all[3]);
        (numbers, u32::from(_mm256_test_epi64_mask(numbers, numbers)))
    }

    /// Loads 64 bytes. An intrinsic would let the compiler defer the load until it runs out of registers, and reload
    /// single fields from memory.
    ///
    /// # Safety
    /// 64 bytes must be readable at `from`.
    #[inline]
    unsafe fn load_here(from: *const u8) -> __m512i {
        let bytes;
        // SAFETY: guaranteed by the caller.
        unsafe { asm!("vmovdqu64 {}, [{}]", out(zmm_reg) bytes, in(reg) from, options(readonly, nostack, preserves_flags)) };
        bytes
    }

    /// Returns one bit for each of four packets with valid fields.
    #[inline]
    fn fit(first: __m512i, second: __m512i, bounded: __m512i, compared: __m512i, limits: Limits<'_>) -> u32 {
        // 16-bit words: the length of the inner packet; the length of the outer packet minus that of the inner packet
        // and of the proofs; the same minus the length in the UDP header; the lengths in the headers minus those of the
        // proofs.
        let counts = _mm512_and_si512(first, quarter(COUNT.into(), 0, 0, 0));
        // 16 per proof in the second word, and 4 per proof in both bytes of the fourth.
        let counts = _mm512_multishift_epi64_epi8(quarter(0x103f_1010, 0x0101_1010, 0x1010_1010, 0x1010_1010), counts);
        let values = _mm512_mask_subs_epu16(bounded, 0x0606_0606, bounded, compared);
        let values = _mm512_subs_epu16(values, counts);
        let word = |low: usize, high: usize| (low | high << 16) as u32;
        let (headers, before_udp, words) = (PROOFS - NETWORK, TRANSPORT - NETWORK, 6 | 5 << 8);
        let least = quarter(word(INNER_LEN, headers), word(before_udp, words), 0, 0);
        let most = quarter(u32::MAX, word(before_udp, words), u32::MAX, u32::MAX);
        let lengths = _mm512_min_epu16(_mm512_max_epu16(values, least), most);
        let (earliest, latest) = limits.expires;
        let ends = _mm512_shuffle_epi8(first, quarter(0x0405_0607, 0x8080_8080, 0x8080_8080, 0x8080_8080));
        let lives = _mm512_max_epu32(ends, quarter(earliest, 0, 0, 0));
        let lives = _mm512_min_epu32(lives, quarter(latest, 0, 0, 0));
        // Non-zero where a value is out of bounds.
        let outside = _mm512_ternarylogic_epi64::<OR_XOR>(_mm512_xor_si512(values, lengths), ends, lives);

        // Compare the segment's service with the inner packet's; fields that the segment's flags leave open are zero.
        let service = quarter(0x8080_8080, 0x8080_8080, 0x0280_8080, 0x0d0c_0b0a);
        let service = _mm512_shuffle_epi8(first, service);
        let flags = _mm512_shuffle_epi8(first, quarter(0x0101_0101, 0x0101_0101, 0x0101_0101, 0x0101_0101));
        let back = _mm512_test_epi32_mask(flags, quarter(0, 0, 0, RETURN.into()));
        let inner = _mm512_mask_rol_epi32::<16>(compared, back, compared);
        let port = u32::from(WITH_PORT);
        let asked = quarter(0, 0, port << 24, port | port << 8 | u32::from(SINGLE) << 16 | u32::from(SINGLE) << 24);
        let inner = _mm512_maskz_mov_epi8(_mm512_test_epi8_mask(flags, asked), inner);
        // Check version, and that this is not a later fragment.
        let begin = _mm512_ternarylogic_epi64::<DIFFERS>(compared, quarter(0, 0, 0x45, 0), quarter(0, 0, 0xff_1fff, 0));
        let differs = _mm512_ternarylogic_epi64::<OR_XOR>(begin, service, inner);

        let impossible = _mm512_maskz_permutexvar_epi8(0x0001_0001_0001_0001, first, load(&POINTERS.0));
        let impossible = _mm512_mask_permutexvar_epi8(impossible, 0x0002_0002_0002_0002, first, load(&FLAGS.0));
        let wrong = _mm512_ternarylogic_epi64::<OR_OR>(outside, differs, impossible);
        let wrong = u32::from(_mm512_test_epi32_mask(wrong, wrong));

        // Either no port flag, or a port flag with a protocol that has ports.
        let protocol = _mm512_and_si512(first, quarter(0x00ff_0000 | port << 8, 0, 0, 0));
        let with_port = |protocol: u8| quarter(u32::from(protocol) << 16 | port << 8, 0, 0, 0);
        let known = _mm512_testn_epi32_mask(protocol, protocol)
            | _mm512_cmpeq_epi32_mask(protocol, with_port(TCP))
            | _mm512_cmpeq_epi32_mask(protocol, with_port(UDP));
        let mut ours = 0;
        for (network, mask) in limits.endpoints {
            let masked = _mm512_and_si512(second, _mm512_set1_epi32(*mask as i32));
            ours |= _mm512_cmpeq_epi32_mask(masked, _mm512_set1_epi32(*network as i32));
        }
        let right = u32::from(known & 0x1111 | ours & 0x2222);
        let wrong = (right ^ 0x3333) | wrong;
        let wrong = wrong | wrong >> 1;
        let wrong = wrong | wrong >> 2;
        _pext_u32(!wrong, 0x1111)
    }

    /// Returns one bit for each packet with a right proof, if all have the same key.
    #[inline]
    fn with_one_key(lanes: &[Lanes], key: &Expanded) -> u32 {
        let rounds = rounds!(|at: usize| _mm512_broadcast_i32x4(key.rounds[at]));
        let subkey = _mm512_broadcast_i32x4(key.subkey);
        let mut right = 0;
        for (group, lanes) in lanes.iter().enumerate() {
            right |= macs(lanes, &rounds, subkey) << (group * FOUR);
        }
        right
    }

    /// Returns one bit for each packet with a right proof. Two packets share a register, because the processor runs
    /// more operations on registers of this size in parallel, and combining the keys takes most of the time.
    #[inline]
    fn with_keys(lanes: &[Lanes], keys: &Keys<Expanded>) -> u32 {
        let mut right = 0;
        for (group, lanes) in lanes.iter().enumerate() {
            let numbers = [_mm256_castsi256_si128(lanes.keys), _mm256_extracti128_si256::<1>(lanes.keys)];
            let half = |wide: __m512i| [_mm512_castsi512_si256(wide), _mm512_extracti64x4_epi64::<1>(wide)];
            let (first, second, proof) = (half(lanes.first), half(lanes.second), half(lanes.proof));
            for pair in 0..2 {
                let [a, b] = [_mm_extract_epi64::<0>(numbers[pair]), _mm_extract_epi64::<1>(numbers[pair])];
                let (a, b) = (keys.numbered(a as usize), keys.numbered(b as usize));
                let both = |a: __m128i, b: __m128i| _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(a), b);
                let rounds = rounds!(|at: usize| both(a.rounds[at], b.rounds[at]));
                let encrypt = |block: __m256i| {
                    let mut block = _mm256_xor_si256(block, rounds[0]);
                    for round in &rounds[1..10] {
                        block = _mm256_aesenc_epi128(block, *round);
                    }
                    _mm256_aesenclast_epi128(block, rounds[10])
                };
                let subkey = both(a.subkey, b.subkey);
                let mac = encrypt(_mm256_ternarylogic_epi64::<XOR_XOR>(encrypt(first[pair]), second[pair], subkey));
                let wrong = u32::from(_mm256_cmpneq_epi64_mask(mac, proof[pair]));
                right |= _pext_u32(!(wrong | wrong >> 1), 5) << (group * FOUR + pair * 2);
            }
        }
        right
    }

    #[inline]
    fn macs(lanes: &Lanes, rounds: &[__m512i; 11], subkey: __m512i) -> u32 {
        let first = encrypt(lanes.first, rounds);
        let mac = encrypt(_mm512_ternarylogic_epi64::<XOR_XOR>(first, lanes.second, subkey), rounds);
        // The mask has two bits per packet.
        let wrong = u32::from(_mm512_cmpneq_epi64_mask(mac, lanes.proof));
        _pext_u32(!(wrong | wrong >> 1), 0x55)
    }

    #[inline]
    fn encrypt(block: __m512i, rounds: &[__m512i; 11]) -> __m512i {
        let mut block = _mm512_xor_si512(block, rounds[0]);
        for round in &rounds[1..10] {
            block = _mm512_aesenc_epi128(block, *round);
        }
        _mm512_aesenclast_epi128(block, rounds[10])
    }
}
