//! The calls about the authority itself: whether it can serve, and which authorities serve the same people and
//! verifiers. They need no credential.

use crate::cluster::contact::{Contact, Standing};
use crate::cluster::membership::Members;
use crate::http::extractors::Part;
use crate::http::problems::Problem;
use crate::now;
use crate::state::Authority;
use api::Authorities;
use axum::Json;
use serde::Serialize;
use std::sync::Arc;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// Returns the routes of these calls.
pub(super) fn routes() -> OpenApiRouter<Arc<Authority>> {
    OpenApiRouter::new().routes(routes!(health)).routes(routes!(authorities))
}

/// The authority's state and clock
#[derive(Serialize, ToSchema)]
struct Health {
    /// Always `ok`.
    status: &'static str,
    /// `alone`, or `member` for a member of a cluster.
    state: &'static str,
    /// The time of the authority's clock, in Unix seconds.
    now: u64,
}

/// Check that the authority can issue grants and record changes; 503 `no_majority` if a member of a cluster cannot
#[utoipa::path(get, path = "/v1/health", responses((status = 200, body = Health), Problem))]
async fn health(Part(contact): Part<Contact>) -> Result<Json<Health>, Problem> {
    let (standing, now) = (contact.standing(), now());
    match &standing {
        Standing::NoMajority { .. } | Standing::WrongClock { .. } => Err(Problem::NoMajority),
        Standing::Alone | Standing::Member => Ok(Json(Health { status: "ok", state: standing.name(), now })),
    }
}

/// List the authorities that serve the same people and verifiers
#[utoipa::path(get, path = "/v1/authorities", responses((status = 200, body = Authorities), Problem))]
async fn authorities(Part(members): Part<Members>) -> Json<Authorities> {
    Json(Authorities { authorities: members.urls() })
}
