//! The picture of who reaches what. Senders are on the left, and receivers on the right. The thickness of a band
//! between two of them is the number of live flows. The server draws it as an SVG, which needs no script, and repeats
//! it as a table.
//!
//! The page counts flows by grant before it looks up the owners of the grants, and it draws only the largest senders
//! and receivers. So its size does not depend on the number of flows.

use crate::Directory;
use crate::console::ROOT;
use crate::console::format::{count, number, sentence};
use crate::console::page::encoded;
use crate::console::table::{figures, table, text};
use crate::http::problems::Problem;
use crate::push::reports::Latest;
use crate::storage::Database;
use api::GrantOwner;
use maud::{Markup, html};
use std::cmp::Reverse;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use wire::Handle;

/// Maximum number of senders, and of receivers, that have a row of their own; all others share one row.
const MOST_ROWS: usize = 10;
/// Maximum number of grants whose owners are looked up for one picture, those with the most flows first.
const MOST_NAMED: usize = 10_000;
/// Height of a row in the units of the drawing; the style sheet makes a row `ROW_REM` high.
const ROW: f64 = 48.0;
/// Height of a row on the page, in rem.
const ROW_REM: usize = 3;
/// Thickness of the largest sender's or receiver's bar, in the units of the drawing.
const THICKEST: f64 = 40.0;
/// Number of colours for bands.
const COLOURS: usize = 6;

/// The origin of flows.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Sender {
    /// The flows of a person or a service account.
    Account(String),
    /// Flows that were established before protection began.
    BeforeProtection,
    /// Flows whose grant the authority does not know, or did not look up.
    Unknown,
}

/// The destination of flows.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Target {
    /// The receiver to which a grant was issued, as the policy named it then.
    Receiver(String),
    /// Addresses behind a verifier, if the receiver is not known.
    Behind(Arc<str>),
}

/// The numbers of live flows, by sender and receiver.
pub struct Traffic {
    senders: Vec<Row<Sender>>,
    targets: Vec<Row<Target>>,
    links: Vec<Link>,
    /// Number of flows that the verifiers listed.
    listed: u64,
}

/// A row of the picture: one sender or receiver, or all those that have no row of their own.
struct Row<T> {
    who: Who<T>,
    flows: u64,
}

enum Who<T> {
    One(T),
    More(usize),
}

/// The number of flows from a row on the left to a row on the right.
struct Link {
    from: usize,
    to: usize,
    flows: u64,
}

impl Traffic {
    /// Counts the flows in the current reports of the verifiers, and looks up their owners.
    ///
    /// # Errors
    /// Fails if the database cannot be read.
    pub async fn read(directory: &Directory, reports: &[Latest]) -> Result<Self, Problem> {
        let mut grants: HashMap<(Arc<str>, Option<u64>), u64> = HashMap::new();
        for latest in reports.iter().filter(|latest| latest.is_current) {
            for flow in &latest.report.flows {
                *grants.entry((latest.verifier.clone(), flow.handle)).or_default() += 1;
            }
        }
        let mut grants: Vec<_> = grants.into_iter().collect();
        grants.sort_by_key(|(_, flows)| Reverse(*flows));
        let name = move |database: &mut Database| {
            let named = grants.into_iter().enumerate().map(|(nth, ((verifier, handle), flows))| {
                let owner = match handle.filter(|_| nth < MOST_NAMED) {
                    // The owner is looked up among the grants for this verifier only, so that a verifier cannot claim
                    // flows of other verifiers' grants.
                    Some(handle) => database.grant_owner(&verifier, Handle(handle))?,
                    None => None,
                };
                let (sender, target) = match owner {
                    Some(GrantOwner { person, receiver, .. }) => (Sender::Account(person), Target::Receiver(receiver)),
                    None if handle.is_none() => (Sender::BeforeProtection, Target::Behind(verifier)),
                    None => (Sender::Unknown, Target::Behind(verifier)),
                };
                Ok((sender, target, flows))
            });
            named.collect::<anyhow::Result<Vec<_>>>()
        };
        // Without flows, there is no need to wait for a database read.
        let is_quiet = reports.iter().all(|latest| !latest.is_current || latest.report.flows.is_empty());
        let named = if is_quiet { Vec::new() } else { super::read(directory, name).await? };
        Ok(Self::of(named))
    }

    fn of(flows: Vec<(Sender, Target, u64)>) -> Self {
        let (senders, sender_rows) = rows(flows.iter().map(|(sender, _, flows)| (sender, *flows)));
        let (targets, target_rows) = rows(flows.iter().map(|(_, target, flows)| (target, *flows)));
        let mut links: HashMap<(usize, usize), u64> = HashMap::new();
        for (sender, target, flows) in &flows {
            let row = |known: Option<&usize>, rest: usize| known.copied().unwrap_or(rest);
            let from = row(sender_rows.get(sender), senders.len().saturating_sub(1));
            let to = row(target_rows.get(target), targets.len().saturating_sub(1));
            *links.entry((from, to)).or_default() += flows;
        }
        let mut links: Vec<_> = links.into_iter().map(|((from, to), flows)| Link { from, to, flows }).collect();
        links.sort_by_key(|link| (Reverse(link.flows), link.from, link.to));
        let listed = flows.iter().map(|(.., flows)| flows).sum();
        Self { senders, targets, links, listed }
    }

    /// Renders the picture and the table. `total` is the number of live flows, including those that the verifiers did
    /// not list.
    pub fn show(&self, total: u64) -> Markup {
        let [senders, targets] = [self.senders.len(), self.targets.len()];
        html! {
            div.traffic {
                p #traffic-from.head.from { "People and services" }
                p #traffic-to.head.to { "Receivers" }
                ul.from aria-labelledby="traffic-from" {
                    @for row in &self.senders { li { (sender(&row.who, true)) " " (flows(row.flows)) } }
                }
                (self.drawing(senders.max(targets)))
                ul.to aria-labelledby="traffic-to" {
                    @for row in &self.targets { li { span.end { (target(&row.who)) } " " (flows(row.flows)) } }
                }
            }
            @if total > self.listed {
                p.quiet {
                    "The picture shows the latest " (number(self.listed)) " of " (number(total))
                    " live flows: verifiers report no more."
                }
            }
            details {
                summary { "The picture as a table" }
                (self.table())
            }
        }
    }

    fn drawing(&self, rows: usize) -> Markup {
        let most = self.senders.iter().map(|row| row.flows).chain(self.targets.iter().map(|row| row.flows)).max();
        let unit = THICKEST / most.unwrap_or(1).max(1) as f64;
        let bar = |nth: usize, flows: u64| {
            let middle = (nth as f64 + 0.5) * ROW;
            let half = (flows as f64 * unit).max(2.0) / 2.0;
            (short(middle - half), short(middle + half))
        };
        // The bands of a row lie below each other in the order of the rows on the other side, so that they cross as
        // little as possible.
        let start = |nth: usize, flows: u64| (nth as f64 + 0.5) * ROW - flows as f64 * unit / 2.0;
        let mut left: Vec<_> = self.senders.iter().enumerate().map(|(nth, row)| start(nth, row.flows)).collect();
        let mut right: Vec<_> = self.targets.iter().enumerate().map(|(nth, row)| start(nth, row.flows)).collect();
        let mut links: Vec<_> = self.links.iter().collect();
        links.sort_by_key(|link| (link.from, link.to));
        let mut bands = Vec::new();
        for link in links {
            let thickness = link.flows as f64 * unit;
            let (from, to) = (left[link.from], right[link.to]);
            left[link.from] += thickness;
            right[link.to] += thickness;
            bands.push((colour(&self.targets, link.to), band(from, to, thickness.max(1.0))));
        }
        html! {
            svg.bands viewBox={ "0 0 100 " (rows as f64 * ROW) } height={ (rows * ROW_REM) "rem" } width="100%"
                preserveAspectRatio="none" role="img" aria-labelledby="traffic-title traffic-text" {
                title id="traffic-title" { "Live flows from people and services to receivers" }
                desc id="traffic-text" { (self.description()) }
                @for (colour, band) in bands { path class=(colour) d=(band) {} }
                @for (nth, row) in self.senders.iter().enumerate() {
                    @let (top, bottom) = bar(nth, row.flows);
                    line.bar x1="0" x2="0" y1=(top) y2=(bottom) {}
                }
                @for (nth, row) in self.targets.iter().enumerate() {
                    @let (top, bottom) = bar(nth, row.flows);
                    line.bar x1="100" x2="100" y1=(top) y2=(bottom) {}
                }
            }
        }
    }

    fn description(&self) -> String {
        let all = sentence(&count(self.listed, "live flow"));
        match self.links.first() {
            None => format!("{all}."),
            Some(Link { from, to, flows }) => {
                let (from, to) = (sender_name(&self.senders[*from].who), target(&self.targets[*to].who));
                format!(
                    "{all}. The widest band: {} from {from} to {to}. The table has the same figures.",
                    number(*flows)
                )
            }
        }
    }

    fn table(&self) -> Markup {
        let row = |link: &Link| {
            vec![
                sender(&self.senders[link.from].who, false),
                html! { (target(&self.targets[link.to].who)) },
                html! { (number(link.flows)) },
            ]
        };
        let columns = [text("From"), text("To"), figures("Live flows")];
        table("Live flows from people and services to receivers", &columns, self.links.iter().map(row))
    }
}

/// Counts the flows of each sender or receiver. Returns the rows, the largest first and the shared row last. Also
/// returns the index of the row of each sender or receiver that has a row of its own.
fn rows<'f, T: Clone + Eq + Hash + Ord + 'f>(
    flows: impl Iterator<Item = (&'f T, u64)>,
) -> (Vec<Row<T>>, HashMap<&'f T, usize>) {
    let mut counts: HashMap<&T, u64> = HashMap::new();
    for (who, flows) in flows {
        *counts.entry(who).or_default() += flows;
    }
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by_key(|(who, flows)| (Reverse(*flows), *who));
    // A shared row for only one sender or receiver would save no room.
    let own = if counts.len() > MOST_ROWS + 1 { MOST_ROWS } else { counts.len() };
    let (own, rest) = counts.split_at(own);
    let mut rows: Vec<_> =
        own.iter().map(|(who, flows)| Row { who: Who::One((*who).clone()), flows: *flows }).collect();
    if !rest.is_empty() {
        rows.push(Row { who: Who::More(rest.len()), flows: rest.iter().map(|(_, flows)| flows).sum() });
    }
    (rows, own.iter().enumerate().map(|(nth, (who, _))| (*who, nth)).collect())
}

fn sender_name(who: &Who<Sender>) -> String {
    match who {
        Who::One(Sender::Account(person)) => person.clone(),
        Who::One(Sender::BeforeProtection) => "established before protection".into(),
        Who::One(Sender::Unknown) => "an unknown grant".into(),
        Who::More(rest) => format!("and {} more", number(*rest as u64)),
    }
}

/// Renders a sender, as a link if there is a page about it.
fn sender(who: &Who<Sender>, is_end: bool) -> Markup {
    let name = sender_name(who);
    let class = is_end.then_some("end");
    match who {
        Who::One(Sender::Account(person)) => {
            html! { a class=[class] href={ (ROOT) "/admin/people/" (encoded(person)) } { (name) } }
        }
        Who::More(_) if is_end => html! { a.end href={ (ROOT) "/admin/flows" } { (name) } },
        _ => html! { span class=[class] { (name) } },
    }
}

fn target(who: &Who<Target>) -> String {
    match who {
        Who::One(Target::Receiver(receiver)) => receiver.clone(),
        Who::One(Target::Behind(verifier)) => format!("behind {verifier}"),
        Who::More(rest) => format!("and {} more", number(*rest as u64)),
    }
}

fn flows(flows: u64) -> Markup {
    html! { span.quiet { (count(flows, "flow")) } }
}

/// Returns the colour of the bands to a receiver.
fn colour(targets: &[Row<Target>], nth: usize) -> String {
    match targets[nth].who {
        Who::One(Target::Receiver(_)) => format!("colour-{}", nth % COLOURS + 1),
        _ => "colour-rest".into(),
    }
}

/// Returns the outline of a band from the left edge to the right edge of the drawing.
fn band(from: f64, to: f64, thickness: f64) -> String {
    let [top, other_top] = [from, to].map(short);
    let [bottom, other_bottom] = [from + thickness, to + thickness].map(short);
    format!("M0 {top}C50 {top} 50 {other_top} 100 {other_top}V{other_bottom}C50 {other_bottom} 50 {bottom} 0 {bottom}z")
}

/// Formats a length with one decimal.
fn short(length: f64) -> String {
    format!("{length:.1}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(person: usize, receiver: usize, flows: u64) -> (Sender, Target, u64) {
        (Sender::Account(format!("p{person}")), Target::Receiver(format!("r{receiver}")), flows)
    }

    #[test]
    fn a_band_is_as_thick_as_its_flows() {
        let page = Traffic::of(vec![flow(1, 1, 30), flow(2, 1, 10)]).show(40).into_string();
        // The receiver has all 40 flows, so a flow is one unit thick: 30 from the first row, 10 from the second.
        assert!(page.contains("M0 9.0C50 9.0 50 4.0 100 4.0V34.0C50 34.0 50 39.0 0 39.0z"), "{page}");
        assert!(page.contains("M0 67.0C50 67.0 50 34.0 100 34.0V44.0C50 44.0 50 77.0 0 77.0z"), "{page}");
        assert!(page.contains("40 live flows. The widest band: 30 from p1 to r1."), "{page}");
        assert!(page.contains("<span class=\"quiet\">10 flows</span>") && !page.contains("verifiers report"), "{page}");
    }

    #[test]
    fn the_picture_of_10_000_flows_is_small_and_counts_all() {
        let flows: Vec<_> = (0..10_000).map(|nth| flow(nth % 47, nth % 53, 1)).collect();
        let traffic = Traffic::of(flows);
        assert_eq!((traffic.senders.len(), traffic.targets.len()), (MOST_ROWS + 1, MOST_ROWS + 1));
        assert!(traffic.links.len() <= (MOST_ROWS + 1).pow(2));
        assert_eq!(traffic.links.iter().map(|link| link.flows).sum::<u64>(), 10_000);
        let page = traffic.show(25_000).into_string();
        assert!(page.len() < 100_000, "{}", page.len());
        for text in ["and 37 more", "and 43 more", "10\u{202f}000 of 25\u{202f}000 live flows"] {
            assert!(page.contains(text), "{text}: {page}");
        }
    }

    #[test]
    fn nobody_shares_a_row_alone() {
        let traffic = Traffic::of((0..=MOST_ROWS).map(|nth| flow(nth, 0, 1)).collect());
        assert_eq!(traffic.senders.len(), MOST_ROWS + 1);
        assert!(!traffic.show(11).into_string().contains("more"));
    }

    #[test]
    fn one_flow_is_one_flow() {
        let unknown = (Sender::Unknown, Target::Behind("edge-1".into()), 1);
        let page = Traffic::of(vec![unknown]).show(1).into_string();
        assert!(page.contains("1 flow<") && page.contains("1 live flow.") && page.contains("behind edge-1"), "{page}");
    }
}
