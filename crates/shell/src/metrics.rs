//! Metrics for Prometheus: a page that is made on request and served over plain HTTP without login. Because everybody
//! can read the page, it contains nothing about persons, and the server listens only on an address that the operator
//! configures.

use crate::http;
use anyhow::{Context, Result};
use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::get;
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
/// Maximum times for a reader.
const TIMES: http::Times = http::Times { head: Duration::from_secs(5), whole: Duration::from_secs(60) };
/// Format of the page (OpenMetrics), which Prometheus has supported since 2.5.
const FORMAT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Labels of a metric, as names and values.
pub type Labels = Vec<(&'static str, String)>;

/// A page of metrics for Prometheus.
pub struct Page(Registry);

impl Page {
    /// Creates an empty page of the program `role`, such as `agent`. The names of all metrics on the page begin with
    /// `vouchsafe_` and `role`.
    pub fn new(role: &str) -> Self {
        Self(Registry::with_prefix(format!("vouchsafe_{role}")))
    }

    /// Adds `metric`, a metric that stores its own values, such as a histogram.
    pub fn metric(&mut self, name: &str, help: &str, metric: impl Metric) {
        self.0.register(name, help, metric);
    }

    /// Adds a gauge: a value that goes up and down.
    pub fn gauge(&mut self, name: &str, help: &str, value: f64) {
        let gauge = Gauge::<f64, AtomicU64>::default();
        gauge.set(value);
        self.0.register(name, help, gauge);
    }

    /// Adds a gauge with several values, each with its labels.
    pub fn gauges(&mut self, name: &str, help: &str, values: impl IntoIterator<Item = (Labels, f64)>) {
        let family = Family::<Labels, Gauge<f64, AtomicU64>>::default();
        for (labels, value) in values {
            family.get_or_create(&labels).set(value);
        }
        self.0.register(name, help, family);
    }

    /// Adds a counter with several values, each with its labels. The name gets the suffix `_total`.
    pub fn counters(&mut self, name: &str, help: &str, values: impl IntoIterator<Item = (Labels, u64)>) {
        let family = Family::<Labels, Counter>::default();
        for (labels, value) in values {
            family.get_or_create(&labels).inc_by(value);
        }
        self.0.register(name, help, family);
    }

    /// Adds a counter with one value. The name gets the suffix `_total`.
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

/// Returns a list that contains one label.
pub fn label(name: &'static str, value: impl Into<String>) -> Labels {
    vec![(name, value.into())]
}

/// Opens the listener for readers of metrics. Logs a warning if the address is not a loopback address.
///
/// # Errors
///
/// Fails if the address is in use or does not belong to this host.
pub async fn listen(address: SocketAddr) -> Result<TcpListener> {
    if !address.ip().is_loopback() {
        tracing::warn!(%address, "anyone who can reach this address can read the metrics");
    }
    TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address} for metrics"))
}

/// Answers `GET /metrics` with the page that `page` returns, until the caller drops the returned future.
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
            http::converse(stream, router, TIMES).await;
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
        let closed = tokio::time::timeout(TIMES.head / 2, more.read(&mut [0; 8])).await.expect("closed at once");
        assert_eq!(closed.unwrap_or_default(), 0, "no place");
        served.abort();
    }
}
