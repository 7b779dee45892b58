//! OSLV: tunnels by UDP and TCP, in the kernel and in processes; its heuristic; its tables.

use maud::{Markup, html};

use super::{median, shown};
use crate::claims::{Feature, Plane, Transport};
use crate::papers::{
    OSLV_BEST, OSLV_FIGURE_3, OSLV_PANELS, OSLV_TABLE_1, OSLV_TABLE_2, OSLV_TABLE_3, OSLV_TABLE_4, OSLV_TABLE_5, TODAY,
};
use crate::quantity::Quantity;
use crate::rank::{oslv, rounded};
use crate::record::Property;
use crate::results::{Results, Solution};

/// The overhead to which the paper's Figure 3a is normalised, in bytes per packet.
const LEAST_OVERHEAD: f64 = 80.0;

pub fn section(results: &Results) -> Markup {
    html! { (figure_3(results)) (heuristic(results)) (tables_1_to_3(results)) (table_4(results)) (table_5(results)) }
}

fn percent(contrast: Option<oslv::Contrast>) -> String {
    contrast.map_or_else(
        || "not measured".to_owned(),
        |contrast| {
            let change = contrast.percent();
            format!("{:.0} % {}", change.abs(), if change < 0.0 { "lower" } else { "higher" })
        },
    )
}

fn figure_3(results: &Results) -> Markup {
    let rows = OSLV_FIGURE_3.iter().zip(oslv::ATTRIBUTES);
    let bandwidth = oslv::udp_and_tcp(results, Quantity::TcpUp);
    let lossy = oslv::udp_and_tcp(results, Quantity::TcpLossy5);
    let kernel = oslv::kernel_and_process(results, Quantity::TcpUp);
    let relative = |one: &Solution, quantity: Quantity, factor: f64| {
        let yardstick = median(results, "plain", quantity);
        let value = median(results, &one.name, quantity).zip(yardstick).map(|(own, plain)| own / plain * factor);
        value.map_or_else(|| "–".to_owned(), rounded)
    };
    let overhead = |one: &Solution| {
        let value = median(results, &one.name, Quantity::WireLater);
        value.map_or_else(|| "–".to_owned(), |bytes| rounded(bytes / LEAST_OVERHEAD))
    };
    let solutions = results.solutions.iter().filter(|one| one.claims.family != "none");
    html! {
        h3 { "OSLV, Figure 3: overhead, bandwidth, latency, jitter" }
        p { "The paper’s text says the following about the four panels. It does not give the values of their bars." }
        ul { @for panel in OSLV_PANELS { li { (panel.name) ": " (panel.value) } } }
        div.wide { table {
            thead { tr {
                th { "this run, normalised as in the paper" } th { "a: overhead" br; small { "of 80 bytes per packet" } }
                th { "b: bandwidth" br; small { "% of the plain path" } } th { "c: latency" br; small { "of the plain path’s" } }
                th { "d: jitter" br; small { "of the plain path’s" } }
            } }
            tbody { @for one in solutions { tr {
                td { (one.name) } td.number { (overhead(one)) } td.number { (relative(one, Quantity::TcpUp, 100.0)) }
                td.number { (relative(one, Quantity::RttIdle, 1.0)) } td.number { (relative(one, Quantity::JitterIdle, 1.0)) }
            } } }
        } }
        h4 { "Channels by UDP against channels by TCP" }
        table {
            thead { tr { th { "" } th { "paper" } th { "this run" } } }
            tbody {
                @for (published, (_, quantity)) in rows {
                    tr { th { (published.name) } td { (published.value) } td { (percent(oslv::udp_and_tcp(results, quantity))) } }
                }
                tr { th { "bandwidth of UDP tunnels at 2 % loss" } td { "–" } td { (percent(lossy)) } }
            }
        }
        @if let Some(kernel) = kernel {
            p { "All these tunnels are in processes. On average, one stream through a tunnel in the kernel moves " (rounded(kernel.first / kernel.second)) " times as much data as through a tunnel in a process. In the paper, FreeS/WAN, a tunnel in the kernel, was the best in latency and jitter." }
        }
        p { "What changed: " (match bandwidth.map(|contrast| contrast.percent()) {
            Some(change) if change >= 80.0 => "the lead of UDP channels is as large as it was.",
            Some(change) if change > 0.0 => "on a clean path, UDP channels still lead, but by less than the paper's 80 %. TCP inside TCP works better with today's implementations than with those of 2004.",
            Some(_) => "on a clean path, UDP channels no longer lead: a stream is written in large pieces, while each datagram costs a system call. UDP channels lead again if the path loses packets.",
            None => "this run does not contain both kinds of channels.",
        }) }
    }
}

fn heuristic(results: &Results) -> Markup {
    let list = oslv::of(results, [1.0; 4]);
    html! {
        h3 { "OSLV’s heuristic with equal weights" }
        p { "Paper: " (OSLV_BEST) " were best. This run, by mean rank over overhead, bandwidth, latency and jitter:" }
        ol { @for (name, rank) in list.iter().take(8) { li { (name) ", " (rounded(*rank)) } } }
        @for sentence in leaders(results, &list) { p { (sentence) } }
    }
}

/// Returns sentences about `list`, the heuristic's result: whether tunnels in the kernel and tunnels over UDP still
/// lead, and which tunnel is the best.
pub fn leaders(results: &Results, list: &[(String, f64)]) -> Vec<String> {
    let claims = |name: &str| results.solution(name).map(|solution| &solution.claims);
    // A solution without a channel of its own is no VPN, and would decide the question by not taking part.
    let tunnels: Vec<_> = list
        .iter()
        .filter_map(|(name, rank)| Some((name.as_str(), *rank, claims(name)?)))
        .filter(|(_, _, claims)| claims.transport != Transport::None)
        .collect();
    let mean = |belongs: &dyn Fn(&crate::claims::Claims) -> bool| {
        let ranks: Vec<f64> =
            tunnels.iter().filter(|(_, _, claims)| belongs(claims)).map(|(_, rank, _)| *rank).collect();
        (!ranks.is_empty()).then(|| ranks.iter().sum::<f64>() / ranks.len() as f64)
    };
    let sentence = |what: &str, first: Option<f64>, than: &str, second: Option<f64>| match first.zip(second) {
        Some((first, second)) => format!(
            "{what} {}: their mean rank is {}, and the mean rank of {than} is {}.",
            if first < second { "still lead" } else { "no longer lead" },
            rounded(first),
            rounded(second)
        ),
        None => format!("{what}: whether they lead is not known, because this run does not contain both kinds."),
    };
    let mut said = vec![
        sentence(
            "Solutions in the kernel",
            mean(&|claims| claims.plane == Plane::Kernel),
            "tunnels in processes",
            mean(&|claims| claims.plane == Plane::Process),
        ),
        sentence(
            "Tunnels by UDP",
            mean(&|claims| claims.transport == Transport::Udp && claims.plane == Plane::Process),
            "tunnels by TCP",
            mean(&|claims| claims.transport == Transport::Tcp && claims.plane == Plane::Process),
        ),
    ];
    if let Some((name, _, first)) = tunnels.first() {
        let place = if first.plane == Plane::Kernel { "in the kernel" } else { "in a process" };
        let channel = if first.transport == Transport::Udp { "UDP" } else { "TCP" };
        said.push(format!("The best of the tunnels is {name}: it runs {place}, over {channel}."));
    }
    if let Some((name, _)) = list.first()
        && claims(name).is_some_and(|claims| claims.transport == Transport::None)
    {
        said.push(format!(
            "{name} is ahead of all tunnels. It has no channel of its own; the paper contains no such solution."
        ));
    }
    said
}

fn yes(holds: bool) -> &'static str {
    if holds { "yes" } else { "no" }
}

fn tables_1_to_3(results: &Results) -> Markup {
    let mut families: Vec<&str> = Vec::new();
    for one in results.solutions.iter().filter(|one| one.claims.family != "none") {
        if !families.contains(&one.claims.family.as_str()) {
            families.push(&one.claims.family);
        }
    }
    let today = |family: &str| TODAY.iter().find(|(name, ..)| *name == family);
    html! {
        h3 { "OSLV, Table 1: the solutions" }
        div.wide { table {
            thead { tr { th { "paper" } th { "version" } th { "standard" } th { "cipher" } } }
            tbody { @for (name, version, standard, cipher) in OSLV_TABLE_1 { tr { td { (name) } td { (version) } td { (yes(standard)) } td { (cipher) } } } }
        } }
        div.wide { table {
            thead { tr { th { "this run" } th { "version" } th { "standard" } th { "cipher" } } }
            tbody { @for one in &results.solutions { tr { td { (one.name) } td { (one.version) } td { (yes(one.claims.standard)) } td { (one.claims.cipher) } } } }
        } }
        p { "What changed: block ciphers with a separate MAC gave way to authenticated ciphers. Of the paper’s solutions, OpenVPN, tinc, vtun, Stunnel, SSH and IPsec are still packaged." }
        h3 { "OSLV, Tables 2 and 3: new ciphers, routes" }
        p { "Paper, effort to add a cipher: " @for (level, names) in OSLV_TABLE_2 { (level) ": " (names) ". " } }
        p { "Paper, routes: " @for (how, names) in OSLV_TABLE_3 { (how) ": " (names) ". " } }
        div.wide { table {
            thead { tr { th { "this run, by documentation" } th { "ciphers (Table 2)" } th { "routes (Table 3)" } } }
            tbody { @for family in families { @if let Some((_, ciphers, routes)) = today(family) { tr { th { (family) } td { (ciphers) } td { (routes) } } } } }
        } }
        p { "What changed: few fixed ciphers have replaced pluggable ones, so an easy change of cipher (Table 2) is no longer regarded as a strength. WireGuard, Nebula and fastd have one cipher, or offer two or three. Then, routes (Table 3) were written by hand; now, they come from the server or from the addresses that a peer may use. Meshes that find routes by themselves are a kind of their own now; then, tinc was the only one." }
    }
}

fn table_4(results: &Results) -> Markup {
    let four =
        [Property::PayloadHidden, Property::FlippedBitNoticed, Property::IdentityHidden, Property::ReplayRefused];
    let fails = results
        .solutions
        .iter()
        .filter(|one| one.claims.has(Feature::Encrypts) && one.holds(Property::FlippedBitNoticed) == Some(false));
    let fails: Vec<_> = fails.map(|one| one.name.as_str()).collect();
    html! {
        h3 { "OSLV, Table 4: security" }
        div.wide { table {
            thead { tr { th { "paper, claimed" } th { "confidentiality" } th { "integrity" } th { "authentication" } th { "anti-replay" } } }
            tbody { @for (name, cells) in OSLV_TABLE_4 { tr { td { (name) } @for cell in cells { td { (yes(cell)) } } } } }
        } }
        div.wide { table {
            thead { tr { th { "this run, observed" } @for property in four { th { (property.title()) } } } }
            tbody { @for one in results.solutions.iter().filter(|one| !one.observed.is_empty()) { tr {
                td { (one.name) } @for property in four { td { (one.holds(property).map_or("not tried", yes)) } }
            } } }
        } }
        p { "What changed: the paper relied on documentation; this run tried the properties. " @if fails.is_empty() { "Every solution of this run that encrypts notices a flipped bit." } @else {
            "These solutions encrypt, but deliver changed packets: " (fails.join(", ")) ". In the paper, too, vtun has no integrity."
        } }
    }
}

fn table_5(results: &Results) -> Markup {
    html! {
        h3 { "OSLV, Table 5: effort for ten nodes" }
        div.wide { table {
            thead { tr { th { "paper: full mesh" } th { "formula" } th { "N = 10" } } }
            tbody { @for (name, formula, ten) in OSLV_TABLE_5 { tr { td { (name) } td { (formula) } td.number { (ten) } } } }
        } }
        div.wide { table {
            thead { tr { th { "this run: one server, counted" } th { "formula in N clients" } th { "N = 10" } th { "one more" } } }
            tbody { @for one in &results.solutions { tr {
                td { (one.name) } td { (formula(median(results, &one.name, Quantity::EffortTen), median(results, &one.name, Quantity::EffortNext))) }
                td.number { (shown(median(results, &one.name, Quantity::EffortTen), "")) }
                td.number { (shown(median(results, &one.name, Quantity::EffortNext), "")) }
            } } }
        } }
        p { "What changed: in the paper, every node is joined with every other by hand, so the effort grows with N². In this run, clients join one server, and the effort grows with N. The counted steps are those of this program's own scripts." }
    }
}

/// Returns the line through the counts for ten clients and for eleven.
fn formula(ten: Option<f64>, next: Option<f64>) -> String {
    match (ten, next) {
        (Some(ten), Some(next)) => format!("{} + {} N", ten - 10.0 * next, next),
        _ => "not counted".to_owned(),
    }
}
