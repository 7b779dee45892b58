//! Plain HTTP/1 on a connection that the caller has accepted. The caller decides who may connect.

use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};

/// The time limits of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// Maximum time for a client to send the head of a request.
    pub head: Duration,
    /// Maximum time for the whole connection.
    pub whole: Duration,
}

/// Answers the requests on a connection until the client closes it, or until a time limit ends it.
pub async fn converse(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, router: Router, times: Times) {
    let mut builder = Builder::new(TokioExecutor::new()).http1_only();
    builder.http1().timer(TokioTimer::new()).header_read_timeout(times.head);
    let served = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    // A client that breaks off, or that is too slow, has no right to an answer.
    let _ = tokio::time::timeout(times.whole, served).await;
}
