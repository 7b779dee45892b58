//! The server: API, control socket and periodic work, from start to stop.

use crate::admin::control;
use crate::http::{handlers, listener, openapi};
use crate::login::{self, SessionManager};
use crate::segments::{Answering, DatagramService};
use crate::state::Authority;
use crate::storage::{AuditEvent, Unavailable};
use crate::sync::Synchroniser;
use crate::{Directory, now, tls};
use anyhow::{Context, Result};
use api::{Event, Report};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

/// Interval between events by which listeners notice that their stream still works.
const ALIVE: Duration = Duration::from_secs(10);
/// Interval at which the server checks whether another process has written to the database.
const LOOK: Duration = Duration::from_secs(1);
/// Minimum pause between two checks for expired sessions.
const LEAST_PAUSE: Duration = Duration::from_millis(20);
/// Interval at which audit entries about segments issued by UDP are written to the database.
const SETTLE: Duration = Duration::from_millis(250);
/// Time for the last event to reach the listeners before the connections close.
const FAREWELL: Duration = Duration::from_millis(300);
/// Time for writing the answers to the last calls before the connections close.
const LAST_ANSWERS: Duration = Duration::from_millis(50);
/// Interval at which expired records are deleted.
const PRUNE: Duration = Duration::from_secs(3600);

/// A running authority. Dropping this value stops the server.
pub struct Server {
    address: SocketAddr,
    authority: Arc<Authority>,
    metrics: Option<SocketAddr>,
    segments: Option<(Answering, SocketAddr)>,
    tasks: JoinSet<Result<()>>,
    _lock: std::fs::File,
}

impl Server {
    /// Starts the authority of `directory`. `listen` replaces the configured listen address of the API.
    ///
    /// # Errors
    /// Fails if a server is already running in the directory, a file in it cannot be read or is not valid, or an
    /// address cannot be bound.
    pub async fn start(directory: Directory, listen: Option<SocketAddr>) -> Result<Self> {
        let lock = directory.lock()?;
        let tls = tls::server_config(&directory.certificate(), &directory.certificate_key())?;
        let authority = Arc::new(Authority::load(directory.clone()).await?);
        let listener = bind(listen.unwrap_or(authority.settings.listen)).await?;
        let address = listener.local_addr()?;
        let socket = control::listen(&directory)?;
        let router = handlers::router(authority.clone(), &openapi::text());
        let (limit, throttle) = (authority.connection_limit.clone(), authority.throttle.clone());
        let readers = match authority.settings.metrics {
            Some(address) => Some(shell::metrics::listen(address).await?),
            None => None,
        };
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            listener::serve(listener, tls, router, limit, throttle).await;
            Ok(())
        });
        tasks.spawn(control::serve(socket, authority.clone()));
        tasks.spawn(authority.follower.clone().run());
        tasks.spawn(authority.follower.clone().publish());
        tasks.spawn(authority.follower.clone().hear());
        tasks.spawn(authority.follower.clone().upload());
        tasks.spawn(keep_alive(authority.sync.clone()));
        tasks.spawn(keep_renewed(authority.clone()));
        tasks.spawn(keep_expiry(authority.session_manager.clone()));
        tasks.spawn(keep_house(authority.clone()));
        let webhooks = authority.webhooks.clone();
        tasks.spawn(async move { webhooks.run().await });
        let metrics = readers.as_ref().map(TcpListener::local_addr).transpose()?;
        if let Some(readers) = readers {
            tasks.spawn(authority.etcd_state.clone().run());
            let collector = authority.collector.clone();
            let page = move || {
                let collector = collector.clone();
                async move { collector.page().await }
            };
            tasks.spawn(async move {
                shell::metrics::serve(readers, page).await;
                Ok(())
            });
        }
        let segments = match authority.settings.segments {
            Some(address) => {
                let (answering, address, failure) = Answering::start(address, authority.datagrams.clone())?;
                tasks.spawn(async move {
                    match failure.await {
                        Ok(error) => Err(error),
                        Err(_) => std::future::pending().await,
                    }
                });
                tasks.spawn(keep_account(authority.datagrams.clone()));
                tracing::info!(%address, "accepting requests for grants and segments by UDP");
                Some((answering, address))
            }
            None => None,
        };
        let version = env!("CARGO_PKG_VERSION");
        authority.audit.write(AuditEvent::new("started").detail(format!("version {version} at {address}"))).await?;
        authority.audit.log_heads().await?;
        tracing::info!(%address, directory = %directory.path().display(), "authority started");
        Ok(Self { address, authority, metrics, segments, tasks, _lock: lock })
    }

    /// Returns the listen address of the API.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the address where metrics are served; `None` if they are not served.
    pub fn metrics(&self) -> Option<SocketAddr> {
        self.metrics
    }

    /// Returns the address that receives requests by UDP; `None` if they are not served.
    pub fn segments(&self) -> Option<SocketAddr> {
        self.segments.as_ref().map(|(_, address)| *address)
    }

    /// Returns for each verifier its id, the time of its latest report in Unix seconds, and the report; sorted by id.
    pub fn reports(&self) -> Vec<(Arc<str>, u64, Report)> {
        let latest = self.authority.reports.latest(now()).into_iter();
        latest.map(|latest| (latest.verifier, latest.time, latest.report)).collect()
    }

    /// Waits until a part of the server fails, and returns the error.
    pub async fn failed(&mut self) -> anyhow::Error {
        match self.tasks.join_next().await {
            Some(Ok(Err(error))) => error,
            Some(Err(error)) => error.into(),
            Some(Ok(Ok(()))) | None => anyhow::anyhow!("a part of the authority ended unexpectedly"),
        }
    }

    /// Stops the server. In a cluster, first tells all connected sessions and verifiers to change to another member.
    /// Waits for calls that are under way, delivers the messages to webhooks, and closes all connections. Then writes
    /// the last audit entries, and releases the directory.
    pub async fn stop(mut self) {
        self.hand_over().await;
        self.authority.calls.end(self.authority.members.cluster().is_some()).await;
        // The last answers are on their way to the connections.
        tokio::time::sleep(LAST_ANSWERS).await;
        self.authority.webhooks.finish().await;
        self.tasks.shutdown().await;
        if let Some((answering, _)) = self.segments.take() {
            answering.end().await;
        }
        let written = async {
            self.authority.datagrams.settle_account().await?;
            self.authority.audit.settle_refusals(u64::MAX).await?;
            self.authority.audit.write(AuditEvent::new("stopped")).await?;
            self.authority.audit.log_heads().await
        };
        if let Err(error) = written.await {
            tracing::error!("cannot write the last entries of the audit trail: {error:#}");
        }
        self.authority.storage.close().await;
    }

    /// Tells the other members of the cluster that this member stops, and tells the sessions and verifiers that are
    /// connected here to which member they have to change.
    async fn hand_over(&self) {
        let members = self.authority.members.clone();
        if members.cluster().is_none() {
            return;
        }
        let next = members.next();
        let withdraw = move || members.cluster().map_or(Ok(()), |cluster| cluster.withdraw());
        match tokio::task::spawn_blocking(withdraw).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!("cannot remove this member's state from etcd; the state ends by itself: {error:#}")
            }
            Err(error) => {
                tracing::warn!("cannot remove this member's state from etcd; the state ends by itself: {error:#}")
            }
        }
        let (sessions, verifiers) = self.authority.push.count();
        if sessions + verifiers > 0 {
            self.authority.push.broadcast(&Event::RoleChange { next });
            // The connections close when the tasks end, so the event must have been written before.
            tokio::time::sleep(FAREWELL).await;
        }
    }
}

async fn bind(address: SocketAddr) -> Result<TcpListener> {
    match TcpListener::bind(address).await {
        // `[::]` includes IPv4. On a host without IPv6, the server listens on `0.0.0.0` instead.
        Err(error) if error.raw_os_error() == Some(EAFNOSUPPORT) && address.ip().is_unspecified() => {
            Ok(TcpListener::bind((IpAddr::V4(Ipv4Addr::UNSPECIFIED), address.port())).await?)
        }
        bound => bound.with_context(|| format!("cannot listen on {address}")),
    }
}

/// Linux's error number for "address family not supported".
const EAFNOSUPPORT: i32 = 97;

async fn keep_alive(sync: Arc<Synchroniser>) -> Result<()> {
    let mut ticks = tokio::time::interval(ALIVE);
    loop {
        ticks.tick().await;
        sync.close_streams();
        sync.push.broadcast(&Event::Alive);
    }
}

async fn keep_account(datagrams: Arc<DatagramService>) -> Result<()> {
    let mut ticks = tokio::time::interval(SETTLE);
    loop {
        ticks.tick().await;
        if let Err(error) = datagrams.settle_account().await {
            tracing::error!(
                "cannot record the segments that were issued by UDP; trying again in {SETTLE:?}: {error:#}"
            );
        }
    }
}

/// Checks sessions with the identity provider. In a cluster, only one member does this, because a provider may accept
/// each refresh token once and treat a second use as theft.
async fn keep_renewed(authority: Arc<Authority>) -> Result<()> {
    let mut ticks = tokio::time::interval(login::LOOK);
    loop {
        ticks.tick().await;
        if !authority.members.is_first() || !authority.contact.may_record() {
            continue;
        }
        if let Err(error) = authority.renewal.renew_due().await {
            tracing::error!(
                "cannot check sessions with the identity provider; trying again in {:?}: {error:#}",
                login::LOOK
            );
        }
    }
}

/// Ends sessions when they expire.
async fn keep_expiry(sessions: Arc<SessionManager>) -> Result<()> {
    loop {
        let next = match sessions.end_expired().await {
            Ok(next) => next.map(|next| UNIX_EPOCH + Duration::from_secs(next)),
            Err(error) => {
                log_failure(&error, "cannot end the sessions that have expired; trying again");
                None
            }
        };
        // A session that begins during the sleep lasts longer than one interval, so its end is not missed.
        let next = next.and_then(|next| next.duration_since(SystemTime::now()).ok());
        tokio::time::sleep(next.unwrap_or(LOOK).clamp(LEAST_PAUSE, LOOK)).await;
    }
}

/// Logs a failure of periodic work. If the cause is lost contact with etcd, logs it at the level `debug` only, because
/// every run fails then and the follower logs the loss.
fn log_failure(error: &anyhow::Error, what: &str) {
    if error.is::<Unavailable>() {
        tracing::debug!("{what}: {error:#}");
    } else {
        tracing::error!("{what}: {error:#}");
    }
}

async fn keep_house(authority: Arc<Authority>) -> Result<()> {
    let mut ticks = tokio::time::interval(LOOK);
    let mut version = None;
    let mut pruned = tokio::time::Instant::now();
    loop {
        ticks.tick().await;
        let done = async {
            let seen = authority.storage.call(|database| database.version()).await?;
            if version.replace(seen) != Some(seen) || authority.sync.is_unfinished() {
                authority.sync.run().await?;
            }
            authority.audit.settle_refusals(now() / 60).await?;
            authority.lists.tick();
            authority.enforcer.follow_time().await?;
            authority.scores.follow_time().await?;
            authority.access.follow_time().await?;
            if pruned.elapsed() >= PRUNE {
                pruned = tokio::time::Instant::now();
                authority.prune().await?;
                authority.audit.log_heads().await?;
            }
            anyhow::Ok(())
        };
        if let Err(error) = done.await {
            log_failure(&error, "cannot maintain the database; trying again");
        }
    }
}
