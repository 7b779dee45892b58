//! The running authority: its parts, and the order in which they start. A handler takes the parts that it needs with
//! [`Part`](crate::http::extractors::Part).
//!
//! A task that needs several locks takes them in this order: the lock of the [`Synchroniser`], which it holds during a
//! run; that of the policy; that of the book of segments; those of the tables of sessions, verifiers and preferences. A
//! task that holds any other lock takes no further lock.

use crate::grants::GrantIssuer;
use crate::http::connection_limit::ConnectionLimit;
use crate::http::descriptors;
use crate::http::downloads::Downloads;
use crate::http::key_transfer::KeyTransfer;
use crate::http::throttle::Throttle;
use crate::http::turns::RequestQueue;
use crate::keys::Keyring;
use crate::leases::Leases;
use crate::login::service::AssertionCheck;
use crate::login::{Logins, Passkeys, PasswordCheck, Provider, Renewal, SessionManager, Sessions};
use crate::metrics::Collector;
use crate::metrics::counters::Metrics;
use crate::policy::candidate::{Candidate, into_huge_pages};
use crate::policy::{Choices, Enforcer, PolicyInForce, PreferenceTable, Scores};
use crate::push::acknowledgements::Acknowledgements;
use crate::push::events::Push;
use crate::push::reports::Reports;
use crate::push::verifiers::Verifiers;
use crate::segments::{DatagramService, RequestLines, SegmentIssuer};
use crate::single_flight::SingleFlight;
use crate::storage::{AuditLog, Database, PolicyChange, Storage};
use crate::sync::Synchroniser;
use crate::{Directory, Settings, now};
use anyhow::{Context, Result};
use std::sync::Arc;

/// Declares [`Authority`] with its parts, and makes each part available by its type.
macro_rules! parts {
    ($($(#[$doc:meta])* $name:ident: $part:ty,)*) => {
        /// The running authority. Parts that need other parts hold references to them.
        pub struct Authority {
            $($(#[$doc])* pub(crate) $name: Arc<$part>,)*
        }

        $(impl AsRef<Arc<$part>> for Authority {
            fn as_ref(&self) -> &Arc<$part> {
                &self.$name
            }
        })*
    };
}

parts! {
    settings: Settings,
    directory: Directory,
    storage: Storage,
    audit: AuditLog,
    metrics: Metrics,
    collector: Collector,
    throttle: Throttle,
    connection_limit: ConnectionLimit,
    queue: RequestQueue,
    /// The transfer of client keys in band, if it is configured.
    key_transfer: KeyTransfer,
    downloads: Downloads,
    push: Push,
    verifiers: Verifiers,
    reports: Reports,
    keyring: Keyring,
    leases: Leases,
    policy: PolicyInForce,
    preferences: PreferenceTable,
    choices: Choices,
    grants: GrantIssuer,
    segments: SegmentIssuer,
    lines: RequestLines,
    datagrams: DatagramService,
    sync: Synchroniser,
    enforcer: Enforcer,
    scores: Scores,
    /// The logins in progress.
    logins: Logins,
    password_check: PasswordCheck,
    assertions: AssertionCheck,
    /// The identity provider, if one is configured.
    provider: Option<Provider>,
    /// The passkeys of the console, if it has a URL with a DNS name.
    passkeys: Option<Passkeys>,
    renewal: Renewal,
    sessions: Sessions,
    session_manager: SessionManager,
}

impl Authority {
    /// Loads configuration, policy, keys and database of the directory, and revokes the grants of an earlier run that
    /// the policy no longer allows.
    ///
    /// # Errors
    /// A file of the directory cannot be read or is not valid, or the database fails.
    pub async fn load(directory: Directory) -> Result<Self> {
        let settings = Arc::new(directory.settings()?);
        let candidate = Candidate::read(&directory, None)?;
        let (summary, Candidate { policy, text }) = (candidate.summary(), candidate);
        let change = PolicyChange { text, note: "found at start".into(), by: None, summary, after: None };
        let provider = settings.provider.clone().map(|provider| Provider::new(provider, &directory)).transpose();
        let provider = provider.context("cannot use the identity provider of [oidc] in authority.toml")?;
        let authority = Self::assemble(settings, directory, PolicyInForce::new(policy), provider)?;
        into_huge_pages();
        let networks = authority.directory.read_networks()?;
        authority.segments.replace_networks(networks, &*authority.policy.read().await);
        authority.prune().await?;
        // The terms of the scores may have changed.
        authority.scores.settle(true).await?;
        authority.storage.call(move |database| database.note_policy(&change, now())).await?;
        let issuer = authority.settings.provider.as_ref().map(|provider| provider.issuer.clone());
        let end_others = move |database: &mut Database| database.end_of_other_issuers(issuer.as_deref(), now());
        authority.storage.call(end_others).await?;
        authority.enforcer.revoke_forbidden(&*authority.policy.read().await, "the policy changed").await?;
        let leases = authority.leases.clone();
        let resume = move |database: &mut Database| {
            leases.resume(database.renewable_grants(now())?);
            Ok(())
        };
        authority.storage.call(resume).await?;
        authority.sync.run().await?;
        for (person, source) in authority.storage.call(|database| database.login_sources()).await? {
            authority.throttle.remember(person, source);
        }
        Ok(authority)
    }

    /// Creates the parts and connects them.
    fn assemble(
        settings: Arc<Settings>,
        directory: Directory,
        policy: PolicyInForce,
        provider: Option<Provider>,
    ) -> Result<Self> {
        let (directory, policy, provider) = (Arc::new(directory), Arc::new(policy), Arc::new(provider));
        let keyring = Arc::new(Keyring::new(directory.read_master_keys()?, settings.epoch_length));
        let database = Database::open(&directory.database())?;
        let leases = Arc::new(Leases::new(keyring.clone(), database.numbering()?, settings.epoch_length));
        let storage = Arc::new(Storage::start(database)?);
        let audit = Arc::new(AuditLog::new(storage.clone()));
        let throttle = Arc::<Throttle>::default();
        let connection_limit = ConnectionLimit::new(descriptors::connections(settings.max_connections));
        let connection_limit = Arc::new(connection_limit);
        let push = Arc::<Push>::default();
        let verifiers = Arc::<Verifiers>::default();
        let reports = Arc::<Reports>::default();
        let preferences = Arc::<PreferenceTable>::default();
        let sessions = Arc::<Sessions>::default();
        let lines = Arc::new(RequestLines::new(sessions.clone()));
        let grants = Arc::new(GrantIssuer {
            settings: settings.clone(),
            keyring: keyring.clone(),
            leases: leases.clone(),
            policy: policy.clone(),
            preferences: preferences.clone(),
            sessions: sessions.clone(),
            storage: storage.clone(),
            audit: audit.clone(),
            push: push.clone(),
            acknowledgements: Acknowledgements::default(),
        });
        let segments = Arc::new(SegmentIssuer::new(
            settings.clone(),
            keyring.clone(),
            policy.clone(),
            sessions.clone(),
            audit.clone(),
            push.clone(),
        ));
        let datagrams = Arc::new(DatagramService::new(
            segments.clone(),
            lines.clone(),
            sessions.clone(),
            policy.clone(),
            audit.clone(),
            storage.clone(),
        ));
        let sync = Arc::new(Synchroniser {
            storage: storage.clone(),
            sessions: sessions.clone(),
            verifiers: verifiers.clone(),
            preferences: preferences.clone(),
            policy: policy.clone(),
            segments: segments.clone(),
            lines: lines.clone(),
            leases: leases.clone(),
            push: push.clone(),
            reports: reports.clone(),
            runs: SingleFlight::default(),
        });
        let enforcer = Arc::new(Enforcer {
            settings: settings.clone(),
            directory: directory.clone(),
            storage: storage.clone(),
            policy: policy.clone(),
            keyring: keyring.clone(),
            leases: leases.clone(),
            grants: grants.clone(),
            segments: segments.clone(),
            push: push.clone(),
            sync: sync.clone(),
        });
        let scores = Arc::new(Scores {
            settings: settings.clone(),
            storage: storage.clone(),
            enforcer: enforcer.clone(),
            evaluating: Arc::default(),
        });
        let session_manager = Arc::new(SessionManager {
            settings: settings.clone(),
            storage: storage.clone(),
            audit: audit.clone(),
            throttle: throttle.clone(),
            sessions: sessions.clone(),
            sync: sync.clone(),
            enforcer: enforcer.clone(),
        });
        let renewal = Arc::new(Renewal {
            provider: provider.clone(),
            storage: storage.clone(),
            enforcer: enforcer.clone(),
            round: tokio::sync::Mutex::default(),
        });
        let queue = Arc::new(RequestQueue::new(throttle.clone()));
        let choices = Arc::new(Choices {
            storage: storage.clone(),
            preferences: preferences.clone(),
            queue: queue.clone(),
            sessions: sessions.clone(),
            push: push.clone(),
            sync: sync.clone(),
        });
        let metrics = Arc::<Metrics>::default();
        let collector = Arc::new(Collector {
            metrics: metrics.clone(),
            storage: storage.clone(),
            sessions: sessions.clone(),
            verifiers: verifiers.clone(),
            push: push.clone(),
            connection_limit: connection_limit.clone(),
            datagrams: datagrams.clone(),
        });
        Ok(Self {
            key_transfer: Arc::new(KeyTransfer::new(settings.key_transfer.clone())),
            passkeys: Arc::new(settings.console.url.as_deref().and_then(Passkeys::new)),
            password_check: Arc::new(PasswordCheck::new(storage.clone(), audit.clone(), throttle.clone())?),
            assertions: Arc::new(AssertionCheck { audience: directory.audience()? }),
            downloads: Arc::default(),
            logins: Arc::default(),
            settings,
            directory,
            storage,
            audit,
            metrics,
            collector,
            throttle,
            connection_limit,
            queue,
            push,
            verifiers,
            reports,
            keyring,
            leases,
            policy,
            preferences,
            choices,
            grants,
            segments,
            lines,
            datagrams,
            sync,
            enforcer,
            scores,
            provider,
            renewal,
            sessions,
            session_manager,
        })
    }

    /// Deletes expired records from the database.
    ///
    /// # Errors
    /// The database cannot be written.
    pub async fn prune(&self) -> Result<()> {
        let (grants_kept, audit_lifetime) = (self.settings.grants_kept, self.settings.audit_lifetime);
        // The work is done in pieces, so that other work gets its turn in between.
        while self.storage.call(move |database| database.prune_some(now(), grants_kept, audit_lifetime)).await? {}
        self.sync.run().await
    }
}

#[cfg(test)]
pub(crate) mod stage;
#[cfg(test)]
mod tests;
