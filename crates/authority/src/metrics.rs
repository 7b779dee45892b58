//! The authority's metrics. Calls are counted at the router, by result; all other values are collected when the page is
//! requested. No metric contains a person's name.

pub mod counters;

use crate::state::Authority;
use anyhow::Result;
use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::Response;
use counters::{Outcome, Snapshot, page};
use shell::metrics::Page;
use std::sync::Arc;
use std::time::Instant;

/// Counts a call.
pub async fn count(State(authority): State<Arc<Authority>>, request: Request, next: Next) -> Response {
    let began = Instant::now();
    // The route's path, not the request's: an unauthenticated sender must not be able to create metrics.
    let path = request.extensions().get::<MatchedPath>().map_or("other", MatchedPath::as_str).to_owned();
    let response = next.run(request).await;
    let result = response
        .extensions()
        .get()
        .map_or(if response.status().is_success() { "ok" } else { "other" }, |o: &Outcome| o.0);
    authority.metrics.note(&path, result, began.elapsed().as_secs_f64());
    response
}

impl Authority {
    /// Collects the current values and returns the metrics page.
    pub async fn metrics_page(&self) -> Result<Page> {
        let heads = self.storage.call(|database| database.audit_heads()).await?;
        Ok(page(&self.metrics, &Snapshot { heads, ..self.snapshot() }))
    }
}
