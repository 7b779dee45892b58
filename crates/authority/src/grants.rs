//! Issues grants, and finds grants that the policy no longer allows.

use crate::cluster::contact::{Contact, Standing};
use crate::http::problems::Problem;
use crate::http::turns::Turn;
use crate::keys::Keyring;
use crate::leases::{Leases, Place, Wanted};
use crate::login::{Sessions, credentials};
use crate::policy::{ConsentTable, PolicyInForce, PreferenceTable};
use crate::push::acknowledgements::{Acknowledgements, Expected};
use crate::push::events::{Listener, Push};
use crate::storage::{
    AuditEvent, AuditLog, Basis, Database, GrantEntry, Issuance, LeaseTerms, Recorded, Refusal, Session, Storage,
    TokenHash,
};
use crate::{Settings, convert, now};
use anyhow::Result;
use api::{Event, GrantOwner, GrantRequest, LivePair, RevokedGrant};
use engine::issuing::grant::{Issue, Issued};
use engine::model::{Grant, Sealing};
use engine::policy::{Compiled, Decision, Explanation, GrantSuite, Permit, Policy, Request, Scope};
use engine::verifier::CLOCK_SKEW_MAX;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use wire::{Destination, Epoch, Flags, Handle, Holder, VerifierKey};

/// A grant that was issued, and the time of its issue in Unix seconds.
pub struct IssuedGrant {
    /// The grant.
    pub grant: Grant,
    /// The time of the issue.
    pub now: u64,
}

impl IssuedGrant {
    /// Returns the grant in the form in which the client receives it over HTTPS.
    pub fn for_client(&self) -> api::Grant {
        convert::grant(&self.grant, self.now)
    }
}

/// The result of [`GrantIssuer::issue_at_once`].
pub enum AtOnce {
    /// The session gets this grant.
    Issued(Box<IssuedGrant>),
    /// [`GrantIssuer::issue`] has to answer the request.
    Later,
    /// The request is allowed, but the caller can't pass on a grant for it, so no grant was issued.
    Unfit,
}

/// A recorded grant, and the confirmations that its verifier is expected to send.
struct RecordedGrant<'a> {
    grant: IssuedGrant,
    handle: Handle,
    expected: Expected<'a>,
    confirmations: usize,
}

/// Maximum number of grant numbers that the authority draws for one grant. It draws again if the grant's handle would
/// begin with a zero byte.
const DRAWS: usize = 8;

/// Maximum number of times that the authority decides a request. It decides again if the basis of the decision has
/// changed meanwhile.
const TRIES: usize = 32;

/// A grant that the policy allows.
struct Decided {
    grant: IssuedGrant,
    owner: GrantOwner,
    verifier: String,
    to: Destination,
    course: Course,
}

/// The steps before the client gets a grant.
enum Course {
    /// The request gets another lease of a grant that is recorded already. The authority writes nothing.
    Renew { is_announced: bool, place: Place },
    /// The authority must record the grant. If `wanted` is present, later requests can renew the grant.
    Record { issuance: Box<Issuance>, pair: Option<LivePair>, wanted: Option<Wanted<'static>> },
}

/// A request that the policy allows, with the data from which a grant is issued.
struct Allowed<'a> {
    session: &'a Session,
    permit: Permit<'a>,
    scope: Scope,
    to: Destination,
    source: IpAddr,
    verifier_key: VerifierKey,
    now: u64,
}

/// Issues grants.
pub struct GrantIssuer {
    pub(crate) settings: Arc<Settings>,
    pub(crate) keyring: Arc<Keyring>,
    pub(crate) leases: Arc<Leases>,
    pub(crate) policy: Arc<PolicyInForce>,
    pub(crate) preferences: Arc<PreferenceTable>,
    pub(crate) consents: Arc<ConsentTable>,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) storage: Arc<Storage>,
    pub(crate) audit: Arc<AuditLog>,
    pub(crate) push: Arc<Push>,
    pub(crate) contact: Arc<Contact>,
    pub(crate) acknowledgements: Acknowledgements,
}

impl GrantIssuer {
    /// Records that a verifier has confirmed these grants.
    pub fn acknowledge(&self, verifier: &str, handles: &[Handle]) {
        self.acknowledgements.note(verifier, handles);
    }

    /// Issues the requested grant, or another lease of a grant that the session has. The authority announces a new
    /// handle to the verifier before the caller gets the grant. If the verifier's streams confirm announcements, the
    /// function waits up to 500 ms for the confirmations. The caller must hold a
    /// [turn](crate::http::turns::RequestQueue::turn) of the session's person, which limits the person's requests.
    ///
    /// # Errors
    /// Fails if the session has ended, the policy denies the request, the person withholds their identity from the
    /// destination, the session or account has too many grants, or the database cannot be written.
    pub async fn issue(
        &self,
        _turn: &Turn<'_>,
        token: TokenHash,
        request: &GrantRequest,
        source: IpAddr,
    ) -> Result<IssuedGrant, Problem> {
        let RecordedGrant { grant, handle, expected, confirmations } = self.record(token, request, source).await?;
        if !expected.wait(confirmations).await {
            tracing::warn!(%handle, "a verifier has not acknowledged this grant in time; a first packet may be lost");
        }
        Ok(grant)
    }

    /// Issues a grant, if this is possible without waiting. If the session already has the grant, the function issues
    /// another lease of it, unless the authority has something to announce. If the session does not have the grant, the
    /// function issues a new grant, if the journal accepts it. `fits` gets the permit and the policy, and says whether
    /// the caller can pass on a grant for this permit. The caller must have charged the person for the decision, and
    /// must call [`Storage::wake`] when it has sent the grant.
    pub fn issue_at_once(
        &self,
        policy: &Compiled,
        token: TokenHash,
        request: &GrantRequest,
        source: IpAddr,
        fits: impl FnOnce(&Permit<'_>, &Policy) -> bool,
    ) -> AtOnce {
        let Some(known) = self.sessions.get(&token) else { return AtOnce::Later };
        let basis = self.storage.basis(&known.person);
        let Some(session) = self.sessions.get(&token) else { return AtOnce::Later };
        let Ok(allowed) = self.allow(policy, &session, request, source) else { return AtOnce::Later };
        if !fits(&allowed.permit, policy.policy()) {
            return AtOnce::Unfit;
        }
        match self.renew(&token, &allowed) {
            Ok(Some((issued, _, Course::Renew { is_announced: true, .. }))) => {
                let grant = allowed.grant(&issued, policy.policy());
                if self.storage.basis(&known.person) != basis || !self.contact.may_renew() {
                    return AtOnce::Later;
                }
                AtOnce::Issued(Box::new(grant))
            }
            Ok(None) => match self.journal(policy, token, &allowed, basis) {
                Some(grant) => AtOnce::Issued(Box::new(grant)),
                None => AtOnce::Later,
            },
            _ => AtOnce::Later,
        }
    }

    /// Issues a new grant that the storage thread records and announces later. Returns `None` if the grant must be
    /// recorded first, or if its verifier has to confirm it.
    fn journal(&self, policy: &Compiled, token: TokenHash, allowed: &Allowed<'_>, basis: Basis) -> Option<IssuedGrant> {
        let listener = Listener::Verifier(allowed.permit.receiver.verifier.clone());
        if self.contact.standing() != Standing::Alone || self.push.confirms_grants(&listener) {
            return None;
        }
        let (issued, mut owner, course) = self.begin(token, allowed).ok()?;
        let Course::Record { issuance, pair: None, wanted: Some(wanted) } = course else { return None };
        let (terms, until) = issuance.renewable?;
        let (handle, class, now, place) = (Handle(owner.handle), owner.class, owner.issued, wanted.place);
        let expires = u32::try_from(owner.expires).unwrap_or(u32::MAX);
        let revoked = RevokedGrant { handle: owner.handle, expires, holder: allowed.session.holder.0 };
        owner.expires = self.leases.handle_ends(now, terms.lease, until);
        let (leases, push) = (self.leases.clone(), self.push.clone());
        // The storage thread announces the grant, so that the client does not wait for the announcement.
        let begin = move |recorded| match recorded {
            Recorded::SessionEnded => push.announce_revoked([(listener, revoked)]),
            Recorded::Renewable => {
                leases.insert(token, wanted, handle, (terms, until));
                push.send(&listener, &Event::Granted { owner });
                leases.note_announced(&token, &place, class, handle, now);
            }
            _ => drop(push.send(&listener, &Event::Granted { owner })),
        };
        let grant = allowed.grant(&issued, policy.policy());
        if !self.storage.journal_grant(*issuance, basis, begin) {
            self.leases.give_back(terms.number);
            return None;
        }
        let Session { person, device, .. } = allowed.session;
        tracing::debug!(person, device, %handle, to = %allowed.to.address, "granted");
        Some(grant)
    }

    async fn record(
        &self,
        token: TokenHash,
        request: &GrantRequest,
        source: IpAddr,
    ) -> Result<RecordedGrant<'_>, Problem> {
        self.storage.settle_session(&token).await?;
        let known = self.sessions.get(&token).ok_or(Problem::NotLoggedIn)?;
        for _ in 0..TRIES {
            let basis = self.storage.basis(&known.person);
            let session = self.sessions.get(&token).ok_or(Problem::NotLoggedIn)?;
            let decided = match self.decide(token, &session, request, source).await {
                Err(Problem::Denied(explanation, kind)) => {
                    self.note_denied(&session, &explanation, request, source).await?;
                    return Err(Problem::Denied(explanation, kind));
                }
                decided => decided?,
            };
            let Decided { grant, mut owner, verifier, to, course } = decided;
            let handle = Handle(owner.handle);
            let expected = self.acknowledgements.expect(&verifier, handle);
            let (listener, mut confirmations) = (Listener::Verifier(verifier), 0);
            match course {
                // Without contact, this member does not learn of revocations.
                Course::Renew { .. } if !self.contact.may_renew() => {
                    return Err(Problem::NoMajority);
                }
                Course::Record { issuance, .. } if !self.contact.may_try() => {
                    if let Some((unused, _)) = issuance.renewable {
                        self.leases.give_back(unused.number);
                    }
                    return Err(Problem::NoMajority);
                }
                // The policy, the keys, or the person's choices or consents changed after the decision.
                Course::Renew { .. } if self.storage.basis(&known.person) != basis => continue,
                Course::Renew { is_announced: true, .. } => {}
                Course::Renew { is_announced: false, place } => {
                    let (class, now) = (owner.class, owner.issued);
                    confirmations += self.push.send(&listener, &Event::Granted { owner });
                    self.leases.note_announced(&token, &place, class, handle, now);
                }
                Course::Record { issuance, pair, wanted } => {
                    if let Some(pair) = pair {
                        // The pair is announced while the grant is being recorded. If recording fails, the client never
                        // gets the key.
                        confirmations += self.push.send(&listener, &Event::Pair { pair });
                    }
                    let renewable = issuance.renewable;
                    let (class, now) = (owner.class, owner.issued);
                    let (leases, place) = (self.leases.clone(), wanted.as_ref().map(|wanted| wanted.place));
                    let begin = move |recorded| match (recorded, wanted.zip(renewable)) {
                        (Recorded::Renewable, Some((wanted, renewable))) => {
                            leases.insert(token, wanted, handle, renewable);
                        }
                        (Recorded::SessionEnded | Recorded::TooMany { .. }, Some((_, (refused, _)))) => {
                            leases.give_back(refused.number);
                        }
                        // The grant has the number, or another one has it. A grant that is outdated does not come here.
                        _ => {}
                    };
                    match self.storage.add_grant(*issuance, basis, begin).await? {
                        Recorded::Done => {}
                        Recorded::Renewable => {
                            if let Some((of, until)) = renewable {
                                owner.expires = self.leases.handle_ends(now, of.lease, until);
                            }
                        }
                        Recorded::SessionEnded => return Err(Problem::NotLoggedIn),
                        Recorded::Outdated => {
                            // The grant was turned away before it came to its number.
                            if let Some((unused, _)) = renewable {
                                self.leases.give_back(unused.number);
                            }
                            // Another member may have recorded the change that ended the basis.
                            self.storage.wait_until_current().await?;
                            continue;
                        }
                        Recorded::NumberTaken => {
                            if self.contact.standing() != Standing::Alone {
                                // The numbers after it may be another member's, too.
                                self.leases.scatter();
                            }
                            continue;
                        }
                        Recorded::TooMany { seconds } => {
                            return Err(Problem::TooManyGrants(Duration::from_secs(seconds)));
                        }
                    }
                    tracing::debug!(person = owner.person, device = owner.device, %handle, to = %to.address, "granted");
                    confirmations += self.push.send(&listener, &Event::Granted { owner });
                    if let Some(place) = place {
                        self.leases.note_announced(&token, &place, class, handle, now);
                    }
                }
            }
            return Ok(RecordedGrant { grant, handle, expected, confirmations });
        }
        Err(Problem::Busy("changes that grants depend on"))
    }

    /// Decides a request by the policy in force and the person's choices.
    async fn decide(
        &self,
        token: TokenHash,
        session: &Session,
        request: &GrantRequest,
        source: IpAddr,
    ) -> Result<Decided, Problem> {
        let policy = self.policy.read().await;
        let allowed = self.allow(&policy, session, request, source)?;
        let (issued, owner, course) = match self.renew(&token, &allowed)? {
            Some(renewed) => renewed,
            None => self.begin(token, &allowed)?,
        };
        let grant = allowed.grant(&issued, policy.policy());
        Ok(Decided { grant, owner, verifier: allowed.permit.receiver.verifier.clone(), to: allowed.to, course })
    }

    /// Decides whether `policy` and the person's choices allow a request.
    fn allow<'a>(
        &self,
        policy: &'a Compiled,
        session: &'a Session,
        request: &GrantRequest,
        source: IpAddr,
    ) -> Result<Allowed<'a>, Problem> {
        let (to, now) = (destination(request), now());
        let requested = Request { subject: session.subject(source), to, now };
        let permit = match policy.decide_with(&requested, &self.consents.current()) {
            Decision::Allowed(permit) => permit,
            denied => return Err(Problem::denied(&denied, &requested, policy.policy())),
        };
        let preferences = self.preferences.of(&session.person);
        if let Some(withholding) = preferences.withholding(&to, request.consented) {
            return Err(Problem::Withheld(*withholding));
        }
        let scope = preferences.narrowed(permit.scope, &to);
        let epoch = Epoch::at(now, self.settings.epoch_length);
        let verifier_key = self.keyring.issuing_key(&permit.receiver.verifier, epoch)?;
        Ok(Allowed { session, permit, scope, to, source, verifier_key, now })
    }

    /// Issues the next lease of the grant that the session has for such a request. Returns `None` if the session has no
    /// such grant, or if the lease would be longer than the record states.
    fn renew(&self, token: &TokenHash, allowed: &Allowed<'_>) -> Result<Option<(Issued, GrantOwner, Course)>, Problem> {
        let issue = allowed.issue(&self.settings);
        let Some(wanted) = allowed.wanted(&issue) else { return Ok(None) };
        let (class, now) = (allowed.permit.terms.class, allowed.now);
        let Some(lease) = self.leases.find(token, &wanted, class, now) else { return Ok(None) };
        if issue.lifetime() > lease.length {
            return Ok(None);
        }
        let issued = Issue { chance: lease.half.into(), ..issue }.issue().map_err(Problem::CantIssue)?;
        if has_other_half(&issued, lease.half) || u64::from(issued.expires) > lease.until {
            return Ok(None);
        }
        let owner =
            GrantOwner { expires: self.leases.handle_ends(now, lease.length, lease.until), ..allowed.owner(&issued) };
        Ok(Some((issued, owner, Course::Renew { is_announced: lease.is_announced, place: wanted.place })))
    }

    /// Issues a grant that must be recorded.
    fn begin(&self, token: TokenHash, allowed: &Allowed<'_>) -> Result<(Issued, GrantOwner, Course), Problem> {
        let issue = allowed.issue(&self.settings);
        let wanted = allowed.wanted(&issue);
        let (lease, now) = (issue.lifetime(), allowed.now);
        let (mut chance, mut number) = (u64::from_be_bytes(credentials::random()?), None);
        if wanted.is_some() {
            let holder = allowed.session.holder;
            let mut draws = (0..DRAWS).map(|_| self.leases.begin());
            let drawn = draws.find(|(_, half)| holder.handle(&allowed.verifier_key, *half).0 as u32 == *half);
            if let Some((drawn, half)) = drawn {
                (chance, number) = (half.into(), Some(drawn));
            }
        }
        let issued = Issue { chance, ..issue }.issue().map_err(|error| {
            // Nobody gets a handle with the number.
            if let Some(number) = number {
                self.leases.give_back(number);
            }
            Problem::CantIssue(error)
        })?;
        let owner = allowed.owner(&issued);
        let until = self.leases.until(now, allowed.session.expires, lease);
        let until = allowed.permit.until.map_or(until, |ends| until.min(ends)).max(owner.expires);
        let issuance = Box::new(Issuance {
            session: token,
            owner: owner.clone(),
            verifier: allowed.permit.receiver.verifier.clone(),
            source: allowed.source,
            to: allowed.to,
            scope: issued.scope,
            flags: issued.flags(),
            renewable: number.map(|number| (LeaseTerms { number, issued: now, lease }, until)),
        });
        let pair = convert::pair(&issued, now);
        let wanted = wanted.map(Wanted::into_owned);
        Ok((issued, owner, Course::Record { issuance, pair, wanted }))
    }

    /// Records a denied request in the audit trail and among the refusals that a draft of a policy can be tried on.
    async fn note_denied(
        &self,
        session: &Session,
        explanation: &Explanation,
        request: &GrantRequest,
        source: IpAddr,
    ) -> Result<()> {
        tracing::info!("denied: {}", explanation.text);
        let (person, device) = (&session.person, &session.device);
        let mut event = AuditEvent::new("denied").person(person).device(device).source(source);
        if let Some(receiver) = &explanation.receiver {
            event = event.receiver(receiver);
        }
        if let Some(rule) = &explanation.rule {
            event = event.rule(rule);
        }
        if self.audit.write_refusal(event.detail(&explanation.text)).await? {
            let (person, device, to) = (person.clone(), device.clone(), destination(request));
            let refusal = Refusal { time: now(), person, device, source, to, tags: Vec::new() };
            self.storage.call_for(&session.person, move |database| database.add_refusal(&refusal)).await?;
        }
        Ok(())
    }

    /// Returns those grants of `handles` whose flows `verifier` must cut: grants that are revoked or unknown, grants
    /// whose person or device no longer exists, and grants that the policy in force or the person's choices deny now.
    /// The function treats grants that have ended like live ones.
    ///
    /// # Errors
    /// Fails if the database cannot be read.
    pub async fn to_cut(&self, verifier: Arc<str>, handles: Vec<Handle>) -> Result<Vec<RevokedGrant>> {
        let account = verifier.clone();
        let read = move |database: &mut Database| {
            database.snapshot(|database| {
                let terms = handles.iter().map(|handle| database.lease_terms(*handle)).collect::<Result<Vec<_>>>()?;
                Ok((database.grants_of(&verifier, &handles)?, terms))
            })
        };
        let (grants, terms) = self.storage.read_for_verifier(&account, read).await?;
        let policy = self.policy.read().await;
        let (consents, now) = (self.consents.current(), now());
        let may_live = |entry: &Option<GrantEntry>| {
            entry.as_ref().is_some_and(|entry| {
                permits(&policy.decide_with(&request_of(entry, now), &consents), entry)
                    && !self.preferences.of(&entry.person).ends_flows(&entry.scope(), &entry.to())
            })
        };
        // A verifier refuses a handle until its last lease has ended, which is long before the grant ends.
        let ends = |(grant, terms): (RevokedGrant, Option<LeaseTerms>)| {
            let until = u64::from(grant.expires);
            let ends = terms.map_or(until, |terms| self.leases.ends_of(Handle(grant.handle), &terms, until));
            RevokedGrant { expires: u32::try_from(ends).unwrap_or(u32::MAX), ..grant }
        };
        let to_cut = grants.into_iter().zip(terms).filter(|((_, entry), _)| !may_live(entry));
        Ok(to_cut.map(|((grant, _), terms)| ends((grant, terms))).collect())
    }

    /// Returns the live grants that `policy` denies at `now`, each with the name of its person.
    ///
    /// # Errors
    /// Fails if the database cannot be read.
    pub async fn forbidden(&self, policy: &Compiled, now: u64) -> Result<Vec<(Handle, String)>> {
        // A verifier whose clock is behind may consider grants live a little longer.
        let since = now.saturating_sub(CLOCK_SKEW_MAX.into());
        let live = self.storage.call(move |database| database.grants(since, false)).await?;
        Ok(self.forbidden_among(&live, policy, now))
    }

    /// Returns the live grants of a person that the policy in force denies at `now`, each with the name of the person.
    ///
    /// # Errors
    /// Fails if the database cannot be read.
    pub async fn forbidden_of(&self, person: &str, now: u64) -> Result<Vec<(Handle, String)>> {
        let (whose, since) = (person.to_owned(), now.saturating_sub(CLOCK_SKEW_MAX.into()));
        // The thread that writes: a grant that it records now counts.
        let live = self.storage.revoke_for(person, move |database| database.live_grants_of(&whose, since)).await?;
        Ok(self.forbidden_among(&live, &*self.policy.read().await, now))
    }

    fn forbidden_among(&self, live: &[GrantEntry], policy: &Compiled, now: u64) -> Vec<(Handle, String)> {
        let requests: Vec<_> = live.iter().map(|grant| request_of(grant, now)).collect();
        let decided = policy.decide_all_with(&requests, &self.consents.current());
        let forbidden = live.iter().zip(decided).filter(|(grant, decision)| !permits(decision, grant));
        forbidden.map(|(grant, _)| (grant.handle, grant.person.clone())).collect()
    }
}

impl Allowed<'_> {
    /// Returns the data from which the grant is issued, except for the random bits of its handle.
    fn issue(&self, settings: &Settings) -> Issue<'_> {
        Issue {
            terms: self.permit.terms,
            scope: self.scope,
            until: self.permit.until,
            to: self.to,
            source: self.source,
            holder: self.session.holder,
            chance: 0,
            now: self.now,
            epoch_length: settings.epoch_length,
            max_lifetime: settings.max_lifetime,
            verifier_key: &self.verifier_key,
        }
    }

    /// Returns the recorded grant that such a request can renew. Returns `None` if each request needs a grant of its
    /// own: for a single flow, or for the nonces of a pair. Also returns `None` for a session whose handles contain no
    /// holder.
    fn wanted(&self, issue: &Issue<'_>) -> Option<Wanted<'_>> {
        let Permit { receiver, terms, .. } = &self.permit;
        if terms.single || terms.suite == GrantSuite::Sha224 || self.session.holder == Holder::default() {
            return None;
        }
        Some(Wanted {
            verifier: receiver.verifier.as_str().into(),
            receiver: receiver.name.as_str().into(),
            rule: self.permit.label(),
            sealing: if terms.sealing.is_sealed() { terms.sealing } else { Sealing::NONE },
            place: Place::new(self.source, &self.scope, issue.flags()),
        })
    }

    fn owner(&self, issued: &Issued) -> GrantOwner {
        convert::owner(issued, &self.permit, &self.session.person, &self.session.device, self.now)
    }

    /// Returns an issued grant in the form in which its holder gets it.
    fn grant(&self, issued: &Issued, policy: &Policy) -> IssuedGrant {
        let Permit { receiver, terms, .. } = &self.permit;
        let grant = Grant {
            secret: issued.secret().clone(),
            prefix: issued.scope.prefix,
            receiver: receiver.name.clone(),
            rule: self.permit.label().to_string(),
            carrier: issued.carrier,
            sealing: terms.sealing,
            tunnels: policy.tunnels_of(&receiver.verifier),
            expires: issued.expires,
        };
        IssuedGrant { grant, now: self.now }
    }
}

/// Reports whether a handle's lower half is not the one that was intended, because the handle would have begun with a
/// zero byte (wire.md §3.9).
fn has_other_half(issued: &Issued, half: u32) -> bool {
    issued.handle().0 as u32 != half
}

/// Returns the destination that a request names.
fn destination(request: &GrantRequest) -> Destination {
    Destination { address: request.address.to_canonical(), protocol: request.protocol, port: request.port }
}

/// Returns the request for which a grant was issued, as if it were made now.
fn request_of(grant: &GrantEntry, now: u64) -> Request<'_> {
    Request { subject: grant.subject(), to: grant.to(), now }
}

/// Reports whether `decision` allows at least as much as `grant`, on no stricter terms. A shorter lifetime does not
/// count as stricter, because every grant ends within the configured `max_lifetime` anyway.
fn permits(decision: &Decision<'_>, grant: &GrantEntry) -> bool {
    let Decision::Allowed(permit) = decision else { return false };
    let (terms, flags) = (permit.terms, grant.flags);
    permit.receiver.verifier == grant.verifier
        && (!grant.is_pair() || terms.suite == GrantSuite::Sha224)
        && permit.scope.covers(&grant.scope())
        && (!terms.single || flags.has(Flags::SINGLE))
        && (terms.reply || !flags.has(Flags::REPLY))
        && (!terms.bind_source || flags.has(Flags::SOURCE))
        && grant.sealing().meets(&terms.sealing)
}
