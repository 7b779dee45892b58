//! The report as an HTML page.

use anyhow::Result;
use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::{figures, papers, style, tables};
use crate::claims::{Feature, Plane};
use crate::quantity::{Attribute, Quantity};
use crate::rank::{self, presets, rounded};
use crate::record::Property;
use crate::results::{Results, Solution};

/// Renders the report as an HTML page.
///
/// # Errors
///
/// Fails if a plot can't be drawn.
pub fn render(results: &Results) -> Result<String> {
    let mut plots = Vec::new();
    for quantity in Quantity::ALL {
        if let Some(svg) = figures::bars(results, *quantity)? {
            plots.push((*quantity, svg));
        }
    }
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { "VPNs and Vouchsafe, measured side by side" }
                style { (PreEscaped(style::SHEET)) }
            }
            body {
                h1 { "VPNs and Vouchsafe, measured side by side" }
                p { (results.date) " on " (results.machine) ". " (results.solutions.len()) " solutions." }
                p { "Every figure is the median of the run's rounds. In each round, the solutions took turns. Beneath the figure is an interval: if there were at least six rounds, it contains the true median in 19 of 20 cases. Figures that tie with the best figure are bold." }
                (contents())
                (honesty(results))
                @for attribute in Attribute::ALL {
                    h2 id=(attribute.name()) { (attribute.name()) }
                    @for (quantity, svg) in plots.iter().filter(|(quantity, _)| quantity.attribute() == attribute) {
                        figure { (PreEscaped(svg)) figcaption {
                            (quantity.title()) ", " (quantity.unit()) ". Bars from the top: solutions without a transport of their own, by UDP, by TCP. The thin line is the interval."
                        } }
                    }
                    (tables::attribute(results, attribute))
                }
                h2 id="security" { "Security, as observed" }
                p { "This run saw these properties in captures and by attacks; none is taken from documentation. For solutions without an attempt with stolen keys, forward secrecy is only among the claims below." }
                (tables::security(results))
                h2 id="features" { "Features, as claimed" }
                (features(results))
                h2 id="ranking" { "Ranking" }
                @for preset in presets::ALL { (ranked(results, &preset)?) }
                h2 id="papers" { "Twenty years on" }
                (papers::section(results))
                h2 id="missing" { "Not measured" }
                (missing(results))
            }
        }
    };
    Ok(page.into_string())
}

fn contents() -> Markup {
    let others = ["security", "features", "ranking", "papers", "missing"];
    html! { nav { @for name in Attribute::ALL.map(Attribute::name).into_iter().chain(others) { a href={ "#" (name) } { (name) } " · " } } }
}

/// The treatment that stands for Vouchsafe: its default.
const DEFAULT: &str = "vouchsafe-tail";

/// Lists where others are better than Vouchsafe's default, by this run's data and by claims.
fn honesty(results: &Results) -> Markup {
    let others: Vec<&Solution> =
        results.solutions.iter().filter(|one| !["none", "Vouchsafe"].contains(&one.claims.family.as_str())).collect();
    let Some(own) = results.solution(DEFAULT).filter(|_| !others.is_empty()) else { return html! {} };
    let has = |feature: Feature| others.iter().filter(|one| one.claims.has(feature)).count();
    let lacks: Vec<_> = Feature::ALL.into_iter().filter(|feature| !own.claims.has(*feature)).collect();
    let fails: Vec<_> = Property::ALL
        .into_iter()
        .filter(|property| own.holds(*property) == Some(false))
        .map(|property| (property, others.iter().filter(|one| one.holds(property) == Some(true)).count()))
        .filter(|(_, count)| *count > 0)
        .collect();
    let slower: Vec<_> = Quantity::ALL
        .iter()
        .filter_map(|quantity| {
            let figure = own.summary(*quantity)?;
            let better = others.iter().filter(|one| {
                let other = one.summary(*quantity);
                other.is_some_and(|other| beats(*quantity, &other, &figure) && other.differs_from(&figure))
            });
            let names: Vec<_> = better.map(|one| one.name.as_str()).collect();
            (!names.is_empty()).then(|| (quantity, names.join(", ")))
        })
        .collect();
    html! {
        h2 { "What others do better than Vouchsafe" }
        p { "Vouchsafe stands here for its default treatment, a token by tail. Its sealed tunnels and virtual networks are solutions of their own below." }
        ul {
            @for feature in lacks { @if has(feature) > 0 { li { (feature.name()) ": Vouchsafe does not claim it, " (others_do(has(feature))) "." } } }
            @for (property, count) in fails { li { (property.title()) ": no for Vouchsafe, as observed; yes for " (count) " of the others." } }
            @for (quantity, names) in slower { li { (quantity.title()) ": " (names) "." } }
        }
    }
}

fn others_do(count: usize) -> String {
    if count == 1 { "1 other does".to_owned() } else { format!("{count} others do") }
}

fn beats(quantity: Quantity, one: &crate::stats::Summary, other: &crate::stats::Summary) -> bool {
    match quantity.better() {
        crate::quantity::Better::More => one.median > other.median,
        crate::quantity::Better::Less => one.median < other.median,
    }
}

fn features(results: &Results) -> Markup {
    html! { div.wide { table {
        thead { tr { th { "solution" } th { "where" } th { "cipher" } @for feature in Feature::ALL { th { (feature.name()) } } } }
        tbody { @for one in &results.solutions { tr {
            th { (one.claims.title) br; small { (one.version) } }
            td { (if one.claims.plane == Plane::Kernel { "kernel" } else { "process" }) }
            td { (one.claims.cipher) }
            @for feature in Feature::ALL { td { (if one.claims.has(feature) { "yes" } else { "" }) } }
        } } }
    } } }
}

fn ranked(results: &Results, preset: &presets::Preset) -> Result<Markup> {
    let ranking = rank::rank(results, &presets::named(preset.name)?);
    Ok(html! {
        h3 { (preset.name) }
        p { "For " (preset.title) ". Solutions with the same place tie: the data does not show which of them is better." }
        div.wide { table {
            thead { tr { th { "place" } th { "solution" } th { "score" } th { "because" } } }
            tbody { @for place in ranking.places.iter().take(10) { tr {
                td.number { (place.place) } th { (place.name) }
                td.number { (rounded(place.score)) " ± " (rounded(place.error)) }
                td { (place.reasons.join("; ")) }
            } } }
        } }
        @if !ranking.excluded.is_empty() {
            p.soft { "Left out: " @for (name, lacks) in &ranking.excluded { (name) " (" (lacks.join(", ")) ") " } }
        }
    })
}

fn missing(results: &Results) -> Markup {
    html! {
        ul { @for (name, reason) in &results.skipped { li { (name) ": " (reason) } } }
        @for solution in results.solutions.iter().filter(|one| !one.failures.is_empty()) {
            details { summary { (solution.name) ": " (solution.failures.len()) " measurements failed" }
                ul { @for (what, error) in &solution.failures { li { (what) ": " (error.lines().next().unwrap_or_default()) } } }
            }
        }
        @if results.skipped.is_empty() && results.solutions.iter().all(|one| one.failures.is_empty()) { p { "Nothing was left out." } }
    }
}
