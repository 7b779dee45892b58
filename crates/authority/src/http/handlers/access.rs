//! The calls by which people ask for access to receivers. People decide about requests at the console only, so that a
//! stolen machine cannot open receivers to others.

use super::Authorized;
use crate::http::extractors::{Body, Part, SessionCaller};
use crate::http::problems::Problem;
use crate::http::turns::RequestQueue;
use crate::now;
use crate::policy::AccessRequests;
use crate::policy::access::{Asking, no_request};
use crate::state::Authority;
use crate::storage::{AccessEntry, AccessPage, Operator};
use api::{AccessAsked, AccessList, AccessRequest};
use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query};
use axum::http::StatusCode;
use serde::Deserialize;
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// Returns the routes of these calls.
pub(super) fn routes() -> OpenApiRouter<Arc<Authority>> {
    OpenApiRouter::new().routes(routes!(list, ask)).routes(routes!(withdraw))
}

#[derive(Deserialize)]
struct ListQuery {
    before: Option<String>,
}

/// List the caller's requests for access, and the receivers for which the caller can ask
#[utoipa::path(
    get, path = "/v1/access", operation_id = "access_list", security(("session" = [])),
    params(("before" = Option<String>, Query, pattern = r"^([0-9]{1,10}-(?!0{8})[0-9a-f]{8})?$",
            description = "The value of `next` on the page before; absent or empty for the first page")),
    responses((status = 200, body = AccessList), Problem)
)]
async fn list(
    Part(access): Part<AccessRequests>,
    Part(queue): Part<RequestQueue>,
    caller: SessionCaller,
    query: Result<Query<ListQuery>, QueryRejection>,
) -> Authorized<AccessList> {
    let malformed = || Problem::Malformed("`before` must be the value of `next` on the page before".into());
    let Query(ListQuery { before }) = query.map_err(|_| malformed())?;
    let before =
        before.filter(|before| !before.is_empty()).map(|before| before.parse().map_err(|_| malformed())).transpose()?;
    let _turn = queue.turn(&caller.session.person).await;
    let AccessPage { entries, next } = access.of(&caller.session.person, before).await?;
    let (requests, next) = (entries.into_iter().map(shown).collect(), next.map(|next| next.to_string()));
    let requestable = access.requestable(&caller.session.subject(caller.peer.address)).await;
    Ok(Json(AccessList { requests, next, requestable, now: now() }))
}

fn shown(entry: AccessEntry) -> api::AccessEntry {
    let AccessEntry { id, receiver, services, reason, asked, state, decider, note, until, .. } = entry;
    let (id, state) = (id.to_string(), state.name().into());
    api::AccessEntry { id, receiver, services, reason, asked, state, by: decider, note, until }
}

/// Ask for access to a receiver
#[utoipa::path(
    post, path = "/v1/access", operation_id = "access_ask", security(("session" = [])), request_body = AccessRequest,
    responses((status = 200, body = AccessAsked), Problem)
)]
async fn ask(
    Part(access): Part<AccessRequests>,
    Part(queue): Part<RequestQueue>,
    caller: SessionCaller,
    Body(request): Body<AccessRequest>,
) -> Authorized<AccessAsked> {
    let _turn = queue.turn(&caller.session.person).await;
    let AccessRequest { receiver, services, lifetime, reason } = &request;
    let asking = Asking { receiver, services, lifetime: lifetime.map(u64::from), reason };
    let id = access.ask(&caller.session, caller.token, caller.peer.address, asking).await?;
    Ok(Json(AccessAsked { id: id.to_string() }))
}

/// Withdraw a request of the caller, or the consent that answered it; grants that rest on it end
#[utoipa::path(
    post, path = "/v1/access/{id}/withdraw", operation_id = "access_withdraw", security(("session" = [])),
    params(("id" = String, Path, description = "The number of the request, 8 hex digits")),
    responses((status = 204, description = "Withdrawn"), Problem)
)]
async fn withdraw(
    Part(access): Part<AccessRequests>,
    caller: SessionCaller,
    Path(id): Path<String>,
) -> Result<StatusCode, Problem> {
    let id = id.parse().map_err(|_| no_request())?;
    let by = Operator::in_session(&caller.session.person);
    access.withdraw_own(&caller.session, by, id).await?;
    Ok(StatusCode::NO_CONTENT)
}
