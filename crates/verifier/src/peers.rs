//! Gateways that stand side by side, as one verifier to the authority: each tells the others of the flows that begin, go on
//! and end at it, and brings in what they tell, so that a flow passes wherever routing takes it (wire.md §6.10).
//!
//! One connection for each direction, by whoever tells. Decides nothing about packets.

pub mod channel;
mod exchange;
mod hear;
pub mod record;
mod tell;
pub mod teller;

pub use exchange::{Running, listen, start};

use crate::view;
use anyhow::{Context, Result, ensure};
use record::{Hello, VERSION};
use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use teller::Heard;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::Notify;
use zerocopy::{FromZeros, IntoBytes};

/// How long a connection may take to stand.
const PATIENCE: Duration = Duration::from_secs(5);
/// Silence after which it counts as lost: each side says something every two seconds.
const SILENCE: Duration = Duration::from_secs(10);
/// Of how many tellings the gap is known.
const GAPS: usize = 256;

/// What is known of the gateways beside this one.
pub struct Peers {
    id: u64,
    told: Vec<Standing>,
    sources: Mutex<BTreeMap<u64, Source>>,
    heard: Mutex<Heard>,
    /// Woken when another has told all its flows: of those some may be over.
    pub recheck: Notify,
}

/// How telling one of them goes.
struct Standing {
    address: String,
    inner: Mutex<Telling>,
}

#[derive(Default)]
struct Telling {
    connected: bool,
    trouble: Option<String>,
    told: u64,
    refused: u64,
    gaps: VecDeque<Duration>,
}

/// Somebody who tells.
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

impl Standing {
    fn inner(&self) -> MutexGuard<'_, Telling> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn up(&self) {
        let mut inner = self.inner();
        (inner.connected, inner.trouble) = (true, None);
        tracing::info!(peer = self.address, "told of all flows");
    }

    fn lost(&self, trouble: &str) {
        let mut inner = self.inner();
        if inner.trouble.as_deref() != Some(trouble) {
            tracing::warn!(peer = self.address, "cannot tell of flows: {trouble}");
        }
        (inner.connected, inner.trouble) = (false, Some(trouble.to_owned()));
    }

    fn answered(&self, taken: u32, refused: u32, gap: Option<Duration>) {
        let mut inner = self.inner();
        inner.told += u64::from(taken);
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
            told: inner.told,
            refused: inner.refused,
            gap_us: gaps.get(gaps.len() / 2).copied(),
            gap_max_us: gaps.last().copied(),
        }
    }
}

impl Peers {
    /// For the gateways at these addresses.
    pub fn new(addresses: &[String]) -> Result<Self> {
        let state = |address: &String| Standing { address: address.clone(), inner: Mutex::default() };
        Ok(Self {
            id: getrandom::u64().context("no randomness")?,
            told: addresses.iter().map(state).collect(),
            sources: Mutex::default(),
            heard: Mutex::default(),
            recheck: Notify::new(),
        })
    }

    /// Whether one of those that are told is configured by this address.
    pub fn names(&self, address: IpAddr) -> bool {
        let host = |peer: &Standing| peer.address.rsplit_once(':')?.0.trim_matches(['[', ']']).parse::<IpAddr>().ok();
        self.told.iter().any(|peer| host(peer) == Some(address))
    }

    /// How it stands with each that is told.
    pub fn told(&self) -> Vec<view::Peer> {
        self.told.iter().map(Standing::view).collect()
    }

    /// Who tells.
    pub fn heard_of(&self) -> Vec<view::PeerSource> {
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

    fn heard(&self) -> MutexGuard<'_, Heard> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn heard_from(&self, id: u64, from: SocketAddr, taken: u32, refused: u32) {
        if let Some(source) = self.sources().get_mut(&id).filter(|source| source.from == from) {
            source.taken += u64::from(taken);
            source.refused += u64::from(refused);
        }
    }

    /// Forgets somebody who is gone, unless they have come again meanwhile.
    fn forget_source(&self, id: u64, from: SocketAddr) {
        let mut sources = self.sources();
        if sources.get(&id).is_some_and(|source| source.from == from) {
            sources.remove(&id);
        }
    }
}

/// Says who this is; gives who the other is.
async fn greet<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut S, id: u64) -> Result<u64> {
    stream.write_all(Hello { version: VERSION, id: id.into() }.as_bytes()).await?;
    stream.flush().await?;
    let mut hello = Hello::new_zeroed();
    stream.read_exact(hello.as_mut_bytes()).await?;
    ensure!(hello.version == VERSION, "it speaks another version");
    Ok(hello.id.get())
}

/// Nanoseconds since boot, as the kernel programs read it.
fn boot_time() -> u64 {
    let time = nix::time::clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME);
    time.map(Duration::from).unwrap_or_default().as_nanos() as u64
}
