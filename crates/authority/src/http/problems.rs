//! Converts every error into an HTTP response (RFC 9457), which the console renders as a page. Internal errors are
//! logged, and the response does not contain their details.

use crate::metrics::counters::Outcome;
use crate::storage::Unavailable;
use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use engine::policy::preference::{Choice, Preference};
use engine::policy::{Decision, Explanation, Policy, Request, service};
use std::net::IpAddr;
use std::time::Duration;

/// The reason why a call fails.
pub enum Problem {
    /// The body, the query or the path of the request is malformed. The text is a message for the caller.
    Malformed(String),
    /// The body exceeds the API's limit.
    TooLarge,
    /// The body did not arrive in time.
    TooSlow,
    /// The bearer token is missing or no longer valid.
    NotLoggedIn,
    /// The token does not fit the call: a session's token with a verifier's call, or a verifier's token with a
    /// session's call.
    WrongCaller,
    /// The name or the password is wrong; the answer does not distinguish the two.
    WrongPassword,
    /// The password is right, but the account has a second factor.
    SecondFactorRequired,
    /// The second factor is wrong or already used.
    WrongSecondFactor,
    /// A passkey, or the browser's statement about one, failed verification.
    WrongPasskey,
    /// The login that the caller wants to continue is not in progress, or it belongs to another caller.
    WrongLogin,
    /// The name belongs to another account.
    NameTaken(String),
    /// No identity provider is configured.
    NoProvider,
    /// The authority has no page on which a person could approve a login in a browser, because the console has no
    /// `url`.
    NoBrowserLogin,
    /// The person denied the login.
    LoginDenied,
    /// The identity provider refused the person, or its answer failed verification. The text is a message for the
    /// person.
    ProviderRefused(String),
    /// The identity provider can't be reached or does not work.
    ProviderUnavailable(anyhow::Error),
    /// The assertion of a service account failed verification.
    WrongAssertion,
    /// The enrolment code is wrong, used or expired.
    WrongCode,
    /// The policy denies the request. Contains the explanation and the problem's type.
    Denied(Explanation, &'static str),
    /// The policy allows the request, but the person withholds their identity from the destination.
    Withheld(Preference),
    /// The policy allows the request, but no grant can be issued.
    CantIssue(engine::issuing::grant::IssueError),
    /// No path segment can be issued, whether or not the policy allows the request. The text is a message for the
    /// caller.
    NoSegment(String),
    /// The segment that the caller shows has valid proofs, but this authority does not know it.
    UnknownSegment,
    /// The device's address differs from its address at login, so the device may be in another network. Contains the
    /// address at login.
    Moved(IpAddr),
    /// A request for access, or a decision about one, cannot be accepted. Contains the response's status, the problem's
    /// type and a message for the caller.
    Access(StatusCode, &'static str, String),
    /// The item does not exist. The text names the kind of item after "no such".
    NotFound(&'static str),
    /// The path exists, but not with this method.
    WrongMethod,
    /// There were too many attempts. Contains the time to wait.
    TooMany(Duration),
    /// The session or account has too many live grants. Contains the time until one of them ends.
    TooManyGrants(Duration),
    /// The form did not come from a page of the console in the same browser session.
    WrongForm,
    /// The page is for administrators only.
    NotAdministrator,
    /// The limit on concurrent operations of this kind is reached. The text names the operations, and follows "too
    /// many" in the message.
    Busy(&'static str),
    /// This member of a cluster has no contact with a majority of etcd, or its clock is wrong. It has not carried out
    /// the call. Another member possibly can. The log and `cluster status` show the reason; the response does not,
    /// because strangers can read it.
    NoMajority,
    /// An internal error of the authority.
    Internal(anyhow::Error),
}

/// Time after which a client that finds no other member should try again.
const RETRY_CLUSTER: Duration = Duration::from_secs(2);

/// The text of [`Problem::NotFound`] on pages about passkeys if this authority cannot use passkeys.
pub const NO_PASSKEYS: &str =
    "page: passkeys are possible only if [console] in the authority's configuration has a `url` with a DNS name";

impl Problem {
    /// Returns the problem for a request that `policy` denies. If the person can ask for access, the message says how.
    /// The person can list the same receiver and service by `GET /v1/access`, so the message reveals nothing new.
    pub fn denied(decision: &Decision<'_>, request: &Request<'_>, policy: &Policy) -> Self {
        let mut explanation = decision.explain(request);
        if matches!(decision, Decision::DefaultDeny { .. })
            && let Some((receiver, wanted)) = policy.askable(request)
        {
            let (receiver, wanted) = (&receiver.name, service(&wanted));
            explanation.text +=
                &format!("; to ask for access, run `vouchsafe access ask {receiver} --service {wanted}`");
        }
        let kind = match decision {
            Decision::NoReceiver => "no_receiver",
            Decision::DefaultDeny { .. } => "no_rule",
            Decision::Denied { .. } | Decision::Allowed(_) => "denied",
        };
        Self::Denied(explanation, kind)
    }

    /// Returns the body of the response (RFC 9457) that reports this problem.
    pub fn said(&self) -> api::Problem {
        let (status, kind, title) = self.parts();
        let detail = match self {
            Self::Denied(explanation, _) => explanation.rule.clone(),
            _ => None,
        };
        api::Problem { r#type: kind.into(), title, status: status.as_u16(), detail }
    }

    fn parts(&self) -> (StatusCode, &'static str, String) {
        use StatusCode as S;
        let (status, kind, title) = match self {
            Self::Malformed(what) => return (S::BAD_REQUEST, "malformed", what.clone()),
            Self::Denied(explanation, kind) => return (S::FORBIDDEN, kind, explanation.text.clone()),
            Self::Withheld(Preference { target, choice: Choice::Ask }) => {
                let title = format!(
                    "you chose to be asked about {target}: `vouchsafe grants allow {target}` permits it on this device"
                );
                return (S::FORBIDDEN, "withheld", title);
            }
            Self::Withheld(Preference { target, .. }) => {
                let title = format!("you chose at the console that your identity must not go to {target}");
                return (S::FORBIDDEN, "withheld", title);
            }
            Self::Access(status, kind, why) => return (*status, kind, why.clone()),
            Self::CantIssue(error) => return (S::FORBIDDEN, "cant_issue", error.to_string()),
            Self::NoSegment(why) => return (S::FORBIDDEN, "no_segment", why.clone()),
            Self::Moved(before) => return (S::CONFLICT, "moved", moved(*before)),
            Self::NotFound(what) => return (S::NOT_FOUND, "not_found", format!("no such {what}")),
            Self::NameTaken(person) => {
                let title =
                    format!("the name {person} belongs to another person here: ask the authority's administrator");
                return (S::FORBIDDEN, "name_taken", title);
            }
            Self::ProviderRefused(why) => return (S::UNAUTHORIZED, "provider_refused", why.clone()),
            Self::TooMany(wait) => {
                let title = format!("too many attempts: try again in {} s", wait.as_secs() + 1);
                return (S::TOO_MANY_REQUESTS, "too_many", title);
            }
            Self::Busy(what) => {
                return (S::SERVICE_UNAVAILABLE, "busy", format!("too many {what} at a time: try again later"));
            }
            Self::TooManyGrants(wait) => {
                let title = format!("too many grants at a time: one expires in {} s", wait.as_secs());
                return (S::TOO_MANY_REQUESTS, "too_many", title);
            }
            Self::TooLarge => (S::PAYLOAD_TOO_LARGE, "too_large", "the body is too long for this call"),
            Self::TooSlow => (S::REQUEST_TIMEOUT, "too_slow", "the body did not arrive in time"),
            Self::UnknownSegment => (
                S::NOT_FOUND,
                api::Problem::UNKNOWN_SEGMENT,
                "this authority does not know the segment to be answered: another authority issued it, or this \
                 authority did so before its last start",
            ),
            Self::NotLoggedIn => {
                (S::UNAUTHORIZED, "not_logged_in", "not logged in, or the session has ended: log in again")
            }
            Self::WrongCaller => (S::FORBIDDEN, "wrong_caller", "this kind of token is not valid for this call"),
            Self::WrongPassword => (S::UNAUTHORIZED, "wrong_password", "wrong name or password"),
            Self::SecondFactorRequired => {
                (S::UNAUTHORIZED, "second_factor_required", "this account needs the six digits of its second factor")
            }
            Self::WrongSecondFactor => {
                (S::UNAUTHORIZED, "wrong_second_factor", "wrong or used code: wait for the next code")
            }
            Self::WrongPasskey => {
                (S::UNAUTHORIZED, "wrong_passkey", "this passkey is unknown here, or the browser's answer is not valid")
            }
            Self::WrongLogin => (S::UNAUTHORIZED, "wrong_login", "no such login is in progress: begin again"),
            Self::NoProvider => (S::NOT_FOUND, "no_provider", "this authority has no identity provider"),
            Self::NoBrowserLogin => (
                S::NOT_FOUND,
                "no_browser_login",
                "this authority does not support logins in a browser on the same machine, because [console] in its \
                 configuration has no `url`: log in with `--device-code`",
            ),
            Self::LoginDenied => (S::FORBIDDEN, "login_denied", "the login was denied in the browser"),
            Self::ProviderUnavailable(_) => (
                S::BAD_GATEWAY,
                "provider_unavailable",
                "the identity provider does not answer correctly: try again later",
            ),
            Self::WrongAssertion => {
                (S::UNAUTHORIZED, "wrong_assertion", "the service account's key is unknown, or its assertion is wrong")
            }
            Self::WrongCode => (
                S::UNAUTHORIZED,
                "wrong_code",
                "wrong, used or expired code: `vouchsafe authority verifier add ID --renew` prints a new one",
            ),
            Self::WrongForm => (
                S::FORBIDDEN,
                "wrong_form",
                "this form is out of date or came from another site: open the page again and repeat your input",
            ),
            Self::NotAdministrator => (S::FORBIDDEN, "not_administrator", "this page is for administrators"),
            Self::NoMajority => (
                S::SERVICE_UNAVAILABLE,
                api::Problem::NO_MAJORITY,
                "this member of the cluster has no contact with a majority, has a wrong clock, or is about to stop, \
                 and has not carried out the call: try again, or call another member",
            ),
            Self::WrongMethod => (S::METHOD_NOT_ALLOWED, "wrong_method", "this method is not allowed here"),
            Self::Internal(_) => (S::INTERNAL_SERVER_ERROR, "internal", "internal error: see the authority's log"),
        };
        (status, kind, title.to_owned())
    }
}

/// Explains why a device whose address has changed gets no key, and what the person can do.
pub fn moved(before: IpAddr) -> String {
    format!(
        "this device was logged in at the address {before} and has another address now, so it may be in another \
        network. Keys travel in clear, so no key was sent. If you trust this network, log the device out and log it in \
        again"
    )
}

impl From<anyhow::Error> for Problem {
    fn from(error: anyhow::Error) -> Self {
        match error.downcast_ref::<Unavailable>() {
            // If the change is possibly recorded, the caller must not be told that it is not.
            Some(unavailable) if !unavailable.maybe_done => {
                tracing::debug!("cannot serve a request: {unavailable}");
                Self::NoMajority
            }
            _ => Self::Internal(error),
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let (status, kind, _) = self.parts();
        match &self {
            Self::Internal(error) => tracing::error!("cannot serve a request: {error:#}"),
            Self::ProviderUnavailable(error) => tracing::warn!("the identity provider failed: {error:#}"),
            _ => {}
        }
        let body = self.said();
        let mut response = (status, Json(&body)).into_response();
        response.extensions_mut().insert(Outcome(kind));
        // The console renders the same text on a page.
        response.extensions_mut().insert(body);
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Self::TooMany(wait) | Self::TooManyGrants(wait) = self {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(wait.as_secs() + 1));
        }
        if let Self::NoMajority = self {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(RETRY_CLUSTER.as_secs()));
        }
        response
    }
}
