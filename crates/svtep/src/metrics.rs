//! The endpoint's metrics: the numbers in [`Status`], without any addresses.

use crate::view::{Counter, Status};
use shell::metrics::{Page, label};

/// Builds the page of metrics from the daemon's status. `now` is the current time, Unix seconds.
pub fn page(status: &Status, now: u64) -> Page {
    let mut page = Page::new("svtep");
    let counted =
        |counters: &[Counter], name| counters.iter().map(|one| (label(name, &one.name), one.count)).collect::<Vec<_>>();
    page.counters("packets", "Packets of tenants, by outcome", counted(&status.packets, "outcome"));
    page.counters(
        "proofs",
        "Packets from the tunnel with a valid proof, by outcome",
        counted(&status.passed, "outcome"),
    );
    page.counters(
        "dropped_proofs",
        "Packets from the tunnel that were dropped, by drop reason",
        counted(&status.reasons, "reason"),
    );
    page.counters("answers", "Answers of the authority to requests for segments", counted(&status.answers, "answer"));
    page.gauge("open_questions", "Requests for segments that wait for an answer", status.open as f64);
    let of_networks = |value: fn(&crate::view::Tenant) -> f64| {
        let mut sums = std::collections::BTreeMap::<&str, f64>::new();
        for tenant in &status.tenants {
            *sums.entry(&tenant.network).or_default() += value(tenant);
        }
        sums.into_iter().map(|(network, sum)| (label("network", network), sum)).collect::<Vec<_>>()
    };
    page.gauges(
        "tenants",
        "Tenants that are attached, by network",
        of_networks(|tenant| f64::from(tenant.not_attached.is_none())),
    );
    page.gauges(
        "tenants_in_trouble",
        "Tenants whose interface is missing or whose service account is not logged in, by network",
        of_networks(|tenant| f64::from(tenant.not_attached.is_some() || !tenant.logged_in)),
    );
    page.gauges(
        "segments",
        "Segments that tenants use for sending, by network",
        of_networks(|tenant| tenant.segments as f64),
    );
    let on = |is_first: bool| status.paths.iter().filter(|path| (path.number == 0) == is_first).count() as f64;
    page.gauges(
        "paths",
        "Endpoints for which there are several paths, by the path in use",
        [(label("path", "first"), on(true)), (label("path", "other"), on(false))],
    );
    page.counter("path_changes", "Changes from one path to another", status.path_changes);
    page.gauge("consents", "Received segments that permit answers", status.consents as f64);
    page.gauge("withdrawn", "Current withdrawals of consent", status.withdrawn as f64);
    page.gauge("connected", "Whether the authority's event stream is up", status.connected.into());
    page.gauge(
        "closed",
        "Whether nothing is delivered because a withdrawal of consent could not be stored",
        status.closed.into(),
    );
    let left = status.keys_until.map_or(0.0, |until| until.saturating_sub(now) as f64);
    page.gauge("keys_left_seconds", "Time until the last key expires; 0 if there is none for the current epoch", left);
    page
}
