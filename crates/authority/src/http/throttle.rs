//! Rate limits against guessing: token buckets per source, per account and source, and for all sources together, in
//! bounded memory.
//!
//! An attacker who guesses must not lock the owner out (docs/decisions/0026). Therefore a bucket that counts attempts
//! on an account from all sources is charged only after a right password. A source is *familiar* to an account if
//! somebody has logged in to the account from this source before; such a source has its own buckets for the account.
//! The first attempts from a network have their own buckets, too, so that networks with many attempts can't use up the
//! tokens for first attempts.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Maximum number of buckets in [`Tier::Strangers`]: about 10 MB.
const MOST_BUCKETS: usize = 65_536;
/// Maximum number of buckets in [`Tier::Tried`]: about 6 MB.
const MOST_TRIED: usize = 65_536;
/// Maximum number of remembered pairs of an account and a source that is familiar to the account: about 10 MB.
const MOST_KNOWN: usize = 65_536;
const DAY: Duration = Duration::from_secs(86_400);

/// The key of a token bucket. It names the kind of attempts that the bucket counts, and the account, source or network
/// to which these attempts belong.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Key {
    /// Login attempts from all sources. Does not count attempts that [`Self::FamiliarSource`] or [`Self::Newcomers`]
    /// counts.
    Everybody,
    /// The first login attempts from each network, for all networks together.
    Newcomers,
    /// The first login attempts from one network.
    Newcomer(IpAddr),
    /// Second factors from one network that are checked before the password. With a right second factor, a source can
    /// log in even if other attempts have emptied the buckets for logins.
    EarlyFactor(IpAddr),
    /// Login attempts from one source, except attempts on accounts to which the source is familiar. Attackers behind
    /// the same address must not lock the owner of such an account out.
    Source(IpAddr),
    /// Login attempts from one network, with the same exceptions as [`Self::Source`]. The limit is for the whole
    /// network because one customer of a provider can have many addresses.
    Network(IpAddr),
    /// Logins started from all sources, except the logins that [`Self::NewStarts`] counts and logins from familiar
    /// sources.
    Starts,
    /// The first logins started from each network, for all networks together.
    NewStarts,
    /// The first logins started from one network.
    NewStart(IpAddr),
    /// Logins started from one source.
    Start(IpAddr),
    /// Logout tokens from one source.
    Logouts(IpAddr),
    /// Enrolment attempts from all sources.
    Enrolments,
    /// Connections opened by one source.
    Connection(IpAddr),
    /// Calls of one source on connections that have not shown a credential.
    Stranger(IpAddr),
    /// Enrolment attempts from one source.
    Enrolment(IpAddr),
    /// Login attempts on one account from one source.
    Account(String, IpAddr),
    /// Login attempts on one account from a source that is familiar to this account.
    FamiliarSource(String, IpAddr),
    /// Wrong second factors for one account after a right password.
    SecondFactor(String),
    /// Wrong second factors for one account from a source that is familiar to this account.
    FamiliarFactor(String, IpAddr),
    /// Requests of one person in all sessions: grants, path segments, lists of destinations.
    Requests(String),
    /// Pages that one person reads at the console, in all browsers.
    Console(String),
    /// Forms that one person sends at the console. Each form may cause a write to the disk, which delays grants.
    Forms(String),
}

/// The table that contains a key's bucket. It decides which buckets are dropped when there is no room.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tier {
    /// When the table is full, attempts that need a new bucket are refused, and the existing buckets stay.
    Strangers,
    /// When the table is full, the buckets that were used least recently are dropped.
    Tried,
    /// When the table is full, only full buckets are dropped. The number of keys is bounded by the number of logged-in
    /// persons and of remembered pairs of account and source.
    Familiar,
}

impl Key {
    /// Returns the source of an address: an IPv4 address or an IPv6 /64, which is the usual size of one subscriber's
    /// network.
    pub fn source(address: IpAddr) -> IpAddr {
        wire::grant::mask(address, if address.is_ipv4() { 32 } else { 64 })
    }

    /// Returns the network of an address: an IPv4 /24 or an IPv6 /48. A provider's customer easily gets an IPv6 /48.
    pub fn network(address: IpAddr) -> IpAddr {
        wire::grant::mask(address, if address.is_ipv4() { 24 } else { 48 })
    }

    /// Returns the network by which first attempts are counted: an IPv4 /24 or an IPv6 /32. A provider easily gets an
    /// IPv6 /32.
    pub fn origin(address: IpAddr) -> IpAddr {
        wire::grant::mask(address, if address.is_ipv4() { 24 } else { 32 })
    }

    /// Returns the capacity of the bucket, and the time in which it gains one token.
    fn limit(&self) -> (f64, Duration) {
        match self {
            Self::Everybody | Self::Newcomers => (300.0, Duration::from_millis(100)),
            Self::Newcomer(_) | Self::NewStart(_) => (3.0, DAY / 3),
            // An attacker who knows a password and controls this many networks can try as many codes. Two per day and
            // network are few enough.
            Self::EarlyFactor(_) => (2.0, DAY / 2),
            Self::Network(_) => (60.0, Duration::from_secs(2)),
            // Thousands of agents may share an address, and reconnect together after the authority restarts. Each of
            // them has two connections.
            Self::Connection(_) => (2000.0, Duration::from_millis(10)),
            Self::Stranger(_) => (1000.0, Duration::from_millis(20)),
            Self::Starts | Self::NewStarts => (200.0, Duration::from_millis(200)),
            Self::Start(_) => (30.0, Duration::from_secs(3)),
            Self::Logouts(_) => (100.0, Duration::from_millis(200)),
            Self::Enrolments => (100.0, Duration::from_secs(1)),
            Self::Enrolment(_) => (20.0, Duration::from_secs(6)),
            Self::Source(_) => (30.0, Duration::from_secs(3)),
            Self::Account(..) | Self::FamiliarSource(..) => (6.0, Duration::from_secs(20)),
            Self::SecondFactor(_) | Self::FamiliarFactor(..) => (10.0, Duration::from_secs(60)),
            Self::Requests(_) => (2000.0, Duration::from_millis(5)),
            Self::Console(_) => (200.0, Duration::from_millis(200)),
            Self::Forms(_) => (60.0, Duration::from_secs(1)),
        }
    }

    fn tier(&self) -> Tier {
        match self {
            Self::Newcomer(_) | Self::NewStart(_) | Self::EarlyFactor(_) => Tier::Tried,
            Self::FamiliarSource(..)
            | Self::FamiliarFactor(..)
            | Self::Requests(_)
            | Self::Console(_)
            | Self::Forms(_) => Tier::Familiar,
            _ => Tier::Strangers,
        }
    }
}

struct Bucket {
    left: f64,
    at: Instant,
}

#[derive(Default)]
struct Buckets {
    strangers: HashMap<Key, Bucket>,
    tried: HashMap<Key, Bucket>,
    known: HashMap<Key, Bucket>,
}

/// The token buckets, and the sources that are familiar to accounts.
#[derive(Default)]
pub struct Throttle {
    buckets: Mutex<Buckets>,
    known: Mutex<HashMap<(String, IpAddr), Instant>>,
    sources: Mutex<HashMap<IpAddr, Instant>>,
}

impl Throttle {
    /// Takes one token from the bucket of each key. If one of these buckets is empty, takes no token at all.
    ///
    /// # Errors
    /// Fails if a bucket is empty; the error is the time until it has a token.
    pub fn charge(&self, keys: &[Key], now: Instant) -> Result<(), Duration> {
        let mut buckets = lock(&self.buckets);
        buckets.make_room(keys.len(), now);
        for key in keys {
            let (_, pace) = key.limit();
            let left = buckets.left(key, now);
            if left < 1.0 {
                return Err(pace.mul_f64(1.0 - left));
            }
        }
        for key in keys {
            let bucket = buckets.tier(key.tier()).entry(key.clone()).or_insert(Bucket { left: key.limit().0, at: now });
            bucket.left = refilled(key, bucket, now) - 1.0;
            bucket.at = now;
        }
        Ok(())
    }

    /// Puts one token back into the bucket of each key. This undoes [`Self::charge`], because the attempt was
    /// legitimate.
    pub fn refund(&self, keys: &[Key]) {
        let mut buckets = lock(&self.buckets);
        for key in keys {
            if let Some(bucket) = buckets.tier(key.tier()).get_mut(key) {
                bucket.left = (bucket.left + 1.0).min(key.limit().0);
            }
        }
    }

    /// Charges a login attempt on the account `person`; `None` stands for a name that is not valid. Returns the keys
    /// that were charged.
    ///
    /// # Errors
    /// Fails if the attempt must wait; the error is the time to wait.
    pub fn login(&self, person: Option<&str>, source: IpAddr, now: Instant) -> Result<Vec<Key>, Duration> {
        let (from, origin) = (Key::source(source), Key::origin(source));
        if let Some(person) = person.filter(|person| self.knows(person, source)) {
            return self.charge_first([vec![Key::FamiliarSource(person.into(), from)]], now);
        }
        let own = person.map(|person| Key::Account(person.into(), from));
        let own = || [Key::Network(Key::network(source)), Key::Source(from)].into_iter().chain(own.clone());
        let new = [Key::Newcomers, Key::Newcomer(origin)].into_iter().chain(own()).collect();
        self.charge_first([new, [Key::Everybody].into_iter().chain(own()).collect()], now)
    }

    /// Charges a check of the second factor that comes before the check of the password. The caller makes this early
    /// check for a login attempt that would have to wait otherwise. Returns the charged keys, or `None` if the source
    /// must wait for this check, too.
    pub fn early_factor(&self, source: IpAddr, now: Instant) -> Option<Vec<Key>> {
        self.charge_first([vec![Key::EarlyFactor(Key::origin(source))]], now).ok()
    }

    /// Returns the key of the bucket that the caller charges when it checks a second factor after a right password.
    pub fn second_factor(&self, person: &str, source: IpAddr) -> Key {
        match self.knows(person, source) {
            true => Key::FamiliarFactor(person.into(), Key::source(source)),
            false => Key::SecondFactor(person.into()),
        }
    }

    /// Charges the start of a login whose account is not known yet: a login at the identity provider, with a passkey,
    /// or with the key of a service account. Returns the keys that were charged.
    ///
    /// # Errors
    /// Fails if the start must wait; the error is the time to wait.
    pub fn start(&self, source: IpAddr, now: Instant) -> Result<Vec<Key>, Duration> {
        let (from, origin) = (Key::source(source), Key::origin(source));
        if lock(&self.sources).contains_key(&from) {
            return self.charge_first([vec![Key::Start(from)]], now);
        }
        let new = vec![Key::NewStarts, Key::NewStart(origin), Key::Start(from)];
        self.charge_first([new, vec![Key::Starts, Key::Start(from)]], now)
    }

    /// Records that somebody has logged in to the account `person` from `source`. From now on, the source is familiar
    /// to the account and has its own buckets for it.
    pub fn remember(&self, person: String, source: IpAddr) {
        let (source, now) = (Key::source(source), Instant::now());
        note(&mut lock(&self.sources), source, now);
        note(&mut lock(&self.known), (person, source), now);
    }

    fn knows(&self, person: &str, source: IpAddr) -> bool {
        lock(&self.known).contains_key(&(person.to_owned(), Key::source(source)))
    }

    /// Charges the first set of keys whose buckets all have tokens. The error is the time to wait for the last set.
    fn charge_first(&self, ways: impl IntoIterator<Item = Vec<Key>>, now: Instant) -> Result<Vec<Key>, Duration> {
        let mut wait = Duration::ZERO;
        for keys in ways {
            match self.charge(&keys, now) {
                Ok(()) => return Ok(keys),
                Err(longer) => wait = longer,
            }
        }
        Err(wait)
    }
}

impl Buckets {
    fn tier(&mut self, tier: Tier) -> &mut HashMap<Key, Bucket> {
        match tier {
            Tier::Strangers => &mut self.strangers,
            Tier::Tried => &mut self.tried,
            Tier::Familiar => &mut self.known,
        }
    }

    fn left(&mut self, key: &Key, now: Instant) -> f64 {
        let tier = key.tier();
        let full = tier == Tier::Strangers && self.strangers.len() >= MOST_BUCKETS;
        match self.tier(tier).get(key) {
            Some(bucket) => refilled(key, bucket, now),
            // There is no room for another bucket, and buckets in use are not dropped.
            None if full => 0.0,
            None => key.limit().0,
        }
    }

    /// Makes room by dropping full buckets and, if necessary, the least recently used buckets of [`Tier::Tried`].
    fn make_room(&mut self, more: usize, now: Instant) {
        for (buckets, most) in
            [(&mut self.strangers, MOST_BUCKETS), (&mut self.tried, MOST_TRIED), (&mut self.known, 4 * MOST_KNOWN)]
        {
            if buckets.len() + more > most {
                buckets.retain(|key, bucket| refilled(key, bucket, now) < key.limit().0);
            }
        }
        if self.tried.len() + more > MOST_TRIED {
            forget_older_half(&mut self.tried, |bucket| bucket.at);
        }
    }
}

fn note<K: Eq + Hash>(seen: &mut HashMap<K, Instant>, key: K, now: Instant) {
    if seen.len() >= MOST_KNOWN {
        forget_older_half(seen, |at| *at);
    }
    seen.insert(key, now);
}

fn forget_older_half<K: Eq + Hash, V>(all: &mut HashMap<K, V>, at: impl Fn(&V) -> Instant) {
    let mut times: Vec<_> = all.values().map(&at).collect();
    let half = times.len() / 2;
    let (_, median, _) = times.select_nth_unstable(half);
    let median = *median;
    all.retain(|_, value| at(value) > median);
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn refilled(key: &Key, bucket: &Bucket, now: Instant) -> f64 {
    let (most, pace) = key.limit();
    let passed = now.saturating_duration_since(bucket.at);
    (bucket.left + passed.as_secs_f64() / pace.as_secs_f64()).min(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOME: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));

    fn account(person: &str, source: u8) -> Key {
        Key::Account(person.into(), IpAddr::from([192, 0, 2, source]))
    }

    /// Returns the `n`th of many networks.
    fn network(n: u32) -> IpAddr {
        IpAddr::V4((0x0a00_0000 + n * 256).into())
    }

    /// Guesses at Alice's password from `networks` networks, each as often as it may at this moment.
    fn guess(throttle: &Throttle, networks: u32, now: Instant) -> usize {
        let from = |n| (0..).take_while(move |_| throttle.login(Some("alice"), network(n), now).is_ok()).count();
        (0..networks).map(from).sum()
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
    fn however_many_guess_the_owner_at_a_known_address_gets_in() {
        let (throttle, now) = (Throttle::default(), Instant::now());
        throttle.remember("alice".into(), HOME);
        guess(&throttle, 10_000, now);
        while throttle.charge(&[Key::Source(HOME)], now).is_ok() {}
        assert!(throttle.login(Some("alice"), network(10_001), now).is_err(), "all of it is used up");
        assert!(throttle.login(Some("bob"), HOME, now).is_err(), "another account is a stranger there");
        assert!(throttle.login(Some("alice"), HOME, now).is_ok());
        assert!(throttle.start(HOME, now).is_ok());
    }

    #[test]
    fn the_owner_at_a_new_address_waits_seconds_and_those_who_guessed_for_the_rest_of_the_day() {
        let (throttle, mut now) = (Throttle::default(), Instant::now());
        let tried = guess(&throttle, 300, now);
        assert!((300..=600).contains(&tried), "{tried} guesses at once");
        let wait = throttle.login(Some("alice"), network(301), now).err().unwrap_or_default();
        assert!(wait <= Duration::from_secs(1), "{wait:?}");
        // The attack continues. Each network has three attempts as a newcomer, which three hundred networks use up in a
        // minute.
        for _ in 0..100 {
            now += Duration::from_secs(1);
            guess(&throttle, 300, now);
        }
        assert!(throttle.login(Some("alice"), network(5), now).is_err());
        assert!(throttle.login(Some("alice"), network(301), now).is_ok());
        let hour = now + Duration::from_secs(3600);
        guess(&throttle, 300, hour);
        assert!(throttle.login(Some("alice"), network(302), hour).is_ok(), "nobody new waits for them any more");
    }

    #[test]
    fn a_second_factor_is_looked_at_whoever_else_guesses() {
        let (throttle, now) = (Throttle::default(), Instant::now());
        guess(&throttle, 10_000, now);
        let keys = throttle.early_factor(network(10_001), now).unwrap();
        assert!(throttle.early_factor(network(10_001), now).is_some());
        assert!(throttle.early_factor(network(10_001), now).is_none(), "few codes from one network");
        throttle.refund(&keys);
        assert!(throttle.early_factor(network(10_001), now).is_some(), "a right one costs nothing");
    }

    #[test]
    fn whoever_has_the_password_does_not_use_up_the_owners_second_factors() {
        let (throttle, now) = (Throttle::default(), Instant::now());
        throttle.remember("alice".into(), HOME);
        while throttle.charge(&[throttle.second_factor("alice", network(1))], now).is_ok() {}
        assert!(throttle.charge(&[throttle.second_factor("alice", network(2))], now).is_err());
        assert!(throttle.charge(&[throttle.second_factor("alice", HOME)], now).is_ok());
    }

    #[test]
    fn logins_that_many_networks_start_leave_newcomers_a_way_in() {
        let (throttle, mut now) = (Throttle::default(), Instant::now());
        for _ in 0..600 {
            for n in 0..100 {
                while throttle.start(network(n), now).is_ok() {}
            }
            now += Duration::from_millis(200);
        }
        assert!(throttle.start(network(5), now).is_err());
        let keys = throttle.start(network(101), now).unwrap();
        throttle.refund(&keys);
        assert_eq!(throttle.start(network(101), now).unwrap(), keys);
    }

    #[test]
    fn good_attempts_cost_nothing() {
        let (throttle, now) = (Throttle::default(), Instant::now());
        for _ in 0..1000 {
            let keys = throttle.login(Some("alice"), HOME, now).unwrap();
            throttle.refund(&keys);
        }
    }

    #[test]
    fn an_empty_bucket_leaves_the_others_untouched() {
        let (throttle, now) = (Throttle::default(), Instant::now());
        let source = Key::Source(HOME);
        while throttle.charge(&[account("alice", 1)], now).is_ok() {}
        for _ in 0..100 {
            assert!(throttle.charge(&[source.clone(), account("alice", 1)], now).is_err());
        }
        assert_eq!(throttle.charge(&[source], now), Ok(()));
    }

    #[test]
    fn memory_is_bounded_and_the_owner_gets_in_where_it_is_full() {
        let (throttle, now) = (Throttle::default(), Instant::now());
        throttle.remember("alice".into(), HOME);
        for n in 0..MOST_BUCKETS as u32 + 100 {
            let _ = throttle.charge(&[Key::Source(network(n))], now);
            let _ = throttle.charge(&[Key::Newcomer(network(n))], now);
            throttle.remember(format!("person{n}"), network(n));
        }
        throttle.remember("alice".into(), HOME);
        let buckets = lock(&throttle.buckets);
        assert!(buckets.strangers.len() <= MOST_BUCKETS && buckets.tried.len() <= MOST_TRIED);
        assert!(lock(&throttle.known).len() <= MOST_KNOWN && lock(&throttle.sources).len() <= MOST_KNOWN);
        drop(buckets);
        assert!(throttle.login(Some("bob"), HOME, now).is_err(), "there is no room for strangers");
        assert!(throttle.login(Some("alice"), HOME, now).is_ok());
        let later = now + Duration::from_secs(60);
        assert!(throttle.login(Some("bob"), HOME, later).is_ok());
    }
}
