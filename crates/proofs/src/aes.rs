//! AES-128-CMAC of messages of two blocks (RFC 4493), eight at a time, each with a key of its own.
//!
//! One message is a chain of 20 rounds, each of which waits for the one before; a core has eight chains under way in hardly more
//! than the time of one. Where the processor has no AES, library code computes one after the other.

use wire::Suite;
use zeroize::Zeroizing;

/// Messages that are computed side by side.
pub const LANES: usize = 8;

/// A message as numbers of eight bytes each, the first byte the lowest.
pub type Message = [u64; 4];
/// A MAC in the same form.
pub type Mac = [u64; 2];

/// Keys in the form that MACs are made with.
pub enum KeySet {
    /// With round keys, for the processor.
    #[cfg(target_arch = "x86_64")]
    Native(Vec<native::Expanded>),
    /// For library code.
    Plain(Zeroizing<Vec<[u8; 16]>>),
}

impl KeySet {
    /// Expands keys where that is of use.
    pub fn new(keys: Zeroizing<Vec<[u8; 16]>>) -> Self {
        #[cfg(target_arch = "x86_64")]
        if let Some(aes) = native::Aes::detect() {
            return Self::Native(keys.iter().map(|key| aes.expand(key)).collect());
        }
        Self::Plain(keys)
    }

    /// The MACs of the first `count` messages, each under the key with its number.
    #[inline]
    pub fn macs(&self, numbers: &[usize; LANES], messages: &[Message; LANES], count: usize) -> [Mac; LANES] {
        let mut macs = [[0; 2]; LANES];
        match self {
            #[cfg(target_arch = "x86_64")]
            // Where more than these wait, eight take no longer.
            Self::Native(keys) if count > 2 => {
                // Not by `array::from_fn`, which is a call with the result in memory.
                let [a, b, c, d, e, f, g, h] = *numbers;
                let keys = [&keys[a], &keys[b], &keys[c], &keys[d], &keys[e], &keys[f], &keys[g], &keys[h]];
                macs = native::macs(keys, messages);
            }
            #[cfg(target_arch = "x86_64")]
            Self::Native(keys) => {
                for lane in 0..count {
                    [macs[lane]] = native::macs([&keys[numbers[lane]]], &[messages[lane]]);
                }
            }
            Self::Plain(keys) => {
                for lane in 0..count {
                    macs[lane] = plain(&keys[numbers[lane]], &messages[lane]);
                }
            }
        }
        macs
    }
}

fn plain(key: &[u8; 16], message: &Message) -> Mac {
    let mac = Suite::AesCmac.mac(key, &message.map(u64::to_le_bytes).each_ref().map(<[u8; 8]>::as_slice));
    let whole = u128::from_le_bytes(mac);
    [whole as u64, (whole >> 64) as u64]
}

#[cfg(target_arch = "x86_64")]
mod native {
    use super::{Mac, Message};
    use std::arch::x86_64::{
        __m128i, _mm_aesenc_si128, _mm_aesenclast_si128, _mm_aeskeygenassist_si128, _mm_cvtsi128_si64, _mm_loadu_si128,
        _mm_set_epi64x, _mm_setzero_si128, _mm_shuffle_epi32, _mm_slli_si128, _mm_srli_si128, _mm_storeu_si128,
        _mm_xor_si128,
    };
    use std::hint::black_box;
    use zeroize::{Zeroize, ZeroizeOnDrop};

    /// Shows that the processor has AES.
    #[derive(Clone, Copy)]
    pub struct Aes(());

    /// Round keys, and the first subkey. There is one only where the processor has AES.
    #[derive(Zeroize, ZeroizeOnDrop)]
    pub struct Expanded {
        rounds: [__m128i; 11],
        subkey: __m128i,
    }

    impl Aes {
        pub fn detect() -> Option<Self> {
            is_x86_feature_detected!("aes").then_some(Self(()))
        }

        pub fn expand(self, key: &[u8; 16]) -> Expanded {
            // SAFETY: there is an `Aes` only where the processor has the feature.
            unsafe { expand(key) }
        }
    }

    pub fn macs<const N: usize>(keys: [&Expanded; N], messages: &[Message; N]) -> [Mac; N] {
        // SAFETY: there are expanded keys only where the processor has the feature.
        unsafe { chains(keys, messages) }
    }

    fn load(bytes: &[u8; 16]) -> __m128i {
        // SAFETY: 16 bytes are there to read, at whatever address; every x86-64 has SSE2.
        unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
    }

    fn bytes(block: __m128i) -> [u8; 16] {
        let mut bytes = [0; 16];
        // SAFETY: 16 bytes are there to write, at whatever address; every x86-64 has SSE2.
        unsafe { _mm_storeu_si128(bytes.as_mut_ptr().cast(), block) };
        bytes
    }

    /// FIPS 197, 5.2: a round key from the one before.
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
        // RFC 4493, 2.3; without a branch on the key.
        let subkey = (zero << 1) ^ ((zero >> 127) * 0x87);
        Expanded { rounds, subkey: load(&subkey.to_be_bytes()) }
    }

    /// Encrypts each block under its key. A macro, for it has to be part of who uses it: the blocks stay in registers.
    macro_rules! encrypt {
        ($keys:ident, $blocks:ident) => {
            for lane in 0..N {
                $blocks[lane] = _mm_xor_si128($blocks[lane], $keys[lane].rounds[0]);
            }
            for round in 1..10 {
                for lane in 0..N {
                    $blocks[lane] = _mm_aesenc_si128($blocks[lane], $keys[lane].rounds[round]);
                }
            }
            for lane in 0..N {
                $blocks[lane] = _mm_aesenclast_si128($blocks[lane], $keys[lane].rounds[10]);
            }
        };
    }

    #[target_feature(enable = "aes")]
    fn chains<const N: usize>(keys: [&Expanded; N], messages: &[Message; N]) -> [Mac; N] {
        let mut blocks = [_mm_setzero_si128(); N];
        for lane in 0..N {
            let [one, other, ..] = messages[lane];
            blocks[lane] = _mm_set_epi64x(other as i64, one as i64);
        }
        encrypt!(keys, blocks);
        for lane in 0..N {
            let [.., one, other] = messages[lane];
            let half = _mm_xor_si128(keys[lane].subkey, _mm_set_epi64x(other as i64, one as i64));
            blocks[lane] = _mm_xor_si128(blocks[lane], half);
        }
        // Or the compiler keeps the round keys from the first block, which are too many for the registers, on the stack.
        let keys = black_box(keys);
        encrypt!(keys, blocks);
        let mut macs = [[0; 2]; N];
        for lane in 0..N {
            let high = _mm_cvtsi128_si64(_mm_srli_si128::<8>(blocks[lane]));
            macs[lane] = [_mm_cvtsi128_si64(blocks[lane]) as u64, high as u64];
        }
        macs
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn macs_are_those_that_library_code_computes(keys: [[u8; 16]; LANES], messages: [Message; LANES], count in 0..=LANES) {
            let numbers = std::array::from_fn(|lane| (lane * 3) % LANES);
            let mut expected = [[0; 2]; LANES];
            for lane in 0..count {
                expected[lane] = plain(&keys[numbers[lane]], &messages[lane]);
            }
            let keys = Zeroizing::new(keys.to_vec());
            for set in [KeySet::new(keys.clone()), KeySet::Plain(keys)] {
                prop_assert_eq!(&set.macs(&numbers, &messages, count)[..count], &expected[..count]);
            }
        }
    }
}
