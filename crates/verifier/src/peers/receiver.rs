//! Listens to other gateways and takes over the flows that they advertise.

use super::advertiser::FlowState;
use super::record::{Head, RECORDS_MAX, Record, Reply};
use super::{PATIENCE, Peers, SILENCE, Source, greet};
use crate::now;
use crate::shared::Shared;
use anyhow::{Context, Result, bail, ensure};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tokio_rustls::server::TlsStream;
use zerocopy::{FromZeros, IntoBytes};

/// Maximum number of concurrent connections of authenticated gateways, and of each class of peers not yet
/// authenticated.
const ROOM: usize = 16;

/// Accepts connections from other gateways until the task is aborted.
pub async fn serve(listener: TcpListener, peers: Arc<Peers>, shared: Arc<Shared>) {
    let [known, named, strangers] = [(); 3].map(|()| Arc::new(Semaphore::new(ROOM)));
    loop {
        let (stream, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!("cannot accept a connection to `peer_listen`: {error}");
                sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        // Configured peers do not compete with unauthenticated senders for connections.
        let room = if peers.names(from.ip().to_canonical()) { &named } else { &strangers };
        let Ok(permit) = room.clone().try_acquire_owned() else { continue };
        let (peers, shared, known) = (peers.clone(), shared.clone(), known.clone());
        tokio::spawn(async move {
            let proved = timeout(PATIENCE, prove(stream, &peers, &shared)).await;
            drop(permit);
            let (stream, id) =
                match proved.with_context(|| format!("the handshake took longer than {PATIENCE:?}")).flatten() {
                    Ok(proved) => proved,
                    Err(error) => return tracing::debug!(%from, "rejected a connection to `peer_listen`: {error:#}"),
                };
            let Ok(_permit) = known.try_acquire_owned() else {
                return tracing::warn!(%from, "rejected a peer gateway: {ROOM} are connected already");
            };
            tracing::info!(%from, "a peer gateway connected");
            peers.sources().insert(id, Source::new(from));
            let error = receive(stream, id, from, &peers, &shared).await;
            peers.forget_source(id, from);
            if let Err(error) = error {
                tracing::info!(%from, "a peer gateway disconnected: {error:#}");
            }
        });
    }
}

async fn prove(stream: TcpStream, peers: &Peers, shared: &Shared) -> Result<(TlsStream<TcpStream>, u64)> {
    stream.set_nodelay(true)?;
    let identity = Arc::new(shared.kernel().identity(now())?);
    let mut stream = identity.accept(stream).await?;
    let id = greet(&mut stream, peers.id).await?;
    ensure!(id != peers.id, "the peer is this gateway itself: remove it from `peers`");
    Ok((stream, id))
}

fn silent() -> String {
    format!("the peer sent nothing for {SILENCE:?}")
}

async fn receive(
    mut stream: TlsStream<TcpStream>,
    id: u64,
    from: SocketAddr,
    peers: &Arc<Peers>,
    shared: &Arc<Shared>,
) -> Result<()> {
    let since = shared.kernel().epoch(now()).0;
    loop {
        let mut head = Head::new_zeroed();
        let read = timeout(SILENCE, stream.read_exact(head.as_mut_bytes())).await.with_context(silent)?;
        read.context("the connection was lost")?;
        let count = head.records.get() as usize;
        ensure!(
            count <= RECORDS_MAX,
            "the peer's message announces {count} flows, but at most {RECORDS_MAX} are possible"
        );
        let mut records = vec![Record::new_zeroed(); count];
        timeout(SILENCE, stream.read_exact(records.as_mut_bytes())).await.with_context(silent)??;
        // A gateway must authenticate again once the key that it proved is no longer valid.
        let epoch = shared.kernel().epoch(now()).0;
        if epoch == 0 || epoch > since + 1 {
            bail!("the keys that the peer authenticated with have expired: it has to connect again");
        }
        let (taking, source) = (shared.clone(), peers.clone());
        let taken = tokio::task::spawn_blocking(move || take(&source, &taking, &records)).await??;
        let refused = count as u32 - taken;
        if head.whole.get() == 1 {
            // The peer may not yet know of flows that were cut here before it advertised them.
            peers.recheck.notify_one();
        }
        peers.count_received(id, from, taken, refused);
        let reply = Reply { number: head.number, taken: taken.into(), refused: refused.into() };
        let write = async {
            stream.write_all(reply.as_bytes()).await?;
            stream.flush().await
        };
        timeout(SILENCE, write)
            .await
            .with_context(|| format!("the peer did not read the answer within {SILENCE:?}"))??;
    }
}

/// Takes flows over; returns how many of them are in the tables.
fn take(peers: &Peers, shared: &Shared, records: &[Record]) -> Result<u32> {
    let kernel = shared.kernel();
    let now = now() as u32;
    let mut taken = 0;
    for advertised in records.iter().filter_map(|record| record.decode(now)) {
        // Record the flow before it is in the table: otherwise a pass in between would take it for one of this
        // gateway's own.
        let before = peers.received().insert(advertised.key, FlowState::from(&advertised.flow));
        if kernel.take_over(&advertised, now)? {
            taken += 1;
            continue;
        }
        match before {
            Some(before) => peers.received().insert(advertised.key, before),
            None => peers.received().remove(&advertised.key),
        };
        let (client, server) = (advertised.key.client(), advertised.key.server());
        tracing::debug!(?client, ?server, "cannot take over a peer gateway's flow");
    }
    Ok(taken)
}
