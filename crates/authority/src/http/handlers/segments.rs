//! The calls by which sessions request path segments.

use super::Authorized;
use crate::http::extractors::{Body, Part, SessionCaller};
use crate::http::problems::Problem;
use crate::http::turns::RequestQueue;
use crate::segments::{RequestLines, SegmentIssuer};
use crate::state::Authority;
use api::{AnswerRequest, Line, PathSegment, SegmentRequest};
use axum::Json;
use axum::extract::Query;
use axum::extract::rejection::QueryRejection;
use serde::Deserialize;
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use wire::ask::PATH_MAX;

/// Returns the routes of these calls.
pub(super) fn routes() -> OpenApiRouter<Arc<Authority>> {
    OpenApiRouter::new().routes(routes!(segment)).routes(routes!(answer_segment)).routes(routes!(line))
}

#[derive(Deserialize)]
struct SegmentQuery {
    #[serde(default)]
    answers: bool,
    #[serde(default)]
    path: u8,
}

/// Request a path segment for a sender in a virtual network
#[utoipa::path(
    post, path = "/v1/segments", security(("session" = [])), request_body = SegmentRequest,
    params(
        ("answers" = Option<bool>, Query, description = "Whether to add the segment for the receiver's answers"),
        ("path" = Option<u8>, Query, maximum = 3, description = "The number of the path; absent: 0, the first path")
    ),
    responses((status = 200, body = PathSegment), Problem)
)]
async fn segment(
    Part(queue): Part<RequestQueue>,
    Part(segments): Part<SegmentIssuer>,
    caller: SessionCaller,
    query: Result<Query<SegmentQuery>, QueryRejection>,
    Body(request): Body<SegmentRequest>,
) -> Authorized<PathSegment> {
    let malformed = || {
        let text = format!("`answers` must be true, false or absent, and `path` 0 to {PATH_MAX} or absent");
        Problem::Malformed(text)
    };
    let Query(SegmentQuery { answers, path }) = query.map_err(|_| malformed())?;
    if path > PATH_MAX {
        return Err(malformed());
    }
    if request.to.protocol == 0 {
        return Err(Problem::Malformed("protocol 0 is not valid: 6 is TCP, 17 is UDP".into()));
    }
    let _turn = queue.turn(&caller.session.person).await;
    segments.issue(caller.token, &caller.session, &request, answers, path, caller.peer.address).await.map(Json)
}

/// Request the return path segment for a segment that arrived with a packet
#[utoipa::path(
    post, path = "/v1/segments/answer", security(("session" = [])), request_body = AnswerRequest,
    responses((status = 200, body = PathSegment), Problem)
)]
async fn answer_segment(
    Part(queue): Part<RequestQueue>,
    Part(segments): Part<SegmentIssuer>,
    caller: SessionCaller,
    Body(request): Body<AnswerRequest>,
) -> Authorized<PathSegment> {
    let _turn = queue.turn(&caller.session.person).await;
    segments.issue_answer(caller.token, &request, caller.peer.address).await.map(Json)
}

/// Open a line for requests for grants and segments by UDP; it replaces the session's previous line
#[utoipa::path(
    post, path = "/v1/segments/line", security(("session" = [])), responses((status = 200, body = Line), Problem)
)]
async fn line(
    Part(queue): Part<RequestQueue>,
    Part(lines): Part<RequestLines>,
    caller: SessionCaller,
) -> Authorized<Line> {
    let _turn = queue.turn(&caller.session.person).await;
    lines.open(caller.token, caller.session.expires, caller.peer.address).map(Json)
}
