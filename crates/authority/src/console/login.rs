//! Login to the console, and logout. Every login begins a session with a new cookie. A cookie that an attacker placed
//! in the browser before the login is therefore worthless afterwards.

mod approval;

use super::ROOT;
use super::browser::browser;
use super::cookie::Cookie;
use super::ending;
use super::form::{Fault, Input, summary};
use super::network;
use super::page::{self, Page};
use super::visitor::{Form, Visit, Visitor};
use crate::http::extractors::Part;
use crate::http::peer::{Member, Peer};
use crate::http::problems::{NO_PASSKEYS, Problem};
use crate::http::throttle::{Key, Throttle};
use crate::login::{Attempt, BROWSER_TIME, Brought, Passkeys, Proven, Provider, Started, Way, handlers};
use crate::metrics::counters::Outcome;
use crate::now;
use crate::state::Authority;
use crate::storage::{AuditEvent, Database, Proof, Session, Storage};
use crate::sync::Synchroniser;
use axum::extract::{Query, State};
use axum::http::Uri;
use axum::http::header::{HeaderMap, RETRY_AFTER};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use maud::{Markup, html};
use serde::Deserialize;
use serde_json::Value;
use std::sync::Arc;
use std::time::Instant;
use zeroize::Zeroizing;

/// Lifetime of the cookie that identifies a browser before a login, in seconds.
pub const VISIT_TIME: u32 = 3600;
/// Path to which the identity provider sends browsers back, below the authority's URL.
const CALLBACK: &str = "/console/login/callback";
/// Message for a person whose browser the provider sends back without an authorization code.
const NOT_LOGGED_IN: &str = "the identity provider did not complete your login";
/// Maximum length of the address that follows a login, in bytes. The limit exists because the authority stores this
/// address for unauthenticated senders.
const MOST_WAY_BACK: usize = 512;

type Shared = State<Arc<Authority>>;

/// Returns the routes of the login pages.
pub fn routes() -> Router<Arc<Authority>> {
    Router::new()
        .route("/login", get(show).post(by_password))
        .route("/login/passkey/begin", post(begin_passkey))
        .route("/login/passkey", post(by_passkey))
        .route("/login/provider", post(depart))
        .route("/login/callback", get(arrive))
        .route("/logout", post(logout))
        .merge(approval::routes())
}

#[derive(Deserialize)]
struct Parameters {
    to: Option<String>,
    done: Option<String>,
}

async fn show(State(authority): Shared, visit: Visit, Query(parameters): Query<Parameters>) -> Response {
    let to = local(parameters.to.as_deref());
    if visit.visitor.is_some() {
        return Redirect::to(&to).into_response();
    }
    form(&authority, &visit, &to, parameters.done.as_deref(), &Attempted::default()).into_response()
}

/// A failed attempt to log in, which the login page shows again.
#[derive(Default)]
struct Attempted {
    /// The name that the person typed.
    person: Option<String>,
    /// The reason why the attempt failed.
    faults: Vec<Fault>,
}

/// Renders the login page.
fn form(authority: &Authority, visit: &Visit, to: &str, done: Option<&str>, attempted: &Attempted) -> Markup {
    let Attempted { person, faults } = attempted;
    let person = Input {
        id: "person",
        name: "person",
        label: "Name",
        value: person.as_deref(),
        autocomplete: Some("username"),
        required: true,
        verbatim: true,
        ..Input::default()
    };
    let password = Input {
        id: "password",
        name: "password",
        label: "Password",
        kind: "password",
        autocomplete: Some("current-password"),
        required: true,
        ..Input::default()
    };
    let code = Input {
        id: "code",
        name: "code",
        label: "Code of your second factor, if you have one",
        autocomplete: Some("one-time-code"),
        inputmode: Some("numeric"),
        pattern: Some("[0-9]{6}"),
        ..Input::default()
    };
    let provider = Option::as_ref(&authority.provider).filter(|_| authority.settings.console.url.is_some());
    Page::new("Log in").done(done).show(&html! {
        (summary(faults))
        @if let Some(provider) = provider {
            form.login method="post" action={ (ROOT) "/login/provider" } {
                (visit.token())
                input type="hidden" name="to" value=(to);
                button.first type="submit" { "Log in with " (host(&provider.settings.issuer)) }
            }
            h2 { "Or with an account here" }
        }
        form.login method="post" action={ (ROOT) "/login" } {
            (visit.token())
            input type="hidden" name="to" value=(to);
            (person.show(faults))
            (password.show(faults))
            (code.show(faults))
            button type="submit" { "Log in" }
        }
        @if authority.passkeys.is_some() {
            form.login method="post" action={ (ROOT) "/login/passkey" }
                data-begin={ (ROOT) "/login/passkey/begin" } data-passkey="get" hidden {
                (visit.token())
                input type="hidden" name="to" value=(to);
                input type="hidden" name="answer";
                button type="submit" { "Log in with a passkey" }
                p.wrong role="alert" hidden {}
            }
        }
    })
}

/// Returns the challenge for a login with a passkey.
async fn begin_passkey(
    Part(passkeys): Part<Option<Passkeys>>,
    Part(throttle): Part<Throttle>,
    peer: Peer,
    Form(_): Form,
) -> Result<Json<Value>, Problem> {
    let ceremonies = Option::as_ref(&passkeys).ok_or(Problem::NotFound(NO_PASSKEYS))?;
    throttle.start(peer.address, Instant::now()).map_err(Problem::TooMany)?;
    Ok(Json(ceremonies.begin_login()?))
}

async fn by_passkey(
    State(authority): Shared,
    visit: Visit,
    peer: Peer,
    headers: HeaderMap,
    Form(fields): Form,
) -> Result<Response, Problem> {
    let passkeys = Option::as_ref(&authority.passkeys).ok_or(Problem::NotFound(NO_PASSKEYS))?;
    // The throttle is not charged here, because the start was charged, and only an answer that uses up a start is
    // examined. Passkeys cannot be guessed, so an attacker who guesses passwords must not lock out the holders of
    // passkeys.
    let failed = async |person: Option<&str>| {
        let event = AuditEvent::new("login_failed").source(peer.address).detail("passkey");
        let event = if let Some(person) = person { event.person(person) } else { event };
        authority.audit.write_refusal(event).await
    };
    let answer = passkeys.read_login(fields.text("answer")?)?;
    let id = answer.id();
    let found = authority.storage.call(move |database| database.passkey(&id)).await?;
    let Some((passkey, person, handle)) = found.filter(|(_, _, handle)| handle[..] == answer.handle()) else {
        failed(None).await?;
        return Err(Problem::WrongPasskey);
    };
    let after = match passkeys.verify(answer, handle, &passkey) {
        Ok(after) => after,
        Err(problem) => {
            failed(Some(&person)).await?;
            return Err(problem);
        }
    };
    let proof = Proof::Passkey { id: passkey.id, before: passkey.state, after };
    begin(&authority, &visit, &peer, &headers, person, proof, &local(fields.filled("to"))).await
}

/// Returns the host of an issuer URL, by which people recognise the provider.
fn host(issuer: &str) -> &str {
    let rest = issuer.split_once("://").map_or(issuer, |(_, rest)| rest);
    rest.split('/').next().unwrap_or(rest)
}

async fn by_password(
    State(authority): Shared,
    visit: Visit,
    peer: Peer,
    headers: HeaderMap,
    Form(fields): Form,
) -> Result<Response, Problem> {
    let to = local(fields.filled("to"));
    let password = Zeroizing::new(fields.text("password")?.to_owned());
    let code = fields.filled("code").map(|code| code.replace(' ', ""));
    let person = fields.text("person")?.trim().to_owned();
    let attempt = Attempt { person: person.clone(), password, code };
    match authority.password_check.check(attempt, &peer).await {
        Ok((person, proof)) => begin(&authority, &visit, &peer, &headers, person, proof, &to).await,
        Err(
            problem @ (Problem::WrongPassword
            | Problem::WrongSecondFactor
            | Problem::SecondFactorRequired
            | Problem::TooMany(_)),
        ) => {
            let is_of_code = matches!(problem, Problem::WrongSecondFactor | Problem::SecondFactorRequired);
            let faults = vec![Fault::at(if is_of_code { "code" } else { "password" }, &problem.said().title)];
            let attempted = Attempted { person: Some(person), faults };
            let page = form(&authority, &visit, &to, None, &attempted);
            // The form replaces only the body of the problem's response.
            let mut refused = problem.into_response();
            let mut response = (refused.status(), page).into_response();
            response.headers_mut().extend(refused.headers_mut().remove(RETRY_AFTER).map(|wait| (RETRY_AFTER, wait)));
            refused.extensions_mut().remove::<Outcome>().map(|outcome| response.extensions_mut().insert(outcome));
            Ok(response)
        }
        Err(problem) => Err(problem),
    }
}

/// Begins a console session for a person who has authenticated, ends the browser's earlier session, and redirects to
/// `to`.
async fn begin(
    authority: &Arc<Authority>,
    visit: &Visit,
    peer: &Peer,
    headers: &HeaderMap,
    person: String,
    proof: Proof,
    to: &str,
) -> Result<Response, Problem> {
    if let Some(before) = &visit.visitor {
        end(&authority.storage, &authority.sync, before).await?;
    }
    let settings = &authority.settings.console;
    let (ends, idle) = (now() + u64::from(settings.lifetime), now() + u64::from(settings.idle));
    let session = Session {
        person,
        device: browser(headers),
        expires: idle.min(ends),
        tags: Vec::new(),
        groups: Vec::new(),
        ends: Some(ends),
        holder: wire::Holder::default(),
    };
    let member = Member::Person(session.person.clone());
    let secret = authority.session_manager.begin(session, proof, peer.address).await?;
    peer.prove(|| member);
    let mut response = Redirect::to(to).into_response();
    Cookie::Session.set(response.headers_mut(), &secret, settings.lifetime);
    Cookie::Visit.forget(response.headers_mut());
    Cookie::Away.forget(response.headers_mut());
    Ok(response)
}

async fn depart(State(authority): Shared, visit: Visit, peer: Peer, Form(fields): Form) -> Result<Response, Problem> {
    let provider = Option::as_ref(&authority.provider).ok_or(Problem::NoProvider)?;
    let url = authority.settings.console.url.as_ref().ok_or(Problem::NoProvider)?;
    let charged = authority.throttle.start(peer.address, Instant::now()).map_err(Problem::TooMany)?;
    let departure = provider.depart(format!("{url}{CALLBACK}"), None).await?;
    let address = departure.url.clone();
    let login = authority.logins.begin(Started {
        challenge: crate::login::credentials::token_hash(&visit.secret),
        source: Key::source(peer.address),
        until: Instant::now() + BROWSER_TIME,
        charged,
        way: Way::Console(departure, local(fields.filled("to"))),
    })?;
    let mut response = to_provider(&authority.provider, &address).into_response();
    Cookie::Away.set(response.headers_mut(), &login, BROWSER_TIME.as_secs() as u32);
    Ok(response)
}

/// Renders the page that sends a browser to the identity provider. It is a page, not a redirect, because the console's
/// content security policy restricts form targets to this origin.
fn to_provider(provider: &Option<Provider>, address: &str) -> Markup {
    let issuer = provider.as_ref().map_or("the identity provider", |provider| &provider.settings.issuer);
    Page::new("Log in").onward(address).show(&html! { p { a href=(address) { "Continue to " (host(issuer)) } } })
}

#[derive(Deserialize)]
struct Returned {
    code: Option<String>,
    state: Option<String>,
    iss: Option<String>,
}

async fn arrive(
    State(authority): Shared,
    visit: Visit,
    peer: Peer,
    headers: HeaderMap,
    Query(Returned { code, state, iss }): Query<Returned>,
) -> Result<Response, Problem> {
    let provider = Option::as_ref(&authority.provider).ok_or(Problem::NoProvider)?;
    let brought = Brought { code, state: state.unwrap_or_default(), iss };
    // A state that contains a point belongs to an agent's login; the states of the console's own logins contain none.
    if let Some((login, _)) = brought.state.clone().split_once('.') {
        return approval::arrive(
            &authority.provider,
            &authority.logins,
            &authority.audit,
            &visit,
            &peer,
            login,
            brought,
        )
        .await;
    }
    let login = Cookie::Away.read(&headers).ok_or(Problem::WrongLogin)?;
    if brought.code.is_none() || brought.state.is_empty() {
        return Err(Problem::ProviderRefused(NOT_LOGGED_IN.into()));
    }
    let issuer = &provider.settings.issuer;
    let (departure, to, charged) = authority.logins.come_back(&login, &visit.secret, &brought, issuer)?;
    let verified = provider.arrive(departure, brought.code.unwrap_or_default()).await;
    let Proven { person, proof } = handlers::proved(&authority.audit, &peer, verified).await?;
    let response = begin(&authority, &visit, &peer, &headers, person, proof, &to).await?;
    authority.throttle.refund(&charged);
    Ok(response)
}

async fn logout(
    State(authority): Shared,
    peer: Peer,
    headers: HeaderMap,
    visitor: Visitor,
) -> Result<Response, Problem> {
    let mut response = page::done("/login", "logged-out").into_response();
    // Before the end of the console's session, which ends the device's session without telling the switch.
    network::log_out(&authority, &peer, &headers, &mut response).await?;
    let refresh_token = end(&authority.storage, &authority.sync, &visitor).await?;
    if let Some(refresh_token) = refresh_token {
        handlers::forget(authority.provider.clone(), refresh_token);
    }
    Cookie::Session.forget(response.headers_mut());
    Ok(response)
}

/// Ends the visitor's session. Returns the refresh token, so that the caller can revoke it at the identity provider.
async fn end(
    storage: &Arc<Storage>,
    sync: &Arc<Synchroniser>,
    visitor: &Visitor,
) -> Result<Option<Zeroizing<String>>, Problem> {
    let Visitor { token, session, source, .. } = visitor.clone();
    let end = move |database: &mut Database| {
        let refresh_token = database.provider_session(&token)?.and_then(|session| session.refresh_token);
        database.end_session(token, &session, source, now())?;
        Ok(Some(refresh_token))
    };
    Ok(ending::end(storage, sync, visitor.person(), end).await?.flatten())
}

/// Returns the address that follows a login: `to` if it is a page of the console, else the console's root.
fn local(to: Option<&str>) -> String {
    let is_ours = |to: &&str| {
        (to.len() <= MOST_WAY_BACK).then_some(())?;
        let rest = to.strip_prefix(ROOT)?;
        let path = to.parse::<Uri>().ok().filter(|uri| uri.host().is_none())?.path().to_owned();
        let plain = to.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\') && !path.contains("//");
        let leads_on = rest.is_empty() || rest.starts_with(['/', '?']);
        (plain && leads_on && !path.contains("..") && !path.starts_with("/console/log")).then_some(())
    };
    to.filter(|to| is_ours(to).is_some()).unwrap_or(ROOT).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_led_elsewhere() {
        for ours in ["/console", "/console/devices", "/console?done=x", "/console/admin/audit?after=3&person=a%40b"] {
            assert_eq!(local(Some(ours)), ours);
        }
        for elsewhere in [
            "",
            "/",
            "https://evil.example.org/console",
            "//evil.example.org/console",
            "/consoleevil",
            "/console@evil.example.org",
            "/console/\\evil.example.org",
            "/console//evil.example.org",
            "/console/../v1/health",
            "/console/\r\nSet-Cookie: a=b",
            "javascript:alert(1)",
            "/console/login?to=/console/login",
            "/console/logout",
            "console",
            &format!("/console?{}", "x".repeat(MOST_WAY_BACK)),
        ] {
            assert_eq!(local(Some(elsewhere)), ROOT, "{elsewhere}");
        }
        assert_eq!(local(None), ROOT);
    }
}
