//! Revocation by an administrator. A page shows the grants and sessions that would end, and asks for confirmation. The
//! action then ends them.

use super::flows;
use super::grants::table;
use crate::console::ROOT;
use crate::console::ending::end;
use crate::console::format::{count, sentence};
use crate::console::page::{Page, done, encoded};
use crate::console::visitor::{Administrator, Fields, Form};
use crate::http::extractors::Part;
use crate::http::problems::Problem;
use crate::push::reports::Reports;
use crate::storage::{Database, GrantEntry, Storage, TokenHash, Which};
use crate::sync::Synchroniser;
use crate::{Directory, now};
use axum::extract::Query;
use axum::response::Redirect;
use maud::{Markup, html};
use serde::Deserialize;
use wire::NoHandle;

/// The target of the revocation. Exactly one of `grant`, `session` and `person` is set. Together with `person`,
/// `device` can be set as well.
#[derive(Deserialize)]
pub struct Parameters {
    grant: Option<String>,
    session: Option<String>,
    person: Option<String>,
    device: Option<String>,
}

impl Parameters {
    fn of(fields: &Fields) -> Self {
        let field = |name| fields.filled(name).map(str::to_owned);
        Self { grant: field("grant"), session: field("session"), person: field("person"), device: field("device") }
    }

    fn which(self) -> Result<Which, Problem> {
        let wrong =
            || Problem::Malformed("name a grant, a session, a person, or a device of a person to revoke".into());
        match (self.grant, self.session, self.person, self.device) {
            (Some(grant), None, None, None) => grant.parse().map(Which::Grant).map_err(|NoHandle| wrong()),
            (None, Some(session), None, None) => {
                let mut token = TokenHash::default();
                hex::decode_to_slice(session, &mut token).map_err(|_| wrong())?;
                Ok(Which::Session(token))
            }
            (None, None, Some(person), None) => Ok(Which::Person(person)),
            (None, None, Some(person), Some(device)) => Ok(Which::Device(person, device)),
            _ => Err(wrong()),
        }
    }
}

/// The target of a revocation, as it was found in the database.
struct Found {
    /// The person to whom the target belongs.
    person: String,
    /// The target in words, such as `the grant … of alice for git`.
    what: String,
    /// The consequences of the revocation, in sentences for the administrator.
    means: &'static str,
    /// The hidden fields that name the target in the form.
    fields: Vec<(&'static str, String)>,
}

/// Finds the target in the database; returns `None` if it does not exist.
fn find(database: &Database, which: &Which, now: u64) -> anyhow::Result<Option<Found>> {
    Ok(match which {
        Which::Grant(handle) | Which::OwnGrant(_, handle) => {
            let Some(grant) = database.grant(*handle)? else { return Ok(None) };
            let what = format!("the grant {} of {} for {}", grant.handle, grant.person, grant.receiver);
            let means = "The flows that it admitted are cut. An agent that is logged in may request another grant at \
                         once: to keep a person out, change the policy or revoke the person.";
            Some(Found { person: grant.person, what, means, fields: vec![("grant", grant.handle.to_string())] })
        }
        Which::Session(token) => {
            let Some(session) = database.session_of_token(token, now)? else { return Ok(None) };
            let what = format!("the session of {} on {}", session.person, session.device);
            let means = "Its grants end with it, and their flows are cut. The person can log in again.";
            Some(Found { person: session.person, what, means, fields: vec![("session", hex::encode(token))] })
        }
        Which::Person(person) => {
            if !database.knows(person)? {
                return Ok(None);
            }
            let what = format!("every session and grant of {person}");
            let means = "Flows are cut. The person can log in again, unless the account is removed or the identity \
                         provider refuses.";
            Some(Found { person: person.clone(), what, means, fields: vec![("person", person.clone())] })
        }
        Which::Device(person, device) => {
            let devices = database.devices(Some(person))?;
            if !devices.iter().any(|known| known.device == *device) {
                return Ok(None);
            }
            let what = format!("every session and grant of {person}'s device {device}");
            let means = "Flows are cut. Anyone with the device and the password can log in again: if the device is \
                         lost, change the password, too.";
            let fields = vec![("person", person.clone()), ("device", device.clone())];
            Some(Found { person: person.clone(), what, means, fields })
        }
    })
}

/// Returns the live grants that would end. It reads all live grants, which takes long. Other writes of the database
/// wait for the action, so the action must not call this function.
fn ending(database: &Database, which: &Which, now: u64) -> anyhow::Result<Vec<GrantEntry>> {
    let mut grants = database.grants(now, false)?;
    match which {
        Which::Grant(handle) | Which::OwnGrant(_, handle) => {
            let first = database.first_handle(*handle)?;
            grants.retain(|live| live.handle == first);
        }
        Which::Session(token) => {
            let held = database.handles_of_session(token, now)?;
            grants.retain(|live| held.contains(&live.handle));
        }
        Which::Person(person) => grants.retain(|live| live.person == *person),
        Which::Device(person, device) => grants.retain(|live| live.person == *person && live.device == *device),
    }
    Ok(grants)
}

/// Shows the grants and sessions that would end, and asks for confirmation.
pub async fn ask(
    Part(directory): Part<Directory>,
    Part(reports): Part<Reports>,
    Administrator(visitor): Administrator,
    Query(parameters): Query<Parameters>,
) -> Result<Markup, Problem> {
    let which = parameters.which()?;
    let look = move |database: &mut Database| {
        let now = now();
        let Some(found) = find(database, &which, now)? else { return Ok(None) };
        Ok(Some((found, ending(database, &which, now)?)))
    };
    let (found, grants) =
        super::read(&directory, look).await?.ok_or(Problem::NotFound("grant, session, person or device"))?;
    let mut live = flows::Live::read(&reports, &directory, None).await?;
    live.keep(|handle| grants.iter().any(|grant| grant.handle == handle));
    Ok(Page::new("Revoke").of(Some(&visitor)).at("/admin/people").show(&html! {
        p { "This ends " strong { (found.what) } ". " (sentence(&count(grants.len(), "live grant"))) " would end. " (found.means) }
        form method="post" action={ (ROOT) "/admin/revoke" } {
            (visitor.token())
            @for (name, value) in &found.fields { input type="hidden" name=(name) value=(value); }
            p.acts {
                button type="submit" { "Revoke" span.unseen { " " (found.what) } }
                a href={ (ROOT) "/admin/people/" (encoded(&found.person)) } { "Cancel" }
            }
        }
        @if !live.flows.is_empty() { h2 { "Flows that would be cut" } (live.table()) }
        @if !grants.is_empty() { h2 { "Grants that would end" } (table(&grants, false)) }
    }))
}

/// Carries out the revocation, and redirects to the page of the person whom it affects.
pub async fn act(
    Part(storage): Part<Storage>,
    Part(sync): Part<Synchroniser>,
    Administrator(visitor): Administrator,
    Form(fields): Form,
) -> Result<Redirect, Problem> {
    let which = Parameters::of(&fields).which()?;
    let by = visitor.operator();
    let revoke = move |database: &mut Database| {
        let now = now();
        let Some(found) = find(database, &which, now)? else { return Ok(None) };
        database.revoke(&which, &by, now)?;
        Ok(Some(found.person))
    };
    let person = end(&storage, &sync, visitor.person(), revoke)
        .await?
        .ok_or(Problem::NotFound("grant, session, person or device"))?;
    Ok(done(&format!("/admin/people/{}", encoded(&person)), "revoked"))
}
