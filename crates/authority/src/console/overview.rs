//! The overview page, which a person sees first after logging in.

use super::page::{Page, time};
use super::visitor::Visitor;
use axum::extract::Query;
use maud::{Markup, html};
use serde::Deserialize;

/// The query parameter that names the visitor's last action. The overview page reports this action.
#[derive(Deserialize)]
pub struct Said {
    /// The word for the last action. The page shows the message that `page.rs` contains for this word.
    pub done: Option<String>,
}

/// Shows the overview page.
pub async fn show(visitor: Visitor, Query(said): Query<Said>) -> Markup {
    let session = &visitor.session;
    Page::new("Overview").of(Some(&visitor)).at("").done(said.done.as_deref()).show(&html! {
        p { "You are logged in as " strong { (visitor.person()) } "." }
        @if let Some(ends) = session.ends {
            p { "This session ends " (time(ends)) ". If you do not use it, it ends " (time(session.expires)) "." }
        }
    })
}
