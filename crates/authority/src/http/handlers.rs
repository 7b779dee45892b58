//! The handlers of the HTTPS API (`api`), and the router that serves the API together with the console.

mod access;
mod complaints;
mod segments;
mod state;

use crate::cluster::follow::Follower;
use crate::cluster::membership::Members;
use crate::grants::GrantIssuer;
use crate::http::calls::count_calls;
use crate::http::extractors::{Body, Caller, Part, SessionCaller, VerifierCaller, slow_strangers};
use crate::http::key_transfer::KeyTransfer;
use crate::http::openapi::parts::{self, HandleText};
use crate::http::peer::{Member, Peer};
use crate::http::problems::Problem;
use crate::http::right_clock::require_right_clock;
use crate::http::throttle::{Key, Throttle};
use crate::http::turns::RequestQueue;
use crate::keys::Keyring;
use crate::leases::Leases;
use crate::login::{self, Attempt, PasswordCheck, Provider, SessionManager, Sessions, credentials};
use crate::policy::{ConsentTable, PolicyInForce};
use crate::push::events::Push;
use crate::push::reports::Reports;
use crate::push::verifiers::Verifiers;
use crate::segments::SegmentIssuer;
use crate::state::Authority;
use crate::storage::{Database, Storage};
use crate::sync::Synchroniser;
use crate::{Settings, console, convert, metrics, now};
use api::{
    Acknowledgement, Confirm, Destinations, EndpointPlaces, Enrolled, Enrolment, EpochKey, EpochKeys, ExplainRequest,
    FlowsToCut, Grant, GrantOwner, GrantRequest, LIVE_FLOWS_MAX, LiveFlows, LoggedOut, Login, MARKS_MAX,
    PersonExplanation, REPORTED_FLOWS_MAX, REPORTED_REASONS_MAX, Report, Reported, SealedDestinations, VerifierConfig,
};
use axum::extract::rejection::QueryRejection;
use axum::extract::{DefaultBodyLimit, Path, Query, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::middleware::from_fn_with_state;
use axum::response::sse::{self, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use engine::model::Treatment;
use engine::policy::{Policy, Receiver, Request, Subject};
use futures_util::{Stream, StreamExt};
use serde::Deserialize;
use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;
use utoipa::OpenApi;
use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouterExt};
use utoipa_axum::routes;
use wire::{Destination, Epoch, Handle, NoHandle};
use zeroize::Zeroizing;

/// Maximum length of a body, in bytes.
const BODY_LIMIT: usize = 16 * 1024;
/// Maximum length of a body that lists handles, in bytes: each handle takes 19, and a JSON writer may add spaces.
const HANDLES_LIMIT: usize = 128 * 1024;
/// Maximum length of a report, in bytes: each flow takes about 300.
const REPORT_LIMIT: usize = 128 * 1024;
/// Maximum number of epochs ahead for which a verifier may request keys.
const MOST_AHEAD: u64 = 48;
/// Number of epochs ahead for which a verifier gets keys by default.
const DEFAULT_AHEAD: u64 = 2;

type Authorized<T> = Result<Json<T>, Problem>;

/// Returns the routes of all API calls, with their OpenAPI descriptions.
pub fn routes() -> OpenApiRouter<Arc<Authority>> {
    OpenApiRouter::with_openapi(parts::Head::openapi())
        .routes(routes!(login_by_password))
        .merge(login::handlers::routes())
        .routes(routes!(logout))
        .routes(routes!(destinations))
        .routes(routes!(grant))
        .merge(segments::routes())
        .routes(routes!(events))
        .routes(routes!(enrol))
        .routes(routes!(config))
        .routes(routes!(keys))
        .routes(routes!(places))
        .routes(routes!(grant_owner))
        .routes(routes!(flows).layer(DefaultBodyLimit::max(HANDLES_LIMIT)))
        .routes(routes!(acknowledge).layer(DefaultBodyLimit::max(HANDLES_LIMIT)))
        .routes(routes!(report).layer(DefaultBodyLimit::max(REPORT_LIMIT)))
        .routes(routes!(explain))
        .merge(access::routes())
        .merge(complaints::routes())
        .merge(state::routes())
}

/// Returns the router of the API, the OpenAPI description and the console.
pub fn router(authority: Arc<Authority>, description: &str) -> Router {
    let (router, _) = routes().split_for_parts();
    let description: Arc<str> = description.into();
    let described = async move || ([(CONTENT_TYPE, "application/json")], description.to_string());
    router
        .route("/v1/openapi.json", get(described))
        .layer(DefaultBodyLimit::max(BODY_LIMIT))
        .layer(from_fn_with_state(authority.contact.clone(), require_right_clock))
        .merge(console::router(authority.clone()))
        .fallback(async || Problem::NotFound("call"))
        .method_not_allowed_fallback(async || Problem::WrongMethod)
        .layer(from_fn_with_state(authority.throttle.clone(), slow_strangers))
        .layer(from_fn_with_state(authority.calls.clone(), count_calls))
        .layer(from_fn_with_state(authority.metrics.clone(), metrics::count))
        .with_state(authority)
}

/// Log in with name, password and second factor
#[utoipa::path(
    post, path = "/v1/login", request_body = Login, responses((status = 200, body = api::Session), Problem)
)]
async fn login_by_password(
    Part(password_check): Part<PasswordCheck>,
    Part(sessions): Part<SessionManager>,
    peer: Peer,
    Body(login): Body<Login>,
) -> Authorized<api::Session> {
    let Login { person, password, totp, device } = login;
    check_device(&device)?;
    let attempt = Attempt { person, password: Zeroizing::new(password), code: totp };
    let (person, proof) = password_check.check(attempt, &peer).await?;
    let session = sessions.begin_for_agent(person, device, proof, peer.address).await?;
    peer.prove(|| Member::Person(session.person.clone()));
    Ok(Json(session))
}

/// Checks the name that a person gives a device.
///
/// # Errors
/// Fails if the name is not 1 to 64 printable characters.
pub(crate) fn check_device(device: &str) -> Result<(), Problem> {
    if device.is_empty() || device.chars().count() > 64 || device.contains(char::is_control) {
        return Err(Problem::Malformed("a device's name must have 1 to 64 printable characters".into()));
    }
    Ok(())
}

/// End the session and its grants
#[utoipa::path(
    post, path = "/v1/logout", security(("session" = [])),
    responses(
        (status = 200, body = LoggedOut, description = "The session has ended; the identity provider's own session \
                                                        has not"),
        (status = 204, description = "Ended"),
        Problem,
    )
)]
async fn logout(
    Part(storage): Part<Storage>,
    Part(sync): Part<Synchroniser>,
    Part(provider): Part<Option<Provider>>,
    caller: SessionCaller,
) -> Result<Response, Problem> {
    let SessionCaller { token, session, peer } = caller;
    let person = session.person.clone();
    let end = move |database: &mut Database| {
        let at_provider = database.provider_session(&token)?;
        database.end_session(token, &session, peer.address, now())?;
        Ok(at_provider)
    };
    let at_provider = storage.call_for(&person, end).await?;
    sync.run_everywhere().await?;
    let (Some(at_issuer), Some(at_provider)) = (&*provider, at_provider) else {
        return Ok(StatusCode::NO_CONTENT.into_response());
    };
    let farewell = at_issuer.farewell().await;
    if let Some(refresh_token) = at_provider.refresh_token {
        login::handlers::forget(provider, refresh_token);
    }
    Ok(match farewell {
        Some(provider) => Json(LoggedOut { provider }).into_response(),
        None => StatusCode::NO_CONTENT.into_response(),
    })
}

/// List the destinations that the caller may reach
#[utoipa::path(
    get, path = "/v1/destinations", security(("session" = [])), responses((status = 200, body = Destinations), Problem)
)]
async fn destinations(
    Part(queue): Part<RequestQueue>,
    Part(policy): Part<PolicyInForce>,
    Part(consents): Part<ConsentTable>,
    Part(members): Part<Members>,
    caller: SessionCaller,
) -> Authorized<Destinations> {
    let _turn = queue.turn(&caller.session.person).await;
    let (subject, now, consents) = (caller.session.subject(caller.peer.address), now(), consents.current());
    let reachable = |policy: &Policy| {
        let receivers = policy.destinations(&subject, now);
        let demanded = receivers.iter().filter_map(|receiver| {
            let treatment = policy.demanded(receiver, &subject, now);
            (treatment != Treatment::None).then(|| (receiver.name.clone(), treatment.name().to_owned()))
        });
        let tunnels = receivers.iter().filter(|receiver| receiver.tunnel);
        let tunnels = tunnels.flat_map(|receiver| policy.tunnels_of(&receiver.verifier)).collect();
        let closed = policy.closed(&subject, now);
        let closed = convert::receivers(closed.iter().flat_map(|receiver| receiver.entries()));
        let sealed = SealedDestinations { demanded: demanded.collect(), closed, tunnels };
        let consented = policy.consented(&subject, &consents, now).into_iter();
        let consented = consented.filter(|own| receivers.iter().all(|receiver| receiver.name != own.name));
        (convert::receivers(receivers.iter().flat_map(|receiver| receiver.entries()).chain(consented)), sealed)
    };
    let (destinations, sealed) = policy.with(reachable).await;
    Ok(Json(Destinations { destinations, sealed, authorities: members.authorities(), now }))
}

/// Request a grant for a destination
#[utoipa::path(
    post, path = "/v1/grants", security(("session" = [])), request_body = GrantRequest,
    responses((status = 200, body = Grant), Problem)
)]
async fn grant(
    Part(queue): Part<RequestQueue>,
    Part(grants): Part<GrantIssuer>,
    Part(key_transfer): Part<KeyTransfer>,
    caller: SessionCaller,
    Body(request): Body<GrantRequest>,
) -> Authorized<Grant> {
    if request.protocol == 0 {
        return Err(Problem::Malformed("protocol 0 is not valid: 6 is TCP, 17 is UDP".into()));
    }
    let turn = queue.turn(&caller.session.person).await;
    let mut grant = grants.issue(&turn, caller.token, &request, caller.peer.address).await?.for_client();
    if request.in_band && key_transfer.take_over(&caller.peer, &mut grant).await {
        tracing::debug!(person = caller.session.person, "sending the key in band");
    }
    Ok(Json(grant))
}

#[derive(Deserialize)]
struct EventsQuery {
    confirm: Option<Confirm>,
    #[serde(default)]
    marks: bool,
}

/// Subscribe to server-sent events about changes
#[utoipa::path(
    get, path = "/v1/events", security(("session" = []), ("verifier" = [])),
    params(
        ("confirm" = Option<Confirm>, Query, description = "The events that this verifier confirms; nothing if absent"),
        ("marks" = Option<bool>, Query, description = "Whether this verifier confirms marks; false if absent"),
    ),
    responses((status = 200, body = api::Event, content_type = "text/event-stream"), Problem)
)]
async fn events(
    Part(queue): Part<RequestQueue>,
    Part(push): Part<Push>,
    Part(sessions): Part<Sessions>,
    Part(verifiers): Part<Verifiers>,
    caller: Caller,
    query: Result<Query<EventsQuery>, QueryRejection>,
) -> Result<Sse<impl Stream<Item = Result<sse::Event, Infallible>>>, Problem> {
    let malformed = "`confirm` must be pairs, grants or absent, and `marks` must be true, false or absent";
    let Query(EventsQuery { confirm, marks }) = query.map_err(|_| Problem::Malformed(malformed.into()))?;
    if let Caller::Session(caller) = &caller {
        drop(queue.turn(&caller.session.person).await);
    }
    let stream = match (&caller, marks) {
        (Caller::Verifier(_), true) => push.open_marked(caller.listener(), confirm.unwrap_or_default()),
        _ => push.open(caller.listener(), confirm.unwrap_or_default()),
    };
    // The token may have become invalid after it was looked up and before the stream was opened, when there was no
    // stream to close.
    if !caller.is_known(&sessions, &verifiers) {
        return Err(Problem::NotLoggedIn);
    }
    Ok(Sse::new(stream.map(|text| Ok(sse::Event::default().data(text)))))
}

/// Enrol a verifier with its one-time code
#[utoipa::path(
    post, path = "/v1/verifiers/enrol", request_body = Enrolment, responses((status = 200, body = Enrolled), Problem)
)]
async fn enrol(
    Part(throttle): Part<Throttle>,
    Part(storage): Part<Storage>,
    Part(sync): Part<Synchroniser>,
    peer: Peer,
    Body(enrolment): Body<Enrolment>,
) -> Authorized<Enrolled> {
    let keys = [Key::Enrolments, Key::Enrolment(Key::source(peer.address))];
    throttle.charge(&keys, Instant::now()).map_err(Problem::TooMany)?;
    let (token, hash) = credentials::new_token::<32>()?;
    let code = credentials::token_hash(enrolment.code.trim());
    let enrolled = storage.call(move |database| database.enrol(code, hash, peer.address, now())).await?;
    let verifier = enrolled.ok_or(Problem::WrongCode)?;
    sync.run().await?;
    throttle.refund(&keys);
    peer.prove(|| Member::Verifier(verifier.clone()));
    Ok(Json(Enrolled { verifier, token: token.to_string() }))
}

/// Get the configuration of the calling verifier
#[utoipa::path(
    get, path = "/v1/verifier/config", security(("verifier" = [])),
    responses((status = 200, body = VerifierConfig), Problem)
)]
async fn config(
    Part(settings): Part<Settings>,
    Part(policy): Part<PolicyInForce>,
    Part(segments): Part<SegmentIssuer>,
    Part(storage): Part<Storage>,
    Part(queue): Part<RequestQueue>,
    State(authority): State<Arc<Authority>>,
    caller: VerifierCaller,
) -> Authorized<VerifierConfig> {
    let _turn = queue.turn_of_verifier(&caller.id).await;
    let verifier = caller.id.to_string();
    let id = verifier.clone();
    let receivers = policy.receivers_of(&verifier).await;
    let tunnels = policy.with(|policy| policy.tunnels_of(&verifier)).await;
    let now = now();
    let (epoch_length, max_lifetime) = (settings.epoch_length, settings.max_lifetime);
    let read = move |database: &mut Database| {
        database.snapshot(|database| {
            let (revoked, revoked_sessions) = (database.revoked(&id, now)?, database.revoked_sessions(&id, now)?);
            Ok((revoked, revoked_sessions, database.pairs(&id, now, epoch_length)?))
        })
    };
    let (revoked, revoked_sessions, pairs) = storage.read_for_verifier(&verifier, read).await?;
    let mut handles = Vec::with_capacity(revoked.len());
    for grant in &revoked {
        handles.extend(authority.leases.handles(grant, &verifier, now)?);
    }
    let revoked = handles;
    let withdrawn = segments.withdrawn(&verifier);
    Ok(Json(VerifierConfig {
        verifier,
        epoch_length,
        max_lifetime,
        receivers,
        revoked,
        revoked_sessions,
        pairs,
        withdrawn,
        tunnels,
        authorities: authority.members.authorities(),
        now,
    }))
}

/// Get the places of addresses behind the tunnel endpoints that the calling verifier protects
#[utoipa::path(
    get, path = "/v1/verifier/places", security(("verifier" = [])),
    responses((status = 200, body = EndpointPlaces), Problem)
)]
async fn places(
    Part(segments): Part<SegmentIssuer>,
    Part(queue): Part<RequestQueue>,
    caller: VerifierCaller,
) -> Authorized<EndpointPlaces> {
    let _turn = queue.turn_of_verifier(&caller.id).await;
    let places = tokio::task::spawn_blocking(move || segments.endpoint_places(&caller.id)).await;
    Ok(Json(places.map_err(anyhow::Error::from)?))
}

#[derive(Deserialize)]
struct KeysQuery {
    ahead: Option<u64>,
}

/// Get the verifier's keys for the previous epoch, the current one and some epochs ahead
#[utoipa::path(
    get, path = "/v1/verifier/keys", security(("verifier" = [])),
    params(("ahead" = Option<u64>, Query, maximum = 48, description = "Number of epochs ahead; 2 if absent")),
    responses((status = 200, body = EpochKeys), Problem)
)]
async fn keys(
    Part(settings): Part<Settings>,
    Part(keyring): Part<Keyring>,
    Part(segments): Part<SegmentIssuer>,
    caller: VerifierCaller,
    query: Result<Query<KeysQuery>, QueryRejection>,
) -> Authorized<EpochKeys> {
    let malformed = || Problem::Malformed(format!("`ahead` must be a whole number, at most {MOST_AHEAD}"));
    let Query(query) = query.map_err(|_| malformed())?;
    let ahead = query.ahead.unwrap_or(DEFAULT_AHEAD);
    if ahead > MOST_AHEAD {
        return Err(malformed());
    }
    let now = now();
    let Epoch(current) = Epoch::at(now, settings.epoch_length);
    let key = |epoch| {
        let key = keyring.verifier_key(&caller.id, Epoch(epoch))?;
        Ok(EpochKey { epoch, key: hex::encode(key.bytes()) })
    };
    let epochs = current.saturating_sub(1)..=current + ahead;
    let keys = epochs.clone().map(key).collect::<anyhow::Result<_>>()?;
    let proofs = segments.proof_keys(&caller.id, epochs)?;
    Ok(Json(EpochKeys { keys, proofs, now }))
}

/// Get the owner of a grant
#[utoipa::path(
    get, path = "/v1/verifier/grants/{handle}", security(("verifier" = [])),
    params(("handle" = inline(HandleText), Path, description = "The grant's handle, 16 hex digits")),
    responses((status = 200, body = GrantOwner), Problem)
)]
async fn grant_owner(
    Part(storage): Part<Storage>,
    Part(policy): Part<PolicyInForce>,
    Part(leases): Part<Leases>,
    Part(queue): Part<RequestQueue>,
    caller: VerifierCaller,
    Path(handle): Path<String>,
) -> Authorized<GrantOwner> {
    let handle: Handle = handle.parse().map_err(|error: NoHandle| Problem::Malformed(error.to_string()))?;
    let _turn = queue.turn_of_verifier(&caller.id).await;
    let id = caller.id.clone();
    let read = move |database: &mut Database| {
        database.snapshot(|database| Ok((database.grant_owner(&id, handle)?, database.lease_terms(handle)?)))
    };
    let (mut owner, terms) = storage.read_for_verifier(&caller.id, read).await?;
    if let Some(owner) = &mut owner {
        owner.expires = terms.map_or(owner.expires, |terms| leases.ends_of(handle, &terms, owner.expires));
        owner.class = policy.with(|policy| policy.class_of(&owner.rule)).await;
    }
    owner.map(Json).ok_or(Problem::NotFound("grant of this verifier"))
}

/// Returns the handles, or an error if there are more than [`LIVE_FLOWS_MAX`].
fn checked(handles: Vec<u64>) -> Result<Vec<Handle>, Problem> {
    let count = handles.len();
    if count > LIVE_FLOWS_MAX {
        return Err(Problem::Malformed(format!("a call may have at most {LIVE_FLOWS_MAX} handles: found {count}")));
    }
    Ok(handles.into_iter().map(Handle).collect())
}

/// Ask which live flows must be cut
#[utoipa::path(
    post, path = "/v1/verifier/flows", security(("verifier" = [])), request_body = LiveFlows,
    responses((status = 200, body = FlowsToCut), Problem)
)]
async fn flows(
    Part(grants): Part<GrantIssuer>,
    Part(queue): Part<RequestQueue>,
    Part(follower): Part<Follower>,
    caller: VerifierCaller,
    Body(LiveFlows { handles }): Body<LiveFlows>,
) -> Authorized<FlowsToCut> {
    let handles = checked(handles)?;
    let count = handles.len();
    let verifier = caller.id.clone();
    let _turn = queue.turn_of_verifier(&verifier).await;
    // Grants that another member has just recorded are unknown here until this one has followed.
    let is_current = follower.refresh().await.is_ok();
    let mut cut = grants.to_cut(caller.id, handles).await?;
    if !is_current {
        // An unknown grant has no expiry.
        cut.retain(|grant| grant.expires != 0);
    }
    tracing::debug!(%verifier, count, cut = cut.len(), "rechecked flows");
    Ok(Json(FlowsToCut { cut }))
}

/// Confirm that the verifier has received the events about grants, and carried out all events before the given marks
#[utoipa::path(
    post, path = "/v1/verifier/heard", operation_id = "heard", security(("verifier" = [])), request_body = Acknowledgement,
    responses((status = 204, description = "Noted"), Problem)
)]
async fn acknowledge(
    Part(grants): Part<GrantIssuer>,
    Part(push): Part<Push>,
    caller: VerifierCaller,
    Body(Acknowledgement { handles, marks }): Body<Acknowledgement>,
) -> Result<StatusCode, Problem> {
    if marks.len() > MARKS_MAX {
        return Err(Problem::Malformed(format!("a call may have at most {MARKS_MAX} marks: found {}", marks.len())));
    }
    grants.acknowledge(&caller.id, &checked(handles)?);
    let known = marks.iter().filter(|mark| push.confirm(&caller.id, **mark)).count();
    if known < marks.len() {
        return Err(Problem::NotFound("mark on an open event stream of this verifier"));
    }
    Ok(StatusCode::NO_CONTENT)
}

/// Report the verifier's state, counters and latest flows
#[utoipa::path(
    post, path = "/v1/verifier/report", security(("verifier" = [])), request_body = Report,
    responses((status = 200, body = Reported), Problem)
)]
async fn report(
    Part(reports): Part<Reports>,
    caller: VerifierCaller,
    Body(report): Body<Report>,
) -> Authorized<Reported> {
    let (flows, reasons) = (report.flows.len(), report.drops.len());
    if flows > REPORTED_FLOWS_MAX || reasons > REPORTED_REASONS_MAX {
        let most = format!("at most {REPORTED_FLOWS_MAX} flows and {REPORTED_REASONS_MAX} drop reasons");
        return Err(Problem::Malformed(format!(
            "a report may have {most}: found {flows} flows and {reasons} drop reasons"
        )));
    }
    let now = now();
    let pause = reports.note(caller.id, report, now);
    Ok(Json(Reported { pause, now }))
}

/// Explain whether the policy lets a person reach a receiver of the calling verifier
#[utoipa::path(
    post, path = "/v1/verifier/explain", security(("verifier" = [])), request_body = ExplainRequest,
    responses((status = 200, body = PersonExplanation), Problem)
)]
async fn explain(
    Part(storage): Part<Storage>,
    Part(policy): Part<PolicyInForce>,
    Part(consents): Part<ConsentTable>,
    Part(queue): Part<RequestQueue>,
    caller: VerifierCaller,
    Body(request): Body<ExplainRequest>,
) -> Authorized<PersonExplanation> {
    let ExplainRequest { person, device, mut groups, mut tags, source, address, protocol, port } = request;
    let to = Destination { address: address.to_canonical(), protocol, port };
    let _turn = queue.turn_of_verifier(&caller.id).await;
    tracing::debug!(verifier = %caller.id, person, "explains");
    let (of, on) = (person.clone(), device.clone());
    let read = move |database: &mut Database| database.facts_about(&of, on.as_deref());
    let known = storage.read_for_verifier(&caller.id, read).await?;
    let taken = taken(device.as_deref(), &groups, &tags, source);
    groups.extend(known.groups);
    tags.extend(known.tags);
    let source = source.map(|source| source.to_canonical());
    let request =
        Request { subject: Subject { person: &person, groups: &groups, tags: &tags, source }, to, now: now() };
    // A verifier may ask about its own receivers only.
    let is_own = |receiver: &Receiver| receiver.verifier == *caller.id && receiver.covers(&to);
    let policy = policy.read().await;
    if !policy.policy().receivers().iter().any(is_own) {
        return Err(Problem::NotFound("receiver of this verifier"));
    }
    let explanation = policy.decide_with(&request, &consents.current()).explain(&request);
    Ok(Json(PersonExplanation { explanation: convert::explanation(explanation), taken }))
}

/// Lists the facts that an explanation is based on, and the facts that are unknown. It does not name facts that only
/// the authority knows, because the caller is a verifier, which need not know people's groups and devices.
fn taken(device: Option<&str>, groups: &[String], tags: &[String], source: Option<IpAddr>) -> Vec<String> {
    let list = |known: &str, given: &[String]| {
        let given = given.join(", ");
        if given.is_empty() { known.to_owned() } else { format!("{known}; {given} (as assumed)") }
    };
    let known_tags = match device {
        None => {
            "no device is given, so only the tags of a service account are known; rules about other tags are assumed \
             not to match"
        }
        Some(_) => "those that the authority knows",
    };
    let from = match source {
        Some(source) => source.to_string(),
        None => "unknown; rules about addresses are assumed not to match".to_owned(),
    };
    vec![
        format!("groups by login: {}", list("those that the authority knows", groups)),
        format!("tags: {}", list(known_tags, tags)),
        format!("source address: {from}"),
    ]
}

#[cfg(test)]
mod tests;
