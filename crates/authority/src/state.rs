//! The running authority: its parts, and the order in which they start. A handler takes the parts that it needs with
//! [`Part`](crate::http::extractors::Part).
//!
//! A task that needs several locks takes them in a fixed order. The first is the lock of the [`Synchroniser`], which is
//! held during a run. Then follow the lock of the policy, the lock of the book of segments, and the locks of the tables
//! of sessions, verifiers and preferences. A task that holds any other lock takes no further lock.

use crate::cluster::confirm::Confirmation;
use crate::cluster::contact::Contact;
use crate::cluster::etcd_state::EtcdState;
use crate::cluster::files;
use crate::cluster::follow::{Follower, FollowerState};
use crate::cluster::membership::Members;
use crate::cluster::start::Start;
use crate::grants::GrantIssuer;
use crate::http::calls::Calls;
use crate::http::connection_limit::ConnectionLimit;
use crate::http::descriptors;
use crate::http::downloads::Downloads;
use crate::http::key_transfer::KeyTransfer;
use crate::http::throttle::Throttle;
use crate::http::turns::RequestQueue;
use crate::keys::Keyring;
use crate::leases::Leases;
use crate::lists::Follower as ListFollower;
use crate::login::service::AssertionCheck;
use crate::login::{Logins, Passkeys, PasswordCheck, Provider, Renewal, SessionManager, Sessions};
use crate::metrics::Collector;
use crate::metrics::counters::Metrics;
use crate::policy::candidate::{Candidate, into_huge_pages};
use crate::policy::{
    AccessRequests, Choices, ConsentTable, Enforcer, ListService, PolicyInForce, PreferenceTable, Scores,
};
use crate::push::acknowledgements::Acknowledgements;
use crate::push::events::Push;
use crate::push::reports::Reports;
use crate::push::verifiers::Verifiers;
use crate::segments::{DatagramService, GrantService, RequestLines, SegmentIssuer};
use crate::single_flight::SingleFlight;
use crate::storage::{AuditLog, Database, PolicyChange, Storage, Unavailable};
use crate::sync::Synchroniser;
use crate::webhook::{Webhooks, unknown_delegations};
use crate::{Directory, Settings, now};
use anyhow::{Context, Result};
use engine::policy::Policy;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

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
    /// The members of the cluster, if the authority is in one.
    members: Members,
    /// The time of the last contact with the cluster.
    contact: Contact,
    storage: Storage,
    audit: AuditLog,
    metrics: Metrics,
    collector: Collector,
    throttle: Throttle,
    calls: Calls,
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
    consents: ConsentTable,
    access: AccessRequests,
    grants: GrantIssuer,
    segments: SegmentIssuer,
    lines: RequestLines,
    datagrams: DatagramService,
    sync: Synchroniser,
    enforcer: Enforcer,
    lists: ListService,
    follower: Follower,
    /// The state of etcd's servers, for the metrics.
    etcd_state: EtcdState,
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
    webhooks: Webhooks,
}

impl Authority {
    /// Loads configuration, policy, keys and database of the directory, and revokes the grants of an earlier run that
    /// the policy no longer allows.
    ///
    /// # Errors
    /// Fails if a file of the directory cannot be read or is not valid, or the database fails.
    pub async fn load(directory: Directory) -> Result<Self> {
        let settings = Arc::new(directory.settings()?);
        let members = Members::read(directory.path(), settings.console.url.clone())?;
        let start = {
            let (directory, settings) = (directory.clone(), settings.clone());
            tokio::task::spawn_blocking(move || Start::prepare(&directory, &settings, members)).await??
        };
        let Start { members, contact, database, candidate, version, networks } = start;
        let (summary, Candidate { policy, text }) = (candidate.summary(), candidate);
        let change = PolicyChange { text, note: "found at start".into(), by: None, summary, after: None };
        let provider = settings.provider.clone().map(|provider| Provider::new(provider, &directory)).transpose();
        let provider = provider.context("cannot use the identity provider of [oidc] in authority.toml")?;
        let is_member = members.cluster().is_some();
        let policy = PolicyInForce::new(policy);
        let authority = Self::assemble(settings, directory, policy, provider, (members, contact, database))?;
        let of_webhooks = |policy: &Policy| unknown_delegations(&authority.settings.webhooks, policy);
        authority.policy.with(of_webhooks).await.iter().for_each(|warning| tracing::warn!("{warning}"));
        into_huge_pages();
        authority.enforcer.version.store(version, Ordering::SeqCst);
        *authority.enforcer.networks.lock().await = networks;
        let networks = authority.directory.read_networks()?;
        authority.segments.replace_networks(networks, &*authority.policy.read().await);
        if is_member {
            // A random number for the next grant, because members draw numbers independently of each other.
            authority.leases.scatter();
        }
        authority.lists.load().await.context("cannot put the lists in force")?;
        match authority.bring_up_to_date((!is_member).then_some(change)).await {
            Err(error) if is_member && error.is::<Unavailable>() => {
                tracing::warn!("{}: {error:#}", authority.contact.standing().sentence(now()));
            }
            done => done?,
        }
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

    /// Brings the database in line with the time, the configuration and the policy. `found` is the policy in the
    /// directory, with which an authority in no cluster starts. It is `None` at a member of a cluster, which takes the
    /// policy from the database.
    ///
    /// # Errors
    /// Fails if the database cannot be read or written.
    async fn bring_up_to_date(&self, found: Option<PolicyChange>) -> Result<()> {
        self.prune().await?;
        // The terms of the scores may have changed.
        self.scores.settle(true).await?;
        let names = self.storage.call(|database| database.access_receivers()).await?;
        let prefixes = |policy: &Policy| {
            let known = names.into_iter().filter_map(|name| policy.prefixes_of(&name).map(|prefixes| (name, prefixes)));
            known.collect::<HashMap<_, _>>()
        };
        let (prefixes, version) = (self.policy.with(prefixes).await, self.enforcer.version.load(Ordering::SeqCst));
        let note = move |database: &mut Database| {
            if let Some(change) = found {
                database.note_policy(&change, now(), &|name| prefixes.get(name).cloned())?;
            }
            let version = if version == 0 { database.policy_version()? } else { version };
            database.note_receivers(version, &prefixes)
        };
        self.storage.call(note).await?;
        let issuer = self.settings.provider.as_ref().map(|provider| provider.issuer.clone());
        let end_others = move |database: &mut Database| database.end_of_other_issuers(issuer.as_deref(), now());
        self.storage.call(end_others).await?;
        self.enforcer.revoke_forbidden(&*self.policy.read().await, "the policy changed").await?;
        Ok(())
    }

    /// Creates the parts and connects them.
    fn assemble(
        settings: Arc<Settings>,
        directory: Directory,
        policy: PolicyInForce,
        provider: Option<Provider>,
        (members, contact, database): (Members, Contact, Database),
    ) -> Result<Self> {
        let (members, contact) = (Arc::new(members), Arc::new(contact));
        let (directory, policy, provider) = (Arc::new(directory), Arc::new(policy), Arc::new(provider));
        let keyring = Arc::new(Keyring::new(directory.read_master_keys()?, settings.epoch_length));
        let leases = Arc::new(Leases::new(keyring.clone(), database.numbering()?, settings.epoch_length));
        if members.cluster().is_some() {
            leases.set_late(files::late(&database)?);
        }
        let storage = Arc::new(Storage::start(database)?);
        let audit = Arc::new(AuditLog::new(storage.clone()));
        let throttle = Arc::<Throttle>::default();
        let connection_limit = ConnectionLimit::new(descriptors::connections(settings.max_connections));
        let connection_limit = Arc::new(connection_limit);
        let push = Arc::<Push>::default();
        let verifiers = Arc::<Verifiers>::default();
        let confirmation = Arc::new(Confirmation {
            members: members.clone(),
            storage: storage.clone(),
            push: push.clone(),
            verifiers: verifiers.clone(),
        });
        let reports = Arc::<Reports>::default();
        let preferences = Arc::<PreferenceTable>::default();
        let consents = Arc::<ConsentTable>::default();
        let sessions = Arc::<Sessions>::default();
        let lines = Arc::new(RequestLines::new(sessions.clone()));
        let grants = Arc::new(GrantIssuer {
            settings: settings.clone(),
            keyring: keyring.clone(),
            leases: leases.clone(),
            policy: policy.clone(),
            preferences: preferences.clone(),
            consents: consents.clone(),
            sessions: sessions.clone(),
            storage: storage.clone(),
            audit: audit.clone(),
            push: push.clone(),
            contact: contact.clone(),
            acknowledgements: Acknowledgements::default(),
        });
        let segments = Arc::new(SegmentIssuer::new(
            settings.clone(),
            keyring.clone(),
            policy.clone(),
            sessions.clone(),
            audit.clone(),
            push.clone(),
            contact.clone(),
        ));
        let queue = Arc::new(RequestQueue::new(throttle.clone()));
        let granting = GrantService::new(grants.clone(), queue.clone(), throttle.clone(), policy.clone());
        let datagrams = Arc::new(DatagramService::new(
            segments.clone(),
            lines.clone(),
            sessions.clone(),
            policy.clone(),
            audit.clone(),
            storage.clone(),
            Arc::new(granting),
        ));
        let sync = Arc::new(Synchroniser {
            storage: storage.clone(),
            sessions: sessions.clone(),
            verifiers: verifiers.clone(),
            preferences: preferences.clone(),
            consents: consents.clone(),
            policy: policy.clone(),
            segments: segments.clone(),
            lines: lines.clone(),
            leases: leases.clone(),
            push: push.clone(),
            reports: reports.clone(),
            confirmation,
            runs: SingleFlight::default(),
            is_policy_untold: Arc::default(),
            is_unfinished: AtomicBool::default(),
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
            contact: contact.clone(),
            version: AtomicI64::new(0),
            must_reevaluate: AtomicBool::default(),
            networks: tokio::sync::Mutex::default(),
        });
        let lists = Arc::new(ListService {
            directory: directory.clone(),
            is_member: members.cluster().is_some(),
            storage: storage.clone(),
            policy: policy.clone(),
            sessions: sessions.clone(),
            grants: grants.clone(),
            enforcer: enforcer.clone(),
            push: push.clone(),
            sync: sync.clone(),
            follower: Arc::new(Mutex::new(ListFollower::new((*directory).clone()))),
            state: Default::default(),
        });
        let follower = Arc::new(Follower {
            settings: settings.clone(),
            directory: directory.clone(),
            members: members.clone(),
            contact: contact.clone(),
            storage: storage.clone(),
            enforcer: enforcer.clone(),
            sync: sync.clone(),
            leases: leases.clone(),
            policy: policy.clone(),
            sessions: sessions.clone(),
            verifiers: verifiers.clone(),
            push: push.clone(),
            state: FollowerState::default(),
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
        let choices = Arc::new(Choices {
            storage: storage.clone(),
            preferences: preferences.clone(),
            sessions: sessions.clone(),
            push: push.clone(),
            sync: sync.clone(),
        });
        let console = settings.console.url.clone();
        let webhooks = Arc::new(Webhooks::new(&settings.webhooks, &directory, console, audit.clone())?);
        let access = Arc::new(AccessRequests {
            storage: storage.clone(),
            policy: policy.clone(),
            consents: consents.clone(),
            grants: grants.clone(),
            sessions: sessions.clone(),
            push: push.clone(),
            sync: sync.clone(),
            enforcer: enforcer.clone(),
            examinations: Arc::default(),
            webhooks: webhooks.clone(),
        });
        let etcd_state = Arc::new(EtcdState { members: members.clone(), servers: Mutex::default() });
        let metrics = Arc::<Metrics>::default();
        let collector = Arc::new(Collector {
            metrics: metrics.clone(),
            storage: storage.clone(),
            sessions: sessions.clone(),
            verifiers: verifiers.clone(),
            push: push.clone(),
            connection_limit: connection_limit.clone(),
            datagrams: datagrams.clone(),
            members: members.clone(),
            contact: contact.clone(),
            follower: follower.clone(),
            etcd_state: etcd_state.clone(),
            webhooks: webhooks.clone(),
        });
        Ok(Self {
            key_transfer: Arc::new(KeyTransfer::new(settings.key_transfer.clone())),
            passkeys: Arc::new(settings.console.url.as_deref().and_then(Passkeys::new)),
            password_check: Arc::new(PasswordCheck::new(storage.clone(), audit.clone(), throttle.clone())?),
            assertions: Arc::new(AssertionCheck { audience: directory.audience()? }),
            downloads: Arc::default(),
            calls: Arc::default(),
            logins: Arc::default(),
            settings,
            directory,
            members,
            contact,
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
            consents,
            access,
            grants,
            segments,
            lines,
            datagrams,
            sync,
            enforcer,
            lists,
            follower,
            etcd_state,
            scores,
            provider,
            renewal,
            sessions,
            session_manager,
            webhooks,
        })
    }

    /// Deletes expired records from the database.
    ///
    /// # Errors
    /// Fails if the database cannot be written.
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
