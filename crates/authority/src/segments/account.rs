//! Audit entries about segments that were issued or denied by UDP, until they are written to the audit trail. The same
//! request repeated within a short time becomes one entry with a count. If there is no room for an entry, the segment
//! is not issued.

use super::WITH_ANSWERS;
use super::book::octets;
use crate::storage::{AuditEvent, Session, TokenHash};
use engine::policy::place;
use std::collections::{HashMap, hash_map};
use std::hash::{Hash, Hasher};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use wire::{Destination, Vni};

/// Maximum number of waiting entries: about 30 MB.
const MOST: usize = 65_536;
/// Maximum number of waiting entries of one person or service account, over all sessions.
const MOST_OF_PERSON: usize = MOST / 8;
/// Number of entries per transaction. Other work of the database waits for the end of a transaction.
const TOGETHER: usize = 1024;

/// The audit entries about issued and denied segments, until they are written to the database.
#[derive(Default)]
pub struct Account(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    given: HashMap<Given, (Box<Details>, u64)>,
    of_persons: HashMap<String, usize>,
    /// The denials. Their number is small, because the rate of recorded denials is limited.
    denied: Vec<AuditEvent>,
}

/// The key of an entry about an issued segment: session, source, network, sender, destination and rule, and whether the
/// return segment was issued, too.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Given {
    token: TokenHash,
    source: IpAddr,
    vni: Vni,
    sender: IpAddr,
    to: Destination,
    /// Whether the return segment was issued, too.
    answers: bool,
    /// The address in memory of the rule's label, which identifies the rule. The entry's [`Details`] hold a reference
    /// to the label, so that the address stays valid.
    rule: usize,
}

/// The details of an issued segment that the audit entry contains.
pub struct Details {
    /// The session that requested the segment.
    pub session: Arc<Session>,
    /// The network's name.
    pub network: String,
    /// The receiver's name.
    pub receiver: String,
    /// The label of the rule that allowed the segment.
    pub rule: Arc<str>,
}

/// Error: there is no room for another audit entry.
pub struct Full;

impl Given {
    /// Creates the key for a segment that was issued to this session. `source` is the address from which the request
    /// came. `answers` says whether the return segment was issued, too.
    pub fn new(
        token: TokenHash,
        source: IpAddr,
        given: &engine::model::Given,
        to: Destination,
        answers: bool,
        rule: &Arc<str>,
    ) -> Self {
        let rule = Arc::as_ptr(rule).addr();
        Self { token, source, vni: given.vni, sender: given.ends.sender, to, answers, rule }
    }
}

impl Hash for Given {
    /// Hashes all fields at once, because hashing field by field takes several times as long.
    fn hash<S: Hasher>(&self, state: &mut S) {
        let Destination { address, protocol, port } = self.to;
        let [high, low] = port.to_be_bytes();
        let mut bytes = [0; 72];
        bytes[..3].copy_from_slice(&[protocol, high, low]);
        let (addresses, token) = bytes[8..].split_at_mut(48);
        for (room, address) in addresses.as_chunks_mut().0.iter_mut().zip([self.sender, address, self.source]) {
            *room = octets(address);
        }
        token.copy_from_slice(&self.token[..16]);
        state.write(&bytes);
    }
}

impl Account {
    /// Adds an entry for an issued segment, or increments the count of the waiting entry with the same key. `details`
    /// is called only for a new entry.
    ///
    /// # Errors
    /// Fails if there is no room for a new entry, either in total or for this person.
    pub fn given(&self, given: Given, details: impl FnOnce() -> Details) -> Result<(), Full> {
        let mut waiting = self.lock();
        if let Some((_, count)) = waiting.given.get_mut(&given) {
            *count += 1;
            return Ok(());
        }
        let details = details();
        let of_person = waiting.of_persons.get(&details.session.person).copied().unwrap_or_default();
        if waiting.len() >= MOST || of_person >= MOST_OF_PERSON {
            return Err(Full);
        }
        waiting.add(given, Box::new(details), 1);
        Ok(())
    }

    /// Adds an entry for a denied segment.
    ///
    /// # Errors
    /// Fails if there is no room for another entry.
    pub fn denied(&self, denied: AuditEvent) -> Result<(), Full> {
        let mut waiting = self.lock();
        if waiting.len() >= MOST {
            return Err(Full);
        }
        waiting.denied.push(denied);
        Ok(())
    }

    pub(super) fn take(&self) -> Taken<'_> {
        let Waiting { given, denied, .. } = std::mem::take(&mut *self.lock());
        let given = given.into_iter().map(|(given, (details, count))| Entry::Given(given, details, count));
        Taken { of: self, entries: given.chain(denied.into_iter().map(Entry::Denied)).collect() }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    fn len(&self) -> usize {
        self.given.len() + self.denied.len()
    }

    fn add(&mut self, given: Given, details: Box<Details>, count: u64) {
        match self.given.entry(given) {
            hash_map::Entry::Occupied(mut noted) => noted.get_mut().1 += count,
            hash_map::Entry::Vacant(room) => {
                *self.of_persons.entry(details.session.person.clone()).or_default() += 1;
                room.insert((details, count));
            }
        }
    }
}

/// An entry for the audit trail. An entry about an issued segment has the number of requests.
enum Entry {
    Given(Given, Box<Details>, u64),
    Denied(AuditEvent),
}

/// Entries that are being written. If some entries were not written, dropping this value adds them to the waiting
/// entries again. So no entry is lost, but an entry may appear twice in the trail.
pub(super) struct Taken<'a> {
    of: &'a Account,
    entries: Vec<Entry>,
}

impl Taken<'_> {
    /// Returns the audit events of the last entries, as many as fit in one transaction.
    pub(super) fn next_events(&self) -> Vec<AuditEvent> {
        let event = |entry: &Entry| match entry {
            Entry::Given(given, details, count) => given.event(details, *count),
            Entry::Denied(denied) => denied.clone(),
        };
        self.entries[self.entries.len().saturating_sub(TOGETHER)..].iter().map(event).collect()
    }

    /// Removes the last `count` entries, which have been written.
    pub(super) fn forget_last(&mut self, count: usize) {
        self.entries.truncate(self.entries.len().saturating_sub(count));
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let mut waiting = self.of.lock();
        for entry in self.entries.drain(..) {
            match entry {
                Entry::Given(given, details, count) => waiting.add(given, details, count),
                Entry::Denied(denied) => waiting.denied.push(denied),
            }
        }
    }
}

impl Given {
    fn event(&self, Details { session, network, receiver, rule }: &Details, count: u64) -> AuditEvent {
        let times = if count == 1 { String::new() } else { format!(", {count} times") };
        let with = if self.answers { WITH_ANSWERS } else { "" };
        let detail = format!("network {network}: {} to {}{with}{times}", self.sender, place(&self.to));
        let event = AuditEvent::new("segment").person(&session.person).device(&session.device).source(self.source);
        event.receiver(receiver).rule(rule).detail(detail)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(person: &str) -> Arc<Session> {
        let (person, device) = (person.to_owned(), "rack".to_owned());
        let (tags, groups, holder) = (Vec::new(), Vec::new(), wire::Holder::default());
        Arc::new(Session { person, device, expires: u64::MAX, tags, groups, ends: None, holder })
    }

    fn note(account: &Account, person: &str, number: u32, rule: &Arc<str>) -> Result<(), Full> {
        let (source, sender) = (IpAddr::from([192, 0, 2, 1]), IpAddr::from(number.to_be_bytes()));
        let to = Destination { address: IpAddr::from([10, 0, 0, 7]), protocol: 6, port: 443 };
        let (token, vni, rule_at) = ([1; 32], Vni::from([0, 0, 1]), Arc::as_ptr(rule).addr());
        let (network, receiver) = ("blue".to_owned(), "web".to_owned());
        let details = || Details { session: session(person), network, receiver, rule: rule.clone() };
        account.given(Given { token, source, vni, sender, to, answers: false, rule: rule_at }, details)
    }

    fn counts(account: &Account) -> Vec<(String, u64)> {
        let taken = account.take();
        let count = |entry: &Entry| match entry {
            Entry::Given(_, details, count) => (details.rule.to_string(), *count),
            Entry::Denied(_) => ("denied".into(), 1),
        };
        let mut counts: Vec<_> = taken.entries.iter().map(count).collect();
        counts.sort();
        counts
    }

    #[test]
    fn the_same_again_is_counted_and_another_rule_is_another_entry() {
        let (account, [one, other]) = (Account::default(), ["a", "b"].map(Arc::from));
        for (number, rule) in [(1, &one), (1, &one), (1, &other), (2, &one)] {
            assert!(note(&account, "alice", number, rule).is_ok());
        }
        assert_eq!(counts(&account), [("a".into(), 1), ("a".into(), 2), ("b".into(), 1)]);
    }

    #[test]
    fn what_was_not_written_waits_on_with_what_came_meanwhile() {
        let (account, rule) = (Account::default(), Arc::from("a"));
        assert!(note(&account, "alice", 1, &rule).is_ok() && account.denied(AuditEvent::new("denied")).is_ok());
        let taken = account.take();
        assert!(note(&account, "alice", 1, &rule).is_ok());
        drop(taken);
        assert_eq!(counts(&account), [("a".into(), 2), ("denied".into(), 1)]);
    }

    #[test]
    fn one_account_leaves_room_for_others() {
        let (account, rule) = (Account::default(), Arc::from("a"));
        assert!((0..MOST_OF_PERSON as u32).all(|number| note(&account, "mallory", number, &rule).is_ok()));
        assert!(note(&account, "mallory", u32::MAX, &rule).is_err(), "their share is used up");
        assert!(note(&account, "mallory", 5, &rule).is_ok(), "what is there already takes no room");
        assert!(note(&account, "alice", u32::MAX, &rule).is_ok());
    }
}
