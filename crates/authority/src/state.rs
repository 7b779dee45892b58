//! The running authority: the policy in force, the live sessions, and the work that follows when either changes.
//!
//! The database is authoritative; sessions and verifiers are also held in memory, so that a call costs no look-up. Code
//! that changes them writes the database first and then calls [`Authority::sync`], which is in `sessions.rs`. Only the
//! storage's thread changes them in memory, in the order of its writes (`storage/thread.rs` says why).

use crate::convert;
use crate::http::connection_limit::Seats;
use crate::http::descriptors;
use crate::http::key_transfer::KeyTransfer;
use crate::http::problems::Problem;
use crate::http::throttle::{Key, Throttle};
use crate::http::turns::{Turn, Turns};
use crate::keys::MasterKeys;
use crate::login::credentials;
use crate::login::{Logins, Passkeys, PasswordSlots, Provider};
use crate::metrics::counters::{Metrics, Snapshot};
use crate::policy::candidate::Candidate;
use crate::push::acknowledgements::{Confirmations, Expected};
use crate::push::events::{Listener, Push};
use crate::push::reports::Reports;
use crate::segments::datagrams::Datagrams;
use crate::segments::known::Segments;
use crate::single_flight::Together;
use crate::storage::audit_dedup::Repeats;
use crate::storage::{
    AuditEvent, Database, GrantEntry, Issuance, PolicyChange, Recorded, Refusal, Session, Storage, Subject, TokenHash,
    verifiers_line,
};
use crate::{Config, Directory, now};
use anyhow::{Context, Result};
use api::{Event, Grant, GrantRequest, LivePair, Receiver, RevokedGrant};
use engine::issuing::grant::Issue;
use engine::policy::preference::Preferences;
use engine::policy::{Compiled, Decision, Explanation, GrantSuite, Policy, Request};
use engine::verifier::CLOCK_SKEW_MAX;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};
use tokio::sync::{Mutex, Semaphore};
use wire::{Destination, Epoch, Flags, Handle, ProofKey, VerifierKey};

/// Maximum number of passwords verified concurrently. Each takes 19 MiB, which are kept for the next one, and about 20
/// ms of a core.
const PASSWORD_SLOTS: usize = 2;
/// Maximum number of audit trails exported concurrently.
const MOST_EXPORTS: usize = 2;

/// A grant that is not recorded yet.
struct Decided {
    grant: Grant,
    issuance: Issuance,
    pair: Option<LivePair>,
}

/// A recorded grant, and the confirmations expected from its verifier.
struct Told<'a> {
    grant: Grant,
    handle: Handle,
    expected: Expected<'a>,
    confirmations: usize,
}

/// The state that all handlers share.
pub struct Authority {
    pub(crate) config: Config,
    pub(crate) directory: Directory,
    pub(crate) storage: Storage,
    pub(crate) push: Arc<Push>,
    pub(crate) confirmations: Confirmations,
    pub(crate) throttle: Throttle,
    pub(crate) metrics: Metrics,
    pub(crate) seats: Arc<Seats>,
    /// Transfer of client keys in band, if configured.
    pub(crate) key_transfer: KeyTransfer,
    /// Reports of verifiers.
    pub(crate) reports: Reports,
    /// Path segments issued in virtual networks.
    pub(crate) segments: Segments,
    /// Requests for path segments by UDP.
    pub(crate) datagrams: Datagrams,
    repeats: Repeats<Subject>,
    pub(crate) password_slots: Arc<PasswordSlots>,
    /// Password hash that is verified in place of an unknown person's, so that response times don't reveal which names
    /// exist.
    pub(crate) nobodys_password: String,
    /// The identity provider, if configured.
    pub(crate) provider: Option<Provider>,
    /// Passkeys, if the console has a name.
    pub(crate) passkeys: Option<Passkeys>,
    /// Pending logins.
    pub(crate) logins: Logins,
    /// Locked while the provider is asked about sessions: a refresh token may be valid for one use only.
    pub(crate) renewing: Mutex<()>,
    /// Audience of service accounts' assertions: the fingerprint of the authority's CA.
    pub(crate) audience: String,
    master: RwLock<MasterKeys>,
    /// Never locked while waiting for an account's queue (see `storage/thread.rs`). A grant that was decided before a
    /// change is not recorded after it ([`Storage::end_basis`]); a segment is recorded under the read lock.
    pub(crate) policy: tokio::sync::RwLock<Compiled>,
    /// When grants were last re-evaluated, and when the policy in force next changes its decisions with time.
    judged: std::sync::Mutex<(u64, Option<u64>)>,
    /// Persons' choices about where their identity may go, for those who have made any.
    pub(crate) preferences: Arc<RwLock<HashMap<String, Arc<Preferences>>>>,
    pub(crate) sessions: Arc<RwLock<HashMap<TokenHash, Arc<Session>>>>,
    pub(crate) verifiers: Arc<RwLock<HashMap<TokenHash, Arc<str>>>>,
    /// Limits concurrent exports of audit trails.
    pub(crate) exports: Arc<Semaphore>,
    /// Serialises synchronisation of memory with the database.
    pub(crate) syncing: Together,
    /// Queues the requests of each account behind its own earlier ones.
    turns: Turns,
}

impl Authority {
    /// Loads the directory. Re-evaluates the grants of an earlier run by the current policy.
    pub async fn load(directory: Directory) -> Result<Self> {
        let config = directory.config()?;
        let candidate = Candidate::read(&directory, None)?;
        let (summary, Candidate { policy, text }) = (candidate.summary(), candidate);
        let change = PolicyChange { text, note: "found at start".into(), by: None, summary, after: None };
        let provider = config.provider.clone().map(|provider| Provider::new(provider, &directory)).transpose();
        let provider = provider.context("the identity provider ([oidc] in authority.toml)")?;
        let authority = Self {
            audience: directory.audience()?,
            provider,
            passkeys: config.console.url.as_deref().and_then(Passkeys::new),
            logins: Logins::default(),
            renewing: Mutex::new(()),
            master: RwLock::new(directory.read_master_keys()?),
            storage: Storage::start(Database::open(&directory.database())?)?,
            push: Arc::default(),
            confirmations: Confirmations::default(),
            throttle: Throttle::default(),
            metrics: Metrics::default(),
            seats: Arc::new(Seats::new(descriptors::connections(config.max_connections))),
            key_transfer: KeyTransfer::new(config.key_transfer.clone()),
            reports: Reports::default(),
            segments: Segments::default(),
            datagrams: Datagrams::default(),
            repeats: Repeats::default(),
            password_slots: PasswordSlots::new(PASSWORD_SLOTS),
            nobodys_password: credentials::hash_password(&hex::encode(credentials::random::<16>()?))?,
            judged: std::sync::Mutex::default(),
            policy: tokio::sync::RwLock::new(policy),
            preferences: Arc::default(),
            sessions: Arc::default(),
            verifiers: Arc::default(),
            exports: Arc::new(Semaphore::new(MOST_EXPORTS)),
            syncing: Together::default(),
            turns: Turns::default(),
            config,
            directory,
        };
        crate::policy::candidate::into_huge_pages();
        authority.segments.describe(authority.directory.read_networks()?, &*authority.policy.read().await);
        authority.prune().await?;
        authority.storage.call(move |database| database.note_policy(&change, now())).await?;
        let issuer = authority.config.provider.as_ref().map(|provider| provider.issuer.clone());
        let end_others = move |database: &mut Database| database.end_of_other_issuers(issuer.as_deref(), now());
        authority.storage.call(end_others).await?;
        authority.revoke_forbidden(&*authority.policy.read().await, "the policy changed").await?;
        authority.sync().await?;
        for (person, source) in authority.storage.call(|database| database.login_sources()).await? {
            authority.throttle.remember(person, source);
        }
        Ok(authority)
    }

    /// Returns the verifier of a token.
    pub fn verifier(&self, token: &TokenHash) -> Option<Arc<str>> {
        self.verifiers.read().unwrap_or_else(PoisonError::into_inner).get(token).cloned()
    }

    /// Derives the key of a verifier for an epoch.
    pub fn verifier_key(&self, verifier: &str, epoch: Epoch) -> Result<VerifierKey> {
        let master = self.master.read().unwrap_or_else(PoisonError::into_inner);
        master.verifier_key(verifier, epoch, self.config.epoch_length)
    }

    /// Derives the key of a verifier for the proofs that are issued in an epoch on behalf of this authority address.
    pub fn proof_key(&self, verifier: &str, authority: IpAddr, epoch: Epoch) -> Result<ProofKey> {
        let master = self.master.read().unwrap_or_else(PoisonError::into_inner);
        master.proof_key(verifier, authority, epoch, self.config.epoch_length)
    }

    /// Evaluates `ask` on the policy in force.
    pub async fn with_policy<T>(&self, ask: impl FnOnce(&Policy) -> T) -> T {
        self.with_compiled(|policy| ask(policy.policy())).await
    }

    /// Evaluates `ask` on the compiled policy in force.
    pub async fn with_compiled<T>(&self, ask: impl FnOnce(&Compiled) -> T) -> T {
        ask(&*self.policy.read().await)
    }

    /// Returns the receivers that a verifier protects.
    pub async fn receivers(&self, verifier: &str) -> Vec<Receiver> {
        let of = |policy: &Policy| {
            let own = policy.receivers().iter().filter(|receiver| receiver.verifier == verifier);
            convert::receivers(own.flat_map(|receiver| receiver.entries()))
        };
        self.with_policy(of).await
    }

    /// Waits until an account may make another request: until few of its requests are in progress, and it has made no
    /// more than 200 in a second. The turn lasts until it is dropped. Refusing would not help, because a refused client
    /// asks again at once.
    pub(crate) async fn turn_to_ask(&self, person: &str) -> Turn<'_> {
        let turn = self.turns.wait(person).await;
        while let Err(wait) = self.throttle.charge(&[Key::Requests(person.into())], Instant::now()) {
            tokio::time::sleep(wait).await;
        }
        turn
    }

    /// Like [`Self::turn_to_ask`], for the requests of a verifier that read the database.
    pub(crate) async fn verifiers_turn(&self, verifier: &str) -> Turn<'_> {
        self.turn_to_ask(&verifiers_line(verifier)).await
    }

    /// Waits until all requests of an account that have their [turn](Self::turn_to_ask) now are done.
    pub(crate) async fn requests_done(&self, person: &str) {
        self.turns.wait_for_all(person).await;
    }

    /// Issues a grant or returns why not. The verifier is notified before the holder gets the grant. If the verifier
    /// would otherwise drop the first packet, this waits for its confirmation. The caller has its turn, because a
    /// change of the person's choices waits for those who have.
    pub async fn grant(
        &self,
        _turn: &Turn<'_>,
        token: TokenHash,
        request: &GrantRequest,
        source: IpAddr,
    ) -> Result<Grant, Problem> {
        let Told { grant, handle, expected, confirmations } = self.record(token, request, source).await?;
        if !expected.wait(confirmations).await {
            tracing::warn!(%handle, "a verifier has not confirmed this grant in time; a first packet may be lost");
        }
        Ok(grant)
    }

    async fn record(&self, token: TokenHash, request: &GrantRequest, source: IpAddr) -> Result<Told<'_>, Problem> {
        loop {
            let basis = self.storage.basis();
            let session = self.session(&token).ok_or(Problem::NotLoggedIn)?;
            let Decided { grant, issuance, pair } = match self.decide(token, &session, request, source).await {
                Err(Problem::Denied(explanation, kind)) => {
                    self.note_denied(&session, &explanation, request, source).await?;
                    return Err(Problem::Denied(explanation, kind));
                }
                decided => decided?,
            };
            let (owner, verifier) = (issuance.owner.clone(), issuance.verifier.clone());
            let (handle, to) = (Handle(owner.handle), issuance.to);
            let expected = self.confirmations.expect(&verifier, handle.0);
            let (listener, mut confirmations) = (Listener::Verifier(verifier), 0);
            if let Some(pair) = pair {
                // Sent while the grant is being recorded. If recording fails, the holder never gets the key.
                confirmations += self.push.tell(&listener, &Event::Pair { pair });
            }
            match self.storage.add_grant(issuance, basis).await? {
                Recorded::Done => {}
                Recorded::SessionEnded => return Err(Problem::NotLoggedIn),
                Recorded::Outdated => continue,
                Recorded::TooMany { seconds } => return Err(Problem::TooManyGrants(Duration::from_secs(seconds))),
            }
            tracing::debug!(person = owner.person, device = owner.device, %handle, to = %to.address, "granted");
            confirmations += self.push.tell(&listener, &Event::Granted { owner });
            return Ok(Told { grant, handle, expected, confirmations });
        }
    }

    /// Decides a request by the policy in force and the person's choices.
    async fn decide(
        &self,
        token: TokenHash,
        session: &Session,
        request: &GrantRequest,
        source: IpAddr,
    ) -> Result<Decided, Problem> {
        let to = destination(request);
        let (person, device, now) = (&session.person, &session.device, now());
        let policy = self.policy.read().await;
        let asked = Request { subject: session.subject(source), to, now };
        let decision = policy.decide(&asked);
        let Decision::Allowed(permit) = &decision else { return Err(Problem::denied(&decision, &asked)) };
        let preferences = self.preferences_of(person);
        if let Some(withholding) = preferences.withholding(&to, request.consented) {
            return Err(Problem::Withheld(*withholding));
        }
        let verifier = &permit.receiver.verifier;
        let epoch = Epoch::at(now, self.config.epoch_length);
        let issued = Issue {
            terms: permit.terms,
            scope: preferences.narrowed(permit.scope, &to),
            until: permit.until,
            to,
            source,
            holder: session.holder,
            chance: u64::from_be_bytes(credentials::random()?),
            now,
            epoch_length: self.config.epoch_length,
            max_lifetime: self.config.max_lifetime,
            verifier_key: &self.verifier_key(verifier, epoch)?,
        };
        let issued = issued.issue().map_err(Problem::CantIssue)?;
        let issuance = Issuance {
            session: token,
            owner: convert::owner(&issued, permit, person, device, now),
            verifier: verifier.clone(),
            source,
            to,
            scope: issued.scope,
            flags: issued.flags(),
        };
        Ok(Decided { grant: convert::grant(&issued, permit, now), issuance, pair: convert::pair(&issued, now) })
    }

    /// Records that the policy denied a request.
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
        if self.audit_refusal(event.detail(&explanation.text)).await? {
            let (person, device, to) = (person.clone(), device.clone(), destination(request));
            let refusal = Refusal { time: now(), person, device, source, to, tags: Vec::new() };
            self.storage.call_for(&session.person, move |database| database.add_refusal(&refusal)).await?;
        }
        Ok(())
    }

    /// Returns which of these grants of a verifier, live or ended, may have no flows: revoked, unknown, of a person or
    /// device that no longer exists, or denied by the policy in force or by the person's choices.
    pub async fn to_cut(&self, verifier: Arc<str>, handles: Vec<u64>) -> Result<Vec<RevokedGrant>> {
        let asker = verifier.clone();
        let read = move |database: &mut Database| database.grants_of(&verifier, &handles);
        let grants = self.storage.read_for_verifier(&asker, read).await?;
        let policy = self.policy.read().await;
        let now = now();
        let may_live = |entry: &Option<GrantEntry>| {
            entry.as_ref().is_some_and(|entry| {
                permits(&policy.decide(&asked(entry, now)), entry)
                    && !self.preferences_of(&entry.person).ends_flows(&entry.scope(), &entry.to())
            })
        };
        Ok(grants.into_iter().filter(|(_, entry)| !may_live(entry)).map(|(grant, _)| grant).collect())
    }

    /// Consumes an enrolment code and returns the verifier's id.
    pub async fn enrol(&self, code: TokenHash, token: TokenHash, source: IpAddr) -> Result<Option<String>> {
        let id = self.storage.call(move |database| database.enrol(code, token, source, now())).await?;
        if id.is_some() {
            self.sync().await?;
        }
        Ok(id)
    }

    /// Writes an event to the audit trail.
    pub async fn audit(&self, event: AuditEvent) -> Result<()> {
        self.storage.call(move |database| database.audit(&event, now())).await
    }

    /// Writes a refusal to the audit trail. Beyond the first few of one person and source in one minute, refusals are
    /// only counted; [`Self::settle_refusals`] writes the count. Reports whether the refusal was written.
    pub async fn audit_refusal(&self, event: AuditEvent) -> Result<bool> {
        let written = self.is_to_be_written(&event);
        if written {
            self.audit_in_turn(event).await?;
        }
        Ok(written)
    }

    /// Writes an event to the audit trail, in the queue of the person that it is about.
    pub(crate) async fn audit_in_turn(&self, event: AuditEvent) -> Result<()> {
        let person = event.about().to_owned();
        self.storage.call_for(&person, move |database| database.audit(&event, now())).await
    }

    /// Counts a refusal and reports whether it must be written individually.
    pub(crate) fn is_to_be_written(&self, event: &AuditEvent) -> bool {
        self.repeats.note(event.subject(), now() / 60)
    }

    /// Writes the number of refusals before `minute` that were only counted.
    pub async fn settle_refusals(&self, minute: u64) -> Result<()> {
        let left_out = self.repeats.settle(minute);
        for (subject, minute, count) in left_out.by_subject {
            self.audit(subject.left_out(count, minute * 60)).await?;
        }
        match left_out.others {
            0 => Ok(()),
            others => {
                let detail = format!("{others} more of too many persons and sources were not written down one by one");
                self.audit(AuditEvent::new("denied").detail(detail)).await
            }
        }
    }

    /// Writes the heads of the audit trails to the log, which is stored separately from the trails.
    pub async fn log_audit_heads(&self) -> Result<()> {
        for head in self.storage.call(|database| database.audit_heads()).await? {
            tracing::info!(%head, "audit");
        }
        Ok(())
    }

    /// Re-evaluates the grants if time windows of the policy opened or closed; to be called every second.
    pub async fn follow_time(&self) -> Result<()> {
        let (judged, next) = *self.judged.lock().unwrap_or_else(PoisonError::into_inner);
        // After the clock was set back, the time may be before a change that was already applied.
        let now = now();
        if next.is_some_and(|next| next <= now || now < judged) {
            self.judge_anew("a time window opened or closed").await?;
        }
        Ok(())
    }

    /// Re-evaluates the grants after an input of the policy changed: the time, the tags of a device, the groups of a
    /// person. Revokes the grants that are no longer allowed, and makes all listeners fetch the policy's answers again.
    /// Returns how many grants were revoked.
    pub async fn judge_anew(&self, why: &'static str) -> Result<usize> {
        self.sync().await?;
        // With the write lock, no segment that was decided under the earlier state can be recorded afterwards.
        let policy = self.policy.write().await;
        self.storage.end_basis();
        let revoked = self.revoke_forbidden(&policy, why).await?;
        drop(policy);
        tracing::info!(revoked, "{why}: grants judged anew");
        self.push.tell_all(&Event::Policy);
        self.sync().await?;
        Ok(revoked)
    }

    /// Reads the master keys again and makes verifiers fetch theirs. With `anew`, the keys in use changed too: sessions
    /// are then notified that their grants ended, so that agents request new ones. Admitted flows continue.
    pub async fn reload_keys(&self, anew: bool) -> Result<String> {
        let keys = self.directory.read_master_keys()?;
        // With the write lock, no segment that was made with the previous key can be recorded afterwards.
        let policy = self.policy.write().await;
        *self.master.write().unwrap_or_else(PoisonError::into_inner) = keys;
        self.storage.end_basis();
        self.segments.forget_keys();
        let time = now();
        let live =
            if anew { self.storage.call(move |database| database.live_of_sessions(time)).await? } else { Vec::new() };
        drop(policy);
        self.push.tell_all(&Event::Policy);
        self.push.tell_revoked(live.into_iter().map(|(session, grant)| (Listener::Session(session), grant)));
        tracing::info!(anew, "the master key was rotated");
        Ok("the server has told the verifiers".into())
    }

    /// Returns the values of the metrics, except those from the database.
    pub(crate) fn snapshot(&self) -> Snapshot {
        let (sessions, verifiers) = (&self.sessions, &self.verifiers);
        Snapshot {
            sessions: sessions.read().unwrap_or_else(PoisonError::into_inner).len(),
            verifiers: verifiers.read().unwrap_or_else(PoisonError::into_inner).len(),
            listeners: self.push.count(),
            connections: self.seats.count(),
            turned_away: self.seats.turned_away(),
            datagrams: self.datagrams.counts(),
            heads: Vec::new(),
        }
    }

    /// Deletes expired records.
    pub async fn prune(&self) -> Result<()> {
        let (grants_kept, audit_lifetime) = (self.config.grants_kept, self.config.audit_lifetime);
        // In pieces, so that other work gets its turn in between.
        while self.storage.call(move |database| database.prune_some(now(), grants_kept, audit_lifetime)).await? {}
        self.sync().await
    }

    /// Revokes the live grants that the policy denies, and records until when these decisions hold.
    async fn revoke_forbidden(&self, policy: &Compiled, why: &'static str) -> Result<usize> {
        let now = now();
        let forbidden = self.forbidden(policy, now).await?;
        let count = forbidden.len();
        if count > 0 {
            self.storage.call(move |database| database.revoke_forbidden(&forbidden, why, now)).await?;
        }
        self.watch(policy.policy(), now);
        Ok(count)
    }

    /// Returns the live grants that the policy denies, with their persons.
    pub(crate) async fn forbidden(&self, policy: &Compiled, now: u64) -> Result<Vec<(u64, String)>> {
        // A verifier whose clock is behind may consider grants live a little longer.
        let since = now.saturating_sub(CLOCK_SKEW_MAX.into());
        let live = self.storage.call(move |database| database.grants(since, false)).await?;
        let to =
            |grant: &GrantEntry| Destination { address: grant.address, protocol: grant.protocol, port: grant.port };
        let requests: Vec<_> =
            live.iter().map(|grant| Request { subject: grant.subject(), to: to(grant), now }).collect();
        let decided = policy.decide_all(&requests);
        let forbidden = live.iter().zip(decided).filter(|(grant, decision)| !permits(decision, grant));
        forbidden.map(|(grant, _)| Ok((u64::from_str_radix(&grant.handle, 16)?, grant.person.clone()))).collect()
    }

    /// Records when the policy, by which grants were evaluated at `now`, next changes its decisions with time.
    pub(crate) fn watch(&self, policy: &Policy, now: u64) {
        *self.judged.lock().unwrap_or_else(PoisonError::into_inner) = (now, policy.next_change(now));
    }
}

/// Returns the destination that a request names.
fn destination(request: &GrantRequest) -> Destination {
    Destination { address: request.address.to_canonical(), protocol: request.protocol, port: request.port }
}

/// Reconstructs the request for which a grant was issued.
fn asked(grant: &GrantEntry, now: u64) -> Request<'_> {
    let to = Destination { address: grant.address, protocol: grant.protocol, port: grant.port };
    Request { subject: grant.subject(), to, now }
}

/// Reports whether `decision` would issue at least this grant on no stricter terms. A shorter lifetime alone revokes no
/// grant, because all grants end within the hour.
fn permits(decision: &Decision<'_>, grant: &GrantEntry) -> bool {
    let Decision::Allowed(permit) = decision else { return false };
    let (terms, flags) = (permit.terms, Flags(grant.flags));
    permit.receiver.verifier == grant.verifier
        && (!grant.is_pair() || terms.suite == GrantSuite::Sha224)
        && permit.scope.covers(&grant.scope())
        && (!terms.single || flags.has(Flags::SINGLE))
        && (terms.reply || !flags.has(Flags::REPLY))
        && (!terms.bind_source || flags.has(Flags::SOURCE))
}

#[cfg(test)]
pub(crate) mod stage;
#[cfg(test)]
mod tests;
