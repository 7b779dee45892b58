//! Keys that the authority sends to verifiers.

use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use wire::{Epoch, ProofKey};

/// The answer to `GET /v1/verifier/keys?ahead=N` of a verifier: the verifier's keys for the previous epoch, the current
/// epoch and the next N epochs (N at most 48).
#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct EpochKeys {
    /// One key per epoch, oldest first.
    pub keys: Vec<EpochKey>,
    /// The keys with which the verifier checks proofs; missing if the verifier is on no path of a virtual network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proofs: Option<ProofKeys>,
    /// The current time by the authority's clock, in Unix seconds.
    pub now: u64,
}

/// A verifier's key for one epoch.
#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct EpochKey {
    /// The number of the epoch.
    pub epoch: u64,
    /// The key's 32 bytes, hex. Secret.
    pub key: String,
}

/// The keys with which a verifier checks the proofs of one authority.
#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ProofKeys {
    /// The authority's address, as path segments contain it.
    #[cfg_attr(feature = "schema", schema(schema_with = crate::schema::address, example = "198.51.100.1"))]
    pub authority: IpAddr,
    /// One key per epoch, oldest first.
    pub keys: Vec<EpochKey>,
}

impl ProofKeys {
    /// Returns each key with the authority's address and the key's epoch.
    ///
    /// # Errors
    /// Returns the epoch of the first key that is not 64 hex digits.
    pub fn read(&self) -> Result<Vec<(IpAddr, Epoch, ProofKey)>, u64> {
        let read = |key: &EpochKey| {
            let mut bytes = [0; 32];
            hex::decode_to_slice(&key.key, &mut bytes).map_err(|_| key.epoch)?;
            Ok((self.authority, Epoch(key.epoch), ProofKey::new(bytes)))
        };
        self.keys.iter().map(read).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_key_names_its_epoch() {
        let key = |epoch, key: String| EpochKey { epoch, key };
        let authority = IpAddr::from([192, 0, 2, 1]);
        let keys = |second: &str| ProofKeys { authority, keys: vec![key(7, "ab".repeat(32)), key(8, second.into())] };
        let read = keys(&"cd".repeat(32)).read().ok().unwrap();
        assert_eq!(
            read.iter().map(|(from, epoch, _)| (*from, epoch.0)).collect::<Vec<_>>(),
            [(authority, 7), (authority, 8)]
        );
        assert_eq!(keys("cd").read().err(), Some(8));
    }
}
