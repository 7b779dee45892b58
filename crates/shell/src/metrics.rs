//! Metrics for Prometheus: a page that is made on request, over plain HTTP, without login. So it contains nothing about
//! persons, and the server listens only on an address that the operator configures.

use anyhow::{Context, Result};
use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::get;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Metric, Registry};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

/// Maximum number of concurrent readers.
const READERS: usize = 8;
/// Maximum time for the head of a request, and for a whole connection.
const TIMES: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(60));
/// Format of the page (OpenMetrics), which Prometheus has supported since 2.5.
const FORMAT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Labels of a metric, as names and values.
pub type Labels = Vec<(&'static str, String)>;

/// A page of metrics.
pub struct Page(Registry);

impl Page {
    /// Creates an empty page of a role: names begin with `vouchsafe_` and the role.
    pub fn new(role: &str) -> Self {
        Self(Registry::with_prefix(format!("vouchsafe_{role}")))
    }

    /// Adds a metric that keeps its own count.
    pub fn metric(&mut self, name: &str, help: &str, metric: impl Metric) {
        self.0.register(name, help, metric);
    }

    /// Adds a value that goes up and down.
    pub fn gauge(&mut self, name: &str, help: &str, value: f64) {
        let gauge = Gauge::<f64, AtomicU64>::default();
        gauge.set(value);
        self.0.register(name, help, gauge);
    }

    /// Adds values that go up and down, with labels.
    pub fn gauges(&mut self, name: &str, help: &str, values: impl IntoIterator<Item = (Labels, f64)>) {
        let family = Family::<Labels, Gauge<f64, AtomicU64>>::default();
        for (labels, value) in values {
            family.get_or_create(&labels).set(value);
        }
        self.0.register(name, help, family);
    }

    /// Adds counts that were made elsewhere, with labels. The name gets the suffix `_total`.
    pub fn counters(&mut self, name: &str, help: &str, values: impl IntoIterator<Item = (Labels, u64)>) {
        let family = Family::<Labels, Counter>::default();
        for (labels, value) in values {
            family.get_or_create(&labels).inc_by(value);
        }
        self.0.register(name, help, family);
    }

    /// Adds a count that was made elsewhere. The name gets the suffix `_total`.
    pub fn counter(&mut self, name: &str, help: &str, value: u64) {
        let counter = Counter::<u64>::default();
        counter.inc_by(value);
        self.0.register(name, help, counter);
    }

    /// Returns the page in OpenMetrics' text format.
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string can't fail.
        let _ = encode(&mut text, &self.0);
        text
    }
}

/// Returns a list of one label.
pub fn label(name: &'static str, value: impl Into<String>) -> Labels {
    vec![(name, value.into())]
}

/// Opens the listener for readers of metrics.
pub async fn listen(address: SocketAddr) -> Result<TcpListener> {
    if !address.ip().is_loopback() {
        tracing::warn!(%address, "anyone who can reach this address can read the metrics");
    }
    TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address} for metrics"))
}

/// Answers `GET /metrics` with the page that `page` makes, until the future is dropped.
pub async fn serve<F, P>(listener: TcpListener, page: F)
where
    F: Fn() -> P + Clone + Send + Sync + 'static,
    P: Future<Output = Result<Page>> + Send + 'static,
{
    let answer = async move || match page().await {
        Ok(page) => ([(CONTENT_TYPE, FORMAT)], page.text()).into_response(),
        Err(error) => {
            tracing::warn!("cannot serve the metrics: {error:#}");
            axum::http::StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    };
    let router = Router::new().route("/metrics", get(answer));
    let readers = Arc::new(Semaphore::new(READERS));
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Usually the process is out of file descriptors: connections that end will free some.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let Ok(place) = readers.clone().try_acquire_owned() else { continue };
        let router = router.clone();
        tokio::spawn(async move {
            let mut builder = Builder::new(TokioExecutor::new()).http1_only();
            builder.http1().timer(TokioTimer::new()).header_read_timeout(TIMES.0);
            let served = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
            let _ = tokio::time::timeout(TIMES.1, served).await;
            drop(place);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    async fn page() -> Result<Page> {
        let mut page = Page::new("test");
        page.counters("packets", "Packets", [(label("outcome", "admit\"ted"), 7)]);
        page.gauge("fill", "Fill", 0.5);
        Ok(page)
    }

    #[tokio::test]
    async fn a_page_is_served() {
        let listener = listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = listener.local_addr().unwrap();
        let served = tokio::spawn(serve(listener, page));
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
        assert!(answer.contains("vouchsafe_test_packets_total{outcome=\"admit\\\"ted\"} 7"), "{answer}");
        assert!(answer.contains("vouchsafe_test_fill 0.5"), "{answer}");
        served.abort();
    }

    #[tokio::test]
    async fn silent_readers_take_their_places_only() {
        let listener = listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = listener.local_addr().unwrap();
        let served = tokio::spawn(serve(listener, page));
        let mut silent = Vec::new();
        for _ in 0..READERS {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        let mut more = TcpStream::connect(address).await.unwrap();
        // The new reader is closed before any silent reader is.
        let closed = tokio::time::timeout(TIMES.0 / 2, more.read(&mut [0; 8])).await.expect("closed at once");
        assert_eq!(closed.unwrap_or_default(), 0, "no place");
        served.abort();
    }
}
