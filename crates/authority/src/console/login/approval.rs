//! Approval of an agent's login: a page describes the request and takes the person's answer. An attacker may have
//! started the login and sent the person's browser here, so no link and no form from another site counts as an answer.

use super::super::ROOT;
use super::super::form::{Fault, State, fault, summary};
use super::super::page::{Page, exact_time};
use super::super::visitor::{Form, Visit};
use super::{CALLBACK, NOT_LOGGED_IN, host, to_provider};
use crate::Settings;
use crate::http::extractors::Part;
use crate::http::peer::Peer;
use crate::http::problems::Problem;
use crate::login::{Answered, Brought, Ending, Logins, PAGE, Provider, Question, handlers, shown};
use crate::state::Authority;
use crate::storage::{AuditEvent, AuditLog};
use axum::Router;
use axum::extract::Path;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;
use maud::{Markup, html};
use std::sync::Arc;

/// The name of the checkbox that a person ticks to approve the login.
const CONFIRMED: &str = "confirmed";

/// Returns the routes of the approval pages.
pub fn routes() -> Router<Arc<Authority>> {
    let below = PAGE.strip_prefix(ROOT).unwrap_or(PAGE);
    Router::new()
        .route(&format!("{below}/{{login}}"), get(open))
        .route(&format!("{below}/{{login}}/answer"), get(ask).post(answer))
}

/// Sends the browser that opens an agent's login on to the identity provider.
async fn open(
    Part(provider): Part<Option<Provider>>,
    Part(settings): Part<Settings>,
    Part(logins): Part<Logins>,
    visit: Visit,
    Path(login): Path<String>,
) -> Result<Markup, Problem> {
    let at_issuer = Option::as_ref(&provider).ok_or(Problem::NoProvider)?;
    let url = settings.console.url.as_ref().ok_or(Problem::NoBrowserLogin)?;
    logins.may_open(&login, &visit.secret)?;
    let departure = at_issuer.depart(format!("{url}{CALLBACK}"), Some(&login)).await?;
    let address = departure.url.clone();
    logins.open(&login, &visit.secret, departure)?;
    Ok(to_provider(&provider, &address))
}

/// Processes the browser's return from the identity provider, then redirects the browser to the page that asks for
/// approval. The URL of this page does not contain the authorization code.
pub async fn arrive(
    provider: &Option<Provider>,
    logins: &Logins,
    audit: &AuditLog,
    visit: &Visit,
    peer: &Peer,
    login: &str,
    brought: Brought,
) -> Result<Response, Problem> {
    let provider = provider.as_ref().ok_or(Problem::NoProvider)?;
    let departure = logins.arrive(login, &visit.secret, &brought, &provider.settings.issuer)?;
    let proven = match brought.code {
        Some(code) => handlers::proved(audit, peer, provider.arrive(departure, code).await).await,
        None => Err(Problem::ProviderRefused(NOT_LOGGED_IN.into())),
    };
    match proven {
        Ok(proven) => {
            logins.verified(login, &visit.secret, Ok(proven))?;
            Ok(Redirect::to(&format!("{PAGE}/{login}/answer")).into_response())
        }
        Err(problem) => {
            // The agent learns the reason when it next asks for the result.
            let ending = Ending::Refused(problem.said().title);
            logins.verified(login, &visit.secret, Err(ending))?;
            Err(problem)
        }
    }
}

/// Asks the person to approve or deny the agent's login.
async fn ask(
    Part(provider): Part<Option<Provider>>,
    Part(logins): Part<Logins>,
    visit: Visit,
    Path(login): Path<String>,
) -> Result<Markup, Problem> {
    question(&provider, &logins, &visit, &login, &[])
}

/// Renders the question. An attacker could open this page under a button of their own page, so that the second click of
/// a double click falls on it. Therefore an approval takes two controls at different places, the checkbox and the
/// button, and the script ignores clicks within a second after the page came to the front.
fn question(
    provider: &Option<Provider>,
    logins: &Logins,
    visit: &Visit,
    login: &str,
    faults: &[Fault],
) -> Result<Markup, Problem> {
    let Question { requester, person, comparison } = logins.question(login, &visit.secret)?;
    let state = State::of(CONFIRMED, faults);
    let issuer = provider.as_ref().map_or("", |provider| &provider.settings.issuer);
    Ok(Page::new("Let a command log in as you?").of(visit.visitor.as_ref()).show(&html! {
        (summary(faults))
        p {
            "Someone ran " code { "vouchsafe login" } " to be logged in as " strong { bdi { (person) } }
            ", who " (host(issuer)) " says you are. If you approve, that user can reach what you may reach."
        }
        p.wrong {
            strong { "Approve only if you started this" }
            " just now, and the command shows the same code. Nobody has checked the names: the command can make them up."
        }
        dl {
            dt { "Code" } dd { code { (comparison) } }
            dt { "User" } dd { "claims to be " q { bdi { (shown(&requester.user)) } } }
            dt { "Machine" } dd { "claims to be " q { bdi { (shown(&requester.host)) } } }
            dt { "Device" } dd { "requested name " q { bdi { (shown(&requester.device)) } } }
            dt { "Address" } dd { (requester.source) }
            dt { "Started" } dd { (exact_time(requester.since)) }
        }
        form.answer method="post" action={ (PAGE) "/" (login) "/answer" } data-patient {
            (visit.token())
            (fault(CONFIRMED, faults))
            label.check for=(CONFIRMED) {
                input id=(CONFIRMED) name=(CONFIRMED) type="checkbox" value="yes" required
                    aria-describedby=[state.described] aria-invalid=[state.invalid] autofocus[state.is_first];
                " I started this login, and the command shows the code " code { (comparison) }
            }
            div.buttons {
                button type="submit" name="answer" value="deny" formnovalidate { "Deny" }
                button type="submit" name="answer" value="approve" { "Approve" }
            }
        }
    }))
}

/// Records the person's answer. After an approval, the browser carries a code to the agent. After a denial, the browser
/// is not redirected, because the port may belong to the user who was denied.
async fn answer(
    Part(provider): Part<Option<Provider>>,
    Part(logins): Part<Logins>,
    Part(audit): Part<AuditLog>,
    visit: Visit,
    peer: Peer,
    Path(login): Path<String>,
    Form(fields): Form,
) -> Result<Response, Problem> {
    let approved = match fields.text("answer")? {
        "approve" => true,
        "deny" => false,
        _ => return Err(Problem::Malformed("the answer must be `approve` or `deny`".into())),
    };
    if approved && fields.filled(CONFIRMED).is_none() {
        let faults = [Fault::at(CONFIRMED, "tick the box if you started this login and the codes are the same")];
        let page = question(&provider, &logins, &visit, &login, &faults)?;
        return Ok((StatusCode::UNPROCESSABLE_ENTITY, page).into_response());
    }
    let answered = logins.answer_for_agent(&login, &visit.secret, approved)?;
    let Answered { requester, person, onward, refresh_token } = answered;
    let event = AuditEvent::new(if approved { "login_approved" } else { "login_denied" });
    let detail = format!("requested from {}, {}", requester.source, requester.claims());
    let event = event.person(&person).device(&requester.device).source(peer.address).detail(detail);
    audit.write(event).await?;
    if let Some(refresh_token) = refresh_token {
        handlers::forget(provider, refresh_token);
    }
    let page = Page::new("Log in");
    let page = match &onward {
        // The browser continues from a page, not by a redirect, because the console's content security policy restricts
        // form targets to this origin.
        Some(address) => page.onward(address).show(&html! {
            p { a href=(address.as_str()) { "Return to the command that requested the login" } }
        }),
        None => page.show(&html! {
            p.done role="status" { "Denied. Nobody was logged in." }
            p {
                "If you did not start this login, an attacker may have sent you to this page: tell your administrator. The "
                "audit trail contains the address that the request came from."
            }
        }),
    };
    Ok(page.into_response())
}
