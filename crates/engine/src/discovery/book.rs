//! Cache of discovery results and their lifetimes: results of own queries, including negative ones, and overheard
//! records. An attacker may have forged an overheard answer, so those have a table of their own and never change the
//! results of queries.

use super::domain::Domain;
use super::message::{Heard, Told};
use super::record::Record;
use std::collections::BTreeMap;
use std::time::Duration;

/// Maximum numbers of queried and of overheard domains; the one that expires first makes room.
const ASKED_MAX: usize = 256;
const SEEN_MAX: usize = 64;
/// Shortest and longest time for which a record is kept, regardless of its time to live, in seconds.
const RECORD_KEPT: (u32, u32) = (60, 86_400);
/// Shortest and longest time for which an overheard record is kept, in seconds.
const SEEN_KEPT: (u32, u32) = (60, 3600);
/// Shortest and longest time for which the absence of a record is kept, in seconds (RFC 2308 §5).
const NOTHING_KEPT: (u32, u32) = (30, 3600);
/// Time for which a failure is kept, in seconds (RFC 2308 §7).
const FAILURE_KEPT: u32 = 30;

/// Result of discovery for a domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Known {
    /// The domain has this record.
    Record(Record),
    /// The domain has no record.
    Nothing,
    /// The query failed, with the reason.
    Failed(String),
}

/// Origin of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The agent's own query.
    Asked,
    /// The answer to another program's query.
    Overheard,
}

/// A domain whose record claims protection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proposal<'a> {
    /// The domain.
    pub domain: &'a Domain,
    /// The domain's record.
    pub record: &'a Record,
    /// Origin of the record.
    pub source: Source,
    /// Time until which the record is kept.
    pub until: Duration,
}

struct Entry {
    known: Known,
    until: Duration,
}

/// The cache: results of queries and overheard records.
#[derive(Default)]
pub struct Book {
    asked: BTreeMap<Domain, Entry>,
    seen: BTreeMap<Domain, Entry>,
}

impl Book {
    /// Stores the answer to an own query.
    pub fn told(&mut self, now: Duration, domain: &Domain, told: Told) -> &Known {
        let within = |ttl: u32, (least, most): (u32, u32)| ttl.clamp(least, most);
        let (known, seconds) = match told {
            Told::Record(record, ttl) => (Known::Record(record), within(ttl, RECORD_KEPT)),
            Told::Nothing(ttl) => (Known::Nothing, within(ttl, NOTHING_KEPT)),
            Told::Truncated => (Known::Failed("the answer is too long".to_owned()), FAILURE_KEPT),
            Told::Failed(why) => (Known::Failed(why), FAILURE_KEPT),
        };
        insert(&mut self.asked, ASKED_MAX, now, domain, Entry { known, until: after(now, seconds) });
        &self.asked[domain].known
    }

    /// Stores an overheard record. Returns whether it is new.
    pub fn overheard(&mut self, now: Duration, heard: Heard) -> bool {
        let Heard { domain, record, ttl } = heard;
        let known = Known::Record(record);
        let is_new = self.seen.get(&domain).is_none_or(|entry| entry.until <= now || entry.known != known);
        let until = after(now, ttl.clamp(SEEN_KEPT.0, SEEN_KEPT.1));
        insert(&mut self.seen, SEEN_MAX, now, &domain, Entry { known, until });
        is_new
    }

    /// Returns the result of an own query for a domain.
    pub fn known(&self, now: Duration, domain: &Domain) -> Option<&Known> {
        self.asked.get(domain).filter(|entry| entry.until > now).map(|entry| &entry.known)
    }

    /// Returns all domains whose records claim protection. The result of an own query overrides an overheard record.
    pub fn proposals(&self, now: Duration) -> Vec<Proposal<'_>> {
        let mut proposals = Vec::new();
        for (book, source) in [(&self.asked, Source::Asked), (&self.seen, Source::Overheard)] {
            for (domain, Entry { known, until }) in book {
                let overruled = source == Source::Overheard && self.known(now, domain).is_some();
                if let Known::Record(record) = known
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

fn insert(book: &mut BTreeMap<Domain, Entry>, most: usize, now: Duration, domain: &Domain, entry: Entry) {
    if !book.contains_key(domain) && book.len() >= most {
        book.retain(|_, entry| entry.until > now);
        while book.len() >= most {
            let Some(first) = book.iter().min_by_key(|(_, entry)| entry.until).map(|(domain, _)| domain.clone()) else {
                break;
            };
            book.remove(&first);
        }
    }
    book.insert(domain.clone(), entry);
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

    fn heard(name: &str, host: &str, ttl: u32) -> Heard {
        Heard { domain: domain(name), record: record(host), ttl }
    }

    fn at(seconds: u32) -> Duration {
        after(NOW, seconds)
    }

    #[test]
    fn that_there_is_nothing_is_remembered_for_as_long_as_the_zone_says_and_no_longer_than_an_hour() {
        let mut book = Book::default();
        let (zone, name) = (domain("example.org"), domain("example.net"));
        book.told(NOW, &zone, Told::Nothing(120));
        assert_eq!((book.known(at(119), &zone), book.known(at(120), &zone)), (Some(&Known::Nothing), None));
        for (ttl, kept) in [(0, NOTHING_KEPT.0), (u32::MAX, NOTHING_KEPT.1)] {
            book.told(NOW, &name, Told::Nothing(ttl));
            assert!(book.known(at(kept - 1), &name).is_some() && book.known(at(kept), &name).is_none(), "{ttl}");
        }
        book.told(NOW, &name, Told::Failed("silence".into()));
        assert!(book.known(at(FAILURE_KEPT - 1), &name).is_some() && book.known(at(FAILURE_KEPT), &name).is_none());
    }

    #[test]
    fn what_is_overheard_never_changes_what_was_asked_for() {
        let mut book = Book::default();
        let zone = domain("example.org");
        book.told(NOW, &zone, Told::Record(record("vouch.example.org"), 300));
        assert!(book.overheard(NOW, heard("example.org", "evil.example.net", 3600)));
        let [only] = &book.proposals(NOW)[..] else { panic!("{:?}", book.proposals(NOW)) };
        assert_eq!((only.record, only.source), (&record("vouch.example.org"), Source::Asked));
        // Nor does it revive a domain whose answer said that it has no record.
        book.told(NOW, &zone, Told::Nothing(300));
        assert!(book.proposals(NOW).is_empty());
    }

    #[test]
    fn what_is_overheard_again_is_not_new_until_it_changes_or_ends() {
        let mut book = Book::default();
        assert!(book.overheard(NOW, heard("example.org", "a.example.org", 100)));
        assert!(!book.overheard(at(50), heard("example.org", "a.example.org", 100)));
        assert!(book.overheard(at(60), heard("example.org", "b.example.org", 100)));
        assert!(book.overheard(at(160), heard("example.org", "b.example.org", 100)));
    }

    #[test]
    fn a_flood_of_forgeries_fills_no_more_than_its_own_book() {
        let mut book = Book::default();
        for n in 0..ASKED_MAX {
            book.told(NOW, &domain(&format!("asked{n}.org")), Told::Record(record("a.org"), 300));
        }
        for n in 0..10_000 {
            book.overheard(NOW, heard(&format!("forged{n}.org"), "evil.org", u32::MAX));
        }
        let proposals = book.proposals(NOW);
        let asked = proposals.iter().filter(|proposal| proposal.source == Source::Asked).count();
        assert_eq!((asked, proposals.len()), (ASKED_MAX, ASKED_MAX + SEEN_MAX));
        assert!(book.proposals(at(RECORD_KEPT.1)).is_empty());
    }
}
