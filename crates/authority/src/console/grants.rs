//! The page of a person's grants: the receivers to which the person's devices may send now. It also shows the latest
//! requests that the authority refused the devices, and where the person can ask for access instead.

use super::access::ask_page;
use super::ending::end;
use super::overview::Said;
use super::page::{self, Page, act, time};
use super::table::{actions, table, text};
use super::visitor::{Form, Visitor};
use crate::http::extractors::Part;
use crate::http::problems::Problem;
use crate::now;
use crate::policy::AccessRequests;
use crate::state::Authority;
use crate::storage::{Database, GrantEntry, Refusal, Storage, Which};
use crate::sync::Synchroniser;
use axum::Router;
use axum::extract::Query;
use axum::response::Redirect;
use axum::routing::{get, post};
use engine::policy::{Subject, place};
use maud::{Markup, html};
use std::collections::BTreeSet;
use std::sync::Arc;
use wire::{Destination, Handle};

/// Number of seconds for which the page shows refused requests.
const SHOWN: u64 = 86_400;
/// Maximum number of refused requests that are read, and of destinations that the page shows.
const MOST_READ: u32 = 200;
const MOST_SHOWN: usize = 20;

/// Returns the routes of the grants page.
pub fn routes() -> Router<Arc<Authority>> {
    Router::new().route("/grants", get(show)).route("/grants/revoke", post(revoke))
}

async fn show(
    Part(storage): Part<Storage>,
    Part(access): Part<AccessRequests>,
    visitor: Visitor,
    Query(said): Query<Said>,
) -> Result<Markup, Problem> {
    let person = visitor.person().to_owned();
    let grants = storage.read_for(visitor.person(), move |database| database.live_grants_of(&person, now())).await?;
    let rows: Vec<_> = grants
        .iter()
        .map(|grant| {
            let covers = covers(grant);
            let what = format!("the grant for {covers}");
            vec![
                html! { (grant.receiver) },
                html! { (covers) },
                html! { (grant.device) ", from " (grant.source) },
                time(grant.expires),
                html! { (grant.rule) },
                act(&visitor, "/grants/revoke", &[("grant", &grant.handle.to_string())], "Revoke", &what),
            ]
        })
        .collect();
    let columns = [text("Receiver"), text("Covers"), text("Device"), text("Until"), text("By rule"), actions()];
    let refused = refused(&storage, &access, &visitor).await?;
    Ok(Page::new("Grants").of(Some(&visitor)).at("/grants").done(said.done.as_deref()).show(&html! {
        p { "Destinations that your devices may send to now. A grant gives a device minutes at a time, and is renewed \
             while it is used, until the time shown at the latest. Revoking one cuts its flows; the device may request \
             another, unless you choose where your identity may not go." }
        @if rows.is_empty() { p { "You have no live grants." } }
        @else { (table("Your grants", &columns, rows)) }
        @if !refused.is_empty() {
            h2 { "Refused in the last 24 hours" }
            (table("Refused requests", &["Destination", "Device", "When", "What you can do"].map(text), refused))
        }
    }))
}

/// Returns a row for each destination that the authority has lately refused the visitor's devices. The visitor learns
/// from it no more than the devices did: the addresses for which they asked, and the receivers for which the visitor
/// can ask anyway.
async fn refused(storage: &Storage, access: &AccessRequests, visitor: &Visitor) -> Result<Vec<Vec<Markup>>, Problem> {
    let (person, since) = (visitor.person().to_owned(), now() - SHOWN);
    let read = move |database: &mut Database| database.refusals_of(&person, since, MOST_READ);
    let mut rows: Vec<Vec<Markup>> = Vec::new();
    let mut seen = BTreeSet::new();
    for Refusal { time: at, device, tags, to, source, .. } in storage.read_for(visitor.person(), read).await? {
        let destination = place(&to);
        if rows.len() >= MOST_SHOWN || !seen.insert((destination.clone(), device.clone())) {
            continue;
        }
        let groups = &visitor.session.groups;
        let subject = Subject { person: visitor.person(), groups, tags: &tags, source: Some(source) };
        let askable = access.askable(subject, to).await;
        rows.push(vec![
            html! { (destination) },
            html! { (device) },
            time(at),
            html! {
                @if let Some((receiver, service)) = askable {
                    a href=(ask_page(&receiver, &service)) { "Ask for access to " (receiver) }
                } @else { "Ask an administrator if you need it." }
            },
        ]);
    }
    Ok(rows)
}

/// Describes the destinations that a grant covers.
pub fn covers(grant: &GrantEntry) -> String {
    match grant.scope().service {
        Some((protocol, port)) => place(&Destination { address: grant.address, protocol, port }),
        None => format!("all of {}", grant.prefix),
    }
}

async fn revoke(
    Part(storage): Part<Storage>,
    Part(sync): Part<Synchroniser>,
    visitor: Visitor,
    Form(fields): Form,
) -> Result<Redirect, Problem> {
    let not_yours = Problem::NotFound("grant of yours");
    let Ok(handle) = fields.text("grant")?.parse::<Handle>() else { return Err(not_yours) };
    let (person, by) = (visitor.person().to_owned(), visitor.operator());
    let revoke = move |database: &mut Database| {
        if database.live_grant_of(&person, handle, now())?.is_none() {
            return Ok(None);
        }
        database.revoke(&Which::OwnGrant(person, handle), &by, now())
    };
    end(&storage, &sync, visitor.person(), revoke).await?.ok_or(not_yours)?;
    Ok(page::done("/grants", "grant-revoked"))
}
