//! Cache of the results of discovery. It contains overheard records and the results of the agent's own queries,
//! including the result that a domain has no record. An attacker can forge an answer that the agent overhears.
//! Therefore overheard records have a table of their own and never change the results of queries.

use super::domain::Domain;
use super::message::{Answer, Overheard};
use super::record::Record;
use std::collections::BTreeMap;
use std::time::Duration;

/// Maximum number of domains in the table of queries, and in the table of overheard records. When a table has more, the
/// cache removes the entry that expires first.
const QUERIED_MAX: usize = 256;
const OVERHEARD_MAX: usize = 64;
/// Shortest and longest time for which a record is kept, regardless of its time to live, in seconds.
const RECORD_KEPT: (u32, u32) = (60, 86_400);
/// Shortest and longest time for which an overheard record is kept, in seconds.
const OVERHEARD_KEPT: (u32, u32) = (60, 3600);
/// Shortest and longest time for which the absence of a record is kept, in seconds (RFC 2308 §5).
const NOTHING_KEPT: (u32, u32) = (30, 3600);
/// Time for which a failed query is kept, in seconds (RFC 2308 §7).
const FAILURE_KEPT: u32 = 30;

/// Result of discovery for a domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// The domain has this record.
    Record(Record),
    /// The domain has no record.
    Nothing,
    /// The query failed. The text is the reason.
    Failed(String),
}

/// How the agent learned of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The record was in the answer to the agent's own query.
    Queried,
    /// The agent overheard the record in an answer to another program's query.
    Overheard,
}

/// A domain for which the cache has a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proposal<'a> {
    /// The domain to which the record belongs.
    pub domain: &'a Domain,
    /// The record that names the domain's authority and networks.
    pub record: &'a Record,
    /// Whether the record is the result of the agent's own query or was overheard.
    pub source: Source,
    /// Time until which the cache keeps the record, on the clock that callers of [`Cache`] pass as `now`.
    pub until: Duration,
}

struct Entry {
    lookup: Lookup,
    until: Duration,
}

/// The cache: results of queries and overheard records.
#[derive(Default)]
pub struct Cache {
    queried: BTreeMap<Domain, Entry>,
    overheard: BTreeMap<Domain, Entry>,
}

impl Cache {
    /// Stores the answer to one of the agent's own queries, and returns the stored result.
    pub fn insert_answer(&mut self, now: Duration, domain: &Domain, answer: Answer) -> &Lookup {
        let within = |ttl: u32, (least, most): (u32, u32)| ttl.clamp(least, most);
        let (lookup, seconds) = match answer {
            Answer::Record(record, ttl) => (Lookup::Record(record), within(ttl, RECORD_KEPT)),
            Answer::Nothing(ttl) => (Lookup::Nothing, within(ttl, NOTHING_KEPT)),
            Answer::Truncated => (Lookup::Failed("the answer is too long".to_owned()), FAILURE_KEPT),
            Answer::Failed(why) => (Lookup::Failed(why), FAILURE_KEPT),
        };
        insert(&mut self.queried, QUERIED_MAX, now, domain, Entry { lookup, until: after(now, seconds) });
        &self.queried[domain].lookup
    }

    /// Stores an overheard record. Returns whether the cache did not contain this record for its domain yet.
    pub fn insert_overheard(&mut self, now: Duration, overheard: Overheard) -> bool {
        let Overheard { domain, record, ttl } = overheard;
        let lookup = Lookup::Record(record);
        let is_new = self.overheard.get(&domain).is_none_or(|entry| entry.until <= now || entry.lookup != lookup);
        let until = after(now, ttl.clamp(OVERHEARD_KEPT.0, OVERHEARD_KEPT.1));
        insert(&mut self.overheard, OVERHEARD_MAX, now, &domain, Entry { lookup, until });
        is_new
    }

    /// Returns the result of the agent's own query for a domain; `None` if the cache has no result, or the result has
    /// expired.
    pub fn lookup(&self, now: Duration, domain: &Domain) -> Option<&Lookup> {
        self.queried.get(domain).filter(|entry| entry.until > now).map(|entry| &entry.lookup)
    }

    /// Returns all domains for which the cache has a record that has not expired. An overheard record does not count if
    /// the cache has the result of the agent's own query for the domain, even if the query found no record.
    pub fn proposals(&self, now: Duration) -> Vec<Proposal<'_>> {
        let mut proposals = Vec::new();
        for (cache, source) in [(&self.queried, Source::Queried), (&self.overheard, Source::Overheard)] {
            for (domain, Entry { lookup, until }) in cache {
                let overruled = source == Source::Overheard && self.lookup(now, domain).is_some();
                if let Lookup::Record(record) = lookup
                    && *until > now
                    && !overruled
                {
                    proposals.push(Proposal { domain, record, source, until: *until });
                }
            }
        }
        proposals
    }
}

fn after(now: Duration, seconds: u32) -> Duration {
    now + Duration::from_secs(seconds.into())
}

fn insert(cache: &mut BTreeMap<Domain, Entry>, most: usize, now: Duration, domain: &Domain, entry: Entry) {
    if !cache.contains_key(domain) && cache.len() >= most {
        cache.retain(|_, entry| entry.until > now);
        while cache.len() >= most {
            let Some(first) = cache.iter().min_by_key(|(_, entry)| entry.until).map(|(domain, _)| domain.clone())
            else {
                break;
            };
            cache.remove(&first);
        }
    }
    cache.insert(domain.clone(), entry);
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(1000);

    fn record(host: &str) -> Record {
        Record::read(format!("v=vouchsafe1; authority=https://{host}").as_bytes()).unwrap().unwrap()
    }

    fn domain(text: &str) -> Domain {
        text.parse().unwrap()
    }

    fn overheard(name: &str, host: &str, ttl: u32) -> Overheard {
        Overheard { domain: domain(name), record: record(host), ttl }
    }

    fn at(seconds: u32) -> Duration {
        after(NOW, seconds)
    }

    #[test]
    fn that_there_is_nothing_is_remembered_for_as_long_as_the_zone_says_and_no_longer_than_an_hour() {
        let mut cache = Cache::default();
        let (zone, name) = (domain("example.org"), domain("example.net"));
        cache.insert_answer(NOW, &zone, Answer::Nothing(120));
        assert_eq!((cache.lookup(at(119), &zone), cache.lookup(at(120), &zone)), (Some(&Lookup::Nothing), None));
        for (ttl, kept) in [(0, NOTHING_KEPT.0), (u32::MAX, NOTHING_KEPT.1)] {
            cache.insert_answer(NOW, &name, Answer::Nothing(ttl));
            assert!(cache.lookup(at(kept - 1), &name).is_some() && cache.lookup(at(kept), &name).is_none(), "{ttl}");
        }
        cache.insert_answer(NOW, &name, Answer::Failed("silence".into()));
        assert!(cache.lookup(at(FAILURE_KEPT - 1), &name).is_some() && cache.lookup(at(FAILURE_KEPT), &name).is_none());
    }

    #[test]
    fn what_is_overheard_never_changes_what_was_asked_for() {
        let mut cache = Cache::default();
        let zone = domain("example.org");
        cache.insert_answer(NOW, &zone, Answer::Record(record("vouch.example.org"), 300));
        assert!(cache.insert_overheard(NOW, overheard("example.org", "evil.example.net", 3600)));
        let [only] = &cache.proposals(NOW)[..] else { panic!("{:?}", cache.proposals(NOW)) };
        assert_eq!((only.record, only.source), (&record("vouch.example.org"), Source::Queried));
        // An overheard record does not revive a domain whose answer said that it has no record.
        cache.insert_answer(NOW, &zone, Answer::Nothing(300));
        assert!(cache.proposals(NOW).is_empty());
    }

    #[test]
    fn what_is_overheard_again_is_not_new_until_it_changes_or_ends() {
        let mut cache = Cache::default();
        assert!(cache.insert_overheard(NOW, overheard("example.org", "a.example.org", 100)));
        assert!(!cache.insert_overheard(at(50), overheard("example.org", "a.example.org", 100)));
        assert!(cache.insert_overheard(at(60), overheard("example.org", "b.example.org", 100)));
        assert!(cache.insert_overheard(at(160), overheard("example.org", "b.example.org", 100)));
    }

    #[test]
    fn a_flood_of_forgeries_fills_no_more_than_its_own_table() {
        let mut cache = Cache::default();
        for n in 0..QUERIED_MAX {
            cache.insert_answer(NOW, &domain(&format!("queried{n}.org")), Answer::Record(record("a.org"), 300));
        }
        for n in 0..10_000 {
            cache.insert_overheard(NOW, overheard(&format!("forged{n}.org"), "evil.org", u32::MAX));
        }
        let proposals = cache.proposals(NOW);
        let queried = proposals.iter().filter(|proposal| proposal.source == Source::Queried).count();
        assert_eq!((queried, proposals.len()), (QUERIED_MAX, QUERIED_MAX + OVERHEARD_MAX));
        assert!(cache.proposals(at(RECORD_KEPT.1)).is_empty());
    }
}
