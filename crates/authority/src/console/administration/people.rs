//! The pages of people and service accounts: their devices, their sessions, and the receivers that each of them is
//! allowed to reach.

use super::{Said, flows, grants};
use crate::console::ROOT;
use crate::console::format::{count_of, number, sentence};
use crate::console::page::{Page, encoded, time};
use crate::console::table::{actions, figures, table, text};
use crate::console::visitor::Administrator;
use crate::http::extractors::Part;
use crate::http::problems::Problem;
use crate::policy::PolicyInForce;
use crate::push::reports::Reports;
use crate::storage::{Database, DeviceEntry, OwnSession};
use crate::{Directory, Settings, now};
use axum::extract::{Path, Query};
use engine::model::Receiver;
use engine::policy::Subject;
use maud::{Markup, html};
use serde::Deserialize;
use std::collections::BTreeMap;

/// Maximum number of people on a page.
const MOST_SHOWN: usize = 100;

/// A person or service that may log in.
struct Person {
    name: String,
    /// The kind of account, in words: an account of this authority, a service account, or the issuer of the identity
    /// provider.
    kind: String,
    groups: Vec<String>,
    /// Whether the account has a second factor. `None` for services and for people of the identity provider.
    totp: Option<bool>,
    created: u64,
    devices: Vec<DeviceEntry>,
    sessions: usize,
}

impl Person {
    /// Returns all people and services, sorted by name.
    fn all(database: &Database) -> anyhow::Result<Vec<Self>> {
        let mut devices: BTreeMap<String, Vec<DeviceEntry>> = BTreeMap::new();
        for device in database.devices(None)? {
            devices.entry(device.person.clone()).or_default().push(device);
        }
        let mut sessions: BTreeMap<String, usize> = BTreeMap::new();
        for session in database.session_entries(now())? {
            *sessions.entry(session.person).or_default() += 1;
        }
        let accounts = database.accounts()?.into_iter().map(|account| {
            let totp = account.issuer.is_none().then_some(account.totp);
            let kind = account.issuer.unwrap_or_else(|| "account here".into());
            (account.person, kind, account.groups, totp, account.created)
        });
        let services = database.services()?.into_iter();
        let services = services.map(|one| (one.service, "service account".to_owned(), one.groups, None, one.created));
        let mut all: Vec<_> = accounts
            .chain(services)
            .map(|(name, kind, groups, totp, created)| Self {
                devices: devices.remove(&name).unwrap_or_default(),
                sessions: sessions.get(&name).copied().unwrap_or(0),
                name,
                kind,
                groups,
                totp,
                created,
            })
            .collect();
        all.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(all)
    }

    /// Reports whether `word`, in lower case, is a part of the person's name, or of the name of one of their groups,
    /// devices or tags.
    fn is_meant(&self, word: &str) -> bool {
        let has = |text: &String| text.to_lowercase().contains(word);
        has(&self.name)
            || self.groups.iter().any(has)
            || self.devices.iter().any(|device| has(&device.device) || device.tags.iter().any(has))
    }

    fn row(&self) -> Vec<Markup> {
        let devices: Vec<_> = self.devices.iter().map(|device| device.device.as_str()).collect();
        vec![
            html! { a href={ (ROOT) "/admin/people/" (encoded(&self.name)) } { (self.name) } },
            html! { (self.kind) },
            html! { (self.groups.join(", ")) },
            html! { (second_factor(self.totp)) },
            html! { (devices.join(", ")) },
            html! { (number(self.sessions as u64)) },
        ]
    }
}

fn second_factor(totp: Option<bool>) -> &'static str {
    match totp {
        Some(true) => "yes",
        Some(false) => "no",
        None => "not managed here",
    }
}

/// Query parameters of the list.
#[derive(Deserialize)]
pub struct Parameters {
    q: Option<String>,
    after: Option<String>,
    #[serde(flatten)]
    said: Said,
}

/// Lists all people, or those that match a search word.
pub async fn list(
    Part(directory): Part<Directory>,
    Administrator(visitor): Administrator,
    Query(parameters): Query<Parameters>,
) -> Result<Markup, Problem> {
    let word = parameters.q.as_deref().unwrap_or_default().trim().to_lowercase();
    let mut found = super::read(&directory, |database| Person::all(database)).await?;
    found.retain(|person| person.is_meant(&word));
    let count = found.len();
    if let Some(after) = &parameters.after {
        found.retain(|person| person.name > *after);
    }
    let columns = [
        text("Name"),
        text("Kept by"),
        text("Groups of the login"),
        text("Second factor"),
        text("Devices"),
        figures("Sessions"),
    ];
    let next = found.get(MOST_SHOWN).and_then(|_| found.get(MOST_SHOWN - 1));
    let said = parameters.said.done.as_deref();
    Ok(Page::new("People").of(Some(&visitor)).at("/admin/people").done(said).show(&html! {
        form.search method="get" action={ (ROOT) "/admin/people" } {
            div {
                label for="q" { "A name, a group, a device or a tag" }
                input #q name="q" type="search" value=(word) autocapitalize="none" spellcheck="false";
            }
            button type="submit" { "Search" }
        }
        p { (sentence(&count_of(count, "person or service", "people and services"))) @if !word.is_empty() { " found" } "." }
        @if !found.is_empty() {
            (table("People and services", &columns, found.iter().take(MOST_SHOWN).map(Person::row)))
        }
        @if let Some(last) = next {
            p { a href={ (ROOT) "/admin/people?q=" (encoded(&word)) "&after=" (encoded(&last.name)) } { "Next page" } }
        }
    }))
}

/// Shows the page of one person or service account.
pub async fn one(
    Part(directory): Part<Directory>,
    Part(reports): Part<Reports>,
    Part(policy): Part<PolicyInForce>,
    Part(settings): Part<Settings>,
    Administrator(visitor): Administrator,
    Path(name): Path<String>,
    Query(said): Query<Said>,
) -> Result<Markup, Problem> {
    let (wanted, terms) = (name.clone(), settings.scores);
    let found = super::read(&directory, move |database| {
        let Some(person) = Person::all(database)?.into_iter().find(|person| person.name == wanted) else {
            return Ok(None);
        };
        let now = now();
        let mut grants = database.grants(now, false)?;
        grants.retain(|grant| grant.person == wanted);
        let scores = terms.map(|terms| database.scores(terms, now)).transpose()?;
        let score = scores.map(|scores| scores.into_iter().find(|score| score.person == wanted));
        Ok(Some((person, database.sessions_of(&wanted, now)?, grants, score)))
    });
    let (person, sessions, live_grants, score) = found.await?.ok_or(Problem::NotFound("person"))?;
    let mut live = flows::Live::read(&reports, &directory, None).await?;
    live.of(&name);
    let subject = Subject { groups: &person.groups, ..Subject::person(&name) };
    let reach = policy.with(|policy| {
        let receivers = policy.destinations(&subject, now());
        receivers.iter().flat_map(|receiver| receiver.entries()).collect::<Vec<_>>()
    });
    let reach = reach.await;
    let said = said.done.as_deref();
    Ok(Page::new(&name).of(Some(&visitor)).at("/admin/people").done(said).show(&html! {
        dl {
            dt { "Kept by" } dd { (person.kind) }
            dt { "Groups of the login" } dd { @if person.groups.is_empty() { "none" } @else { (person.groups.join(", ")) } }
            dt { "Second factor" } dd { (second_factor(person.totp)) }
            dt { "Known since" } dd { (time(person.created)) }
            @if let Some(score) = &score {
                dt { "Score" } dd {
                    (number(score.as_ref().map_or(100, |score| score.score.into())))
                    @if score.as_ref().is_some_and(|score| score.low) { " (low)" }
                }
            }
        }
        p.acts {
            a href={ (ROOT) "/admin/revoke?person=" (encoded(&name)) } { "Revoke all sessions and grants…" }
            a href={ (ROOT) "/admin/audit?person=" (encoded(&name)) } { "Audit entries" }
        }
        h2 { "Sessions" }
        @if sessions.is_empty() { p { "Not logged in." } } @else { (sessions_table(&sessions)) }
        h2 { "Devices" }
        @if person.devices.is_empty() { p { "No device has logged in." } } @else { (devices_table(&person.devices)) }
        h2 { "Live flows" }
        @if live.flows.is_empty() { p { "The verifiers report no live flow of this person." } } @else { (live.table()) }
        h2 { "Live grants" }
        @if live_grants.is_empty() { p { "There are no live grants." } } @else { (grants::table(&live_grants, true)) }
        h2 { "May reach" }
        p.quiet { "According to the policy in force now. Rules about tags of devices and about addresses are not \
                   considered." }
        @if reach.is_empty() { p { "The policy lets this person reach no receiver." } } @else { (reach_table(&reach)) }
    }))
}

fn sessions_table(sessions: &[OwnSession]) -> Markup {
    let row = |session: &OwnSession| {
        vec![
            html! { (session.device) @if session.console { " " span.quiet { "at the console" } } },
            html! { (session.source) },
            time(session.created),
            time(session.expires),
            html! { a href={ (ROOT) "/admin/revoke?session=" (hex::encode(session.token)) } {
                "End…" span.unseen { " the session on " (session.device) " from " (session.source) }
            } },
        ]
    };
    let columns = [text("Device"), text("From"), text("Since"), text("Ends"), actions()];
    table("Sessions", &columns, sessions.iter().map(row))
}

fn devices_table(devices: &[DeviceEntry]) -> Markup {
    let row = |device: &DeviceEntry| {
        let (person, name) = (encoded(&device.person), encoded(&device.device));
        vec![
            html! { (device.device) },
            html! { (device.tags.join(", ")) },
            time(device.last_login),
            html! {
                a href={ (ROOT) "/admin/revoke?person=" (person) "&device=" (name) } {
                    "Revoke…" span.unseen { " the device " (device.device) }
                }
            },
        ]
    };
    table("Devices", &[text("Device"), text("Tags"), text("Last login"), actions()], devices.iter().map(row))
}

fn reach_table(reach: &[Receiver]) -> Markup {
    let row = |receiver: &Receiver| {
        vec![html! { (receiver.name) }, html! { (receiver.prefix) }, html! { (super::services(&receiver.services)) }]
    };
    table("Receivers", &[text("Receiver"), text("Address"), text("Services")], reach.iter().map(row))
}
