//! Issues grants, and finds those that the policy no longer allows.

use crate::http::problems::Problem;
use crate::http::turns::Turn;
use crate::keys::Keyring;
use crate::login::{Sessions, credentials};
use crate::policy::{PolicyInForce, PreferenceTable};
use crate::push::acknowledgements::{Acknowledgements, Expected};
use crate::push::events::{Listener, Push};
use crate::storage::{
    AuditEvent, AuditLog, Database, GrantEntry, Issuance, Recorded, Refusal, Session, Storage, TokenHash,
};
use crate::{Settings, convert, now};
use anyhow::Result;
use api::{Event, Grant, GrantRequest, LivePair, RevokedGrant};
use engine::issuing::grant::Issue;
use engine::policy::{Compiled, Decision, Explanation, GrantSuite, Request};
use engine::verifier::CLOCK_SKEW_MAX;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use wire::{Destination, Epoch, Flags, Handle};

/// A recorded grant, and the confirmations expected from its verifier.
struct RecordedGrant<'a> {
    grant: Grant,
    handle: Handle,
    expected: Expected<'a>,
    confirmations: usize,
}

/// A grant that is not recorded yet.
struct Decided {
    grant: Grant,
    issuance: Issuance,
    pair: Option<LivePair>,
}

/// Issues grants.
pub struct GrantIssuer {
    pub(crate) settings: Arc<Settings>,
    pub(crate) keyring: Arc<Keyring>,
    pub(crate) policy: Arc<PolicyInForce>,
    pub(crate) preferences: Arc<PreferenceTable>,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) storage: Arc<Storage>,
    pub(crate) audit: Arc<AuditLog>,
    pub(crate) push: Arc<Push>,
    pub(crate) acknowledgements: Acknowledgements,
}

impl GrantIssuer {
    /// Records that a verifier has received these grants.
    pub fn acknowledge(&self, verifier: &str, handles: &[Handle]) {
        self.acknowledgements.note(verifier, handles);
    }

    /// Issues a grant or returns why not. The verifier is notified before the holder gets the grant. If the verifier
    /// would otherwise drop the first packet, this waits for its confirmation. The caller has its turn, because a
    /// change of the person's choices waits for those who have.
    pub async fn issue(
        &self,
        _turn: &Turn<'_>,
        token: TokenHash,
        request: &GrantRequest,
        source: IpAddr,
    ) -> Result<Grant, Problem> {
        let RecordedGrant { grant, handle, expected, confirmations } = self.record(token, request, source).await?;
        if !expected.wait(confirmations).await {
            tracing::warn!(%handle, "a verifier has not acknowledged this grant in time; a first packet may be lost");
        }
        Ok(grant)
    }

    async fn record(
        &self,
        token: TokenHash,
        request: &GrantRequest,
        source: IpAddr,
    ) -> Result<RecordedGrant<'_>, Problem> {
        loop {
            let basis = self.storage.basis();
            let session = self.sessions.get(&token).ok_or(Problem::NotLoggedIn)?;
            let Decided { grant, issuance, pair } = match self.decide(token, &session, request, source).await {
                Err(Problem::Denied(explanation, kind)) => {
                    self.note_denied(&session, &explanation, request, source).await?;
                    return Err(Problem::Denied(explanation, kind));
                }
                decided => decided?,
            };
            let (owner, verifier) = (issuance.owner.clone(), issuance.verifier.clone());
            let (handle, to) = (Handle(owner.handle), issuance.to);
            let expected = self.acknowledgements.expect(&verifier, handle);
            let (listener, mut confirmations) = (Listener::Verifier(verifier), 0);
            if let Some(pair) = pair {
                // Sent while the grant is being recorded. If recording fails, the holder never gets the key.
                confirmations += self.push.send(&listener, &Event::Pair { pair });
            }
            match self.storage.add_grant(issuance, basis).await? {
                Recorded::Done => {}
                Recorded::SessionEnded => return Err(Problem::NotLoggedIn),
                Recorded::Outdated => continue,
                Recorded::TooMany { seconds } => return Err(Problem::TooManyGrants(Duration::from_secs(seconds))),
            }
            tracing::debug!(person = owner.person, device = owner.device, %handle, to = %to.address, "granted");
            confirmations += self.push.send(&listener, &Event::Granted { owner });
            return Ok(RecordedGrant { grant, handle, expected, confirmations });
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
        let requested = Request { subject: session.subject(source), to, now };
        let decision = policy.decide(&requested);
        let Decision::Allowed(permit) = &decision else { return Err(Problem::denied(&decision, &requested)) };
        let preferences = self.preferences.of(person);
        if let Some(withholding) = preferences.withholding(&to, request.consented) {
            return Err(Problem::Withheld(*withholding));
        }
        let verifier = &permit.receiver.verifier;
        let epoch = Epoch::at(now, self.settings.epoch_length);
        let issued = Issue {
            terms: permit.terms,
            scope: preferences.narrowed(permit.scope, &to),
            until: permit.until,
            to,
            source,
            holder: session.holder,
            chance: u64::from_be_bytes(credentials::random()?),
            now,
            epoch_length: self.settings.epoch_length,
            max_lifetime: self.settings.max_lifetime,
            verifier_key: &self.keyring.verifier_key(verifier, epoch)?,
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
        let tunnels = policy.policy().tunnels_of(verifier);
        let grant = convert::grant(&issued, permit, tunnels, now);
        Ok(Decided { grant, issuance, pair: convert::pair(&issued, now) })
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
        if self.audit.write_refusal(event.detail(&explanation.text)).await? {
            let (person, device, to) = (person.clone(), device.clone(), destination(request));
            let refusal = Refusal { time: now(), person, device, source, to, tags: Vec::new() };
            self.storage.call_for(&session.person, move |database| database.add_refusal(&refusal)).await?;
        }
        Ok(())
    }

    /// Returns which of these grants of a verifier, live or ended, may have no flows: revoked, unknown, of a person or
    /// device that no longer exists, or denied by the policy in force or by the person's choices.
    pub async fn to_cut(&self, verifier: Arc<str>, handles: Vec<Handle>) -> Result<Vec<RevokedGrant>> {
        let account = verifier.clone();
        let read = move |database: &mut Database| database.grants_of(&verifier, &handles);
        let grants = self.storage.read_for_verifier(&account, read).await?;
        let policy = self.policy.read().await;
        let now = now();
        let may_live = |entry: &Option<GrantEntry>| {
            entry.as_ref().is_some_and(|entry| {
                permits(&policy.decide(&request_of(entry, now)), entry)
                    && !self.preferences.of(&entry.person).ends_flows(&entry.scope(), &entry.to())
            })
        };
        Ok(grants.into_iter().filter(|(_, entry)| !may_live(entry)).map(|(grant, _)| grant).collect())
    }

    /// Returns the live grants that the policy denies, with their persons.
    pub async fn forbidden(&self, policy: &Compiled, now: u64) -> Result<Vec<(Handle, String)>> {
        // A verifier whose clock is behind may consider grants live a little longer.
        let since = now.saturating_sub(CLOCK_SKEW_MAX.into());
        let live = self.storage.call(move |database| database.grants(since, false)).await?;
        let requests: Vec<_> = live.iter().map(|grant| request_of(grant, now)).collect();
        let decided = policy.decide_all(&requests);
        let forbidden = live.iter().zip(decided).filter(|(grant, decision)| !permits(decision, grant));
        Ok(forbidden.map(|(grant, _)| (grant.handle, grant.person.clone())).collect())
    }
}

/// Returns the destination that a request names.
fn destination(request: &GrantRequest) -> Destination {
    Destination { address: request.address.to_canonical(), protocol: request.protocol, port: request.port }
}

/// Reconstructs the request for which a grant was issued.
fn request_of(grant: &GrantEntry, now: u64) -> Request<'_> {
    Request { subject: grant.subject(), to: grant.to(), now }
}

/// Reports whether `decision` would issue at least this grant on no stricter terms. A shorter lifetime alone revokes no
/// grant, because all grants end within the hour.
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
