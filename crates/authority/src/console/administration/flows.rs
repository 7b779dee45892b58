//! Live flows, as verifiers told of them last, with whose they are by the authority's own memory.

use super::Said;
use crate::console::ROOT;
use crate::console::page::{Page, encoded, exact_time, table, time};
use crate::console::visitor::Administrator;
use crate::console::words::{bytes, count, number, sentence};
use crate::now;
use crate::problem::Problem;
use crate::reports::Latest;
use crate::state::Authority;
use crate::storage::Database;
use axum::extract::{Query, State};
use engine::api::{GrantOwner, ReportedFlow};
use engine::policy::place;
use maud::{Markup, html};
use serde::Deserialize;
use std::net::SocketAddr;
use std::sync::Arc;
use wire::Destination;

/// Flows on a page at most.
const MOST_SHOWN: usize = 500;
/// Flows whose owners are looked up for one page.
const MOST_NAMED: usize = 5000;

/// A flow and whose it is.
pub struct LiveFlow {
    verifier: Arc<str>,
    flow: ReportedFlow,
    /// None if it was established before protection began, or the authority never gave that grant.
    owner: Option<GrantOwner>,
}

/// What verifiers told of last.
pub struct Live {
    /// The flows they named, the latest first.
    pub flows: Vec<LiveFlow>,
    /// How many live in all.
    pub total: u64,
    /// Verifiers that have fallen silent; theirs are not among them.
    pub silent: Vec<Arc<str>>,
}

impl Live {
    /// Reads it; of one verifier if given.
    pub async fn read(authority: &Authority, verifier: Option<&str>) -> Result<Self, Problem> {
        let (mut flows, mut total, mut silent) = (Vec::new(), 0, Vec::new());
        for Latest { verifier: id, fresh, report, .. } in authority.reports.latest(now()) {
            if verifier.is_some_and(|wanted| wanted != &*id) {
                continue;
            }
            if fresh {
                total += report.live;
                flows.extend(report.flows.into_iter().map(|flow| (id.clone(), flow)));
            } else {
                silent.push(id);
            }
        }
        flows.sort_by_key(|(_, flow)| std::cmp::Reverse((flow.seen, flow.since)));
        flows.truncate(MOST_NAMED);
        let name = move |database: &mut Database| {
            let named = flows.into_iter().map(|(verifier, flow)| {
                // Only among the grants for this very verifier: it can't tell tales about others'.
                let owner = flow.handle.map(|handle| database.grant_owner(&verifier, handle)).transpose()?.flatten();
                Ok(LiveFlow { verifier, flow, owner })
            });
            named.collect::<anyhow::Result<Vec<_>>>()
        };
        Ok(Self { flows: super::read(authority, name).await?, total, silent })
    }

    /// Leaves those of a person.
    pub fn of(&mut self, person: &str) {
        self.flows.retain(|live| live.owner.as_ref().is_some_and(|owner| owner.person == person));
    }

    /// Leaves those of some grants, by their handles as text.
    pub fn keep(&mut self, grants: impl Fn(&str) -> bool) {
        self.flows.retain(|live| live.flow.handle.is_some_and(|handle| grants(&format!("{handle:016x}"))));
    }

    /// The flows as a table.
    pub fn table(&self) -> Markup {
        let head = ["Who", "From", "To", "Receiver", "Since", "Last packet", "Towards the server", "Act"];
        let rows: Vec<_> = self.flows.iter().take(MOST_SHOWN).map(LiveFlow::row).collect();
        table("Live flows", &head, &rows)
    }
}

impl LiveFlow {
    fn row(&self) -> Markup {
        let Self { verifier, flow, owner } = self;
        let client = SocketAddr::new(flow.client, flow.client_port).to_string();
        let server = Destination { address: flow.server, protocol: flow.protocol, port: flow.server_port };
        html! {
            th scope="row" { @match owner {
                Some(GrantOwner { person, device, .. }) => {
                    a href={ (ROOT) "/admin/people/" (encoded(person)) } { (person) } " · " (device)
                }
                None if flow.handle.is_none() => { span.quiet { "from before protection" } }
                None => { span.quiet { "a grant that the authority doesn't know" } }
            } }
            td { (client) }
            td { (place(&server)) }
            td { @if let Some(owner) = owner { (owner.receiver) " " span.quiet { "by " (owner.rule) } } " " span.quiet { "at " (verifier) } }
            td { (time(flow.since)) }
            td { (time(flow.seen)) }
            td.number { (bytes(flow.bytes)) }
            td { @if let (Some(owner), Some(handle)) = (owner, flow.handle) {
                a href={ (ROOT) "/admin/revoke?grant=" (format!("{handle:016x}")) } {
                    "Revoke…" span.unseen { " the grant of " (owner.person) " from " (client) " to " (place(&server)) }
                }
            } }
        }
    }
}

/// What the address says.
#[derive(Deserialize)]
pub struct Asked {
    person: Option<String>,
    verifier: Option<String>,
    #[serde(flatten)]
    said: Said,
}

/// Shows them.
pub async fn show(
    State(authority): State<Arc<Authority>>,
    Administrator(visitor): Administrator,
    Query(asked): Query<Asked>,
) -> Result<Markup, Problem> {
    let given =
        |text: &Option<String>| text.as_deref().map(str::trim).filter(|text| !text.is_empty()).map(str::to_owned);
    let (person, verifier) = (given(&asked.person), given(&asked.verifier));
    let verifiers = authority.storage.call(|database| database.verifiers()).await?;
    let mut live = Live::read(&authority, verifier.as_deref()).await?;
    let named = live.flows.len();
    if let Some(person) = &person {
        live.of(person);
    }
    let shown = live.flows.len().min(MOST_SHOWN);
    Ok(Page::new("Live flows").of(Some(&visitor)).at("/admin/flows").done(asked.said.done.as_deref()).show(&html! {
        form.search method="get" action={ (ROOT) "/admin/flows" } {
            div {
                label for="person" { "Person" }
                input #person name="person" type="search" value=[&person] autocapitalize="none" spellcheck="false";
            }
            div {
                label for="verifier" { "Verifier" }
                select #verifier name="verifier" {
                    option value="" { "All" }
                    @for entry in &verifiers {
                        option value=(entry.verifier) selected[verifier.as_ref() == Some(&entry.verifier)] { (entry.verifier) }
                    }
                }
            }
            button type="submit" { "Show" }
        }
        section data-live {
            @for verifier in &live.silent {
                p.wrong { (verifier) " is silent: its flows are not shown." }
            }
            p { (sentence(&count(live.total, "live flow"))) @if verifier.is_some() { " there" }
                @if live.total > named as u64 { "; verifiers named the latest " (number(named as u64)) " of them" }
                @if person.is_some() || shown < named { "; the table shows " (number(shown as u64)) } "." }
            @if shown > 0 { (live.table()) }
            p.quiet { "At " (exact_time(now())) ". Verifiers tell every few seconds." }
        }
    }))
}
