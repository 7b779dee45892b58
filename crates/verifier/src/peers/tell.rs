//! Announces the flows here to one other gateway: all flows at first, then each new flow as it begins, and periodically
//! those that have changed. Starts over whenever the connection ends.

use super::record::{Head, RECORDS_MAX, Record, Reply, Told};
use super::teller::{Heard, Teller};
use super::{PATIENCE, Peers, SILENCE, Standing, boot_time, greet};
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

/// Frames without a reply yet: number, and when the oldest of the new flows in it began, in nanoseconds since boot.
#[derive(Default)]
struct Unanswered(Mutex<VecDeque<(u64, Option<u64>)>>);

impl Unanswered {
    fn queue(&self) -> MutexGuard<'_, VecDeque<(u64, Option<u64>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Announces flows to one peer until the task is aborted.
pub async fn keep(peers: Arc<Peers>, shared: Arc<Shared>, index: usize, mut news: mpsc::Receiver<FlowNews>) {
    let state = &peers.told[index];
    loop {
        if let Err(error) = talk(&peers, &shared, state, &mut news).await {
            state.lost(&format!("{error:#}"));
            // Safe: entries are otherwise removed by passes only, and the first pass of a connection ignores them.
            peers.heard().clear();
            sleep(PAUSE).await;
        }
    }
}

async fn talk(
    peers: &Arc<Peers>,
    shared: &Arc<Shared>,
    state: &Standing,
    news: &mut mpsc::Receiver<FlowNews>,
) -> Result<()> {
    let (identity, epoch) = {
        let protection = shared.protection();
        (Arc::new(protection.identity(now())?), protection.epoch(now()))
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
        ended = hear_answers(reader, state, &unanswered) => ended,
        ended = tell(peers, shared, epoch, state, news, &mut writer) => ended,
    }
}

fn no_answer() -> String {
    format!("no answer within {PATIENCE:?}")
}

async fn tell<W: AsyncWrite + Unpin>(
    peers: &Arc<Peers>,
    shared: &Arc<Shared>,
    epoch: Epoch,
    state: &Standing,
    news: &mut mpsc::Receiver<FlowNews>,
    writer: &mut Writer<'_, W>,
) -> Result<()> {
    let mut teller = Teller::default();
    // Flows that began before this point are covered by the first pass.
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
                let told = fresh(shared, &mut teller, &begun);
                begun.clear();
                if !told.is_empty() {
                    writer.frame(&told, oldest, false).await?;
                }
            }
            _ = passes.tick() => {
                if shared.protection().epoch(now()) != epoch {
                    // Reconnect, to authenticate with the key of the new epoch.
                    return Ok(());
                }
                let (told, back) = pass(peers.clone(), shared.clone(), teller, first).await?;
                teller = back;
                let mut frames = told.chunks(RECORDS_MAX).peekable();
                while let Some(frame) = frames.next() {
                    writer.frame(frame, None, first && frames.peek().is_none()).await?;
                }
                if told.is_empty() {
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

/// Returns the records for new flows in their current state. A flow that has ended meanwhile must not be created there.
fn fresh(shared: &Shared, teller: &mut Teller, begun: &[FlowNews]) -> Vec<Told> {
    let protection = shared.protection();
    let standing = begun.iter().filter_map(|news| Some((news.key, protection.flow_at(&news.key)?)));
    let told = standing.filter(|(key, flow)| protection.tells_of(flow) && teller.begins(key, flow));
    told.filter_map(|(key, flow)| protection.to_tell(key, flow, true)).collect()
}

/// Passes over all flows and returns the records to send. Runs on a thread of its own: long tables take a while.
async fn pass(peers: Arc<Peers>, shared: Arc<Shared>, mut teller: Teller, first: bool) -> Result<(Vec<Told>, Teller)> {
    let look = move || {
        let protection = shared.protection();
        let mut flows: Vec<(FlowKey, Flow)> = protection.flows();
        flows.retain(|(_, flow)| protection.tells_of(flow));
        let mut heard = peers.heard();
        let nothing = Heard::new();
        let theirs = if first { &nothing } else { &*heard };
        let news = teller.pass(flows, theirs, &protection.limits(), now() as u32);
        heard.retain(|key, _| teller.knows(key));
        drop(heard);
        let told = news.into_iter().filter_map(|(key, flow, begins)| protection.to_tell(key, flow, begins));
        (told.collect(), teller)
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
    async fn frame(&mut self, told: &[Told], oldest: Option<u64>, whole: bool) -> Result<()> {
        let now = now() as u32;
        let records: Vec<Record> = told.iter().filter_map(|told| Record::of(told, now)).collect();
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

async fn hear_answers(
    mut reader: ReadHalf<TlsStream<TcpStream>>,
    state: &Standing,
    unanswered: &Unanswered,
) -> Result<()> {
    loop {
        let mut reply = Reply::new_zeroed();
        let read = timeout(SILENCE, reader.read_exact(reply.as_mut_bytes()))
            .await
            .with_context(|| format!("the peer answered nothing for {SILENCE:?}"))?;
        read.context("the connection was lost")?;
        let Some((number, oldest)) = unanswered.queue().pop_front() else {
            bail!("the peer answered, although nothing that was sent to it is unacknowledged")
        };
        ensure!(reply.number.get() == number, "the peer's answer is to message {}, not {number}", reply.number.get());
        let gap = oldest.map(|oldest| Duration::from_nanos(boot_time().saturating_sub(oldest)));
        state.answered(reply.taken.get(), reply.refused.get(), gap);
    }
}
