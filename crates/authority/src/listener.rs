//! Accepts connections: TLS, time limits, and seats, of which one source address can't take all.

use crate::extract::Peer;
use crate::throttle::Key;
use axum::{Extension, Router};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use rustls::ServerConfig;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

/// How long a TLS handshake may take.
const HANDSHAKE_TIME: Duration = Duration::from_secs(5);
/// How long the head of an HTTP/1 request may take.
const HEAD_TIME: Duration = Duration::from_secs(10);
/// How long a connection may stay without a valid credential.
const UNPROVEN_TIME: Duration = Duration::from_secs(30);
/// Silence after which an HTTP/2 client is asked whether it lives, and how long it has to answer.
const PING: (Duration, Duration) = (Duration::from_secs(20), Duration::from_secs(10));

/// Calls at a time on one HTTP/2 connection; with [`WINDOW`], what a stranger can make the authority hold.
const STREAMS: u32 = 32;
/// Bytes that may be under way to us, per HTTP/2 stream and connection.
const WINDOW: u32 = 64 * 1024;

/// Serves `router` until the future is dropped, which closes all connections.
pub async fn serve(listener: TcpListener, tls: Arc<ServerConfig>, router: Router, most: u32) {
    let acceptor = TlsAcceptor::from(tls);
    let seats = Arc::new(Seats { taken: Mutex::default(), most, most_per_source: most.div_ceil(4) });
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next() => continue,
        };
        let (stream, address) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of file descriptors, mostly: those that end will free some.
                tracing::warn!("can't accept connections: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let peer = Peer { address: address.ip().to_canonical(), proven: Arc::new(AtomicBool::new(false)) };
        let Some(seat) = seats.take(Key::source(peer.address)) else {
            tracing::debug!(%address, "no seat for another connection");
            continue;
        };
        let (acceptor, router) = (acceptor.clone(), router.clone());
        connections.spawn(async move {
            if let Err(error) = connection(stream, acceptor, router, peer).await {
                tracing::debug!(%address, "connection: {error}");
            }
            drop(seat);
        });
    }
}

async fn connection(
    stream: TcpStream,
    acceptor: TlsAcceptor,
    router: Router,
    peer: Peer,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    stream.set_nodelay(true)?;
    let stream = tokio::time::timeout(HANDSHAKE_TIME, acceptor.accept(stream)).await??;
    let proven = peer.proven.clone();
    let service = TowerToHyperService::new(router.layer(Extension(peer)));
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEAD_TIME);
    let mut http2 = builder.http2();
    http2.timer(TokioTimer::new()).keep_alive_interval(PING.0).keep_alive_timeout(PING.1);
    http2.max_concurrent_streams(STREAMS).initial_stream_window_size(WINDOW).initial_connection_window_size(WINDOW);
    let builder = match stream.get_ref().1.alpn_protocol() {
        Some(b"h2") => builder.http2_only(),
        _ => builder.http1_only(),
    };
    let mut served = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), service));
    tokio::select! {
        served = &mut served => return served,
        () = tokio::time::sleep(UNPROVEN_TIME) => {}
    }
    if proven.load(Ordering::Relaxed) { served.await } else { Err("no credential in time".into()) }
}

struct Seats {
    taken: Mutex<Taken>,
    most: u32,
    most_per_source: u32,
}

#[derive(Default)]
struct Taken {
    all: u32,
    by_source: HashMap<IpAddr, u32>,
}

/// A place that a connection holds until this is dropped.
struct Seat {
    seats: Arc<Seats>,
    source: IpAddr,
}

impl Seats {
    fn take(self: &Arc<Self>, source: IpAddr) -> Option<Seat> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let own = taken.by_source.get(&source).copied().unwrap_or(0);
        if taken.all >= self.most || own >= self.most_per_source {
            return None;
        }
        taken.by_source.insert(source, own + 1);
        taken.all += 1;
        Some(Seat { seats: self.clone(), source })
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut taken = self.seats.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.all -= 1;
        let Some(own) = taken.by_source.get_mut(&self.source) else { return };
        *own -= 1;
        if *own == 0 {
            taken.by_source.remove(&self.source);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_source_cant_take_all_seats() {
        let seats = Arc::new(Seats { taken: Mutex::default(), most: 4, most_per_source: 2 });
        let source = |n| IpAddr::from([192, 0, 2, n]);
        let held = (seats.take(source(1)), seats.take(source(1)));
        assert!(held.0.is_some() && held.1.is_some() && seats.take(source(1)).is_none());
        let others = [seats.take(source(2)), seats.take(source(3))];
        assert!(others.iter().all(Option::is_some) && seats.take(source(4)).is_none());
        drop(held);
        assert!(seats.take(source(1)).is_some());
    }
}
