//! Slows guessing down: token buckets per source, per account and source, and for everybody, in bounded memory.
//!
//! A guesser must not lock the owner out, so no bucket of an account alone is charged before the password was right.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Buckets held at a time: some 10 MB.
const MOST_BUCKETS: usize = 65_536;
/// Accounts remembered with a source that they logged in from.
const MOST_KNOWN: usize = 65_536;

/// What is counted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Key {
    /// Attempts of everybody, but for those on an account from where it was logged in to before: many sources that
    /// guess together leave its owner a way in.
    Everybody,
    /// Attempts from one source, but for those on an account from where it was logged in to before: others behind the
    /// same address leave its owner a way in.
    Source(IpAddr),
    /// Attempts from one network, with the same exception: a provider's customer has many sources.
    Network(IpAddr),
    /// Logins that everybody starts, but for those from where somebody logged in before.
    Starts,
    /// Logins that one source starts.
    Start(IpAddr),
    /// Logout tokens from one source.
    Logouts(IpAddr),
    /// Everybody's attempts to enrol.
    Enrolments,
    /// Connections opened by one source.
    Connection(IpAddr),
    /// Calls of one source on connections that have not shown a credential.
    Stranger(IpAddr),
    /// Attempts to enrol from one source.
    Enrolment(IpAddr),
    /// Attempts on one account from one source.
    Account(String, IpAddr),
    /// Wrong second factors after a right password.
    SecondFactor(String),
    /// Grants asked for by one session.
    Grants([u8; 32]),
}

impl Key {
    /// A source, as wide as one subscriber's network usually is: an IPv4 address or an IPv6 /64.
    pub fn source(address: IpAddr) -> IpAddr {
        wire::grant::mask(address, if address.is_ipv4() { 32 } else { 64 })
    }

    /// The network of a source, as wide as what one customer of a provider easily gets: an IPv4 /24 or an IPv6 /48.
    pub fn network(address: IpAddr) -> IpAddr {
        wire::grant::mask(address, if address.is_ipv4() { 24 } else { 48 })
    }

    /// How many at once, and how long until one more.
    fn limit(&self) -> (f64, Duration) {
        match self {
            Self::Everybody => (300.0, Duration::from_millis(100)),
            Self::Network(_) => (60.0, Duration::from_secs(2)),
            // Thousands of agents may share an address, and come back together when the authority was restarted.
            Self::Connection(_) => (1000.0, Duration::from_millis(20)),
            Self::Stranger(_) => (1000.0, Duration::from_millis(20)),
            Self::Starts => (200.0, Duration::from_millis(200)),
            Self::Start(_) => (30.0, Duration::from_secs(3)),
            Self::Logouts(_) => (100.0, Duration::from_millis(200)),
            Self::Enrolments => (100.0, Duration::from_secs(1)),
            Self::Enrolment(_) => (20.0, Duration::from_secs(6)),
            Self::Source(_) => (30.0, Duration::from_secs(3)),
            Self::Account(..) => (6.0, Duration::from_secs(20)),
            Self::SecondFactor(_) => (10.0, Duration::from_secs(60)),
            Self::Grants(_) => (2000.0, Duration::from_millis(5)),
        }
    }
}

struct Bucket {
    left: f64,
    at: Instant,
}

/// The buckets.
#[derive(Default)]
pub struct Throttle {
    buckets: Mutex<HashMap<Key, Bucket>>,
    known: Mutex<HashSet<(String, IpAddr)>>,
    sources: Mutex<HashSet<IpAddr>>,
}

impl Throttle {
    /// Takes one from each bucket, or from none and says how long to wait.
    pub fn charge(&self, keys: &[Key], now: Instant) -> Result<(), Duration> {
        let mut buckets = self.lock();
        if buckets.len() + keys.len() > MOST_BUCKETS {
            buckets.retain(|key, bucket| refilled(key, bucket, now) < key.limit().0);
        }
        let full = buckets.len() + keys.len() > MOST_BUCKETS;
        for key in keys {
            let (_, pace) = key.limit();
            let left = match buckets.get(key) {
                Some(bucket) => refilled(key, bucket, now),
                // No room to count a newcomer: those who are known go first.
                None if full => 0.0,
                None => continue,
            };
            if left < 1.0 {
                return Err(pace.mul_f64(1.0 - left));
            }
        }
        for key in keys {
            let bucket = buckets.entry(key.clone()).or_insert(Bucket { left: key.limit().0, at: now });
            bucket.left = refilled(key, bucket, now) - 1.0;
            bucket.at = now;
        }
        Ok(())
    }

    /// Gives back what [`Self::charge`] took: the attempt was a good one.
    pub fn refund(&self, keys: &[Key]) {
        let mut buckets = self.lock();
        for key in keys {
            if let Some(bucket) = buckets.get_mut(key) {
                bucket.left = (bucket.left + 1.0).min(key.limit().0);
            }
        }
    }

    /// What a login attempt is charged to.
    pub fn login(&self, person: Option<&str>, source: IpAddr) -> Vec<Key> {
        let (source, network) = (Key::source(source), Key::network(source));
        let own = person.map(|person| Key::Account(person.into(), source));
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let is_known = person.is_some_and(|person| known.contains(&(person.to_owned(), source)));
        let shared = [Key::Everybody, Key::Network(network), Key::Source(source)].into_iter().filter(|_| !is_known);
        shared.chain(own).collect()
    }

    /// What the start of a login at the identity provider is charged to: nobody has a name yet.
    pub fn start(&self, source: IpAddr) -> Vec<Key> {
        let source = Key::source(source);
        let is_known = self.sources.lock().unwrap_or_else(PoisonError::into_inner).contains(&source);
        [Key::Starts].into_iter().filter(|_| !is_known).chain([Key::Start(source)]).collect()
    }

    /// Notes that an account was logged in to from a source.
    pub fn remember(&self, person: String, source: IpAddr) {
        let mut sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
        if sources.len() >= MOST_KNOWN {
            sources.clear();
        }
        sources.insert(Key::source(source));
        drop(sources);
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MOST_KNOWN {
            known.clear();
        }
        known.insert((person, Key::source(source)));
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Key, Bucket>> {
        self.buckets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn refilled(key: &Key, bucket: &Bucket, now: Instant) -> f64 {
    let (most, pace) = key.limit();
    let passed = now.saturating_duration_since(bucket.at);
    (bucket.left + passed.as_secs_f64() / pace.as_secs_f64()).min(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(person: &str, source: u8) -> Key {
        Key::Account(person.into(), IpAddr::from([192, 0, 2, source]))
    }

    #[test]
    fn a_guesser_is_slowed_and_the_owner_elsewhere_is_not() {
        let (throttle, now) = (Throttle::default(), Instant::now());
        for _ in 0..6 {
            assert_eq!(throttle.charge(&[account("alice", 1)], now), Ok(()));
        }
        assert_eq!(throttle.charge(&[account("alice", 1)], now), Err(Duration::from_secs(20)));
        assert_eq!(throttle.charge(&[account("alice", 2)], now), Ok(()));
        assert_eq!(throttle.charge(&[account("alice", 1)], now + Duration::from_secs(20)), Ok(()));
    }

    #[test]
    fn many_guessers_dont_keep_the_owner_out() {
        let (throttle, now) = (Throttle::default(), Instant::now());
        let (home, elsewhere) = (IpAddr::from([192, 0, 2, 1]), IpAddr::from([198, 51, 100, 1]));
        throttle.remember("alice".into(), home);
        while throttle.charge(&[Key::Everybody], now).is_ok() {}
        while throttle.charge(&[Key::Source(home)], now).is_ok() {}
        assert!(throttle.charge(&throttle.login(Some("alice"), elsewhere), now).is_err());
        assert!(throttle.charge(&throttle.login(Some("bob"), home), now).is_err());
        assert_eq!(throttle.charge(&throttle.login(Some("alice"), home), now), Ok(()));
    }

    #[test]
    fn good_attempts_cost_nothing() {
        let (throttle, now) = (Throttle::default(), Instant::now());
        for _ in 0..100 {
            assert_eq!(throttle.charge(&[account("alice", 1)], now), Ok(()));
            throttle.refund(&[account("alice", 1)]);
        }
    }

    #[test]
    fn an_empty_bucket_leaves_the_others_untouched() {
        let (throttle, now) = (Throttle::default(), Instant::now());
        let source = Key::Source(IpAddr::from([192, 0, 2, 1]));
        while throttle.charge(&[account("alice", 1)], now).is_ok() {}
        for _ in 0..100 {
            assert!(throttle.charge(&[source.clone(), account("alice", 1)], now).is_err());
        }
        assert_eq!(throttle.charge(&[source], now), Ok(()));
    }

    #[test]
    fn memory_is_bounded() {
        let (throttle, now) = (Throttle::default(), Instant::now());
        for source in 0..MOST_BUCKETS as u32 + 100 {
            let _ = throttle.charge(&[Key::Source(IpAddr::V4(source.into()))], now);
        }
        assert!(throttle.lock().len() <= MOST_BUCKETS);
        let later = now + Duration::from_secs(60);
        assert_eq!(throttle.charge(&[Key::Source(IpAddr::from([255, 0, 0, 1]))], later), Ok(()));
    }
}
