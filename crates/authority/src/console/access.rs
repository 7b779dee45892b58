//! The pages of requests for access. On one page, a person asks for access to receivers. On the others, a delegate (a
//! person to whom the policy delegates the decision) allows or refuses requests: all that wait, or one to which a
//! message of a webhook leads. A delegate can also give access without a request.
//!
//! A form names a request by its number only, and a request never changes. So a delegate decides about exactly what the
//! page showed, or is told that somebody else has decided meanwhile.

mod giving;

use super::ROOT;
use super::form::{Fault, Input, summary};
use super::page::{self, Page, act, encoded, time};
use super::table::{actions, long, table, text};
use super::visitor::{Fields, Form, Visitor};
use crate::http::extractors::Part;
use crate::http::problems::Problem;
use crate::policy::AccessRequests;
use crate::policy::access::{Asking, Deciding, MOST_TEXT, ToDecide, no_request};
use crate::state::Authority;
use crate::storage::{AccessEntry, AccessMark, AccessPage, AccessState};
use api::Requestable;
use axum::Router;
use axum::extract::{Path, Query};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use engine::document::{duration, seconds};
use engine::policy::Subject;
use engine::policy::delegation::RequestId;
use maud::{Markup, html};
use serde::Deserialize;
use std::sync::Arc;

const HERE: &str = "/access";
const TO_DECIDE: &str = "/access/requests";
const TIME: &str = "write a time such as 90m, 8h or 3d";
/// The time that a delegate's form proposes if the person named none, in seconds.
const PROPOSED: u32 = 8 * 3600;

/// Returns the routes of the pages.
pub fn routes() -> Router<Arc<Authority>> {
    Router::new()
        .route(HERE, get(show).post(ask))
        .route("/access/withdraw", post(withdraw_own))
        .route(TO_DECIDE, get(to_decide))
        .route("/access/requests/{id}", get(to_decide_one))
        .route("/access/requests/decide", post(decide))
        .route("/access/requests/give", post(giving::give))
        .route("/access/requests/withdraw", post(withdraw_given))
}

/// Returns the visitor as a subject of the policy's delegations. The subject has no device tags, because a browser has
/// none.
fn delegate(visitor: &Visitor) -> Subject<'_> {
    Subject { groups: &visitor.session.groups, ..Subject::person(visitor.person()) }
}

/// The query of a page: the visitor's last action, and the places at which its lists begin.
#[derive(Default, Deserialize)]
struct Parameters {
    done: Option<String>,
    /// The place in the list of requests at which the shown part begins.
    before: Option<String>,
    /// The place in the list of consents at which the shown part begins.
    after: Option<String>,
    /// The receiver that the form to ask proposes.
    receiver: Option<String>,
    /// The services that the form to ask proposes.
    services: Option<String>,
}

/// Returns the address of the page on which a person asks for a service of a receiver.
pub fn ask_page(receiver: &str, services: &str) -> String {
    format!("{ROOT}{HERE}?receiver={}&services={}#ask-receiver", encoded(receiver), encoded(services))
}

/// Reads the place at which a list begins.
fn place(text: Option<&str>) -> Result<Option<AccessMark>, Problem> {
    text.map(|text| text.parse().map_err(Problem::Malformed)).transpose()
}

/// Renders the links to the first and to the next page of a list. `parameter` contains the place in the list.
fn turn(page: &str, parameter: &str, shown: Option<&str>, next: Option<AccessMark>, further: &str) -> Markup {
    html! {
        @if shown.is_some() || next.is_some() {
            p.acts {
                @if shown.is_some() { a href={ (ROOT) (page) } { "First page" } }
                @if let Some(next) = next { a href={ (ROOT) (page) "?" (parameter) "=" (next) } { (further) } }
            }
        }
    }
}

async fn show(
    Part(access): Part<AccessRequests>,
    visitor: Visitor,
    Query(parameters): Query<Parameters>,
) -> Result<Markup, Problem> {
    let [receiver, services] = [&parameters.receiver, &parameters.services].map(|text| text.as_deref().unwrap_or(""));
    overview(&access, &visitor, &parameters, &Attempted { receiver, services, ..Attempted::default() }).await
}

/// A request that was submitted with errors, and is shown again with them.
#[derive(Default)]
struct Attempted<'a> {
    receiver: &'a str,
    services: &'a str,
    lifetime: &'a str,
    reason: &'a str,
    faults: Vec<Fault>,
}

async fn overview(
    access: &AccessRequests,
    visitor: &Visitor,
    parameters: &Parameters,
    attempted: &Attempted<'_>,
) -> Result<Markup, Problem> {
    let before = parameters.before.as_deref();
    let AccessPage { entries, next } = access.of(visitor.person(), place(before)?).await?;
    let requestable = access.requestable(&visitor.session.subject(visitor.source)).await;
    let is_delegate = access.is_delegate(&delegate(visitor)).await;
    let rows: Vec<_> = entries.iter().map(|entry| own_row(visitor, entry)).collect();
    let done = parameters.done.as_deref();
    let columns =
        [text("Receiver"), text("Services"), text("State"), long("Reason and note"), text("Until"), actions()];
    Ok(Page::new("Access").of(Some(visitor)).at(HERE).done(done).show(&html! {
        (summary(&attempted.faults))
        @if is_delegate {
            p { "You decide for receivers: " a href={ (ROOT) (TO_DECIDE) } { "requests and consents" } "." }
        }
        p { "For some receivers, people decide who may reach them. Ask here; they see your request at this console. The \
             access that they give you ends at the time shown, or when you or they withdraw it." }
        @if rows.is_empty() { p { "You have made no requests." } }
        @else { (table("Your requests", &columns, rows)) }
        (turn(HERE, "before", before, next, "Older requests"))
        h2 { "Ask for access" }
        @if requestable.is_empty() { p { "There is no receiver for which you can ask." } }
        @else { (ask_form(visitor, &requestable, attempted)) }
    }))
}

fn own_row(visitor: &Visitor, entry: &AccessEntry) -> Vec<Markup> {
    let id = entry.id.to_string();
    let is_live = matches!(entry.state, AccessState::Open | AccessState::Allowed);
    let what = format!("the request for {}", entry.receiver);
    vec![
        html! { (entry.receiver) },
        html! { (entry.services.join(" ")) },
        state(entry),
        texts(entry),
        html! { @if let Some(until) = entry.until { (time(until)) } },
        html! { @if is_live { (act(visitor, "/access/withdraw", &[("id", &id)], "Withdraw", &what)) } },
    ]
}

fn state(entry: &AccessEntry) -> Markup {
    let by = entry.decider.as_ref().filter(|_| matches!(entry.state, AccessState::Allowed | AccessState::Refused));
    html! { (entry.state.name()) @if let Some(by) = by { " by " (by) } }
}

fn texts(entry: &AccessEntry) -> Markup {
    let note = entry.note.as_ref().filter(|note| !note.is_empty());
    html! { (entry.reason) @if let Some(note) = note { " " span.quiet { "Note: " (note) } } }
}

fn ask_form(visitor: &Visitor, requestable: &[Requestable], attempted: &Attempted<'_>) -> Markup {
    let input = |id, name, label, hint, value, required| Input {
        id,
        name,
        label,
        hint: Some(hint),
        value: Some(value),
        autocomplete: Some("off"),
        required,
        verbatim: name != "reason",
        maxlength: u32::try_from(MOST_TEXT).ok(),
        ..Input::default()
    };
    let services = "The list shows those for which you can ask. Leave it empty for all of them.";
    let fields = [
        input("ask-services", "services", "Services, such as tcp/22", services, attempted.services, false),
        input(
            "ask-for",
            "for",
            "For how long",
            "90m, 8h or 3d; leave it empty to let them choose.",
            attempted.lifetime,
            false,
        ),
        input("ask-reason", "reason", "Reason", "The people who decide see it.", attempted.reason, true),
    ];
    html! {
        form method="post" action={ (ROOT) (HERE) } {
            (visitor.token())
            label for="ask-receiver" { "Receiver" }
            select #ask-receiver name="receiver" {
                @for Requestable { receiver: name, services, .. } in requestable {
                    option value=(name) selected[name == attempted.receiver] { (name) " (" (services.join(" ")) ")" }
                }
            }
            @for field in &fields { (field.show(&attempted.faults)) }
            button type="submit" { "Ask" }
        }
    }
}

/// Reads the words of a field.
fn words(text: &str) -> Vec<String> {
    text.split([' ', ',']).filter(|word| !word.is_empty()).map(ToOwned::to_owned).collect()
}

async fn ask(Part(access): Part<AccessRequests>, visitor: Visitor, Form(fields): Form) -> Result<Response, Problem> {
    let [receiver, wanted, time, reason] = ["receiver", "services", "for", "reason"].map(|name| fields.text(name));
    let (receiver, wanted, time, reason) = (receiver?, wanted?, time?.trim(), reason?);
    let lifetime = if time.is_empty() { None } else { seconds(time).map(u64::from) };
    let result = if lifetime.is_none() && !time.is_empty() {
        Err(Problem::Malformed(TIME.into()))
    } else {
        let asking = Asking { receiver, services: &words(wanted), lifetime, reason };
        access.ask(&visitor.session, visitor.token, visitor.source, asking).await
    };
    let problem = match result {
        Ok(_) => return Ok(page::done(HERE, "access-asked").into_response()),
        Err(problem @ (Problem::Malformed(_) | Problem::Access(..))) => problem,
        Err(problem) => return Err(problem),
    };
    let said = problem.said();
    let field = match &problem {
        Problem::Malformed(text) if text.contains("time") => "ask-for",
        Problem::Malformed(text) if text.contains("reason") => "ask-reason",
        _ => "ask-services",
    };
    let faults = vec![Fault::at(field, &said.title)];
    let attempted = Attempted { receiver, services: wanted, lifetime: time, reason, faults };
    let page = overview(&access, &visitor, &Parameters::default(), &attempted).await?;
    let status = axum::http::StatusCode::from_u16(said.status).unwrap_or(axum::http::StatusCode::BAD_REQUEST);
    Ok((status, page).into_response())
}

fn id_of(fields: &Fields) -> Result<RequestId, Problem> {
    fields.text("id")?.parse().map_err(|_| no_request())
}

async fn withdraw_own(
    Part(access): Part<AccessRequests>,
    visitor: Visitor,
    Form(fields): Form,
) -> Result<Redirect, Problem> {
    access.withdraw_own(&visitor.session, visitor.operator(), id_of(&fields)?).await?;
    Ok(page::done(HERE, "access-withdrawn"))
}

async fn to_decide(
    Part(access): Part<AccessRequests>,
    visitor: Visitor,
    Query(parameters): Query<Parameters>,
) -> Result<Markup, Problem> {
    decisions(&access, &visitor, &parameters, &giving::Attempted::default()).await
}

async fn decisions(
    access: &AccessRequests,
    visitor: &Visitor,
    parameters: &Parameters,
    attempted: &giving::Attempted,
) -> Result<Markup, Problem> {
    let subject = delegate(visitor);
    let (before, after) = (parameters.before.as_deref(), parameters.after.as_deref());
    let decide = access.to_decide(&subject, (place(before)?, place(after)?)).await?;
    let ToDecide { open, consents, receivers, .. } = &decide;
    let mut forms = Vec::new();
    for entry in &open.entries {
        let longest = access.longest(&subject, entry).await;
        forms.push(request(visitor, entry, longest));
    }
    let rows: Vec<_> = consents.entries.iter().map(|entry| consent_row(visitor, entry)).collect();
    let columns = [
        text("Person"),
        text("Receiver"),
        text("Services"),
        text("By"),
        long("Reason and note"),
        text("Until"),
        actions(),
    ];
    let done = parameters.done.as_deref();
    Ok(Page::new("Requests for access").of(Some(visitor)).at(HERE).done(done).show(&html! {
        (summary(&attempted.faults))
        p { a href={ (ROOT) (HERE) } { "Your own requests" } }
        h2 { "To decide" }
        @if forms.is_empty() { p { "No request waits for your decision." } }
        @for form in &forms { (form) }
        (turn(TO_DECIDE, "before", before, open.next, "Older requests"))
        h2 { "Consents in effect" }
        @if rows.is_empty() { p { "No consent is in effect for the receivers for which you decide." } }
        @else { (table("Consents in effect", &columns, rows)) }
        (turn(TO_DECIDE, "after", after, consents.next, "Consents that end later"))
        @if !receivers.is_empty() {
            h2 { "Give access without a request" }
            (giving::form(visitor, &decide, attempted))
        }
    }))
}

/// Renders the page of one request. Messages of webhooks contain the address of this page.
async fn to_decide_one(
    Part(access): Part<AccessRequests>,
    visitor: Visitor,
    Path(id): Path<String>,
) -> Result<Markup, Problem> {
    let subject = delegate(&visitor);
    let entry = access.request_for(&subject, id.parse().map_err(|_| no_request())?).await?;
    let decision = match entry.state {
        AccessState::Open => request(&visitor, &entry, access.longest(&subject, &entry).await),
        _ => html! {
            p { "The request of " (entry.person) " for " (entry.receiver) " does not wait for a decision: it is "
                (state(&entry)) "." }
        },
    };
    Ok(Page::new("Request for access").of(Some(&visitor)).at(HERE).show(&html! {
        p { a href={ (ROOT) (TO_DECIDE) } { "All requests and consents" } }
        h2 { "To decide" }
        (decision)
    }))
}

/// Renders a request with the form to decide about it. `longest` is `None` if the delegation does not cover all
/// services that the person asks for.
fn request(visitor: &Visitor, entry: &AccessEntry, longest: Option<u32>) -> Markup {
    let id = entry.id.to_string();
    let services = entry.services.join(" ");
    let proposed = entry.lifetime.unwrap_or(PROPOSED).min(longest.unwrap_or(u32::MAX));
    let (proposed, most) = (duration(proposed), longest.map(|longest| format!("At most {}.", duration(longest))));
    let ids = ["services", "for", "note"].map(|name| format!("{name}-{id}"));
    let [services_id, for_id, note_id] = &ids;
    let input = Input { autocomplete: Some("off"), verbatim: true, ..Input::default() };
    let services_hint = match longest {
        Some(_) => "Remove those that you do not allow.",
        None => "You may not allow all of them: remove those that are not delegated to you.",
    };
    let fields = [
        Input {
            id: services_id,
            name: "services",
            label: "Services",
            value: Some(&services),
            hint: Some(services_hint),
            ..input
        },
        Input {
            id: for_id,
            name: "for",
            label: "For how long",
            value: Some(&proposed),
            hint: most.as_deref(),
            ..input
        },
        Input {
            id: note_id,
            name: "note",
            label: "Note, which the person sees",
            verbatim: false,
            maxlength: u32::try_from(MOST_TEXT).ok(),
            ..input
        },
    ];
    let what = format!("the request of {} for {}", entry.person, entry.receiver);
    html! {
        section aria-label=(what) {
            h3 { (entry.person) " asks for " (entry.receiver) }
            p { "Reason: " @if entry.reason.is_empty() { "none" } @else { (entry.reason) } }
            p.quiet { "Asked " (time(entry.asked)) ", number " (id) }
            form.answer method="post" action={ (ROOT) "/access/requests/decide" } {
                (visitor.token())
                input type="hidden" name="id" value=(id);
                @for field in &fields { (field.show(&[])) }
                div.buttons {
                    button type="submit" name="verdict" value="allow" { "Allow" span.unseen { " " (what) } }
                    button type="submit" name="verdict" value="refuse" { "Refuse" span.unseen { " " (what) } }
                }
            }
        }
    }
}

fn consent_row(visitor: &Visitor, entry: &AccessEntry) -> Vec<Markup> {
    let id = entry.id.to_string();
    let what = format!("the consent of {} for {}", entry.person, entry.receiver);
    vec![
        html! { (entry.person) },
        html! { (entry.receiver) },
        html! { (entry.services.join(" ")) },
        html! { (entry.decider.as_deref().unwrap_or_default()) },
        texts(entry),
        html! { @if let Some(until) = entry.until { (time(until)) } },
        act(visitor, "/access/requests/withdraw", &[("id", &id)], "Withdraw", &what),
    ]
}

async fn decide(Part(access): Part<AccessRequests>, visitor: Visitor, Form(fields): Form) -> Result<Redirect, Problem> {
    let id = id_of(&fields)?;
    let (allow, done) = match fields.text("verdict")? {
        "allow" => {
            let lifetime = seconds(fields.text("for")?.trim()).ok_or_else(|| Problem::Malformed(TIME.into()))?;
            (Some((words(fields.text("services")?), lifetime)), "access-allowed")
        }
        "refuse" => (None, "access-refused"),
        _ => return Err(Problem::Malformed("the verdict must be allow or refuse".into())),
    };
    let deciding = Deciding { allow, note: fields.text("note")? };
    access.decide(&visitor.session, visitor.token, visitor.operator(), id, deciding).await?;
    Ok(page::done(TO_DECIDE, done))
}

async fn withdraw_given(
    Part(access): Part<AccessRequests>,
    visitor: Visitor,
    Form(fields): Form,
) -> Result<Redirect, Problem> {
    access.withdraw(&visitor.session, visitor.operator(), id_of(&fields)?).await?;
    Ok(page::done(TO_DECIDE, "consent-withdrawn"))
}
