//! The agent's metrics. They are totals over all users of the machine and contain no names of people.

use shell::metrics::{Page, label};
use std::collections::BTreeMap;

/// Numbers of requests for grants, by how the authorities answered them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Answers {
    /// Requests for which the authority issued a grant.
    pub granted: u64,
    /// Requests that the authority denied.
    pub denied: u64,
    /// Requests to which no usable answer came.
    pub failed: u64,
    /// Requests for a new grant in place of one that ends soon.
    pub renewals: u64,
}

/// The agent's state at one moment.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// Counters of the kernel program, of the controller of switches and of the sealed tunnels, by name.
    pub counters: BTreeMap<String, u64>,
    /// Numbers of requests for grants, by how the authorities answered them.
    pub answers: Answers,
    /// Number of grants that the agent has.
    pub grants: usize,
    /// Number of sessions whose authority has answered the latest call.
    pub reachable: usize,
    /// Number of sessions whose authority has not answered the latest call.
    pub unreachable: usize,
    /// Number of interfaces to which the programs are attached.
    pub attached: usize,
    /// Number of interfaces to which the programs could not be attached.
    pub failing: usize,
}

/// Builds the page of metrics.
pub fn page(snapshot: &Snapshot) -> Page {
    let Snapshot { counters, answers, grants, reachable, unreachable, attached, failing } = snapshot;
    let mut page = Page::new("agent");
    let packets = counters.iter().map(|(name, packets)| (label("outcome", name), *packets));
    page.counters("packets", "Packets by outcome: tokens made, held, plain, rider, …", packets);
    let results = [("granted", answers.granted), ("denied", answers.denied), ("failed", answers.failed)];
    let results = results.map(|(result, count)| (label("result", result), count));
    page.counters("grant_answers", "Answers of authorities to requests for grants, by result", results);
    page.counter("renewals", "Requests for a grant to replace one that is about to end", answers.renewals);
    page.gauge("grants", "Current grants", *grants as f64);
    let sessions = [("yes", *reachable), ("no", *unreachable)];
    let sessions = sessions.map(|(answer, count)| (label("authority_reachable", answer), count as f64));
    page.gauges("sessions", "Logged-in users, by whether their authority answered the latest call", sessions);
    let interfaces = [("yes", *attached), ("no", *failing)];
    let interfaces = interfaces.map(|(answer, count)| (label("attached", answer), count as f64));
    page.gauges("interfaces", "Interfaces, by whether the program is attached", interfaces);
    page
}
