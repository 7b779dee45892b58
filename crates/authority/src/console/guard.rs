//! Middleware that every request to the console passes. It identifies the visitor, accepts only forms that the console
//! rendered for this browser, and adds the security headers to every response.
//!
//! The guard accepts a form only under two conditions. The browser must report that a page of this origin sent it. And
//! the form must contain a token that is bound to the browser's session. Before a login, the token is bound to the
//! cookie that the login page set.

use super::ROOT;
use super::cookie::Cookie;
use super::page::{self, Page};
use super::visitor::{Fields, Visit, Visitor};
use crate::http::peer::{Member, Peer};
use crate::http::problems::Problem;
use crate::http::throttle::{Key, Throttle};
use crate::login::credentials::{self, token_hash};
use crate::metrics::counters::Outcome;
use crate::now;
use crate::state::Authority;
use axum::body::{Body, to_bytes};
use axum::extract::{OriginalUri, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Redirect, Response};

use std::sync::Arc;
use std::time::{Duration, Instant};
use subtle::ConstantTimeEq;

/// Time limit for receiving a form.
const BODY_TIME: Duration = Duration::from_secs(10);
/// Maximum length of a form, in bytes.
const MOST_FORM: usize = 16 * 1024;
/// Maximum length of an administrator's form, in bytes. The form may contain a policy, each byte of which may take
/// three when encoded.
const MOST_FORM_OF_ADMINISTRATOR: usize = 3 * engine::policy::MOST_TEXT + MOST_FORM;
/// Minimum time between two extensions of a session's lifetime, in seconds. The use of a session extends its lifetime.
const NOTE: u64 = 60;

const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; \
                      form-action 'self'; base-uri 'none'; frame-ancestors 'none'";
const HEADERS: [(HeaderName, HeaderValue); 8] = [
    (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY)),
    // RFC 6797. The authority serves HTTPS only.
    (header::STRICT_TRANSPORT_SECURITY, HeaderValue::from_static("max-age=31536000")),
    (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    (header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY")),
    // The policy is not `no-referrer`, because browsers would then hide the origin of forms, which the guard checks.
    (header::REFERRER_POLICY, HeaderValue::from_static("same-origin")),
    (HeaderName::from_static("cross-origin-opener-policy"), HeaderValue::from_static("same-origin")),
    (HeaderName::from_static("cross-origin-resource-policy"), HeaderValue::from_static("same-origin")),
    (
        HeaderName::from_static("permissions-policy"),
        HeaderValue::from_static("camera=(), geolocation=(), microphone=(), payment=(), usb=()"),
    ),
];

/// Checks a request and, if the check succeeds, passes the request on to its handler. If not, the response reports the
/// problem. Adds the security headers to the response in both cases.
pub async fn guard(State(authority): State<Arc<Authority>>, peer: Peer, request: Request, next: Next) -> Response {
    // The URI that the browser requested. Paths in the nested router begin below the console's root.
    let requested = request.extensions().get().map_or_else(|| request.uri(), |OriginalUri(uri)| uri);
    let path = requested.path_and_query().map_or("", |path| path.as_str()).to_owned();
    let reads = matches!(*request.method(), Method::GET | Method::HEAD);
    let is_used = !path.strip_prefix(ROOT).is_some_and(|path| path.starts_with(super::network::RENEW));
    let visit = match visit(&authority, &peer, request.headers(), is_used).await {
        Ok(visit) => visit,
        Err(error) => return finish(Problem::Internal(error).into_response(), None, &path, reads),
    };
    let passed = match charge(&authority.throttle, visit.visitor.as_ref(), reads) {
        Ok(()) => pass(&visit, request, reads).await,
        Err(problem) => Err(problem),
    };
    let response = match passed {
        Ok(request) => next.run(request).await,
        Err(problem) => problem.into_response(),
    };
    let mut response = finish(response, visit.visitor.as_ref(), &path, reads);
    // A response that caches may store must not contain a cookie, which would reach other browsers.
    if visit.is_new && response.headers().get(header::CACHE_CONTROL).is_some_and(|kept| kept == "no-store") {
        Cookie::Visit.set(response.headers_mut(), &visit.secret, super::login::VISIT_TIME);
    }
    response
}

/// Identifies the browser and its session. If `is_used` is set, the request counts as use of the console and extends
/// the session.
async fn visit(authority: &Authority, peer: &Peer, headers: &HeaderMap, is_used: bool) -> anyhow::Result<Visit> {
    if let Some(secret) = Cookie::Session.read(headers) {
        let token = token_hash(&secret);
        if let Some(session) = authority.sessions.at_console(&token) {
            peer.prove(|| Member::Person(session.person.clone()));
            let idle = authority.settings.console.idle;
            if is_used
                && session.ends.is_some_and(|ends| ends > session.expires)
                && now() + u64::from(idle) >= session.expires + NOTE.min(u64::from(idle) / 2)
            {
                authority.sessions.prolong(&authority.storage, token, &session.person, idle).await?;
            }
            let is_administrator =
                authority.policy.with(|policy| authority.settings.console.is_administrator(policy, &session)).await;
            let source = peer.address;
            let form = form_token(&secret);
            let visitor = Visitor { session, token, source, is_administrator, form: form.clone() };
            return Ok(Visit { secret, form, is_new: false, visitor: Some(visitor) });
        }
    }
    let (secret, is_new) = match Cookie::Visit.read(headers) {
        Some(secret) => (secret, false),
        None => (credentials::new_token::<32>()?.0, true),
    };
    Ok(Visit { form: form_token(&secret), secret, is_new, visitor: None })
}

/// Limits the rate of a logged-in visitor's requests. It does not limit other visitors; the handlers of costly requests
/// do.
fn charge(throttle: &Throttle, visitor: Option<&Visitor>, reads: bool) -> Result<(), Problem> {
    let Some(visitor) = visitor else { return Ok(()) };
    let person = visitor.person().to_owned();
    let key = if reads { Key::Console(person) } else { Key::Forms(person) };
    throttle.charge(&[key], Instant::now()).map_err(Problem::TooMany)
}

/// Checks and reads the form of a request that changes something, and attaches the visit and the form to the request.
async fn pass(visit: &Visit, request: Request, reads: bool) -> Result<Request, Problem> {
    let (mut parts, body) = request.into_parts();
    if !reads {
        if parts.method != Method::POST {
            return Err(Problem::WrongMethod);
        }
        if !is_from_here(&parts.headers, &parts.uri) || visit.is_new {
            return Err(Problem::WrongForm);
        }
        let is_form = |value: &HeaderValue| value.as_bytes().starts_with(b"application/x-www-form-urlencoded");
        if !parts.headers.get(header::CONTENT_TYPE).is_some_and(is_form) {
            return Err(Problem::WrongForm);
        }
        let administers = visit.visitor.as_ref().is_some_and(|visitor| visitor.is_administrator);
        let most = if administers { MOST_FORM_OF_ADMINISTRATOR } else { MOST_FORM };
        let bytes = tokio::time::timeout(BODY_TIME, to_bytes(body, most)).await.map_err(|_| Problem::TooSlow)?;
        let fields = Fields::read(&bytes.map_err(|_| Problem::TooLarge)?);
        if !bool::from(fields.text("form")?.as_bytes().ct_eq(visit.form.as_bytes())) {
            return Err(Problem::WrongForm);
        }
        parts.extensions.insert(Arc::new(fields));
    }
    parts.extensions.insert(visit.clone());
    Ok(Request::from_parts(parts, Body::empty()))
}

/// Reports whether, according to the browser, a page of the console sent the request.
fn is_from_here(headers: &HeaderMap, uri: &Uri) -> bool {
    let site = headers.get("sec-fetch-site");
    if site.is_some_and(|site| site != "same-origin") {
        return false;
    }
    // In HTTP/2, the request target names the host.
    let host = uri.authority().map(|host| host.as_str());
    let host = host.or_else(|| headers.get(header::HOST).and_then(|host| host.to_str().ok()));
    let origin = headers.get(header::ORIGIN).and_then(|origin| origin.to_str().ok());
    match (origin, host) {
        (Some(origin), Some(host)) => origin.strip_prefix("https://") == Some(host),
        // A browser names a host in every request, and sends `Origin` with every form.
        _ => false,
    }
}

/// Derives the form token from `secret`, the value of the browser's cookie.
fn form_token(secret: &str) -> Arc<str> {
    hex::encode(token_hash(&format!("vouchsafe console form v1 {secret}"))).into()
}

/// Renders a problem as a page, or redirects to the login page, and sets the security headers of the response.
fn finish(mut response: Response, visitor: Option<&Visitor>, path: &str, reads: bool) -> Response {
    if let Some(problem) = response.extensions_mut().remove::<api::Problem>() {
        let outcome = response.extensions_mut().remove::<Outcome>();
        let retry = response.headers_mut().remove(header::RETRY_AFTER);
        response = match (response.status(), visitor) {
            (StatusCode::UNAUTHORIZED, None) if reads && problem.r#type == "not_logged_in" => {
                Redirect::to(&format!("{ROOT}/login?to={}", page::encoded(path))).into_response()
            }
            (status, _) => (status, Page::new("Request failed").of(visitor).problem(&problem)).into_response(),
        };
        outcome.map(|outcome| response.extensions_mut().insert(outcome));
        retry.map(|retry| response.headers_mut().insert(header::RETRY_AFTER, retry));
    }
    let headers = response.headers_mut();
    headers.extend(HEADERS);
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepted(headers: &[(&'static str, &'static str)]) -> bool {
        let headers =
            headers.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
        is_from_here(&headers.collect(), &Uri::from_static("/console/login"))
    }

    #[test]
    fn a_form_comes_from_this_origin_or_is_none() {
        let (host, origin) = (("host", "a.example.org:8443"), ("origin", "https://a.example.org:8443"));
        assert!(accepted(&[host, origin]));
        assert!(accepted(&[host, origin, ("sec-fetch-site", "same-origin")]));
        for site in ["cross-site", "same-site", "none"] {
            assert!(!accepted(&[host, origin, ("sec-fetch-site", site)]), "{site}");
        }
        for origin in ["null", "https://a.example.org", "http://a.example.org:8443", "https://evil.example.org:8443"] {
            assert!(!accepted(&[host, ("origin", origin)]), "{origin}");
        }
        assert!(!accepted(&[host]) && !accepted(&[host, ("sec-fetch-site", "same-origin")]) && !accepted(&[]));
    }
}
