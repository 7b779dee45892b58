//! The page of the destinations to which agents may present a person's identity. The person makes a choice for each
//! destination. The authority follows this choice even if the policy would allow more.

use super::ROOT;
use super::form::{Fault, Input, summary};
use super::overview::Said;
use super::page::{self, Page};
use super::table::{table, text};
use super::visitor::{Form, Visitor};
use crate::http::extractors::Part;
use crate::http::problems::Problem;
use crate::now;
use crate::policy::{Choices, PolicyInForce, PreferenceTable};
use crate::state::Authority;
use axum::Router;
use axum::extract::Query;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use engine::model::Target;
use engine::policy::Policy;
use engine::policy::preference::{Choice, Preferences};
use maud::{Markup, html};
use std::sync::Arc;

/// Returns the routes of the identity page.
pub fn routes() -> Router<Arc<Authority>> {
    Router::new().route("/identity", get(show).post(choose))
}

async fn show(
    Part(policy): Part<PolicyInForce>,
    Part(preferences): Part<PreferenceTable>,
    visitor: Visitor,
    Query(said): Query<Said>,
) -> Markup {
    overview(&policy, &preferences, &visitor, said.done.as_deref(), &Attempted::default()).await
}

/// A choice that was submitted with errors, and is shown again with them.
#[derive(Default)]
struct Attempted<'a> {
    target: Option<&'a str>,
    choice: Option<Choice>,
    faults: Vec<Fault>,
}

async fn overview(
    policy: &PolicyInForce,
    choices: &PreferenceTable,
    visitor: &Visitor,
    done: Option<&str>,
    attempted: &Attempted<'_>,
) -> Markup {
    let target = Input {
        id: "target",
        name: "target",
        label: "Address or network, with or without port",
        value: attempted.target,
        placeholder: Some("192.0.2.1:22"),
        autocomplete: Some("off"),
        required: true,
        verbatim: true,
        ..Input::default()
    };
    let preferences = choices.of(visitor.person());
    let subject = visitor.session.subject(visitor.source);
    let reachable = |policy: &Policy| -> Vec<(Target, String)> {
        let receivers = policy.destinations(&subject, now()).into_iter();
        let prefixes = receivers.flat_map(|receiver| receiver.prefixes.iter().map(|prefix| (*prefix, &receiver.name)));
        prefixes.map(|(prefix, name)| (Target { prefix, port: None }, name.clone())).collect()
    };
    let mut targets = policy.with(reachable).await;
    for own in preferences.all() {
        if !targets.iter().any(|(target, _)| *target == own.target) {
            targets.push((own.target, String::new()));
        }
    }
    let rows: Vec<_> = targets.iter().map(|(target, name)| row(visitor, &preferences, target, name)).collect();
    Page::new("Where your identity may go").of(Some(visitor)).at("/identity").done(done).show(&html! {
        (summary(&attempted.faults))
        p { "Your agents present your identity to reach the destinations that the policy allows. Choose here where they may do so." }
        dl {
            dt { "allow" } dd { "Agents get grants for it without asking you. This is the default." }
            dt { "ask" } dd { "An agent gets a grant only if you also allow it on the agent's machine: " code { "vouchsafe grants allow DESTINATION" } "." }
            dt { "never" } dd { "No grant is issued for it in your name. Existing grants end at once." }
        }
        @if rows.is_empty() { p { "The policy does not let you reach any destination now." } }
        @else { (table("Destinations", &[text("Destination"), text("Receiver"), text("Choice")], rows)) }
        h2 { "Another destination" }
        form method="post" action={ (ROOT) "/identity" } {
            (visitor.token())
            (target.show(&attempted.faults))
            label for="choice" { "Choice" }
            (select("choice", attempted.choice))
            button type="submit" { "Choose" }
        }
    })
}

fn row(visitor: &Visitor, preferences: &Preferences, target: &Target, name: &str) -> Vec<Markup> {
    let own = preferences.all().iter().find(|one| one.target == *target);
    let (address, deciding) =
        (target.to_string(), preferences.deciding(target.prefix.addr(), target.port.unwrap_or(0)));
    vec![
        html! { (address) },
        html! { (name) },
        html! {
            form.pick method="post" action={ (ROOT) "/identity" } {
                (visitor.token())
                input type="hidden" name="target" value=(address);
                label.unseen for={ "choice-" (address) } { "Choice for " (address) }
                (select(&format!("choice-{address}"), own.or(deciding).map(|one| one.choice)))
                button type="submit" { "Choose" span.unseen { " for " (address) } }
                @if own.is_some() {
                    button type="submit" name="forget" value="yes" { "Forget" span.unseen { " the choice for " (address) } }
                }
            }
        },
    ]
}

fn select(id: &str, chosen: Option<Choice>) -> Markup {
    let chosen = chosen.unwrap_or_default();
    html! {
        select id=(id) name="choice" {
            @for choice in Choice::ALL { option value=(choice.name()) selected[choice == chosen] { (choice.name()) } }
        }
    }
}

async fn choose(
    Part(choices): Part<Choices>,
    Part(policy): Part<PolicyInForce>,
    Part(preferences): Part<PreferenceTable>,
    visitor: Visitor,
    Form(fields): Form,
) -> Result<Response, Problem> {
    let text = fields.text("target")?.trim();
    let target = match text.parse::<Target>() {
        Ok(target) => target,
        Err(error) => {
            let choice = fields.filled("choice").and_then(|choice| choice.parse().ok());
            let faults = vec![Fault::at("target", &error.to_string())];
            let attempted = Attempted { target: Some(text), choice, faults };
            let page = overview(&policy, &preferences, &visitor, None, &attempted).await;
            return Ok((StatusCode::BAD_REQUEST, page).into_response());
        }
    };
    let choice = match fields.filled("forget") {
        Some(_) => None,
        None => Some(fields.text("choice")?.parse().map_err(|()| Problem::WrongForm)?),
    };
    let (person, by) = (visitor.person().to_owned(), visitor.operator());
    // The change runs in a task of its own, so that grants which the choice no longer allows end even if the browser
    // disconnects.
    let prefer = async move { choices.choose(&person, target, choice, by).await };
    tokio::spawn(prefer).await.map_err(anyhow::Error::from)??;
    Ok(page::done("/identity", "chosen").into_response())
}
