//! Client of the authority's HTTPS API. An [`Authority`] makes calls with one bearer token to one authority or cluster,
//! and an [`EventStream`] receives the authority's events on a separate connection. Connections for calls are kept open
//! for 90 s, so a call costs one round trip if another call was made just before. The client makes no decisions about
//! access and stores nothing. If the authority is in a cluster, the client sends each call to an authority of the
//! cluster that answers.
//!
//! ```no_run
//! use client::Authority;
//!
//! # async fn run(password: String) -> Result<(), Box<dyn std::error::Error>> {
//! let ca = std::fs::read("ca.pem")?;
//! let authority = Authority::new("https://authority.example.org:8443", Some(&ca))?;
//! let login = api::Login { person: "alice".into(), password, totp: None, device: "laptop".into() };
//! let session = authority.login(&login).await?;
//!
//! let authority = authority.with_token(&session.token);
//! for receiver in authority.destinations().await?.destinations {
//!     println!("{} at {}", receiver.name, receiver.prefix);
//! }
//! let event = authority.events().next().await?;
//! # Ok(()) }
//! ```
#![forbid(unsafe_code)]

mod asking;
mod assertion;
mod bounds;
mod call;
mod choice;
mod cluster;
pub mod convert;
pub mod dns;
mod error;
mod events;
mod owner;
mod resolving;
mod sending;
mod tls;

pub use asking::{Asker, Way};
pub use bounds::Bounds;
pub use cluster::Members;
pub use error::Error;
pub use events::EventStream;

use api::{
    AccessAsked, AccessList, AccessRequest, Acknowledgement, AnswerRequest, Authorities, BrowserLogin,
    BrowserLoginStarted, Challenge, Complaint, Confirm, Destinations, DeviceLogin, DeviceLoginStarted, EndpointPlaces,
    Enrolled, Enrolment, EpochKeys, ExplainRequest, FinishLogin, FlowsToCut, Grant, GrantOwner, GrantRequest, Line,
    LiveFlows, LoggedOut, Login, LoginMethods, LoginOutcome, PathSegment, PersonExplanation, Report, Reported,
    RevokedGrant, SegmentRequest, ServiceLogin, Session, Standing, VerifierConfig,
};
use bounds::Gate;
use call::{Call, parse, read};
use cluster::{Clients, Cluster, Connections};
use events::Wanted;
use owner::OwnedBy;
use reqwest::{ClientBuilder, StatusCode, Url};
use resolving::{Resolver, begin};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// Maximum time to establish a connection.
const CONNECT_TIME: Duration = Duration::from_secs(5);
/// [`CONNECT_TIME`] for an authority in a cluster. After this time, a call that must not be sent twice goes to another
/// authority.
const CONNECT_TIME_IN_CLUSTER: Duration = Duration::from_secs(2);
/// Maximum duration of a call.
const CALL_TIME: Duration = Duration::from_secs(15);
/// Interval of HTTP/2 keep-alive pings, and the time that the authority has to answer one. An event stream has no
/// pings. On its connection, the kernel's keep-alive probes begin after the same silence, and end a dead connection
/// after the same time.
const PING: Duration = Duration::from_secs(10);
/// [`PING`] for an authority in a cluster: the event stream moves to another authority when one has fallen silent.
const PING_IN_CLUSTER: Duration = Duration::from_secs(3);
/// Maximum length of an answer, in bytes.
const MOST_ANSWER: usize = 16 * 1024 * 1024;

/// A client of one authority, or of the authorities of a cluster. Clones share their connections, and the list of the
/// cluster's authorities.
#[derive(Clone)]
pub struct Authority {
    cluster: Arc<Cluster>,
    token: Option<Arc<str>>,
    /// The user who owns this client's sockets; `None` for the user of this process.
    owner: Option<u32>,
}

/// Returns the host and the port of an authority's URL.
///
/// # Errors
///
/// Fails if `url` is not an `https://` URL with a host.
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
    /// Creates a client of the authority at a URL (`https://…`), or of the authority whose servers DNS lists for a name
    /// (wire.md §7.3). The client trusts only the certificates in `ca_pem`. If `ca_pem` is `None`, it trusts the
    /// system's certificates.
    ///
    /// # Errors
    ///
    /// Fails if `authority` or a certificate is malformed, or if there are no certificates to trust.
    pub fn new(authority: &str, ca_pem: Option<&[u8]>) -> Result<Self, Error> {
        let (url, by_name) = begin(authority, &[])?;
        let resolver = by_name.map(|by_name| Arc::new(Resolver::new(Gate::default(), Some(by_name))));
        Self::over(url, ca_pem, Gate::default(), |builder| match &resolver {
            Some(resolver) => builder.dns_resolver(resolver.clone()),
            None => builder,
        })
    }

    /// Creates a client whose sockets belong to the user `uid`, although root opens them. If such a socket belonged to
    /// root, the agent would put root's tokens into the packets that the user causes. The caller needs `CAP_SETUID`.
    /// The client connects only to authorities at addresses that `bounds` does not refuse. If `authority` is a name,
    /// the client asks `name_servers` for the authority's servers, or the system's name servers if `name_servers` is
    /// empty.
    ///
    /// # Errors
    ///
    /// Fails as [`Self::new`] does.
    pub fn of_user(
        authority: &str,
        ca_pem: Option<&[u8]>,
        (uid, bounds): (u32, Arc<dyn Bounds>),
        name_servers: &[SocketAddr],
    ) -> Result<Self, Error> {
        let (url, by_name) = begin(authority, name_servers)?;
        let gate = Gate::new(&url, bounds);
        let resolver = Arc::new(Resolver::new(gate.clone(), by_name));
        let own = |builder: ClientBuilder| builder.connector_layer(OwnedBy(uid)).dns_resolver(resolver.clone());
        Ok(Self { owner: Some(uid), ..Self::over(url, ca_pem, gate, own)? })
    }

    fn over(
        own: Url,
        ca_pem: Option<&[u8]>,
        gate: Gate,
        connections: impl Fn(ClientBuilder) -> ClientBuilder,
    ) -> Result<Self, Error> {
        let tls = tls::config(ca_pem)?;
        let http = |tls: rustls::ClientConfig, connect: Duration| {
            let builder = reqwest::Client::builder()
                .tls_backend_preconfigured(tls)
                .https_only(true)
                .redirect(reqwest::redirect::Policy::none())
                .connect_timeout(connect)
                .user_agent(concat!("vouchsafe/", env!("CARGO_PKG_VERSION")));
            connections(builder)
        };
        let calls = |(connect, ping): (Duration, Duration)| {
            http(tls.clone(), connect)
                .http2_keep_alive_interval(ping)
                .http2_keep_alive_timeout(ping)
                .http2_keep_alive_while_idle(true)
                .build()
        };
        let events = |(connect, ping): (Duration, Duration)| {
            let builder = http(tls::only_http1(&tls), connect)
                .pool_max_idle_per_host(0)
                .tcp_keepalive(ping)
                .tcp_keepalive_interval(ping / 3)
                .tcp_keepalive_retries(3_u32);
            // Linux then ends the connection after this time of silence, however many probes were lost in it.
            #[cfg(target_os = "linux")]
            let builder = builder.tcp_user_timeout(ping * 2);
            builder.build()
        };
        let (patient, quick) = ((CONNECT_TIME, PING), (CONNECT_TIME_IN_CLUSTER, PING_IN_CLUSTER));
        let connections = Connections {
            calls: Clients { patient: calls(patient)?, quick: calls(quick)? },
            events: Clients { patient: events(patient)?, quick: events(quick)? },
        };
        let cluster = Cluster::new(own, ca_pem.is_some(), gate, connections);
        Ok(Self { cluster: Arc::new(cluster), token: None, owner: None })
    }

    /// Replaces the list of the cluster's authorities by these URLs, which an earlier process got from
    /// [`Self::members`]. The authority that was named at the start and the authority in use stay in the list.
    /// [`Self::destinations`], [`Self::config`] and [`Self::authorities`] update the list from each answer.
    pub fn learn(&self, urls: &[String]) {
        self.cluster.learn(urls);
    }

    /// Returns the URL of the authority in use, and the URLs of all authorities in its cluster.
    pub fn members(&self) -> Members {
        self.cluster.members()
    }

    /// Returns the reasons why the client does not connect to some authorities of the cluster, because of its
    /// [`Bounds`].
    pub fn refused(&self) -> Vec<String> {
        self.cluster.refused()
    }

    /// Returns a client that uses a single authority of the cluster, one that answers at present. A series of calls
    /// needs such a client if an authority has to remember something between the calls. The other authorities of the
    /// cluster don't remember it.
    pub(crate) async fn at_one(&self) -> Result<Self, Error> {
        let url = self.cluster.reachable().await?.unwrap_or_else(|| self.cluster.used());
        Ok(Self { cluster: Arc::new(self.cluster.only(url)), ..self.clone() })
    }

    /// Returns a client with this bearer token. The new client shares this client's connections.
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
        self.call(&Call::get("v1/login")).await
    }

    /// Starts a login at the identity provider, in a browser on this machine.
    ///
    /// # Errors
    ///
    /// Fails if the authority has no identity provider, or can't be reached.
    pub async fn start_browser_login(&self, login: &BrowserLogin) -> Result<BrowserLoginStarted, Error> {
        self.post("v1/login/browser", login).await
    }

    /// Starts a login at the identity provider, in a browser on any machine.
    ///
    /// # Errors
    ///
    /// Fails if the authority has no identity provider, or can't be reached.
    pub async fn start_device_login(&self, login: &DeviceLogin) -> Result<DeviceLoginStarted, Error> {
        self.post("v1/login/device", login).await
    }

    /// Finishes a login at the identity provider, or reports that the person has not logged in there yet.
    ///
    /// # Errors
    ///
    /// Fails if the identity provider or the authority refused the login, or if the authority can't be reached.
    pub async fn finish_login(&self, login: &FinishLogin) -> Result<LoginOutcome, Error> {
        self.post("v1/login/finish", login).await
    }

    /// Returns a challenge. A machine proves with a signature over the challenge's nonce that it has a service
    /// account's key.
    ///
    /// # Errors
    ///
    /// Fails if the authority can't be reached.
    pub async fn challenge(&self) -> Result<Challenge, Error> {
        self.call(&Call::post("v1/login/challenge")).await
    }

    /// Logs a machine in with a signed assertion.
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
        let call = Call::post("v1/logout").with_token(self.token.as_ref())?;
        match self.cluster.call(&call).await? {
            (_, StatusCode::NO_CONTENT, _) => Ok(None),
            (_, _, body) => parse(&body).map(Some),
        }
    }

    /// Requests and returns the list of the cluster's authorities.
    ///
    /// # Errors
    ///
    /// Fails if the authority is too old to know this call (status 404), or can't be reached.
    pub async fn authorities(&self) -> Result<Authorities, Error> {
        let answer: Authorities = self.call(&Call::get("v1/authorities")).await?;
        self.learn(&answer.authorities);
        Ok(answer)
    }

    /// Returns the destinations that the person may reach.
    ///
    /// # Errors
    ///
    /// Fails if the session has ended, or if the authority can't be reached.
    pub async fn destinations(&self) -> Result<Destinations, Error> {
        let answer: Destinations = self.get("v1/destinations").await?;
        self.learn(&answer.authorities);
        Ok(answer)
    }

    /// Requests a grant.
    ///
    /// # Errors
    ///
    /// Fails with [`Error::Denied`] if the policy denies the grant. Also fails if the session has ended or the
    /// authority can't be reached.
    pub async fn grant(&self, request: &GrantRequest) -> Result<Grant, Error> {
        self.repeatable_post("v1/grants", request).await
    }

    /// Requests a path segment of a virtual network.
    ///
    /// # Errors
    ///
    /// Fails with [`Error::Denied`] if the receiver does not consent. Also fails if the session has ended or the
    /// authority can't be reached.
    pub async fn segment(&self, request: &SegmentRequest) -> Result<PathSegment, Error> {
        self.repeatable_post("v1/segments", request).await
    }

    /// Requests a return segment for a packet. `request` contains the segment with which the packet arrived.
    ///
    /// # Errors
    ///
    /// Fails with [`Error::Denied`] if the segment in `request` does not permit answers. Also fails if the session has
    /// ended or the authority can't be reached.
    pub async fn answer_segment(&self, request: &AnswerRequest) -> Result<PathSegment, Error> {
        self.repeatable_post(call::ANSWER_SEGMENT, request).await
    }

    /// Requests a line, which replaces the session's previous line. [`Asker`] calls this method and uses the line.
    ///
    /// # Errors
    ///
    /// Fails if the authority has no lines (status 404), if the session has ended, or if the authority can't be
    /// reached.
    pub async fn line(&self) -> Result<Line, Error> {
        Ok(self.line_of().await?.0)
    }

    /// Requests a line. Returns it with the URL of the authority that serves it, and with the address at which that
    /// authority answered.
    pub(crate) async fn line_of(&self) -> Result<(Line, Url, Option<SocketAddr>), Error> {
        let call = Call::post("v1/segments/line").repeatable().with_token(self.token.as_ref())?;
        let (url, response) = self.cluster.send(&call).await?;
        let remote = response.remote_addr();
        Ok((parse(&read(response).await?)?, url, remote))
    }

    /// Enrols a verifier with its one-time code. The answer contains a token for [`Self::with_token`].
    ///
    /// # Errors
    ///
    /// Fails if the code is wrong, used or expired, or if the authority can't be reached.
    pub async fn enrol(&self, code: &str) -> Result<Enrolled, Error> {
        self.post("v1/verifiers/enrol", &Enrolment { code: code.into() }).await
    }

    /// Returns this verifier's configuration: the receivers that it protects, and its settings.
    ///
    /// # Errors
    ///
    /// Fails if the authority does not know this verifier, or can't be reached.
    pub async fn config(&self) -> Result<VerifierConfig, Error> {
        let answer: VerifierConfig = self.get("v1/verifier/config").await?;
        self.learn(&answer.authorities);
        Ok(answer)
    }

    /// Returns this verifier's keys of the previous, the current and the next `ahead` epochs.
    ///
    /// # Errors
    ///
    /// Fails if the authority does not know this verifier, or can't be reached.
    pub async fn keys(&self, ahead: u32) -> Result<EpochKeys, Error> {
        self.get(&format!("v1/verifier/keys?ahead={ahead}")).await
    }

    /// Returns the entries of the authority's `networks.toml` about some tunnel endpoints: those for which this
    /// verifier is the last verifier on a path. Returns `None` if the authority is too old to know this call.
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
        Ok(self.repeatable_post::<FlowsToCut>("v1/verifier/flows", &request).await?.cut)
    }

    /// Acknowledges that this verifier has received the events about these grants. Accepts up to
    /// [`api::LIVE_FLOWS_MAX`] handles.
    ///
    /// # Errors
    ///
    /// Fails if there are too many handles, or if the authority does not know this verifier or can't be reached.
    pub async fn acknowledge(&self, handles: Vec<u64>) -> Result<(), Error> {
        self.send_acknowledgement(&Acknowledgement { handles, marks: Vec::new() }).await
    }

    /// Confirms that this verifier has carried out all events that came before a mark on its event stream.
    ///
    /// # Errors
    ///
    /// Fails if the authority does not know the mark or this verifier, or can't be reached.
    pub async fn confirm_mark(&self, mark: u64) -> Result<(), Error> {
        self.send_acknowledgement(&Acknowledgement { handles: Vec::new(), marks: vec![mark] }).await
    }

    async fn send_acknowledgement(&self, acknowledgement: &Acknowledgement) -> Result<(), Error> {
        let call = Call::post("v1/verifier/heard").json(acknowledgement)?;
        self.cluster.call(&call.with_token(self.token.as_ref())?).await.map(drop)
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
        self.repeatable_post("v1/verifier/explain", request).await
    }

    /// Passes on an application's complaint about the person behind a grant. Returns the person's score.
    ///
    /// # Errors
    ///
    /// Fails if the authority refuses the complaint (status 404 if it keeps no scores or does not know the grant, 429
    /// if the application has complained too much), does not know this verifier, or can't be reached.
    pub async fn complain(&self, complaint: &Complaint) -> Result<Standing, Error> {
        self.authorized_post("v1/verifier/complaints", complaint).await
    }

    /// Checks whether the authority answers.
    ///
    /// # Errors
    ///
    /// Fails if the authority can't be reached.
    pub async fn health(&self) -> Result<(), Error> {
        self.cluster.call(&Call::health()).await.map(drop)
    }

    /// Returns the stream of events for this client's token. A task reads the stream and reconnects by itself.
    pub fn events(&self) -> EventStream {
        EventStream::start(self.clone(), Wanted { confirms: Confirm::Nothing, marks: false })
    }

    /// Returns the stream of events for a verifier. With [`Self::acknowledge`], the verifier acknowledges the events
    /// that `confirms` selects.
    pub fn confirmed_events(&self, confirms: Confirm) -> EventStream {
        EventStream::start(self.clone(), Wanted { confirms, marks: false })
    }

    /// Returns the stream of events for a verifier, as [`Self::confirmed_events`] does. This stream also contains
    /// marks. With [`Self::confirm_mark`], the verifier confirms a mark.
    pub fn marked_events(&self, confirms: Confirm) -> EventStream {
        EventStream::start(self.clone(), Wanted { confirms, marks: true })
    }

    /// Asks for access to a receiver.
    ///
    /// # Errors
    ///
    /// Fails if nobody can allow the request, if a limit is reached, if the session has ended, or if the authority
    /// can't be reached.
    pub async fn ask_access(&self, request: &AccessRequest) -> Result<AccessAsked, Error> {
        self.authorized_post("v1/access", request).await
    }

    /// Returns the person's latest requests for access, and the receivers for which the person can ask.
    ///
    /// # Errors
    ///
    /// Fails if the session has ended, or if the authority can't be reached.
    pub async fn access(&self) -> Result<AccessList, Error> {
        self.get("v1/access").await
    }

    /// Returns a page of the person's older requests for access. `next` is the value of [`AccessList::next`] on the
    /// page before.
    ///
    /// # Errors
    ///
    /// Fails if `next` is malformed, if the session has ended, or if the authority can't be reached.
    pub async fn access_before(&self, next: &str) -> Result<AccessList, Error> {
        if !next.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-') {
            return Err(Error::Other(
                "the start of the page is malformed: use the value of `next` on the page before".into(),
            ));
        }
        self.get(&format!("v1/access?before={next}")).await
    }

    /// Withdraws a request for access, or the consent that answered it.
    ///
    /// # Errors
    ///
    /// Fails if the person has no such request, if the request has ended, if the session has ended, or if the authority
    /// can't be reached.
    pub async fn withdraw_access(&self, id: &str) -> Result<(), Error> {
        let call = Call::post(&format!("v1/access/{id}/withdraw")).with_token(self.token.as_ref())?;
        self.cluster.call(&call).await.map(drop)
    }

    async fn get<A: DeserializeOwned>(&self, path: &str) -> Result<A, Error> {
        self.call(&Call::get(path).with_token(self.token.as_ref())?).await
    }

    async fn post<A: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<A, Error> {
        self.call(&Call::post(path).json(body)?).await
    }

    async fn authorized_post<A: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<A, Error> {
        self.call(&Call::post(path).json(body)?.with_token(self.token.as_ref())?).await
    }

    /// Makes a call that an authority can carry out twice without harm.
    async fn repeatable_post<A: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<A, Error> {
        self.call(&Call::post(path).json(body)?.repeatable().with_token(self.token.as_ref())?).await
    }

    async fn call<A: DeserializeOwned>(&self, call: &Call) -> Result<A, Error> {
        let (_, _, body) = self.cluster.call(call).await?;
        parse(&body)
    }
}
