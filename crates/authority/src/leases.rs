//! The leases of recorded grants: finds the grant that a request renews, and the handles of a grant.
//!
//! A grant is recorded once. The same session may send another request from the same address. If the policy decides it
//! in the same way, the session gets another lease of that grant, and the authority writes nothing. The table here
//! repeats what the database contains, and only the storage thread changes it, in the order of its writes. So a grant
//! is not renewed after the server has learned of its revocation.

use crate::keys::Keyring;
use crate::login::credentials;
use crate::push::events::Listener;
use crate::storage::{Announced, Ended, LeaseTerms, Resumed, TokenHash};
use anyhow::Result;
use api::RevokedGrant;
use engine::issuing::lease::{EPOCHS_MAX, HandleKey, NUMBERS, Turn};
use engine::model::Sealing;
use engine::model::random_keys::RandomKeys;
use engine::policy::Scope;
use engine::verifier::CLOCK_SKEW_MAX;
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use wire::{Epoch, Flags, Handle, Holder};

/// Number of grant numbers that a server leaves out when it starts. A power failure may have lost the records of the
/// last grants, whose handles must not be mistaken for those of new grants.
const LEFT_OUT: u32 = 1 << 16;

/// Maximum number of grant numbers that wait to be used again. If more numbers are given back at once, because so many
/// requests are refused at once, the others are lost.
const UNUSED_MAX: usize = 4096;

/// The values of a requested grant. Only a request with the same values renews the grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted<'a> {
    /// The verifier that the grant is for.
    pub verifier: Cow<'a, str>,
    /// The receiver's name.
    pub receiver: Cow<'a, str>,
    /// The rule that allows the grant.
    pub rule: Arc<str>,
    /// The rule's demands on a sealed tunnel.
    pub sealing: Sealing,
    /// The values by which the grants of a session are looked up.
    pub place: Place,
}

impl Wanted<'_> {
    /// Returns the same values, independent of the policy that they were read from.
    pub fn into_owned(self) -> Wanted<'static> {
        let Self { verifier, receiver, rule, sealing, place } = self;
        let (verifier, receiver) = (verifier.into_owned().into(), receiver.into_owned().into());
        Wanted { verifier, receiver, rule, sealing, place }
    }
}

/// The source address of a request, and the scope and flags of the requested grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    source: IpAddr,
    prefix: ipnet::IpNet,
    service: Option<(u8, u16)>,
    flags: u8,
}

impl Place {
    /// Combines the source address of a request with the scope and the flags of the requested grant.
    pub fn new(source: IpAddr, scope: &Scope, flags: Flags) -> Self {
        Self { source, prefix: scope.prefix, service: scope.service, flags: flags.0 }
    }
}

/// The next lease of a recorded grant.
pub struct Lease {
    /// The lower half of the grant's handle in the current epoch.
    pub half: u32,
    /// Whether the authority has announced this handle to the grant's verifier, with the grant's class. If not, the
    /// caller must announce it.
    pub is_announced: bool,
    /// The maximum length of the lease, in seconds.
    pub length: u32,
    /// The time at which the grant's last lease ends, in Unix seconds.
    pub until: u64,
}

/// A grant that can be renewed.
struct Entry {
    wanted: Wanted<'static>,
    handle: Handle,
    renewable: LeaseTerms,
    until: u64,
    latest: Mutex<Option<Latest>>,
}

/// The handle of the latest lease. Most renewals are in the same epoch as the one before, and need no encryption.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Latest {
    epoch: Epoch,
    half: u32,
    /// The class with which this handle was announced to the verifier; `None` if it was not announced.
    announced: Option<u8>,
}

/// The keys are hashes of the sessions' tokens, which the authority draws at random.
type Table = RandomKeys<TokenHash, HashMap<Place, Entry>>;

/// The grants that can be renewed, by session, and the numbers for new grants.
pub struct Leases {
    keyring: Arc<Keyring>,
    key: HandleKey,
    next: AtomicU32,
    /// Numbers that were taken for requests that the authority then refused.
    unused: Mutex<Vec<u32>>,
    epoch_length: u32,
    /// The time for which another member of a cluster may still renew a grant after its revocation, in seconds; 0 for
    /// an authority in no cluster.
    late: AtomicU32,
    table: RwLock<Table>,
}

impl Leases {
    /// Creates an empty table. `next` is the number that follows the last recorded number.
    pub fn new(keyring: Arc<Keyring>, (key, next): (HandleKey, u32), epoch_length: u32) -> Self {
        let (next, unused, table) = (AtomicU32::new(next.wrapping_add(LEFT_OUT)), Mutex::default(), RwLock::default());
        Self { keyring, key, next, unused, epoch_length, late: AtomicU32::new(0), table }
    }

    /// States that other members of the cluster may still renew a grant for `late` seconds after its revocation.
    /// Members that have lost contact do not know of the revocation.
    pub fn set_late(&self, late: u32) {
        self.late.store(late, Ordering::Relaxed);
    }

    /// Continues with a random number for the next grant. Members of a cluster choose numbers independently of each
    /// other, so each of them must continue at a different number.
    pub fn scatter(&self) {
        if let Ok(random) = credentials::random() {
            self.next.store(u32::from_be_bytes(random) % NUMBERS, Ordering::Relaxed);
        }
    }

    /// Records that the authority has announced a handle to the verifier, with the grant's class. Must be called after
    /// the announcement was sent. If a request is cancelled in between, the next request announces the handle.
    pub fn note_announced(&self, session: &TokenHash, place: &Place, class: u8, handle: Handle, now: u64) {
        let table = self.read();
        let Some(entry) = table.get(session).and_then(|of_session| of_session.get(place)) else { return };
        let latest = Latest { epoch: Epoch::at(now, self.epoch_length), half: handle.0 as u32, announced: Some(class) };
        // Another grant may have taken the place meanwhile. A note about the earlier one must not make it use the
        // earlier one's half.
        let own = self.turn(&entry.renewable, latest.epoch).map(|turn| self.key.encrypt(turn));
        if own != Some(latest.half) {
            return;
        }
        *entry.latest.lock().unwrap_or_else(PoisonError::into_inner) = Some(latest);
    }

    /// Returns the lease that a request of this session gets at `now`. Returns `None` if the session has no grant with
    /// the values in `wanted`, or if the last epoch in which the grant can be renewed is over.
    pub fn find(&self, session: &TokenHash, wanted: &Wanted<'_>, class: u8, now: u64) -> Option<Lease> {
        let table = self.read();
        let entry = table.get(session)?.get(&wanted.place).filter(|entry| entry.wanted == *wanted)?;
        let epoch = Epoch::at(now, self.epoch_length);
        let mut latest = entry.latest.lock().unwrap_or_else(PoisonError::into_inner);
        let (half, announced) = match *latest {
            Some(latest) if latest.epoch == epoch => (latest.half, latest.announced),
            _ => {
                let half = self.key.encrypt(self.turn(&entry.renewable, epoch)?);
                *latest = Some(Latest { epoch, half, announced: None });
                (half, None)
            }
        };
        let is_announced = announced == Some(class);
        Some(Lease { half, is_announced, length: entry.renewable.lease, until: entry.until })
    }

    /// Returns a number for a new grant, and the lower half of the grant's first handle. If numbers were given back,
    /// uses one of these.
    pub fn begin(&self) -> (u32, u32) {
        let given_back = self.unused.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let number = given_back.unwrap_or_else(|| self.next.fetch_add(1, Ordering::Relaxed) % NUMBERS);
        (number, self.key.encrypt(Turn { number, epochs: 0 }))
    }

    /// Takes back the number of a grant that the authority has refused. Nobody has a handle of this grant.
    pub fn give_back(&self, number: u32) {
        let mut unused = self.unused.lock().unwrap_or_else(PoisonError::into_inner);
        if unused.len() < UNUSED_MAX {
            unused.push(number);
        }
    }

    /// Returns the end of the last lease of a grant. The grant is issued at `now`, to a session that ends at
    /// `session_ends`. Both are Unix seconds; `lease` is the maximum length of a lease.
    pub fn until(&self, now: u64, session_ends: u64, lease: u32) -> u64 {
        let Epoch(first) = Epoch::at(now, self.epoch_length);
        let last = (first + u64::from(EPOCHS_MAX)) * u64::from(self.epoch_length);
        session_ends.min(last) + u64::from(lease)
    }

    /// Returns the time at which the last lease of a handle ends. The handle belongs to a lease that is issued at
    /// `now`: all leases of a grant that are issued in one epoch have the same handle. `lease` is the maximum length of
    /// a lease, and `until` is the end of the grant's last lease.
    pub fn handle_ends(&self, now: u64, lease: u32, until: u64) -> u64 {
        self.epoch_ends(Epoch::at(now, self.epoch_length), lease).min(until)
    }

    /// Returns the time at which the last lease with `handle` ends. `until` is the end of the grant's last lease.
    pub fn ends_of(&self, handle: Handle, terms: &LeaseTerms, until: u64) -> u64 {
        let Epoch(first) = Epoch::at(terms.issued, self.epoch_length);
        let epoch = Epoch(first + u64::from(self.key.decrypt(handle).epochs));
        self.epoch_ends(epoch, terms.lease).min(until)
    }

    fn epoch_ends(&self, Epoch(epoch): Epoch, lease: u32) -> u64 {
        (epoch + 1).saturating_mul(self.epoch_length.into()).saturating_add(lease.into())
    }

    fn turn(&self, grant: &LeaseTerms, epoch: Epoch) -> Option<Turn> {
        Turn::at(grant.number, Epoch::at(grant.issued, self.epoch_length), epoch)
    }

    /// Adds a grant that was recorded. `handle` is the grant's first handle. `of` contains the terms of its leases, and
    /// the end of its last lease. Must be called on the storage thread.
    pub fn insert(&self, session: TokenHash, wanted: Wanted<'static>, handle: Handle, of: (LeaseTerms, u64)) {
        let (renewable, until) = of;
        let place = wanted.place;
        let entry = Entry { wanted, handle, renewable, until, latest: Mutex::default() };
        self.write().entry(session).or_default().insert(place, entry);
    }

    /// Adds grants that an earlier run of the server, or another member of the cluster, recorded. Leaves out a grant
    /// whose first handle does not contain the grant's holder. This happens if the master key or the length of epochs
    /// was changed after the grant was recorded.
    pub fn resume(&self, grants: Vec<Resumed>) {
        let mut table = self.write();
        for grant in grants {
            let Resumed { session, renewable, until, handle, .. } = grant;
            let first = Epoch::at(renewable.issued, self.epoch_length);
            let Ok(key) = self.keyring.verifier_key(&grant.verifier, first) else { continue };
            if Holder::of(handle, &key) != grant.holder {
                continue;
            }
            let place = Place::new(grant.source, &grant.scope, grant.flags);
            let Resumed { verifier, receiver, rule, sealing, .. } = grant;
            let (verifier, receiver, rule) = (verifier.into(), receiver.into(), rule.into());
            let wanted = Wanted { verifier, receiver, rule, sealing, place };
            let entry = Entry { wanted, handle, renewable, until, latest: Mutex::default() };
            table.entry(session).or_default().insert(place, entry);
        }
    }

    /// Removes grants that were revoked. Must be called on the storage thread, before the revocation is announced.
    pub fn remove_revoked(&self, revoked: &[Ended]) {
        let mut gone: HashMap<TokenHash, HashSet<u64>> = HashMap::new();
        for Ended { grant, session, .. } in revoked {
            gone.entry(*session).or_default().insert(grant.grant.handle);
        }
        let mut table = self.write();
        for (session, handles) in gone {
            if let Some(of_session) = table.get_mut(&session) {
                of_session.retain(|_, entry| !handles.contains(&entry.handle.0));
            }
        }
    }

    /// Removes grants that have expired, and grants of sessions that are not in `live`. Must be called on the storage
    /// thread.
    pub fn keep(&self, live: &HashSet<TokenHash>, now: u64) {
        self.write().retain(|session, of_session| {
            of_session.retain(|_, entry| entry.until > now);
            live.contains(session) && !of_session.is_empty()
        });
    }

    /// Removes all grants, because their handles were made with keys that are no longer used.
    pub fn clear(&self) {
        self.write().clear();
    }

    /// Returns the handles of a grant with which somebody can make tokens at `now` or later. These include handles that
    /// another member of the cluster may still issue because it has not learned of the grant's end. A grant that cannot
    /// be renewed has one handle.
    ///
    /// # Errors
    /// Fails if the verifier's id is too long.
    pub fn handles(&self, grant: &Announced, verifier: &str, now: u64) -> Result<Vec<RevokedGrant>> {
        let Announced { grant, renewable: Some(renewable), learned } = grant else { return Ok(vec![grant.grant]) };
        let first = Epoch::at(renewable.issued, self.epoch_length);
        let last = match u64::from(self.late.load(Ordering::Relaxed)) {
            0 => learned.map_or(now, |learned| now.min(learned)),
            // The storage states the time at which every member has learned of the revocation, which can be in the
            // future.
            late => learned.unwrap_or(now + late),
        };
        let mut handles = Vec::new();
        for epoch in (first.0..=Epoch::at(last, self.epoch_length).0).map(Epoch) {
            let Some(turn) = self.turn(renewable, epoch) else { break };
            let ends = self.epoch_ends(epoch, renewable.lease).min(last + u64::from(renewable.lease));
            let ends = ends.min(grant.expires.into());
            if ends + u64::from(CLOCK_SKEW_MAX) <= now {
                continue;
            }
            let handle = if epoch == first {
                Handle(grant.handle)
            } else {
                Holder(grant.holder).handle(&self.keyring.verifier_key(verifier, epoch)?, self.key.encrypt(turn))
            };
            let expires = u32::try_from(ends).unwrap_or(u32::MAX);
            handles.push(RevokedGrant { handle: handle.0, expires, ..*grant });
        }
        Ok(handles)
    }

    /// Returns the handles of revoked grants: each handle once for its verifier and once for its session. If a grant's
    /// handles cannot be computed, leaves them out: the grant's verifier asks which flows to cut (see `mark` in
    /// storage/revocation.rs).
    pub(crate) fn announcements(&self, revoked: &[Ended], now: u64) -> Vec<(Listener, RevokedGrant)> {
        let both = |Ended { grant, verifier, session }: &Ended| {
            let handles = self.handles(grant, verifier, now).unwrap_or_default();
            let (verifier, session) = (Listener::Verifier(verifier.clone()), Listener::Session(*session));
            handles.into_iter().flat_map(move |handle| {
                // Events to sessions contain no holders.
                [(verifier.clone(), handle), (session.clone(), RevokedGrant { holder: 0, ..handle })]
            })
        };
        revoked.iter().flat_map(both).collect()
    }

    fn read(&self) -> RwLockReadGuard<'_, Table> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Table> {
        self.table.write().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::MasterKeys;

    const HOUR: u32 = 3600;
    /// The middle of an epoch.
    const NOW: u64 = 1_000_000 * 3600 + 1800;
    const SESSION: TokenHash = [1; 32];
    const HOLDER: Holder = Holder(0x0000_0503);

    fn wanted() -> Wanted<'static> {
        let scope = Scope { prefix: "203.0.113.1/32".parse().unwrap(), service: Some((6, 22)) };
        let place = Place::new("192.0.2.1".parse().unwrap(), &scope, Flags::PORT);
        let (verifier, receiver, rule) = ("edge".into(), "git".into(), "policy.toml:1".into());
        Wanted { verifier, receiver, rule, sealing: Sealing::NONE, place }
    }

    /// Returns the leases of one grant that begins at [`NOW`], the keys, and the grant as the database lists it.
    fn one() -> (Leases, Arc<Keyring>, Announced) {
        let keyring = Arc::new(Keyring::new(MasterKeys::parse(&[7; 32]).unwrap(), HOUR));
        let leases = Leases::new(keyring.clone(), (HandleKey::new([7; 16]), 5), HOUR);
        let (number, half) = leases.begin();
        let handle = HOLDER.handle(&keyring.verifier_key("edge", Epoch::at(NOW, HOUR)).unwrap(), half);
        let terms = LeaseTerms { number, issued: NOW, lease: 300 };
        let until = leases.until(NOW, NOW + 12 * 3600, 300);
        leases.insert(SESSION, wanted(), handle, (terms, until));
        leases.note_announced(&SESSION, &wanted().place, 0, handle, NOW);
        let grant = RevokedGrant { handle: handle.0, expires: until as u32, holder: HOLDER.0 };
        (leases, keyring, Announced { grant, renewable: Some(terms), learned: None })
    }

    #[test]
    fn a_grant_has_another_handle_in_each_epoch_and_the_verifier_is_told_of_each_once() {
        let (leases, ..) = one();
        let find = |now| leases.find(&SESSION, &wanted(), 0, now).map(|lease| (lease.half, lease.is_announced));
        let (first, is_announced) = find(NOW).unwrap();
        assert!(is_announced, "it was announced when it was recorded");
        let (second, is_announced) = find(NOW + 3600).unwrap();
        assert!(second != first && !is_announced);
        assert_eq!(find(NOW + 3600), Some((second, false)), "the announcement was not sent");
        leases.note_announced(&SESSION, &wanted().place, 0, Handle(second.into()), NOW + 3600);
        assert_eq!(find(NOW + 3601), Some((second, true)));
        let other_class = leases.find(&SESSION, &wanted(), 1, NOW + 3601).unwrap();
        assert_eq!((other_class.half, other_class.is_announced), (second, false), "packet filters need the class");
        assert!(find(NOW + 15 * 3600).is_some() && find(NOW + 16 * 3600).is_none(), "it has sixteen handles");
    }

    #[test]
    fn a_late_note_about_a_grant_changes_nothing_of_the_one_that_took_its_place() {
        let (leases, keyring, earlier) = one();
        let (number, half) = leases.begin();
        let handle = HOLDER.handle(&keyring.verifier_key("edge", Epoch::at(NOW, HOUR)).unwrap(), half);
        let terms = LeaseTerms { number, issued: NOW, lease: 300 };
        leases.insert(SESSION, wanted(), handle, (terms, leases.until(NOW, NOW + 12 * 3600, 300)));
        let find = || leases.find(&SESSION, &wanted(), 0, NOW).map(|lease| (lease.half, lease.is_announced));
        leases.note_announced(&SESSION, &wanted().place, 0, Handle(earlier.grant.handle), NOW);
        assert_eq!(find(), Some((half, false)));
        leases.note_announced(&SESSION, &wanted().place, 0, handle, NOW);
        assert_eq!(find(), Some((half, true)));
    }

    #[test]
    fn a_number_whose_grant_was_refused_is_used_again() {
        let (leases, ..) = one();
        let refused = leases.begin();
        assert_ne!(leases.begin(), refused);
        leases.give_back(refused.0);
        assert_eq!(leases.begin(), refused);
        assert_ne!(leases.begin(), refused);
    }

    #[test]
    fn another_session_source_rule_or_demand_renews_nothing() {
        let (leases, ..) = one();
        let finds = |session, wanted: &Wanted<'_>| leases.find(&session, wanted, 0, NOW).is_some();
        assert!(finds(SESSION, &wanted()) && !finds([2; 32], &wanted()));
        let Place { source, service, flags, .. } = wanted().place;
        for place in [
            Place { source: "192.0.2.2".parse().unwrap(), ..wanted().place },
            Place { prefix: "203.0.113.0/24".parse().unwrap(), source, service, flags },
            Place { service: None, ..wanted().place },
            Place { flags: 0, ..wanted().place },
        ] {
            assert!(!finds(SESSION, &Wanted { place, ..wanted() }), "{place:?}");
        }
        assert!(!finds(SESSION, &Wanted { rule: "policy.toml:9".into(), ..wanted() }));
        assert!(!finds(SESSION, &Wanted { verifier: "other".into(), ..wanted() }));
        let sealing = Sealing { treatment: engine::model::Treatment::Encrypt, ..Sealing::NONE };
        assert!(!finds(SESSION, &Wanted { sealing, ..wanted() }));
    }

    #[test]
    fn a_revocation_names_each_handle_with_which_a_token_can_be_made() {
        let (leases, keyring, grant) = one();
        let handles = |grant: &Announced, now| leases.handles(grant, "edge", now).unwrap();
        let of = |now| {
            let lease = leases.find(&SESSION, &wanted(), 0, now).unwrap();
            HOLDER.handle(&keyring.verifier_key("edge", Epoch::at(now, HOUR)).unwrap(), lease.half).0
        };
        let named = |grant: &Announced, now| handles(grant, now).iter().map(|one| one.handle).collect::<Vec<_>>();
        assert_eq!(named(&grant, NOW), [grant.grant.handle]);
        // Five minutes and half a minute after the end of an epoch, its last lease has ended on every verifier's clock.
        let begins = NOW + 1800;
        let (first, second) = (of(NOW), of(begins));
        assert_eq!(named(&grant, begins + 329), [first, second]);
        assert_eq!(named(&grant, begins + 330), [second]);
        let ends =
            |grant: &Announced, now| handles(grant, now).iter().map(|one| u64::from(one.expires)).collect::<Vec<_>>();
        assert_eq!(ends(&grant, begins + 10), [begins + 300, begins + 310]);
        // No lease begins after the server has learned of the revocation.
        let revoked = Announced { learned: Some(begins + 10), ..grant.clone() };
        assert_eq!(ends(&revoked, begins + 100), [begins + 300, begins + 310]);
        assert_eq!(named(&revoked, begins + 335), [second]);
        assert!(named(&revoked, begins + 340).is_empty());
        let single = Announced { renewable: None, ..grant.clone() };
        assert_eq!(handles(&single, begins), [grant.grant]);
    }

    #[test]
    fn what_ended_is_removed() {
        let live = HashSet::from([SESSION]);
        let finds = |leases: &Leases| leases.find(&SESSION, &wanted(), 0, NOW).is_some();
        let (leases, _, grant) = one();
        let other = RevokedGrant { handle: 1, ..grant.grant };
        let ended = |grant| [Ended { grant, verifier: "edge".into(), session: SESSION }];
        leases.remove_revoked(&ended(Announced { grant: other, ..grant.clone() }));
        leases.keep(&live, NOW);
        assert!(finds(&leases));
        leases.remove_revoked(&ended(grant));
        assert!(!finds(&leases));
        let (leases, ..) = one();
        leases.keep(&HashSet::new(), NOW);
        assert!(!finds(&leases));
        let (leases, ..) = one();
        leases.keep(&live, NOW + 13 * 3600);
        assert!(!finds(&leases));
    }
}
