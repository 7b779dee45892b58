//! The papers' figures and tables beside those of the run, each with a sentence on what changed.

use maud::{Markup, html};

use crate::claims::{Feature, Transport};
use crate::papers::{
    CSRA_TABLE_1, CSRA_TABLES_2_3, LS_FIGURE_5, LS_FIGURES_3_4, LS_HEADERS, LS_TABLE_1, OSLV_BEST, OSLV_FIGURE_3,
    OSLV_TABLE_1, OSLV_TABLE_2, OSLV_TABLE_3, OSLV_TABLE_4, OSLV_TABLE_5, PAPERS,
};
use crate::quantity::Quantity;
use crate::rank::{oslv, rounded};
use crate::record::Property;
use crate::results::Results;

/// Returns the section.
pub fn section(results: &Results) -> Markup {
    html! {
        p { "Values marked “paper” are the papers’ own and were not measured here; all others are of this run." }
        ul { @for (name, title) in PAPERS { li { b { (name) } ": " (title) } } }
        (oslv_figure_3(results))
        (oslv_heuristic(results))
        (oslv_tables(results))
        (csra(results))
        (ls(results))
    }
}

fn median(results: &Results, name: &str, quantity: Quantity) -> Option<f64> {
    Some(results.solution(name)?.summary(quantity)?.median)
}

fn shown(value: Option<f64>, unit: &str) -> String {
    value.map_or_else(|| "not measured".to_owned(), |value| format!("{} {unit}", rounded(value)))
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

fn oslv_figure_3(results: &Results) -> Markup {
    let rows = OSLV_FIGURE_3.iter().zip(oslv::ATTRIBUTES);
    let bandwidth = oslv::udp_and_tcp(results, Quantity::TcpUp);
    let lossy = oslv::udp_and_tcp(results, Quantity::TcpLossy5);
    let kernel = oslv::kernel_and_process(results, Quantity::TcpUp);
    html! {
        h3 { "OSLV, Figure 3: UDP against TCP channels" }
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
            p { "All of these are tunnels in processes. Solutions in the kernel move " (rounded(kernel.first / kernel.second)) " times as much by one stream as those in processes, on average; the paper saw FreeS/WAN, in the kernel, lead in latency and jitter." }
        }
        p { (match bandwidth.map(|contrast| contrast.percent()) {
            Some(change) if change >= 80.0 => "The lead of UDP channels is as large as it was.",
            Some(change) if change > 0.0 => "UDP channels still lead on a clean path, by less than the paper's 80 %: TCP's implementations cope better with each other than those of 2004.",
            Some(_) => "On a clean path UDP channels no longer lead: a stream is written in large pieces, while datagrams cost a system call each. The lead returns where the path loses packets.",
            None => "This run has not both kinds of channels.",
        }) }
    }
}

fn oslv_heuristic(results: &Results) -> Markup {
    let list = oslv::of(results, [1.0; 4]);
    let claims = |name: &str| results.solution(name).map(|solution| &solution.claims);
    let first = list.first().and_then(|(name, _)| claims(name));
    let sentence = match first {
        Some(claims) if claims.plane == crate::claims::Plane::Kernel => {
            "A solution in the kernel leads, as FreeS/WAN did among the paper's three."
        }
        Some(claims) if claims.transport == Transport::Udp => {
            "A tunnel by UDP leads, as in the paper; it runs in a process."
        }
        Some(_) => "What leads is neither in the kernel nor by UDP: the paper's finding does not hold here.",
        None => "This run lacks the four attributes.",
    };
    html! {
        h3 { "OSLV’s heuristic with equal weights" }
        p { "Paper: " (OSLV_BEST) " were best. This run, by mean rank over overhead, bandwidth, latency and jitter:" }
        ol { @for (name, rank) in list.iter().take(8) { li { (name) ", " (rounded(*rank)) } } }
        p { (sentence) }
    }
}

fn oslv_tables(results: &Results) -> Markup {
    let four =
        [Property::PayloadHidden, Property::FlippedBitNoticed, Property::IdentityHidden, Property::ReplayRefused];
    let yes = |holds: bool| if holds { "yes" } else { "no" };
    let fails = results
        .solutions
        .iter()
        .filter(|one| one.claims.has(Feature::Encrypts) && one.holds(Property::FlippedBitNoticed) == Some(false));
    let fails: Vec<_> = fails.map(|one| one.name.as_str()).collect();
    html! {
        h3 { "OSLV, Tables 1 to 3: versions, ciphers, routes" }
        div.wide { table {
            thead { tr { th { "paper" } th { "version" } th { "standard" } th { "cipher" } } }
            tbody { @for (name, version, standard, cipher) in OSLV_TABLE_1 { tr { td { (name) } td { (version) } td { (yes(standard)) } td { (cipher) } } } }
        } }
        div.wide { table {
            thead { tr { th { "this run" } th { "version" } th { "standard" } th { "cipher" } } }
            tbody { @for one in &results.solutions { tr { td { (one.name) } td { (one.version) } td { (yes(one.claims.standard)) } td { (one.claims.cipher) } } } }
        } }
        p { "Paper, effort to add a cipher: " @for (level, names) in OSLV_TABLE_2 { (level) ": " (names) ". " } }
        p { "Paper, routes: " @for (how, names) in OSLV_TABLE_3 { (how) ": " (names) ". " } }
        p { "Block ciphers with a separate MAC gave way to authenticated ciphers, and pluggable ciphers to a fixed few: that one could add a cipher is no longer thought of as a strength. Of the paper's solutions, OpenVPN, tinc, vtun, Stunnel, SSH and IPsec are still packaged." }
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
        p { @if fails.is_empty() { "Every solution of this run that encrypts notices a flipped bit." } @else {
            "These encrypt and still deliver changed packets: " (fails.join(", ")) "; the paper lists vtun without integrity, too."
        } }
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
        p { "The paper joins every node with every other by hand, so that effort grows with N²; here clients join one server, and it grows with N. The steps are those that this program's own scripts took." }
    }
}

/// Returns the line through the counts for ten clients and for eleven.
fn formula(ten: Option<f64>, next: Option<f64>) -> String {
    match (ten, next) {
        (Some(ten), Some(next)) => format!("{} + {} N", ten - 10.0 * next, next),
        _ => "not counted".to_owned(),
    }
}

fn csra(results: &Results) -> Markup {
    let variants: Vec<_> = results
        .solutions
        .iter()
        .filter(|one| ["IPsec", "OpenVPN", "fastd"].contains(&one.claims.family.as_str()))
        .collect();
    let rates: Vec<f64> =
        variants.iter().filter_map(|one| one.summary(Quantity::TcpUp)).map(|summary| summary.median).collect();
    let published: Vec<f64> = CSRA_TABLES_2_3.iter().flat_map(|(_, short, long)| [*short, *long]).collect();
    let most =
        |values: &[f64]| values.iter().copied().fold(0.0, f64::max) / values.iter().copied().fold(f64::MAX, f64::min);
    let spread = most(&rates);
    html! {
        h3 { "CSRA, Table 1: protocols by medium" }
        div.wide { table {
            thead { tr { th { "medium" } th { "encryption, paper" } th { "authentication, paper" } th { "encryption today" } th { "authentication today" } } }
            tbody { @for (medium, encryption, authentication, now, now_too) in CSRA_TABLE_1 {
                tr { th { (medium) } td { (encryption) } td { (authentication) } td { (now) } td { (now_too) } }
            } }
        } }
        h3 { "CSRA, Tables 2 and 3: throughput by cipher" }
        div.wide { table {
            thead { tr { th { "paper, IPsec in hardware" } th { "30 s runs, Kb/s" } th { "new key every 120 s, Kb/s" } } }
            tbody { @for (name, short, long) in CSRA_TABLES_2_3 { tr { td { (name) } td.number { (short) } td.number { (long) } } } }
        } }
        div.wide { table {
            thead { tr { th { "this run" } th { "cipher" } th { "one TCP stream, Mbit/s" } th { "exchanges/s" } } }
            tbody { @for one in &variants { tr {
                td { (one.name) } td { (one.claims.cipher) }
                td.number { (shown(median(results, &one.name, Quantity::TcpUp), "")) }
                td.number { (shown(median(results, &one.name, Quantity::Exchanges), "")) }
            } } }
        } }
        p { @if rates.len() > 1 {
            "In the paper the slowest and the fastest run differ by " (rounded((most(&published) - 1.0) * 100.0)) " %, because a link limited all; here, where processors limit, the fastest of these is " (rounded(spread)) " times as fast as the slowest. "
        } "This run changes no keys on purpose and is shorter than a session's lifetime; it has no counterpart to the 120 s column." }
    }
}

fn ls(results: &Results) -> Markup {
    let ours = results.solutions.iter().filter(|one| one.claims.family == "Vouchsafe");
    let ours: Vec<_> = ours.collect();
    let ipsec = median(results, "ipsec", Quantity::TcpUp5);
    let plain = median(results, "plain", Quantity::TcpUp5);
    html! {
        h3 { "LS, Figure 5: throughput of five clients" }
        table {
            thead { tr { th { "paper" } th { "value" } } }
            tbody { @for published in LS_FIGURE_5 { tr { td { (published.name) } td { (published.value) } } } }
        }
        table {
            thead { tr { th { "this run, five TCP streams" } th { "Mbit/s" } th { "against IPsec in user space" } th { "against the plain path" } } }
            tbody {
                tr { td { "plain" } td.number { (shown(plain, "")) } td {} td {} }
                tr { td { "ipsec" } td.number { (shown(ipsec, "")) } td {} td.number { (ratio(ipsec, plain)) } }
                @for one in &ours {
                    @let rate = one.summary(Quantity::TcpUp5).map(|summary| summary.median);
                    tr { td { (one.name) } td.number { (shown(rate, "")) } td.number { (ratio(rate, ipsec)) } td.number { (ratio(rate, plain)) } }
                }
            }
        }
        p { "The paper's server was limited by IPsec on one processor, as tunnels in processes are here. This run's streams carry no HTTPS, whose cost would bring all rates closer together; its IPsec is strongSwan's in user space, since most of the difference to the paper's is the kernel." }
        h3 { "LS, Figures 3 and 4: first packets" }
        div.wide { table {
            thead { tr { th { "paper, 90th percentile, ms" } th { "two round trips to the controller" } th { "forwarding only" } th { "whole" } } }
            tbody { @for (name, cells) in LS_FIGURES_3_4 { tr { td { (name) } @for cell in cells { td.number { (cell) } } } } }
        } }
        p { "This run has no controller; its counterpart is the client's connect below. " code { "cargo xtask bench network" } " measures these figures with a controller 40 ms away and beside the switch. What took 80 ms in the paper was the way to the controller, which an agent in the client's kernel does not go." }
        ul { @for one in &ours { li { (one.name) ": from the agent's start with its login to the first answer " (shown(median(results, &one.name, Quantity::Connect), "ms")) "; bytes added to a flow's first packet " (shown(median(results, &one.name, Quantity::WireFirst), "")) ", to later ones " (shown(median(results, &one.name, Quantity::WireLater), "")) "." } } }
        h3 { "LS, Table 1 and section 5.4" }
        p { "Paper, admitted of 20 requests: " @for (what, admitted) in LS_TABLE_1 { (what) " " (admitted) "; " } "this run: " @for one in &ours {
            (one.name) " " (one.observed.get(&Property::SilentToStrangers).map_or("not tried", |seen| seen.evidence.as_str())) "; "
        } }
        p { "Paper, bytes of headers: " @for published in LS_HEADERS { (published.name) " " (published.value) "; " } "this run measures " (shown(median(results, "ipsec", Quantity::WireLater), "bytes")) " for IPsec alone. L2TP needs PPP, which this machine's kernel may lack." }
    }
}

fn ratio(one: Option<f64>, other: Option<f64>) -> String {
    match (one, other) {
        (Some(one), Some(other)) if other > 0.0 => format!("{} times", rounded(one / other)),
        _ => "–".to_owned(),
    }
}
