//! The tables of the report: figures, security, and the administrator's steps.

use std::fmt::Write as _;

use maud::{Markup, html};

use crate::quantity::{Attribute, Better, Quantity};
use crate::rank::rounded;
use crate::record::Property;
use crate::results::{Results, Solution};

/// Returns the table of an attribute's quantities. The best value and all values that tie with it are bold.
pub fn attribute(results: &Results, attribute: Attribute) -> Markup {
    let of_attribute = Quantity::ALL.iter().copied().filter(|quantity| quantity.attribute() == attribute);
    let known = |quantity: &Quantity| results.solutions.iter().any(|solution| solution.summary(*quantity).is_some());
    let quantities: Vec<_> = of_attribute.filter(known).collect();
    html! {
        div.wide {
            table {
                thead { tr {
                    th { "solution" }
                    @for quantity in &quantities { th { (quantity.title()) br; small { (quantity.unit()) } } }
                } }
                tbody { @for solution in &results.solutions { tr {
                    th { (solution.name) }
                    @for quantity in &quantities { (cell(results, solution, *quantity)) }
                } } }
            }
        }
    }
}

fn cell(results: &Results, solution: &Solution, quantity: Quantity) -> Markup {
    let Some(summary) = solution.summary(quantity) else { return html! { td.number title="not measured" { "–" } } };
    let best = best(results, quantity);
    let is_best = best.is_some_and(|best| !summary.differs_from(&best));
    let range = (summary.count > 1).then(|| format!("{} to {}", rounded(summary.low), rounded(summary.high)));
    html! {
        td.number.best[is_best] {
            (rounded(summary.median))
            @if let Some(range) = range { br; small { (range) } }
        }
    }
}

fn best(results: &Results, quantity: Quantity) -> Option<crate::stats::Summary> {
    let summaries = results.solutions.iter().filter_map(|solution| solution.summary(quantity));
    summaries.reduce(|best, other| {
        let better = match quantity.better() {
            Better::More => other.median > best.median,
            Better::Less => other.median < best.median,
        };
        if better { other } else { best }
    })
}

/// Returns the table of the security properties, for the solutions on which at least one property was tried. Each
/// result links to its evidence. The other cells say "not tried".
pub fn security(results: &Results) -> Markup {
    let tried: Vec<_> = results.solutions.iter().filter(|solution| !solution.observed.is_empty()).collect();
    html! {
        @if tried.is_empty() { p { "This run tried no security." } } @else {
            div.wide { table {
                thead { tr { th { "solution" } @for property in Property::ALL { th { (property.title()) } } } }
                tbody { @for solution in &tried { tr {
                    th { (solution.name) }
                    @for property in Property::ALL { td {
                        @match solution.holds(property) {
                            Some(holds) => {
                                a.yes[holds].no[!holds] href={ "#" (anchor(solution, property)) } { (if holds { "yes" } else { "no" }) }
                            }
                            None => { "not tried" }
                        }
                    } }
                } } }
            } }
            h3 { "Evidence" }
            @for solution in &tried {
                details { summary { (solution.name) }
                    ul { @for (property, observed) in &solution.observed {
                        li id=(anchor(solution, *property)) { (property.title()) ": " (observed.evidence) "." }
                    } }
                }
            }
        }
    }
}

fn anchor(solution: &Solution, property: Property) -> String {
    format!("{}-{}", solution.name, property.name())
}

/// Returns a short table of the run in Markdown, with date, machine and versions, for a README.
pub fn markdown(results: &Results) -> String {
    const COLUMNS: [Quantity; 6] = [
        Quantity::TcpUp,
        Quantity::RttIdle,
        Quantity::CpuMachine,
        Quantity::WireLater,
        Quantity::Connect,
        Quantity::EffortNext,
    ];
    let mut text = format!("Measured {} on {}.\n\n| solution | version |", results.date, results.machine);
    for quantity in COLUMNS {
        let _ = write!(text, " {}, {} |", quantity.title(), quantity.unit());
    }
    text += "\n|---|---|";
    text += &"---|".repeat(COLUMNS.len());
    for solution in &results.solutions {
        let _ = write!(text, "\n| {} | {} |", solution.claims.title, short(&solution.version));
        for quantity in COLUMNS {
            let figure = solution.summary(quantity).map_or_else(|| "–".to_owned(), |summary| rounded(summary.median));
            let _ = write!(text, " {figure} |");
        }
    }
    text + "\n"
}

/// Returns a program's version without the list of features that some programs print after it.
fn short(version: &str) -> String {
    let version = version.split(" [").next().unwrap_or_default();
    version.replace('|', "/").replace('\t', " ").trim().to_owned()
}
