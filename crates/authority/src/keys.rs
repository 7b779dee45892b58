//! The master keys: the one in force, the previous one while its epochs may matter, and the one that follows. The start
//! time of an epoch alone determines the key of the epoch.

use crate::login::credentials;
use anyhow::{Context, Result, bail};
use std::net::IpAddr;
use std::sync::{PoisonError, RwLock};
use wire::{Epoch, MasterKey, ProofKey, VerifierKey};
use zeroize::Zeroizing;

const KEY: usize = 32;
/// A key preceded by the time from which it is used, as Unix seconds in 8 bytes.
const RECORD: usize = 8 + KEY;

/// The master keys, oldest first. Deliberately has no `Debug`.
pub struct MasterKeys(Vec<(u64, Zeroizing<[u8; KEY]>)>);

impl MasterKeys {
    /// Parses the output of [`Self::encode`], or a single key of 32 bytes.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        if let Ok(key) = <[u8; KEY]>::try_from(bytes) {
            return Ok(Self(vec![(0, Zeroizing::new(key))]));
        }
        let records = bytes.chunks_exact(RECORD);
        if bytes.is_empty() || !records.remainder().is_empty() {
            bail!("its length is neither {KEY} bytes nor a multiple of {RECORD}");
        }
        let read = |record: &[u8]| {
            let (from, key) = record.split_first_chunk::<8>()?;
            Some((u64::from_be_bytes(*from), Zeroizing::new(key.try_into().ok()?)))
        };
        let keys: Vec<_> = records.map(read).collect::<Option<_>>().context("it is malformed")?;
        if keys[0].0 != 0 || !keys.is_sorted_by_key(|(from, _)| *from) {
            bail!("its keys are not in order of time");
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
    pub fn verifier_key(&self, verifier: &str, epoch: Epoch, epoch_length: u32) -> Result<VerifierKey> {
        self.of(epoch, epoch_length)?
            .verifier_key(verifier, epoch)
            .with_context(|| format!("the verifier id {verifier:?} is too long"))
    }

    /// Derives the key of a verifier for the proofs that are issued in an epoch on behalf of this authority address.
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

    /// Adds a new key that takes effect at the epoch after the next and returns that time in Unix seconds. Verifiers
    /// have the keys of the previous, the current and the next epoch, and none of these changes.
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

    /// Replaces all keys, for every epoch, by a new one.
    pub fn replace(&mut self) -> Result<()> {
        self.0 = vec![(0, Zeroizing::new(credentials::random()?))];
        Ok(())
    }
}

/// The master keys in use, and the keys derived from them. Has no `Debug`.
pub struct Keyring {
    master: RwLock<MasterKeys>,
    epoch_length: u32,
}

impl Keyring {
    /// Creates a keyring for epochs of this length in seconds.
    pub fn new(master: MasterKeys, epoch_length: u32) -> Self {
        Self { master: RwLock::new(master), epoch_length }
    }

    /// Derives the key of a verifier for an epoch.
    pub fn verifier_key(&self, verifier: &str, epoch: Epoch) -> Result<VerifierKey> {
        let master = self.master.read().unwrap_or_else(PoisonError::into_inner);
        master.verifier_key(verifier, epoch, self.epoch_length)
    }

    /// Derives the key of a verifier for the proofs that are issued in an epoch on behalf of this authority address.
    pub fn proof_key(&self, verifier: &str, authority: IpAddr, epoch: Epoch) -> Result<ProofKey> {
        let master = self.master.read().unwrap_or_else(PoisonError::into_inner);
        master.proof_key(verifier, authority, epoch, self.epoch_length)
    }

    /// Replaces the master keys. The caller must hold the write lock of the policy, and end the basis of grants, so that
    /// nothing that was made with the previous key can be recorded afterwards.
    pub fn replace(&self, master: MasterKeys) {
        *self.master.write().unwrap_or_else(PoisonError::into_inner) = master;
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
    fn a_broken_file_is_refused() {
        let out_of_order = [&9_u64.to_be_bytes()[..], &[1; 32]].concat();
        for wrong in [&[][..], &[1; 31], &[0; 41], &out_of_order] {
            assert!(MasterKeys::parse(wrong).is_err());
        }
    }
}
