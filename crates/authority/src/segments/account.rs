//! What was given and refused by UDP, until it is written down: the same asked for again within a moment is one entry with
//! a count. What there is no room to note is not given.

use super::book::octets;
use crate::now;
use crate::state::Authority;
use crate::storage::{AuditEvent, Session, TokenHash};
use anyhow::Result;
use engine::policy::place;
use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use wire::{Destination, Vni};

/// Entries that wait at a time: some 30 MB.
const MOST: usize = 65_536;
/// Entries that are written in one transaction: other work of the database waits for them.
const TOGETHER: usize = 1024;

/// What waits to be written down.
#[derive(Default)]
pub struct Account(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    given: HashMap<Given, (Box<Details>, u64)>,
    denied: HashMap<Denied, (Arc<Session>, u64)>,
}

/// Who got a segment for what, by which rule.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Given {
    token: TokenHash,
    source: IpAddr,
    vni: Vni,
    sender: IpAddr,
    to: Destination,
    /// Where its name is, which [`Details`] keep there.
    rule: usize,
}

/// The same in words.
pub struct Details {
    /// Whose session it was.
    pub session: Arc<Session>,
    /// The network's name.
    pub network: String,
    /// The receiver's name.
    pub receiver: String,
    /// The rule.
    pub rule: Arc<str>,
}

/// Who got none, and why.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Denied {
    /// Who asked.
    pub token: TokenHash,
    /// From where.
    pub source: IpAddr,
    /// Why.
    pub why: String,
}

/// There is no room.
pub struct Full;

impl Given {
    /// A segment that is given to this token, asked for from there.
    pub fn new(
        token: TokenHash,
        source: IpAddr,
        given: &engine::segment::Given,
        to: Destination,
        rule: &Arc<str>,
    ) -> Self {
        Self { token, source, vni: given.vni, sender: given.ends.sender, to, rule: Arc::as_ptr(rule).addr() }
    }
}

impl Hash for Given {
    /// By the word: field by field it takes several times as long.
    fn hash<S: Hasher>(&self, state: &mut S) {
        let Destination { address, protocol, port } = self.to;
        let [high, low] = port.to_be_bytes();
        state.write_u32(u32::from_be_bytes([0, protocol, high, low]));
        [self.sender, address].map(octets).iter().for_each(|address| state.write(address));
        state.write(&self.token[..16]);
    }
}

impl Account {
    /// Notes that a segment is given; `details` says more of it, where it was not just noted.
    pub fn given(&self, given: Given, details: impl FnOnce() -> Details) -> Result<(), Full> {
        let mut waiting = self.lock();
        if let Some((_, count)) = waiting.given.get_mut(&given) {
            *count += 1;
            return Ok(());
        }
        waiting.has_room()?;
        waiting.given.insert(given, (Box::new(details()), 1));
        Ok(())
    }

    /// Notes that none is.
    pub fn denied(&self, denied: Denied, session: &Arc<Session>) -> Result<(), Full> {
        let mut waiting = self.lock();
        if let Some((_, count)) = waiting.denied.get_mut(&denied) {
            *count += 1;
            return Ok(());
        }
        waiting.has_room()?;
        waiting.denied.insert(denied, (session.clone(), 1));
        Ok(())
    }

    fn take(&self) -> Taken<'_> {
        let Waiting { given, denied } = std::mem::take(&mut *self.lock());
        let given = given.into_iter().map(|(given, (details, count))| Entry::Given(given, details, count));
        let denied = denied.into_iter().map(|(denied, (session, count))| Entry::Denied(denied, session, count));
        Taken { of: self, entries: given.chain(denied).collect() }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    fn has_room(&self) -> Result<(), Full> {
        if self.given.len() + self.denied.len() < MOST { Ok(()) } else { Err(Full) }
    }
}

/// What is written down as one entry, and how often it came.
enum Entry {
    Given(Given, Box<Details>, u64),
    Denied(Denied, Arc<Session>, u64),
}

/// What is being written down. Dropped before it is, it waits on: rather twice in the trail than not at all.
struct Taken<'a> {
    of: &'a Account,
    entries: Vec<Entry>,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let mut waiting = self.of.lock();
        for entry in self.entries.drain(..) {
            match entry {
                Entry::Given(given, details, count) => waiting.given.entry(given).or_insert((details, 0)).1 += count,
                Entry::Denied(denied, session, count) => {
                    waiting.denied.entry(denied).or_insert((session, 0)).1 += count
                }
            }
        }
    }
}

impl Given {
    fn event(&self, Details { session, network, receiver, rule }: &Details, count: u64) -> AuditEvent {
        let times = if count == 1 { String::new() } else { format!(", {count} times") };
        let detail = format!("network {network}: {} to {}{times}", self.sender, place(&self.to));
        let event = AuditEvent::new("segment").person(&session.person).device(&session.device).source(self.source);
        event.receiver(receiver).rule(rule).detail(detail)
    }
}

impl Denied {
    fn event(&self, session: &Session) -> AuditEvent {
        let event = AuditEvent::new("denied").person(&session.person).device(&session.device);
        event.source(self.source).detail(&self.why)
    }
}

impl Authority {
    /// Writes down what was answered by UDP since the last time. What can't be written waits on.
    pub async fn settle_account(&self) -> Result<()> {
        let mut taken = self.datagrams.account.take();
        while !taken.entries.is_empty() {
            let first = taken.entries.len().saturating_sub(TOGETHER);
            self.write_account(&taken.entries[first..]).await?;
            taken.entries.truncate(first);
        }
        Ok(())
    }

    async fn write_account(&self, entries: &[Entry]) -> Result<()> {
        let mut events = Vec::with_capacity(entries.len());
        for entry in entries {
            match entry {
                Entry::Given(given, details, count) => events.push(given.event(details, *count)),
                // Counted one by one, and only the first few of a minute are written: strangers can cause them at will.
                Entry::Denied(denied, session, count) => {
                    let event = denied.event(session);
                    let written = (0..*count).filter(|_| self.is_to_be_written(&event)).count();
                    events.extend(std::iter::repeat_n(event, written));
                }
            }
        }
        self.storage.call(move |database| database.audit_all(&events, now())).await
    }
}
