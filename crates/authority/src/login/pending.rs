//! Logins under way: started by somebody unknown, so bounded in number and time, and shared fairly among sources.

use super::provider::{Departure, Refusal, Verified};
use crate::credentials::{self, token_hash};
use crate::problem::Problem;
use crate::throttle::Key;
use anyhow::Result;
use engine::api::Callback;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use subtle::ConstantTimeEq;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

/// How long a person may take to log in at the provider in a browser.
pub const BROWSER_TIME: Duration = Duration::from_secs(600);
/// Logins in browsers at a time: some 4 MB.
const MOST_BROWSER: usize = 4096;
/// Logins by device code at a time: for each the provider is asked every few seconds.
const MOST_DEVICE: usize = 128;
/// Challenges for machines at a time.
const MOST_CHALLENGES: usize = 4096;
/// How long a challenge is good.
pub const CHALLENGE_TIME: Duration = Duration::from_secs(60);

/// How a login is to come about.
pub enum Way {
    /// A browser was sent away.
    Browser(Departure),
    /// A code waits to be entered.
    Device(oneshot::Receiver<Result<Verified, Refusal>>, #[expect(dead_code, reason = "dropped with the login")] Abort),
    /// A machine was asked to sign.
    Challenge,
}

/// Ends a task when dropped.
pub struct Abort(pub AbortHandle);

impl Drop for Abort {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// What becomes of a login: whoever finishes it for something else finds none.
pub enum Purpose {
    /// A session for a device that is called so.
    Device(String),
    /// A session at the console, and the page to go on to.
    Console(String),
}

/// A login that somebody started.
pub struct Started {
    /// The hash of the verifier.
    pub challenge: [u8; 32],
    /// What it is for.
    pub purpose: Purpose,
    /// Where it was started from.
    pub source: IpAddr,
    /// When it is forgotten.
    pub until: Instant,
    /// What it was charged to, for when it turns out a good one.
    pub charged: Vec<Key>,
    /// How it is to come about.
    pub way: Way,
}

/// What finishing found.
pub enum Finish {
    /// The person has not logged in at the provider yet.
    Pending,
    /// A browser came back with a code.
    Arrived(Departure, String, Rest),
    /// The provider has spoken.
    Verified(Result<Verified, Refusal>, Rest),
}

/// What else was known of a login that is used up.
pub struct Rest {
    /// What it was for.
    pub purpose: Purpose,
    /// What it was charged to.
    pub charged: Vec<Key>,
}

/// The logins under way, by name.
#[derive(Default)]
pub struct Logins(Mutex<HashMap<String, Started>>);

impl Logins {
    /// Notes a login; gives its name. Where there is no room, the oldest of the source that has most gives way.
    pub fn begin(&self, started: Started) -> Result<String> {
        let name = hex::encode(credentials::random::<16>()?);
        let mut all = self.lock();
        let now = Instant::now();
        all.retain(|_, login| login.until > now);
        let (kind, most) = (std::mem::discriminant(&started.way), started.way.most());
        let same = || all.iter().filter(|(_, login)| std::mem::discriminant(&login.way) == kind);
        if same().count() >= most {
            let mut sources: BTreeMap<IpAddr, usize> = BTreeMap::new();
            same().for_each(|(_, login)| *sources.entry(login.source).or_default() += 1);
            let greedy = sources.into_iter().max_by_key(|(_, count)| *count).map(|(source, _)| source);
            let of_greedy = same().filter(|(_, login)| Some(login.source) == greedy);
            let oldest = of_greedy.min_by_key(|(_, login)| login.until).map(|(name, _)| name.clone());
            oldest.and_then(|name| all.remove(&name));
        }
        all.insert(name.clone(), started);
        Ok(name)
    }

    /// Finishes a login, for whoever knows its name and verifier; `issuer` is who a browser must come from.
    pub fn finish(
        &self,
        name: &str,
        verifier: &str,
        callback: Option<&Callback>,
        issuer: &str,
    ) -> Result<Finish, Problem> {
        let mut all = self.lock();
        let login = all.get_mut(name).filter(|login| login.until > Instant::now()).ok_or(Problem::WrongLogin)?;
        if !bool::from(token_hash(verifier).ct_eq(&login.challenge)) {
            return Err(Problem::WrongLogin);
        }
        if let Way::Device(outcome, _) = &mut login.way {
            let outcome = match outcome.try_recv() {
                Err(oneshot::error::TryRecvError::Empty) => return Ok(Finish::Pending),
                Err(oneshot::error::TryRecvError::Closed) => return Err(Problem::WrongLogin),
                Ok(outcome) => outcome,
            };
            let Started { purpose, charged, .. } = all.remove(name).ok_or(Problem::WrongLogin)?;
            return Ok(Finish::Verified(outcome, Rest { purpose, charged }));
        }
        // From here on the login is used up, whatever comes of it.
        match (all.remove(name), callback) {
            (Some(Started { way: Way::Browser(departure), purpose, charged, .. }), Some(callback)) => {
                let same_state = bool::from(callback.state.as_bytes().ct_eq(departure.state.as_bytes()));
                // A code of another provider's must not be shown to this one (mix-up, RFC 9207).
                let same_issuer = callback.iss.as_ref().is_none_or(|from| from == issuer);
                match same_state && same_issuer {
                    true => Ok(Finish::Arrived(departure, callback.code.clone(), Rest { purpose, charged })),
                    false => Err(Problem::WrongLogin),
                }
            }
            _ => Err(Problem::WrongLogin),
        }
    }

    /// Uses up a challenge; gives what it was charged to, or nothing if there is none of this name.
    pub fn answer(&self, name: &str) -> Option<Vec<Key>> {
        let mut all = self.lock();
        match all.get(name) {
            Some(Started { way: Way::Challenge, .. }) => {
                all.remove(name).filter(|login| login.until > Instant::now()).map(|login| login.charged)
            }
            _ => None,
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Started>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Way {
    fn most(&self) -> usize {
        match self {
            Self::Browser(_) => MOST_BROWSER,
            Self::Device(..) => MOST_DEVICE,
            Self::Challenge => MOST_CHALLENGES,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn challenge(source: u32) -> Started {
        let until = Instant::now() + CHALLENGE_TIME;
        let source = IpAddr::V4(source.into());
        let purpose = Purpose::Device("x".into());
        Started { challenge: [0; 32], purpose, source, until, charged: Vec::new(), way: Way::Challenge }
    }

    #[test]
    fn a_challenge_is_good_once() {
        let logins = Logins::default();
        let name = logins.begin(challenge(1)).unwrap();
        assert!(logins.answer(&name).is_some());
        assert!(logins.answer(&name).is_none() && logins.answer("x").is_none());
    }

    #[test]
    fn one_source_takes_nobody_elses_place_and_memory_is_bounded() {
        let logins = Logins::default();
        let honest = logins.begin(challenge(1)).unwrap();
        for _ in 0..MOST_CHALLENGES + 100 {
            logins.begin(challenge(2)).unwrap();
        }
        assert_eq!(logins.lock().len(), MOST_CHALLENGES);
        assert!(logins.answer(&honest).is_some());
    }

    #[test]
    fn what_has_ended_is_worth_nothing() {
        let logins = Logins::default();
        let name = logins.begin(Started { until: Instant::now(), ..challenge(1) }).unwrap();
        assert!(logins.answer(&name).is_none());
    }
}
