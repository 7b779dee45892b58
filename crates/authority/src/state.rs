//! The running authority: the policy in force, who is logged in, and what must happen when either changes.
//!
//! The database is the truth; sessions and verifiers are held in memory beside it so that a call costs no look-up.
//! Whatever changes them writes the database first and then calls [`Authority::sync`], which is in `sessions.rs`.

use crate::confirmations::{Confirmations, Expected};
use crate::credentials;
use crate::key_transfer::KeyTransfer;
use crate::keys::MasterKeys;
use crate::login::{Logins, Passkeys, PasswordSlots, Provider};
use crate::metrics::counters::{Metrics, Snapshot};
use crate::policies::candidate::Candidate;
use crate::problem::Problem;
use crate::push::{Listener, Push};
use crate::repeats::Repeats;
use crate::reports::Reports;
use crate::seats::Seats;
use crate::segments::datagrams::Datagrams;
use crate::segments::known::Segments;
use crate::storage::{
    AuditEvent, Database, GrantEntry, Issuance, PolicyChange, Recorded, Refusal, Session, Storage, Subject, TokenHash,
};
use crate::throttle::{Key, Throttle};
use crate::together::Together;
use crate::turns::{Turn, Turns};
use crate::{Config, Directory, descriptors, now};
use anyhow::{Context, Result};
use engine::api::{Event, Grant, GrantRequest, Receiver, RevokedGrant};
use engine::issue::Issue;
use engine::policy::{Compiled, Decision, GrantSuite, Policy, Request};
use engine::preference::Preferences;
use engine::verifier::CLOCK_SKEW_MAX;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};
use tokio::sync::{Mutex, Semaphore};
use wire::{Destination, Epoch, Flags, Handle, ProofKey, VerifierKey};

/// Passwords checked at a time: each takes 19 MiB, which are kept for the next, and some 20 ms of a core.
const PASSWORD_SLOTS: usize = 2;
/// Audit trails handed out at a time.
const MOST_EXPORTS: usize = 2;

/// A grant that was recorded, and what its verifier has yet to confirm.
struct Told<'a> {
    grant: Grant,
    handle: Handle,
    expected: Expected<'a>,
    confirmations: usize,
}

/// Everything the handlers share.
pub struct Authority {
    pub(crate) config: Config,
    pub(crate) directory: Directory,
    pub(crate) storage: Storage,
    pub(crate) push: Push,
    pub(crate) confirmations: Confirmations,
    pub(crate) throttle: Throttle,
    pub(crate) metrics: Metrics,
    pub(crate) seats: Arc<Seats>,
    /// How client keys go in band, if they do.
    pub(crate) key_transfer: KeyTransfer,
    /// What verifiers tell of themselves.
    pub(crate) reports: Reports,
    /// What is given in virtual networks.
    pub(crate) segments: Segments,
    /// What is asked for there by UDP.
    pub(crate) datagrams: Datagrams,
    repeats: Repeats<Subject>,
    pub(crate) password_slots: Arc<PasswordSlots>,
    /// Checked in place of an unknown person's, so that names can't be told by the time an answer takes.
    pub(crate) nobodys_password: String,
    /// The identity provider, where there is one.
    pub(crate) provider: Option<Provider>,
    /// Passkeys, where the console has a name.
    pub(crate) passkeys: Option<Passkeys>,
    /// Logins under way.
    pub(crate) logins: Logins,
    /// Held while the provider is asked about sessions: a refresh token may be good for one use only.
    pub(crate) renewing: Mutex<()>,
    /// What the authority calls itself in service accounts' assertions: its CA's fingerprint.
    pub(crate) audience: String,
    master: RwLock<MasterKeys>,
    /// Held for reading from a decision until its grant is recorded: none slips past a change of policy.
    pub(crate) policy: tokio::sync::RwLock<Compiled>,
    /// When grants were judged last, and when the policy in force says something else by itself.
    judged: std::sync::Mutex<(u64, Option<u64>)>,
    /// Where persons want their identity to go, of those who said so.
    pub(crate) preferences: RwLock<HashMap<String, Arc<Preferences>>>,
    pub(crate) sessions: RwLock<HashMap<TokenHash, Arc<Session>>>,
    pub(crate) verifiers: RwLock<HashMap<TokenHash, Arc<str>>>,
    /// Audit trails that may be handed out at a time.
    pub(crate) exports: Arc<Semaphore>,
    /// Database and memory are brought together, by one at a time.
    pub(crate) syncing: Together,
    /// What an account asks for waits for what it has asked for before.
    turns: Turns,
}

impl Authority {
    /// Reads the directory. Judges the grants of an earlier run by the policy as it is.
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
            push: Push::default(),
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
            preferences: RwLock::default(),
            sessions: RwLock::default(),
            verifiers: RwLock::default(),
            exports: Arc::new(Semaphore::new(MOST_EXPORTS)),
            syncing: Together::default(),
            turns: Turns::default(),
            config,
            directory,
        };
        crate::policies::candidate::into_huge_pages();
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

    /// The verifier of a token.
    pub fn verifier(&self, token: &TokenHash) -> Option<Arc<str>> {
        self.verifiers.read().unwrap_or_else(PoisonError::into_inner).get(token).cloned()
    }

    /// The key of a verifier for an epoch.
    pub fn verifier_key(&self, verifier: &str, epoch: Epoch) -> Result<VerifierKey> {
        let master = self.master.read().unwrap_or_else(PoisonError::into_inner);
        master.verifier_key(verifier, epoch, self.config.epoch_length)
    }

    /// The key of a verifier for the proofs that are given in an epoch in the name of this address.
    pub fn proof_key(&self, verifier: &str, authority: IpAddr, epoch: Epoch) -> Result<ProofKey> {
        let master = self.master.read().unwrap_or_else(PoisonError::into_inner);
        master.proof_key(verifier, authority, epoch, self.config.epoch_length)
    }

    /// Asks the policy in force.
    pub async fn with_policy<T>(&self, ask: impl FnOnce(&Policy) -> T) -> T {
        self.with_compiled(|policy| ask(policy.policy())).await
    }

    /// Asks the policy in force what it decides.
    pub async fn with_compiled<T>(&self, ask: impl FnOnce(&Compiled) -> T) -> T {
        ask(&*self.policy.read().await)
    }

    /// What a verifier protects.
    pub async fn receivers(&self, verifier: &str) -> Vec<Receiver> {
        let of = |policy: &Policy| {
            let own = policy.receivers().iter().filter(|receiver| receiver.verifier == verifier);
            own.flat_map(|receiver| receiver.entries()).collect()
        };
        self.with_policy(of).await
    }

    /// Waits until an account may ask for something more: until few requests of its own are at work, and it has asked for no more
    /// than 200 in a second. The turn lasts until it is dropped. To refuse would be no help: who is refused asks again at once.
    pub(crate) async fn turn_to_ask(&self, person: &str) -> Turn<'_> {
        let turn = self.turns.wait(person).await;
        while let Err(wait) = self.throttle.charge(&[Key::Requests(person.into())], Instant::now()) {
            tokio::time::sleep(wait).await;
        }
        turn
    }

    /// Gives a grant or says why not. The verifier is told of it before the holder has it, and where it would drop a first
    /// packet without that, it has heard.
    pub async fn grant(
        &self,
        token: TokenHash,
        session: &Session,
        request: &GrantRequest,
        source: IpAddr,
    ) -> Result<Grant, Problem> {
        let Told { grant, handle, expected, confirmations } = self.record(token, session, request, source).await?;
        if !expected.wait(confirmations).await {
            tracing::warn!(%handle, "a verifier has not confirmed this grant in time; a first packet may be lost");
        }
        Ok(grant)
    }

    async fn record(
        &self,
        token: TokenHash,
        session: &Session,
        request: &GrantRequest,
        source: IpAddr,
    ) -> Result<Told<'_>, Problem> {
        let to =
            Destination { address: request.address.to_canonical(), protocol: request.protocol, port: request.port };
        let (person, device, now) = (&session.person, &session.device, now());
        let consented = request.consented;
        let policy = self.policy.read().await;
        let request = Request { subject: session.subject(source), to, now };
        let decision = policy.decide(&request);
        let Decision::Allowed(permit) = &decision else {
            let problem = Problem::denied(&decision, &request);
            if let Problem::Denied(explanation, _) = &problem {
                tracing::info!("denied: {}", explanation.text);
                let mut event = AuditEvent::new("denied").person(person).device(device).source(source);
                if let Some(receiver) = &explanation.receiver {
                    event = event.receiver(receiver);
                }
                if let Some(rule) = &explanation.rule {
                    event = event.rule(rule);
                }
                if self.audit_refusal(event.detail(&explanation.text)).await? {
                    let (person, device, tags) = (person.clone(), device.clone(), Vec::new());
                    let refusal = Refusal { time: now, person, device, source, to, tags };
                    self.storage.call_for(&session.person, move |database| database.add_refusal(&refusal)).await?;
                }
            }
            return Err(problem);
        };
        let preferences = self.preferences_of(person);
        if let Some(withholding) = preferences.withholding(&to, consented) {
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
        let owner = issued.owner(permit, person, device, now);
        let issuance = Issuance {
            session: token,
            owner: owner.clone(),
            verifier: verifier.clone(),
            source,
            to,
            scope: issued.scope,
            flags: issued.flags(),
        };
        let (listener, handle) = (Listener::Verifier(verifier.clone()), issued.handle());
        let expected = self.confirmations.expect(verifier, handle.0);
        let mut confirmations = 0;
        if let Some(pair) = issued.pair(now) {
            // While the grant is being recorded. If it can't be, nobody has its key.
            confirmations += self.push.tell(&listener, &Event::Pair { pair });
        }
        match self.storage.add_grant(issuance).await? {
            Recorded::Done => {}
            Recorded::SessionEnded => return Err(Problem::NotLoggedIn),
            Recorded::TooMany { seconds } => return Err(Problem::TooManyGrants(Duration::from_secs(seconds))),
        }
        tracing::debug!(person, device, %handle, to = %to.address, "granted");
        confirmations += self.push.tell(&listener, &Event::Granted { owner });
        Ok(Told { grant: issued.answer(permit, now), handle, expected, confirmations })
    }

    /// Which of these grants of a verifier, ended or not, may have no flows: revoked, unknown, of a person or a device
    /// that is gone, or not to be given by the policy in force.
    pub async fn to_cut(&self, verifier: Arc<str>, handles: Vec<u64>) -> Result<Vec<RevokedGrant>> {
        let asker = verifier.clone();
        let grants = self.storage.read_for(&asker, move |database| database.grants_of(&verifier, &handles)).await?;
        let policy = self.policy.read().await;
        let now = now();
        let may_live = |entry: &Option<GrantEntry>| {
            entry.as_ref().is_some_and(|entry| permits(&policy.decide(&asked(entry, now)), entry))
        };
        Ok(grants.into_iter().filter(|(_, entry)| !may_live(entry)).map(|(grant, _)| grant).collect())
    }

    /// Uses up an enrolment code.
    pub async fn enrol(&self, code: TokenHash, token: TokenHash, source: IpAddr) -> Result<Option<String>> {
        let id = self.storage.call(move |database| database.enrol(code, token, source, now())).await?;
        if id.is_some() {
            self.sync().await?;
        }
        Ok(id)
    }

    /// Writes an event down.
    pub async fn audit(&self, event: AuditEvent) -> Result<()> {
        self.storage.call(move |database| database.audit(&event, now())).await
    }

    /// Writes a refusal down. Those of one person and source in one minute are only counted beyond the first few;
    /// [`Self::settle_refusals`] writes the count down. Gives whether it was written down.
    pub async fn audit_refusal(&self, event: AuditEvent) -> Result<bool> {
        let written = self.is_to_be_written(&event);
        if written {
            let person = event.about().to_owned();
            self.storage.call_for(&person, move |database| database.audit(&event, now())).await?;
        }
        Ok(written)
    }

    /// Counts a refusal; gives whether it is to be written down by itself.
    pub(crate) fn is_to_be_written(&self, event: &AuditEvent) -> bool {
        self.repeats.note(event.subject(), now() / 60)
    }

    /// Writes down how many refusals before `minute` were not.
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

    /// Notes the ends of the audit trails in the log, which is kept elsewhere than they are.
    pub async fn log_audit_heads(&self) -> Result<()> {
        for head in self.storage.call(|database| database.audit_heads()).await? {
            tracing::info!(%head, "audit");
        }
        Ok(())
    }

    /// Judges the grants anew where the time made other rules hold; to be called every second.
    pub async fn follow_time(&self) -> Result<()> {
        let (judged, next) = *self.judged.lock().unwrap_or_else(PoisonError::into_inner);
        // A clock that was set back may stand before a change that was passed already.
        let now = now();
        if next.is_some_and(|next| next <= now || now < judged) {
            self.judge_anew("a time window opened or closed").await?;
        }
        Ok(())
    }

    /// Judges the grants anew by the policy in force, where something that it goes by changed: the time, what tags a device
    /// has, what groups somebody is in. What may no longer be is cut; everybody reads anew what they may reach.
    pub async fn judge_anew(&self, why: &'static str) -> Result<usize> {
        self.sync().await?;
        // For writing: no grant that was decided before is recorded after.
        let policy = self.policy.write().await;
        let revoked = self.revoke_forbidden(&policy, why).await?;
        drop(policy);
        tracing::info!(revoked, "{why}: grants judged anew");
        self.push.tell_all(&Event::Policy);
        self.sync().await?;
        Ok(revoked)
    }

    /// Reads the master keys anew and has verifiers fetch theirs. With `anew` those in use changed, too: then sessions are
    /// told that their grants are over, so that agents ask for others; flows that were admitted go on.
    pub async fn reload_keys(&self, anew: bool) -> Result<String> {
        let keys = self.directory.read_master_keys()?;
        // For writing: no grant that was made with the key before is recorded after.
        let policy = self.policy.write().await;
        *self.master.write().unwrap_or_else(PoisonError::into_inner) = keys;
        self.segments.forget_keys();
        let time = now();
        let live =
            if anew { self.storage.call(move |database| database.live_of_sessions(time)).await? } else { Vec::new() };
        drop(policy);
        self.push.tell_all(&Event::Policy);
        let mut told: HashMap<Listener, Vec<RevokedGrant>> = HashMap::new();
        for (session, grant) in live {
            told.entry(Listener::Session(session)).or_default().push(grant);
        }
        self.tell_revoked(told);
        tracing::info!(anew, "the master key was rotated");
        Ok("the server has told the verifiers".into())
    }

    /// What metrics tell, but for what the database knows.
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

    /// Drops what ended long ago.
    pub async fn prune(&self) -> Result<()> {
        let (grants_kept, audit_lifetime) = (self.config.grants_kept, self.config.audit_lifetime);
        // In pieces: other work has its turn between them.
        while self.storage.call(move |database| database.prune_some(now(), grants_kept, audit_lifetime)).await? {}
        self.sync().await
    }

    /// Revokes the grants that the policy would not give, and notes until when that answer holds.
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

    /// The live grants that the policy would not give, with their persons.
    pub(crate) async fn forbidden(&self, policy: &Compiled, now: u64) -> Result<Vec<(u64, String)>> {
        // A verifier whose clock is behind may take them for live a little longer.
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

    /// Notes when the policy, by which grants were judged `now`, will say something else by itself.
    pub(crate) fn watch(&self, policy: &Policy, now: u64) {
        *self.judged.lock().unwrap_or_else(PoisonError::into_inner) = (now, policy.next_change(now));
    }
}

/// What a grant was asked for with.
fn asked(grant: &GrantEntry, now: u64) -> Request<'_> {
    let to = Destination { address: grant.address, protocol: grant.protocol, port: grant.port };
    Request { subject: grant.subject(), to, now }
}

/// Whether the policy, which so decided, would give at least this grant on no stricter terms. A shorter lifetime alone ends no grant: all
/// of them end within the hour.
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
