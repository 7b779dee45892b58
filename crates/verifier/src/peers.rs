//! The exchange of flows between gateways that are one verifier to the authority. Each gateway advertises to the others
//! the flows that begin, continue and end at it. It takes over the flows that the others advertise. So a flow passes at
//! each of these gateways, whichever of them its packets reach (wire.md §6.10).
//!
//! A gateway opens a connection to each gateway to which it advertises, so two gateways have one connection in each
//! direction. This module decides nothing about packets.

pub mod advertiser;
pub mod channel;
mod exchange;
mod receiver;
pub mod record;
mod sender;

pub use exchange::{Running, listen, start};

use crate::view;
use advertiser::ReceivedFlows;
use anyhow::{Context, Result, ensure};
use record::{Hello, VERSION};
use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::Notify;
use zerocopy::{FromZeros, IntoBytes};

/// Maximum time for setting up a connection.
const PATIENCE: Duration = Duration::from_secs(5);
/// Silence after which a connection counts as lost: each side sends something every two seconds.
const SILENCE: Duration = Duration::from_secs(10);
/// Number of latest gaps that are kept for the statistics; a gap is the time until a new flow passes at a peer.
const GAPS: usize = 256;

/// State of the exchange with the other gateways.
pub struct Peers {
    id: u64,
    senders: Vec<PeerSender>,
    sources: Mutex<BTreeMap<u64, Source>>,
    received: Mutex<ReceivedFlows>,
    /// Notified when a peer has advertised all its flows. While the peer was not connected, this gateway possibly cut
    /// some of these flows, so the authority has to check them again.
    pub recheck: Notify,
}

/// The sender of this gateway's flows to one peer.
struct PeerSender {
    address: String,
    inner: Mutex<SenderState>,
}

#[derive(Default)]
struct SenderState {
    connected: bool,
    trouble: Option<String>,
    accepted: u64,
    refused: u64,
    gaps: VecDeque<Duration>,
}

/// A gateway that advertises its flows to this one.
struct Source {
    from: SocketAddr,
    since: u64,
    taken: u64,
    refused: u64,
}

impl Source {
    fn new(from: SocketAddr) -> Self {
        Self { from, since: crate::now(), taken: 0, refused: 0 }
    }
}

impl PeerSender {
    fn inner(&self) -> MutexGuard<'_, SenderState> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn up(&self) {
        let mut inner = self.inner();
        (inner.connected, inner.trouble) = (true, None);
        tracing::info!(peer = self.address, "sent all flows to the peer gateway");
    }

    fn lost(&self, trouble: &str) {
        let mut inner = self.inner();
        if inner.trouble.as_deref() != Some(trouble) {
            tracing::warn!(peer = self.address, "cannot send flows to the peer gateway: {trouble}");
        }
        (inner.connected, inner.trouble) = (false, Some(trouble.to_owned()));
    }

    fn answered(&self, taken: u32, refused: u32, gap: Option<Duration>) {
        let mut inner = self.inner();
        inner.accepted += u64::from(taken);
        inner.refused += u64::from(refused);
        if let Some(gap) = gap {
            inner.gaps.push_back(gap);
            if inner.gaps.len() > GAPS {
                inner.gaps.pop_front();
            }
        }
    }

    fn view(&self) -> view::Peer {
        let inner = self.inner();
        let mut gaps: Vec<_> = inner.gaps.iter().map(|gap| gap.as_micros() as u64).collect();
        gaps.sort_unstable();
        view::Peer {
            address: self.address.clone(),
            connected: inner.connected,
            trouble: inner.trouble.clone(),
            advertised: inner.accepted,
            refused: inner.refused,
            gap_us: gaps.get(gaps.len() / 2).copied(),
            gap_max_us: gaps.last().copied(),
        }
    }
}

impl Peers {
    /// Creates the state for peers at these addresses.
    ///
    /// # Errors
    ///
    /// Fails if the system provides no random numbers.
    pub fn new(addresses: &[String]) -> Result<Self> {
        let state = |address: &String| PeerSender { address: address.clone(), inner: Mutex::default() };
        Ok(Self {
            id: getrandom::u64().context("cannot get random numbers")?,
            senders: addresses.iter().map(state).collect(),
            sources: Mutex::default(),
            received: Mutex::default(),
            recheck: Notify::new(),
        })
    }

    /// Reports whether a configured peer has this address.
    pub fn names(&self, address: IpAddr) -> bool {
        let host = |peer: &PeerSender| peer.address.rsplit_once(':')?.0.trim_matches(['[', ']']).parse::<IpAddr>().ok();
        self.senders.iter().any(|peer| host(peer) == Some(address))
    }

    /// Returns the state of the connection to each peer that this gateway advertises flows to.
    pub fn views(&self) -> Vec<view::Peer> {
        self.senders.iter().map(PeerSender::view).collect()
    }

    /// Returns the gateways that advertise their flows to this one.
    pub fn source_views(&self) -> Vec<view::PeerSource> {
        let view = |source: &Source| view::PeerSource {
            from: source.from,
            since: source.since,
            taken: source.taken,
            refused: source.refused,
        };
        self.sources().values().map(view).collect()
    }

    fn sources(&self) -> MutexGuard<'_, BTreeMap<u64, Source>> {
        self.sources.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn received(&self) -> MutexGuard<'_, ReceivedFlows> {
        self.received.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count_received(&self, id: u64, from: SocketAddr, taken: u32, refused: u32) {
        if let Some(source) = self.sources().get_mut(&id).filter(|source| source.from == from) {
            source.taken += u64::from(taken);
            source.refused += u64::from(refused);
        }
    }

    /// Removes a gateway whose connection ended, unless the gateway has connected again.
    fn forget_source(&self, id: u64, from: SocketAddr) {
        let mut sources = self.sources();
        if sources.get(&id).is_some_and(|source| source.from == from) {
            sources.remove(&id);
        }
    }
}

/// Sends this gateway's id and returns the other gateway's.
async fn greet<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut S, id: u64) -> Result<u64> {
    stream.write_all(Hello { version: VERSION, id: id.into() }.as_bytes()).await?;
    stream.flush().await?;
    let mut hello = Hello::new_zeroed();
    stream.read_exact(hello.as_mut_bytes()).await?;
    ensure!(
        hello.version == VERSION,
        "the peer's protocol is {}, and this gateway's is {}: run the same version of Vouchsafe on both",
        hello.version.escape_ascii(),
        VERSION.escape_ascii()
    );
    Ok(hello.id.get())
}

/// Returns nanoseconds since boot, on the clock of the kernel programs.
fn boot_time() -> u64 {
    let time = nix::time::clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME);
    time.map(Duration::from).unwrap_or_default().as_nanos() as u64
}
