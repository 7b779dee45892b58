//! Maps whose keys are random numbers, or hashes of random numbers. A part of such a key serves as its hash. Somebody who
//! can make the authority draw many keys could keep those that collide, but a limit per account bounds how many keys an
//! account has at a time.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map with random keys of at least eight bytes. The caller must not insert a key that an attacker could choose.
pub type RandomKeys<K, V> = HashMap<K, V, BuildHasherDefault<PartOfKey>>;

/// The first eight bytes of a key.
#[derive(Clone, Copy, Default)]
pub struct PartOfKey(u64);

impl Hasher for PartOfKey {
    /// Takes the first eight bytes of the last part that has as many. A slice writes its length before its content.
    fn write(&mut self, bytes: &[u8]) {
        if let Some(first) = bytes.first_chunk() {
            self.0 = u64::from_ne_bytes(*first);
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hash::{BuildHasher, BuildHasherDefault};

    #[test]
    fn the_hash_is_the_beginning_of_the_key() {
        let hash = BuildHasherDefault::<PartOfKey>::default();
        assert_eq!(hash.hash_one(7_u64), 7);
        let key: [u8; 32] = std::array::from_fn(|place| place as u8 + 1);
        assert_eq!(hash.hash_one(key), u64::from_ne_bytes([1, 2, 3, 4, 5, 6, 7, 8]));
    }
}
