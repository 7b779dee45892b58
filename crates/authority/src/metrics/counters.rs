//! The counters of calls, and the metrics page.

use super::cluster::{self, ClusterSnapshot};
use crate::storage::{Head, Trail};
use crate::webhook::WebhookState;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use shell::metrics::{Labels, Page, label};

/// The result under which the metrics count a failed call: the type of the problem that the response reports. Each
/// response that reports a problem carries this value in its extensions.
#[derive(Clone, Copy)]
pub struct Outcome(pub &'static str);

/// The counters that are updated continuously: calls and their durations.
#[derive(Clone)]
pub struct Metrics {
    calls: Family<Labels, Counter>,
    durations: Family<Labels, Histogram, fn() -> Histogram>,
}

impl Default for Metrics {
    fn default() -> Self {
        // 1 ms to 8 s: a grant takes a few milliseconds, a login tens of them, and waiting for a password slot seconds.
        let buckets: fn() -> Histogram = || Histogram::new(exponential_buckets(0.001, 2.0, 14));
        Self { calls: Family::default(), durations: Family::new_with_constructor(buckets) }
    }
}

impl Metrics {
    /// Counts a call to the route `call` with its result and its duration in seconds.
    pub fn note(&self, call: &str, result: &str, seconds: f64) {
        let call = label("call", call);
        self.durations.get_or_create(&call).observe(seconds);
        self.calls.get_or_create(&[call, label("result", result)].concat()).inc();
    }
}

/// Values that are collected when the page is requested.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// Number of sessions that have not ended.
    pub sessions: usize,
    /// Number of enrolled verifiers.
    pub verifiers: usize,
    /// Numbers of open event streams: those of sessions, then those of verifiers.
    pub listeners: (usize, usize),
    /// Numbers of connections: those that have presented a credential, then those that have not.
    pub connections: (u32, u32),
    /// Number of connections that were refused or closed because too many were open.
    pub turned_away: u64,
    /// Number of UDP requests for segments, by outcome.
    pub datagrams: Vec<(&'static str, u64)>,
    /// Number of answers by UDP to requests for grants, by outcome.
    pub grant_datagrams: Vec<(&'static str, u64)>,
    /// The heads of the audit trails.
    pub heads: Vec<Head>,
    /// The webhooks.
    pub webhooks: Vec<WebhookState>,
    /// The cluster, if the authority is a member of one.
    pub cluster: Option<ClusterSnapshot>,
}

/// Renders the metrics page.
pub fn page(metrics: &Metrics, snapshot: &Snapshot) -> Page {
    let mut page = Page::new("authority");
    page.metric("calls", "Calls by result: ok, or the problem's type", metrics.calls.clone());
    page.metric("call_seconds", "Time until calls were answered, in seconds", metrics.durations.clone());
    page.gauge("sessions", "Active sessions", snapshot.sessions as f64);
    page.gauge("verifiers", "Enrolled verifiers", snapshot.verifiers as f64);
    let (sessions, verifiers) = snapshot.listeners;
    let listeners = [("session", sessions), ("verifier", verifiers)];
    let listeners = listeners.map(|(of, count)| (label("of", of), count as f64));
    page.gauges("listeners", "Open event streams", listeners);
    let (proven, unproven) = snapshot.connections;
    let connections = [("yes", proven), ("no", unproven)].map(|(yes, count)| (label("proven", yes), f64::from(count)));
    page.gauges("connections", "Connections, by whether they have presented a credential", connections);
    page.counter("turned_away", "Connections refused or closed because too many were open", snapshot.turned_away);
    let datagrams = snapshot.datagrams.iter().map(|(result, count)| (label("result", *result), *count));
    page.counters(
        "segment_datagrams",
        "Requests for segments by UDP: given, the reason for a refusal, or the reason for no answer",
        datagrams,
    );
    let answers = snapshot.grant_datagrams.iter().map(|(result, count)| (label("result", *result), *count));
    page.counters(
        "grant_datagrams",
        "Answers by UDP to requests for grants: given, or the reason for a refusal",
        answers,
    );
    if !snapshot.webhooks.is_empty() {
        webhooks(&mut page, &snapshot.webhooks);
    }
    if let Some(snapshot) = &snapshot.cluster {
        cluster::add(&mut page, snapshot);
    }
    let trails = Trail::ALL.map(|trail| snapshot.heads.iter().find(|head| head.trail == trail));
    let ids = trails.iter().flatten().map(|head| (label("trail", head.trail.name()), head.id as f64));
    page.gauges("audit_head_id", "The number of the last entry of an audit trail", ids);
    // A float represents 48 bits exactly. `audit verify --head` accepts the same 12 hex digits.
    let hashes = trails.iter().flatten().map(|head| {
        let first = head.hash[..6].iter().fold(0_u64, |bits, byte| bits << 8 | u64::from(*byte));
        (label("trail", head.trail.name()), first as f64)
    });
    page.gauges(
        "audit_head_hash",
        "The first 48 bits of the hash of the last entry of an audit trail, as a number",
        hashes,
    );
    page
}

fn webhooks(page: &mut Page, webhooks: &[WebhookState]) {
    let of = |webhook: &WebhookState| label("webhook", webhook.name.clone());
    let results = webhooks.iter().flat_map(|webhook| {
        let results = [("delivered", webhook.delivered), ("lost", webhook.lost)];
        results.map(|(result, count)| ([of(webhook), label("result", result)].concat(), count))
    });
    page.counters("webhook_messages", "Messages to webhooks, by result: delivered or lost", results);
    let failures = webhooks.iter().map(|webhook| (of(webhook), webhook.failed));
    page.counters("webhook_failures", "Attempts to deliver a message to a webhook that failed", failures);
    let waiting = webhooks.iter().map(|webhook| (of(webhook), webhook.waiting as f64));
    page.gauges("webhook_waiting", "Messages that wait to be delivered to a webhook", waiting);
}
