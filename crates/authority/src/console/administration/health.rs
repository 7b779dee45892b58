//! The table of the verifiers' health: the state of each, its last report, and the time until which it has keys.

use super::picture;
use crate::console::ROOT;
use crate::console::format::{count, number};
use crate::console::page::{encoded, time};
use crate::console::table::{figures, table, text};
use crate::push::activity::Span;
use crate::push::reports::{Latest, Reports};
use crate::storage::VerifierEntry;
use api::VerifierState;
use maud::{Markup, html};
use std::collections::BTreeMap;

/// Maximum number of verifiers in the table, those that need attention first.
const MOST_SHOWN: usize = 50;

/// The health of a verifier. The table lists verifiers in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Health {
    /// The verifier does not report, or admits no new flows.
    Bad,
    /// The verifier does not protect permanently: it has not enrolled yet, or it observes or protects on trial, as its
    /// administrator chose.
    Idle,
    /// The verifier protects.
    Good,
}

impl Health {
    const fn class(self) -> &'static str {
        match self {
            Self::Bad => "bad",
            Self::Idle => "quiet",
            Self::Good => "good",
        }
    }
}

/// The verifiers with their health and their latest reports.
pub struct Verifiers<'a> {
    all: Vec<(Health, &'static str, &'a VerifierEntry, Option<&'a Latest>)>,
}

impl<'a> Verifiers<'a> {
    /// Determines the health of each verifier from its latest report.
    pub fn new(entries: &'a [VerifierEntry], reports: &'a [Latest]) -> Self {
        let latest: BTreeMap<&str, &Latest> = reports.iter().map(|latest| (&*latest.verifier, latest)).collect();
        let assessed = entries.iter().map(|entry| {
            let latest = latest.get(&*entry.verifier).copied();
            let (health, words) = health(entry, latest);
            (health, words, entry, latest)
        });
        let mut all: Vec<_> = assessed.collect();
        // The sort is stable: verifiers of equal health stay in the order of their ids.
        all.sort_by_key(|(health, ..)| *health);
        Self { all }
    }

    /// Returns the number of verifiers in good health, and the number of all verifiers.
    pub fn protecting(&self) -> (usize, usize) {
        (self.number(Health::Good), self.all.len())
    }

    fn number(&self, wanted: Health) -> usize {
        self.all.iter().filter(|(health, ..)| *health == wanted).count()
    }

    /// Renders the table, and above it a warning if a verifier needs attention.
    pub fn show(&self, reports: &Reports, now: u64) -> Markup {
        let (bad, all) = (self.number(Health::Bad), self.all.len());
        let columns = [
            text("Verifier"),
            text("State"),
            text("Last report"),
            text("Keys valid until"),
            figures("Live flows"),
            figures("Dropped in an hour"),
        ];
        let rows = self.all.iter().take(MOST_SHOWN).map(|(health, words, entry, latest)| {
            let id = &entry.verifier;
            let (_, dropped) = picture::totals(&reports.columns(Some(id), Span::Hour, now));
            let current = latest.filter(|latest| latest.is_current);
            vec![
                html! { (id) },
                // The state is in words too, because colour alone must not convey it.
                html! { span.state.(health.class()) { (words) } },
                html! { @match latest { Some(latest) => (time(latest.time)), None => "never" } },
                html! { @match current.and_then(|latest| latest.report.keys_until) { Some(until) => (time(until)), None => "not known" } },
                html! { a href={ (ROOT) "/admin/flows?verifier=" (encoded(id)) } {
                    (number(current.map_or(0, |latest| latest.report.live))) span.unseen { " live flows at " (id) } } },
                html! { a href={ (ROOT) "/admin/drops?verifier=" (encoded(id)) } {
                    (number(dropped)) span.unseen { " packets dropped at " (id) } } },
            ]
        });
        html! {
            @if bad > 0 {
                p.wrong { (number(bad as u64)) " of " (count(all, "verifier")) (if bad == 1 { " needs" } else { " need" }) " attention." }
            }
            (table("Verifiers", &columns, rows))
            @if all > MOST_SHOWN {
                p { "And " (number((all - MOST_SHOWN) as u64)) " more: " code { "vouchsafe authority verifier list" } " shows all." }
            }
        }
    }
}

/// Returns the health of a verifier, and its state in words.
fn health(entry: &VerifierEntry, latest: Option<&Latest>) -> (Health, &'static str) {
    match latest {
        _ if entry.enrolled.is_none() => (Health::Idle, "not enrolled yet"),
        None => (Health::Bad, "has not reported since the authority started"),
        Some(latest) if !latest.is_current => (Health::Bad, "silent"),
        Some(Latest { report, .. }) => match report.state {
            VerifierState::Protecting if report.keys_until.is_none() => (Health::Bad, "no keys: admits no new flows"),
            VerifierState::Protecting => (Health::Good, "protecting"),
            VerifierState::Observing => (Health::Idle, "observing: refused packets pass"),
            VerifierState::Trying => (Health::Idle, "trial: protection ends unless confirmed"),
            VerifierState::Closed => (Health::Bad, "closed: admits no new flows, because a table is full"),
        },
    }
}
