//! Where a person's identity may go: a choice for each destination, which the authority goes by whatever the policy allows.

use super::ROOT;
use super::overview::Said;
use super::page::{self, Page, table};
use super::visitor::{Form, Visitor};
use crate::now;
use crate::problem::Problem;
use crate::state::Authority;
use axum::Router;
use axum::extract::{Query, State};
use axum::response::Redirect;
use axum::routing::get;
use engine::agent::Target;
use engine::policy::Policy;
use engine::preference::{Choice, Preferences};
use maud::{Markup, html};
use std::sync::Arc;

type Shared = State<Arc<Authority>>;

/// The page.
pub fn routes() -> Router<Arc<Authority>> {
    Router::new().route("/identity", get(show).post(choose))
}

async fn show(State(authority): Shared, visitor: Visitor, Query(said): Query<Said>) -> Markup {
    let preferences = authority.preferences_of(visitor.person());
    let subject = visitor.session.subject(visitor.source);
    let reachable = |policy: &Policy| -> Vec<(Target, String)> {
        let receivers = policy.destinations(&subject, now()).into_iter();
        let prefixes = receivers.flat_map(|receiver| receiver.prefixes.iter().map(|prefix| (*prefix, &receiver.name)));
        prefixes.map(|(prefix, name)| (Target { prefix, port: None }, name.clone())).collect()
    };
    let mut targets = authority.with_policy(reachable).await;
    for own in preferences.all() {
        if !targets.iter().any(|(target, _)| *target == own.target) {
            targets.push((own.target, String::new()));
        }
    }
    let rows: Vec<_> = targets.iter().map(|(target, name)| row(&visitor, &preferences, target, name)).collect();
    Page::new("Where your identity may go").of(Some(&visitor)).at("/identity").done(said.done.as_deref()).show(&html! {
        p { "What the policy lets you reach, your agents open by showing who you are. Here you say where they may." }
        dl {
            dt { "allow" } dd { "Agents get grants for it without asking you. So it is unless you choose otherwise." }
            dt { "ask" } dd { "An agent gets a grant only where you said so on its machine, too: " code { "vouchsafe grants allow DESTINATION" } "." }
            dt { "never" } dd { "Nobody gets a grant for it in your name. Grants that are there end at once." }
        }
        @if rows.is_empty() { p { "The policy lets you reach nothing just now." } }
        @else { (table("Destinations", &["Destination", "Receiver", "Choice"], &rows)) }
        h2 { "Another destination" }
        form method="post" action={ (ROOT) "/identity" } {
            (visitor.token())
            label for="target" { "Address or network, with or without port" }
            input #target name="target" type="text" placeholder="192.0.2.1:22" autocomplete="off" spellcheck="false" required;
            label for="choice" { "Choice" }
            (select("choice", None))
            button type="submit" { "Choose" }
        }
    })
}

fn row(visitor: &Visitor, preferences: &Preferences, target: &Target, name: &str) -> Markup {
    let own = preferences.all().iter().find(|one| one.target == *target);
    let (text, deciding) = (target.to_string(), preferences.deciding(target.prefix.addr(), target.port.unwrap_or(0)));
    html! {
        th scope="row" { (text) }
        td { (name) }
        td {
            form.pick method="post" action={ (ROOT) "/identity" } {
                (visitor.token())
                input type="hidden" name="target" value=(text);
                label.unseen for={ "choice-" (text) } { "Choice for " (text) }
                (select(&format!("choice-{text}"), own.or(deciding).map(|one| one.choice)))
                button type="submit" { "Choose" span.unseen { " for " (text) } }
                @if own.is_some() {
                    button type="submit" name="forget" value="yes" { "Forget" span.unseen { " the choice for " (text) } }
                }
            }
        }
    }
}

fn select(id: &str, chosen: Option<Choice>) -> Markup {
    let chosen = chosen.unwrap_or_default();
    html! {
        select id=(id) name="choice" {
            @for choice in Choice::ALL { option value=(choice.name()) selected[choice == chosen] { (choice.name()) } }
        }
    }
}

async fn choose(State(authority): Shared, visitor: Visitor, Form(fields): Form) -> Result<Redirect, Problem> {
    let target = fields.text("target")?.trim().parse::<Target>().map_err(|no| Problem::Malformed(no.to_string()))?;
    let choice = match fields.filled("forget") {
        Some(_) => None,
        None => Some(fields.text("choice")?.parse().map_err(|()| Problem::WrongForm)?),
    };
    let (person, by) = (visitor.person().to_owned(), visitor.operator());
    // To its end, also where the browser goes away: what is withheld must not live on.
    let prefer = async move { authority.prefer(&person, target, choice, by).await };
    tokio::spawn(prefer).await.map_err(anyhow::Error::from)??;
    Ok(page::done("/identity", "chosen"))
}
