//! Advertises this gateway's flows to one other gateway: all flows at first, then each new flow as it begins, and
//! periodically the flows that have changed. Starts over whenever the connection ends.

use super::advertiser::{Advertiser, ReceivedFlows};
use super::record::{AdvertisedFlow, Head, RECORDS_MAX, Record, Reply};
use super::{PATIENCE, PeerSender, Peers, SILENCE, boot_time, greet};
use crate::now;
use crate::shared::Shared;
use anyhow::{Context, Result, bail, ensure};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, split};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tokio_rustls::client::TlsStream;
use wire::Epoch;
use wire::map::{Flow, FlowKey, FlowNews};
use zerocopy::{FromZeros, IntoBytes};

/// Interval of passes over all flows to find those that have changed; each pass also keeps the connection alive.
const PASS: Duration = Duration::from_secs(2);
/// Pause after a connection failed.
const PAUSE: Duration = Duration::from_secs(1);

/// Frames without a reply yet: the number of each, and when the oldest new flow in it began, in nanoseconds since boot.
#[derive(Default)]
struct Unanswered(Mutex<VecDeque<(u64, Option<u64>)>>);

impl Unanswered {
    fn queue(&self) -> MutexGuard<'_, VecDeque<(u64, Option<u64>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Advertises flows to one peer until the task is aborted.
pub async fn keep(peers: Arc<Peers>, shared: Arc<Shared>, index: usize, mut news: mpsc::Receiver<FlowNews>) {
    let state = &peers.senders[index];
    loop {
        if let Err(error) = talk(&peers, &shared, state, &mut news).await {
            state.lost(&format!("{error:#}"));
            // Clearing is safe: only passes remove entries otherwise, and the first pass of a connection ignores the
            // entries.
            peers.received().clear();
            sleep(PAUSE).await;
        }
    }
}

async fn talk(
    peers: &Arc<Peers>,
    shared: &Arc<Shared>,
    state: &PeerSender,
    news: &mut mpsc::Receiver<FlowNews>,
) -> Result<()> {
    let (identity, epoch) = {
        let kernel = shared.kernel();
        (Arc::new(kernel.identity(now())?), kernel.epoch(now()))
    };
    let connect = async {
        let stream = TcpStream::connect(&state.address).await.context("cannot connect")?;
        stream.set_nodelay(true)?;
        identity.connect(stream).await.context("the peer cannot be authenticated as a gateway of this verifier")
    };
    let mut stream = timeout(PATIENCE, connect).await.with_context(no_answer)??;
    let theirs = timeout(PATIENCE, greet(&mut stream, peers.id)).await.with_context(no_answer)??;
    ensure!(theirs != peers.id, "the peer is this gateway itself: remove it from `peers`");
    let (reader, writer) = split(stream);
    let unanswered = Unanswered::default();
    let mut writer = Writer { writer, number: 0, unanswered: &unanswered };
    tokio::select! {
        ended = receive_replies(reader, state, &unanswered) => ended,
        ended = send(peers, shared, epoch, state, news, &mut writer) => ended,
    }
}

fn no_answer() -> String {
    format!("the peer did not complete the handshake within {PATIENCE:?}")
}

async fn send<W: AsyncWrite + Unpin>(
    peers: &Arc<Peers>,
    shared: &Arc<Shared>,
    epoch: Epoch,
    state: &PeerSender,
    news: &mut mpsc::Receiver<FlowNews>,
    writer: &mut Writer<'_, W>,
) -> Result<()> {
    let mut advertiser = Advertiser::default();
    // The first pass covers flows that began before this point.
    while news.try_recv().is_ok() {}
    let mut begun = Vec::with_capacity(RECORDS_MAX);
    let mut passes = interval(PASS);
    passes.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut first = true;
    loop {
        tokio::select! {
            count = news.recv_many(&mut begun, RECORDS_MAX) => {
                ensure!(count > 0, "the verifier is stopping");
                let oldest = begun.iter().map(|news| news.time).min();
                let advertised = new_flows(shared, &mut advertiser, &begun);
                begun.clear();
                if !advertised.is_empty() {
                    writer.frame(&advertised, oldest, false).await?;
                }
            }
            _ = passes.tick() => {
                if shared.kernel().epoch(now()) != epoch {
                    // Reconnect, to authenticate with the key of the new epoch.
                    return Ok(());
                }
                let (advertised, back) = pass(peers.clone(), shared.clone(), advertiser, first).await?;
                advertiser = back;
                let mut frames = advertised.chunks(RECORDS_MAX).peekable();
                while let Some(frame) = frames.next() {
                    writer.frame(frame, None, first && frames.peek().is_none()).await?;
                }
                if advertised.is_empty() {
                    writer.frame(&[], None, first).await?;
                }
                if first {
                    state.up();
                }
                first = false;
            }
        }
    }
}

/// Returns the records for new flows in their current state. Omits flows that have ended since, so that the peer does
/// not create them.
fn new_flows(shared: &Shared, advertiser: &mut Advertiser, begun: &[FlowNews]) -> Vec<AdvertisedFlow> {
    let kernel = shared.kernel();
    let standing = begun.iter().filter_map(|news| Some((news.key, kernel.flow_at(&news.key)?)));
    let advertised = standing.filter(|(key, flow)| kernel.can_advertise(key, flow) && advertiser.begins(key, flow));
    advertised.filter_map(|(key, flow)| kernel.advertised_form(key, flow, true)).collect()
}

/// Passes over all flows and returns the records to send. Runs on a thread of its own, because long tables take a
/// while.
async fn pass(
    peers: Arc<Peers>,
    shared: Arc<Shared>,
    mut advertiser: Advertiser,
    first: bool,
) -> Result<(Vec<AdvertisedFlow>, Advertiser)> {
    let look = move || {
        let kernel = shared.kernel();
        let mut flows: Vec<(FlowKey, Flow)> = kernel.flows();
        flows.retain(|(key, flow)| kernel.can_advertise(key, flow));
        let mut received = peers.received();
        let nothing = ReceivedFlows::new();
        let theirs = if first { &nothing } else { &*received };
        let news = advertiser.pass(flows, theirs, &kernel.limits(), now() as u32);
        received.retain(|key, _| advertiser.knows(key));
        drop(received);
        let advertised = news.into_iter().filter_map(|(key, flow, begins)| kernel.advertised_form(key, flow, begins));
        (advertised.collect(), advertiser)
    };
    Ok(tokio::task::spawn_blocking(look).await?)
}

/// Writes frames to one peer.
struct Writer<'a, W> {
    writer: W,
    number: u64,
    unanswered: &'a Unanswered,
}

impl<W: AsyncWrite + Unpin> Writer<'_, W> {
    async fn frame(&mut self, advertised: &[AdvertisedFlow], oldest: Option<u64>, whole: bool) -> Result<()> {
        let now = now() as u32;
        let records: Vec<Record> = advertised.iter().filter_map(|flow| Record::of(flow, now)).collect();
        self.number += 1;
        let head =
            Head { number: self.number.into(), records: (records.len() as u32).into(), whole: u32::from(whole).into() };
        self.unanswered.queue().push_back((self.number, oldest));
        let bytes = [head.as_bytes(), records.as_bytes()].concat();
        let write = async {
            self.writer.write_all(&bytes).await?;
            self.writer.flush().await
        };
        timeout(SILENCE, write)
            .await
            .with_context(|| format!("the peer read nothing for {SILENCE:?}"))?
            .context("the connection was lost")
    }
}

async fn receive_replies(
    mut reader: ReadHalf<TlsStream<TcpStream>>,
    state: &PeerSender,
    unanswered: &Unanswered,
) -> Result<()> {
    loop {
        let mut reply = Reply::new_zeroed();
        let read = timeout(SILENCE, reader.read_exact(reply.as_mut_bytes()))
            .await
            .with_context(|| format!("the peer answered nothing for {SILENCE:?}"))?;
        read.context("the connection was lost")?;
        let Some((number, oldest)) = unanswered.queue().pop_front() else {
            bail!("the peer sent an answer, but it has already answered every message of this gateway")
        };
        ensure!(
            reply.number.get() == number,
            "the peer answered message {}, but this gateway expects the answer to message {number}",
            reply.number.get()
        );
        let gap = oldest.map(|oldest| Duration::from_nanos(boot_time().saturating_sub(oldest)));
        state.answered(reply.taken.get(), reply.refused.get(), gap);
    }
}
