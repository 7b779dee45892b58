//! What goes on, at a glance: verifiers and how they stand, who is logged in, what is admitted and dropped.

use super::{Said, picture};
use crate::console::ROOT;
use crate::console::page::{Page, encoded, exact_time, table, time};
use crate::console::visitor::Administrator;
use crate::console::words::{count, number};
use crate::now;
use crate::problem::Problem;
use crate::reports::Latest;
use crate::state::Authority;
use crate::storage::VerifierEntry;
use axum::extract::{Query, State};
use engine::activity::Span;
use engine::api::VerifierState;
use maud::{Markup, html};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Shows it.
pub async fn show(
    State(authority): State<Arc<Authority>>,
    Administrator(visitor): Administrator,
    Query(said): Query<Said>,
) -> Result<Markup, Problem> {
    let verifiers = authority.storage.call(|database| database.verifiers()).await?;
    let now = now();
    let reports = authority.reports.latest(now);
    let latest: BTreeMap<&str, &Latest> = reports.iter().map(|latest| (&*latest.verifier, latest)).collect();
    let rows: Vec<_> =
        verifiers.iter().map(|entry| row(&authority, entry, latest.get(&*entry.verifier).copied(), now)).collect();
    let live: u64 = reports.iter().filter(|latest| latest.fresh).map(|latest| latest.report.live).sum();
    let columns = authority.reports.columns(None, Span::Quarter, now);
    let (admitted, dropped) = picture::totals(&columns);
    let snapshot = authority.snapshot();
    let (proven, strangers) = snapshot.connections;
    Ok(Page::new("Overview").of(Some(&visitor)).at("/admin").done(said.done.as_deref()).show(&html! {
        p { "You are an administrator: what you do here is in the audit trail, with your name." }
        section data-live {
            dl {
                dt { "Live flows" }
                dd { a href={ (ROOT) "/admin/flows" } { (number(live)) } }
                dt { "In the last " (picture::span_name(Span::Quarter)) }
                dd { (count(admitted, "flow")) " admitted, " a href={ (ROOT) "/admin/drops" } { (count(dropped, "packet")) " dropped" } }
                dt { "Sessions" }
                dd { a href={ (ROOT) "/admin/people" } { (number(snapshot.sessions as u64)) } }
                dt { "Connections to the authority" }
                dd { (count(proven, "connection")) " with and " (count(strangers, "connection")) " without a credential; " (count(snapshot.turned_away, "connection")) " turned away" }
            }
            @if rows.is_empty() {
                p { "There is no verifier yet: " code { "vouchsafe authority verifier add ID" } " makes one." }
            } @else {
                (table("Verifiers", &["Verifier", "State", "Last report", "Keys until", "Live flows", "Dropped in an hour"], &rows))
            }
            p.quiet { "At " (exact_time(now)) ". " a href={ (ROOT) "/admin" } { "Look again" } }
        }
    }))
}

fn row(authority: &Authority, entry: &VerifierEntry, latest: Option<&Latest>, now: u64) -> Markup {
    let id = &entry.verifier;
    let (_, dropped) = picture::totals(&authority.reports.columns(Some(id), Span::Hour, now));
    let fresh = latest.filter(|latest| latest.fresh);
    html! {
        th scope="row" { (id) }
        td { (state(entry, latest)) }
        td { @match latest { Some(latest) => (time(latest.time)), None => "never" } }
        td { @match fresh.and_then(|latest| latest.report.keys_until) { Some(until) => (time(until)), None => "not known" } }
        td.number { a href={ (ROOT) "/admin/flows?verifier=" (encoded(id)) } {
            (number(fresh.map_or(0, |latest| latest.report.live))) span.unseen { " live flows at " (id) } } }
        td.number { a href={ (ROOT) "/admin/drops?verifier=" (encoded(id)) } {
            (number(dropped)) span.unseen { " packets dropped at " (id) } } }
    }
}

/// How a verifier stands, in words: nothing is told by colour alone.
fn state(entry: &VerifierEntry, latest: Option<&Latest>) -> Markup {
    let (class, words) = match latest {
        _ if entry.enrolled.is_none() => ("quiet", "not enrolled yet"),
        None => ("bad", "has not reported since the authority started"),
        Some(latest) if !latest.fresh => ("bad", "silent"),
        Some(Latest { report, .. }) => match report.state {
            VerifierState::Protecting if report.keys_until.is_none() => ("bad", "without keys: admits nothing new"),
            VerifierState::Protecting => ("good", "protecting"),
            VerifierState::Observing => ("quiet", "observing: drops nothing"),
            VerifierState::Trying => ("quiet", "trying: ends unless confirmed"),
            VerifierState::Closed => ("bad", "closed: admits nothing new, a table is full"),
        },
    };
    html! { span.state.(class) { (words) } }
}
