//! What was given and refused by UDP, until it is written down: the same asked for again within a moment is one entry with
//! a count. What there is no room to note is not given.

use crate::now;
use crate::state::Authority;
use crate::storage::{AuditEvent, Session, TokenHash};
use anyhow::Result;
use engine::policy::place;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use wire::Destination;

/// Entries that wait at a time: some 30 MB.
const MOST: usize = 65_536;
/// Entries that are written in one transaction: other work of the database waits for them.
const TOGETHER: usize = 1024;

/// What waits to be written down.
#[derive(Default)]
pub struct Account(Mutex<HashMap<Entry, (Arc<Session>, u64)>>);

/// What is written down as one entry.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Entry {
    /// Who asked.
    pub token: TokenHash,
    /// From where.
    pub source: IpAddr,
    /// What was said to it.
    pub outcome: Outcome,
}

/// What a request came to.
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// A segment.
    Given {
        /// The network's name.
        network: String,
        /// The sender.
        sender: IpAddr,
        /// Where to.
        to: Destination,
        /// The receiver's name.
        receiver: String,
        /// The rule.
        rule: String,
    },
    /// A denial, for this reason.
    Denied(String),
}

/// There is no room.
pub struct Full;

impl Account {
    /// Notes what was answered.
    pub fn note(&self, entry: Entry, session: &Arc<Session>) -> Result<(), Full> {
        let mut waiting = self.lock();
        if let Some((_, count)) = waiting.get_mut(&entry) {
            *count += 1;
            return Ok(());
        }
        if waiting.len() >= MOST {
            return Err(Full);
        }
        waiting.insert(entry, (session.clone(), 1));
        Ok(())
    }

    fn take(&self) -> Taken<'_> {
        Taken { of: self, entries: std::mem::take(&mut *self.lock()).into_iter().collect() }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Entry, (Arc<Session>, u64)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is being written down. Dropped before it is, it waits on: rather twice in the trail than not at all.
struct Taken<'a> {
    of: &'a Account,
    entries: Vec<(Entry, (Arc<Session>, u64))>,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let mut waiting = self.of.lock();
        for (entry, (session, count)) in self.entries.drain(..) {
            waiting.entry(entry).or_insert((session, 0)).1 += count;
        }
    }
}

impl Entry {
    fn event(&self, session: &Session, count: u64) -> AuditEvent {
        let times = if count == 1 { String::new() } else { format!(", {count} times") };
        let event = |name| AuditEvent::new(name).person(&session.person).device(&session.device).source(self.source);
        match &self.outcome {
            Outcome::Given { network, sender, to, receiver, rule } => {
                let detail = format!("network {network}: {sender} to {}{times}", place(to));
                event("segment").receiver(receiver).rule(rule).detail(detail)
            }
            Outcome::Denied(why) => event("denied").detail(why),
        }
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

    async fn write_account(&self, entries: &[(Entry, (Arc<Session>, u64))]) -> Result<()> {
        let mut events = Vec::with_capacity(entries.len());
        for (entry, (session, count)) in entries {
            match entry.outcome {
                Outcome::Given { .. } => events.push(entry.event(session, *count)),
                // Counted one by one, and only the first few of a minute are written: strangers can cause them at will.
                Outcome::Denied(_) => {
                    let event = entry.event(session, 1);
                    let written = (0..*count).filter(|_| self.is_to_be_written(&event)).count();
                    events.extend(std::iter::repeat_n(event, written));
                }
            }
        }
        self.storage.call(move |database| database.audit_all(&events, now())).await
    }
}
