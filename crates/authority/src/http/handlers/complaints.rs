//! The call by which a verifier passes on an application's complaint about a person.

use super::Authorized;
use crate::http::extractors::{Body, Part, VerifierCaller};
use crate::http::problems::Problem;
use crate::http::turns::RequestQueue;
use crate::policy::Scores;
use crate::state::Authority;
use api::{Complaint, Standing};
use axum::Json;
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// Returns the route of this call.
pub(super) fn routes() -> OpenApiRouter<Arc<Authority>> {
    OpenApiRouter::new().routes(routes!(complain))
}

/// Take points off the score of the person behind a grant, because an application complains
#[utoipa::path(
    post, path = "/v1/verifier/complaints", security(("verifier" = [])), request_body = Complaint,
    responses((status = 200, body = Standing), Problem)
)]
async fn complain(
    Part(scores): Part<Scores>,
    Part(queue): Part<RequestQueue>,
    caller: VerifierCaller,
    Body(complaint): Body<Complaint>,
) -> Authorized<Standing> {
    let _turn = queue.turn_of_verifier(&caller.id).await;
    scores.complain(&caller.id, complaint).await.map(Json)
}
