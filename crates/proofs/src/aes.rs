//! AES-128-CMAC of two-block messages (RFC 4493), eight at a time, each with a key of its own.
//!
//! The MAC of one message takes a chain of 20 AES rounds, each of which depends on the one before. A core computes
//! eight such chains in hardly more time than one. On a processor without AES instructions, library code computes the
//! MACs one after the other.
//!
//! Each block of a message is loaded directly from the packet. Loading a block that several small writes have just
//! assembled in memory would be slow.

use crate::plain::Plain;
use wire::Suite;
use wire::mac::tags_equal;
use zeroize::{Zeroize, ZeroizeOnDrop};

/// Number of messages computed in parallel.
pub const LANES: usize = 8;

/// A packet, and the key with which its proof is verified.
pub type Lane<'a, K> = (Plain<'a>, &'a K);

/// A key in the form in which the library code computes with it.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct LibraryKey([u8; 16]);

impl LibraryKey {
    pub fn new(key: &[u8; 16]) -> Self {
        Self(*key)
    }
}

/// Returns one bit for each packet. The bit is set if the packet's proof is right.
pub fn right(lanes: &[Lane<'_, LibraryKey>; LANES]) -> u8 {
    let right = lanes.iter().enumerate().map(|(lane, (packet, key))| {
        let mac = Suite::AesCmac.mac(&key.0, &[&message(packet)]);
        u8::from(tags_equal(&mac, packet.proof())) << lane
    });
    right.sum()
}

/// Builds the message that the proof covers (wire.md §8.6).
fn message(packet: &Plain<'_>) -> [u8; 32] {
    let mut message = [0; 32];
    message[..16].copy_from_slice(packet.head());
    [message[3], message[14], message[15], _] = *packet.vni();
    message[16..24].copy_from_slice(packet.endpoints());
    message[24..].copy_from_slice(packet.ends());
    message
}

#[cfg(target_arch = "x86_64")]
pub mod native {
    use super::{LANES, Lane};
    use std::arch::x86_64::{
        __m128i, _MM_HINT_T0, _mm_aesenc_si128, _mm_aesenclast_si128, _mm_aeskeygenassist_si128, _mm_and_si128,
        _mm_cvtsi32_si128, _mm_loadu_si128, _mm_or_si128, _mm_prefetch, _mm_set_epi8, _mm_set_epi64x,
        _mm_setzero_si128, _mm_shuffle_epi8, _mm_shuffle_epi32, _mm_slli_si128, _mm_storeu_si128, _mm_testz_si128,
        _mm_xor_si128,
    };
    use std::hint::black_box;
    use zeroize::{Zeroize, ZeroizeOnDrop};

    /// A key in expanded form: the round keys and the first subkey. Values of this type exist only on processors with
    /// the features that [`right`] needs.
    #[derive(Clone, Zeroize, ZeroizeOnDrop)]
    #[repr(align(64))]
    pub struct Expanded {
        pub rounds: [__m128i; 11],
        pub subkey: __m128i,
    }

    /// Prefetches into the processor's cache the headers of a frame that will be read soon.
    #[inline(always)]
    pub fn fetch(frame: &[u8]) {
        for line in 0..3 {
            // SAFETY: a prefetch reads nothing; at an invalid address it has no effect.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(frame.as_ptr().wrapping_add(line * 64).cast()) };
        }
    }

    /// A proof that the processor has the features that [`right`] needs. It also expands keys.
    #[derive(Clone, Copy)]
    pub struct Processor(());

    impl Processor {
        /// Returns a `Processor` if the processor has AES and the other features that [`right`] needs.
        pub fn detect() -> Option<Self> {
            let has_all = is_x86_feature_detected!("aes")
                && is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("bmi1")
                && is_x86_feature_detected!("bmi2")
                && is_x86_feature_detected!("movbe");
            has_all.then_some(Self(()))
        }

        pub fn expand(self, key: &[u8; 16]) -> Expanded {
            // SAFETY: a `Processor` exists only if the processor has the features.
            unsafe { expand(key) }
        }
    }

    fn load(bytes: &[u8; 16]) -> __m128i {
        // SAFETY: the reference makes 16 bytes readable, at any alignment; every x86-64 processor has SSE2.
        unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
    }

    fn bytes(block: __m128i) -> [u8; 16] {
        let mut bytes = [0; 16];
        // SAFETY: the array makes 16 bytes writable, at any alignment; every x86-64 processor has SSE2.
        unsafe { _mm_storeu_si128(bytes.as_mut_ptr().cast(), block) };
        bytes
    }

    /// Derives a round key from the one before (FIPS 197, 5.2).
    #[target_feature(enable = "aes")]
    fn next<const CONSTANT: i32>(before: __m128i) -> __m128i {
        let word = _mm_shuffle_epi32::<0xff>(_mm_aeskeygenassist_si128::<CONSTANT>(before));
        let mut key = before;
        for _ in 0..3 {
            key = _mm_xor_si128(before, _mm_slli_si128::<4>(key));
        }
        _mm_xor_si128(key, word)
    }

    #[target_feature(enable = "aes")]
    fn expand(key: &[u8; 16]) -> Expanded {
        let mut rounds = [load(key); 11];
        rounds[1] = next::<0x01>(rounds[0]);
        rounds[2] = next::<0x02>(rounds[1]);
        rounds[3] = next::<0x04>(rounds[2]);
        rounds[4] = next::<0x08>(rounds[3]);
        rounds[5] = next::<0x10>(rounds[4]);
        rounds[6] = next::<0x20>(rounds[5]);
        rounds[7] = next::<0x40>(rounds[6]);
        rounds[8] = next::<0x80>(rounds[7]);
        rounds[9] = next::<0x1b>(rounds[8]);
        rounds[10] = next::<0x36>(rounds[9]);
        let mut zero = _mm_xor_si128(_mm_setzero_si128(), rounds[0]);
        for round in &rounds[1..10] {
            zero = _mm_aesenc_si128(zero, *round);
        }
        let zero = u128::from_be_bytes(bytes(_mm_aesenclast_si128(zero, rounds[10])));
        // RFC 4493, 2.3, without a branch on the key.
        let subkey = (zero << 1) ^ ((zero >> 127) * 0x87);
        Expanded { rounds, subkey: load(&subkey.to_be_bytes()) }
    }

    /// Encrypts each block with its key. This is a macro because it has to be inlined into its caller, so that the
    /// blocks stay in registers.
    macro_rules! encrypt {
        ($keys:ident, $blocks:ident) => {
            for lane in 0..LANES {
                $blocks[lane] = _mm_xor_si128($blocks[lane], $keys[lane].rounds[0]);
            }
            for round in 1..10 {
                for lane in 0..LANES {
                    $blocks[lane] = _mm_aesenc_si128($blocks[lane], $keys[lane].rounds[round]);
                }
            }
            for lane in 0..LANES {
                $blocks[lane] = _mm_aesenclast_si128($blocks[lane], $keys[lane].rounds[10]);
            }
        };
    }

    /// Returns one bit for each packet. The bit is set if the packet's proof is right.
    #[inline]
    #[target_feature(enable = "aes,avx2,bmi1,bmi2,movbe")]
    pub fn right(lanes: &[Lane<'_, Expanded>; LANES]) -> u8 {
        // `array::map` would compile to a call with the result in memory.
        let [a, b, c, d, e, f, g, h] = lanes;
        let keys = [a.1, b.1, c.1, d.1, e.1, f.1, g.1, h.1];
        // Positions of the VNI's bytes in the first block, and a mask of the bytes that come from the segment.
        let places = _mm_set_epi8(2, 1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0, -1, -1, -1);
        let own = _mm_set_epi64x(0x0000_ffff_ffff_ffff, !0xff00_0000);
        let mut blocks = [_mm_setzero_si128(); LANES];
        for lane in 0..LANES {
            let packet = &lanes[lane].0;
            let vni = _mm_shuffle_epi8(_mm_cvtsi32_si128(i32::from_le_bytes(*packet.vni())), places);
            blocks[lane] = _mm_or_si128(vni, _mm_and_si128(own, load(packet.head())));
        }
        encrypt!(keys, blocks);
        for lane in 0..LANES {
            let packet = &lanes[lane].0;
            let [low, high] = [packet.endpoints(), packet.ends()].map(|ends| i64::from_le_bytes(*ends));
            let half = _mm_xor_si128(keys[lane].subkey, _mm_set_epi64x(high, low));
            blocks[lane] = _mm_xor_si128(blocks[lane], half);
        }
        // Otherwise the compiler keeps the round keys of the first block, which are too many for the registers, on the
        // stack.
        let keys = black_box(keys);
        encrypt!(keys, blocks);
        let mut wrong = _mm_setzero_si128();
        for lane in 0..LANES {
            blocks[lane] = _mm_xor_si128(blocks[lane], load(lanes[lane].0.proof()));
            wrong = _mm_or_si128(wrong, blocks[lane]);
        }
        if _mm_testz_si128(wrong, wrong) == 1 {
            return u8::MAX;
        }
        let mut right = 0;
        for (lane, block) in blocks.into_iter().enumerate() {
            right |= (_mm_testz_si128(block, block) as u8) << lane;
        }
        right
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plain::tests::Parts;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn right_are_those_that_library_code_finds_right(
            keys: [[u8; 16]; LANES], mut parts: [Parts; LANES], wrong: [Option<prop::sample::Index>; LANES],
        ) {
            let mut expected = 0;
            for lane in 0..LANES {
                let message = message(&parts[lane].packet());
                parts[lane].proof = Suite::AesCmac.mac(&keys[lane], &[&message]);
                match wrong[lane] {
                    Some(bit) => parts[lane].proof[bit.index(128) / 8] ^= 1 << (bit.index(128) % 8),
                    None => expected |= 1 << lane,
                }
            }
            let own = keys.map(|key| LibraryKey::new(&key));
            let lanes = std::array::from_fn(|lane| (parts[lane].packet(), &own[lane]));
            prop_assert_eq!(right(&lanes), expected);
            #[cfg(target_arch = "x86_64")]
            if let Some(processor) = native::Processor::detect() {
                let own = keys.map(|key| processor.expand(&key));
                let lanes = std::array::from_fn(|lane| (parts[lane].packet(), &own[lane]));
                // SAFETY: a `Processor` exists only if the processor has the features.
                prop_assert_eq!(unsafe { native::right(&lanes) }, expected);
            }
        }
    }
}
