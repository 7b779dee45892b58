//! The page of a person's sessions, on which the person can end them.

use super::ending;
use super::overview::Said;
use super::page::{self, Page, act, time};
use super::table::{actions, table, text};
use super::visitor::{Form, Visitor};
use crate::http::extractors::Part;
use crate::http::problems::Problem;
use crate::now;
use crate::state::Authority;
use crate::storage::{Database, Storage, session_number};
use crate::sync::Synchroniser;
use axum::Router;
use axum::extract::Query;
use axum::response::Redirect;
use axum::routing::{get, post};
use maud::{Markup, html};
use std::sync::Arc;

/// Returns the routes of the sessions page.
pub fn routes() -> Router<Arc<Authority>> {
    Router::new()
        .route("/sessions", get(show))
        .route("/sessions/end", post(end))
        .route("/sessions/end-others", post(end_others))
}

async fn show(Part(storage): Part<Storage>, visitor: Visitor, Query(said): Query<Said>) -> Result<Markup, Problem> {
    let person = visitor.person().to_owned();
    let sessions = storage.read_for(visitor.person(), move |database| database.sessions_of(&person, now())).await?;
    let rows: Vec<_> = sessions
        .iter()
        .map(|session| {
            let number = format!("{:016x}", session_number(&session.token));
            let what = format!("{} from {}", session.device, session.source);
            vec![
                html! { (session.device) },
                html! { @if session.console { "this console" } @else { "agent" } },
                html! { (session.source) },
                time(session.created),
                time(session.expires),
                html! {
                    @if session.token == visitor.token { "this session" }
                    @else { (act(&visitor, "/sessions/end", &[("session", &number)], "Log out", &what)) }
                },
            ]
        })
        .collect();
    let columns = [text("Where"), text("What"), text("From"), text("Since"), text("Until"), actions()];
    Ok(Page::new("Sessions").of(Some(&visitor)).at("/sessions").done(said.done.as_deref()).show(&html! {
        p { "Where you are logged in: with browsers at this console, and with agents on your machines." }
        (table("Your sessions", &columns, rows))
        @if sessions.len() > 1 {
            (act(&visitor, "/sessions/end-others", &[], "Log out everywhere else", ""))
        }
    }))
}

async fn end(
    Part(storage): Part<Storage>,
    Part(sync): Part<Synchroniser>,
    visitor: Visitor,
    Form(fields): Form,
) -> Result<Redirect, Problem> {
    let not_yours = Problem::NotFound("session of yours");
    let Ok(number) = u64::from_str_radix(fields.text("session")?, 16) else { return Err(not_yours) };
    let (person, by) = (visitor.person().to_owned(), visitor.operator());
    let end = move |database: &mut Database| Ok(database.end_own_session(&person, number, &by, now())?.then_some(()));
    ending::end(&storage, &sync, visitor.person(), end).await?.ok_or(not_yours)?;
    Ok(page::done("/sessions", "session-ended"))
}

async fn end_others(
    Part(storage): Part<Storage>,
    Part(sync): Part<Synchroniser>,
    visitor: Visitor,
) -> Result<Redirect, Problem> {
    let (person, token, by) = (visitor.person().to_owned(), visitor.token, visitor.operator());
    let end =
        move |database: &mut Database| Ok(database.end_other_sessions(&person, &token, &by, now())?.then_some(()));
    ending::end(&storage, &sync, visitor.person(), end).await?;
    Ok(page::done("/sessions", "sessions-ended"))
}
