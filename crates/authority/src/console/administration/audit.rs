//! The page of the audit trail: a search by person, event and time; a download; and the verification of the hash
//! chains.

use super::{LOOKS, Turn};
use crate::console::ROOT;
use crate::console::form::{Fault, Input, summary};
use crate::console::format::count_of;
use crate::console::page::{Page, encoded, exact_time};
use crate::console::table::{long, table, text};
use crate::console::visitor::{Administrator, Form};
use crate::http::downloads::Downloads;
use crate::http::extractors::Part;
use crate::http::problems::Problem;
use crate::storage::{AuditEntry, AuditQuery, Database, Head, Verdict};
use crate::{Directory, now};
use axum::body::Body;
use axum::extract::Query;
use axum::http::StatusCode;
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use engine::policy::instant;
use futures_util::stream::{self, Stream};
use maud::{Markup, html};
use serde::Deserialize;
use std::io;
use std::num::NonZeroU32;
use std::time::Duration;
use tokio::sync::mpsc;

/// Number of entries on a page.
const PAGE: usize = 100;
/// Number of entries per piece of a download.
const PIECE: usize = 256;
/// Maximum number of entries that one search examines. A search then takes a fraction of a second, however rare matches
/// are.
const LOOK: NonZeroU32 = NonZeroU32::new(500_000).unwrap();
/// Maximum time that the client may take to receive one piece of a download.
const SEND_TIME: Duration = Duration::from_secs(30);

/// Query parameters of the search and the download.
#[derive(Clone, Default, Deserialize)]
pub struct Parameters {
    person: Option<String>,
    event: Option<String>,
    /// The first day, as `2026-03-02`.
    from: Option<String>,
    /// The last day, as `2026-03-02`.
    to: Option<String>,
    before: Option<i64>,
}

impl Parameters {
    /// Returns the query for the database, or the errors of the fields.
    fn query(&self) -> Result<AuditQuery, Vec<Fault>> {
        let given =
            |text: &Option<String>| text.as_deref().map(str::trim).filter(|text| !text.is_empty()).map(str::to_owned);
        let mut faults = Vec::new();
        let mut midnight = |field: &str, day: &Option<String>| {
            let midnight = instant(&format!("{}T00:00:00Z", given(day)?));
            if midnight.is_none() {
                faults.push(Fault::at(field, "write the day as year, month and day, such as 2026-03-02"));
            }
            midnight
        };
        let (since, until) = (midnight("from", &self.from), midnight("to", &self.to));
        if !faults.is_empty() {
            return Err(faults);
        }
        Ok(AuditQuery {
            person: given(&self.person),
            event: given(&self.event),
            since,
            until: until.map(|day| day + 86_399),
            before: self.before,
            most: Some(LOOK),
        })
    }

    /// Returns the filters as the beginning of a query string.
    fn written(&self) -> String {
        let fields = [("person", &self.person), ("event", &self.event), ("from", &self.from), ("to", &self.to)];
        let written = fields.iter().filter_map(|(name, value)| Some(format!("{name}={}&", encoded(value.as_deref()?))));
        written.collect()
    }
}

/// Shows the search form, the latest entries that match the filters, and the heads of the trails.
pub async fn show(
    Part(directory): Part<Directory>,
    Administrator(visitor): Administrator,
    Query(parameters): Query<Parameters>,
) -> Result<Response, Problem> {
    let query = match parameters.query() {
        Ok(query) => query,
        Err(faults) => {
            let events = super::read(&directory, |database| database.audit_events()).await?;
            let page = Page::new("Audit").of(Some(&visitor)).at("/admin/audit").show(&html! {
                (summary(&faults))
                (search(&parameters, &events, &faults))
            });
            return Ok((StatusCode::BAD_REQUEST, page).into_response());
        }
    };
    let (mut entries, unseen, events, heads) = super::read(&directory, move |database| {
        let mut found = Vec::new();
        let unseen = database.find_audit_entries(&query, |entry| {
            found.push(entry);
            Ok(found.len() <= PAGE)
        })?;
        Ok((found, unseen, database.audit_events()?, database.audit_heads()?))
    })
    .await?;
    let is_full = entries.len() > PAGE;
    entries.truncate(PAGE);
    let before = if is_full { entries.last().map(|last| last.id) } else { unseen };
    let columns = [
        text("When"),
        text("Event"),
        long("Who"),
        long("From"),
        long("Receiver and rule"),
        long("By"),
        long("Details"),
    ];
    let page = Page::new("Audit").of(Some(&visitor)).at("/admin/audit").show(&html! {
        (search(&parameters, &events, &[]))
        @if !entries.is_empty() { (table("Entries, latest first", &columns, entries.iter().map(row))) }
        @match before {
            Some(before) if !is_full => p {
                "All matches from entry " (before) " on are shown. Older entries have not been searched yet."
            },
            None if entries.is_empty() => p { "No entry matches." },
            _ => {}
        }
        p.acts {
            @if let Some(before) = before {
                a href={ (ROOT) "/admin/audit?" (parameters.written()) "before=" (before) } {
                    @if is_full { "Older entries" } @else { "Search older entries" }
                }
            }
            a href={ (ROOT) "/admin/audit.jsonl?" (parameters.written()) } { "Download all matches as JSON lines" }
        }
        (chain(&heads))
        form method="post" action={ (ROOT) "/admin/audit/verify" } {
            (visitor.token())
            button type="submit" { "Verify the whole trail" }
        }
    });
    Ok(page.into_response())
}

/// Renders the search form.
fn search(parameters: &Parameters, events: &[String], faults: &[Fault]) -> Markup {
    let chosen = parameters.event.clone().unwrap_or_default();
    html! {
        form.search method="get" action={ (ROOT) "/admin/audit" } {
            div {
                label for="person" { "Person" }
                input #person name="person" type="search" value=[&parameters.person] autocapitalize="none" spellcheck="false";
            }
            div {
                label for="event" { "Event" }
                select #event name="event" {
                    option value="" { "Any" }
                    @if !chosen.is_empty() && !events.contains(&chosen) { option selected { (chosen) } }
                    @for event in events { option selected[*event == chosen] { (event) } }
                }
            }
            (day("from", "From this day on (UTC)", &parameters.from, faults))
            (day("to", "Up to this day (UTC)", &parameters.to, faults))
            button type="submit" { "Search" }
        }
    }
}

/// Renders a field for a day, in an unambiguous format.
fn day(name: &str, label: &str, value: &Option<String>, faults: &[Fault]) -> Markup {
    let day = Input {
        id: name,
        name,
        label,
        value: value.as_deref(),
        placeholder: Some("2026-03-02"),
        pattern: Some("[0-9]{4}-[0-9]{2}-[0-9]{2}"),
        ..Input::default()
    };
    html! { div { (day.show(faults)) } }
}

fn row(entry: &AuditEntry) -> Vec<Markup> {
    let AuditEntry { time: at, event, person, device, source, receiver, rule, detail, operator, .. } = entry;
    vec![
        exact_time(*at),
        html! { (event) },
        html! {
            @if let Some(person) = person { a href={ (ROOT) "/admin/people/" (encoded(person)) } { (person) } }
            @if let Some(device) = device { " · " (device) }
        },
        html! { @if let Some(source) = source { (source) } },
        html! { @if let Some(receiver) = receiver { (receiver) } @if let Some(rule) = rule { " " span.quiet { "by " (rule) } } },
        html! { @if let Some(operator) = operator { (operator) } },
        html! { (detail) },
    ]
}

/// Renders the heads of the trails.
fn chain(heads: &[Head]) -> Markup {
    html! {
        h2 { "The chain" }
        p { "Each entry's hash covers all earlier entries. Note the heads of the trails elsewhere to detect later whether the "
            "trails were rewritten: " code { "vouchsafe authority audit verify --head …" } }
        ul { @for head in heads { li { code { (head) } } } }
    }
}

/// Verifies all entries of the trails and shows the result. The verification has a page of its own, because it is slow
/// on a long trail.
pub async fn verify(
    Part(directory): Part<Directory>,
    Administrator(visitor): Administrator,
    Form(_): Form,
) -> Result<Markup, Problem> {
    let identity = directory.identity()?;
    let (verdict, heads) = super::read(&directory, move |database: &mut Database| {
        Ok((database.verify_audit(&identity, &[])?, database.audit_heads()?))
    })
    .await?;
    Ok(Page::new("The audit trail").of(Some(&visitor)).at("/admin/audit").show(&html! {
        @match &verdict {
            Verdict::Whole(entries) => p.done role="status" { "Complete and unchanged: " (count_of(*entries, "entry", "entries")) "." },
            Verdict::Broken(what) => p.wrong role="alert" { "Verification failed: " (what) },
        }
        (chain(&heads))
        p { a href={ (ROOT) "/admin/audit" } { "Back to the trail" } }
    }))
}

/// Streams the matching entries, one JSON object per line, latest first. Reads the entries while it sends them, so that
/// only a few entries are in memory at a time.
pub async fn export(
    Part(directory): Part<Directory>,
    Part(downloads): Part<Downloads>,
    _: Administrator,
    Query(parameters): Query<Parameters>,
) -> Result<Response, Problem> {
    let query = parameters
        .query()
        .map_err(|_| Problem::Malformed("write the day as year, month and day, such as 2026-03-02".into()))?;
    let permit = downloads.begin().ok_or(Problem::Busy("downloads of the audit trail"))?;
    let (sender, pieces) = mpsc::channel(1);
    tokio::spawn(async move {
        let handed_out = hand_out(&directory, query, &sender).await;
        // Release the permit before the stream ends, so that the client can start another download at once.
        drop(permit);
        match handed_out {
            Ok(true) => {
                send(&sender, None, SEND_TIME).await;
            }
            Ok(false) => tracing::info!("the client closed a download of the audit trail or was too slow"),
            Err(error) => tracing::error!("a download of the audit trail failed: {error:#}"),
        }
    });
    let name = format!("attachment; filename=\"audit-{}.jsonl\"", now());
    let headers = [(CONTENT_TYPE, "application/jsonl".to_owned()), (CONTENT_DISPOSITION, name)];
    Ok((headers, Body::from_stream(whole(pieces))).into_response())
}

/// Reads and sends the matching entries piece by piece. Reports whether the client received all of them. No read
/// transaction is open while the client receives a piece, because an open read transaction prevents SQLite from
/// truncating its write-ahead log.
async fn hand_out(
    directory: &Directory,
    mut query: AuditQuery,
    sender: &mpsc::Sender<Option<Vec<u8>>>,
) -> anyhow::Result<bool> {
    loop {
        let parameters = query.clone();
        let (piece, rest) =
            Turn::wait(&LOOKS).await?.read(directory, move |database| piece(database, &parameters)).await?;
        // An empty piece is sent too: if the client is gone, the search stops here.
        if !send(sender, Some(piece), SEND_TIME).await {
            return Ok(false);
        }
        if rest.is_none() {
            return Ok(true);
        }
        query.before = rest;
    }
}

/// Returns the next matching entries as lines of JSON and, if there may be more, the number of the entry before which
/// the search continues.
fn piece(database: &Database, query: &AuditQuery) -> anyhow::Result<(Vec<u8>, Option<i64>)> {
    let (mut piece, mut count) = (Vec::new(), 0);
    let rest = database.find_audit_entries(query, |entry| {
        serde_json::to_writer(&mut piece, &entry)?;
        piece.push(b'\n');
        count += 1;
        Ok(count < PIECE)
    })?;
    Ok((piece, rest))
}

/// Sends a piece. Reports whether the receiver took it within `time`.
async fn send<T>(sender: &mpsc::Sender<T>, piece: T, time: Duration) -> bool {
    tokio::time::timeout(time, sender.send(piece)).await.is_ok_and(|sent| sent.is_ok())
}

/// Returns the stream that the browser receives: the pieces up to the end marker `None`. If the channel closes before
/// the marker, the stream ends with an error, so that a truncated download is not mistaken for the whole trail.
fn whole(pieces: mpsc::Receiver<Option<Vec<u8>>>) -> impl Stream<Item = io::Result<Vec<u8>>> {
    stream::unfold(Some(pieces), async |pieces| {
        let mut pieces = pieces?;
        match pieces.recv().await {
            Some(Some(piece)) => Some((Ok(piece), Some(pieces))),
            Some(None) => None,
            None => Some((Err(io::Error::other("the download of the audit trail was interrupted")), None)),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::StreamExt;

    /// Returns what the browser receives: if the reader pauses, one piece and then an error; else the whole trail.
    async fn read(reader_pauses: bool) -> Vec<Option<Vec<u8>>> {
        let (sender, pieces) = mpsc::channel(if reader_pauses { 1 } else { 2 });
        assert!(send(&sender, Some(b"a".to_vec()), SEND_TIME).await);
        assert_eq!(send(&sender, None, Duration::ZERO).await, !reader_pauses);
        drop(sender);
        whole(pieces).map(Result::ok).collect().await
    }

    #[tokio::test]
    async fn a_trail_that_is_cut_short_does_not_look_whole() {
        assert_eq!(read(false).await, [Some(b"a".to_vec())]);
        assert_eq!(read(true).await, [Some(b"a".to_vec()), None]);
    }
}
