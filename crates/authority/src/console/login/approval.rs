//! Logging an agent in: the page that says who asks, and takes the person's answer. Somebody else may have begun the login
//! and led the person's browser here, so nothing that they could send along is an answer.

use super::super::ROOT;
use super::super::page::{Page, exact_time};
use super::super::visitor::{Form, Visit};
use super::{CALLBACK, NOT_LOGGED_IN, host, to_provider};
use crate::login::{Answered, Brought, Ending, PAGE, Question, handlers, shown};
use crate::peer::Peer;
use crate::problem::Problem;
use crate::state::Authority;
use crate::storage::AuditEvent;
use axum::Router;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;
use maud::{Markup, html};
use std::sync::Arc;

type Shared = State<Arc<Authority>>;

/// The pages.
pub fn routes() -> Router<Arc<Authority>> {
    let below = PAGE.strip_prefix(ROOT).unwrap_or(PAGE);
    Router::new()
        .route(&format!("{below}/{{login}}"), get(open))
        .route(&format!("{below}/{{login}}/answer"), get(ask).post(answer))
}

/// Sends the browser that opens an agent's login to the provider.
async fn open(State(authority): Shared, visit: Visit, Path(login): Path<String>) -> Result<Markup, Problem> {
    let provider = authority.provider.as_ref().ok_or(Problem::NoProvider)?;
    let url = authority.config.console.url.as_ref().ok_or(Problem::NoBrowserLogin)?;
    authority.logins.may_open(&login, &visit.secret)?;
    let departure = provider.depart(format!("{url}{CALLBACK}"), Some(&login)).await?;
    let address = departure.url.clone();
    authority.logins.open(&login, &visit.secret, departure)?;
    Ok(to_provider(&authority, &address))
}

/// Takes what the browser brings back from the provider, and goes on to the question: its address holds no code.
pub async fn arrive(
    authority: &Authority,
    visit: &Visit,
    peer: &Peer,
    login: &str,
    brought: Brought,
) -> Result<Response, Problem> {
    let provider = authority.provider.as_ref().ok_or(Problem::NoProvider)?;
    let departure = authority.logins.arrive(login, &visit.secret, &brought, &provider.config.issuer)?;
    let proven = match brought.code {
        Some(code) => handlers::proved(authority, peer, provider.arrive(departure, code).await).await,
        None => Err(Problem::ProviderRefused(NOT_LOGGED_IN.into())),
    };
    match proven {
        Ok(proven) => {
            authority.logins.verified(login, &visit.secret, Ok(proven))?;
            Ok(Redirect::to(&format!("{PAGE}/{login}/answer")).into_response())
        }
        Err(problem) => {
            // The agent hears of it, too.
            let ending = Ending::Refused(problem.said().title);
            authority.logins.verified(login, &visit.secret, Err(ending))?;
            Err(problem)
        }
    }
}

/// Asks the person.
async fn ask(State(authority): Shared, visit: Visit, Path(login): Path<String>) -> Result<Markup, Problem> {
    let Question { requester, person, comparison } = authority.logins.question(&login, &visit.secret)?;
    let issuer = authority.provider.as_ref().map_or("", |provider| &provider.config.issuer);
    Ok(Page::new("Let a command log in as you?").of(visit.visitor.as_ref()).show(&html! {
        p {
            "Somebody ran " code { "vouchsafe login" } " to be logged in as " strong { bdi { (person) } }
            ", who " (host(issuer)) " says you are. If you approve, that user can reach what you may reach."
        }
        p.wrong {
            strong { "Approve only if you started this" }
            " just now, and the command shows the same code. Nobody has checked the names: the command can make them up."
        }
        dl {
            dt { "Code" } dd { code { (comparison) } }
            dt { "User" } dd { "says it is " q { bdi { (shown(&requester.user)) } } }
            dt { "Machine" } dd { "says it is " q { bdi { (shown(&requester.host)) } } }
            dt { "Device" } dd { "wants to be called " q { bdi { (shown(&requester.device)) } } }
            dt { "Address" } dd { (requester.source) }
            dt { "Started" } dd { (exact_time(requester.since)) }
        }
        form.answer method="post" action={ (PAGE) "/" (login) "/answer" } {
            (visit.token())
            button type="submit" name="answer" value="deny" { "Deny" }
            button type="submit" name="answer" value="approve" { "Approve" }
        }
    }))
}

/// Takes the answer. Where it is yes, the browser brings a code to the agent; it is led nowhere else, as the port may be that
/// of the user who was denied.
async fn answer(
    State(authority): Shared,
    visit: Visit,
    peer: Peer,
    Path(login): Path<String>,
    Form(fields): Form,
) -> Result<Markup, Problem> {
    let approved = match fields.text("answer")? {
        "approve" => true,
        "deny" => false,
        _ => return Err(Problem::Malformed("the answer is `approve` or `deny`".into())),
    };
    let answered = authority.logins.answer_for_agent(&login, &visit.secret, approved)?;
    let Answered { requester, person, onward, refresh_token } = answered;
    let event = AuditEvent::new(if approved { "login_approved" } else { "login_denied" });
    let detail = format!("asked from {}, {}", requester.source, requester.claims());
    let event = event.person(&person).device(&requester.device).source(peer.address).detail(detail);
    authority.audit(event).await?;
    if let Some(refresh_token) = refresh_token {
        handlers::forget(authority.clone(), refresh_token);
    }
    let page = Page::new("Log in");
    Ok(match &onward {
        // A page, not a redirect: our own policy lets forms lead to nowhere but here.
        Some(address) => page.onward(address).show(&html! {
            p { a href=(address.as_str()) { "Go on to the command that asked" } }
        }),
        None => page.show(&html! {
            p.done role="status" { "Denied. Nobody was logged in." }
            p {
                "If you did not start this, somebody led your browser here: tell your administrator. The audit trail has "
                "the address that it was asked from."
            }
        }),
    })
}
