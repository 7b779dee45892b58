//! The handlers of the API calls for two kinds of logins: those at the identity provider, and those of service
//! accounts.

use super::pending::agent::{AgentLogin, PAGE, Proven, Requester};
use super::pending::{Abort, BROWSER_TIME, CHALLENGE_TIME, CodeLogin, Finish, Rest, Started, Way};
use super::provider::{Refusal, Verified};
use super::service::AssertionCheck;
use super::{Logins, Provider, SessionManager};
use crate::http::extractors::{Body, Part};
use crate::http::handlers::check_device;
use crate::http::peer::{Member, Peer};
use crate::http::problems::Problem;
use crate::http::throttle::{Key, Throttle};
use crate::login::credentials;
use crate::state::Authority;
use crate::storage::{AuditEvent, AuditLog, Proof, Storage};
use crate::sync::Synchroniser;
use crate::{Settings, now};
use api::{
    BrowserLogin, BrowserLoginStarted, Challenge, DeviceLogin, DeviceLoginStarted, FinishLogin, IdentityProvider,
    LoginMethods, LoginOutcome, ServiceLogin, Session,
};
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

/// Returns the routes of the calls for logging in and out, with their OpenAPI descriptions.
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
pub fn forget(provider: Arc<Option<Provider>>, refresh_token: Zeroizing<String>) {
    tokio::spawn(async move {
        let Some(provider) = &*provider else { return };
        if let Err(error) = provider.forget(openidconnect::RefreshToken::new(refresh_token.to_string())).await {
            tracing::debug!("cannot revoke a refresh token at the identity provider: {error:#}");
        }
    });
}

/// List the available ways to log in
#[utoipa::path(get, path = "/v1/login", responses((status = 200, body = LoginMethods), Problem))]
pub async fn methods(Part(provider): Part<Option<Provider>>) -> Json<LoginMethods> {
    let issuer = |provider: &Provider| IdentityProvider { issuer: provider.settings.issuer.clone() };
    Json(LoginMethods { provider: Option::as_ref(&provider).map(issuer) })
}

/// Start a login with the identity provider in a browser on the caller's machine
#[utoipa::path(
    post, path = "/v1/login/browser", request_body = BrowserLogin,
    responses((status = 200, body = BrowserLoginStarted), Problem)
)]
async fn browser(
    Part(settings): Part<Settings>,
    Part(provider): Part<Option<Provider>>,
    Part(throttle): Part<Throttle>,
    Part(audit): Part<AuditLog>,
    Part(logins): Part<Logins>,
    peer: Peer,
    Body(BrowserLogin { device, challenge, port, user, host }): Body<BrowserLogin>,
) -> Result<Json<BrowserLoginStarted>, Problem> {
    configured(&provider)?;
    let console = settings.console.url.as_ref().ok_or(Problem::NoBrowserLogin)?;
    // The caller chooses only the port, so a browser is never redirected to another machine.
    if port < 1024 {
        return Err(Problem::Malformed("the port must be 1024 or higher".into()));
    }
    check_claim("user", &user)?;
    check_claim("host", &host)?;
    let Prepared { challenge, charged } = prepare(&throttle, &peer, &device, &challenge)?;
    let state = hex::encode(credentials::random::<16>()?);
    let requester = Requester { device, user, host, source: peer.address, since: now() };
    let began = AuditEvent::new("login_began").source(peer.address).device(&requester.device);
    audit.write_refusal(began.detail(requester.claims())).await?;
    let way = Way::Agent(Box::new(AgentLogin::new(requester, port, state.clone())));
    let (source, until) = (Key::source(peer.address), Instant::now() + BROWSER_TIME);
    let login = logins.begin(Started { challenge, source, until, charged, way })?;
    let url = format!("{console}{PAGE}/{login}");
    Ok(Json(BrowserLoginStarted { login, url, state, expires_in: BROWSER_TIME.as_secs() }))
}

/// Checks the user or host name that an agent claims.
fn check_claim(what: &str, text: &str) -> Result<(), Problem> {
    if text.is_empty() || text.chars().count() > MOST_CLAIM || text.contains(char::is_control) {
        return Err(Problem::Malformed(format!("`{what}` must have 1 to {MOST_CLAIM} printable characters")));
    }
    Ok(())
}

/// Start a login with the identity provider by device code, in a browser on any machine
#[utoipa::path(
    post, path = "/v1/login/device", request_body = DeviceLogin,
    responses((status = 200, body = DeviceLoginStarted), Problem)
)]
async fn device(
    Part(provider): Part<Option<Provider>>,
    Part(throttle): Part<Throttle>,
    Part(logins): Part<Logins>,
    peer: Peer,
    Body(DeviceLogin { device, challenge }): Body<DeviceLogin>,
) -> Result<Json<DeviceLoginStarted>, Problem> {
    let at_issuer = configured(&provider)?;
    let Prepared { challenge, charged } = prepare(&throttle, &peer, &device, &challenge)?;
    let details = at_issuer.device().await?;
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
    let polls = wanted.clone();
    let task = tokio::spawn(async move {
        let Some(provider) = &*provider else { return };
        let _ = answer.send(provider.await_device(&details, &polls).await);
    });
    let way = Way::Code(CodeLogin { device, outcome, wanted, task: Abort(task.abort_handle()) });
    let (source, until) = (Key::source(peer.address), Instant::now() + expires_in);
    started.login = logins.begin(Started { challenge, source, until, charged, way })?;
    Ok(Json(started))
}

/// Finish a login with the identity provider
#[utoipa::path(
    post, path = "/v1/login/finish", request_body = FinishLogin, responses((status = 200, body = LoginOutcome), Problem)
)]
async fn finish(
    Part(provider): Part<Option<Provider>>,
    Part(logins): Part<Logins>,
    Part(audit): Part<AuditLog>,
    Part(sessions): Part<SessionManager>,
    Part(throttle): Part<Throttle>,
    peer: Peer,
    Body(FinishLogin { login, verifier, callback }): Body<FinishLogin>,
) -> Result<Json<LoginOutcome>, Problem> {
    configured(&provider)?;
    let (Proven { person, proof }, Rest { device, charged }) =
        match logins.finish(&login, &verifier, callback.as_ref())? {
            Finish::Pending => return Ok(Json(LoginOutcome::Pending)),
            Finish::Approved(proven, rest) => (proven, rest),
            Finish::Verified(verified, rest) => (proved(&audit, &peer, verified).await?, rest),
        };
    let session = add(&sessions, &peer, person, device, proof).await?;
    throttle.refund(&charged);
    Ok(Json(LoginOutcome::LoggedIn(session)))
}

/// Returns the person and the proof from the provider's verified answer. Records a refusal by the provider in the audit
/// trail.
///
/// # Errors
/// Fails if the provider refused or failed, or the database cannot be written.
pub(crate) async fn proved(
    audit: &AuditLog,
    peer: &Peer,
    verified: Result<Verified, Refusal>,
) -> Result<Proven, Problem> {
    let Verified { identity, refresh_token } = match verified {
        Ok(verified) => verified,
        Err(refusal) => {
            if let Refusal::No(why) = &refusal {
                let event = AuditEvent::new("login_failed").source(peer.address).detail(why);
                audit.write_refusal(event).await?;
            }
            return Err(refusal.into());
        }
    };
    let refresh_token = refresh_token.map(|token| Zeroizing::new(token.into_secret()));
    let person = identity.person.clone();
    Ok(Proven { person, proof: Proof::Provider { identity, refresh_token } })
}

/// Get a challenge that a machine signs to log in with its key
#[utoipa::path(post, path = "/v1/login/challenge", responses((status = 200, body = Challenge), Problem))]
async fn challenge(
    Part(throttle): Part<Throttle>,
    Part(logins): Part<Logins>,
    peer: Peer,
) -> Result<Json<Challenge>, Problem> {
    let charged = throttle.start(peer.address, Instant::now()).map_err(Problem::TooMany)?;
    let (source, until) = (Key::source(peer.address), Instant::now() + CHALLENGE_TIME);
    let way = Way::Challenge;
    let nonce = logins.begin(Started { challenge: [0; 32], source, until, charged, way })?;
    Ok(Json(Challenge { nonce }))
}

/// Log in as a service account, with an assertion signed by its key
#[utoipa::path(
    post, path = "/v1/login/service", request_body = ServiceLogin, responses((status = 200, body = Session), Problem)
)]
#[expect(clippy::too_many_arguments, reason = "each is a part that the login needs")]
async fn service_login(
    Part(assertions): Part<AssertionCheck>,
    Part(logins): Part<Logins>,
    Part(storage): Part<Storage>,
    Part(audit): Part<AuditLog>,
    Part(sessions): Part<SessionManager>,
    Part(throttle): Part<Throttle>,
    peer: Peer,
    Body(ServiceLogin { service, nonce, assertion, device }): Body<ServiceLogin>,
) -> Result<Json<Session>, Problem> {
    check_device(&device)?;
    let name = service.clone();
    let charged = logins.answer(&nonce).filter(|_| engine::policy::name_is_valid(&service));
    let key = match charged {
        Some(_) => storage.call(move |database| database.service_key(&name)).await?,
        None => None,
    };
    let genuine = |key: &String| assertions.is_genuine(&assertion, &service, &nonce, key).unwrap_or_default();
    let Some(key) = key.filter(genuine) else {
        audit.write_refusal(AuditEvent::new("login_failed").source(peer.address).detail("assertion")).await?;
        return Err(Problem::WrongAssertion);
    };
    let session = add(&sessions, &peer, service, device, Proof::Service(key)).await?;
    throttle.refund(&charged.unwrap_or_default());
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
    Part(provider): Part<Option<Provider>>,
    Part(throttle): Part<Throttle>,
    Part(logins): Part<Logins>,
    Part(storage): Part<Storage>,
    Part(sync): Part<Synchroniser>,
    peer: Peer,
    form: Result<Form<LogoutForm>, FormRejection>,
) -> Result<impl IntoResponse, Problem> {
    let provider = configured(&provider)?;
    let key = [Key::Logouts(Key::source(peer.address))];
    throttle.charge(&key, Instant::now()).map_err(Problem::TooMany)?;
    let malformed = |_| Problem::Malformed("the request must be a form with a `logout_token`".into());
    let Form(LogoutForm { logout_token }) = form.map_err(malformed)?;
    let logout = match provider.logout(&logout_token).await {
        Err(Refusal::No(why)) => return Err(Problem::Malformed(why)),
        verified => verified?,
    };
    throttle.refund(&key);
    // A login that still waits for the person's answer must not succeed after the person was logged out.
    logins.forget_subject(&logout.subject);
    let end = {
        let super::provider::Logout { subject, sid } = logout;
        move |database: &mut crate::storage::Database| database.end_by_logout(&subject, sid.as_deref(), now())
    };
    let ended = storage.call(end).await?;
    sync.run_everywhere().await?;
    tracing::info!(ended, "the identity provider logged a person out");
    Ok((StatusCode::OK, [(header::CACHE_CONTROL, HeaderValue::from_static("no-store"))]))
}

/// Returns the identity provider, or an error if none is configured.
fn configured(provider: &Option<Provider>) -> Result<&Provider, Problem> {
    provider.as_ref().ok_or(Problem::NoProvider)
}

/// The values that logins at the provider need, in a browser and by device code.
struct Prepared {
    challenge: [u8; 32],
    charged: Vec<Key>,
}

fn prepare(throttle: &Throttle, peer: &Peer, device: &str, challenge: &str) -> Result<Prepared, Problem> {
    check_device(device)?;
    let text = challenge;
    let mut challenge = [0; 32];
    hex::decode_to_slice(text, &mut challenge)
        .map_err(|_| Problem::Malformed("a challenge must be a SHA-256 in 64 hex digits".into()))?;
    let charged = throttle.start(peer.address, Instant::now()).map_err(Problem::TooMany)?;
    Ok(Prepared { challenge, charged })
}

async fn add(
    sessions: &SessionManager,
    peer: &Peer,
    person: String,
    device: String,
    proof: Proof,
) -> Result<Session, Problem> {
    let session = sessions.begin_for_agent(person, device, proof, peer.address).await?;
    peer.prove(|| Member::Person(session.person.clone()));
    Ok(session)
}
