//! The form by which a delegate gives access without a request.
//!
//! The form contains the version of the policy for which its page was made. If another policy is in force when the form
//! arrives, the names in it could mean other receivers or people, so nothing is given.

use super::{Parameters, TIME, TO_DECIDE, decisions, words};
use crate::console::ROOT;
use crate::console::form::{Fault, Input};
use crate::console::page;
use crate::console::visitor::{Form, Visitor};
use crate::http::extractors::Part;
use crate::http::problems::Problem;
use crate::policy::AccessRequests;
use crate::policy::access::{Giver, Giving, GivingField, MOST_TEXT, Refused, Term, ToDecide};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use engine::document::{duration, seconds};
use maud::{Markup, html};

/// The values of a form that was submitted with errors, and is shown again with them.
#[derive(Default)]
pub(super) struct Attempted {
    who: String,
    receiver: String,
    services: String,
    lifetime: String,
    note: String,
    pub faults: Vec<Fault>,
}

/// Renders the form.
pub(super) fn form(visitor: &Visitor, decide: &ToDecide, attempted: &Attempted) -> Markup {
    let input = Input { autocomplete: Some("off"), verbatim: true, ..Input::default() };
    let fields = [
        Input {
            id: "give-who",
            name: "who",
            label: "Person, or group:NAME, or tag:NAME",
            hint: Some("A group or tag gives everybody access who is in the group, or has a device with the tag."),
            value: Some(&attempted.who),
            required: true,
            ..input
        },
        Input {
            id: "give-services",
            name: "services",
            label: "Services, such as tcp/22",
            hint: Some("Leave it empty for all that you may allow."),
            value: Some(&attempted.services),
            ..input
        },
        Input {
            id: "give-for",
            name: "for",
            label: "For how long",
            hint: Some("90m, 8h or 3d."),
            value: Some(&attempted.lifetime),
            required: true,
            ..input
        },
        Input {
            id: "give-note",
            name: "note",
            label: "Note, which the person sees",
            value: Some(&attempted.note),
            verbatim: false,
            maxlength: u32::try_from(MOST_TEXT).ok(),
            ..input
        },
    ];
    html! {
        form method="post" action={ (ROOT) "/access/requests/give" } {
            (visitor.token())
            input type="hidden" name="version" value=(decide.version);
            label for="give-receiver" { "Receiver" }
            select #give-receiver name="receiver" {
                @for (name, (services, longest)) in &decide.receivers {
                    option value=(name) selected[*name == attempted.receiver] {
                        (name) " (" (services.iter().map(String::as_str).collect::<Vec<_>>().join(" ")) ", at most "
                        (duration(*longest)) ")"
                    }
                }
            }
            @for field in &fields { (field.show(&attempted.faults)) }
            button type="submit" { "Give access" }
        }
    }
}

/// Gives the access of a submitted form.
pub(super) async fn give(
    Part(access): Part<AccessRequests>,
    visitor: Visitor,
    Form(fields): Form,
) -> Result<Response, Problem> {
    let [who, receiver, services, time, note, version] =
        ["who", "receiver", "services", "for", "note", "version"].map(|name| fields.text(name).map(str::to_owned));
    let (who, receiver, services, lifetime, note) = (who?, receiver?, services?, time?, note?);
    let version = version?.parse().map_err(|_| Problem::Malformed("the version must be a number".into()))?;
    let result = match seconds(lifetime.trim()) {
        None => {
            let problem = Problem::Malformed(TIME.into());
            Err(Refused { nth: None, field: Some(GivingField::Term), problem })
        }
        Some(seconds) => {
            let giving = Giving {
                holder: who.clone(),
                receiver: receiver.clone(),
                services: words(&services),
                term: Term::For(seconds),
                note: note.clone(),
            };
            let giver = Giver::Delegate(&visitor.session, visitor.token, version);
            access.give(giver, visitor.operator(), vec![giving]).await
        }
    };
    let Refused { field, problem, .. } = match result {
        Ok(_) => return Ok(page::done(TO_DECIDE, "access-given").into_response()),
        Err(refused) => refused,
    };
    if !matches!(problem, Problem::Malformed(_) | Problem::Access(..)) {
        return Err(problem);
    }
    let said = problem.said();
    let field = match field {
        Some(GivingField::Services) => "give-services",
        Some(GivingField::Term) => "give-for",
        Some(GivingField::Note) => "give-note",
        Some(GivingField::Holder) | None => "give-who",
    };
    let faults = vec![Fault::at(field, &said.title)];
    let attempted = Attempted { who, receiver, services, lifetime, note, faults };
    let page = decisions(&access, &visitor, &Parameters::default(), &attempted).await?;
    let status = StatusCode::from_u16(said.status).unwrap_or(StatusCode::BAD_REQUEST);
    Ok((status, page).into_response())
}
