//! Reads the state of etcd's servers at intervals, for the metrics. The metrics page shows the state that was read
//! last, because the page must not wait for a server that does not answer.

use super::membership::Members;
use crate::metrics::cluster::EtcdServer;
use anyhow::Result;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Interval at which the servers are asked. A collector of metrics reads the page about as often.
const INTERVAL: Duration = Duration::from_secs(15);

/// The state of etcd's servers.
pub struct EtcdState {
    pub(crate) members: Arc<Members>,
    pub(crate) servers: Mutex<Vec<EtcdServer>>,
}

impl EtcdState {
    /// Returns the servers as they were last read.
    pub fn servers(&self) -> Vec<EtcdServer> {
        self.servers.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Asks the servers of etcd for their state, again and again, until the future is dropped. If the authority is in no
    /// cluster, it has no etcd, and this function asks nobody.
    ///
    /// # Errors
    /// Fails if the thread that asks the servers ends unexpectedly.
    pub async fn run(self: Arc<Self>) -> Result<()> {
        if self.members.cluster().is_none() {
            return std::future::pending().await;
        }
        let mut ticks = tokio::time::interval(INTERVAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let members = self.members.clone();
            let servers = tokio::task::spawn_blocking(move || read(&members)).await?;
            *self.servers.lock().unwrap_or_else(PoisonError::into_inner) = servers;
        }
    }
}

fn read(members: &Members) -> Vec<EtcdServer> {
    let Some(cluster) = members.cluster() else { return Vec::new() };
    match cluster.etcd().measured_members() {
        Ok(servers) => servers.into_iter().map(figures).collect(),
        Err(error) => {
            tracing::debug!("cannot ask etcd's servers for their state: {error}");
            let silent = |endpoint: &String| EtcdServer { endpoint: endpoint.clone(), ..EtcdServer::default() };
            cluster.config().endpoints.iter().map(silent).collect()
        }
    }
}

fn figures(server: etcd::MemberStatus) -> EtcdServer {
    let positive = |figure: i64| figure.max(0).cast_unsigned();
    EtcdServer {
        answers: server.error.is_none(),
        is_leader: server.is_leader(),
        size: positive(server.db_size),
        in_use: positive(server.db_size_in_use),
        quota: server.quota,
        is_full: server.is_full,
        revision: positive(server.revision),
        compacted: server.compacted,
        endpoint: server.endpoint,
    }
}
