//! The front page for administrators: who reaches what, the packets dropped over time, and the health of the verifiers.

use super::cluster;
use super::health::Verifiers;
use super::traffic::Traffic;
use super::{Said, picture};
use crate::console::ROOT;
use crate::console::format::{count, count_of, number, sentence};
use crate::console::page::{Page, exact_time};
use crate::console::visitor::Administrator;
use crate::http::extractors::Part;
use crate::http::problems::Problem;
use crate::metrics::Collector;
use crate::policy::PolicyInForce;
use crate::push::activity::Span;
use crate::push::reports::Reports;
use crate::storage::Storage;
use crate::{Directory, now};
use axum::extract::Query;
use maud::{Markup, html};

/// Shows the front page.
pub async fn show(
    Part(storage): Part<Storage>,
    Part(directory): Part<Directory>,
    Part(policy): Part<PolicyInForce>,
    Part(reports): Part<Reports>,
    Part(collector): Part<Collector>,
    Administrator(visitor): Administrator,
    Query(said): Query<Said>,
) -> Result<Markup, Problem> {
    let entries = storage.call(|database| database.verifiers()).await?;
    let receivers = policy.with(|policy| policy.receivers().len()).await;
    let now = now();
    let latest = reports.latest(now);
    let verifiers = Verifiers::new(&entries, &latest);
    let traffic = Traffic::read(&directory, &latest).await?;
    let live: u64 = latest.iter().filter(|latest| latest.is_current).map(|latest| latest.report.live).sum();
    let columns = reports.columns(None, Span::Hour, now);
    let (admitted, dropped) = picture::totals(&columns);
    let hour = picture::span_name(Span::Hour);
    let (protecting, all) = verifiers.protecting();
    let snapshot = collector.snapshot();
    let (proven, strangers) = snapshot.connections;
    Ok(Page::new("Overview").of(Some(&visitor)).at("/admin").done(said.done.as_deref()).show(&html! {
        p.quiet { "You are an administrator: the audit trail records your actions with your name." }
        (first_steps(all, receivers))
        section data-live {
            dl.tiles {
                (tile("/admin/flows", &number(live), if live == 1 { "live flow" } else { "live flows" }))
                (tile("#verifiers", &format!("{protecting} of {all}"), if all == 1 { "verifier protecting" } else { "verifiers protecting" }))
                (tile("/admin/drops", &number(dropped), &format!("{} dropped in an hour", if dropped == 1 { "packet" } else { "packets" })))
                (tile("/admin/people", &number(snapshot.sessions as u64), if snapshot.sessions == 1 { "session" } else { "sessions" }))
            }
            h2 { "Who reaches what" }
            @if live > 0 { (traffic.show(live)) }
            @else {
                p { "There is no live flow. Once a person logs in with " code { "vouchsafe login" } " and connects to a receiver, the \
                    flow appears here within seconds. If it does not, look for the reason among the "
                    a href={ (ROOT) "/admin/drops" } { "drops" } " and the refusals of the " a href={ (ROOT) "/admin/audit" } { "audit trail" } "." }
            }
            h2 { "Drops over time" }
            p { (sentence(&count(dropped, "packet"))) " dropped and " (count(admitted, "flow")) " admitted in the last " (hour) ". "
                a href={ (ROOT) "/admin/drops" } { "Reasons and other spans" } }
            (picture::chart(&columns, Span::Hour))
            h2 #verifiers { "Verifiers" }
            @if entries.is_empty() { p { "There are no verifiers yet." } } @else { (verifiers.show(&reports, now)) }
            (cluster::show(&storage, &collector.members, &collector.contact).await?)
            h2 { "Connections to the authority" }
            p { (sentence(&count(proven, "connection"))) " with and " (count(strangers, "connection")) " without a credential; "
                (count_of(snapshot.turned_away, "connection was", "connections were")) " turned away." }
            p.quiet { "At " (exact_time(now)) ". " a href={ (ROOT) "/admin" } { "Refresh" } }
        }
    }))
}

/// Renders a figure with its name as a link to `path`.
fn tile(path: &str, figure: &str, name: &str) -> Markup {
    let address = if path.starts_with('#') { path.to_owned() } else { format!("{ROOT}{path}") };
    html! { div { dt { (name) } dd { a href=(address) { (figure) span.unseen { " " (name) } } } } }
}

/// Renders the steps that remain before the first receiver is protected.
fn first_steps(verifiers: usize, receivers: usize) -> Markup {
    html! {
        @if verifiers == 0 || receivers == 0 {
            section.next aria-label="Next steps" {
                h2 { "Next steps" }
                ol.steps {
                    @if verifiers == 0 {
                        li { "Add a verifier: " code { "vouchsafe authority verifier add ID" } " prints the code with which it enrols." }
                    }
                    @if receivers == 0 {
                        li { "Define what is protected and who may reach it: " a href={ (ROOT) "/admin/policy/draft" } { "write a draft of the policy" } "." }
                    }
                }
            }
        }
    }
}
