//! Accepts connections, and applies TLS, time limits and the connection limit to them.

use crate::http::connection_limit::ConnectionLimit;
use crate::http::peer::Peer;
use crate::http::throttle::{Key, Throttle};
use crate::http::tls_stream::TlsStream;
use axum::{Extension, Router};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use nix::sys::socket::{setsockopt, sockopt};
use rustls::ServerConfig;
use std::error::Error;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tower_layer::Layer;

/// Time limit for a TLS handshake.
const HANDSHAKE_TIME: Duration = Duration::from_secs(5);
/// Time limit for receiving the head of an HTTP/1 request.
const HEAD_TIME: Duration = Duration::from_secs(10);
/// Maximum length of the head of an HTTP/1 request, in bytes. HTTP/2 has the same limit. This is also the maximum size
/// of the buffer for an HTTP/1 response.
const HEAD: usize = 16 * 1024;
/// Time in milliseconds after which the kernel closes a connection whose client does not acknowledge what was sent. A
/// stream of events over HTTP/1 has no pings, but it has an event every 10 s.
const UNACKNOWLEDGED: u32 = 30_000;
/// Maximum time that a connection may stay open without a valid credential.
const UNPROVEN_TIME: Duration = Duration::from_secs(30);
/// Time of silence after which an HTTP/2 client is pinged, and the time limit for its answer.
const PING: (Duration, Duration) = (Duration::from_secs(20), Duration::from_secs(10));

/// Maximum number of concurrent calls on one HTTP/2 connection; with [`WINDOW`], this bounds the memory that an
/// unauthenticated sender can occupy.
const STREAMS: u32 = 32;
/// Flow-control window in bytes, per HTTP/2 stream and per connection.
const WINDOW: u32 = 64 * 1024;

type Failure = Box<dyn Error + Send + Sync>;
/// An open connection: a future that ends with the connection.
type Open = Pin<Box<dyn Future<Output = Result<(), Failure>> + Send>>;

/// Serves `router` on the connections that `listener` accepts. Never returns. Dropping the future closes all
/// connections.
pub async fn serve(
    listener: TcpListener,
    tls: Arc<ServerConfig>,
    router: Router,
    limit: Arc<ConnectionLimit>,
    throttle: Arc<Throttle>,
) {
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next() => continue,
        };
        let (stream, address) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // The process has usually run out of file descriptors; connections that end will free some.
                tracing::warn!("cannot accept an HTTPS connection; trying again: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let peer = Peer::new(address, stream.local_addr().ok());
        let opens = [Key::Connection(Key::source(peer.address))];
        if throttle.charge(&opens, std::time::Instant::now()).is_err() {
            limit.turn_away();
            tracing::debug!(%address, "refused a connection: too many from this address");
            continue;
        }
        let Some(permit) = limit.admit(&peer) else {
            tracing::debug!(%address, "refused a connection: too many are open");
            continue;
        };
        let (tls, router) = (tls.clone(), router.clone());
        connections.spawn(async move {
            tokio::select! {
                served = connection(stream, tls, router, peer) => if let Err(error) = served {
                    tracing::debug!(%address, "connection failed: {error}");
                },
                () = permit.evicted() => tracing::debug!(%address, "closed the connection to make room for another"),
            }
        });
    }
}

async fn connection(stream: TcpStream, tls: Arc<ServerConfig>, router: Router, peer: Peer) -> Result<(), Failure> {
    stream.set_nodelay(true)?;
    setsockopt(&stream, sockopt::TcpUserTimeout, &UNACKNOWLEDGED)?;
    // A handshake needs much more memory than an open connection. In a box, this memory is free again afterwards.
    let mut served = Box::pin(tokio::time::timeout(HANDSHAKE_TIME, open(stream, tls, router, peer.clone()))).await??;
    tokio::select! {
        served = &mut served => return served,
        () = tokio::time::sleep(UNPROVEN_TIME) => {}
    }
    if peer.is_proven() { served.await } else { Err("the client presented no credential in time".into()) }
}

/// Does the TLS handshake. Returns the open connection in a box, so that no part of it takes memory twice.
async fn open(stream: TcpStream, tls: Arc<ServerConfig>, router: Router, peer: Peer) -> Result<Open, Failure> {
    let stream = TlsStream::accept(stream, tls).await?;
    // The layer goes around the router. `Router::layer` would copy every route, for each connection.
    let service = TowerToHyperService::new(Extension(peer).layer(router));
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEAD_TIME).max_buf_size(HEAD);
    let mut http2 = builder.http2();
    http2.timer(TokioTimer::new()).keep_alive_interval(PING.0).keep_alive_timeout(PING.1);
    http2.max_concurrent_streams(STREAMS).initial_stream_window_size(WINDOW).initial_connection_window_size(WINDOW);
    let builder = match stream.alpn_protocol() {
        Some(b"h2") => builder.http2_only(),
        _ => builder.http1_only(),
    };
    Ok(Box::pin(builder.serve_connection(TokioIo::new(stream), service).into_owned()))
}
