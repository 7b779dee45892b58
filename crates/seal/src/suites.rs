//! The AEADs of records (wire.md §9.3.3). Each AEAD has a file of its own and a row in [`TABLE`].
//!
//! To add an AEAD, give it a number, a name and a key length in `wire::seal::Suite`, add a file like
//! [`chacha20_poly1305`](self), and add a row to [`TABLE`].

mod aes_128_gcm;
mod aes_256_gcm;
mod chacha20_poly1305;

use aws_lc_rs::aead::{Aad, Algorithm, LessSafeKey, Nonce, UnboundKey};
use wire::seal::record::TAG_LEN;
use wire::seal::{Suite, Suites};

/// Length of a nonce in bytes, for every suite.
pub const NONCE_LEN: usize = 12;

/// An AEAD with a key. The caller must not use the same nonce for two messages.
pub trait Aead: Send + Sync {
    /// Encrypts `text` in place, and returns the tag that authenticates `text` and `clear`. `clear` is not encrypted.
    /// Returns `None` if the library fails; then `text` must not be sent.
    fn seal(&self, nonce: [u8; NONCE_LEN], clear: &[u8], text: &mut [u8]) -> Option<[u8; TAG_LEN]>;

    /// Does what [`Self::seal`] does, but reads the text from `text` and writes it, encrypted, to `to`, which has the
    /// same length.
    fn seal_to(&self, nonce: [u8; NONCE_LEN], clear: &[u8], text: &[u8], to: &mut [u8]) -> Option<[u8; TAG_LEN]>;

    /// Decrypts `text` in place. Returns `false` if the tag does not match `text` and `clear`; the content of `text` is
    /// then meaningless.
    fn open(&self, nonce: [u8; NONCE_LEN], clear: &[u8], text: &mut [u8], tag: &[u8; TAG_LEN]) -> bool;
}

/// A row of [`TABLE`]: one AEAD.
pub struct Row {
    /// The number of the AEAD.
    pub suite: Suite,
    /// Creates the AEAD with the given key. Returns `None` if the key does not have [`Suite::key_len`] bytes.
    pub with_key: fn(&[u8]) -> Option<Box<dyn Aead>>,
    /// Reports whether this machine's processor has instructions for the AEAD.
    pub is_helped: fn() -> bool,
}

/// The rows of all suites, in the order of the suites' numbers.
pub static TABLE: [Row; 3] = [aes_128_gcm::ROW, aes_256_gcm::ROW, chacha20_poly1305::ROW];

/// Returns the row of a suite.
pub fn row(suite: Suite) -> &'static Row {
    // A test checks that the rows are in the order of the suites' numbers.
    &TABLE[suite as usize - 1]
}

/// Returns the suites for which this machine's processor has instructions.
pub fn helped() -> Suites {
    TABLE.iter().filter(|row| (row.is_helped)()).fold(Suites::default(), |suites, row| suites.with(row.suite))
}

/// An AEAD from the library, which has one interface for all of them.
struct Library(LessSafeKey);

impl Library {
    fn with_key(algorithm: &'static Algorithm, key: &[u8]) -> Option<Box<dyn Aead>> {
        Some(Box::new(Self(LessSafeKey::new(UnboundKey::new(algorithm, key).ok()?))))
    }
}

impl Aead for Library {
    fn seal(&self, nonce: [u8; NONCE_LEN], clear: &[u8], text: &mut [u8]) -> Option<[u8; TAG_LEN]> {
        let nonce = Nonce::assume_unique_for_key(nonce);
        let tag = self.0.seal_in_place_separate_tag(nonce, Aad::from(clear), text).ok()?;
        tag.as_ref().try_into().ok()
    }

    fn seal_to(&self, nonce: [u8; NONCE_LEN], clear: &[u8], text: &[u8], to: &mut [u8]) -> Option<[u8; TAG_LEN]> {
        let (nonce, mut tag) = (Nonce::assume_unique_for_key(nonce), [0; TAG_LEN]);
        self.0.seal_out_of_place_scatter(nonce, Aad::from(clear), text, to, &[], &mut tag).ok()?;
        Some(tag)
    }

    fn open(&self, nonce: [u8; NONCE_LEN], clear: &[u8], text: &mut [u8], tag: &[u8; TAG_LEN]) -> bool {
        let nonce = Nonce::assume_unique_for_key(nonce);
        self.0.open_in_place_separate_tag(nonce, Aad::from(clear), tag, text).is_ok()
    }
}

/// Reports whether the processor has instructions for AES and for GCM's multiplication.
fn has_aes() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("aes") && std::arch::is_x86_feature_detected!("pclmulqdq");
    #[cfg(target_arch = "aarch64")]
    return std::arch::is_aarch64_feature_detected!("aes") && std::arch::is_aarch64_feature_detected!("pmull");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    return false;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_every_suite_at_its_place() {
        assert_eq!(TABLE.each_ref().map(|row| row.suite), Suite::ALL);
        for suite in Suite::ALL {
            assert_eq!(row(suite).suite, suite);
            for length in 0..40 {
                let made = (row(suite).with_key)(&vec![1; length]);
                assert_eq!(made.is_some(), length == suite.key_len(), "{} with {length} bytes", suite.name());
            }
        }
    }

    #[test]
    fn a_changed_text_tag_nonce_or_clear_part_does_not_open() {
        for row in &TABLE {
            let aead = (row.with_key)(&vec![7; row.suite.key_len()]).expect("its length");
            let other = (row.with_key)(&vec![8; row.suite.key_len()]).expect("its length");
            let (nonce, clear) = ([3; NONCE_LEN], b"clear".to_vec());
            for length in [0, 1, 15, 16, 17, 1400, 65_579] {
                let plain: Vec<u8> = (0..length).map(|at| at as u8).collect();
                let mut text = plain.clone();
                let tag = aead.seal(nonce, &clear, &mut text).expect("it seals");
                assert_eq!(text == plain, length == 0, "encrypted");
                let mut copy = vec![1; length];
                assert_eq!(aead.seal_to(nonce, &clear, &plain, &mut copy), Some(tag));
                assert_eq!(copy, text);
                assert_eq!(aead.seal_to(nonce, &clear, &plain, &mut vec![1; length + 1]), None);
                let opens = |aead: &dyn Aead, nonce, clear: &[u8], mut text: Vec<u8>, tag| {
                    aead.open(nonce, clear, &mut text, &tag).then_some(text)
                };
                assert_eq!(opens(&*aead, nonce, &clear, text.clone(), tag), Some(plain));
                assert_eq!(opens(&*other, nonce, &clear, text.clone(), tag), None);
                assert_eq!(opens(&*aead, [4; NONCE_LEN], &clear, text.clone(), tag), None);
                assert_eq!(opens(&*aead, nonce, b"clean", text.clone(), tag), None);
                let mut wrong = tag;
                wrong[15] ^= 1;
                assert_eq!(opens(&*aead, nonce, &clear, text.clone(), wrong), None);
                if let Some(last) = text.last_mut() {
                    *last ^= 0x80;
                    assert_eq!(opens(&*aead, nonce, &clear, text, tag), None);
                }
            }
        }
    }
}
