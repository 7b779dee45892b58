//! The page of live flows. The latest reports of the verifiers list the flows, and the authority's own database has
//! their owners.

use super::Said;
use crate::console::ROOT;
use crate::console::format::{bytes, count, number, sentence};
use crate::console::page::{Page, encoded, exact_time, time};
use crate::console::table::{actions, figures, table, text};
use crate::console::visitor::Administrator;
use crate::http::extractors::Part;
use crate::http::problems::Problem;
use crate::push::reports::{Latest, Reports};
use crate::storage::{Database, Storage};
use crate::{Directory, now};
use api::{GrantOwner, ReportedFlow};
use axum::extract::Query;
use engine::policy::place;
use maud::{Markup, html};
use serde::Deserialize;
use std::net::SocketAddr;
use std::sync::Arc;
use wire::{Destination, Handle};

/// Maximum number of flows on a page.
const MOST_SHOWN: usize = 500;
/// Maximum number of flows whose owners are looked up for one page.
const MOST_NAMED: usize = 5000;

/// A flow and its owner.
pub struct LiveFlow {
    verifier: Arc<str>,
    flow: ReportedFlow,
    /// The owner of the flow's grant. `None` if the flow was established before protection began, or if the authority
    /// does not know the grant. The owner's handle is the first handle of the grant.
    owner: Option<GrantOwner>,
}

/// The live flows of the verifiers that report.
pub struct Live {
    /// The flows that the reports list, at most 5000 of them, sorted by the time of their latest packet, latest first.
    pub flows: Vec<LiveFlow>,
    /// Number of live flows, including flows that the reports do not list.
    pub total: u64,
    /// The verifiers that no longer report. Their flows are not included.
    pub silent: Vec<Arc<str>>,
}

impl Live {
    /// Collects the flows from the reports of all verifiers, or of `verifier` if it is set, and looks up their owners.
    ///
    /// # Errors
    /// Fails if the database cannot be read.
    pub async fn read(reports: &Reports, directory: &Directory, verifier: Option<&str>) -> Result<Self, Problem> {
        let (mut flows, mut total, mut silent) = (Vec::new(), 0, Vec::new());
        for Latest { verifier: id, is_current, report, .. } in reports.latest(now()) {
            if verifier.is_some_and(|wanted| wanted != &*id) {
                continue;
            }
            if is_current {
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
                // The owner is looked up among the grants for this verifier only, so that a verifier cannot claim flows
                // of other verifiers' grants.
                let owner = match flow.handle.map(Handle) {
                    Some(handle) => {
                        let handle = database.first_handle(handle)?;
                        database.grant_owner(&verifier, handle)?
                    }
                    None => None,
                };
                Ok(LiveFlow { verifier, flow, owner })
            });
            named.collect::<anyhow::Result<Vec<_>>>()
        };
        Ok(Self { flows: super::read(directory, name).await?, total, silent })
    }

    /// Removes all flows except those of a person.
    pub fn of(&mut self, person: &str) {
        self.flows.retain(|live| live.owner.as_ref().is_some_and(|owner| owner.person == person));
    }

    /// Removes all flows except those of some grants. `grants` gets the first handle of a grant, and returns `true` if
    /// the flows of this grant stay.
    pub fn keep(&mut self, grants: impl Fn(Handle) -> bool) {
        self.flows.retain(|live| live.owner.as_ref().is_some_and(|owner| grants(Handle(owner.handle))));
    }

    /// Renders the flows as a table.
    pub fn table(&self) -> Markup {
        let columns = [
            text("Who"),
            text("From"),
            text("To"),
            text("Receiver"),
            text("Since"),
            text("Last packet"),
            figures("Towards the server"),
            actions(),
        ];
        table("Live flows", &columns, self.flows.iter().take(MOST_SHOWN).map(LiveFlow::row))
    }
}

impl LiveFlow {
    fn row(&self) -> Vec<Markup> {
        let Self { verifier, flow, owner } = self;
        let client = SocketAddr::new(flow.client, flow.client_port).to_string();
        let server = Destination { address: flow.server, protocol: flow.protocol, port: flow.server_port };
        vec![
            html! { @match owner {
                Some(GrantOwner { person, device, .. }) => {
                    a href={ (ROOT) "/admin/people/" (encoded(person)) } { (person) } " · " (device)
                }
                None if flow.handle.is_none() => { span.quiet { "established before protection" } }
                None => { span.quiet { "a grant unknown to the authority" } }
            } },
            html! { (client) },
            html! { (place(&server)) },
            html! {
                @if let Some(owner) = owner { (owner.receiver) " " span.quiet { "by " (owner.rule) } }
                " " span.quiet { "at " (verifier) }
            },
            time(flow.since),
            time(flow.seen),
            html! {
                (bytes(flow.bytes))
                @if let Some(sealed) = &flow.sealed { " " span.quiet { (sealed.words()) } }
            },
            html! { @if let (Some(owner), Some(handle)) = (owner, flow.handle) {
                a href={ (ROOT) "/admin/revoke?grant=" (Handle(handle)) } {
                    "Revoke…" span.unseen { " the grant of " (owner.person) " from " (client) " to " (place(&server)) }
                }
            } },
        ]
    }
}

/// Query parameters of the page.
#[derive(Deserialize)]
pub struct Parameters {
    person: Option<String>,
    verifier: Option<String>,
    #[serde(flatten)]
    said: Said,
}

/// Shows the live flows.
pub async fn show(
    Part(storage): Part<Storage>,
    Part(reports): Part<Reports>,
    Part(directory): Part<Directory>,
    Administrator(visitor): Administrator,
    Query(parameters): Query<Parameters>,
) -> Result<Markup, Problem> {
    let given =
        |text: &Option<String>| text.as_deref().map(str::trim).filter(|text| !text.is_empty()).map(str::to_owned);
    let (person, verifier) = (given(&parameters.person), given(&parameters.verifier));
    let verifiers = storage.call(|database| database.verifiers()).await?;
    let mut live = Live::read(&reports, &directory, verifier.as_deref()).await?;
    let named = live.flows.len();
    if let Some(person) = &person {
        live.of(person);
    }
    let shown = live.flows.len().min(MOST_SHOWN);
    Ok(Page::new("Live flows").of(Some(&visitor)).at("/admin/flows").done(parameters.said.done.as_deref()).show(&html! {
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
                p.wrong { (verifier) " has stopped reporting: its flows are not shown." }
            }
            p { (sentence(&count(live.total, "live flow")))@if let Some(verifier) = &verifier { " at " (verifier) }
                @if live.total > named as u64 { "; verifiers reported the latest " (number(named as u64)) }
                @if person.is_some() || shown < named { "; the table shows " (number(shown as u64)) } "." }
            @if shown > 0 { (live.table()) }
            p.quiet { "At " (exact_time(now())) ". Verifiers report every few seconds." }
        }
    }))
}
