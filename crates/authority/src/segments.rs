//! Path segments of virtual networks. The policy decides which accounts get a segment, `networks.toml` contains the
//! places of addresses and the verifiers on each path, and `engine::issuing::segment` defines the format of segments.

mod account;
mod answers;
pub mod batch;
mod book;
mod datagrams;
mod granting;
mod keys;
mod lines;
pub(crate) mod listed;

pub use datagrams::Answering;
pub(crate) use datagrams::DatagramService;
pub(crate) use granting::GrantService;
pub(crate) use lines::RequestLines;

use crate::cluster::contact::Contact;
use crate::convert;
use crate::http::problems::Problem;
use crate::keys::Keyring;
use crate::login::Sessions;
use crate::policy::PolicyInForce;
use crate::push::events::{Listener, Push};
use crate::storage::{AuditEvent, AuditLog, Session, TokenHash};
use crate::{Directory, Settings, now};
use answers::Answerers;
use anyhow::{Context, Result};
use api::{AnswerRequest, Behind, EndpointPlace, EndpointPlaces, PathSegment, ProofKeys, SegmentRequest, Withdrawal};
use book::{Book, Entry, Withdrawn};
use engine::issuing::segment::{Give, GiveError, Giver};
use engine::model::{Given, Issued};
use engine::policy::networks::{Located, MOST_TEXT, Networks, Path};
use engine::policy::{Compiled, Decision, Explanation, Permit, Policy, Request, Subject, place};
use keys::Keys;
use std::fs;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use wire::ask::{PATH_MAX, Question};
use wire::{Destination, Epoch, ProofKey, SegmentFlags, Vni};

impl Directory {
    /// Reads `networks.toml`. Without this file, there are no networks.
    ///
    /// # Errors
    /// Fails if the file cannot be read, is too long, or is not valid.
    pub fn read_networks(&self) -> Result<Networks> {
        let path = self.networks();
        let shown = path.display();
        let size = match fs::metadata(&path) {
            Ok(file) => file.len(),
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Networks::default()),
            Err(error) => return Err(error).with_context(|| format!("cannot read {shown}")),
        };
        anyhow::ensure!(size <= MOST_TEXT as u64, "{shown} exceeds the maximum of {MOST_TEXT} bytes");
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {shown}"))?;
        Networks::parse(&text).map_err(|faults| anyhow::anyhow!(faults.in_file(&shown.to_string())))
    }
}

/// Returns warnings about networks that the policy names but `networks.toml` does not define, and about groups that
/// `networks.toml` names but the policy does not define.
pub(crate) fn unknown_names(networks: &Networks, policy: &Policy) -> Vec<String> {
    let missing = policy.networks().filter(|(name, _)| networks.vni(name).is_none());
    let missing = missing.map(|(name, _)| {
        format!("no network {name} in networks.toml: nobody can send to the policy's receivers in this network")
    });
    let groups = networks.groups().into_iter().filter(|group| !policy.has_group(group));
    let groups = groups.map(|group| {
        format!("no group {group} in the policy, but networks.toml permits this group to request segments for senders")
    });
    missing.chain(groups).collect()
}

/// The reason why a segment is refused.
pub(crate) enum Refusal {
    /// The request cannot be fulfilled, whatever the policy says. The text is a message for the caller.
    Cant(String),
    /// The policy denies the request. Contains the explanation and the type of the [`Problem`].
    Denied(Explanation, &'static str),
    /// The presented segment has valid proofs, but is not in the book.
    Unknown,
    /// There is no room to record another segment.
    TooMany,
    /// The session has ended.
    NotLoggedIn,
    /// This member of a cluster has no contact with a majority of etcd.
    NoMajority,
    /// An internal error of the authority.
    Internal(anyhow::Error),
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Cant(why) => Self::NoSegment(why),
            Refusal::Denied(explanation, kind) => Self::Denied(explanation, kind),
            Refusal::Unknown => Self::UnknownSegment,
            Refusal::TooMany => Self::Busy("segments"),
            Refusal::NotLoggedIn => Self::NotLoggedIn,
            Refusal::NoMajority => Self::NoMajority,
            Refusal::Internal(error) => Self::Internal(error),
        }
    }
}

impl From<GiveError> for Refusal {
    fn from(error: GiveError) -> Self {
        Self::Cant(error.to_string())
    }
}

/// Text at the end of an audit entry about a segment, if the return segment was issued together with it.
const WITH_ANSWERS: &str = ", with its answers";

/// The session that requests a segment, and the time of the request.
#[derive(Clone, Copy)]
pub(crate) struct Requester<'a> {
    pub token: TokenHash,
    pub session: &'a Arc<Session>,
    pub now: u64,
}

/// Issues path segments, and withdraws consent to segments that are no longer allowed.
///
/// A task that needs several locks first takes the lock of the policy, then that of the book of segments, then that of
/// the sessions.
pub struct SegmentIssuer {
    pub(crate) settings: Arc<Settings>,
    pub(crate) keyring: Arc<Keyring>,
    pub(crate) policy: Arc<PolicyInForce>,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) audit: Arc<AuditLog>,
    pub(crate) push: Arc<Push>,
    contact: Arc<Contact>,
    networks: RwLock<Arc<Networks>>,
    keys: Keys,
    answerers: Answerers,
    book: Mutex<Book>,
}

impl SegmentIssuer {
    /// Creates an issuer that has no networks yet.
    pub fn new(
        settings: Arc<Settings>,
        keyring: Arc<Keyring>,
        policy: Arc<PolicyInForce>,
        sessions: Arc<Sessions>,
        audit: Arc<AuditLog>,
        push: Arc<Push>,
        contact: Arc<Contact>,
    ) -> Self {
        let (networks, keys, answerers, book) = Default::default();
        Self { settings, keyring, policy, sessions, audit, push, contact, networks, keys, answerers, book }
    }

    /// Returns the networks of `networks.toml` as it was last read.
    pub fn networks(&self) -> Arc<Networks> {
        self.networks.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the networks and empties the cache of keys. Logs a warning about each network of the policy that
    /// `networks.toml` does not define, and about each group in `networks.toml` that the policy does not define.
    pub fn replace_networks(&self, networks: Networks, policy: &Compiled) {
        unknown_names(&networks, policy.policy()).iter().for_each(|slip| tracing::warn!("{slip}"));
        *self.networks.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(networks);
        self.keys.forget();
    }

    /// Empties the cache of proof keys. Must be called after the master keys changed.
    pub fn forget_keys(&self) {
        self.keys.forget();
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Issues the requested segment, and records it or its denial in the audit trail. If `with_answers` is true, also
    /// issues the return segment if possible. `path` is the number of the path that the segment has to take.
    ///
    /// # Errors
    /// Fails if the session has ended, the policy or `networks.toml` does not allow the segment, there is no room to
    /// record the segment, this member lacks the contact with its cluster that it needs, or the database cannot be
    /// written.
    pub async fn issue(
        &self,
        token: TokenHash,
        session: &Arc<Session>,
        request: &SegmentRequest,
        with_answers: bool,
        path: u8,
        source: IpAddr,
    ) -> Result<PathSegment, Problem> {
        let now = now();
        let SegmentRequest { network, sender, sending, to, sender_port } = request;
        let question = Question {
            network,
            sender: *sender,
            sending: *sending,
            receiver: to.address,
            protocol: to.protocol,
            port: to.port,
            sender_port: *sender_port,
            answers: with_answers,
            path: Some(path),
        };
        let event = |name| AuditEvent::new(name).person(&session.person).device(&session.device).source(source);
        let given = {
            let policy = self.policy.read().await;
            // Read the session again, because its groups or tags may have been removed since the request began to
            // arrive.
            let session = &self.sessions.get(&token).ok_or(Problem::NotLoggedIn)?;
            let (networks, requester) = (self.networks(), Requester { token, session, now });
            self.give(&policy, &networks, requester, &question).and_then(|(given, permit)| {
                let answers = || self.answers_to(&policy, &networks, requester, &given, path, usize::MAX);
                let answers = with_answers.then(answers).flatten();
                self.sessions.get(&token).filter(|now| now.allows_as(session)).ok_or(Refusal::NotLoggedIn)?;
                let with = if answers.is_some() { WITH_ANSWERS } else { "" };
                let detail = format!("network {network}: {sender} to {}{with}", place(&to_of(&question)));
                let event = event("segment").receiver(&permit.receiver.name).rule(permit.rule.label()).detail(detail);
                let others = others(&networks, &given);
                Ok((Issued { given, answers: answers.unwrap_or_default(), others }, event))
            })
        };
        match given {
            Ok((issued, event)) => {
                self.audit.write_in_turn(event).await?;
                Ok(convert::segment(&issued, now))
            }
            Err(refusal) => {
                if let Refusal::Denied(explanation, _) = &refusal {
                    tracing::info!("denied: {}", explanation.text);
                    self.audit.write_refusal(event("denied").detail(&explanation.text)).await?;
                }
                Err(refusal.into())
            }
        }
    }

    /// Issues a return segment for a packet, and records it in the audit trail. The caller presents the segment with
    /// which the packet arrived.
    ///
    /// # Errors
    /// Fails if the session has ended, the presented segment was not issued or is void, `networks.toml` does not allow
    /// the answers, there is no room to record the new segment, this member lacks the contact with its cluster that it
    /// needs, or the database cannot be written.
    pub async fn issue_answer(
        &self,
        token: TokenHash,
        request: &AnswerRequest,
        source: IpAddr,
    ) -> Result<PathSegment, Problem> {
        let none = |_| Problem::NoSegment("`option` does not contain a segment for these addresses".into());
        let shown = convert::shown(request).map_err(none)?;
        let networks = self.networks();
        let now = now();
        let (given, event) = {
            // The lock is held until the segment is recorded, so that a change of policy finds every segment issued
            // before it.
            let policy = self.policy.read().await;
            let session = &self.sessions.get(&token).ok_or(Problem::NotLoggedIn)?;
            let given = self.give_answer(&policy, &networks, Requester { token, session, now }, &shown)?;
            self.sessions.get(&token).filter(|now| now.allows_as(session)).ok_or(Problem::NotLoggedIn)?;
            let detail = answers_in_words(&networks, &shown);
            let event = AuditEvent::new("segment").person(&session.person).device(&session.device).source(source);
            (given, event.detail(detail))
        };
        self.audit.write_in_turn(event).await?;
        Ok(convert::segment(&given.into(), now))
    }

    /// Decides a request, and records the issued segment in the book. The caller must then check that the session still
    /// [allows as much](Session::allows_as), before it passes the segment on. If the session ends or changes after this
    /// check, the book is re-evaluated, and it contains the segment by then.
    fn give<'p>(
        &self,
        policy: &'p Compiled,
        networks: &Networks,
        requester: Requester<'_>,
        question: &Question<'_>,
    ) -> Result<(Given, Permit<'p>), Refusal> {
        let Requester { token, session, now } = requester;
        let [sender, sending, receiver] =
            [question.sender, question.sending, question.receiver].map(|address| address.to_canonical());
        let to = Destination { address: receiver, ..to_of(question) };
        let network = question.network;
        let cant = |why: String| Refusal::Cant(why);
        let (Some(vni), Some(authority)) = (networks.vni(network), networks.authority()) else {
            return Err(cant(format!("no network `{}`", network.escape_debug())));
        };
        // The sender must not choose which endpoint may send on its behalf.
        let located = networks.located(vni, sender).filter(|located| located.place.endpoint == sending);
        let Some(located) = located else {
            return Err(cant(format!("{sender} of network `{network}` is not behind the endpoint {sending}")));
        };
        let subject = session.subject(sender);
        if !may_ask(policy, &subject, located) {
            return Err(others_may_ask(sender, network));
        }
        let permit = permitted(policy, network, &Request { subject, to, now })?;
        let Some(receiving) = networks.place(vni, receiver) else {
            return Err(cant(format!(
                "networks.toml does not say behind which endpoint {receiver} of network `{network}` is"
            )));
        };
        let path = path(networks, sending, receiving.endpoint, question.path.unwrap_or(0))?;
        let keys = self.path_keys(path, authority, Epoch::at(now, self.settings.epoch_length))?;
        let mut book = self.book();
        let given = Give {
            giver: self.giver(authority, path, &keys, now),
            terms: permit.terms,
            scope: permit.scope,
            // A segment never outlives its session, so ending a session later leaves nothing to withdraw.
            until: Some(permit.until.map_or(session.expires, |until| until.min(session.expires))),
            withdrawn: [(sender, receiver, true), (receiver, sender, permit.terms.reply)]
                .into_iter()
                .filter_map(|(from, to, counts)| book.withdrawn(vni, from, to).filter(|_| counts))
                .max(),
            vni,
            sender,
            sending,
            sender_port: question.sender_port,
            to,
            receiving,
        };
        let given = along(given.give()?, &given.giver, path)?;
        self.check_contact(|| book.renews(token, &given))?;
        let entry = || {
            let (person, network) = (session.person.clone(), network.to_owned());
            Entry { person, network, to, sending, place: receiving }
        };
        book.note(token, &given, entry, now).map_err(|_| Refusal::TooMany)?;
        Ok((given, permit))
    }

    /// Checks that this member of a cluster may issue a segment: without contact, it does not learn of revocations, and
    /// may only renew segments, for a limited time.
    fn check_contact(&self, renews: impl FnOnce() -> bool) -> Result<(), Refusal> {
        if self.contact.may_record() || self.contact.may_renew() && renews() {
            return Ok(());
        }
        Err(Refusal::NoMajority)
    }

    /// Issues a segment from the receiver of `shown` back to its sender. As for any segment, the account must be
    /// allowed to request segments for the address that sends, and the segment does not outlive the session.
    fn give_answer(
        &self,
        policy: &Compiled,
        networks: &Networks,
        Requester { token, session, now }: Requester<'_>,
        shown: &Given,
    ) -> Result<Given, Refusal> {
        let wire::Ends { sending, receiving, sender, receiver } = shown.ends;
        let place = networks.place(shown.vni, sender);
        let answerer = networks.located(shown.vni, receiver).filter(|located| located.place.endpoint == receiving);
        let (Some(authority), Some(back), Some(answerer), Some(network)) =
            (networks.authority(), place, answerer, networks.name(shown.vni))
        else {
            return Err(GiveError::Forged.into());
        };
        let current = Epoch::at(now, self.settings.epoch_length);
        let epoch = current.from_wire(shown.segment.epoch).ok_or(GiveError::Expired)?;
        let there = networks.paths(sending, receiving);
        let keys = there.iter().map(|path| self.path_keys(path, authority, epoch)).collect::<Result<Vec<_>, _>>()?;
        // The answers take the path with the same number as the path of the presented segment. If `networks.toml` no
        // longer has that path, the operator has changed it.
        let number = there.iter().zip(&keys).position(|(path, keys)| shown.takes(keys, &path.hops)).unwrap_or(0);
        let first = keys.get(number).ok_or_else(|| no_path(sending, receiving))?.first().ok_or(GiveError::Path)?;
        let path = path(networks, receiving, sending, u8::try_from(number).unwrap_or(0))?;
        let keys = self.path_keys(path, authority, current)?;
        let giver = self.giver(authority, path, &keys, now);
        let given = along(shown.answer(&giver, first, back, session.expires)?, &giver, path)?;
        let mut book = self.book();
        self.check_contact(|| book.renews(token, &given))?;
        let is_void = |segment: &wire::Segment, sender, receiver| {
            book.withdrawn(shown.vni, sender, receiver).is_some_and(|until| segment.expires <= until)
        };
        if is_void(&shown.segment, sender, receiver) || is_void(&given.segment, receiver, sender) {
            return Err(GiveError::Withdrawn.into());
        }
        // A valid proof is not sufficient: the first verifier on the path could have made it itself.
        if !book.has(shown) {
            return Err(Refusal::Unknown);
        }
        if !may_ask(policy, &session.subject(receiver), answerer) {
            return Err(others_may_ask(receiver, network));
        }
        let entry = || {
            let to = Destination { address: sender, protocol: shown.segment.protocol, port: shown.segment.port };
            Entry { person: session.person.clone(), network: network.to_owned(), to, sending: receiving, place: back }
        };
        book.note(token, &given, entry, now).map_err(|_| Refusal::TooMany)?;
        Ok(given)
    }

    /// Withdraws consent to the segments of ended sessions, and to segments that the policy or the networks no longer
    /// allow. The caller must announce the withdrawals afterwards.
    #[must_use]
    pub fn withdraw_forbidden(&self, policy: &Compiled) -> Withdrawn {
        let networks = self.networks();
        let now = now();
        let may_live = |token: &TokenHash, vni: Vni, given: &book::Key, entry: &Entry| {
            let Some(session) = self.sessions.get(token) else { return false };
            let subject = session.subject(given.sender);
            let is_right = |from: &Located| from.place.endpoint == entry.sending && may_ask(policy, &subject, from);
            let request = Request { subject, to: entry.to, now };
            networks.vni(&entry.network) == Some(vni)
                && networks.located(vni, given.sender).is_some_and(is_right)
                && networks.place(vni, entry.to.address) == Some(entry.place)
                // A return segment ends with the segment that it answers, which is evaluated separately.
                && (given.flags.has(SegmentFlags::RETURN)
                    || permitted(policy, &entry.network, &request).is_ok_and(|permit| given.is_within(&permit)))
        };
        self.book().reevaluate(now, may_live)
    }

    /// Announces withdrawals to all verifiers that are on a path, and to the sessions whose segments the withdrawals
    /// make void.
    pub fn announce(&self, Withdrawn { statements, by_session }: &Withdrawn) {
        if statements.is_empty() {
            return;
        }
        tracing::info!(statements = statements.len(), "consent to segments was withdrawn");
        for id in self.networks().verifiers() {
            self.push.announce_withdrawn(&Listener::Verifier(id.to_owned()), statements);
        }
        for (token, own) in by_session {
            self.push.announce_withdrawn(&Listener::Session(*token), own);
        }
    }

    /// Returns the withdrawals that have not expired. The list is empty for a verifier that is on no path.
    pub fn withdrawn(&self, verifier: &str) -> Vec<Withdrawal> {
        if !self.networks().verifiers().contains(verifier) {
            return Vec::new();
        }
        self.book().all_withdrawn(now())
    }

    /// Returns the entries of `networks.toml` about the tunnel endpoints at the end of the paths whose last verifier is
    /// `verifier`. Inside such a place, a prefix whose addresses are behind another endpoint appears without its
    /// endpoint. The answer contains no other addresses, because this verifier need not know them.
    pub fn endpoint_places(&self, verifier: &str) -> EndpointPlaces {
        let networks = self.networks();
        let endpoints = networks.endpoints_of(verifier);
        let places = networks.places_behind(&endpoints).into_iter().map(|(vni, prefix, located)| {
            let behind = located.map(|Located { place, asked_by }| Behind {
                endpoint: place.endpoint,
                interface: place.interface.0,
                asked_by: asked_by.as_ref().map(|who| who.iter().map(ToString::to_string).collect()),
            });
            let network = networks.name(vni).unwrap_or_default().to_owned();
            EndpointPlace { network, vni: vni.number(), prefix, behind }
        });
        EndpointPlaces { endpoints: endpoints.iter().copied().collect(), places: places.collect(), now: now() }
    }

    /// Reports whether the book contains any segments, including expired ones.
    pub fn any(&self) -> bool {
        !self.book().is_empty()
    }

    /// Returns the keys of a verifier for proofs of these epochs, or `None` if the verifier is on no path.
    ///
    /// # Errors
    /// Fails if the verifier's id is too long to derive a key.
    pub fn proof_keys(&self, verifier: &str, epochs: impl Iterator<Item = u64>) -> Result<Option<ProofKeys>, Problem> {
        let networks = self.networks();
        let Some(authority) = networks.authority().filter(|_| networks.verifiers().contains(verifier)) else {
            return Ok(None);
        };
        let key = |epoch| {
            let key = self.keyring.proof_key(verifier, authority, Epoch(epoch))?;
            Ok(api::EpochKey { epoch, key: hex::encode(key.bytes()) })
        };
        let keys = epochs.map(key).collect::<Result<_>>()?;
        Ok(Some(ProofKeys { authority, keys }))
    }

    fn path_keys(&self, path: &Path, authority: IpAddr, epoch: Epoch) -> Result<Arc<[ProofKey]>, Refusal> {
        let make = |verifier: &str| self.keyring.proof_key(verifier, authority, epoch);
        self.keys.of(&path.verifiers, authority, epoch, make).map_err(Refusal::Internal)
    }

    fn giver<'k>(&self, authority: IpAddr, path: &Path, keys: &'k [ProofKey], now: u64) -> Giver<'k> {
        Giver {
            authority,
            suite: path.suite,
            path: keys,
            now,
            epoch_length: self.settings.epoch_length,
            max_lifetime: self.settings.max_lifetime,
        }
    }
}

impl book::Key {
    /// Reports whether `permit` allows everything that the segment with this key allows.
    fn is_within(&self, permit: &Permit<'_>) -> bool {
        let own = self.service.map_or(permit.scope.service.is_none(), |service| {
            permit.scope.service.is_none_or(|allowed| allowed == service)
        });
        own && (!permit.terms.single || self.flags.has(SegmentFlags::SINGLE))
            && (permit.terms.reply || !self.flags.has(SegmentFlags::REPLY))
    }
}

/// Returns the destination of a request.
pub(crate) fn to_of(question: &Question<'_>) -> Destination {
    Destination { address: question.receiver, protocol: question.protocol, port: question.port }
}

/// Describes a return segment, for the audit trail: network, answering service and receiver of the answers.
fn answers_in_words(networks: &Networks, shown: &Given) -> String {
    let network = networks.name(shown.vni).unwrap_or_default();
    let (wire::Ends { sender, receiver, .. }, segment) = (shown.ends, &shown.segment);
    let service = Destination { address: receiver, protocol: segment.protocol, port: segment.port };
    let has_service = segment.flags.has(SegmentFlags::PORT);
    let from = if has_service { place(&service) } else { receiver.to_string() };
    format!("network {network}: answers of {from} to {sender}")
}

fn others_may_ask(sender: IpAddr, network: &str) -> Refusal {
    Refusal::Cant(format!(
        "this account may not request segments for {sender} of network `{network}` (asked_by in networks.toml)"
    ))
}

/// Reports whether `networks.toml` lets an account request segments for a sender at the place `located`.
fn may_ask(policy: &Compiled, subject: &Subject<'_>, located: &Located) -> bool {
    located.asked_by.as_ref().is_none_or(|these| policy.policy().is_among(subject, these))
}

/// Returns the policy's permit for a request in a network, or the reason for the denial.
fn permitted<'p>(policy: &'p Compiled, network: &str, request: &Request<'_>) -> Result<Permit<'p>, Refusal> {
    let decision = policy.network(network).map_or(Decision::NoReceiver, |policy| policy.decide(request));
    match decision {
        Decision::Allowed(permit) => Ok(permit),
        Decision::NoReceiver => {
            let text = format!("no receiver of network {network} is at {}: nobody may send there", place(&request.to));
            Err(Refusal::Denied(Explanation { allowed: false, receiver: None, rule: None, text }, "no_receiver"))
        }
        Decision::DefaultDeny { .. } => Err(Refusal::Denied(decision.explain(request), "no_rule")),
        Decision::Denied { .. } => Err(Refusal::Denied(decision.explain(request), "denied")),
    }
}

/// Binds the segment to the hops of the path if the path is fixed.
fn along(given: Given, giver: &Giver<'_>, path: &Path) -> Result<Given, GiveError> {
    if path.hops.is_empty() { Ok(given) } else { given.along(giver, &path.hops) }
}

/// Returns the path with this number from one endpoint to another, or the first path if none has this number.
fn path(networks: &Networks, sending: IpAddr, receiving: IpAddr, number: u8) -> Result<&Path, Refusal> {
    let paths = networks.paths(sending, receiving);
    paths.get(usize::from(number)).or(paths.first()).ok_or_else(|| no_path(sending, receiving))
}

fn no_path(sending: IpAddr, receiving: IpAddr) -> Refusal {
    Refusal::Cant(format!("networks.toml has no path from {sending} to {receiving}"))
}

/// Returns the number of other paths that this segment could take.
fn others(networks: &Networks, given: &Given) -> u8 {
    let paths = networks.paths(given.ends.sending, given.ends.receiving).len();
    u8::try_from(paths.saturating_sub(1)).unwrap_or(PATH_MAX)
}
