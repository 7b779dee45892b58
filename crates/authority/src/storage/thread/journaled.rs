//! The grants that the journal contains and the database does not yet contain.
//!
//! The list accepts a grant only if the thread can certainly record it later. So when the thread records a grant, it
//! notes how many more grants the session may have. An account can thus fill only its own share of the list, and the
//! list is bounded.

use crate::storage::journal::Journal;
use crate::storage::{Basis, Issuance, Recorded, TokenHash};
use engine::policy::Scope;
use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};
use wire::Flags;

/// Time after which the thread records a grant, if no other work makes it record the grant earlier. Meanwhile the
/// client and its verifier can use the processors, and further grants can join the transaction.
const DELAY: Duration = Duration::from_millis(20);
/// Number of grants in the list at which the thread records them without waiting for more.
const MANY: usize = 64;
/// Maximum number of grants in the list.
const MOST: usize = 1024;
/// Maximum number of grants of one session in the list.
const MOST_OF_SESSION: u32 = 16;
/// Time until the thread tries again, if it could not record the grants.
const PAUSE: Duration = Duration::from_secs(1);

/// A grant that its client already has, and that the thread still has to record.
pub struct Journaled {
    /// The grant.
    pub grant: Issuance,
    /// The basis of the decision.
    pub basis: Basis,
    /// Whether the grant waited while other work was done, because it could not be recorded.
    pub has_waited: bool,
    /// The thread calls this when it has recorded the grant.
    pub begin: Box<dyn FnOnce(Recorded) + Send>,
}

/// The values of a grant. A request with the same values can renew the grant.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Key {
    session: TokenHash,
    source: IpAddr,
    scope: Scope,
    flags: Flags,
}

impl Key {
    fn of(&Issuance { session, source, scope, flags, .. }: &Issuance) -> Self {
        Self { session, source, scope, flags }
    }
}

/// The time at which the thread has to record the grants.
pub enum Due {
    /// Now: these grants.
    Now(Vec<Journaled>),
    /// After this time.
    In(Duration),
    /// There are none.
    Never,
}

/// The list of the journal's grants that the thread still has to record.
pub struct JournaledGrants {
    journal: Option<Journal>,
    grants: Vec<Journaled>,
    /// The grants that the thread is recording.
    in_progress: Vec<Key>,
    /// The time at which the thread records the grants.
    at: Option<Instant>,
    /// Whether the thread could not record the grants.
    has_failed: bool,
    /// Number of grants that were accepted so far.
    accepted: u64,
    /// How many more grants of each session may be accepted. A session that has recorded no grant is not in the table.
    rooms: HashMap<TokenHash, u32>,
}

impl JournaledGrants {
    /// Creates an empty list.
    pub fn new(journal: Option<Journal>) -> Self {
        let (grants, in_progress, rooms) = (Vec::new(), Vec::new(), HashMap::new());
        Self { journal, grants, in_progress, at: None, has_failed: false, accepted: 0, rooms }
    }

    /// Writes a grant to the journal and adds it to the list. Returns false if this is not possible, or if the list has
    /// a grant with the same session, source, scope and flags. The request can renew that grant once it is recorded.
    pub fn accept(&mut self, grant: Journaled) -> bool {
        let key = Key::of(&grant.grant);
        if self.keys().any(|other| other == key) {
            return false;
        }
        let (Some(journal), false) = (&mut self.journal, self.has_failed || self.grants.len() >= MOST) else {
            return false;
        };
        if journal.is_long() {
            return false;
        }
        let Some(room) = self.rooms.get_mut(&grant.grant.session).filter(|room| **room > 0) else { return false };
        if let Err(error) = journal.append(&grant.grant) {
            tracing::warn!("cannot write to the journal of grants: {error}");
            return false;
        }
        *room -= 1;
        self.accepted += 1;
        self.at.get_or_insert_with(|| Instant::now() + DELAY);
        self.grants.push(grant);
        true
    }

    /// Reports whether the list has a grant of a session.
    pub fn has(&self, session: &TokenHash) -> bool {
        self.keys().any(|key| key.session == *session)
    }

    /// Returns the keys of the grants that the journal has accepted and that are not known to be recorded.
    fn keys(&self) -> impl Iterator<Item = Key> {
        self.in_progress.iter().copied().chain(self.grants.iter().map(|journaled| Key::of(&journaled.grant)))
    }

    /// Makes all grants of the list due. Returns the number of grants that were accepted so far, or `None` if they
    /// cannot be recorded now.
    pub fn hurry(&mut self) -> Option<u64> {
        if self.has_failed {
            return None;
        }
        self.at = self.at.map(|_| Instant::now());
        Some(self.accepted)
    }

    /// Returns the grants of the list if the thread has to record them now. If other work is queued, the thread has to
    /// record them first, so that this work finds them recorded. After a failure, the thread tries again only after a
    /// pause.
    pub fn due(&mut self, has_other_work: bool) -> Due {
        let Some(at) = self.at else { return Due::Never };
        let wait = at.saturating_duration_since(Instant::now());
        let is_due = wait.is_zero() || !self.has_failed && (has_other_work || self.grants.len() >= MANY);
        if !is_due {
            return Due::In(wait);
        }
        self.at = None;
        self.in_progress = self.grants.iter().map(|journaled| Key::of(&journaled.grant)).collect();
        Due::Now(std::mem::take(&mut self.grants))
    }

    /// Puts grants that the thread could not record back into the list. The list accepts no new grant until the thread
    /// has recorded these.
    pub fn put_back(&mut self, mut grants: Vec<Journaled>) {
        grants.append(&mut self.grants);
        grants.iter_mut().for_each(|journaled| journaled.has_waited = true);
        self.grants = grants;
        self.in_progress.clear();
        (self.at, self.has_failed) = (Some(Instant::now() + PAUSE), true);
    }

    /// Notes how many more grants of a session may be recorded. `room` is that number according to the database.
    pub fn note_room(&mut self, session: &TokenHash, room: u32) {
        let own = self.grants.iter().filter(|journaled| journaled.grant.session == *session).count();
        let left = room.min(MOST_OF_SESSION).saturating_sub(u32::try_from(own).unwrap_or(u32::MAX));
        if self.journal.is_some() {
            self.rooms.insert(*session, left);
        }
    }

    /// Forgets the sessions that are not in `live`.
    pub fn keep_rooms(&mut self, live: &HashSet<TokenHash>) {
        self.rooms.retain(|session, _| live.contains(session));
    }

    /// Notes that the grants that [`Self::due`] returned are recorded. If the list is empty, also notes this in the
    /// journal.
    pub fn note_recorded(&mut self) {
        self.in_progress.clear();
        self.has_failed = false;
        if let (Some(journal), true) = (&mut self.journal, self.grants.is_empty()) {
            journal.note_recorded();
        }
    }
}
