//! The authority's metrics. The router counts calls by their result; all other values are collected when the metrics
//! page is requested. No metric contains a person's name.

pub mod cluster;
pub mod counters;

use crate::cluster::contact::Contact;
use crate::cluster::etcd_state::EtcdState;
use crate::cluster::follow::Follower;
use crate::cluster::membership::Members;
use crate::http::connection_limit::ConnectionLimit;
use crate::login::Sessions;
use crate::push::events::Push;
use crate::push::verifiers::Verifiers;
use crate::segments::DatagramService;
use crate::storage::Storage;
use crate::webhook::Webhooks;
use anyhow::Result;
use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::Response;
use cluster::ClusterSnapshot;
use counters::{Metrics, Outcome, Snapshot, page};
use shell::metrics::Page;
use std::sync::Arc;
use std::time::Instant;

/// Middleware that counts a call with its result and its duration.
pub async fn count(State(metrics): State<Arc<Metrics>>, request: Request, next: Next) -> Response {
    let began = Instant::now();
    // Metrics are labelled with the route's path, not the request's: an unauthenticated sender must not be able to
    // create metrics.
    let path = request.extensions().get::<MatchedPath>().map_or("other", MatchedPath::as_str).to_owned();
    let response = next.run(request).await;
    let result = response
        .extensions()
        .get()
        .map_or(if response.status().is_success() { "ok" } else { "other" }, |o: &Outcome| o.0);
    metrics.note(&path, result, began.elapsed().as_secs_f64());
    response
}

/// Collects the metrics that are not counted continuously.
pub struct Collector {
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) storage: Arc<Storage>,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) verifiers: Arc<Verifiers>,
    pub(crate) push: Arc<Push>,
    pub(crate) connection_limit: Arc<ConnectionLimit>,
    pub(crate) datagrams: Arc<DatagramService>,
    pub(crate) members: Arc<Members>,
    pub(crate) contact: Arc<Contact>,
    pub(crate) follower: Arc<Follower>,
    pub(crate) etcd_state: Arc<EtcdState>,
    pub(crate) webhooks: Arc<Webhooks>,
}

impl Collector {
    /// Returns the current values, except those that are read from the database.
    pub fn snapshot(&self) -> Snapshot {
        let lag = self.follower.lag();
        Snapshot {
            sessions: self.sessions.count(),
            verifiers: self.verifiers.count(),
            listeners: self.push.count(),
            connections: self.connection_limit.count(),
            turned_away: self.connection_limit.turned_away(),
            datagrams: self.datagrams.counts(),
            grant_datagrams: self.datagrams.grants.counts(),
            heads: Vec::new(),
            webhooks: self.webhooks.states(),
            cluster: self.members.cluster().map(|cluster| ClusterSnapshot {
                members: cluster.live().len(),
                known: cluster.known_count(),
                followed: cluster.own().followed,
                behind: lag.behind,
                lag: lag.age.as_secs_f64(),
                is_current: self.contact.may_record(),
                without_contact: self.contact.time_without().as_secs_f64(),
                renews: self.contact.may_renew(),
                clock_is_right: self.contact.has_right_clock(),
                lost_leases: cluster.lost_leases(),
                lost_heads: cluster.lost_heads().map_or(0, |lost| lost.len()),
                etcd: self.etcd_state.servers(),
            }),
        }
    }

    /// Returns the metrics page.
    ///
    /// # Errors
    /// Fails if the database cannot be read.
    pub async fn page(&self) -> Result<Page> {
        let heads = self.storage.call(|database| database.audit_heads()).await?;
        Ok(page(&self.metrics, &Snapshot { heads, ..self.snapshot() }))
    }
}
