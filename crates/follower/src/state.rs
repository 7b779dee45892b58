//! The authority's state: configuration and keys, from the authority's last answer and the events since then.

use crate::Backoff;
use anyhow::Result;
use api::{EpochKeys, LivePair, RevokedGrant, RevokedSession, VerifierConfig, Withdrawal};
use client::{Authority, Error};
use serde::{Deserialize, Serialize};
use shell::folder::Folder;
use std::collections::{BTreeMap, HashSet};
use std::time::Duration;
use zeroize::Zeroizing;

/// The file that keeps the state.
const FILE: &str = "cache.json";
/// Number of epochs for which keys are fetched in advance.
const KEYS_AHEAD: u32 = 24;
/// Time that a starting role waits for the authority's state if it can use the state from its last run instead.
const FIRST_ANSWER: Duration = Duration::from_secs(3);
const CLOCK_SKEW_MAX: u64 = engine::verifier::CLOCK_SKEW_MAX as u64;

/// The authority's last state, with which a role can start and work while it can't reach the authority. Secret.
#[derive(Clone, Serialize, Deserialize)]
pub struct State {
    /// The configuration: receivers, time limits, revocations, withdrawn consent.
    pub config: VerifierConfig,
    /// The verifier's keys of the epochs around the current one.
    pub keys: EpochKeys,
}

impl State {
    /// Reads the state that the last run stored. Returns `None` if no state is stored, if it can't be read, or if it
    /// belongs to a verifier other than `verifier`.
    pub fn load(folder: &Folder, verifier: &str) -> Option<Self> {
        let bytes = Zeroizing::new(folder.read(FILE).ok()??);
        serde_json::from_slice::<Self>(&bytes).ok().filter(|state| state.config.verifier == verifier)
    }

    /// Stores the state for the next run.
    ///
    /// # Errors
    ///
    /// Fails if the folder can't be written.
    pub fn store(&self, folder: &Folder) -> Result<()> {
        folder.write(FILE, &Zeroizing::new(serde_json::to_vec(self)?))
    }

    /// Removes the stored state.
    pub(crate) fn remove(folder: &Folder) {
        folder.remove(FILE);
    }

    /// Asks the authority for its state.
    ///
    /// # Errors
    ///
    /// Fails if the authority does not answer, or refuses this verifier.
    pub async fn fetch(authority: Authority) -> Result<Self, Error> {
        let (config, keys) = tokio::try_join!(authority.config(), authority.keys(KEYS_AHEAD))?;
        Ok(Self { config, keys })
    }

    /// Requests the authority's state, as [`Self::fetch`] does, but waits for at most 3 s. Use this function for a role
    /// that can start with the state from its last run if the authority does not answer.
    ///
    /// # Errors
    ///
    /// Fails if the authority does not answer within 3 s, or refuses this verifier.
    pub async fn fetch_soon(authority: &Authority) -> Result<Self, Error> {
        let answer = tokio::time::timeout(FIRST_ANSWER, Self::fetch(authority.clone())).await;
        answer.unwrap_or_else(|_| Err(Error::Other(format!("the authority did not answer within {FIRST_ANSWER:?}"))))
    }

    /// Asks the authority for its state again and again, until it answers. Use this for a role that has no state from
    /// an earlier run.
    ///
    /// # Errors
    ///
    /// Fails if the authority refuses this verifier.
    pub async fn wait_for(authority: &Authority) -> Result<Self, Error> {
        let mut backoff = Backoff::AUTHORITY;
        loop {
            match Self::fetch(authority.clone()).await {
                Err(error) if !matches!(error, Error::NotLoggedIn) => {
                    tracing::warn!(
                        %error,
                        "waiting for the authority, because no earlier run saved its configuration and keys"
                    );
                    tokio::time::sleep(backoff.pause()).await;
                }
                answer => return answer,
            }
        }
    }

    /// Adds revoked grants, each handle once. Removes revoked grants whose tokens can no longer be valid.
    pub fn revoke(&mut self, grants: &[RevokedGrant], now: u64) {
        let known = &mut self.config.revoked;
        known.retain(|grant| u64::from(grant.expires) + CLOCK_SKEW_MAX >= now);
        let mut handles: HashSet<u64> = known.iter().map(|grant| grant.handle).collect();
        known.extend(grants.iter().filter(|grant| handles.insert(grant.handle)));
    }

    /// Adds ended sessions. Session numbers are reused, so the list contains each number only once, with its latest
    /// expiry. Removes sessions whose grants can no longer be valid.
    pub fn end_sessions(&mut self, sessions: &[RevokedSession], now: u64) {
        let mut ends: BTreeMap<u32, u32> = BTreeMap::new();
        let all = self.config.revoked_sessions.iter().chain(sessions);
        for session in all.filter(|session| u64::from(session.expires) + CLOCK_SKEW_MAX >= now) {
            let end = ends.entry(session.holder).or_default();
            *end = session.expires.max(*end);
        }
        self.config.revoked_sessions =
            ends.into_iter().map(|(holder, expires)| RevokedSession { holder, expires }).collect();
    }

    /// Adds pairs that the authority issued, each handle once. Removes pairs that have expired.
    pub fn add_pairs(&mut self, pairs: &[LivePair], now: u64) {
        let known = &mut self.config.pairs;
        known.retain(|pair| u64::from(pair.expires) >= now);
        let mut handles: HashSet<u64> = known.iter().map(|pair| pair.handle).collect();
        known.extend(pairs.iter().filter(|pair| handles.insert(pair.handle)));
    }

    /// Adds withdrawals of consent to the state, and removes withdrawals that void only expired segments.
    pub fn withdraw(&mut self, withdrawn: &[Withdrawal], now: u64) {
        Withdrawal::add(&mut self.config.withdrawn, withdrawn, now);
    }

    /// Removes revocations and withdrawals from the state if they concern only expired grants and segments.
    pub fn forget_ended(&mut self, now: u64) {
        self.revoke(&[], now);
        self.end_sessions(&[], now);
        self.withdraw(&[], now);
    }

    /// Adds the revocations, pairs and withdrawals in the state `before` to this answer of the authority, because
    /// events may have announced them before the answer arrived.
    pub(crate) fn keep(&mut self, before: &Self, now: u64) {
        self.revoke(&before.config.revoked, now);
        self.end_sessions(&before.config.revoked_sessions, now);
        self.add_pairs(&before.config.pairs, now);
        self.withdraw(&before.config.withdrawn, now);
    }

    /// Returns the difference between this machine's clock and the authority's clock, in seconds, if it is too large.
    pub(crate) fn clock_error(&self, now: u64) -> Option<i64> {
        let error = now as i64 - self.config.now as i64;
        (error.unsigned_abs() > CLOCK_SKEW_MAX / 2).then_some(error)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns a state without receivers and keys.
    pub fn state(now: u64) -> State {
        let config = serde_json::json!({
            "verifier": "edge-1", "epoch_length": 3600, "max_lifetime": 300, "receivers": [], "revoked": [], "now": now,
        });
        let keys = EpochKeys { keys: Vec::new(), proofs: None, now };
        State { config: serde_json::from_value(config).unwrap(), keys }
    }

    pub fn withdrawal(until: u32) -> Withdrawal {
        Withdrawal { vni: 7, receiver: [10, 0, 0, 7].into(), sender: None, until }
    }

    #[test]
    fn a_state_is_loaded_by_the_verifier_that_stored_it() {
        let room = tempfile::tempdir().unwrap();
        let folder = Folder::at(room.path());
        assert!(State::load(&folder, "edge-1").is_none());
        let mut stored = state(200);
        stored.withdraw(&[withdrawal(500)], 200);
        stored.store(&folder).unwrap();
        assert_eq!(State::load(&folder, "edge-1").unwrap().config, stored.config);
        assert!(State::load(&folder, "edge-2").is_none(), "enrolled under another name since");
        folder.write(FILE, b"{").unwrap();
        assert!(State::load(&folder, "edge-1").is_none());
        State::remove(&folder);
        assert_eq!(folder.names().unwrap(), [""; 0]);
    }

    #[test]
    fn a_pair_is_remembered_once_and_until_it_ends() {
        let pair = |handle, expires| LivePair { handle, epoch: 1, issued: 0, expires, holder: 0 };
        let mut state = state(200);
        state.config.pairs = vec![pair(1, 100), pair(2, 500)];
        state.add_pairs(&[pair(2, 500), pair(3, 600)], 200);
        assert_eq!(state.config.pairs, [pair(2, 500), pair(3, 600)]);
    }

    #[test]
    fn a_clock_that_is_off_is_noticed_before_tokens_fail() {
        assert_eq!(state(1000).clock_error(1010), None);
        assert_eq!(state(1000).clock_error(1020), Some(20));
        assert_eq!(state(1000).clock_error(900), Some(-100));
    }

    #[test]
    fn a_session_that_ended_is_named_once_with_its_latest_end() {
        let session = |holder, expires| RevokedSession { holder, expires };
        let mut state = state(200);
        state.config.revoked_sessions = vec![session(1, 100), session(2, 500), session(4, 900)];
        state.end_sessions(&[session(2, 700), session(3, 600), session(4, 800)], 200);
        assert_eq!(state.config.revoked_sessions, [session(2, 700), session(3, 600), session(4, 900)]);
    }

    #[test]
    fn revocations_are_kept_until_their_grant_has_ended() {
        let grant = |handle, expires| RevokedGrant { handle, expires, holder: 0 };
        let mut state = state(200);
        state.config.revoked = vec![grant(1, 100), grant(2, 500)];
        state.revoke(&[grant(2, 500), grant(3, 600)], 200);
        assert_eq!(state.config.revoked, [grant(2, 500), grant(3, 600)]);
        state.withdraw(&[withdrawal(700)], 200);
        state.forget_ended(690);
        assert_eq!((state.config.revoked.len(), state.config.withdrawn.len()), (0, 1));
    }
}
