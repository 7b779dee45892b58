//! The page on which a person logs in the device that they browse with. The device must be behind a switch whose
//! controller accepts client keys (wire.md §5.4.4). The device needs no software of Vouchsafe. The authority sends the
//! key in a packet of the connection on which the person sends the form. The switch takes the key out of this packet.
//!
//! The device gets a session like an agent's. Its bearer token stays in a cookie of the browser, by which the page
//! renews the key. The key itself travels in clear, so the authority sends one only after the person has asked for it
//! on this page. The support option alone has no effect, because anybody on the path can forge it. The person trusted
//! the network in which they asked, so the page renews the key only at the address that the device had then.

use super::ROOT;
use super::browser::browser;
use super::cookie::Cookie;
use super::form::{Fault, Input, summary};
use super::overview::Said;
use super::page::{self, Page, time};
use super::visitor::{Form, Visit, Visitor};
use crate::http::handlers::check_device;
use crate::http::peer::Peer;
use crate::http::problems::{Problem, moved};
use crate::login::credentials::token_hash;
use crate::now;
use crate::state::Authority;
use crate::storage::{Database, Proof, Session, TokenHash};
use api::GrantRequest;
use axum::Router;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use engine::policy::{Decision, Policy, Request, Subject};
use maud::{Markup, html};
use std::net::IpAddr;
use std::sync::Arc;
use wire::Destination;
use wire::packet::TCP;

type Shared = State<Arc<Authority>>;

/// Path of the request that renews the key, below the console's root. The request does not prolong the console's
/// session, because a page that is left open must not keep the session alive.
pub const RENEW: &str = "/network/renew";
const HERE: &str = "/network";
/// Lifetime of a pair, in seconds, that the page assumes if the policy allows no pair at present.
const DEFAULT_LIFETIME: u32 = 300;
const NO_SWITCH: &str = "your network has not announced that it accepts keys, or it announces this only on new \
    connections: close the other pages of this site, wait a minute, and try again. No key was sent";
const NO_KEY: &str = "the policy gives you no client key for the services behind this network's switch";

/// Returns the routes of the page.
pub fn routes() -> Router<Arc<Authority>> {
    Router::new().route(HERE, get(show).post(log_in)).route(RENEW, get(renew)).route("/network/leave", post(leave))
}

/// The session of the device that the browser runs on.
struct Here {
    token: TokenHash,
    session: Arc<Session>,
}

fn here(authority: &Authority, headers: &HeaderMap) -> Option<Here> {
    let token = token_hash(&Cookie::Device.read(headers)?);
    Some(Here { token, session: authority.sessions.get(&token)? })
}

async fn show(
    State(authority): Shared,
    visit: Visit,
    peer: Peer,
    headers: HeaderMap,
    Query(said): Query<Said>,
) -> Result<Markup, Problem> {
    let done = said.done.as_deref();
    match here(&authority, &headers) {
        Some(here) => {
            let before = moved_from(&authority, &here, &peer).await?;
            let every = renewal(&authority, &here, peer.address).await;
            Ok(inside(&visit, &here, every, before, done))
        }
        None => {
            let visitor = visit.visitor.as_ref().ok_or(Problem::NotLoggedIn)?;
            Ok(outside(&authority, visitor, &browser(&headers), &[], done))
        }
    }
}

/// Returns the time after which the page renews the key, in seconds: half of the lifetime of a pair.
async fn renewal(authority: &Authority, here: &Here, source: IpAddr) -> u32 {
    let (policy, now) = (authority.policy.read().await, now());
    let subject = here.session.subject(source);
    let verifier = authority.settings.key_transfer_for.as_deref().unwrap_or_default();
    let to = any_destination(policy.policy(), verifier, &subject, now);
    let lifetime = to.and_then(|to| match policy.decide(&Request { subject, to, now }) {
        Decision::Allowed(permit) => Some(permit.terms.lifetime),
        _ => None,
    });
    lifetime.unwrap_or(DEFAULT_LIFETIME).min(authority.settings.max_lifetime) / 2
}

/// Returns the address that the device had at its login, if it has another one now.
async fn moved_from(authority: &Authority, here: &Here, peer: &Peer) -> Result<Option<IpAddr>, Problem> {
    let token = here.token;
    let before = authority.storage.read_for(&here.session.person, move |database| database.source_of(&token)).await?;
    Ok(Some(before.ok_or(Problem::NotLoggedIn)?).filter(|before| *before != peer.address))
}

/// Renders the page of a device that is logged in. Its script renews the key every `every` seconds, unless the device
/// has moved away from the address `before`.
fn inside(visit: &Visit, here: &Here, every: u32, before: Option<IpAddr>, done: Option<&str>) -> Markup {
    Page::new("This device").of(visit.visitor.as_ref()).at(HERE).done(done).show(&html! {
        p { (here.session.device) " is logged in as " strong { (here.session.person) } " until " (time(here.session.expires)) "." }
        @match before {
            Some(before) => p.wrong { "No keys are sent: " (moved(before)) "." },
            None => {
                p { "Keep this page open: it sends your network's switch a new key every few minutes." }
                p data-renew=(every) data-at={ (ROOT) (RENEW) } {
                    a href={ (ROOT) (RENEW) "?page=true" } { "Send a new key now" }
                }
            }
        }
        form method="post" action={ (ROOT) "/network/leave" } {
            (visit.token())
            button type="submit" { "Log this device out" }
        }
    })
}

/// Renders the page of a device that is not logged in.
fn outside(authority: &Authority, visitor: &Visitor, name: &str, faults: &[Fault], done: Option<&str>) -> Markup {
    let device = Input {
        id: "device",
        name: "device",
        label: "Name of this device",
        value: Some(name),
        maxlength: Some(64),
        required: true,
        verbatim: true,
        ..Input::default()
    };
    Page::new("This device").of(Some(visitor)).at(HERE).done(done).show(&html! {
        (summary(faults))
        @if authority.settings.key_transfer_for.is_none() {
            p { "This authority logs in devices through " code { "vouchsafe login" } " only." }
        } @else {
            p { "If the switch of your network speaks for devices without Vouchsafe's software, it can speak for this \
                one. The switch gets a key by which your packets are known as yours." }
            p { strong { "Anyone who can read the packets between this device and the authority can use the key, too." }
                " Do this only at home or in a network that you trust." }
            form method="post" action={ (ROOT) (HERE) } {
                (visitor.token())
                (device.show(faults))
                button type="submit" { "Log this device in" }
            }
        }
    })
}

async fn log_in(
    State(authority): Shared,
    visitor: Visitor,
    peer: Peer,
    headers: HeaderMap,
    Form(fields): Form,
) -> Result<Response, Problem> {
    let device = fields.text("device")?.trim().to_owned();
    check_device(&device)?;
    if let Some(before) = here(&authority, &headers) {
        end(&authority, &before, peer.address).await?;
    }
    let refused = |why: &str| {
        let faults = [Fault::at("device", why)];
        (StatusCode::CONFLICT, outside(&authority, &visitor, &device, &faults, None)).into_response()
    };
    if !authority.key_transfer.is_possible(&peer) {
        return Ok(refused(NO_SWITCH));
    }
    let proof = Proof::Console(visitor.token);
    let person = visitor.person().to_owned();
    let began = authority.session_manager.begin_for_agent(person, device.clone(), proof, peer.address).await?;
    let token = token_hash(&began.token);
    let session = authority.sessions.get(&token).ok_or(Problem::NotLoggedIn)?;
    let here = Here { token, session };
    match send_key(&authority, &here, &peer).await {
        Ok(true) => {
            let mut response = page::done(HERE, "device-in").into_response();
            Cookie::Device.set(response.headers_mut(), &began.token, authority.settings.session_lifetime);
            Ok(response)
        }
        Ok(false) => {
            end(&authority, &here, peer.address).await?;
            Ok(refused(NO_SWITCH))
        }
        Err(problem) => {
            end(&authority, &here, peer.address).await?;
            Err(problem)
        }
    }
}

/// Issues a pair to the device's session and sends its key to the switch. Returns false if the key could not be sent on
/// this connection.
async fn send_key(authority: &Authority, here: &Here, peer: &Peer) -> Result<bool, Problem> {
    let verifier = authority.settings.key_transfer_for.as_ref().ok_or(Problem::NotFound("page"))?;
    let (subject, time) = (here.session.subject(peer.address), now());
    let to = authority.policy.with(|policy| any_destination(policy, verifier, &subject, time)).await;
    let Destination { address, protocol, port } = to.ok_or(Problem::Malformed(NO_KEY.into()))?;
    let request = GrantRequest { address, protocol, port, consented: true, in_band: true };
    let turn = authority.queue.turn(&here.session.person).await;
    let mut grant = authority.grants.issue(&turn, here.token, &request, peer.address).await?.for_client();
    if grant.header.len() != 2 * wire::ls::PAIR_LEN {
        return Err(Problem::Malformed(NO_KEY.into()));
    }
    Ok(authority.key_transfer.take_over(peer, &mut grant).await)
}

/// Returns an IPv4 destination behind the verifier that the subject may reach. A pair opens everything behind its
/// verifier, so any destination will do.
fn any_destination(policy: &Policy, verifier: &str, subject: &Subject<'_>, now: u64) -> Option<Destination> {
    let receivers = policy.destinations(subject, now).into_iter();
    let mut behind = receivers.filter(|receiver| receiver.verifier == verifier && !receiver.tunnel);
    behind.find_map(|receiver| {
        let prefix = receiver.prefixes.iter().find(|prefix| prefix.addr().is_ipv4())?;
        let service = receiver.services.first()?;
        let protocol = if service.protocol == 0 { TCP } else { service.protocol };
        Some(Destination { address: prefix.addr(), protocol, port: service.first_port.max(1) })
    })
}

#[derive(serde::Deserialize)]
struct Wanted {
    /// Whether the browser wants a page as the answer. If not, the answer has only a status.
    page: Option<bool>,
}

async fn renew(
    State(authority): Shared,
    peer: Peer,
    headers: HeaderMap,
    Query(wanted): Query<Wanted>,
) -> Result<Response, Problem> {
    // Another site must not make this browser ask for keys.
    if headers.get("sec-fetch-site").is_none_or(|site| site != "same-origin") {
        return Err(Problem::WrongForm);
    }
    let here = here(&authority, &headers).ok_or(Problem::NotLoggedIn)?;
    if let Some(before) = moved_from(&authority, &here, &peer).await? {
        return Err(Problem::Moved(before));
    }
    let sent = send_key(&authority, &here, &peer).await?;
    Ok(match (wanted.page, sent) {
        (Some(true), true) => page::done(HERE, "device-renewed").into_response(),
        (Some(true), false) => page::done(HERE, "device-not-renewed").into_response(),
        (_, true) => StatusCode::NO_CONTENT.into_response(),
        (_, false) => StatusCode::CONFLICT.into_response(),
    })
}

async fn leave(State(authority): Shared, peer: Peer, headers: HeaderMap, Form(_): Form) -> Result<Response, Problem> {
    let mut response = page::done(HERE, "device-out").into_response();
    log_out(&authority, &peer, &headers, &mut response).await?;
    Ok(response)
}

/// Ends the session of the device on which the browser runs, if the device has one, and tells the switch to forget the
/// key.
///
/// # Errors
/// Fails if the database cannot be written.
pub async fn log_out(
    authority: &Authority,
    peer: &Peer,
    headers: &HeaderMap,
    response: &mut Response,
) -> Result<(), Problem> {
    let Some(here) = here(authority, headers) else { return Ok(()) };
    end(authority, &here, peer.address).await?;
    authority.key_transfer.withdraw(peer).await;
    Cookie::Device.forget(response.headers_mut());
    Ok(())
}

async fn end(authority: &Authority, here: &Here, source: IpAddr) -> Result<(), Problem> {
    let (token, session, person) = (here.token, here.session.clone(), here.session.person.clone());
    let end = move |database: &mut Database| database.end_session(token, &session, source, now()).map(Some);
    super::ending::end(&authority.storage, &authority.sync, &person, end).await?;
    Ok(())
}
