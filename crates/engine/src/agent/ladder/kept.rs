//! The ladder's results in the form in which they outlive the process. The caller stores them and passes them back
//! after a restart. The ladder does not trust stored results. At worst, damaged results make connections avoid a rung
//! that works, for at most the longest back-off.

use super::super::Subject;
use super::memory::{BACKOFF_MAX, FAILURES_MAX, Record, Results, TIMES_MAX};
use super::{Ladder, Network, Path, Rung, WAIT_MAX};
use serde::{Deserialize, Serialize};
use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

/// Maximum number of a user's paths that are kept. The paths that were used most recently are kept. The limit prevents
/// a user from filling the disk.
pub const KEPT_MAX: usize = 32;

/// The ladder's results for a path, as the caller stores them. Times are Unix seconds, because the clock since boot
/// starts again at a reboot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptPath {
    /// The user whose connections these are.
    pub user: u32,
    /// The number of the [`Network`].
    pub network: u64,
    /// The verifier, identified as in [`Path`].
    pub verifier: SocketAddr,
    /// Whether the connections use IPv6.
    pub ipv6: bool,
    /// Time at which the path was last used.
    pub used: u64,
    /// The round-trip time that was measured last, in microseconds.
    #[serde(default)]
    pub round_trip: Option<u32>,
    /// The rungs that were tried, by name. Rungs with names that this version does not know are left out.
    pub rungs: BTreeMap<String, KeptRung>,
}

/// The ladder's results for a rung of a path, as the caller stores them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptRung {
    /// Whether the latest first packet by this rung was answered.
    pub works: bool,
    /// Number of first packets in a row that were sent by this rung and not answered, although another rung's packet
    /// was.
    #[serde(default)]
    pub failures: u32,
    /// Number of times in a row that the rung became bad.
    #[serde(default)]
    pub times: u32,
    /// Time until which the rung is bad, so that connections begin with another rung; 0 if the rung is not bad.
    #[serde(default)]
    pub until: u64,
}

impl<C> Ladder<C> {
    /// Reports whether there are new results since [`Self::keep`] was last called.
    pub fn has_news(&self) -> bool {
        self.memory.changed
    }

    /// Returns the results to store. `now` and `unix` are the same time, by the clock since boot and in Unix time.
    pub fn keep(&mut self, now: Duration, unix: Duration) -> Vec<KeptPath> {
        self.memory.changed = false;
        let clock = |at: Duration| (unix + at).saturating_sub(now);
        let rung = |record: &Record| {
            let until = if record.until > now { clock(record.until).as_secs() } else { 0 };
            Some(KeptRung { works: record.works?, failures: record.failures, times: record.times, until })
        };
        let path = |(path, results): (&Path, &Results)| KeptPath {
            user: path.subject.user(),
            network: path.network.0,
            verifier: path.verifier,
            ipv6: path.ipv6,
            used: clock(results.used).as_secs(),
            round_trip: results.round_trip.and_then(|time| u32::try_from(time.as_micros()).ok()),
            rungs: Rung::ALL
                .into_iter()
                .filter_map(|one| Some((one.name().to_owned(), rung(&results.rungs[one as usize])?)))
                .collect(),
        };
        latest(self.memory.paths().map(path).collect())
    }

    /// Takes over the stored results of every network, and sets `network` as the network in which this machine is.
    /// Leaves out users for whom `is_user` returns false. Takes over at most [`KEPT_MAX`] paths of each user. Brings
    /// values into the bounds within which a ladder writes them.
    pub fn take_over(
        &mut self,
        (now, unix): (Duration, Duration),
        network: Network,
        kept: &[KeptPath],
        is_user: impl Fn(u32) -> bool,
    ) {
        self.network = network;
        for path in latest(kept.iter().filter(|path| is_user(path.user)).collect()) {
            let subject = Subject::of_user(path.user);
            let key = Path { subject, network: Network(path.network), verifier: path.verifier, ipv6: path.ipv6 };
            self.memory.put(key, results(path, now, unix));
        }
    }
}

/// Leaves only the latest [`KEPT_MAX`] paths of each user.
fn latest<P: Borrow<KeptPath>>(mut paths: Vec<P>) -> Vec<P> {
    paths.sort_by_key(|path| std::cmp::Reverse(path.borrow().used));
    let mut counts = BTreeMap::<u32, usize>::new();
    paths.retain(|path| {
        let count = counts.entry(path.borrow().user).or_default();
        *count += 1;
        *count <= KEPT_MAX
    });
    paths
}

fn results(path: &KeptPath, now: Duration, unix: Duration) -> Results {
    let left = |until: u64| Duration::from_secs(until).saturating_sub(unix).min(BACKOFF_MAX);
    let record = |rung: &KeptRung| Record {
        failures: rung.failures.min(FAILURES_MAX - 1),
        until: if left(rung.until).is_zero() || rung.works { Duration::ZERO } else { now + left(rung.until) },
        times: rung.times.min(TIMES_MAX),
        works: Some(rung.works),
    };
    let age = unix.saturating_sub(Duration::from_secs(path.used));
    Results {
        rungs: Rung::ALL.map(|rung| path.rungs.get(rung.name()).map(record).unwrap_or_default()),
        round_trip: path.round_trip.map(|time| Duration::from_micros(time.into()).min(WAIT_MAX)),
        unclear: None,
        used: now.saturating_sub(age),
        answered: [Duration::ZERO; Rung::ALL.len()],
    }
}
