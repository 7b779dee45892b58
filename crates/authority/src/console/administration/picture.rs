//! The chart of dropped packets over time. The server draws it as an SVG, which needs no script, and repeats its
//! figures in tables.

use crate::console::format::{count, number, sentence};
use crate::console::table::{figures, table, text};
use crate::push::activity::{Column, Span};
use maud::{Markup, html};
use shell::table::utc;
use wire::DropReason;

/// Number of drop reasons that have a colour of their own; all others share one.
const COLOURS: usize = 6;
/// Height of the area for the bars, in pixels.
const HEIGHT: f64 = 200.0;
/// Height of the line of text above the bars, which labels the scale, in pixels.
const TOP: f64 = 20.0;

/// One series of the stacked bars: a drop reason, or several reasons together.
struct Part {
    name: String,
    /// The number of packets in each column.
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

/// Returns the time that one column of the chart covers, in words.
pub fn step(span: Span) -> &'static str {
    match span {
        Span::Quarter => "10 seconds",
        Span::Hour => "minute",
        Span::Day => "15 minutes",
    }
}

/// Returns the time that the whole chart covers, in words.
pub fn span_name(span: Span) -> &'static str {
    match span {
        Span::Quarter => "15 minutes",
        Span::Hour => "hour",
        Span::Day => "day",
    }
}

/// Returns the numbers of admitted and of dropped packets in all columns together.
pub fn totals(columns: &[Column]) -> (u64, u64) {
    let amounts = columns.iter().filter_map(|column| column.amount);
    amounts.fold((0, 0), |(admitted, dropped): (u64, u64), amount| {
        (admitted.saturating_add(amount.admitted), dropped.saturating_add(amount.drops.total()))
    })
}

/// Renders the chart of dropped packets with its legend, and tables with the same figures.
pub fn drops(columns: &[Column], span: Span) -> Markup {
    let parts = parts(columns);
    let dropped = total(&parts);
    html! {
        (figure(columns, span, &parts, dropped))
        (by_reason(&parts, span, dropped))
        (by_time(columns, span, &parts))
    }
}

/// Renders the chart of dropped packets with its legend, and a table with the same figures, which the visitor can open.
pub fn chart(columns: &[Column], span: Span) -> Markup {
    let parts = parts(columns);
    html! {
        (figure(columns, span, &parts, total(&parts)))
        @if !parts.is_empty() { (by_time(columns, span, &parts)) }
    }
}

fn total(parts: &[Part]) -> u64 {
    parts.iter().fold(0, |sum, part| sum.saturating_add(part.total()))
}

fn figure(columns: &[Column], span: Span, parts: &[Part], dropped: u64) -> Markup {
    let (drawn, rest) = parts.split_at(parts.len().min(COLOURS));
    let mut drawn: Vec<_> = drawn.iter().collect();
    let rest = (!rest.is_empty()).then(|| joined(rest, columns.len()));
    drawn.extend(&rest);
    html! {
        figure.picture {
            (bars(columns, span, &drawn, dropped))
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
    }
}

/// Returns the drop reasons that occurred, the most frequent first.
fn parts(columns: &[Column]) -> Vec<Part> {
    let by = |name: &str, count: &dyn Fn(&Column) -> u64| Part {
        name: name.into(),
        packets: columns.iter().map(count).collect(),
    };
    let amount = |column: &Column| column.amount.unwrap_or_default();
    let mut parts: Vec<_> =
        DropReason::ALL.iter().map(|reason| by(reason.name(), &|column| amount(column).drops.of(*reason))).collect();
    parts.push(by("a reason unknown to this version", &|column| amount(column).drops.others));
    parts.retain(|part| part.total() > 0);
    // The sort is stable: equally frequent reasons stay in the order of their numbers.
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
    let sums =
        (0..columns.len()).map(|nth| parts.iter().fold(0, |sum: u64, part| sum.saturating_add(part.packets[nth])));
    let scale = above(sums.max().unwrap_or(0));
    let mut rectangles = Vec::new();
    for nth in 0..columns.len() {
        let mut y = HEIGHT;
        for (place, part) in parts.iter().enumerate().filter(|(_, part)| part.packets[nth] > 0) {
            let rise = HEIGHT * part.packets[nth] as f64 / scale as f64;
            y -= rise;
            rectangles.push((colour(place), nth, short(y), short(rise)));
        }
    }
    let title = format!("Packets dropped in the last {}, by reason", span_name(span));
    let text = match dropped {
        0 => "No packet was dropped.".to_owned(),
        _ => format!(
            "{} in all, at most {} in one column. A table has the same figures.",
            sentence(&count(dropped, "packet")),
            number(scale)
        ),
    };
    let silent = columns.iter().enumerate().filter(|(_, column)| column.amount.is_none());
    let bottom = TOP + HEIGHT;
    html! {
        svg width="100%" height=(bottom + 24.0) role="img" aria-labelledby="picture-title picture-text" {
            title id="picture-title" { (title) }
            desc id="picture-text" { (text) }
            // The bars stretch with the page; the text does not.
            svg y=(TOP) width="100%" height=(HEIGHT) viewBox={ "0 0 " (columns.len().max(1)) " " (HEIGHT) } preserveAspectRatio="none" {
                @for (nth, _) in silent { rect.silent x=(nth) y="0" width="1" height=(HEIGHT) {} }
                @for (colour, nth, y, rise) in rectangles { rect class=(colour) x=(nth) y=(y) width="0.9" height=(rise) {} }
            }
            @for y in [TOP, TOP + HEIGHT / 2.0, bottom] { line.rule x1="0" x2="100%" y1=(y) y2=(y) {} }
            text.figure x="0" y=(TOP - 6.0) { (brief(scale)) }
            @if let (Some(first), Some(last)) = (columns.first(), columns.last()) {
                text.figure x="0" y=(bottom + 18.0) { (clock(first.start)) }
                text.figure x="100%" y=(bottom + 18.0) text-anchor="end" { (clock(last.start + span.step())) " UTC" }
            }
        }
    }
}

fn by_reason(parts: &[Part], span: Span, dropped: u64) -> Markup {
    let most = format!("Maximum in {}", step(span));
    let columns = [text("Reason"), figures("Packets"), figures("Share"), figures(&most)];
    let row = |part: &Part| {
        let total = part.total();
        let values = [number(total), share(total, dropped), number(part.most())];
        [&part.name].into_iter().chain(&values).map(|text| html! { (text) }).collect()
    };
    html! {
        @if parts.is_empty() {
            p { "No packet was dropped in the last " (span_name(span)) "." }
        } @else {
            (table("Dropped packets by reason", &columns, parts.iter().map(row)))
        }
    }
}

fn by_time(columns: &[Column], span: Span, parts: &[Part]) -> Markup {
    let reported = columns.iter().enumerate().rev().filter_map(|(nth, column)| Some((nth, column, column.amount?)));
    let rows = reported.map(|(nth, column, amount)| {
        let packets = parts.iter().map(|part| part.packets[nth]);
        let values = [amount.admitted].into_iter().chain(packets).map(number);
        [utc(column.start)].into_iter().chain(values).map(|text| html! { (text) }).collect()
    });
    let mut columns = vec![text("From"), figures("Admitted")];
    columns.extend(parts.iter().map(|part| figures(&part.name)));
    html! {
        details {
            summary { "Every " (step(span)) " as a table" }
            (table("Packets by time, latest first; periods without a report are omitted", &columns, rows))
        }
    }
}

/// Returns the smallest of 1, 2, 5, 10, 20, … that is not less than `most`.
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

/// Formats a number so that it fits beside the chart.
fn brief(number: u64) -> String {
    match number {
        0..10_000 => number.to_string(),
        10_000..10_000_000 => format!("{} k", number / 1000),
        10_000_000..10_000_000_000 => format!("{} M", number / 1_000_000),
        _ => format!("{} G", number / 1_000_000_000),
    }
}

/// Formats a time as hours and minutes.
fn clock(time: u64) -> String {
    format!("{:02}:{:02}", time / 3600 % 24, time / 60 % 60)
}

/// Formats a length with one decimal. More would lengthen the page without making the chart sharper.
fn short(length: f64) -> String {
    format!("{length:.1}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::push::activity::{Activity, columns};
    use api::{DropCount, Report, VerifierState};

    const NOON: u64 = 1_772_452_800;

    /// Returns the columns of the hour in which a verifier reported dropped packets, a minute ago. `packets` has the
    /// number for each drop reason, from reason 1 on.
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
        // The top of the axis is 50: three fifths and one fifth of 200.
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
        // Each name is in the table by reason and in the head of the table by time.
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
