//! Slows guessing down: token buckets per source, per account and source, and for everybody, in bounded memory.
//!
//! A guesser must not lock the owner out. So no bucket of an account alone is charged before the password was right, those
//! at an address from where the account was logged in to share nothing with others, and whoever comes from a network that
//! has not tried of late need not stand in line behind those that have (docs/decisions/0026).

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Buckets of strangers held at a time: some 10 MB.
const MOST_BUCKETS: usize = 65_536;
/// Networks remembered that tried of late: some 6 MB.
const MOST_TRIED: usize = 65_536;
/// Accounts remembered with a source that they were logged in to from: some 10 MB.
const MOST_KNOWN: usize = 65_536;
const DAY: Duration = Duration::from_secs(86_400);

/// What is counted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Key {
    /// Attempts of everybody, but for those on an account from where it was logged in to before, and those that
    /// [`Self::Newcomers`] counts.
    Everybody,
    /// The first attempts from each network.
    Newcomers,
    /// First attempts that one network has.
    Newcomer(IpAddr),
    /// Second factors that one network may show before its passwords, when it has to wait for others.
    EarlyFactor(IpAddr),
    /// Attempts from one source, but for those on an account from where it was logged in to before: others behind the
    /// same address leave its owner a way in.
    Source(IpAddr),
    /// Attempts from one network, with the same exception: a provider's customer has many sources.
    Network(IpAddr),
    /// Logins that everybody starts, but for those from where somebody logged in before, and those that
    /// [`Self::NewStarts`] counts.
    Starts,
    /// The first logins that each network starts.
    NewStarts,
    /// First logins that one network may start.
    NewStart(IpAddr),
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
    /// The same from a source from where it was logged in to before.
    Known(String, IpAddr),
    /// Wrong second factors after a right password.
    SecondFactor(String),
    /// The same from a source from where the account was logged in to before.
    KnownFactor(String, IpAddr),
    /// What one person asks for, with however many sessions: grants, path segments, lists of destinations.
    Requests(String),
    /// Pages that one person reads at the console, with however many browsers.
    Console(String),
    /// Forms that one person sends there: each may write to the disk, and grants wait for that.
    Forms(String),
}

/// Where a key's bucket is held, and what gives way where there is no room.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shelf {
    /// Those who come last.
    Strangers,
    /// Those who came first: an attempt long ago counts least.
    Tried,
    /// Nobody: there are no more than accounts and sources that are remembered, and people who are logged in.
    Known,
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

    /// Where a newcomer is from: an IPv4 /24, or an IPv6 /32, as a provider easily gets.
    pub fn origin(address: IpAddr) -> IpAddr {
        wire::grant::mask(address, if address.is_ipv4() { 24 } else { 32 })
    }

    /// How many at once, and how long until one more.
    fn limit(&self) -> (f64, Duration) {
        match self {
            Self::Everybody | Self::Newcomers => (300.0, Duration::from_millis(100)),
            Self::Newcomer(_) | Self::NewStart(_) => (3.0, DAY / 3),
            // Who has a password and this many networks may try as many codes: two in a day and network are few.
            Self::EarlyFactor(_) => (2.0, DAY / 2),
            Self::Network(_) => (60.0, Duration::from_secs(2)),
            // Thousands of agents may share an address, and come back together when the authority was restarted.
            Self::Connection(_) => (1000.0, Duration::from_millis(20)),
            Self::Stranger(_) => (1000.0, Duration::from_millis(20)),
            Self::Starts | Self::NewStarts => (200.0, Duration::from_millis(200)),
            Self::Start(_) => (30.0, Duration::from_secs(3)),
            Self::Logouts(_) => (100.0, Duration::from_millis(200)),
            Self::Enrolments => (100.0, Duration::from_secs(1)),
            Self::Enrolment(_) => (20.0, Duration::from_secs(6)),
            Self::Source(_) => (30.0, Duration::from_secs(3)),
            Self::Account(..) | Self::Known(..) => (6.0, Duration::from_secs(20)),
            Self::SecondFactor(_) | Self::KnownFactor(..) => (10.0, Duration::from_secs(60)),
            Self::Requests(_) => (2000.0, Duration::from_millis(5)),
            Self::Console(_) => (200.0, Duration::from_millis(200)),
            Self::Forms(_) => (60.0, Duration::from_secs(1)),
        }
    }

    fn shelf(&self) -> Shelf {
        match self {
            Self::Newcomer(_) | Self::NewStart(_) | Self::EarlyFactor(_) => Shelf::Tried,
            Self::Known(..) | Self::KnownFactor(..) | Self::Requests(_) | Self::Console(_) | Self::Forms(_) => {
                Shelf::Known
            }
            _ => Shelf::Strangers,
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

/// The buckets.
#[derive(Default)]
pub struct Throttle {
    buckets: Mutex<Buckets>,
    known: Mutex<HashMap<(String, IpAddr), Instant>>,
    sources: Mutex<HashMap<IpAddr, Instant>>,
}

impl Throttle {
    /// Takes one from each bucket, or from none and says how long to wait.
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
            let bucket =
                buckets.shelf(key.shelf()).entry(key.clone()).or_insert(Bucket { left: key.limit().0, at: now });
            bucket.left = refilled(key, bucket, now) - 1.0;
            bucket.at = now;
        }
        Ok(())
    }

    /// Gives back what [`Self::charge`] took: the attempt was a good one.
    pub fn refund(&self, keys: &[Key]) {
        let mut buckets = lock(&self.buckets);
        for key in keys {
            if let Some(bucket) = buckets.shelf(key.shelf()).get_mut(key) {
                bucket.left = (bucket.left + 1.0).min(key.limit().0);
            }
        }
    }

    /// Charges an attempt to log in; gives what it was charged to, or says how long to wait.
    pub fn login(&self, person: Option<&str>, source: IpAddr, now: Instant) -> Result<Vec<Key>, Duration> {
        let (from, origin) = (Key::source(source), Key::origin(source));
        if let Some(person) = person.filter(|person| self.knows(person, source)) {
            return self.charge_first([vec![Key::Known(person.into(), from)]], now);
        }
        let own = person.map(|person| Key::Account(person.into(), from));
        let own = || [Key::Network(Key::network(source)), Key::Source(from)].into_iter().chain(own.clone());
        let new = [Key::Newcomers, Key::Newcomer(origin)].into_iter().chain(own()).collect();
        self.charge_first([new, [Key::Everybody].into_iter().chain(own()).collect()], now)
    }

    /// Charges a second factor that is shown by whoever has to wait: it is looked at before the password.
    pub fn early_factor(&self, source: IpAddr, now: Instant) -> Option<Vec<Key>> {
        self.charge_first([vec![Key::EarlyFactor(Key::origin(source))]], now).ok()
    }

    /// What second factors after a right password are charged to.
    pub fn second_factor(&self, person: &str, source: IpAddr) -> Key {
        match self.knows(person, source) {
            true => Key::KnownFactor(person.into(), Key::source(source)),
            false => Key::SecondFactor(person.into()),
        }
    }

    /// Charges the start of a login at the identity provider or as a machine, when nobody has shown a name yet; gives what
    /// it was charged to, or says how long to wait.
    pub fn start(&self, source: IpAddr, now: Instant) -> Result<Vec<Key>, Duration> {
        let (from, origin) = (Key::source(source), Key::origin(source));
        if lock(&self.sources).contains_key(&from) {
            return self.charge_first([vec![Key::Start(from)]], now);
        }
        let new = vec![Key::NewStarts, Key::NewStart(origin), Key::Start(from)];
        self.charge_first([new, vec![Key::Starts, Key::Start(from)]], now)
    }

    /// Notes that an account was logged in to from a source.
    pub fn remember(&self, person: String, source: IpAddr) {
        let (source, now) = (Key::source(source), Instant::now());
        note(&mut lock(&self.sources), source, now);
        note(&mut lock(&self.known), (person, source), now);
    }

    fn knows(&self, person: &str, source: IpAddr) -> bool {
        lock(&self.known).contains_key(&(person.to_owned(), Key::source(source)))
    }

    /// Charges the first of these that can be, or says how long until the last can.
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
    fn shelf(&mut self, shelf: Shelf) -> &mut HashMap<Key, Bucket> {
        match shelf {
            Shelf::Strangers => &mut self.strangers,
            Shelf::Tried => &mut self.tried,
            Shelf::Known => &mut self.known,
        }
    }

    fn left(&mut self, key: &Key, now: Instant) -> f64 {
        let shelf = key.shelf();
        let full = shelf == Shelf::Strangers && self.strangers.len() >= MOST_BUCKETS;
        match self.shelf(shelf).get(key) {
            Some(bucket) => refilled(key, bucket, now),
            // No room to count another stranger: those who are counted go first.
            None if full => 0.0,
            None => key.limit().0,
        }
    }

    /// Forgets what says nothing any more where there is no room, and networks that tried longest ago.
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

    /// The `n`th network of many.
    fn network(n: u32) -> IpAddr {
        IpAddr::V4((0x0a00_0000 + n * 256).into())
    }

    /// As many networks as that guess at Alice's password, each as often as it may at this moment.
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
        // They go on and on: each has three attempts as a newcomer, and three hundred have them in a minute.
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
