//! Discovery (wire.md §7): finds records that users or the configuration name, processes records that the agent
//! overhears, and displays both. A record has only one effect. If a user has logged in at the authority that the record
//! names, the agent sends one request to this authority.

use super::{Daemon, Message, now};
use engine::agent::Subject;
use engine::discovery::cache::Lookup;
use engine::discovery::{Answer, AuthorityUrl, Cache, Domain, Overheard, Record, Source};
use reach::login::refused;
use reach::protocol::{Discovered, Finding, Reply};
use reach::resolver;
use std::collections::BTreeMap;
use tokio::sync::oneshot;

/// Maximum number of domains that are queried at a time.
const ASKING_MAX: usize = 32;
/// Maximum number of clients that wait for the same domain.
const WAITING_MAX: usize = 64;

/// Known records, and clients that wait for records.
#[derive(Default)]
pub(super) struct Discovery {
    cache: Cache,
    asking: BTreeMap<Domain, Vec<oneshot::Sender<Reply>>>,
}

impl Daemon {
    /// Answers a user who requests the record of a domain, or all known records.
    pub(super) fn discover(&mut self, domain: Option<&str>, reply: oneshot::Sender<Reply>) {
        let Some(domain) = domain else {
            let _ = reply.send(Reply::Discovered { domains: self.discovered() });
            return;
        };
        let domain: Domain = match domain.parse() {
            Ok(domain) => domain,
            Err(error) => return drop(reply.send(refused("malformed", format!("{error}")))),
        };
        if self.discovery.cache.lookup(now(), &domain).is_some() {
            return drop(reply.send(self.finding(&domain)));
        }
        let has_room = self.discovery.asking.len() < ASKING_MAX;
        match self.discovery.asking.get_mut(&domain) {
            Some(waiting) if waiting.len() < WAITING_MAX => waiting.push(reply),
            None if has_room => self.ask_for(domain, vec![reply]),
            _ => {
                drop(reply.send(refused(
                    "busy",
                    "the agent is already looking up too many domains: try again later".to_owned(),
                )))
            }
        }
    }

    /// Queries name servers for configured domains whose results have expired.
    pub(super) fn look_around(&mut self) {
        for domain in self.settings.discover.clone() {
            let is_open = self.discovery.asking.contains_key(&domain);
            if !is_open && self.discovery.cache.lookup(now(), &domain).is_none() {
                self.ask_for(domain, Vec::new());
            }
        }
    }

    fn ask_for(&mut self, domain: Domain, waiting: Vec<oneshot::Sender<Reply>>) {
        self.discovery.asking.insert(domain.clone(), waiting);
        let (servers, messages) = (self.settings.resolvers.clone(), self.messages.clone());
        tokio::spawn(async move {
            let answer = resolver::ask(&domain, &servers).await;
            let _ = messages.send(Message::Discovered(domain, answer)).await;
        });
    }

    /// Processes the answer to one of the daemon's own queries.
    pub(super) fn discovery_answered(&mut self, domain: &Domain, answer: Answer) {
        let lookup = self.discovery.cache.insert_answer(now(), domain, answer);
        tracing::debug!(%domain, ?lookup, "discovery");
        if let Lookup::Record(record) = lookup {
            let record = record.clone();
            self.hint(&record);
        }
        for reply in self.discovery.asking.remove(domain).unwrap_or_default() {
            let _ = reply.send(self.finding(domain));
        }
    }

    /// Processes a record that the agent overheard in the answer to another program's query. Anyone may have forged
    /// this record.
    pub(super) fn overheard(&mut self, overheard: Overheard) {
        if !self.settings.may_log_in_to(overheard.record.authority().as_str()) {
            return;
        }
        let (domain, record) = (overheard.domain.clone(), overheard.record.clone());
        if self.discovery.cache.insert_overheard(now(), overheard) {
            tracing::debug!(%domain, %record, "overheard");
        }
        self.hint(&record);
    }

    /// Makes the state machine ask the authority that the record names, on behalf of users who are logged in to it.
    fn hint(&mut self, record: &Record) {
        for (uid, kept) in &self.kept {
            for (number, ..) in kept.all() {
                let session = kept.session(number);
                if session.is_some_and(|session| is_at(&session.authority, record.authority())) {
                    let subject = Subject::of_user(*uid).in_organisation(number);
                    self.agent.hinted(now(), subject, record.protects());
                }
            }
        }
    }

    /// Returns every domain whose record names an authority.
    pub(super) fn discovered(&self) -> Vec<Discovered> {
        let proposals = self.discovery.cache.proposals(now()).into_iter();
        proposals.map(|proposal| self.shown(proposal.domain, proposal.record, proposal.source)).collect()
    }

    fn shown(&self, domain: &Domain, record: &Record, source: Source) -> Discovered {
        Discovered {
            domain: domain.to_string(),
            authority: record.authority().to_string(),
            protects: record.protects().to_vec(),
            finding: match source {
                Source::Queried => Finding::Asked,
                Source::Overheard => Finding::Overheard,
            },
            at_home: record.is_at_home(domain),
            allowed: self.settings.may_log_in_to(record.authority().as_str()),
        }
    }

    fn finding(&self, domain: &Domain) -> Reply {
        match self.discovery.cache.lookup(now(), domain) {
            Some(Lookup::Record(record)) => {
                Reply::Discovered { domains: vec![self.shown(domain, record, Source::Queried)] }
            }
            Some(Lookup::Nothing) => refused(
                "no_record",
                format!(
                    "{domain} names no authority: there is no record at {}. The agent caches this answer for as long \
                     as the domain specifies, at most an hour; `--authority URL` needs no record",
                    domain.record_name()
                ),
            ),
            Some(Lookup::Failed(why)) => refused("unreachable", format!("{domain}: {why}")),
            None => refused("unreachable", format!("{domain}: the name server's answer expired at once: try again")),
        }
    }
}

/// Reports whether a URL as a user wrote it denotes this authority.
fn is_at(spelled: &str, authority: &AuthorityUrl) -> bool {
    spelled.parse::<AuthorityUrl>().is_ok_and(|own| own == *authority)
}
