//! The authority's HTTPS API, from the caller's side: one [`Authority`] per authority and bearer token, and its
//! [`EventStream`]. Connections are kept open, so a call costs one round trip. Decides nothing and stores nothing.
#![forbid(unsafe_code)]

mod asking;
mod assertion;
mod events;
mod owner;
mod tls;

pub use asking::Asker;
pub use events::EventStream;

use engine::api::{
    AnswerRequest, BrowserLogin, BrowserLoginStarted, Challenge, Confirm, Destinations, DeviceLogin,
    DeviceLoginStarted, Enrolled, Enrolment, EpochKeys, ExplainRequest, FinishLogin, FlowsToCut, Grant, GrantOwner,
    GrantRequest, Heard, Line, LiveFlows, LoggedOut, Login, LoginMethods, LoginOutcome, PathSegment, PersonExplanation,
    Problem, Report, Reported, RevokedGrant, SegmentRequest, ServiceLogin, Session, VerifierConfig,
};
use owner::{Elsewhere, OwnedBy};
use reqwest::{ClientBuilder, Method, RequestBuilder, Response, StatusCode, Url};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::sync::Arc;
use std::time::Duration;

/// How long a connection may take to come up.
const CONNECT_TIME: Duration = Duration::from_secs(5);
/// How long a call may take.
const CALL_TIME: Duration = Duration::from_secs(15);
/// Silence after which the authority is asked whether it lives, and how long it has to answer.
const PING: Duration = Duration::from_secs(10);
/// The longest answer that is read, in bytes.
const MOST_ANSWER: usize = 16 * 1024 * 1024;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The policy says no.
    #[error("{}", .0.title)]
    Denied(Problem),
    /// No bearer token, or it has ended: log in or enrol anew.
    #[error("not logged in, or no longer: log in again")]
    NotLoggedIn,
    /// The authority answered and refused for another reason, such as `wrong_password` or `too_many`.
    #[error("{}", .0.title)]
    Refused(Problem),
    /// No answer: no connection, no trust, no time left.
    #[error("the authority can't be reached: {0}")]
    Unreachable(String),
    /// Anything else, such as an answer that can't be understood.
    #[error("{0}")]
    Other(String),
}

impl From<reqwest::Error> for Error {
    fn from(error: reqwest::Error) -> Self {
        if error.is_decode() || error.is_builder() {
            Self::Other(chain(&error))
        } else {
            Self::Unreachable(chain(&error))
        }
    }
}

/// An authority, as its caller. Clones share their connections.
#[derive(Clone)]
pub struct Authority {
    http: reqwest::Client,
    base: Url,
    token: Option<Arc<str>>,
}

/// The host and the port of an authority's address.
pub fn endpoint(url: &str) -> Result<(String, u16), Error> {
    Ok(host(&base(url)?))
}

fn host(base: &Url) -> (String, u16) {
    let host = base.host_str().unwrap_or_default().trim_matches(['[', ']']).to_owned();
    (host, base.port_or_known_default().unwrap_or_default())
}

fn base(url: &str) -> Result<Url, Error> {
    let base = Url::parse(url).map_err(|error| Error::Other(format!("`{url}` is no URL: {error}")))?;
    if base.scheme() != "https" || base.host().is_none() {
        return Err(Error::Other(format!("`{url}` is no address of an authority: write https://HOST:PORT")));
    }
    Ok(base)
}

impl Authority {
    /// The authority at `url` (`https://…`). Trusts the certificates in `ca_pem` and no others, or the system's where
    /// none are given.
    pub fn new(url: &str, ca_pem: Option<&[u8]>) -> Result<Self, Error> {
        Self::over(url, ca_pem, |builder| builder)
    }

    /// A client whose connections belong to the user `uid`, so that root's tokens are not spent on them: a user who has the
    /// agent connect somewhere must not do so in root's name. The caller needs `CAP_SETUID`.
    pub fn of_user(url: &str, ca_pem: Option<&[u8]>, uid: u32) -> Result<Self, Error> {
        let own = |builder: ClientBuilder| builder.connector_layer(OwnedBy(uid)).dns_resolver(Arc::new(Elsewhere));
        Self::over(url, ca_pem, own)
    }

    fn over(
        url: &str,
        ca_pem: Option<&[u8]>,
        connections: impl FnOnce(ClientBuilder) -> ClientBuilder,
    ) -> Result<Self, Error> {
        let base = base(url)?;
        let builder = reqwest::Client::builder()
            .tls_backend_preconfigured(tls::config(ca_pem)?)
            .https_only(true)
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT_TIME)
            .http2_keep_alive_interval(PING)
            .http2_keep_alive_timeout(PING)
            .http2_keep_alive_while_idle(true)
            .user_agent(concat!("vouchsafe/", env!("CARGO_PKG_VERSION")));
        let http = connections(builder).build()?;
        Ok(Self { http, base, token: None })
    }

    /// The same authority with a bearer token, over the same connections.
    pub fn with_token(&self, token: &str) -> Self {
        Self { token: Some(token.into()), ..self.clone() }
    }

    /// Logs a person in. The token in the answer goes into [`Self::with_token`].
    pub async fn login(&self, login: &Login) -> Result<Session, Error> {
        self.post("v1/login", login).await
    }

    /// The ways to log in.
    pub async fn login_methods(&self) -> Result<LoginMethods, Error> {
        call(self.request(Method::GET, "v1/login")?).await
    }

    /// Starts a login with the identity provider in a browser on this machine.
    pub async fn start_browser_login(&self, login: &BrowserLogin) -> Result<BrowserLoginStarted, Error> {
        self.post("v1/login/browser", login).await
    }

    /// Starts a login with the identity provider in a browser anywhere.
    pub async fn start_device_login(&self, login: &DeviceLogin) -> Result<DeviceLoginStarted, Error> {
        self.post("v1/login/device", login).await
    }

    /// Finishes a login with the identity provider, or says that the person isn't there yet.
    pub async fn finish_login(&self, login: &FinishLogin) -> Result<LoginOutcome, Error> {
        self.post("v1/login/finish", login).await
    }

    /// What a machine has to sign in order to log in.
    pub async fn challenge(&self) -> Result<Challenge, Error> {
        call(self.request(Method::POST, "v1/login/challenge")?).await
    }

    /// Logs a machine in.
    pub async fn service_login(&self, login: &ServiceLogin) -> Result<Session, Error> {
        self.post("v1/login/service", login).await
    }

    /// Ends the session and its grants; gives where the identity provider's own session ends, where it does not by this.
    pub async fn logout(&self) -> Result<Option<LoggedOut>, Error> {
        let request = self.authorized(self.request(Method::POST, "v1/logout")?)?;
        let answer = send(request.timeout(CALL_TIME)).await?;
        if answer.status() == StatusCode::NO_CONTENT {
            return Ok(None);
        }
        parse(&read(answer).await?).map(Some)
    }

    /// What the person may reach.
    pub async fn destinations(&self) -> Result<Destinations, Error> {
        self.get("v1/destinations").await
    }

    /// Asks for a grant.
    pub async fn grant(&self, request: &GrantRequest) -> Result<Grant, Error> {
        self.authorized_post("v1/grants", request).await
    }

    /// Asks for a path segment of a virtual network.
    pub async fn segment(&self, request: &SegmentRequest) -> Result<PathSegment, Error> {
        self.authorized_post("v1/segments", request).await
    }

    /// Asks for the way back of a segment that a packet came with.
    pub async fn answer_segment(&self, request: &AnswerRequest) -> Result<PathSegment, Error> {
        self.authorized_post("v1/segments/answer", request).await
    }

    /// Asks for a line, in the place of the one that the session had. [`Asker`] does, and asks on it.
    pub async fn line(&self) -> Result<Line, Error> {
        call(self.authorized(self.request(Method::POST, "v1/segments/line")?)?).await
    }

    /// Enrols a verifier with its one-time code. The token in the answer goes into [`Self::with_token`].
    pub async fn enrol(&self, code: &str) -> Result<Enrolled, Error> {
        self.post("v1/verifiers/enrol", &Enrolment { code: code.into() }).await
    }

    /// What this verifier protects.
    pub async fn config(&self) -> Result<VerifierConfig, Error> {
        self.get("v1/verifier/config").await
    }

    /// This verifier's keys of the previous, the current and the next `ahead` epochs.
    pub async fn keys(&self, ahead: u32) -> Result<EpochKeys, Error> {
        self.get(&format!("v1/verifier/keys?ahead={ahead}")).await
    }

    /// Whose a grant is; `None` if the authority issued no such grant for this verifier.
    pub async fn grant_owner(&self, handle: u64) -> Result<Option<GrantOwner>, Error> {
        match self.get(&format!("v1/verifier/grants/{handle:016x}")).await {
            Err(Error::Refused(problem)) if problem.status == 404 => Ok(None),
            answer => answer.map(Some),
        }
    }

    /// Which of these grants' flows are to be cut; at most [`engine::api::LIVE_FLOWS_MAX`] handles.
    pub async fn flows_to_cut(&self, handles: &[u64]) -> Result<Vec<RevokedGrant>, Error> {
        let request = LiveFlows { handles: handles.to_vec() };
        Ok(self.authorized_post::<FlowsToCut>("v1/verifier/flows", &request).await?.cut)
    }

    /// Tells that this verifier knows these grants; at most [`engine::api::LIVE_FLOWS_MAX`] handles.
    pub async fn heard(&self, handles: Vec<u64>) -> Result<(), Error> {
        let request = self.request(Method::POST, "v1/verifier/heard")?.json(&Heard { handles });
        send(self.authorized(request)?.timeout(CALL_TIME)).await.map(drop)
    }

    /// Tells how this verifier stands; the answer says when to tell again.
    pub async fn report(&self, report: &Report) -> Result<Reported, Error> {
        self.authorized_post("v1/verifier/report", report).await
    }

    /// Asks what the policy says about a person and a destination.
    pub async fn explain(&self, request: &ExplainRequest) -> Result<PersonExplanation, Error> {
        self.authorized_post("v1/verifier/explain", request).await
    }

    /// Whether the authority answers.
    pub async fn health(&self) -> Result<(), Error> {
        send(self.request(Method::GET, "v1/health")?.timeout(CALL_TIME)).await.map(drop)
    }

    /// The events for this token, from a task that reconnects by itself.
    pub fn events(&self) -> EventStream {
        EventStream::start(self.clone(), Confirm::Nothing)
    }

    /// The same for a verifier that tells by [`Self::heard`] what it has heard of such grants.
    pub fn confirmed_events(&self, confirms: Confirm) -> EventStream {
        EventStream::start(self.clone(), confirms)
    }

    async fn get<A: DeserializeOwned>(&self, path: &str) -> Result<A, Error> {
        call(self.authorized(self.request(Method::GET, path)?)?).await
    }

    async fn post<A: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<A, Error> {
        call(self.request(Method::POST, path)?.json(body)).await
    }

    async fn authorized_post<A: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<A, Error> {
        call(self.authorized(self.request(Method::POST, path)?.json(body))?).await
    }

    fn request(&self, method: Method, path: &str) -> Result<RequestBuilder, Error> {
        let url = self.base.join(path).map_err(|error| Error::Other(error.to_string()))?;
        Ok(self.http.request(method, url))
    }

    fn authorized(&self, request: RequestBuilder) -> Result<RequestBuilder, Error> {
        Ok(request.bearer_auth(self.token.as_ref().ok_or(Error::NotLoggedIn)?))
    }
}

async fn call<A: DeserializeOwned>(request: RequestBuilder) -> Result<A, Error> {
    parse(&read(send(request.timeout(CALL_TIME)).await?).await?)
}

fn parse<A: DeserializeOwned>(body: &[u8]) -> Result<A, Error> {
    serde_json::from_slice(body).map_err(|error| Error::Other(format!("the authority's answer is broken: {error}")))
}

/// Sends a request; an answer that isn't a success becomes the error it stands for.
async fn send(request: RequestBuilder) -> Result<Response, Error> {
    let response = request.send().await?;
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    let body = read(response).await?;
    let Ok(problem) = serde_json::from_slice::<Problem>(&body) else {
        return Err(Error::Other(format!("this is no authority: it answered {status} and no reason")));
    };
    Err(match status {
        StatusCode::UNAUTHORIZED if problem.r#type == "not_logged_in" => Error::NotLoggedIn,
        StatusCode::FORBIDDEN => Error::Denied(problem),
        _ => Error::Refused(problem),
    })
}

async fn read(mut response: Response) -> Result<Vec<u8>, Error> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await? {
        if body.len() + chunk.len() > MOST_ANSWER {
            return Err(Error::Other("the authority's answer has no end".into()));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

/// An error with its causes: the last one is what helps (`connection refused`, `invalid peer certificate`).
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    with_way_out(text)
}

/// Says what to do about an authority whose CA the system does not know.
fn with_way_out(mut text: String) -> String {
    if ["UnknownIssuer", "BadSignature"].iter().any(|fault| text.contains(fault)) {
        text.push_str("; give the authority's ca.pem with `--ca`");
    }
    text
}
