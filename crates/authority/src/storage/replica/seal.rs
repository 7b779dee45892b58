//! Encrypts the cluster's data in etcd with a key that only the members' disks contain. So etcd, and everybody who can
//! read its data, learns only the sizes and times of changes. Nobody without the key can forge, reorder or replay a
//! change.

use crate::login::credentials;
use anyhow::{Context, Result, anyhow};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, Salt};
use std::fmt;
use std::str::FromStr;
use zeroize::Zeroizing;

/// Length in bytes of the random salt before each ciphertext.
const SALT: usize = 16;

/// The identity of a cluster: 32 hex digits. The names of the cluster's keys in etcd contain it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClusterId([u8; 16]);

impl ClusterId {
    /// Returns a new random identity.
    ///
    /// # Errors
    /// Fails if the system provides no randomness.
    pub fn new() -> Result<Self> {
        Ok(Self(credentials::random()?))
    }
}

impl FromStr for ClusterId {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let id = hex::decode(text).ok().and_then(|id| id.try_into().ok());
        Ok(Self(id.with_context(|| format!("`{text}` is not the id of a cluster, which has 32 hex digits"))?))
    }
}

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

/// The key under which the members of a cluster encrypt their data in etcd. Has no `Debug`, because it is a secret.
#[derive(Clone)]
pub struct ClusterKey(Zeroizing<[u8; 32]>);

impl ClusterKey {
    /// Returns a new random key.
    ///
    /// # Errors
    /// Fails if the system provides no randomness.
    pub fn new() -> Result<Self> {
        Ok(Self(Zeroizing::new(credentials::random()?)))
    }

    /// Reads a key from its bytes.
    ///
    /// # Errors
    /// Fails if `bytes` does not contain exactly 32 bytes.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let key = bytes.try_into().context("the cluster's key must have 32 bytes")?;
        Ok(Self(Zeroizing::new(key)))
    }

    /// Returns the bytes of the key.
    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Encrypts `plain`. Only [`Self::open`] with the same `context` decrypts it. Each ciphertext has a separate key,
    /// which is derived with a random salt. So the number of ciphertexts is not limited.
    ///
    /// # Errors
    /// Fails if the system provides no randomness.
    pub(super) fn seal(&self, context: &str, plain: &[u8]) -> Result<Vec<u8>> {
        let salt: [u8; SALT] = credentials::random()?;
        let mut text = plain.to_vec();
        self.derived(&salt, context)?
            .seal_in_place_append_tag(no_nonce(), Aad::from(context.as_bytes()), &mut text)
            .map_err(|_| anyhow!("cannot encrypt {context}"))?;
        Ok([&salt[..], &text].concat())
    }

    /// Decrypts data that [`Self::seal`] has encrypted.
    ///
    /// # Errors
    /// Fails if the data was encrypted with another key or another context, or was changed.
    pub(super) fn open(&self, context: &str, sealed: &[u8]) -> Result<Vec<u8>> {
        let wrong = || {
            anyhow!(
                "cannot decrypt {context} of the cluster: this member's cluster.key does not contain the cluster's \
                 key, or the data in etcd was changed"
            )
        };
        let (salt, text) = sealed.split_first_chunk::<SALT>().ok_or_else(wrong)?;
        let mut text = text.to_vec();
        let plain = self.derived(salt, context)?.open_in_place(no_nonce(), Aad::from(context.as_bytes()), &mut text);
        let length = plain.map_err(|_| wrong())?.len();
        text.truncate(length);
        Ok(text)
    }

    fn derived(&self, salt: &[u8; SALT], context: &str) -> Result<LessSafeKey> {
        let secret = Salt::new(HKDF_SHA256, salt).extract(&self.0[..]);
        let info = [&b"vouchsafe cluster v1"[..], context.as_bytes()];
        let key = secret.expand(&info, &AES_256_GCM).map_err(|_| anyhow!("cannot derive a key for {context}"))?;
        Ok(LessSafeKey::new(UnboundKey::from(key)))
    }
}

/// Returns the nonce of a key that encrypts once.
fn no_nonce() -> Nonce {
    Nonce::assume_unique_for_key([0; NONCE_LEN])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_key_and_the_context_open_it() {
        let key = ClusterKey::new().unwrap();
        let sealed = key.seal("log/1", b"a secret").unwrap();
        assert_eq!(key.open("log/1", &sealed).unwrap(), b"a secret");
        assert_ne!(key.seal("log/1", b"a secret").unwrap(), sealed);
        assert!(key.open("log/2", &sealed).is_err());
        assert!(ClusterKey::new().unwrap().open("log/1", &sealed).is_err());
        for at in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[at] ^= 1;
            assert!(key.open("log/1", &changed).is_err(), "{at}");
        }
        assert!(key.open("log/1", b"short").is_err());
    }

    #[test]
    fn ids_and_keys_have_one_form() {
        let id = ClusterId::new().unwrap();
        assert_eq!(id.to_string().parse::<ClusterId>().unwrap(), id);
        assert!("../head".parse::<ClusterId>().is_err());
        assert!(ClusterKey::parse(&[1; 31]).is_err());
    }
}
