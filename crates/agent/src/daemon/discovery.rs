//! Discovery (wire.md §7): questions that people and the configuration ask, answers that are overheard, and what is shown of
//! both. All that a record can bring about is one question to an authority that somebody has logged in to.

use super::{Daemon, Message, now, refused};
use crate::protocol::{Discovered, Finding, Reply};
use crate::resolver;
use engine::agent::Subject;
use engine::discovery::book::Known;
use engine::discovery::{AuthorityUrl, Book, Domain, Heard, Record, Source, Told};
use std::collections::BTreeMap;
use tokio::sync::oneshot;

/// Domains that are asked for at a time.
const ASKING_MAX: usize = 32;
/// Callers that wait for one of them.
const WAITING_MAX: usize = 64;

/// What is known, and who waits to know more.
#[derive(Default)]
pub(super) struct Discovery {
    book: Book,
    asking: BTreeMap<Domain, Vec<oneshot::Sender<Reply>>>,
}

impl Daemon {
    /// Answers a person who asks for a domain, or for all that are known.
    pub(super) fn discover(&mut self, domain: Option<&str>, reply: oneshot::Sender<Reply>) {
        let Some(domain) = domain else {
            let _ = reply.send(Reply::Discovered { domains: self.discovered() });
            return;
        };
        let domain: Domain = match domain.parse() {
            Ok(domain) => domain,
            Err(error) => return drop(reply.send(refused("malformed", format!("{error}")))),
        };
        if self.discovery.book.known(now(), &domain).is_some() {
            return drop(reply.send(self.finding(&domain)));
        }
        let has_room = self.discovery.asking.len() < ASKING_MAX;
        match self.discovery.asking.get_mut(&domain) {
            Some(waiting) if waiting.len() < WAITING_MAX => waiting.push(reply),
            None if has_room => self.ask_for(domain, vec![reply]),
            _ => drop(reply.send(refused("busy", "too many are asking: try again".to_owned()))),
        }
    }

    /// Asks for the configured domains of which nothing is known any more.
    pub(super) fn look_around(&mut self) {
        for domain in self.config.discover.clone() {
            let is_open = self.discovery.asking.contains_key(&domain);
            if !is_open && self.discovery.book.known(now(), &domain).is_none() {
                self.ask_for(domain, Vec::new());
            }
        }
    }

    fn ask_for(&mut self, domain: Domain, waiting: Vec<oneshot::Sender<Reply>>) {
        self.discovery.asking.insert(domain.clone(), waiting);
        let (servers, messages) = (self.config.resolvers.clone(), self.messages.clone());
        tokio::spawn(async move {
            let told = resolver::ask(&domain, &servers).await;
            let _ = messages.send(Message::Discovered(domain, told)).await;
        });
    }

    /// An answer to a question of ours.
    pub(super) fn told_of(&mut self, domain: &Domain, told: Told) {
        let known = self.discovery.book.told(now(), domain, told);
        tracing::debug!(%domain, ?known, "discovery");
        if let Known::Record(record) = known {
            let record = record.clone();
            self.hint(&record);
        }
        for reply in self.discovery.asking.remove(domain).unwrap_or_default() {
            let _ = reply.send(self.finding(domain));
        }
    }

    /// A record that came along with somebody's answer; anybody may have sent it.
    pub(super) fn overheard(&mut self, heard: Heard) {
        if !self.config.may_log_in_to(heard.record.authority().as_str()) {
            return;
        }
        let (domain, record) = (heard.domain.clone(), heard.record.clone());
        if self.discovery.book.overheard(now(), heard) {
            tracing::debug!(%domain, %record, "overheard");
        }
        self.hint(&record);
    }

    /// Has the authority asked that the record names, by those who have logged in to it.
    fn hint(&mut self, record: &Record) {
        for (uid, kept) in &self.kept {
            let session = kept.session.as_ref();
            if session.is_some_and(|session| is_at(&session.authority, record.authority())) {
                self.agent.hinted(now(), Subject::of_user(*uid), record.protects());
            }
        }
    }

    /// Every domain that says it is protected.
    pub(super) fn discovered(&self) -> Vec<Discovered> {
        let proposals = self.discovery.book.proposals(now()).into_iter();
        proposals.map(|proposal| self.shown(proposal.domain, proposal.record, proposal.source)).collect()
    }

    fn shown(&self, domain: &Domain, record: &Record, source: Source) -> Discovered {
        Discovered {
            domain: domain.to_string(),
            authority: record.authority().to_string(),
            protects: record.protects().to_vec(),
            finding: match source {
                Source::Asked => Finding::Asked,
                Source::Overheard => Finding::Overheard,
            },
            at_home: record.is_at_home(domain),
            allowed: self.config.may_log_in_to(record.authority().as_str()),
        }
    }

    fn finding(&self, domain: &Domain) -> Reply {
        match self.discovery.book.known(now(), domain) {
            Some(Known::Record(record)) => {
                Reply::Discovered { domains: vec![self.shown(domain, record, Source::Asked)] }
            }
            Some(Known::Nothing) => refused(
                "no_record",
                format!(
                    "{domain} says nothing of an authority: there is no record at {}. That is remembered for as long as the \
                     domain says, an hour at most; `--authority URL` needs no record",
                    domain.record_name()
                ),
            ),
            Some(Known::Failed(why)) => refused("unreachable", format!("{domain}: {why}")),
            None => refused("unreachable", format!("{domain}: the answer is over already")),
        }
    }
}

/// Whether a person's spelling of an authority's address means this one.
fn is_at(spelled: &str, authority: &AuthorityUrl) -> bool {
    spelled.parse::<AuthorityUrl>().is_ok_and(|own| own == *authority)
}
