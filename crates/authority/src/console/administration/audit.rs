//! The audit trail: what happened, looked for by person, act and time; handed out whole; and whether it is whole.

use super::{LOOKS, Turn};
use crate::console::ROOT;
use crate::console::page::{Page, encoded, exact_time, table};
use crate::console::visitor::{Administrator, Form};
use crate::console::words::count_of;
use crate::now;
use crate::problem::Problem;
use crate::state::Authority;
use crate::storage::{AuditEntry, AuditQuery, Database, Head, Verdict};
use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use engine::policy::instant;
use futures_util::stream::{self, Stream};
use maud::{Markup, html};
use serde::Deserialize;
use std::io;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// Entries on a page.
const PAGE: usize = 100;
/// Entries that are handed out in one piece.
const PIECE: usize = 256;
/// Entries that are gone through in one look: it takes part of a second, however rare what is looked for.
const LOOK: NonZeroU32 = NonZeroU32::new(500_000).unwrap();
/// How long one piece may take to be taken.
const SEND_TIME: Duration = Duration::from_secs(30);

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
            most: Some(LOOK),
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
    let (mut entries, unseen, events, heads) = super::read(&authority, move |database| {
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
        @if !rows.is_empty() {
            (table("What happened, latest first", &["When", "Act", "Who", "From", "Receiver and rule", "By", "Particulars"], &rows))
        }
        @match before {
            Some(before) if !is_full => p { "That is all from entry " (before) " on. Older entries have not been looked at." },
            None if rows.is_empty() => p { "Nothing like that is in the trail." },
            _ => {}
        }
        p.acts {
            @if let Some(before) = before {
                a href={ (ROOT) "/admin/audit?" (asked.written()) "before=" (before) } {
                    @if is_full { "Before these" } @else { "Look at older ones" }
                }
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
        th scope="row" { (exact_time(*at)) }
        td { (event) }
        td.who {
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
            Verdict::Whole(entries) => p.done role="status" { "Whole: " (count_of(*entries, "entry", "entries")) "." },
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
    let place = authority.exports.clone().try_acquire_owned();
    let place = place.map_err(|_| Problem::Busy("downloads of the audit trail"))?;
    let (sender, pieces) = mpsc::channel(1);
    tokio::spawn(async move {
        let handed_out = hand_out(&authority, query, &sender).await;
        // Before the end is told: whoever asks again then finds a place.
        drop(place);
        match handed_out {
            Ok(true) => {
                send(&sender, None, SEND_TIME).await;
            }
            Ok(false) => tracing::info!("a download of the audit trail was given up"),
            Err(error) => tracing::error!("the audit trail could not be handed out whole: {error:#}"),
        }
    });
    let name = format!("attachment; filename=\"audit-{}.jsonl\"", now());
    let headers = [(CONTENT_TYPE, "application/jsonl".to_owned()), (CONTENT_DISPOSITION, name)];
    Ok((headers, Body::from_stream(whole(pieces))).into_response())
}

/// Reads piece by piece; gives whether all were taken. Nothing is being read while somebody takes their time with a piece:
/// the database's log can't be cut as long as anybody reads.
async fn hand_out(
    authority: &Authority,
    mut query: AuditQuery,
    sender: &mpsc::Sender<Option<Vec<u8>>>,
) -> anyhow::Result<bool> {
    loop {
        let asked = query.clone();
        let (piece, rest) = Turn::wait(&LOOKS).await?.read(authority, move |database| piece(database, &asked)).await?;
        // Also where nothing was found: whoever has gone away is not looked for further.
        if !send(sender, Some(piece), SEND_TIME).await {
            return Ok(false);
        }
        if rest.is_none() {
            return Ok(true);
        }
        query.before = rest;
    }
}

/// The next lines, and the number of the entry before which it goes on if there may be more.
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

/// Whether it was taken in time.
async fn send<T>(sender: &mpsc::Sender<T>, piece: T, time: Duration) -> bool {
    tokio::time::timeout(time, sender.send(piece)).await.is_ok_and(|sent| sent.is_ok())
}

/// What a browser gets: pieces up to the one that says that there are no more. Whatever ends before is an error, so that no
/// part is taken for the whole.
fn whole(pieces: mpsc::Receiver<Option<Vec<u8>>>) -> impl Stream<Item = io::Result<Vec<u8>>> {
    stream::unfold(Some(pieces), async |pieces| {
        let mut pieces = pieces?;
        match pieces.recv().await {
            Some(Some(piece)) => Some((Ok(piece), Some(pieces))),
            Some(None) => None,
            None => Some((Err(io::Error::other("the audit trail is cut short here")), None)),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::StreamExt;

    /// What comes of a trail whose reader paused after one piece, and of one that was handed out whole.
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
