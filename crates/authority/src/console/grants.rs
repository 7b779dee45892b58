//! The page of a person's grants: the receivers to which the person's devices may send now.

use super::ending::end;
use super::overview::Said;
use super::page::{self, Page, act, time};
use super::table::{actions, table, text};
use super::visitor::{Form, Visitor};
use crate::http::extractors::Part;
use crate::http::problems::Problem;
use crate::now;
use crate::state::Authority;
use crate::storage::{Database, GrantEntry, Storage, Which};
use crate::sync::Synchroniser;
use axum::Router;
use axum::extract::Query;
use axum::response::Redirect;
use axum::routing::{get, post};
use engine::policy::place;
use maud::{Markup, html};
use std::sync::Arc;
use wire::{Destination, Handle};

/// Returns the routes of the grants page.
pub fn routes() -> Router<Arc<Authority>> {
    Router::new().route("/grants", get(show)).route("/grants/revoke", post(revoke))
}

async fn show(Part(storage): Part<Storage>, visitor: Visitor, Query(said): Query<Said>) -> Result<Markup, Problem> {
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
    Ok(Page::new("Grants").of(Some(&visitor)).at("/grants").done(said.done.as_deref()).show(&html! {
        p { "Destinations that your devices may send to now. A grant gives a device minutes at a time, and is renewed \
             while it is used, until the time shown at the latest. Revoking one cuts its flows; the device may request \
             another, unless you choose where your identity may not go." }
        @if rows.is_empty() { p { "You have no live grants." } }
        @else { (table("Your grants", &columns, rows)) }
    }))
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
