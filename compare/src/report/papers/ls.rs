//! LS: downloads by several clients, first packets, and bytes of headers.

use maud::{Markup, html};

use super::{cells, median, ratio, shown};
use crate::papers::{LS_FIGURE_5, LS_FIGURES_3_4, LS_HEADERS, LS_TABLE_1};
use crate::quantity::Quantity;
use crate::record::Property;
use crate::results::{Results, Solution};
use crate::study::{DOWNLOADS, FIRST_PACKETS, SWITCHED};

/// The bench's figures with a switch: those of the paper's scenarios, by the place of the agent.
const SWITCH: [(&str, &str, [&str; 3]); 5] = [
    ("router's switch, controller 40 ms away", "ls.fig3.router", ["none", "proforma", "full"]),
    ("client's switch, controller 40 ms away", "ls.fig3.client_ovs", ["none", "proforma", "full"]),
    ("router's switch, controller beside it", "ls.fig4.router", ["none", "proforma", "full"]),
    ("client's switch, controller beside it", "ls.fig4.client_ovs", ["none", "proforma", "full"]),
    ("program in the client's kernel", "ls.fig4.client_ebpf", ["none", "", "full"]),
];

pub fn section(results: &Results) -> Markup {
    let ours: Vec<_> = results.solutions.iter().filter(|one| one.claims.family == "Vouchsafe").collect();
    html! {
        h3 { "LS, Table 1: effectiveness" }
        p { "Paper, admitted of 20 requests: " @for (what, admitted) in LS_TABLE_1 { (what) " " (admitted) "; " } "this run: " @for one in &ours {
            (one.name) " " (one.observed.get(&Property::SilentToStrangers).map_or("not tried", |seen| seen.evidence.as_str())) "; "
        } }
        p { "What changed: nothing in the outcome. The check moved from a module of iptables to programs at XDP and tc." }
        (first_packets(results, &ours))
        (downloads(results))
        h3 { "LS, section 5.4: bytes of headers" }
        p { "Paper: " @for published in LS_HEADERS { (published.name) " " (published.value) "; " } "this run measures " (shown(median(results, "ipsec", Quantity::WireLater), "bytes")) " for IPsec alone in each packet, and for Vouchsafe:" }
        ul { @for one in &ours { li { (one.name) ": " (shown(median(results, &one.name, Quantity::WireFirst), "bytes")) " in a flow's first packet, " (shown(median(results, &one.name, Quantity::WireLater), "")) " in later ones." } } }
        p { "What changed: the token shrank from 60 bytes to 40 with the tail, and a shim is needed only for the published scheme. L2TP needs PPP, which this machine's kernel may lack; IPsec now protects packets without it." }
    }
}

fn first_packets(results: &Results, ours: &[&Solution]) -> Markup {
    let figure = |name: &str, mode: &str| {
        let value = results.bench.get(&format!("{name}.{mode}_us"));
        value.map_or_else(|| "–".to_owned(), |microseconds| format!("{:.2}", microseconds / 1000.0))
    };
    html! {
        h3 { "LS, Figures 3 and 4: first packets" }
        div.wide { table {
            thead { tr { th { "paper, 90th percentile of 1 000 tries, ms" } th { "two round trips to the controller" } th { "forwarding only" } th { "whole" } } }
            tbody { @for (name, cells) in LS_FIGURES_3_4 { tr { td { (name) } @for cell in cells { td.number { (cell) } } } } }
        } }
        p { "As published, with the controller beside the switch: tokens of SHA-224 by shim (4), and connections to the authority whose SYN announces that keys are taken and whose answer comes up, too (3)." }
        (cells(results, SWITCHED, "this run"))
        @if results.bench.keys().any(|name| name.starts_with("ls.fig")) {
            div.wide { table {
                thead { tr { th { "this product's bench, median of connections by TCP, ms" } th { "no controller" } th { "forwarding only" } th { "whole" } } }
                tbody { @for (place, name, modes) in SWITCH { tr { td { (place) } @for mode in modes { td.number { (figure(name, mode)) } } } } }
            } }
        } @else {
            p { "With a controller and a switch as in the paper, " code { "cargo xtask bench" } " measures it; " code { "report" } " takes its figures up." }
        }
        p { "Without a controller: round trips of first datagrams, each of a new flow, 1 000 tries in a full round." }
        (cells(results, FIRST_PACKETS, "this run"))
        p { "What changed: the paper's 80 ms were the way to the controller, which each flow's first packet went twice. An agent in the client's kernel makes tokens from a grant that it has, so that a first packet takes hardly longer than any other. With a controller the way there still decides; what validation adds to it is below a millisecond, as in the paper." }
        @if !ours.is_empty() {
            p { "A grant is fetched once for each destination; with the login before it, this is the time to the first answer: " @for one in ours { (one.name) " " (shown(median(results, &one.name, Quantity::Connect), "ms")) "; " } }
        }
    }
}

fn downloads(results: &Results) -> Markup {
    let at = |row: &str| results.cell(DOWNLOADS, row, "5").map(|summary| summary.median);
    let at_one = |row: &str| results.cell(DOWNLOADS, row, "1").map(|summary| summary.median);
    let (kernel, process) = (at("IPsec, kernel"), at("IPsec, user space"));
    let ipsec = kernel.or(process);
    let place = if kernel.is_some() {
        "IPsec is the kernel's, as in the paper."
    } else {
        "IPsec is in user space here, where each packet costs system calls, because this kernel has no ESP; the paper's was in the kernel, so that its factor is smaller."
    };
    html! {
        h3 { "LS, Figure 5: HTTPS downloads by one to five clients" }
        table {
            thead { tr { th { "paper" } th { "value" } } }
            tbody { @for published in LS_FIGURE_5 { tr { td { (published.name) } td { (published.value) } } } }
        }
        p { "This run: the median client’s rate, by the number of clients." }
        (cells(results, DOWNLOADS, "scenario"))
        @if ipsec.is_some() {
            p { "What changed: with five clients Vouchsafe moves " (ratio(at("Vouchsafe"), ipsec)) " as much as IPsec (paper: 2.5 to 2.9 times) and " (ratio(at("Vouchsafe"), at("direct"))) " as much as the direct way (paper: 0.92 to 0.99 times); the gateway that only forwards moves " (ratio(at("gateway that forwards"), at("direct"))) ". " (place) " Since then processors got instructions for TLS's cipher, and there is no cable here: one client moves " (ratio(at_one("direct"), Some(21.6))) " as much as in the paper with five." }
        }
        p { "Limits: all hosts share this machine's processors, so that clients, server and gateway take time from each other, while the paper's limited one gateway. Vouchsafe's verifier is on the gateway here and on the server in the paper. TLS 1.3 with AES-256-GCM; a download is measured while it runs, and not to the end of a file." }
    }
}
