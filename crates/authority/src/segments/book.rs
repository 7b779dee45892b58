//! The book: the issued segments that have not expired, and the withdrawals of consent to them. It is in memory and
//! bounded. After a restart, the authority does not know the segments that it issued before. They stay valid until they
//! expire.

use crate::storage::TokenHash;
use api::Withdrawal;
use engine::model::{Given, Place};
use engine::verifier::proofs::Withdrawal as Statement;
use std::collections::{BTreeMap, HashMap};
use std::hash::{Hash, Hasher};
use std::net::IpAddr;
use wire::{Destination, SegmentFlags, Vni};

/// Maximum number of entries: about 300 MB.
const MOST: usize = 1 << 20;
/// Maximum number of entries of one person or service account, over all sessions: each entry may become two
/// withdrawals.
const MOST_OF_PERSON: usize = 1 << 13;
/// Maximum number of withdrawal statements about single senders. Beyond this number, statements withdraw a receiver's
/// consent to all senders. A verifier holds 65 536 statements, and keeps those that it has received until they expire.
const MOST_STATEMENTS: usize = 1 << 14;

/// A sender and a receiver in one network.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Pair {
    vni: Vni,
    sender: IpAddr,
    receiver: IpAddr,
}

/// The fields that distinguish a segment from other segments with the same network, sender and receiver. The key also
/// contains the sender, which all of these segments have in common.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Key {
    /// The session that requested the segment.
    pub token: TokenHash,
    /// The sender's address in the virtual network, which is the same in all these segments.
    pub sender: IpAddr,
    /// The service (protocol and port) that the segment is for, or `None` if it is for all services.
    pub service: Option<(u8, u16)>,
    /// The segment's flags SINGLE, REPLY and RETURN. All other flags are 0 here.
    pub flags: SegmentFlags,
}

/// Hashes all fields at once, because hashing field by field takes several times as long.
impl Hash for Pair {
    fn hash<S: Hasher>(&self, state: &mut S) {
        let mut bytes = [0; 40];
        bytes[..3].copy_from_slice(&self.vni.bytes());
        bytes[8..24].copy_from_slice(&octets(self.sender));
        bytes[24..].copy_from_slice(&octets(self.receiver));
        state.write(&bytes);
    }
}

/// Hashes all fields at once, and only a part of the token, which is long enough that no attacker can find a collision.
impl Hash for Key {
    fn hash<S: Hasher>(&self, state: &mut S) {
        let (protocol, port) = self.service.unwrap_or_default();
        let [high, low] = port.to_be_bytes();
        let mut bytes = [0; 24];
        bytes[..4].copy_from_slice(&[self.flags.0, protocol, high, low]);
        bytes[8..].copy_from_slice(&self.token[..16]);
        state.write(&bytes);
    }
}

/// Returns an address as 16 bytes, for a hash. An IPv4 address is mapped to IPv6.
pub(super) fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

/// The request for which a segment was issued.
#[derive(Clone)]
pub struct Entry {
    /// The person or service account that made the request.
    pub person: String,
    /// The network's name.
    pub network: String,
    /// The destination of the request. If the segment is for answers, the destination has the address that receives the
    /// answers, and the protocol and port of the service that sends the answers.
    pub to: Destination,
    /// The sender's tunnel endpoint at the time of the request.
    pub sending: IpAddr,
    /// The receiver's place at the time of the request.
    pub place: Place,
}

/// The issued segments by sender and receiver, with the latest expiry of each segment, and the withdrawals of consent
/// to them.
#[derive(Default)]
pub struct Book {
    given: HashMap<Pair, HashMap<Key, (Box<Entry>, u32)>>,
    count: usize,
    of_persons: HashMap<String, usize>,
    /// For each withdrawal statement, the latest expiry of the segments that it voids.
    withdrawn: BTreeMap<Statement, u32>,
    /// The time at which expired entries were last removed. The removal scans the whole book.
    swept: u64,
}

/// Error: there is no room for another segment.
pub struct Full;

/// Withdrawals of consent that have not been announced yet.
#[derive(Debug, Default)]
pub struct Withdrawn {
    /// All withdrawals, for the verifiers.
    pub statements: Vec<Withdrawal>,
    /// For each session, the withdrawals that void segments of this session, or return segments for these.
    pub by_session: BTreeMap<TokenHash, Vec<Withdrawal>>,
}

impl Book {
    /// Records an issued segment, or extends the expiry of the recorded segment with the same key. `entry` is called
    /// only for a new key. If the book is full, expired entries are removed first, at most once a second.
    ///
    /// # Errors
    /// Fails if there is no room for a new entry, either in total or for this person.
    pub fn note(
        &mut self,
        token: TokenHash,
        given: &Given,
        entry: impl FnOnce() -> Entry,
        now: u64,
    ) -> Result<(), Full> {
        let (pair, service, flags) = what(given);
        let key = Key { token, sender: pair.sender, service, flags };
        if let Some((_, expires)) = self.given.get_mut(&pair).and_then(|of_pair| of_pair.get_mut(&key)) {
            *expires = given.segment.expires.max(*expires);
            return Ok(());
        }
        let entry = entry();
        if self.is_full(&entry.person) && self.swept != now {
            self.forget_ended(now);
        }
        if self.is_full(&entry.person) {
            return Err(Full);
        }
        self.count += 1;
        *self.of_persons.entry(entry.person.clone()).or_default() += 1;
        self.given.entry(pair).or_default().insert(key, (Box::new(entry), given.segment.expires));
        Ok(())
    }

    /// Reports whether a segment with the same key was issued to this session before.
    pub fn renews(&self, token: TokenHash, given: &Given) -> bool {
        let (pair, service, flags) = what(given);
        let key = Key { token, sender: pair.sender, service, flags };
        self.given.get(&pair).is_some_and(|of_pair| of_pair.contains_key(&key))
    }

    /// Reports whether a presented segment was issued and has not been withdrawn. Valid proofs in the segment are not
    /// enough evidence, because a verifier on the path could have made them.
    pub fn has(&self, shown: &Given) -> bool {
        let (pair, service, flags) = what(shown);
        self.given.get(&pair).into_iter().flatten().any(|(key, (entry, expires))| {
            (key.service, key.flags) == (service, flags)
                && (entry.sending, entry.place.endpoint) == (shown.ends.sending, shown.ends.receiving)
                && *expires >= shown.segment.expires
        })
    }

    /// Returns the latest expiry of the void segments from `sender` to `receiver`, or `None` if no segment is void.
    pub fn withdrawn(&self, vni: Vni, sender: IpAddr, receiver: IpAddr) -> Option<u32> {
        voids(&self.withdrawn, &Pair { vni, sender, receiver }).map(|(_, until)| until).max()
    }

    /// Returns all withdrawals that have not expired.
    pub fn all_withdrawn(&mut self, now: u64) -> Vec<Withdrawal> {
        self.withdrawn.retain(|_, until| u64::from(*until) >= now);
        withdrawals(self.withdrawn.iter().map(|(what, until)| (*what, *until)))
    }

    /// Reports whether the book contains no segments.
    pub fn is_empty(&self) -> bool {
        self.given.is_empty()
    }

    /// Returns the segments that have neither expired nor been withdrawn. Each item contains network, receiver, key,
    /// request, and expiry in Unix seconds.
    pub fn in_force(&self, now: u64) -> impl Iterator<Item = (Vni, IpAddr, &Key, &Entry, u32)> {
        self.given.iter().flat_map(move |(pair, of_pair)| {
            let live = of_pair.iter().filter(move |(_, (_, expires))| u64::from(*expires) > now);
            live.map(|(key, (entry, expires))| (pair.vni, pair.receiver, key, &**entry, *expires))
        })
    }

    /// Withdraws the segments for which `may_live` returns false, and returns the withdrawals to announce.
    pub fn reevaluate(&mut self, now: u64, may_live: impl Fn(&TokenHash, Vni, &Key, &Entry) -> bool) -> Withdrawn {
        self.forget_ended(now);
        self.withdrawn.retain(|_, until| u64::from(*until) >= now);
        let mut void: HashMap<Pair, u32> = HashMap::new();
        for (pair, of_pair) in &self.given {
            let forbidden = of_pair.iter().filter(|(key, (entry, _))| !may_live(&key.token, pair.vni, key, entry));
            for (key, (_, expires)) in forbidden {
                let until = void.entry(*pair).or_default();
                *until = expires.max(until).to_owned();
                // A sender that may no longer send must not receive answers either, so answers become void as well.
                if key.flags.has(SegmentFlags::REPLY) {
                    let until = void.entry(pair.back()).or_default();
                    *until = expires.max(until).to_owned();
                }
            }
        }
        let stated = self.state(void);
        let mut sessions: BTreeMap<TokenHash, BTreeMap<Statement, u32>> = BTreeMap::new();
        for (pair, of_pair) in &mut self.given {
            let back = pair.back();
            let [there, answers] = [pair, &back].map(|pair| voids(&stated, pair).map(|(_, until)| until).max());
            of_pair.retain(|key, (_, expires)| {
                let is_void = |until: Option<u32>| until.is_some_and(|until| *expires <= until);
                if is_void(there) {
                    sessions.entry(key.token).or_default().extend(voids(&stated, pair));
                }
                if key.flags.has(SegmentFlags::REPLY) && (is_void(there) || is_void(answers)) {
                    sessions.entry(key.token).or_default().extend(voids(&stated, &back));
                }
                !is_void(there)
            });
        }
        self.count_anew();
        let by_session = sessions.into_iter().map(|(token, own)| (token, withdrawals(own))).collect();
        Withdrawn { statements: withdrawals(stated), by_session }
    }

    /// Records which segments are void until when, and returns the statements to announce. If verifiers could not hold
    /// that many statements, each receiver with several withdrawn senders gets one statement for all senders. Senders
    /// that are still allowed then request new segments.
    fn state(&mut self, void: HashMap<Pair, u32>) -> BTreeMap<Statement, u32> {
        let mut stated = BTreeMap::new();
        for (pair, until) in void {
            let (one, all) = pair.statements();
            let what = if self.withdrawn.contains_key(&all) { all } else { one };
            let until = raise(&mut self.withdrawn, what, until);
            raise(&mut stated, what, until);
        }
        if self.withdrawn.len() > MOST_STATEMENTS {
            let mut receivers: BTreeMap<Statement, (usize, u32)> = BTreeMap::new();
            for (what, until) in &self.withdrawn {
                let (senders, latest) = receivers.entry(Statement { sender: None, ..*what }).or_default();
                (*senders, *latest) = (*senders + 1, *until.max(latest));
            }
            receivers.retain(|_, (senders, _)| *senders > 1);
            let is_single = |what: &Statement| !receivers.contains_key(&Statement { sender: None, ..*what });
            self.withdrawn.retain(|what, _| is_single(what));
            stated.retain(|what, _| is_single(what));
            for (all, (_, until)) in &receivers {
                raise(&mut self.withdrawn, *all, *until);
                raise(&mut stated, *all, *until);
            }
        }
        stated
    }

    fn is_full(&self, person: &str) -> bool {
        self.count >= MOST || self.of_persons.get(person).is_some_and(|count| *count >= MOST_OF_PERSON)
    }

    fn forget_ended(&mut self, now: u64) {
        self.swept = now;
        for of_pair in self.given.values_mut() {
            of_pair.retain(|_, (_, expires)| u64::from(*expires) > now);
        }
        self.count_anew();
    }

    fn count_anew(&mut self) {
        self.given.retain(|_, of_pair| !of_pair.is_empty());
        self.of_persons.clear();
        for (entry, _) in self.given.values().flat_map(HashMap::values) {
            match self.of_persons.get_mut(&entry.person) {
                Some(count) => *count += 1,
                None => _ = self.of_persons.insert(entry.person.clone(), 1),
            }
        }
        self.count = self.of_persons.values().sum();
    }
}

impl Pair {
    /// Returns the pair with sender and receiver exchanged, to which answers belong.
    fn back(&self) -> Self {
        Self { sender: self.receiver, receiver: self.sender, ..*self }
    }

    /// Returns the statement about this pair, and the statement about all senders to the same receiver.
    const fn statements(&self) -> (Statement, Statement) {
        let all = Statement { vni: self.vni, receiver: self.receiver, sender: None };
        (Statement { sender: Some(self.sender), ..all }, all)
    }
}

/// Returns pair, service and flags of a segment: its key in the book, without the session.
fn what(given: &Given) -> (Pair, Option<(u8, u16)>, SegmentFlags) {
    let segment = &given.segment;
    let pair = Pair { vni: given.vni, sender: given.ends.sender, receiver: given.ends.receiver };
    let service = segment.flags.has(SegmentFlags::PORT).then_some((segment.protocol, segment.port));
    let distinguishing = SegmentFlags::SINGLE.0 | SegmentFlags::REPLY.0 | SegmentFlags::RETURN.0;
    (pair, service, SegmentFlags(segment.flags.0 & distinguishing))
}

/// Raises the expiry of a statement to at least `until`, and returns the new expiry.
fn raise(all: &mut BTreeMap<Statement, u32>, what: Statement, until: u32) -> u32 {
    let kept = all.entry(what).or_default();
    *kept = until.max(*kept);
    *kept
}

/// Returns the statements that make segments of this pair void, each with the latest expiry of these segments.
fn voids(stated: &BTreeMap<Statement, u32>, pair: &Pair) -> impl Iterator<Item = (Statement, u32)> {
    let (one, all) = pair.statements();
    [one, all].into_iter().filter_map(|what| Some((what, *stated.get(&what)?)))
}

fn withdrawals(stated: impl IntoIterator<Item = (Statement, u32)>) -> Vec<Withdrawal> {
    let one = |(what, until): (Statement, u32)| Withdrawal {
        vni: what.vni.number(),
        receiver: what.receiver,
        sender: what.sender,
        until,
    };
    stated.into_iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::{Ends, InterfaceId, Segment, Suite};

    const NOW: u64 = 1_000_000;

    fn entry() -> Entry {
        let receiver = IpAddr::from([10, 0, 0, 7]);
        let place = Place { endpoint: IpAddr::from([192, 0, 2, 2]), interface: InterfaceId(7) };
        let to = Destination { address: receiver, protocol: 6, port: 22 };
        Entry { person: "alice".into(), network: "blue".into(), to, sending: IpAddr::from([192, 0, 2, 1]), place }
    }

    fn given(sender: u32, expires: u64) -> Given {
        let [sending, receiving] = [[192, 0, 2, 1], [192, 0, 2, 2]].map(IpAddr::from);
        let (sender, receiver) = (IpAddr::from(sender.to_be_bytes()), IpAddr::from([10, 0, 0, 7]));
        let segment = Segment {
            suite: Suite::AesCmac,
            count: 1,
            pointer: 0,
            flags: SegmentFlags::default(),
            protocol: 0,
            epoch: 0,
            expires: expires as u32,
            interface: InterfaceId(7),
            port: 0,
            sender_port: 0,
            authority: sending,
        };
        let ends = Ends { sending, receiving, sender, receiver };
        Given { segment, vni: Vni::from([0, 0, 1]), ends, proofs: vec![[0; 16]], hops: vec![] }
    }

    /// SVLAN §VII, denial of capability: a person who takes segments until no room is left exhausts only their own
    /// share, and expired segments free it again.
    #[test]
    fn denial_of_capability_a_person_who_has_taken_their_share_leaves_room_for_others() {
        let mut book = Book::default();
        let mut note = |person: &str, token: u8, sender: u32, now: u64| {
            let entry = Entry { person: person.into(), ..entry() };
            book.note([token; 32], &given(sender, now + 300), || entry, now).is_ok()
        };
        // Mallory spreads the requests over several sessions.
        assert!((0..MOST_OF_PERSON as u32).all(|sender| note("mallory", (sender % 16) as u8, sender, NOW)));
        assert!(!note("mallory", 99, u32::MAX, NOW) && note("alice", 1, u32::MAX, NOW));
        assert!(note("mallory", 5, 5, NOW), "what is there already takes no room");
        assert!(note("mallory", 1, u32::MAX, NOW + 301), "what has ended makes room");
    }

    #[test]
    fn only_what_was_given_and_lives_may_be_answered() {
        let (mut book, entry) = (Book::default(), entry());
        let shown = given(1, NOW + 100);
        assert!(!book.has(&shown), "never given");
        assert!(book.note([1; 32], &shown, || entry, NOW).is_ok() && book.has(&shown));
        assert!(!book.has(&given(1, NOW + 101)) && !book.has(&given(2, NOW + 100)));
        let elsewhere = Ends { receiving: shown.ends.sending, ..shown.ends };
        assert!(!book.has(&Given { ends: elsewhere, ..given(1, NOW + 100) }));
        let reply = wire::Segment { flags: SegmentFlags::REPLY, ..shown.segment };
        assert!(!book.has(&Given { segment: reply, ..given(1, NOW + 100) }));
        book.reevaluate(NOW, |_, _, _, _| false);
        assert!(!book.has(&shown), "withdrawn");
    }

    #[test]
    fn only_what_may_not_live_is_withdrawn_until_its_own_end() {
        let (mut book, entry) = (Book::default(), entry());
        for (token, sender, expires) in [(1, 1, NOW + 100), (2, 1, NOW + 300), (1, 2, NOW + 300)] {
            assert!(book.note([token; 32], &given(sender, expires), || entry.clone(), NOW).is_ok());
        }
        let Withdrawn { statements, by_session: sessions } =
            book.reevaluate(NOW, |token, _, given, _| *token != [1; 32] || given.sender != IpAddr::from([0, 0, 0, 1]));
        assert_eq!((statements.len(), u64::from(statements[0].until)), (1, NOW + 100));
        assert_eq!(sessions.into_iter().collect::<Vec<_>>(), [([1; 32], statements)]);
        assert_eq!(book.all_withdrawn(NOW + 100).len(), 1);
        assert_eq!(book.all_withdrawn(NOW + 101).len(), 0);
        assert!(book.reevaluate(NOW, |_, _, _, _| true).statements.is_empty());
    }

    #[test]
    fn withdrawals_of_more_senders_than_verifiers_hold_are_stated_by_their_receiver() {
        let (mut book, entry) = (Book::default(), entry());
        let senders = MOST_STATEMENTS as u32 + 1;
        for sender in 0..senders {
            let token = (sender / MOST_OF_PERSON as u32) as u8;
            let entry = Entry { person: token.to_string(), ..entry.clone() };
            assert!(book.note([token; 32], &given(sender, NOW + 200), || entry, NOW).is_ok());
        }
        // Another sender that may still send to the same receiver.
        let other = IpAddr::from(u32::MAX.to_be_bytes());
        assert!(book.note([99; 32], &given(u32::MAX, NOW + 100), || entry.clone(), NOW).is_ok());
        let Withdrawn { statements, by_session: sessions } = book.reevaluate(NOW, |token, _, _, _| *token == [99; 32]);
        let [all] = statements[..] else { panic!("{} statements", statements.len()) };
        assert_eq!((all.sender, u64::from(all.until)), (None, NOW + 200));
        assert_eq!(sessions.get(&[99; 32]), Some(&statements), "it is told, and asks anew");
        assert_eq!(sessions.len() as u32, senders.div_ceil(MOST_OF_PERSON as u32) + 1);
        let receiver = entry.to.address;
        assert_eq!(book.withdrawn(Vni::from([0, 0, 1]), other, receiver), Some(all.until));
        assert!(book.is_empty());
        // From here on, another withdrawal adds no statement.
        assert!(book.note([1; 32], &given(7, NOW + 300), || entry.clone(), NOW).is_ok());
        let Withdrawn { statements, .. } = book.reevaluate(NOW, |_, _, _, _| false);
        assert_eq!(
            statements.iter().map(|one| (one.sender, u64::from(one.until))).collect::<Vec<_>>(),
            [(None, NOW + 300)]
        );
        assert_eq!(book.all_withdrawn(NOW), statements);
        assert_eq!(book.all_withdrawn(NOW + 301), []);
    }
}
