//! People, services and their devices: who there is, who is logged in, and where each may go.

use super::{Said, flows, grants};
use crate::console::ROOT;
use crate::console::page::{Page, encoded, table, time};
use crate::console::visitor::Administrator;
use crate::console::words::{count_of, number, sentence};
use crate::now;
use crate::problem::Problem;
use crate::state::Authority;
use crate::storage::{Database, DeviceEntry, OwnSession};
use axum::extract::{Path, Query, State};
use engine::api::Receiver;
use engine::policy::Subject;
use maud::{Markup, html};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::Arc;

/// People on a page.
const MOST_SHOWN: usize = 100;

/// Somebody who may log in.
struct Person {
    name: String,
    /// Who vouches for them.
    kind: String,
    groups: Vec<String>,
    /// Whether the account has a second factor; none where that is not the authority's to know.
    totp: Option<bool>,
    created: u64,
    devices: Vec<DeviceEntry>,
    sessions: usize,
}

impl Person {
    /// Everybody, by name.
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

    /// Whether a word is a part of the name, of a group's, a device's or a tag's.
    fn is_meant(&self, word: &str) -> bool {
        let has = |text: &String| text.to_lowercase().contains(word);
        has(&self.name)
            || self.groups.iter().any(has)
            || self.devices.iter().any(|device| has(&device.device) || device.tags.iter().any(has))
    }

    fn row(&self) -> Markup {
        let devices: Vec<_> = self.devices.iter().map(|device| device.device.as_str()).collect();
        html! {
            th scope="row" { a href={ (ROOT) "/admin/people/" (encoded(&self.name)) } { (self.name) } }
            td { (self.kind) }
            td { (self.groups.join(", ")) }
            td { (second_factor(self.totp)) }
            td { (devices.join(", ")) }
            td.number { (number(self.sessions as u64)) }
        }
    }
}

fn second_factor(totp: Option<bool>) -> &'static str {
    match totp {
        Some(true) => "yes",
        Some(false) => "no",
        None => "not kept here",
    }
}

/// What the address of the list says.
#[derive(Deserialize)]
pub struct Asked {
    q: Option<String>,
    after: Option<String>,
    #[serde(flatten)]
    said: Said,
}

/// Shows everybody, or those that a word is about.
pub async fn list(
    State(authority): State<Arc<Authority>>,
    Administrator(visitor): Administrator,
    Query(asked): Query<Asked>,
) -> Result<Markup, Problem> {
    let word = asked.q.as_deref().unwrap_or_default().trim().to_lowercase();
    let mut found = super::read(&authority, |database| Person::all(database)).await?;
    found.retain(|person| person.is_meant(&word));
    let count = found.len();
    if let Some(after) = &asked.after {
        found.retain(|person| person.name > *after);
    }
    let rows: Vec<_> = found.iter().take(MOST_SHOWN).map(Person::row).collect();
    let next = found.get(MOST_SHOWN).and_then(|_| found.get(MOST_SHOWN - 1));
    let said = asked.said.done.as_deref();
    Ok(Page::new("People").of(Some(&visitor)).at("/admin/people").done(said).show(&html! {
        form.search method="get" action={ (ROOT) "/admin/people" } {
            div {
                label for="q" { "A name, a group, a device or a tag" }
                input #q name="q" type="search" value=(word) autocapitalize="none" spellcheck="false";
            }
            button type="submit" { "Search" }
        }
        p { (sentence(&count_of(count, "person or service", "people and services"))) @if !word.is_empty() { " found" } "." }
        @if !rows.is_empty() {
            (table("People and services", &["Name", "Kept by", "Groups of the login", "Second factor", "Devices", "Sessions"], &rows))
        }
        @if let Some(last) = next {
            p { a href={ (ROOT) "/admin/people?q=" (encoded(&word)) "&after=" (encoded(&last.name)) } { "Next page" } }
        }
    }))
}

/// Shows one.
pub async fn one(
    State(authority): State<Arc<Authority>>,
    Administrator(visitor): Administrator,
    Path(name): Path<String>,
    Query(said): Query<Said>,
) -> Result<Markup, Problem> {
    let wanted = name.clone();
    let found = super::read(&authority, move |database| {
        let Some(person) = Person::all(database)?.into_iter().find(|person| person.name == wanted) else {
            return Ok(None);
        };
        let now = now();
        let mut grants = database.grants(now, false)?;
        grants.retain(|grant| grant.person == wanted);
        Ok(Some((person, database.sessions_of(&wanted, now)?, grants)))
    });
    let (person, sessions, live_grants) = found.await?.ok_or(Problem::NotFound("person"))?;
    let mut live = flows::Live::read(&authority, None).await?;
    live.of(&name);
    let subject = Subject { groups: &person.groups, ..Subject::person(&name) };
    let reach = authority.with_policy(|policy| {
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
        }
        p.acts {
            a href={ (ROOT) "/admin/revoke?person=" (encoded(&name)) } { "Revoke all sessions and grants…" }
            a href={ (ROOT) "/admin/audit?person=" (encoded(&name)) } { "What happened" }
        }
        h2 { "Sessions" }
        @if sessions.is_empty() { p { "Not logged in." } } @else { (sessions_table(&sessions)) }
        h2 { "Devices" }
        @if person.devices.is_empty() { p { "No device has logged in." } } @else { (devices_table(&person.devices)) }
        h2 { "Live flows" }
        @if live.flows.is_empty() { p { "None that verifiers told of." } } @else { (live.table()) }
        h2 { "Live grants" }
        @if live_grants.is_empty() { p { "None." } } @else { (grants::table(&live_grants, true)) }
        h2 { "May go to" }
        p.quiet { "By the policy in force, now, without what tags of devices and addresses add or take away." }
        @if reach.is_empty() { p { "Nowhere." } } @else { (reach_table(&reach)) }
    }))
}

fn sessions_table(sessions: &[OwnSession]) -> Markup {
    let rows: Vec<_> = sessions
        .iter()
        .map(|session| {
            html! {
                th scope="row" { (session.device) @if session.console { " " span.quiet { "at the console" } } }
                td { (session.source) }
                td { (time(session.created)) }
                td { (time(session.expires)) }
                td { a href={ (ROOT) "/admin/revoke?session=" (hex::encode(session.token)) } {
                    "End…" span.unseen { " the session on " (session.device) " from " (session.source) }
                } }
            }
        })
        .collect();
    table("Sessions", &["Device", "From", "Since", "Ends", "Act"], &rows)
}

fn devices_table(devices: &[DeviceEntry]) -> Markup {
    let rows: Vec<_> = devices
        .iter()
        .map(|device| {
            html! {
                th scope="row" { (device.device) }
                td { (device.tags.join(", ")) }
                td { (time(device.last_login)) }
                td {
                    a href={ (ROOT) "/admin/revoke?person=" (encoded(&device.person)) "&device=" (encoded(&device.device)) } {
                        "Revoke…" span.unseen { " the device " (device.device) }
                    }
                }
            }
        })
        .collect();
    table("Devices", &["Device", "Tags", "Last login", "Act"], &rows)
}

fn reach_table(reach: &[Receiver]) -> Markup {
    let rows: Vec<_> = reach
        .iter()
        .map(|receiver| {
            html! {
                th scope="row" { (receiver.name) }
                td { (receiver.prefix) }
                td { (super::services(&receiver.services)) }
            }
        })
        .collect();
    table("Receivers", &["Receiver", "Address", "Services"], &rows)
}
