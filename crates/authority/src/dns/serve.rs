//! The name server: receives queries by UDP and TCP, sends answers, and reloads the zone when its files change.

use super::limit::{Limit, Verdict};
use super::zone::{Transport, shortened};
use super::{Published, Zone};
use crate::Directory;
use crate::http::connection_limit::ConnectionLimit;
use crate::http::peer::Peer;
use anyhow::{Context, Result};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Maximum number of concurrent connections; one source may use a quarter of them.
const MOST_CONNECTIONS: u32 = 256;
/// Maximum number of queries on one connection.
const MOST_QUESTIONS: u32 = 100;
/// Maximum time that a connection may stay silent.
const SILENCE: Duration = Duration::from_secs(5);
/// Interval at which the server checks whether the files changed.
const LOOK: Duration = Duration::from_secs(1);
const NO_ZONE: &str = "[dns] has no `zone`: set it to the file with the domain's other records. If another name \
                       server serves the domain, `vouchsafe authority dns --record` prints the record for it";

/// A running name server. Dropping this value stops the name server.
pub struct Server {
    directory: Directory,
    files: Vec<PathBuf>,
    seen: Vec<Option<SystemTime>>,
    zone: Arc<RwLock<Arc<Zone>>>,
    addresses: Vec<SocketAddr>,
    tasks: JoinSet<Result<()>>,
}

impl Server {
    /// Starts a server for the domain that a directory's configuration names. If `listen` is not empty, its addresses
    /// replace the configured addresses.
    ///
    /// # Errors
    /// Fails if the configuration, the policy or the zone file cannot be read or is not valid, or an address cannot be
    /// bound.
    pub async fn start(directory: Directory, listen: &[SocketAddr]) -> Result<Self> {
        let (zone, path) = read(&directory)?;
        let files = vec![directory.path().join("authority.toml"), directory.policy(), path];
        let settings = directory.settings()?.dns.context(super::NO_DNS)?;
        let listen = if listen.is_empty() { settings.listen } else { listen.to_vec() };
        let zone = Arc::new(RwLock::new(Arc::new(zone)));
        let limit = Arc::new(Mutex::new(Limit::new(Instant::now())));
        let connection_limit = Arc::new(ConnectionLimit::new(MOST_CONNECTIONS));
        let (mut tasks, mut addresses) = (JoinSet::new(), Vec::new());
        for address in listen {
            let (socket, listener) = bind(address).await.with_context(|| format!("cannot listen on {address}"))?;
            addresses.push(socket.local_addr()?);
            tasks.spawn(datagrams(socket, zone.clone(), limit.clone()));
            tasks.spawn(connections(listener, zone.clone(), connection_limit.clone()));
        }
        let mut server = Self { directory, files, seen: Vec::new(), zone, addresses, tasks };
        server.seen = server.changed();
        Ok(server)
    }

    /// Returns the addresses on which the server listens.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Reloads configuration, policy and zone. If a file cannot be read or is not valid, the server logs the error and
    /// keeps the previous zone.
    pub fn reload(&mut self) {
        self.seen = self.changed();
        match read(&self.directory) {
            Ok((zone, path)) => {
                if let Some(file) = self.files.last_mut() {
                    *file = path;
                }
                self.seen = self.changed();
                tracing::info!(names = zone.count(), "reloaded the zone");
                *self.zone.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(zone);
            }
            Err(error) => tracing::error!("cannot reload the zone; the previous one stays in use: {error:#}"),
        }
    }

    /// Checks for changed files every second and serves queries until an error occurs; returns the error.
    pub async fn run(&mut self) -> anyhow::Error {
        let mut ticks = tokio::time::interval(LOOK);
        loop {
            tokio::select! {
                _ = ticks.tick() => if self.changed() != self.seen {
                    self.reload();
                },
                ended = self.tasks.join_next() => return match ended {
                    Some(Ok(Err(error))) => error,
                    Some(Err(error)) => error.into(),
                    Some(Ok(Ok(()))) | None => anyhow::anyhow!("the name server ended unexpectedly"),
                },
            }
        }
    }

    fn changed(&self) -> Vec<Option<SystemTime>> {
        let changed = self.files.iter().map(|file| std::fs::metadata(file).and_then(|file| file.modified()).ok());
        changed.collect()
    }
}

/// Reads the zone of a directory. Returns it with the path of the zone file.
fn read(directory: &Directory) -> Result<(Zone, PathBuf)> {
    let published = Published::read(directory)?;
    let servers = published.server_lines();
    let Published { domain, record, ttl, .. } = published;
    let file = directory.settings()?.dns.and_then(|dns| dns.zone).context(NO_ZONE)?;
    let path = directory.path().join(file);
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let zone = Zone::read(&format!("{text}\n{servers}"), &domain, record, ttl)
        .with_context(|| format!("cannot use the zone file {}", path.display()))?;
    Ok((zone, path))
}

/// Binds UDP and TCP to the same port. If the port of `address` is 0, a port is chosen that is free for both.
async fn bind(address: SocketAddr) -> Result<(UdpSocket, TcpListener)> {
    const TRIES: usize = 16;
    for _ in 1..TRIES {
        let socket = UdpSocket::bind(address).await?;
        match TcpListener::bind(socket.local_addr()?).await {
            Err(_) if address.port() == 0 => {}
            bound => return Ok((socket, bound?)),
        }
    }
    anyhow::bail!("found no port that is free for both UDP and TCP")
}

fn current(zone: &RwLock<Arc<Zone>>) -> Arc<Zone> {
    zone.read().unwrap_or_else(PoisonError::into_inner).clone()
}

async fn datagrams(socket: UdpSocket, zone: Arc<RwLock<Arc<Zone>>>, limit: Arc<Mutex<Limit>>) -> Result<()> {
    let mut bytes = [0; 4096];
    loop {
        let (size, from) = match socket.recv_from(&mut bytes).await {
            Ok(received) => received,
            // Such an error usually means that an earlier answer could not be delivered.
            Err(error) => {
                tracing::debug!("the name server cannot receive a query: {error}");
                continue;
            }
        };
        let question = &bytes[..size];
        let Some(answer) = current(&zone).answer(question, Transport::Udp) else { continue };
        let verdict = limit.lock().unwrap_or_else(PoisonError::into_inner).charge(from.ip(), Instant::now());
        let answer = match verdict {
            Verdict::Send => Some(answer),
            Verdict::Shorten => shortened(question),
            Verdict::Drop => None,
        };
        if let Some(answer) = answer
            && let Err(error) = socket.send_to(&answer, from).await
        {
            tracing::debug!(%from, "cannot send an answer: {error}");
        }
    }
}

async fn connections(listener: TcpListener, zone: Arc<RwLock<Arc<Zone>>>, limit: Arc<ConnectionLimit>) -> Result<()> {
    let mut open = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = open.join_next() => continue,
        };
        let (stream, from) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // The process has usually run out of file descriptors; connections that end will free some.
                tracing::warn!("the name server cannot accept a TCP connection: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let Some(permit) = limit.admit(&Peer::new(from, None)) else {
            continue;
        };
        let zone = zone.clone();
        open.spawn(async move {
            tokio::select! {
                done = converse(stream, &zone) => if let Err(error) = done {
                    tracing::debug!(%from, "cannot answer a query over TCP: {error:#}");
                },
                () = permit.evicted() => {}
            }
        });
    }
}

async fn converse(mut stream: TcpStream, zone: &RwLock<Arc<Zone>>) -> Result<()> {
    stream.set_nodelay(true)?;
    for _ in 0..MOST_QUESTIONS {
        let read = async {
            let size = stream.read_u16().await?;
            let mut question = vec![0; size.into()];
            stream.read_exact(&mut question).await?;
            std::io::Result::Ok(question)
        };
        let question = timeout(SILENCE, read)
            .await
            .with_context(|| format!("no query within {SILENCE:?}"))?
            .context("the client closed the connection")?;
        let answer = current(zone).answer(&question, Transport::Tcp).context("the message is not a query")?;
        let whole = [&u16::try_from(answer.len())?.to_be_bytes()[..], &answer].concat();
        timeout(SILENCE, stream.write_all(&whole))
            .await
            .with_context(|| format!("the client did not read the answer within {SILENCE:?}"))??;
    }
    Ok(())
}
