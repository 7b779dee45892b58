//! The agent's metrics, over all users of the machine. Nobody's name is among them.

use shell::metrics::{Page, label};
use std::collections::BTreeMap;

/// What the authorities answered when grants were asked for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Answers {
    /// Grants.
    pub granted: u64,
    /// Noes.
    pub denied: u64,
    /// No usable answer.
    pub failed: u64,
    /// Questions for a grant in the place of one that ends.
    pub renewals: u64,
}

/// How things are.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// What the kernel program counted, by name.
    pub counters: BTreeMap<String, u64>,
    /// What was answered.
    pub answers: Answers,
    /// Grants at hand.
    pub grants: usize,
    /// Sessions whose authority answered last time.
    pub reachable: usize,
    /// Sessions whose authority didn't.
    pub unreachable: usize,
    /// Interfaces with the program attached.
    pub attached: usize,
    /// Interfaces without, which should have it.
    pub failing: usize,
}

/// The page.
pub fn page(snapshot: &Snapshot) -> Page {
    let Snapshot { counters, answers, grants, reachable, unreachable, attached, failing } = snapshot;
    let mut page = Page::new("agent");
    let packets = counters.iter().map(|(name, packets)| (label("outcome", name), *packets));
    page.counters("packets", "Packets by what was done with them: tokens made, held, plain, rider, …", packets);
    let results = [("granted", answers.granted), ("denied", answers.denied), ("failed", answers.failed)];
    let results = results.map(|(result, count)| (label("result", result), count));
    page.counters("grant_answers", "Answers of authorities to questions for grants, by result", results);
    page.counter("renewals", "Questions for a grant in the place of one that ends", answers.renewals);
    page.gauge("grants", "Grants at hand", *grants as f64);
    let sessions = [("yes", *reachable), ("no", *unreachable)];
    let sessions = sessions.map(|(answer, count)| (label("authority_reachable", answer), count as f64));
    page.gauges("sessions", "Logged-in users, by whether their authority answered last", sessions);
    let interfaces = [("yes", *attached), ("no", *failing)];
    let interfaces = interfaces.map(|(answer, count)| (label("attached", answer), count as f64));
    page.gauges("interfaces", "Interfaces, by whether the program is attached", interfaces);
    page
}
