//! Return segments that are issued together with the segments that they answer (wire.md §8.15). The endpoint that
//! requests a segment passes the return segment on to the answering endpoint.

use super::book::Entry;
use super::{Refusal, Requester, SegmentIssuer, along, may_ask, path};
use crate::http::problems::Problem;
use crate::login::Sessions;
use crate::storage::{Session, TokenHash};
use engine::issuing::segment::GiveError;
use engine::model::Given;
use engine::policy::networks::{Located, Networks};
use engine::policy::{Compiled, Who};
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use wire::{Destination, Ends, Epoch, SegmentFlags};

/// Maximum number of accounts of one place that are considered.
const MOST_ACCOUNTS: usize = 16;
/// Maximum number of accounts whose session is remembered: about 1 MB.
const MOST_REMEMBERED: usize = 8192;
/// Maximum number of searches per second. A search looks at all sessions, which takes up to some milliseconds.
const SEARCHES: u32 = 8;
/// If a session ends within this number of seconds, the authority searches for a later session of the same account. A
/// tunnel endpoint begins its next session that long before its present session ends.
const SOON: u64 = 300;

/// The sessions to which return segments are issued, by account.
#[derive(Default)]
pub(super) struct Answerers(Mutex<KnownSessions>);

#[derive(Default)]
struct KnownSessions {
    sessions: HashMap<String, TokenHash>,
    /// A second, in Unix time, and the number of searches in this second.
    searches: (u64, u32),
}

impl Answerers {
    /// Returns the session of `person` that ends last. May return an earlier one, or `None`, if many sessions were
    /// searched for within the last second.
    fn session_of(&self, sessions: &Sessions, person: &str, now: u64) -> Option<(TokenHash, Arc<Session>)> {
        let known = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let remembered = known.sessions.get(person).copied();
        let remembered = remembered.and_then(|token| Some((token, sessions.get(&token)?)));
        if remembered.as_ref().is_some_and(|(_, session)| session.expires > now.saturating_add(SOON)) {
            return remembered;
        }
        if known.searches.0 != now {
            known.searches = (now, 0);
        }
        if known.searches.1 >= SEARCHES {
            return remembered;
        }
        known.searches.1 += 1;
        let all = sessions.tokens_of(person).into_iter().filter_map(|token| Some((token, sessions.get(&token)?)));
        let (token, session) = all.max_by_key(|(_, session)| session.expires)?;
        if known.sessions.len() >= MOST_REMEMBERED {
            known.sessions.clear();
        }
        known.sessions.insert(person.to_owned(), token);
        Some((token, session))
    }
}

impl SegmentIssuer {
    /// Issues the return segment for `given`, which was just issued, and records it in the book. Returns it in the form
    /// in which endpoints pass it on. Returns `None` if the answers can get no segment, or if this form is longer than
    /// `room` bytes. Then the answering endpoint requests the segment itself. `number` is the number of the path of
    /// `given`; the answers take the path with the same number.
    ///
    /// The segment belongs to a session that could request it, and ends with this session. It counts in the share of
    /// the account that requested `given`. Otherwise this account could use up the share of another account.
    pub(super) fn answers_to(
        &self,
        policy: &Compiled,
        networks: &Networks,
        requester: Requester<'_>,
        given: &Given,
        number: u8,
        room: usize,
    ) -> Option<Vec<u8>> {
        if !given.segment.flags.has(SegmentFlags::REPLY) {
            return None;
        }
        let issued = self.issue_answers(policy, networks, requester, given, number, room);
        let why = |refusal| {
            let Ends { sender, receiver, .. } = given.ends;
            let why = match refusal {
                Refusal::Internal(error) => format!("{error:#}"),
                other => Problem::from(other).said().title,
            };
            tracing::debug!("no segment for the answers of {receiver} to {sender}: {why}");
        };
        issued.map_err(why).ok()
    }

    fn issue_answers(
        &self,
        policy: &Compiled,
        networks: &Networks,
        requester: Requester<'_>,
        given: &Given,
        number: u8,
        room: usize,
    ) -> Result<Vec<u8>, Refusal> {
        let cant = |why: &str| Refusal::Cant(why.to_owned());
        let (vni, now) = (given.vni, requester.now);
        let Ends { sending, receiving, sender, receiver } = given.ends;
        let places = (networks.authority(), networks.name(vni), networks.place(vni, sender));
        let ((Some(authority), Some(network), Some(back)), Some(answerer)) = (places, networks.located(vni, receiver))
        else {
            return Err(cant("networks.toml no longer has the network, the sender or the receiver"));
        };
        let answering = self.answering(policy, requester, receiver, answerer);
        let (token, session) = answering.ok_or_else(|| cant("no account that may request it is logged in"))?;
        let epoch = Epoch::at(now, self.settings.epoch_length);
        let there = self.path_keys(path(networks, sending, receiving, number)?, authority, epoch)?;
        let [first, ..] = &there[..] else { return Err(GiveError::Path.into()) };
        let way = path(networks, receiving, sending, number)?;
        let keys = self.path_keys(way, authority, epoch)?;
        let giver = self.giver(authority, way, &keys, now);
        let answers = along(given.answer(&giver, first, back, session.expires)?, &giver, way)?;
        let passed_on = there.last().and_then(|last| answers.passed_on(last)).filter(|bytes| bytes.len() <= room);
        let passed_on = passed_on.ok_or_else(|| cant("it does not fit into the answer"))?;
        let mut book = self.book();
        self.check_contact(|| book.renews(token, &answers))?;
        if book.withdrawn(vni, receiver, sender).is_some_and(|until| answers.segment.expires <= until) {
            return Err(GiveError::Withdrawn.into());
        }
        let entry = || {
            let (person, network) = (requester.session.person.clone(), network.to_owned());
            let to = Destination { address: sender, protocol: given.segment.protocol, port: given.segment.port };
            Entry { person, network, to, sending: receiving, place: back }
        };
        book.note(token, &answers, entry, now).map_err(|_| Refusal::TooMany)?;
        drop(book);
        // If the session ends after this check, the book is re-evaluated, and it contains the segment by then.
        self.sessions.get(&token).filter(|now| now.allows_as(&session)).ok_or(Refusal::NotLoggedIn)?;
        Ok(passed_on)
    }

    /// Returns a session that may request segments for the address `receiver`, whose place is `located`: preferably
    /// that of an account that `networks.toml` names, otherwise the requester's own.
    fn answering(
        &self,
        policy: &Compiled,
        Requester { token, session, now }: Requester<'_>,
        receiver: IpAddr,
        located: &Located,
    ) -> Option<(TokenHash, Arc<Session>)> {
        let accounts = located.asked_by.iter().flatten().filter_map(|who| match who {
            Who::Person(person) => Some(person),
            _ => None,
        });
        let may = |session: &Session| may_ask(policy, &session.subject(receiver), located);
        let found = accounts.take(MOST_ACCOUNTS).find_map(|person| {
            self.answerers.session_of(&self.sessions, person, now).filter(|(_, session)| may(session))
        });
        found.or_else(|| may(session).then(|| (token, session.clone())))
    }
}
