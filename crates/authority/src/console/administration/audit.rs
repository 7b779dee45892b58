//! The audit trail: what happened, looked for by person, act and time; handed out whole; and whether it is whole.

use crate::console::ROOT;
use crate::console::page::{Page, encoded, table, time};
use crate::console::visitor::{Administrator, Form};
use crate::now;
use crate::problem::Problem;
use crate::state::Authority;
use crate::storage::{AuditEntry, AuditQuery, Database, Head, Verdict};
use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use engine::policy::instant;
use maud::{Markup, html};
use serde::Deserialize;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

/// Entries on a page.
const PAGE: usize = 100;
/// Entries that are handed out in one piece.
const PIECE: usize = 256;

/// What the address says.
#[derive(Clone, Default, Deserialize)]
pub struct Asked {
    person: Option<String>,
    event: Option<String>,
    /// The first day.
    from: Option<String>,
    /// The last day.
    to: Option<String>,
    before: Option<i64>,
}

impl Asked {
    fn query(&self) -> Result<AuditQuery, Problem> {
        let given =
            |text: &Option<String>| text.as_deref().map(str::trim).filter(|text| !text.is_empty()).map(str::to_owned);
        let midnight = |day: &Option<String>| {
            let Some(day) = given(day) else { return Ok(None) };
            let wrong = || Problem::Malformed(format!("`{day}` is no day such as 2026-03-02"));
            instant(&format!("{day}T00:00:00Z")).map(Some).ok_or_else(wrong)
        };
        Ok(AuditQuery {
            person: given(&self.person),
            event: given(&self.event),
            since: midnight(&self.from)?,
            until: midnight(&self.to)?.map(|day| day + 86_399),
            before: self.before,
        })
    }

    /// The same, as a part of an address.
    fn written(&self) -> String {
        let fields = [("person", &self.person), ("event", &self.event), ("from", &self.from), ("to", &self.to)];
        let written = fields.iter().filter_map(|(name, value)| Some(format!("{name}={}&", encoded(value.as_deref()?))));
        written.collect()
    }
}

/// Shows what is looked for.
pub async fn show(
    State(authority): State<Arc<Authority>>,
    Administrator(visitor): Administrator,
    Query(asked): Query<Asked>,
) -> Result<Markup, Problem> {
    let query = asked.query()?;
    let (mut entries, events, heads) = super::read(&authority, move |database| {
        let mut found = Vec::new();
        database.find_audit_entries(&query, |entry| {
            found.push(entry);
            Ok(found.len() <= PAGE)
        })?;
        Ok((found, database.audit_events()?, database.audit_heads()?))
    })
    .await?;
    let more = entries.len() > PAGE;
    entries.truncate(PAGE);
    let rows: Vec<_> = entries.iter().map(row).collect();
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    let chosen = text(&asked.event);
    Ok(Page::new("Audit").of(Some(&visitor)).at("/admin/audit").show(&html! {
        form.search method="get" action={ (ROOT) "/admin/audit" } {
            div {
                label for="person" { "Person" }
                input #person name="person" type="search" value=(text(&asked.person)) autocapitalize="none" spellcheck="false";
            }
            div {
                label for="event" { "Act" }
                select #event name="event" {
                    option value="" { "Any" }
                    @if !chosen.is_empty() && !events.contains(&chosen) { option selected { (chosen) } }
                    @for event in &events { option selected[*event == chosen] { (event) } }
                }
            }
            (day("from", "From this day on (UTC)", &asked.from))
            (day("to", "Up to this day (UTC)", &asked.to))
            button type="submit" { "Search" }
        }
        @if rows.is_empty() { p { "Nothing like that is in the trail." } } @else {
            (table("What happened, latest first", &["When", "Act", "Who", "From", "Receiver and rule", "By", "Particulars"], &rows))
        }
        p.acts {
            @if let (true, Some(last)) = (more, entries.last()) {
                a href={ (ROOT) "/admin/audit?" (asked.written()) "before=" (last.id) } { "Before these" }
            }
            a href={ (ROOT) "/admin/audit.jsonl?" (asked.written()) } { "All of it as JSON lines" }
        }
        (chain(&heads))
        form method="post" action={ (ROOT) "/admin/audit/verify" } {
            (visitor.token())
            button type="submit" { "Go through the whole trail" }
        }
    }))
}

/// A field for a day, in the one form that is read everywhere.
fn day(name: &str, label: &str, value: &Option<String>) -> Markup {
    html! {
        div {
            label for=(name) { (label) }
            input id=(name) name=(name) type="text" value=[value] placeholder="2026-03-02" pattern="[0-9]{4}-[0-9]{2}-[0-9]{2}"
                title="a day such as 2026-03-02";
        }
    }
}

fn row(entry: &AuditEntry) -> Markup {
    let AuditEntry { time: at, event, person, device, source, receiver, rule, detail, operator, .. } = entry;
    html! {
        th scope="row" { (time(*at)) }
        td { (event) }
        td {
            @if let Some(person) = person { a href={ (ROOT) "/admin/people/" (encoded(person)) } { (person) } }
            @if let Some(device) = device { " · " (device) }
        }
        td { @if let Some(source) = source { (source) } }
        td { @if let Some(receiver) = receiver { (receiver) } @if let Some(rule) = rule { " " span.quiet { "by " (rule) } } }
        td { @if let Some(operator) = operator { (operator) } }
        td { (detail) }
    }
}

/// Where the trails end.
fn chain(heads: &[Head]) -> Markup {
    html! {
        h2 { "The chain" }
        p { "Each entry's hash covers all before it. Whoever notes where the trails end, elsewhere, can tell later whether they "
            "were made anew: " code { "vouchsafe authority audit verify --head …" } }
        ul { @for head in heads { li { code { (head) } } } }
    }
}

/// Goes through every entry; slow where there are many, so it is a button and not a part of the page.
pub async fn verify(
    State(authority): State<Arc<Authority>>,
    Administrator(visitor): Administrator,
    Form(_): Form,
) -> Result<Markup, Problem> {
    let identity = authority.directory.identity()?;
    let (verdict, heads) = super::read(&authority, move |database: &mut Database| {
        Ok((database.verify_audit(&identity, &[])?, database.audit_heads()?))
    })
    .await?;
    Ok(Page::new("The audit trail").of(Some(&visitor)).at("/admin/audit").show(&html! {
        @match &verdict {
            Verdict::Whole(entries) => p.done role="status" { "Whole: " (entries) " entries." },
            Verdict::Broken(what) => p.wrong role="alert" { "Broken: " (what) },
        }
        (chain(&heads))
        p { a href={ (ROOT) "/admin/audit" } { "Back to the trail" } }
    }))
}

/// Hands out what is looked for, a JSON object a line, latest first. It is read as it is sent: no more of it is in memory.
pub async fn export(
    State(authority): State<Arc<Authority>>,
    _: Administrator,
    Query(asked): Query<Asked>,
) -> Result<Response, Problem> {
    let query = asked.query()?;
    let (sender, pieces) = mpsc::channel::<std::io::Result<Vec<u8>>>(4);
    let path = authority.directory.database();
    tokio::task::spawn_blocking(move || {
        let mut piece = Vec::new();
        let mut count = 0;
        let read = Database::open(&path).and_then(|database| {
            database.find_audit_entries(&query, |entry| {
                serde_json::to_writer(&mut piece, &entry)?;
                piece.push(b'\n');
                count += 1;
                // Whoever is gone wants no more.
                Ok(count % PIECE != 0 || sender.blocking_send(Ok(std::mem::take(&mut piece))).is_ok())
            })
        });
        let last = match read {
            Ok(()) => Ok(piece),
            Err(error) => {
                tracing::error!("the audit trail could not be handed out whole: {error:#}");
                Err(std::io::Error::other("the audit trail ends here"))
            }
        };
        let _ = sender.blocking_send(last);
    });
    let name = format!("attachment; filename=\"audit-{}.jsonl\"", now());
    let headers = [(CONTENT_TYPE, "application/jsonl".to_owned()), (CONTENT_DISPOSITION, name)];
    Ok((headers, Body::from_stream(ReceiverStream::new(pieces))).into_response())
}
