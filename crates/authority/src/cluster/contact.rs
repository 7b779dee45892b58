//! The time at which this member last knew everything that the cluster had recorded. It decides the member's present
//! rights. A member without contact to etcd cannot know of revocations. So it issues no new grants, and renews leases
//! only for a limited time (*grace*).

use crate::now;
use crate::storage::{Clock, clock_sentence};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Name of the file, in the authority's directory, with the time of the last contact.
pub const FILE: &str = "cluster.contact";
/// Time without contact after which a member issues nothing new.
pub const PATIENCE: Duration = Duration::from_secs(2);
/// Time without contact after which a member does not even try to record new grants.
const TRY: Duration = Duration::from_secs(5);
/// Interval at which the time of the last contact is written to disk.
const WRITTEN: Duration = Duration::from_secs(5);

/// The present rights of an authority.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum Standing {
    /// The authority is in no cluster: it has all rights.
    Alone,
    /// The member knows everything that the cluster has recorded: it has all rights.
    Member,
    /// The member has no contact with a majority of etcd. It records nothing, and renews leases until `renews_until`.
    NoMajority {
        /// Time of the last contact, in Unix seconds; 0 if it is not known.
        since: u64,
        /// Time until which the member renews leases, in Unix seconds.
        renews_until: u64,
        /// The reason, as the latest attempt reported it.
        why: String,
    },
    /// The clock of the member's host is wrong, so the member answers no calls and renews nothing.
    WrongClock {
        /// Number of seconds by which the clock is behind the cluster's time; negative if it is ahead.
        behind: i64,
    },
}

impl Standing {
    /// Reports whether the authority may issue new grants and record changes.
    pub fn may_record(&self) -> bool {
        matches!(self, Self::Alone | Self::Member)
    }

    /// Returns the name of the state, as `/v1/health` and the metrics show it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Alone => "alone",
            Self::Member => "member",
            Self::NoMajority { .. } => "no_majority",
            Self::WrongClock { .. } => "wrong_clock",
        }
    }

    /// Returns a sentence that describes the authority's present rights.
    pub fn sentence(&self, now: u64) -> String {
        match self {
            Self::Alone => "this authority is not a member of a cluster".into(),
            Self::Member => "this member issues and renews grants, and records changes".into(),
            Self::NoMajority { renews_until, why, .. } => {
                let left = renews_until.saturating_sub(now);
                let may = match left {
                    0 => "it does not renew leases any more".to_owned(),
                    left => format!("it renews leases for another {left} s"),
                };
                format!(
                    "this member has no contact with a majority of etcd: it issues no new grants, and {may} ({why})"
                )
            }
            Self::WrongClock { behind } => {
                let clock = clock_sentence(*behind);
                format!("this member answers no calls, because all times in its answers would be wrong: {clock}")
            }
        }
    }
}

/// The time of the last contact.
#[derive(Clone, Copy)]
struct Heard {
    at: Instant,
    /// The time of contact in Unix seconds. While the machine is suspended, this clock goes on, but the clock of `at`
    /// stops.
    time: u64,
}

struct Seen {
    heard: Option<Heard>,
    /// The time of the last contact of an earlier run, in Unix seconds; 0 if it is not known.
    earlier: u64,
    /// The start of this process, and the time between the earlier process's last contact and this start. So a clock
    /// that is set back does not lengthen the time in which the member renews leases.
    began: Instant,
    age_at_start: Duration,
    written: Option<Instant>,
    why: String,
    /// The time, in seconds, for which the member renews leases after the last contact.
    grace: u32,
}

/// Keeps the time of the last contact with the cluster. An authority that is in no cluster always has contact.
pub struct Contact {
    seen: Option<Mutex<Seen>>,
    file: PathBuf,
    clock: Arc<Clock>,
}

impl Contact {
    /// Creates the value for an authority that is in no cluster.
    pub fn alone() -> Self {
        Self { seen: None, file: PathBuf::new(), clock: Arc::default() }
    }

    /// Creates the value for a member that renews leases for `grace` seconds after the last contact. Reads the time of
    /// an earlier process's last contact from the authority's directory at `path`. `clock` is the host's clock.
    pub fn of_member(path: &std::path::Path, grace: u32, clock: Arc<Clock>) -> Self {
        let file = path.join(FILE);
        let earlier = fs::read_to_string(&file).ok().and_then(|text| text.trim().parse().ok());
        // A time in the future shows that the clock was set back: it says nothing about how long ago the contact was.
        let earlier = earlier.filter(|time| *time <= now()).unwrap_or(0);
        let why = "etcd has not answered since the start".to_owned();
        let (began, age_at_start) = (Instant::now(), Duration::from_secs(now().saturating_sub(earlier)));
        let seen = Seen { heard: None, earlier, began, age_at_start, written: None, why, grace };
        Self { seen: Some(Mutex::new(seen)), file, clock }
    }

    /// Records that the member knows everything that the cluster had recorded by the time `at`.
    pub fn note(&self, at: Instant) {
        let Some(mut seen) = self.lock() else { return };
        let time = now().saturating_sub(at.elapsed().as_secs());
        seen.heard = Some(Heard { at, time });
        seen.why.clear();
        if seen.written.is_none_or(|written| written.elapsed() >= WRITTEN) {
            seen.written = Some(Instant::now());
            drop(seen);
            if let Err(error) = self.write(time) {
                tracing::warn!("cannot write {}: {error:#}", self.file.display());
            }
        }
    }

    /// Records the reason why there is no contact.
    pub fn note_failure(&self, why: impl Into<String>) {
        if let Some(mut seen) = self.lock() {
            seen.why = why.into();
        }
    }

    /// Limits to `most` seconds the time for which the member renews leases without contact.
    pub fn limit_grace(&self, most: u32) {
        if let Some(mut seen) = self.lock() {
            seen.grace = seen.grace.min(most);
        }
    }

    /// Returns the authority's present rights.
    pub fn standing(&self) -> Standing {
        let Some(seen) = self.lock() else { return Standing::Alone };
        if let Some(behind) = self.clock.wrong() {
            return Standing::WrongClock { behind };
        }
        let now = now();
        let (monotonic, since) = match seen.heard {
            Some(Heard { at, time }) => (at.elapsed(), time),
            None => (seen.age_at_start + seen.began.elapsed(), seen.earlier),
        };
        let age = monotonic.max(Duration::from_secs(now.saturating_sub(since + 1)));
        if age <= PATIENCE && seen.heard.is_some() {
            return Standing::Member;
        }
        let left = u64::from(seen.grace).saturating_sub(age.as_secs());
        let renews_until = if left > 0 { now + left } else { now.min(since + u64::from(seen.grace)) };
        Standing::NoMajority { since, renews_until, why: seen.why.clone() }
    }

    /// Reports whether the authority may issue new grants and record changes.
    pub fn may_record(&self) -> bool {
        self.standing().may_record()
    }

    /// Reports whether the authority should attempt to record a new grant: if its clock is right, and it has contact or
    /// had contact at most five seconds ago. After a short loss of contact, such as during the election of a leader
    /// among etcd's servers, the attempt succeeds with a delay. After a longer loss, the attempt would fail after a
    /// while, and other work would wait meanwhile.
    pub fn may_try(&self) -> bool {
        match self.standing() {
            Standing::Alone | Standing::Member => true,
            Standing::NoMajority { since, .. } => now().saturating_sub(since) <= TRY.as_secs(),
            Standing::WrongClock { .. } => false,
        }
    }

    /// Reports whether the authority may renew leases.
    pub fn may_renew(&self) -> bool {
        match self.standing() {
            Standing::Alone | Standing::Member => true,
            Standing::NoMajority { renews_until, .. } => renews_until > now(),
            Standing::WrongClock { .. } => false,
        }
    }

    /// Returns the time since the last contact; zero while the authority has contact.
    pub fn time_without(&self) -> Duration {
        match self.standing() {
            Standing::NoMajority { since: 0, .. } => self.lock().map_or(Duration::ZERO, |seen| seen.began.elapsed()),
            Standing::NoMajority { since, .. } => Duration::from_secs(now().saturating_sub(since)),
            _ => Duration::ZERO,
        }
    }

    /// Reports whether the clock of this host is right, as far as the authority knows.
    pub fn has_right_clock(&self) -> bool {
        self.clock.wrong().is_none()
    }

    fn lock(&self) -> Option<MutexGuard<'_, Seen>> {
        self.seen.as_ref().map(|seen| seen.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Writes the time of the last contact. A power failure may leave an earlier time, after which the member renews
    /// leases for a shorter time.
    fn write(&self, time: u64) -> anyhow::Result<()> {
        let folder = self.file.parent().unwrap_or(&self.file);
        let mut aside = tempfile::NamedTempFile::new_in(folder)?;
        writeln!(aside, "{time}")?;
        aside.persist(&self.file)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ago(seconds: u64) -> Instant {
        Instant::now().checked_sub(Duration::from_secs(seconds)).expect("a machine that runs for some minutes")
    }

    fn member(path: &std::path::Path) -> Contact {
        Contact::of_member(path, 60, Arc::default())
    }

    #[test]
    fn an_authority_alone_may_do_everything() {
        let contact = Contact::alone();
        contact.note_failure("x");
        assert!(contact.may_record() && contact.may_renew());
        assert_eq!(contact.standing(), Standing::Alone);
    }

    #[test]
    fn a_member_without_contact_renews_for_its_grace_and_records_nothing() {
        let room = tempfile::tempdir().unwrap();
        let contact = member(room.path());
        assert!(!contact.may_record() && !contact.may_renew(), "it has never had contact");
        assert!(contact.time_without() < Duration::from_secs(60), "since it started");
        contact.note(Instant::now());
        assert!(contact.may_record() && contact.may_renew() && contact.time_without().is_zero());
        contact.note(ago(10));
        assert!(!contact.may_record() && !contact.may_try() && contact.may_renew());
        contact.note(ago(3));
        assert!(!contact.may_record() && contact.may_try());
        contact.note(ago(10));
        contact.note_failure("nobody answers");
        assert!((9..=11).contains(&contact.time_without().as_secs()), "{:?}", contact.time_without());
        let Standing::NoMajority { renews_until, why, since } = contact.standing() else { panic!() };
        assert!((45..=51).contains(&(renews_until - now())) && why == "nobody answers" && since + 9 <= now());
        contact.note(ago(61));
        assert!(!contact.may_renew());
        contact.note(ago(10));
        contact.limit_grace(5);
        assert!(!contact.may_renew());
    }

    #[test]
    fn a_member_with_a_wrong_clock_may_do_nothing() {
        let room = tempfile::tempdir().unwrap();
        let clock = Arc::<Clock>::default();
        let contact = Contact::of_member(room.path(), 60, clock.clone());
        contact.note(Instant::now());
        assert!(contact.may_record() && contact.has_right_clock());
        clock.compare(&[now() + 300, now() + 300]);
        assert!(!contact.may_record() && !contact.may_try() && !contact.may_renew() && !contact.has_right_clock());
        let said = contact.standing().sentence(now());
        assert!(said.contains("s behind the cluster's time"), "{said}");
        clock.compare(&[now(), now()]);
        assert_eq!(contact.standing(), Standing::Member);
    }

    #[test]
    fn the_time_of_the_contact_outlives_the_process() {
        let room = tempfile::tempdir().unwrap();
        member(room.path()).note(Instant::now());
        let later = member(room.path());
        assert!(!later.may_record() && later.may_renew());
        let text = |time: u64| fs::write(room.path().join(FILE), time.to_string()).unwrap();
        text(now() - 120);
        assert!(!member(room.path()).may_renew());
        text(now() + 120);
        assert!(!member(room.path()).may_renew(), "the clock was set back");
    }
}
