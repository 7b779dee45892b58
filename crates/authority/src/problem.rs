//! The one place where what went wrong becomes an HTTP answer (RFC 9457), which the console makes a page of. What is the
//! authority's own fault is logged and not told.

use crate::metrics::counters::Outcome;
use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use engine::api;
use engine::policy::{Decision, Request};
use engine::preference::{Choice, Preference};
use std::time::Duration;

/// Why a call fails.
pub enum Problem {
    /// The body, the query or a path can't be read.
    Malformed(String),
    /// The body is longer than the API takes.
    TooLarge,
    /// The body didn't come in time.
    TooSlow,
    /// No or no longer valid bearer token.
    NotLoggedIn,
    /// A verifier's call with a session's token, or the other way round.
    WrongCaller,
    /// Wrong name or password, which are not told apart.
    WrongPassword,
    /// The password is right and the account has a second factor.
    SecondFactorRequired,
    /// A wrong or used code.
    WrongSecondFactor,
    /// A passkey, or what a browser says of one, that is not believed.
    WrongPasskey,
    /// No such login under way, or not this caller's.
    WrongLogin,
    /// A name that belongs to somebody else.
    NameTaken(String),
    /// There is no identity provider.
    NoProvider,
    /// There is no page to ask people on who log in with a browser.
    NoBrowserLogin,
    /// The person said no.
    LoginDenied,
    /// The identity provider, or what it said, does not let the person in.
    ProviderRefused(String),
    /// The identity provider can't be reached or does not work.
    ProviderUnavailable(anyhow::Error),
    /// An assertion that is not believed.
    WrongAssertion,
    /// A wrong, used or ended enrolment code.
    WrongCode,
    /// The policy says no.
    Denied(api::Explanation, &'static str),
    /// The policy says yes, and the person wants their identity not to go there.
    Withheld(Preference),
    /// The policy says yes, and yet no grant can be made.
    CantIssue(engine::issue::IssueError),
    /// The policy may say yes, and yet no path segment can be given.
    NoSegment(String),
    /// No such thing.
    NotFound(&'static str),
    /// The path exists, not with this method.
    WrongMethod,
    /// Too many attempts; how long to wait.
    TooMany(Duration),
    /// Too many live grants; how long until one ends.
    TooManyGrants(Duration),
    /// A form that did not come from a page of the console's in the same browser session.
    WrongForm,
    /// A page for administrators.
    NotAdministrator,
    /// More of these at a time than can be done.
    Busy(&'static str),
    /// The authority's own fault.
    Internal(anyhow::Error),
}

impl Problem {
    /// A denial.
    pub fn denied(decision: &Decision<'_>, request: &Request<'_>) -> Self {
        let kind = match decision {
            Decision::NoReceiver => "no_receiver",
            Decision::DefaultDeny { .. } => "no_rule",
            Decision::Denied { .. } | Decision::Allowed(_) => "denied",
        };
        Self::Denied(decision.explain(request), kind)
    }

    /// What is said about it.
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
                    "you want to be asked about {target}: `vouchsafe grants allow {target}` says yes on this device"
                );
                return (S::FORBIDDEN, "withheld", title);
            }
            Self::Withheld(Preference { target, .. }) => {
                let title = format!("you said at the console that your identity never goes to {target}");
                return (S::FORBIDDEN, "withheld", title);
            }
            Self::CantIssue(error) => return (S::FORBIDDEN, "cant_issue", error.to_string()),
            Self::NoSegment(why) => return (S::FORBIDDEN, "no_segment", why.clone()),
            Self::NotFound(what) => return (S::NOT_FOUND, "not_found", format!("there is no such {what}")),
            Self::NameTaken(person) => {
                let title =
                    format!("the name {person} belongs to somebody else here; ask the authority's administrator");
                return (S::FORBIDDEN, "name_taken", title);
            }
            Self::ProviderRefused(why) => return (S::UNAUTHORIZED, "provider_refused", why.clone()),
            Self::TooMany(wait) => {
                let title = format!("too many attempts; wait {} s", wait.as_secs() + 1);
                return (S::TOO_MANY_REQUESTS, "too_many", title);
            }
            Self::Busy(what) => {
                return (S::SERVICE_UNAVAILABLE, "busy", format!("too many {what} at a time; try again"));
            }
            Self::TooManyGrants(wait) => {
                let title = format!("too many grants at a time; one ends in {} s", wait.as_secs());
                return (S::TOO_MANY_REQUESTS, "too_many", title);
            }
            Self::TooLarge => (S::PAYLOAD_TOO_LARGE, "too_large", "the body is longer than this call takes"),
            Self::TooSlow => (S::REQUEST_TIMEOUT, "too_slow", "the body did not come in time"),
            Self::NotLoggedIn => (S::UNAUTHORIZED, "not_logged_in", "not logged in, or no longer: log in again"),
            Self::WrongCaller => (S::FORBIDDEN, "wrong_caller", "this call is not for a token of this kind"),
            Self::WrongPassword => (S::UNAUTHORIZED, "wrong_password", "wrong name or password"),
            Self::SecondFactorRequired => {
                (S::UNAUTHORIZED, "second_factor_required", "this account needs the six digits of its second factor")
            }
            Self::WrongSecondFactor => {
                (S::UNAUTHORIZED, "wrong_second_factor", "wrong or used code: wait for the next one")
            }
            Self::WrongPasskey => (
                S::UNAUTHORIZED,
                "wrong_passkey",
                "this passkey is not known here, or what the browser says of it is not believed",
            ),
            Self::WrongLogin => {
                (S::UNAUTHORIZED, "wrong_login", "no such login is under way, or not here, or no longer: begin anew")
            }
            Self::NoProvider => (S::NOT_FOUND, "no_provider", "this authority has no identity provider"),
            Self::NoBrowserLogin => (
                S::NOT_FOUND,
                "no_browser_login",
                "this authority takes no logins in a browser on the same machine, because [console] in its configuration has \
                 no `url`: log in with `--device-code`",
            ),
            Self::LoginDenied => (S::FORBIDDEN, "login_denied", "the login was denied in the browser"),
            Self::ProviderUnavailable(_) => (
                S::BAD_GATEWAY,
                "provider_unavailable",
                "the identity provider does not answer as it should; try later",
            ),
            Self::WrongAssertion => (
                S::UNAUTHORIZED,
                "wrong_assertion",
                "the service account's key is not known, or its assertion is wrong",
            ),
            Self::WrongCode => (
                S::UNAUTHORIZED,
                "wrong_code",
                "wrong, used or ended code: `vouchsafe authority verifier add ID --renew` prints another",
            ),
            Self::WrongForm => (
                S::FORBIDDEN,
                "wrong_form",
                "this form is out of date or came from elsewhere: open the page again and repeat what you did",
            ),
            Self::NotAdministrator => (S::FORBIDDEN, "not_administrator", "this page is for administrators"),
            Self::WrongMethod => (S::METHOD_NOT_ALLOWED, "wrong_method", "not with this method"),
            Self::Internal(_) => (S::INTERNAL_SERVER_ERROR, "internal", "the authority failed; its log says why"),
        };
        (status, kind, title.to_owned())
    }
}

impl From<anyhow::Error> for Problem {
    fn from(error: anyhow::Error) -> Self {
        Self::Internal(error)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let (status, kind, _) = self.parts();
        match &self {
            Self::Internal(error) => tracing::error!("a call failed: {error:#}"),
            Self::ProviderUnavailable(error) => tracing::warn!("the identity provider: {error:#}"),
            _ => {}
        }
        let body = self.said();
        let mut response = (status, Json(&body)).into_response();
        response.extensions_mut().insert(Outcome(kind));
        // For the console, which says the same on a page.
        response.extensions_mut().insert(body);
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Self::TooMany(wait) | Self::TooManyGrants(wait) = self {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(wait.as_secs() + 1));
        }
        response
    }
}
