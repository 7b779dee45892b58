//! The picture of what was dropped over time: an SVG made here, which needs no script, and its figures as tables.

use crate::console::words::{count, number, sentence};
use engine::activity::{Column, Span};
use maud::{Markup, html};
use shell::table::utc;
use wire::DropReason;

/// Reasons that have a colour of their own; the others share one.
const COLOURS: usize = 6;
/// The room for the bars.
const ROOM: (f64, f64) = (660.0, 200.0);
/// Where it begins: left of it stand figures, below it times.
const CORNER: (f64, f64) = (64.0, 12.0);

/// What a bar is made of.
struct Part {
    name: String,
    /// Packets, by column.
    packets: Vec<u64>,
}

impl Part {
    fn total(&self) -> u64 {
        self.packets.iter().fold(0, |sum, packets| sum.saturating_add(*packets))
    }

    fn most(&self) -> u64 {
        self.packets.iter().copied().max().unwrap_or(0)
    }
}

/// How long a column lasts, in words.
pub fn step(span: Span) -> &'static str {
    match span {
        Span::Quarter => "10 seconds",
        Span::Hour => "minute",
        Span::Day => "15 minutes",
    }
}

/// A span in words.
pub fn span_name(span: Span) -> &'static str {
    match span {
        Span::Quarter => "15 minutes",
        Span::Hour => "hour",
        Span::Day => "day",
    }
}

/// How many were admitted and dropped in all.
pub fn totals(columns: &[Column]) -> (u64, u64) {
    let amounts = columns.iter().filter_map(|column| column.amount);
    amounts.fold((0, 0), |(admitted, dropped): (u64, u64), amount| {
        (admitted.saturating_add(amount.admitted), dropped.saturating_add(amount.drops.total()))
    })
}

/// The picture with its legend, and tables that say the same.
pub fn drops(columns: &[Column], span: Span) -> Markup {
    let parts = parts(columns);
    let (drawn, rest) = parts.split_at(parts.len().min(COLOURS));
    let mut drawn: Vec<_> = drawn.iter().collect();
    let rest = (!rest.is_empty()).then(|| joined(rest, columns.len()));
    drawn.extend(&rest);
    let dropped = parts.iter().fold(0, |sum: u64, part| sum.saturating_add(part.total()));
    html! {
        figure.picture {
            div.table tabindex="0" role="region" aria-label="Picture of what was dropped" {
                (bars(columns, span, &drawn, dropped))
            }
            @if !drawn.is_empty() {
                figcaption {
                    ul.legend {
                        @for (nth, part) in drawn.iter().enumerate() {
                            li { span class=(colour(nth)) aria-hidden="true" {} " " (part.name) }
                        }
                    }
                }
            }
        }
        (by_reason(&parts, span, dropped))
        (by_time(columns, span, &parts))
    }
}

/// The reasons that occurred, the most frequent first.
fn parts(columns: &[Column]) -> Vec<Part> {
    let by = |name: &str, count: &dyn Fn(&Column) -> u64| Part {
        name: name.into(),
        packets: columns.iter().map(count).collect(),
    };
    let amount = |column: &Column| column.amount.unwrap_or_default();
    let mut parts: Vec<_> =
        DropReason::ALL.iter().map(|reason| by(reason.name(), &|column| amount(column).drops.of(*reason))).collect();
    parts.push(by("a reason that this version has no name for", &|column| amount(column).drops.others));
    parts.retain(|part| part.total() > 0);
    // The sort keeps the order of the drop reasons' numbers where they are equally frequent.
    parts.sort_by_key(|part| std::cmp::Reverse(part.total()));
    parts
}

fn joined(parts: &[Part], columns: usize) -> Part {
    let sum = |nth: usize| parts.iter().fold(0, |sum: u64, part| sum.saturating_add(part.packets[nth]));
    Part { name: "other reasons".into(), packets: (0..columns).map(sum).collect() }
}

fn colour(nth: usize) -> String {
    if nth < COLOURS { format!("colour-{}", nth + 1) } else { "colour-rest".into() }
}

fn bars(columns: &[Column], span: Span, parts: &[&Part], dropped: u64) -> Markup {
    let ((width, height), (left, top)) = (ROOM, CORNER);
    let sums =
        (0..columns.len()).map(|nth| parts.iter().fold(0, |sum: u64, part| sum.saturating_add(part.packets[nth])));
    let scale = above(sums.max().unwrap_or(0));
    let step_width = width / columns.len().max(1) as f64;
    let mut rectangles = Vec::new();
    for nth in 0..columns.len() {
        let (x, mut y) = (left + nth as f64 * step_width, top + height);
        for (place, part) in parts.iter().enumerate().filter(|(_, part)| part.packets[nth] > 0) {
            let rise = height * part.packets[nth] as f64 / scale as f64;
            y -= rise;
            rectangles.push((colour(place), short(x), short(y), short(rise)));
        }
    }
    let title = format!("Packets dropped in the last {}, by reason", span_name(span));
    let text = match dropped {
        0 => "No packet was dropped.".to_owned(),
        _ => format!(
            "{} in all, at most {} in one column. The tables say the same in figures.",
            sentence(&count(dropped, "packet")),
            number(scale)
        ),
    };
    let silent = columns.iter().enumerate().filter(|(_, column)| column.amount.is_none());
    html! {
        svg viewBox={ "0 0 " (left + width + 12.0) " " (top + height + 28.0) } role="img"
            aria-labelledby="picture-title picture-text" {
            title id="picture-title" { (title) }
            desc id="picture-text" { (text) }
            @for (nth, _) in silent {
                rect.silent x=(short(left + nth as f64 * step_width)) y=(top) width=(short(step_width)) height=(height) {}
            }
            @for (y, figure) in [(top + height, Some(0)), (top + height / 2.0, None), (top, Some(scale))] {
                line.rule x1=(left) x2=(left + width) y1=(short(y)) y2=(short(y)) {}
                @if let Some(packets) = figure {
                    text.figure x=(left - 6.0) y=(short(y + 4.0)) text-anchor="end" { (brief(packets)) }
                }
            }
            @for (colour, x, y, rise) in rectangles {
                rect class=(colour) x=(x) y=(y) width=(short(step_width * 0.9)) height=(rise) {}
            }
            @if let (Some(first), Some(last)) = (columns.first(), columns.last()) {
                text.figure x=(left) y=(top + height + 20.0) { (clock(first.start)) }
                text.figure x=(left + width) y=(top + height + 20.0) text-anchor="end" {
                    (clock(last.start + span.step())) " UTC"
                }
            }
        }
    }
}

fn by_reason(parts: &[Part], span: Span, dropped: u64) -> Markup {
    html! {
        @if parts.is_empty() {
            p { "No packet was dropped in the last " (span_name(span)) "." }
        } @else {
            div.table tabindex="0" role="region" aria-label="Dropped packets by reason" {
                table {
                    caption { "Dropped packets by reason" }
                    thead { tr { th scope="col" { "Reason" } th.number scope="col" { "Packets" }
                        th.number scope="col" { "Share" } th.number scope="col" { "Most in " (step(span)) } } }
                    tbody {
                        @for part in parts {
                            tr { th scope="row" { (part.name) } td.number { (number(part.total())) }
                                td.number { (share(part.total(), dropped)) } td.number { (number(part.most())) } }
                        }
                    }
                }
            }
        }
    }
}

fn by_time(columns: &[Column], span: Span, parts: &[Part]) -> Markup {
    let told = columns.iter().enumerate().rev().filter_map(|(nth, column)| Some((nth, column, column.amount?)));
    html! {
        details {
            summary { "Every " (step(span)) " as a table" }
            div.table tabindex="0" role="region" aria-label="Packets by time" {
                table {
                    caption { "Packets by time, latest first; where nobody reported there is no row" }
                    thead { tr { th scope="col" { "From" } th.number scope="col" { "Admitted" }
                        @for part in parts { th.number scope="col" { (part.name) } } } }
                    tbody {
                        @for (nth, column, amount) in told {
                            tr { th scope="row" { (utc(column.start)) } td.number { (number(amount.admitted)) }
                                @for part in parts { td.number { (number(part.packets[nth])) } } }
                        }
                    }
                }
            }
        }
    }
}

/// The next of 1, 2, 5, 10, 20, … that is no less.
fn above(most: u64) -> u64 {
    let mut power = 1_u64;
    loop {
        for step in [1, 2, 5] {
            let round = power.saturating_mul(step);
            if round >= most {
                return round;
            }
        }
        power = power.saturating_mul(10);
    }
}

fn share(part: u64, of: u64) -> String {
    format!("{:.0} %", 100.0 * part as f64 / of.max(1) as f64)
}

/// A number that fits beside the picture.
fn brief(number: u64) -> String {
    match number {
        0..10_000 => number.to_string(),
        10_000..10_000_000 => format!("{} k", number / 1000),
        10_000_000..10_000_000_000 => format!("{} M", number / 1_000_000),
        _ => format!("{} G", number / 1_000_000_000),
    }
}

/// Hours and minutes of a time.
fn clock(time: u64) -> String {
    format!("{:02}:{:02}", time / 3600 % 24, time / 60 % 60)
}

/// A length with one decimal: more make the page longer and nothing sharper.
fn short(length: f64) -> String {
    format!("{length:.1}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::activity::{Activity, columns};
    use engine::api::{DropCount, Report, VerifierState};

    const NOON: u64 = 1_772_452_800;

    /// What a verifier dropped of each reason from 1 on, a minute ago; it has been silent before.
    fn seen(packets: &[u64]) -> Vec<Column> {
        let report = |times: u64| {
            let drops = packets.iter().zip(1..).map(|(packets, reason)| DropCount { reason, packets: packets * times });
            let (state, drops, flows) = (VerifierState::Protecting, drops.collect(), Vec::new());
            Report { state, keys_until: None, admitted: times, passed: 0, drops, live: 0, flows }
        };
        let mut activity = Activity::default();
        activity.note(report(1), NOON - 60);
        activity.note(report(2), NOON - 60);
        columns([&activity], Span::Hour, NOON)
    }

    fn count(page: &str, what: &str) -> usize {
        page.matches(what).count()
    }

    #[test]
    fn bars_are_as_tall_as_what_they_stand_for() {
        let page = drops(&seen(&[10, 0, 0, 30]), Span::Hour).into_string();
        // 50 is the top: three fifths and one fifth of 200.
        assert!(page.contains("class=\"colour-1\"") && page.contains("height=\"120.0\""), "{page}");
        assert!(page.contains("class=\"colour-2\"") && page.contains("height=\"40.0\""), "{page}");
        assert_eq!(count(&page, "class=\"silent\""), 59);
        assert!(page.contains("40 packets in all"), "{page}");
    }

    #[test]
    fn rare_reasons_share_a_colour_and_have_rows_of_their_own() {
        let page = drops(&seen(&[1; DropReason::ALL.len()]), Span::Hour).into_string();
        assert_eq!(count(&page, "<rect class=\"colour-"), COLOURS + 1);
        assert!(page.contains("other reasons"), "{page}");
        // By reason, and at the head of the table by time.
        assert!(DropReason::ALL.iter().all(|reason| count(&page, reason.name()) >= 2), "{page}");
    }

    #[test]
    fn nothing_dropped_is_said_and_the_largest_numbers_fit() {
        let page = drops(&seen(&[]), Span::Hour).into_string();
        assert!(page.contains("No packet was dropped") && count(&page, "class=\"colour-") == 0, "{page}");
        let page = drops(&seen(&[(1 << 53) - 1]), Span::Hour).into_string();
        assert!(page.contains("10000000 G") && !page.contains("inf") && !page.contains("NaN"), "{page}");
        assert_eq!([0, 1, 3, 7, 11, 201].map(above), [1, 1, 5, 10, 20, 500]);
        assert_eq!(above(u64::MAX), u64::MAX);
    }
}
