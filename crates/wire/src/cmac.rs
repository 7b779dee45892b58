//! AES-128-CMAC (RFC 4493), with a single call into the `aes` crate for each message. The `cmac` crate makes two calls.
//! In each call, the `aes` crate first gets ready to encrypt many blocks in parallel. That takes longer than the
//! encryption of a message's few blocks, and CMAC gains nothing from it, because each block depends on the block before
//! it.

use aes::Aes128Enc;
use aes::cipher::consts::U16;
use aes::cipher::{Block, BlockCipherEncBackend, BlockCipherEncClosure, BlockCipherEncrypt, BlockSizeUser, KeyInit};

const LEN: usize = 16;

/// Computes the AES-128-CMAC (RFC 4493) of the concatenated parts.
pub fn cmac(key: &[u8; LEN], parts: &[&[u8]]) -> [u8; LEN] {
    let mut mac = [0; LEN];
    Aes128Enc::new(key.into()).encrypt_with_backend(Chain { zero: None, parts, mac: &mut mac });
    mac
}

/// A key with its round keys and the value from which the subkeys derive. Preparing them takes longer than the MAC of a
/// short message. The key is wiped when it is dropped.
#[derive(Clone)]
pub struct PreparedKey {
    cipher: Aes128Enc,
    /// The encrypted zero block.
    zero: u128,
}

impl PreparedKey {
    /// Prepares a key.
    pub fn new(key: &[u8; LEN]) -> Self {
        let (cipher, mut zero) = (Aes128Enc::new(key.into()), Block::<Aes128Enc>::default());
        cipher.encrypt_block(&mut zero);
        Self { cipher, zero: u128::from_be_bytes(zero.into()) }
    }

    /// Computes the MAC of the concatenated parts, as [`cmac`] does.
    pub fn cmac(&self, parts: &[&[u8]]) -> [u8; LEN] {
        let mut mac = [0; LEN];
        self.cipher.encrypt_with_backend(Chain { zero: Some(self.zero), parts, mac: &mut mac });
        mac
    }
}

impl Drop for PreparedKey {
    fn drop(&mut self) {
        (self.cipher, self.zero) = (Aes128Enc::new(&[0; LEN].into()), 0);
        // Without this barrier, the compiler could leave out a write that nobody reads.
        zeroize::optimization_barrier(self);
    }
}

struct Chain<'a> {
    /// The encrypted zero block, if it is known already.
    zero: Option<u128>,
    parts: &'a [&'a [u8]],
    mac: &'a mut [u8; LEN],
}

impl BlockSizeUser for Chain<'_> {
    type BlockSize = U16;
}

impl BlockCipherEncClosure for Chain<'_> {
    #[inline(always)]
    fn call<B: BlockCipherEncBackend<BlockSize = U16>>(self, backend: &B) {
        let encrypt = |block: u128| {
            let mut block: Block<Aes128Enc> = block.to_be_bytes().into();
            backend.encrypt_block((&mut block).into());
            u128::from_be_bytes(block.into())
        };
        let (mut state, mut block, mut filled) = (0, [0; LEN], 0);
        for part in self.parts {
            let mut rest = *part;
            while !rest.is_empty() {
                // Encrypt the block only if more bytes follow: the last block, full or not, is handled below.
                if filled == LEN {
                    state = encrypt(state ^ u128::from_be_bytes(block));
                    filled = 0;
                }
                let (now, later) = rest.split_at(rest.len().min(LEN - filled));
                block[filled..filled + now.len()].copy_from_slice(now);
                filled += now.len();
                rest = later;
            }
        }
        let mut subkey = double(self.zero.unwrap_or_else(|| encrypt(0)));
        if filled < LEN {
            block[filled] = 0x80;
            block[filled + 1..].fill(0);
            subkey = double(subkey);
        }
        *self.mac = encrypt(state ^ u128::from_be_bytes(block) ^ subkey).to_be_bytes();
    }
}

/// Doubles a value in GF(2^128), in constant time.
const fn double(of: u128) -> u128 {
    (of << 1) ^ ((of >> 127) * 0x87)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::cmac::{Cmac, Mac};
    use aes::Aes128;
    use proptest::prelude::*;

    /// The test vectors of RFC 4493 §4 hold.
    #[test]
    fn the_standards_examples_come_out() {
        let bytes = |hex: &str| hex::decode(hex).unwrap();
        let key = bytes("2b7e151628aed2a6abf7158809cf4f3c").try_into().unwrap();
        let message = bytes(
            "6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51\
             30c81c46a35ce411e5fbc1191a0a52eff69f2445df4f9b17ad2b417be66c3710",
        );
        for (length, mac) in [
            (0, "bb1d6929e95937287fa37d129b756746"),
            (16, "070a16b46b4d4144f79bdd9dd04a287c"),
            (40, "dfa66747de9ae63030ca32611497c827"),
            (64, "51f0bebf7e3b9d92fc49741779363cfe"),
        ] {
            assert_eq!(hex::encode(cmac(&key, &[&message[..length]])), mac, "{length} bytes");
        }
    }

    proptest! {
        #[test]
        fn it_is_the_librarys_however_the_message_is_cut(
            key: [u8; LEN], message in proptest::collection::vec(any::<u8>(), 0..80), cuts: [prop::sample::Index; 3],
        ) {
            let mut library = <Cmac<Aes128> as KeyInit>::new(&key.into());
            library.update(&message);
            let mut cuts = cuts.map(|cut| cut.index(message.len() + 1));
            cuts.sort();
            let [one, two, three] = cuts;
            let parts = [&message[..one], &message[one..two], &message[two..three], &message[three..]];
            let mac = <[u8; LEN]>::from(library.finalize().into_bytes());
            prop_assert_eq!(cmac(&key, &parts), mac);
            prop_assert_eq!(PreparedKey::new(&key).cmac(&parts), mac);
        }
    }
}
