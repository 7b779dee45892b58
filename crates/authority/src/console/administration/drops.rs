//! The page of packets that verifiers dropped, by drop reason and over time.

use super::picture;
use crate::console::ROOT;
use crate::console::format::{count, sentence};
use crate::console::page::{Page, encoded, exact_time};
use crate::console::visitor::Administrator;
use crate::http::extractors::Part;
use crate::http::problems::Problem;
use crate::now;
use crate::push::activity::Span;
use crate::push::reports::Reports;
use crate::storage::Storage;
use axum::extract::Query;
use maud::{Markup, html};
use serde::Deserialize;

/// Query parameters of the page.
#[derive(Deserialize)]
pub struct Parameters {
    span: Option<String>,
    verifier: Option<String>,
}

/// The spans that the page can show, with their names in URLs.
const SPANS: [(&str, Span); 3] = [("quarter", Span::Quarter), ("hour", Span::Hour), ("day", Span::Day)];

/// Shows the dropped packets.
pub async fn show(
    Part(storage): Part<Storage>,
    Part(reports): Part<Reports>,
    Administrator(visitor): Administrator,
    Query(parameters): Query<Parameters>,
) -> Result<Markup, Problem> {
    let word = parameters.span.as_deref().unwrap_or("hour");
    let span = SPANS.iter().find(|(known, _)| *known == word).map(|(_, span)| *span);
    let span = span.ok_or_else(|| Problem::Malformed("the span must be `quarter`, `hour` or `day`".into()))?;
    let verifiers = storage.call(|database| database.verifiers()).await?;
    let wanted = parameters.verifier.as_deref().filter(|id| !id.is_empty());
    if wanted.is_some_and(|id| verifiers.iter().all(|entry| entry.verifier != id)) {
        return Err(Problem::NotFound("verifier"));
    }
    let now = now();
    let columns = reports.columns(wanted, span, now);
    let (admitted, dropped) = picture::totals(&columns);
    let of = wanted.map(|id| format!("&verifier={}", encoded(id))).unwrap_or_default();
    Ok(Page::new("Drops").of(Some(&visitor)).at("/admin/drops").show(&html! {
        nav.spans aria-label="How far back" {
            @for (word, other) in SPANS {
                a href={ (ROOT) "/admin/drops?span=" (word) (of) } aria-current=[(other == span).then_some("true")] {
                    "Last " (picture::span_name(other))
                }
            }
        }
        form.search method="get" action={ (ROOT) "/admin/drops" } {
            input type="hidden" name="span" value=(word);
            div {
                label for="verifier" { "Verifier" }
                select #verifier name="verifier" {
                    option value="" { "All together" }
                    @for entry in &verifiers {
                        option value=(entry.verifier) selected[wanted == Some(&entry.verifier)] { (entry.verifier) }
                    }
                }
            }
            button type="submit" { "Show" }
        }
        section data-live {
            p { (sentence(&count(dropped, "packet"))) " dropped and " (count(admitted, "flow")) " admitted in the last " (picture::span_name(span))
                @if let Some(id) = wanted { " at " (id) } "." }
            (picture::drops(&columns, span))
            p.quiet { "At " (exact_time(now)) ". Packets are counted at the time of their verifier's report. Where there is no report, the "
                "picture is shaded." }
        }
    }))
}
