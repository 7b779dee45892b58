//! Refuses calls of the API while this host's clock is wrong. Many answers contain a time, or depend on it. An agent
//! would set its clock by such an answer. A verifier would not get the revocations of grants that, according to the
//! wrong clock, have already ended.

use super::problems::Problem;
use crate::cluster::contact::Contact;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::sync::Arc;

/// Refuses a call if this host's clock is wrong. The client then calls another member of the cluster.
pub async fn require_right_clock(State(contact): State<Arc<Contact>>, request: Request, next: Next) -> Response {
    if contact.has_right_clock() { next.run(request).await } else { Problem::NoMajority.into_response() }
}
