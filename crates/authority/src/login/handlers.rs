//! The API calls for logins with the identity provider and of machines (`api`).

use super::pending::agent::{AgentLogin, PAGE, Proven, Requester};
use super::pending::{Abort, BROWSER_TIME, CHALLENGE_TIME, CodeLogin, Finish, Rest, Started, Way};
use super::provider::{Refusal, Verified};
use super::{Provider, service};
use crate::http::extractors::Body;
use crate::http::handlers::check_device;
use crate::http::peer::{Member, Peer};
use crate::http::problems::Problem;
use crate::http::throttle::Key;
use crate::login::credentials;
use crate::now;
use crate::state::Authority;
use crate::storage::{AuditEvent, Proof};
use api::{
    BrowserLogin, BrowserLoginStarted, Challenge, DeviceLogin, DeviceLoginStarted, FinishLogin, IdentityProvider,
    LoginMethods, LoginOutcome, ServiceLogin, Session,
};
use axum::extract::State;
use axum::extract::rejection::FormRejection;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::IntoResponse;
use axum::{Form, Json};
use serde::Deserialize;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::{Notify, oneshot};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use zeroize::Zeroizing;

/// Maximum length in characters of a user or host name that an agent may claim.
const MOST_CLAIM: usize = 64;

type Shared = State<Arc<Authority>>;

/// Returns the routes of the calls, with their OpenAPI descriptions.
pub fn routes() -> OpenApiRouter<Arc<Authority>> {
    OpenApiRouter::new()
        .routes(routes!(methods))
        .routes(routes!(browser))
        .routes(routes!(device))
        .routes(routes!(finish))
        .routes(routes!(challenge))
        .routes(routes!(service_login))
        .routes(routes!(backchannel_logout))
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::No(why) => Self::ProviderRefused(why),
            Refusal::Unavailable(error) => Self::ProviderUnavailable(error),
        }
    }
}

/// Revokes a refresh token at the provider, in the background.
pub fn forget(authority: Arc<Authority>, refresh_token: Zeroizing<String>) {
    tokio::spawn(async move {
        let Some(provider) = &authority.provider else { return };
        if let Err(error) = provider.forget(openidconnect::RefreshToken::new(refresh_token.to_string())).await {
            tracing::debug!("the identity provider: {error:#}");
        }
    });
}

/// List the available ways to log in
#[utoipa::path(get, path = "/v1/login", responses((status = 200, body = LoginMethods), Problem))]
pub async fn methods(State(authority): Shared) -> Json<LoginMethods> {
    let issuer = |provider: &Provider| IdentityProvider { issuer: provider.config.issuer.clone() };
    Json(LoginMethods { provider: authority.provider.as_ref().map(issuer) })
}

/// Start a login with the identity provider in a browser on the caller's machine
#[utoipa::path(
    post, path = "/v1/login/browser", request_body = BrowserLogin,
    responses((status = 200, body = BrowserLoginStarted), Problem)
)]
async fn browser(
    State(authority): Shared,
    peer: Peer,
    Body(BrowserLogin { device, challenge, port, user, host }): Body<BrowserLogin>,
) -> Result<Json<BrowserLoginStarted>, Problem> {
    authority.provider.as_ref().ok_or(Problem::NoProvider)?;
    let console = authority.config.console.url.as_ref().ok_or(Problem::NoBrowserLogin)?;
    // The caller chooses only the port: a browser is never redirected to another machine than its own.
    if port < 1024 {
        return Err(Problem::Malformed("the port must be 1024 or higher".into()));
    }
    check_claim("user", &user)?;
    check_claim("host", &host)?;
    let Prepared { challenge, charged, .. } = prepare(&authority, &peer, &device, &challenge)?;
    let state = hex::encode(credentials::random::<16>()?);
    let requester = Requester { device, user, host, source: peer.address, since: now() };
    let began = AuditEvent::new("login_began").source(peer.address).device(&requester.device);
    authority.audit_refusal(began.detail(requester.claims())).await?;
    let way = Way::Agent(Box::new(AgentLogin::new(requester, port, state.clone())));
    let (source, until) = (Key::source(peer.address), Instant::now() + BROWSER_TIME);
    let login = authority.logins.begin(Started { challenge, source, until, charged, way })?;
    let url = format!("{console}{PAGE}/{login}");
    Ok(Json(BrowserLoginStarted { login, url, state, expires_in: BROWSER_TIME.as_secs() }))
}

/// Checks the user or host name that an agent claims.
fn check_claim(what: &str, text: &str) -> Result<(), Problem> {
    if text.is_empty() || text.chars().count() > MOST_CLAIM || text.contains(char::is_control) {
        return Err(Problem::Malformed(format!("`{what}` is 1 to {MOST_CLAIM} printable characters")));
    }
    Ok(())
}

/// Start a login with the identity provider by device code, in a browser on any machine
#[utoipa::path(
    post, path = "/v1/login/device", request_body = DeviceLogin,
    responses((status = 200, body = DeviceLoginStarted), Problem)
)]
async fn device(
    State(authority): Shared,
    peer: Peer,
    Body(DeviceLogin { device, challenge }): Body<DeviceLogin>,
) -> Result<Json<DeviceLoginStarted>, Problem> {
    let Prepared { provider, challenge, charged } = prepare(&authority, &peer, &device, &challenge)?;
    let details = provider.device().await?;
    let expires_in = details.expires_in().min(BROWSER_TIME);
    let mut started = DeviceLoginStarted {
        login: String::new(),
        user_code: details.user_code().secret().clone(),
        url: details.verification_uri().to_string(),
        url_with_code: details.verification_uri_complete().map(|url| url.secret().clone()),
        interval: details.interval().as_secs().max(1),
        expires_in: expires_in.as_secs(),
    };
    let (answer, outcome) = oneshot::channel();
    let wanted = Arc::new(Notify::new());
    let (waiting, polls) = (authority.clone(), wanted.clone());
    let task = tokio::spawn(async move {
        let Some(provider) = &waiting.provider else { return };
        let _ = answer.send(provider.await_device(&details, &polls).await);
    });
    let way = Way::Code(CodeLogin { device, outcome, wanted, task: Abort(task.abort_handle()) });
    let (source, until) = (Key::source(peer.address), Instant::now() + expires_in);
    started.login = authority.logins.begin(Started { challenge, source, until, charged, way })?;
    Ok(Json(started))
}

/// Finish a login with the identity provider
#[utoipa::path(
    post, path = "/v1/login/finish", request_body = FinishLogin, responses((status = 200, body = LoginOutcome), Problem)
)]
async fn finish(
    State(authority): Shared,
    peer: Peer,
    Body(FinishLogin { login, verifier, callback }): Body<FinishLogin>,
) -> Result<Json<LoginOutcome>, Problem> {
    authority.provider.as_ref().ok_or(Problem::NoProvider)?;
    let (Proven { person, proof }, Rest { device, charged }) =
        match authority.logins.finish(&login, &verifier, callback.as_ref())? {
            Finish::Pending => return Ok(Json(LoginOutcome::Pending)),
            Finish::Approved(proven, rest) => (proven, rest),
            Finish::Verified(verified, rest) => (proved(&authority, &peer, verified).await?, rest),
        };
    let session = add(&authority, &peer, person, device, proof).await?;
    authority.throttle.refund(&charged);
    Ok(Json(LoginOutcome::LoggedIn(session)))
}

/// Evaluates the provider's answer. A refusal by the provider is recorded in the audit trail.
pub(crate) async fn proved(
    authority: &Authority,
    peer: &Peer,
    verified: Result<Verified, Refusal>,
) -> Result<Proven, Problem> {
    let Verified { identity, refresh_token } = match verified {
        Ok(verified) => verified,
        Err(refusal) => {
            if let Refusal::No(why) = &refusal {
                let event = AuditEvent::new("login_failed").source(peer.address).detail(why);
                authority.audit_refusal(event).await?;
            }
            return Err(refusal.into());
        }
    };
    let refresh_token = refresh_token.map(|token| Zeroizing::new(token.into_secret()));
    let person = identity.person.clone();
    Ok(Proven { person, proof: Proof::Provider { identity, refresh_token } })
}

/// Get a challenge for a machine to sign in order to log in
#[utoipa::path(post, path = "/v1/login/challenge", responses((status = 200, body = Challenge), Problem))]
async fn challenge(State(authority): Shared, peer: Peer) -> Result<Json<Challenge>, Problem> {
    let charged = authority.throttle.start(peer.address, Instant::now()).map_err(Problem::TooMany)?;
    let (source, until) = (Key::source(peer.address), Instant::now() + CHALLENGE_TIME);
    let way = Way::Challenge;
    let nonce = authority.logins.begin(Started { challenge: [0; 32], source, until, charged, way })?;
    Ok(Json(Challenge { nonce }))
}

/// Log a machine in
#[utoipa::path(
    post, path = "/v1/login/service", request_body = ServiceLogin, responses((status = 200, body = Session), Problem)
)]
async fn service_login(
    State(authority): Shared,
    peer: Peer,
    Body(ServiceLogin { service, nonce, assertion, device }): Body<ServiceLogin>,
) -> Result<Json<Session>, Problem> {
    check_device(&device)?;
    let name = service.clone();
    let charged = authority.logins.answer(&nonce).filter(|_| engine::policy::name_is_valid(&service));
    let key = match charged {
        Some(_) => authority.storage.call(move |database| database.service_key(&name)).await?,
        None => None,
    };
    let genuine =
        |key: &String| service::is_genuine(&assertion, &service, &nonce, &authority.audience, key).unwrap_or_default();
    let Some(key) = key.filter(genuine) else {
        authority.audit_refusal(AuditEvent::new("login_failed").source(peer.address).detail("assertion")).await?;
        return Err(Problem::WrongAssertion);
    };
    let session = add(&authority, &peer, service, device, Proof::Service(key)).await?;
    authority.throttle.refund(&charged.unwrap_or_default());
    Ok(Json(session))
}

/// The form that an identity provider posts to log a person out
#[derive(Deserialize, ToSchema)]
struct LogoutForm {
    /// A JWT that the provider signed.
    logout_token: String,
}

/// Log a person out on behalf of the identity provider (OpenID Connect Back-Channel Logout 1.0)
#[utoipa::path(
    post, path = "/v1/login/backchannel-logout",
    request_body(content = LogoutForm, content_type = "application/x-www-form-urlencoded"),
    responses((status = 200, description = "Ended"), Problem)
)]
async fn backchannel_logout(
    State(authority): Shared,
    peer: Peer,
    form: Result<Form<LogoutForm>, FormRejection>,
) -> Result<impl IntoResponse, Problem> {
    let provider = authority.provider.as_ref().ok_or(Problem::NoProvider)?;
    let key = [Key::Logouts(Key::source(peer.address))];
    authority.throttle.charge(&key, Instant::now()).map_err(Problem::TooMany)?;
    let malformed = |_| Problem::Malformed("the request must be a form with a `logout_token`".into());
    let Form(LogoutForm { logout_token }) = form.map_err(malformed)?;
    let logout = match provider.logout(&logout_token).await {
        Err(Refusal::No(why)) => return Err(Problem::Malformed(why)),
        judged => judged?,
    };
    authority.throttle.refund(&key);
    // A login that still waits for the person's answer must not succeed for a person who was logged out in the
    // meantime.
    authority.logins.forget_subject(&logout.subject);
    let end = {
        let super::provider::Logout { subject, sid } = logout;
        move |database: &mut crate::storage::Database| database.end_by_logout(&subject, sid.as_deref(), now())
    };
    let ended = authority.storage.call(end).await?;
    authority.sync().await?;
    tracing::info!(ended, "the identity provider logged somebody out");
    Ok((StatusCode::OK, [(header::CACHE_CONTROL, HeaderValue::from_static("no-store"))]))
}

/// Values that both kinds of login with the provider need.
struct Prepared<'a> {
    provider: &'a Provider,
    challenge: [u8; 32],
    charged: Vec<Key>,
}

fn prepare<'a>(authority: &'a Authority, peer: &Peer, device: &str, challenge: &str) -> Result<Prepared<'a>, Problem> {
    let provider = authority.provider.as_ref().ok_or(Problem::NoProvider)?;
    check_device(device)?;
    let text = challenge;
    let mut challenge = [0; 32];
    hex::decode_to_slice(text, &mut challenge)
        .map_err(|_| Problem::Malformed("a challenge is a SHA-256, 64 hex digits".into()))?;
    let charged = authority.throttle.start(peer.address, Instant::now()).map_err(Problem::TooMany)?;
    Ok(Prepared { provider, challenge, charged })
}

async fn add(
    authority: &Arc<Authority>,
    peer: &Peer,
    person: String,
    device: String,
    proof: Proof,
) -> Result<Session, Problem> {
    let session = authority.add_session(person, device, proof, peer.address).await?;
    peer.prove(|| Member::Person(session.person.clone()));
    Ok(session)
}
