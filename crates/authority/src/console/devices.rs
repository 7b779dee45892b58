//! The page of a person's devices, on which the person can revoke a lost device.

use super::ending::end;
use super::overview::Said;
use super::page::{self, Page, act, time};
use super::table::{actions, table, text};
use super::visitor::{Form, Visitor};
use crate::http::extractors::Part;
use crate::http::problems::Problem;
use crate::now;
use crate::state::Authority;
use crate::storage::{Storage, Which};
use crate::sync::Synchroniser;
use axum::Router;
use axum::extract::Query;
use axum::response::Redirect;
use axum::routing::{get, post};
use maud::{Markup, html};
use std::sync::Arc;

/// Returns the routes of the devices page.
pub fn routes() -> Router<Arc<Authority>> {
    Router::new().route("/devices", get(show)).route("/devices/revoke", post(revoke))
}

async fn show(Part(storage): Part<Storage>, visitor: Visitor, Query(said): Query<Said>) -> Result<Markup, Problem> {
    let person = visitor.person().to_owned();
    let (devices, sessions) = storage
        .read_for(visitor.person(), move |database| {
            Ok((database.devices(Some(&person))?, database.sessions_of(&person, now())?))
        })
        .await?;
    let rows: Vec<_> = devices
        .iter()
        .map(|entry| {
            let device = entry.device.as_str();
            let is_in = sessions.iter().any(|session| !session.console && session.device == device);
            vec![
                html! { (device) },
                html! { @if is_in { "logged in" } @else { "logged out" } },
                time(entry.last_login),
                html! { (entry.tags.join(", ")) },
                act(&visitor, "/devices/revoke", &[("device", device)], "Revoke", device),
            ]
        })
        .collect();
    let columns = [text("Device"), text("State"), text("Last login"), text("Tags"), actions()];
    Ok(Page::new("Devices").of(Some(&visitor)).at("/devices").done(said.done.as_deref()).show(&html! {
        p { "Machines that you have logged in from with " code { "vouchsafe login" } ". Revoke one that you lost: it is \
             logged out, its grants end, and its flows are cut within about a second." }
        @if rows.is_empty() { p { "You have not logged in from any machine yet." } }
        @else { (table("Your devices", &columns, rows)) }
    }))
}

async fn revoke(
    Part(storage): Part<Storage>,
    Part(sync): Part<Synchroniser>,
    visitor: Visitor,
    Form(fields): Form,
) -> Result<Redirect, Problem> {
    let (person, device) = (visitor.person().to_owned(), fields.text("device")?.to_owned());
    let by = visitor.operator();
    let (owner, name) = (person.clone(), device.clone());
    let devices = storage.read_for(visitor.person(), move |database| database.devices(Some(&owner))).await?;
    if !devices.iter().any(|entry| entry.device == name) {
        return Err(Problem::NotFound("device of yours"));
    }
    let which = Which::Device(person, device);
    end(&storage, &sync, visitor.person(), move |database| database.revoke(&which, &by, now())).await?;
    Ok(page::done("/devices", "device-revoked"))
}
