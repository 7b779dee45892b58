//! The pages for administrators.

use super::page::Page;
use super::visitor::Administrator;
use crate::state::Authority;
use axum::Router;
use axum::routing::get;
use maud::{Markup, html};
use std::sync::Arc;

/// Every page for administrators.
pub fn routes() -> Router<Arc<Authority>> {
    Router::new().route("/", get(overview))
}

async fn overview(Administrator(visitor): Administrator) -> Markup {
    Page::new("Administration").of(Some(&visitor)).at("/admin").show(&html! {
        p { "You are an administrator." }
    })
}
