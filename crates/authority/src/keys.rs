//! The master keys: the key in force, the previous key as long as its epochs are needed, and the next key if it exists
//! already. The start time of an epoch decides which master key the epoch uses.

use crate::login::credentials;
use anyhow::{Context, Result, bail};
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{PoisonError, RwLock};
use wire::{Epoch, MasterKey, ProofKey, VerifierKey};
use zeroize::Zeroizing;

const KEY: usize = 32;
/// Length of a record in the key file: the time from which a key is used, as Unix seconds in 8 bytes, then the key.
const RECORD: usize = 8 + KEY;

/// The master keys, oldest first. Has no `Debug`, because they are secret.
pub struct MasterKeys(Vec<(u64, Zeroizing<[u8; KEY]>)>);

impl MasterKeys {
    /// Parses the contents of the key file: the output of [`Self::encode`], or a single key of 32 bytes.
    ///
    /// # Errors
    /// Fails if the length is wrong, or the keys are not in order of time.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        if let Ok(key) = <[u8; KEY]>::try_from(bytes) {
            return Ok(Self(vec![(0, Zeroizing::new(key))]));
        }
        let records = bytes.chunks_exact(RECORD);
        if bytes.is_empty() || !records.remainder().is_empty() {
            bail!("the file's length is neither {KEY} bytes nor a multiple of {RECORD}");
        }
        let read = |record: &[u8]| {
            let (from, key) = record.split_first_chunk::<8>()?;
            Some((u64::from_be_bytes(*from), Zeroizing::new(key.try_into().ok()?)))
        };
        let keys: Vec<_> = records.map(read).collect::<Option<_>>().context("the file is malformed")?;
        if keys[0].0 != 0 || !keys.is_sorted_by_key(|(from, _)| *from) {
            bail!("the keys in the file are not in order of time");
        }
        Ok(Self(keys))
    }

    /// Returns the contents of the key file.
    pub fn encode(&self) -> Zeroizing<Vec<u8>> {
        let mut bytes = Zeroizing::new(Vec::with_capacity(self.0.len() * RECORD));
        for (from, key) in &self.0 {
            bytes.extend_from_slice(&from.to_be_bytes());
            bytes.extend_from_slice(&**key);
        }
        bytes
    }

    /// Derives the key of a verifier for an epoch.
    ///
    /// # Errors
    /// Fails if the verifier's id is too long, or the epoch is before the first master key.
    pub fn verifier_key(&self, verifier: &str, epoch: Epoch, epoch_length: u32) -> Result<VerifierKey> {
        self.of(epoch, epoch_length)?
            .verifier_key(verifier, epoch)
            .with_context(|| format!("the verifier id {verifier:?} is too long"))
    }

    /// Derives a verifier's key for the proofs that the authority with the address `authority` issues in `epoch`.
    ///
    /// # Errors
    /// Fails if the verifier's id is too long, or the epoch is before the first master key.
    pub fn proof_key(&self, verifier: &str, authority: IpAddr, epoch: Epoch, epoch_length: u32) -> Result<ProofKey> {
        self.of(epoch, epoch_length)?
            .proof_key(verifier, authority, epoch)
            .with_context(|| format!("the verifier id {verifier:?} is too long"))
    }

    fn of(&self, epoch: Epoch, epoch_length: u32) -> Result<MasterKey> {
        let begins = epoch.0.saturating_mul(epoch_length.into());
        let key = self.0.iter().rev().find(|(from, _)| *from <= begins);
        key.map(|(_, key)| MasterKey::new(**key))
            .with_context(|| format!("there was no master key yet in epoch {}", epoch.0))
    }

    /// Adds a new random key that takes effect at the epoch after the next. Returns the start of this epoch, in Unix
    /// seconds. The keys of the previous, the current and the next epoch do not change.
    ///
    /// # Errors
    /// Fails if the key that was added last has not taken effect yet, or the system provides no randomness.
    pub fn follow(&mut self, now: u64, epoch_length: u32) -> Result<u64> {
        if let Some((from, _)) = self.0.last().filter(|(from, _)| *from > now) {
            bail!("the latest new master key takes effect only in {} s: rotate again after that", from - now);
        }
        let length = u64::from(epoch_length);
        let from = (Epoch::at(now, epoch_length).0 + 2) * length;
        // Keys older than the one in force are needed for the previous epoch at most.
        let oldest = (Epoch::at(now, epoch_length).0).saturating_sub(1) * length;
        let first = self.0.iter().rposition(|(from, _)| *from <= oldest).unwrap_or(0);
        self.0.drain(..first);
        self.0[0].0 = 0;
        self.0.push((from, Zeroizing::new(credentials::random()?)));
        Ok(from)
    }

    /// Replaces all keys, for every epoch, by one new random key.
    ///
    /// # Errors
    /// Fails if the system provides no randomness.
    pub fn replace(&mut self) -> Result<()> {
        self.0 = vec![(0, Zeroizing::new(credentials::random()?))];
        Ok(())
    }
}

/// The master keys in use, from which all other keys are derived. Has no `Debug`, because they are secret.
pub struct Keyring {
    master: RwLock<MasterKeys>,
    epoch_length: u32,
    /// The keys with which grants are issued in one epoch: the keys of all verifiers that the policy's receivers have.
    current: RwLock<(Epoch, HashMap<String, VerifierKey>)>,
}

impl Keyring {
    /// Creates a keyring for epochs of `epoch_length` seconds.
    pub fn new(master: MasterKeys, epoch_length: u32) -> Self {
        Self { master: RwLock::new(master), epoch_length, current: RwLock::new((Epoch(0), HashMap::new())) }
    }

    /// Returns the key with which a grant is issued in `epoch`, the current epoch. Derives each key only once.
    ///
    /// # Errors
    /// Fails for the same reasons as [`Self::verifier_key`].
    pub fn issuing_key(&self, verifier: &str, epoch: Epoch) -> Result<VerifierKey> {
        // While this holds the lock of the master keys, they are not replaced.
        let master = self.master.read().unwrap_or_else(PoisonError::into_inner);
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(key) = current.1.get(verifier).filter(|_| current.0 == epoch) {
            return Ok(key.clone());
        }
        drop(current);
        let key = master.verifier_key(verifier, epoch, self.epoch_length)?;
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        if current.0 != epoch {
            *current = (epoch, HashMap::new());
        }
        current.1.insert(verifier.to_owned(), key.clone());
        Ok(key)
    }

    /// Derives the key of a verifier for an epoch.
    ///
    /// # Errors
    /// Fails if the verifier's id is too long, or the epoch is before the first master key.
    pub fn verifier_key(&self, verifier: &str, epoch: Epoch) -> Result<VerifierKey> {
        let master = self.master.read().unwrap_or_else(PoisonError::into_inner);
        master.verifier_key(verifier, epoch, self.epoch_length)
    }

    /// Derives a verifier's key for the proofs that the authority with the address `authority` issues in `epoch`.
    ///
    /// # Errors
    /// Fails if the verifier's id is too long, or the epoch is before the first master key.
    pub fn proof_key(&self, verifier: &str, authority: IpAddr, epoch: Epoch) -> Result<ProofKey> {
        let master = self.master.read().unwrap_or_else(PoisonError::into_inner);
        master.proof_key(verifier, authority, epoch, self.epoch_length)
    }

    /// Reports whether `bytes`, the contents of a key file, are the master keys in use.
    pub fn is(&self, bytes: &[u8]) -> bool {
        let master = self.master.read().unwrap_or_else(PoisonError::into_inner);
        MasterKeys::parse(bytes).is_ok_and(|other| *other.encode() == *master.encode())
    }

    /// Reports whether `self` and `other` have different master keys for the epoch at the time `now`, in Unix seconds.
    pub fn differs_now(&self, other: &MasterKeys, now: u64) -> bool {
        let epoch = Epoch::at(now, self.epoch_length);
        let master = self.master.read().unwrap_or_else(PoisonError::into_inner);
        let [ours, theirs] = [&*master, other].map(|keys| keys.verifier_key("", epoch, self.epoch_length).ok());
        ours.map(|key| *key.bytes()) != theirs.map(|key| *key.bytes())
    }

    /// Replaces the master keys. The caller must hold the write lock of the policy. Afterwards it must call
    /// [`Storage::end_basis`](crate::storage::Storage::end_basis), so that no grant that was made with the previous
    /// keys can be recorded.
    pub fn replace(&self, master: MasterKeys) {
        let mut keys = self.master.write().unwrap_or_else(PoisonError::into_inner);
        *keys = master;
        self.current.write().unwrap_or_else(PoisonError::into_inner).1.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u32 = 3600;
    const NOW: u64 = 1_000_000 * 3600 + 1800;

    fn keys(of: &MasterKeys, epochs: std::ops::RangeInclusive<i64>) -> Vec<[u8; 32]> {
        let key = |ahead: i64| {
            *of.verifier_key("edge", Epoch(1_000_000_u64.saturating_add_signed(ahead)), HOUR).unwrap().bytes()
        };
        epochs.map(key).collect()
    }

    #[test]
    fn a_key_that_follows_changes_none_that_verifiers_use() {
        let mut master = MasterKeys::parse(&[7; 32]).unwrap();
        let before = keys(&master, -1..=5);
        let from = master.follow(NOW, HOUR).unwrap();
        assert_eq!(from, 1_000_002 * 3600);
        let master = MasterKeys::parse(&master.encode()).unwrap();
        let after = keys(&master, -1..=5);
        assert_eq!(before[..3], after[..3], "the epoch before, the current, the next");
        assert!(before[3..].iter().zip(&after[3..]).all(|(before, after)| before != after));
    }

    #[test]
    fn one_key_follows_at_a_time_and_old_ones_go() {
        let mut master = MasterKeys::parse(&[7; 32]).unwrap();
        let from = master.follow(NOW, HOUR).unwrap();
        assert!(master.follow(NOW, HOUR).is_err());
        let in_force = keys(&master, 2..=2);
        master.follow(from + 2 * 3600, HOUR).unwrap();
        assert_eq!(master.0.len(), 2, "the first is not asked for any more");
        assert_eq!(keys(&master, 2..=2), in_force);
    }

    #[test]
    fn a_replaced_key_is_gone() {
        let mut master = MasterKeys::parse(&[7; 32]).unwrap();
        let before = keys(&master, -1..=2);
        master.replace().unwrap();
        assert!(before.iter().zip(keys(&master, -1..=2)).all(|(before, after)| *before != after));
        assert_eq!(master.encode().len(), RECORD);
    }

    #[test]
    fn a_key_is_derived_anew_after_its_epoch_and_after_its_master_key() {
        let ring = Keyring::new(MasterKeys::parse(&[7; 32]).unwrap(), HOUR);
        let derived = |epoch| *ring.verifier_key("edge", Epoch(epoch)).unwrap().bytes();
        let issuing = |epoch| *ring.issuing_key("edge", Epoch(epoch)).unwrap().bytes();
        for epoch in [5, 5, 6, 5] {
            assert_eq!(issuing(epoch), derived(epoch));
        }
        ring.replace(MasterKeys::parse(&[8; 32]).unwrap());
        assert_eq!(issuing(5), derived(5));
    }

    #[test]
    fn a_broken_file_is_refused() {
        let out_of_order = [&9_u64.to_be_bytes()[..], &[1; 32]].concat();
        for wrong in [&[][..], &[1; 31], &[0; 41], &out_of_order] {
            assert!(MasterKeys::parse(wrong).is_err());
        }
    }
}
