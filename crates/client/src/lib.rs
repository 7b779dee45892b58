//! Client for the authority's HTTPS API: one [`Authority`] per authority and bearer token, and its [`EventStream`].
//! Connections are kept open, so a call costs one round trip. The client makes no decisions and stores nothing.
#![forbid(unsafe_code)]

mod asking;
mod assertion;
pub mod convert;
mod events;
mod owner;
mod tls;

pub use asking::Asker;
pub use events::EventStream;

use api::{
    Acknowledgement, AnswerRequest, BrowserLogin, BrowserLoginStarted, Challenge, Complaint, Confirm, Destinations,
    DeviceLogin, DeviceLoginStarted, EndpointPlaces, Enrolled, Enrolment, EpochKeys, ExplainRequest, FinishLogin,
    FlowsToCut, Grant, GrantOwner, GrantRequest, Line, LiveFlows, LoggedOut, Login, LoginMethods, LoginOutcome,
    PathSegment, PersonExplanation, Problem, Report, Reported, RevokedGrant, SegmentRequest, ServiceLogin, Session,
    Standing, VerifierConfig,
};
use owner::{Elsewhere, OwnedBy};
use reqwest::{ClientBuilder, Method, RequestBuilder, Response, StatusCode, Url};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::sync::Arc;
use std::time::Duration;

/// Maximum time to establish a connection.
const CONNECT_TIME: Duration = Duration::from_secs(5);
/// Maximum duration of a call.
const CALL_TIME: Duration = Duration::from_secs(15);
/// Interval of HTTP/2 keep-alive pings, and the time that the authority has to answer one.
const PING: Duration = Duration::from_secs(10);
/// Maximum length of an answer, in bytes.
const MOST_ANSWER: usize = 16 * 1024 * 1024;

/// Reason why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The policy denies the request.
    #[error("{}", .0.title)]
    Denied(Problem),
    /// There is no bearer token, or it has expired: log in or enrol again.
    #[error("not logged in, or the session has ended: log in again")]
    NotLoggedIn,
    /// The authority refused the call for another reason, such as `wrong_password` or `too_many`.
    #[error("{}", .0.title)]
    Refused(Problem),
    /// There was no answer: no connection was made, the authority's certificate is not trusted, or time ran out.
    #[error("cannot reach the authority: {0}")]
    Unreachable(String),
    /// The answer doesn't fit the request.
    #[error("the authority's answer is malformed: {0}")]
    Unusable(&'static str),
    /// Any other failure, such as an answer that can't be parsed.
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

/// A client of one authority. Clones share their connections.
#[derive(Clone)]
pub struct Authority {
    http: reqwest::Client,
    base: Url,
    token: Option<Arc<str>>,
}

/// Returns the host and the port of an authority's URL.
///
/// # Errors
///
/// Fails if the URL is malformed.
pub fn endpoint(url: &str) -> Result<(String, u16), Error> {
    Ok(host(&base(url)?))
}

fn host(base: &Url) -> (String, u16) {
    let host = base.host_str().unwrap_or_default().trim_matches(['[', ']']).to_owned();
    (host, base.port_or_known_default().unwrap_or_default())
}

fn base(url: &str) -> Result<Url, Error> {
    let base = Url::parse(url).map_err(|error| Error::Other(format!("`{url}` is not a URL: {error}")))?;
    if base.scheme() != "https" || base.host().is_none() {
        return Err(Error::Other(format!("`{url}` is not the URL of an authority: write https://HOST:PORT")));
    }
    Ok(base)
}

impl Authority {
    /// Creates a client of the authority at `url` (`https://…`). The client trusts only the certificates in `ca_pem`,
    /// or, without `ca_pem`, the system's.
    ///
    /// # Errors
    ///
    /// Fails if the URL or a certificate is malformed, or if there are no certificates to trust.
    pub fn new(url: &str, ca_pem: Option<&[u8]>) -> Result<Self, Error> {
        Self::over(url, ca_pem, |builder| builder)
    }

    /// Creates a client whose connections belong to the user `uid`, although root makes them. A connection that a user
    /// causes must not belong to root, because the agent would put root's tokens into its packets. The caller needs
    /// `CAP_SETUID`.
    ///
    /// # Errors
    ///
    /// Fails as [`Self::new`] does.
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

    /// Returns a client that has this bearer token, and shares this client's connections.
    pub fn with_token(&self, token: &str) -> Self {
        Self { token: Some(token.into()), ..self.clone() }
    }

    /// Logs a person in. The answer contains a token for [`Self::with_token`].
    ///
    /// # Errors
    ///
    /// Fails with [`Error::Refused`] if name, password or second factor are wrong. Also fails if the authority can't be
    /// reached.
    pub async fn login(&self, login: &Login) -> Result<Session, Error> {
        self.post("v1/login", login).await
    }

    /// Returns the ways to log in.
    ///
    /// # Errors
    ///
    /// Fails if the authority can't be reached.
    pub async fn login_methods(&self) -> Result<LoginMethods, Error> {
        call(self.request(Method::GET, "v1/login")?).await
    }

    /// Starts a login with the identity provider in a browser on this machine.
    ///
    /// # Errors
    ///
    /// Fails if the authority has no identity provider, or can't be reached.
    pub async fn start_browser_login(&self, login: &BrowserLogin) -> Result<BrowserLoginStarted, Error> {
        self.post("v1/login/browser", login).await
    }

    /// Starts a login with the identity provider in a browser anywhere.
    ///
    /// # Errors
    ///
    /// Fails if the authority has no identity provider, or can't be reached.
    pub async fn start_device_login(&self, login: &DeviceLogin) -> Result<DeviceLoginStarted, Error> {
        self.post("v1/login/device", login).await
    }

    /// Finishes a login with the identity provider, or reports that the person has not logged in there yet.
    ///
    /// # Errors
    ///
    /// Fails if the identity provider or the authority refused the login, or if the authority can't be reached.
    pub async fn finish_login(&self, login: &FinishLogin) -> Result<LoginOutcome, Error> {
        self.post("v1/login/finish", login).await
    }

    /// Returns the challenge that a machine has to sign in order to log in.
    ///
    /// # Errors
    ///
    /// Fails if the authority can't be reached.
    pub async fn challenge(&self) -> Result<Challenge, Error> {
        call(self.request(Method::POST, "v1/login/challenge")?).await
    }

    /// Logs a machine in.
    ///
    /// # Errors
    ///
    /// Fails if the authority does not accept the assertion, or can't be reached.
    pub async fn service_login(&self, login: &ServiceLogin) -> Result<Session, Error> {
        self.post("v1/login/service", login).await
    }

    /// Ends the session and its grants. If the identity provider's own session continues, returns the URL at which the
    /// person can log out there.
    ///
    /// # Errors
    ///
    /// Fails if the session has ended already, or if the authority can't be reached.
    pub async fn logout(&self) -> Result<Option<LoggedOut>, Error> {
        let request = self.authorized(self.request(Method::POST, "v1/logout")?)?;
        let answer = send(request.timeout(CALL_TIME)).await?;
        if answer.status() == StatusCode::NO_CONTENT {
            return Ok(None);
        }
        parse(&read(answer).await?).map(Some)
    }

    /// Returns the destinations that the person may reach.
    ///
    /// # Errors
    ///
    /// Fails if the session has ended, or if the authority can't be reached.
    pub async fn destinations(&self) -> Result<Destinations, Error> {
        self.get("v1/destinations").await
    }

    /// Requests a grant.
    ///
    /// # Errors
    ///
    /// Fails with [`Error::Denied`] if the policy denies the grant. Also fails if the session has ended or the
    /// authority can't be reached.
    pub async fn grant(&self, request: &GrantRequest) -> Result<Grant, Error> {
        self.authorized_post("v1/grants", request).await
    }

    /// Requests a path segment of a virtual network.
    ///
    /// # Errors
    ///
    /// Fails with [`Error::Denied`] if the receiver does not consent. Also fails if the session has ended or the
    /// authority can't be reached.
    pub async fn segment(&self, request: &SegmentRequest) -> Result<PathSegment, Error> {
        self.authorized_post("v1/segments", request).await
    }

    /// Requests a segment for answers to packets that arrived with the segment in `request`.
    ///
    /// # Errors
    ///
    /// Fails with [`Error::Denied`] if the segment in `request` does not permit answers. Also fails if the session
    /// has ended or the authority can't be reached.
    pub async fn answer_segment(&self, request: &AnswerRequest) -> Result<PathSegment, Error> {
        self.authorized_post("v1/segments/answer", request).await
    }

    /// Requests a line, which replaces the session's previous line. [`Asker`] calls this method and uses the line.
    ///
    /// # Errors
    ///
    /// Fails if the authority has no lines (status 404), if the session has ended, or if the authority can't be
    /// reached.
    pub async fn line(&self) -> Result<Line, Error> {
        call(self.authorized(self.request(Method::POST, "v1/segments/line")?)?).await
    }

    /// Enrols a verifier with its one-time code. The answer contains a token for [`Self::with_token`].
    ///
    /// # Errors
    ///
    /// Fails if the code is wrong, used or expired, or if the authority can't be reached.
    pub async fn enrol(&self, code: &str) -> Result<Enrolled, Error> {
        self.post("v1/verifiers/enrol", &Enrolment { code: code.into() }).await
    }

    /// Returns the receivers that this verifier protects, and its settings.
    ///
    /// # Errors
    ///
    /// Fails if the authority does not know this verifier, or can't be reached.
    pub async fn config(&self) -> Result<VerifierConfig, Error> {
        self.get("v1/verifier/config").await
    }

    /// Returns this verifier's keys of the previous, the current and the next `ahead` epochs.
    ///
    /// # Errors
    ///
    /// Fails if the authority does not know this verifier, or can't be reached.
    pub async fn keys(&self, ahead: u32) -> Result<EpochKeys, Error> {
        self.get(&format!("v1/verifier/keys?ahead={ahead}")).await
    }

    /// Returns the places behind the tunnel endpoints for which this verifier is the last verifier on a path, from the
    /// authority's `networks.toml`. Returns `None` if the authority is too old to know this call.
    ///
    /// # Errors
    ///
    /// Fails if the authority does not know this verifier, or can't be reached.
    pub async fn places(&self) -> Result<Option<EndpointPlaces>, Error> {
        match self.get("v1/verifier/places").await {
            Err(Error::Refused(problem)) if problem.status == 404 => Ok(None),
            answer => answer.map(Some),
        }
    }

    /// Returns the owner of a grant; `None` if the authority issued no such grant for this verifier.
    ///
    /// # Errors
    ///
    /// Fails if the authority does not know this verifier, or can't be reached.
    pub async fn grant_owner(&self, handle: u64) -> Result<Option<GrantOwner>, Error> {
        match self.get(&format!("v1/verifier/grants/{handle:016x}")).await {
            Err(Error::Refused(problem)) if problem.status == 404 => Ok(None),
            answer => answer.map(Some),
        }
    }

    /// Returns those of the grants in `handles` whose flows the verifier has to cut. Accepts up to
    /// [`api::LIVE_FLOWS_MAX`] handles.
    ///
    /// # Errors
    ///
    /// Fails if there are too many handles, or if the authority does not know this verifier or can't be reached.
    pub async fn flows_to_cut(&self, handles: &[u64]) -> Result<Vec<RevokedGrant>, Error> {
        let request = LiveFlows { handles: handles.to_vec() };
        Ok(self.authorized_post::<FlowsToCut>("v1/verifier/flows", &request).await?.cut)
    }

    /// Acknowledges that this verifier has received the events about these grants. Accepts up to
    /// [`api::LIVE_FLOWS_MAX`] handles.
    ///
    /// # Errors
    ///
    /// Fails if there are too many handles, or if the authority does not know this verifier or can't be reached.
    pub async fn acknowledge(&self, handles: Vec<u64>) -> Result<(), Error> {
        let request = self.request(Method::POST, "v1/verifier/heard")?.json(&Acknowledgement { handles });
        send(self.authorized(request)?.timeout(CALL_TIME)).await.map(drop)
    }

    /// Reports this verifier's status. The answer contains the time until the next report.
    ///
    /// # Errors
    ///
    /// Fails if the authority does not know this verifier, does not accept reports, or can't be reached.
    pub async fn report(&self, report: &Report) -> Result<Reported, Error> {
        self.authorized_post("v1/verifier/report", report).await
    }

    /// Returns the policy's decision about a person and a destination, with an explanation.
    ///
    /// # Errors
    ///
    /// Fails if the authority does not know this verifier, or can't be reached.
    pub async fn explain(&self, request: &ExplainRequest) -> Result<PersonExplanation, Error> {
        self.authorized_post("v1/verifier/explain", request).await
    }

    /// Passes on an application's complaint about the person behind a grant. Returns the person's score.
    ///
    /// # Errors
    ///
    /// Fails if the authority refuses the complaint (status 404 if it keeps no scores or does not know the grant, 429 if
    /// the application has complained too much), does not know this verifier, or can't be reached.
    pub async fn complain(&self, complaint: &Complaint) -> Result<Standing, Error> {
        self.authorized_post("v1/verifier/complaints", complaint).await
    }

    /// Checks whether the authority answers.
    ///
    /// # Errors
    ///
    /// Fails if the authority can't be reached.
    pub async fn health(&self) -> Result<(), Error> {
        send(self.request(Method::GET, "v1/health")?.timeout(CALL_TIME)).await.map(drop)
    }

    /// Returns the stream of events for this client's token. A task reads the stream and reconnects by itself.
    pub fn events(&self) -> EventStream {
        EventStream::start(self.clone(), Confirm::Nothing)
    }

    /// Returns the stream of events for a verifier that acknowledges the events selected by `confirms`, with
    /// [`Self::acknowledge`].
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
    serde_json::from_slice(body).map_err(|error| Error::Other(format!("the authority's answer is malformed: {error}")))
}

/// Sends a request. Converts an answer whose status is not a success to the corresponding error.
async fn send(request: RequestBuilder) -> Result<Response, Error> {
    let response = request.send().await?;
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    let body = read(response).await?;
    let Ok(problem) = serde_json::from_slice::<Problem>(&body) else {
        return Err(Error::Other(format!(
            "this server is not an authority: it answered {status} without the reason that an authority gives"
        )));
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
            return Err(Error::Other("the authority's answer is too long".into()));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

/// Formats an error with its causes; the last one is the most useful (`connection refused`, `invalid peer
/// certificate`).
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    with_way_out(text)
}

/// Appends advice if the system does not know the authority's CA.
fn with_way_out(mut text: String) -> String {
    if ["UnknownIssuer", "BadSignature"].iter().any(|fault| text.contains(fault)) {
        text.push_str("; give the authority's ca.pem with `--ca`");
    }
    text
}
