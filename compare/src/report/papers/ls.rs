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
        p { "What changed: by the carrier `tail`, a token has 40 bytes instead of 60. Only the published scheme needs a shim. L2TP needs PPP, which this machine's kernel may lack. Today, IPsec protects packets without L2TP." }
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
        p { "As published, but with the controller beside the switch. Figure 4: tokens of SHA-224 in shims. Figure 3: connections to the authority; the controller gets their SYN, announces in it that it accepts keys, and also gets the answer." }
        (cells(results, SWITCHED, "this run"))
        @if results.bench.keys().any(|name| name.starts_with("ls.fig")) {
            div.wide { table {
                thead { tr { th { "this product's bench, median of connections by TCP, ms" } th { "no controller" } th { "forwarding only" } th { "whole" } } }
                tbody { @for (place, name, modes) in SWITCH { tr { td { (place) } @for mode in modes { td.number { (figure(name, mode)) } } } } }
            } }
        } @else {
            p { code { "cargo xtask bench" } " measures first packets with a controller and a switch, as in the paper. Then, " code { "report" } " shows its figures here." }
        }
        p { "Without a controller: round trips of datagrams, each of which is the first of a new flow. A full round has 1 000 tries." }
        (cells(results, FIRST_PACKETS, "this run"))
        p { "What changed: the paper's 80 ms come from the way to the controller, which each flow's first packet went twice. An agent in the client's kernel makes tokens from a grant that it already has, so a first packet takes hardly longer than any other packet. With a controller, the time of the way to the controller still decides. Validation adds less than a millisecond, as in the paper." }
        @if !ours.is_empty() {
            p { "The agent fetches a grant once for each destination. Time from the start of the agent to the first answer, with login and grant: " @for one in ours { (one.name) " " (shown(median(results, &one.name, Quantity::Connect), "ms")) "; " } }
        }
    }
}

fn downloads(results: &Results) -> Markup {
    let at = |row: &str| results.cell(DOWNLOADS, row, "5").map(|summary| summary.median);
    let at_one = |row: &str| results.cell(DOWNLOADS, row, "1").map(|summary| summary.median);
    let (kernel, process) = (at("IPsec, kernel"), at("IPsec, user space"));
    let ipsec = kernel.or(process);
    let place = if kernel.is_some() {
        "IPsec runs in the kernel, as in the paper."
    } else {
        "IPsec runs in user space, because this kernel has no ESP, and each packet costs system calls. In the paper, IPsec ran in the kernel, so the paper's factor is smaller."
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
            p { "What changed: with five clients, Vouchsafe moves " (ratio(at("Vouchsafe"), ipsec)) " as much as IPsec (paper: 2.5 to 2.9 times) and " (ratio(at("Vouchsafe"), at("direct"))) " as much as the direct way (paper: 0.92 to 0.99 times). A gateway that only forwards moves " (ratio(at("gateway that forwards"), at("direct"))) " as much as the direct way. " (place) " Today's processors have instructions for TLS's cipher, and this run uses no cable: a single client moves " (ratio(at_one("direct"), Some(21.6))) " as much as each of the paper's five clients." }
        }
        p { "Limits of this comparison: all hosts of this run share one machine's processors, so clients, server and gateway take time from each other. In the paper, one gateway was the limit. Vouchsafe's verifier is on the gateway in this run, and on the server in the paper. This run uses TLS 1.3 with AES-256-GCM, and measures a download while it runs, not to the end of a file." }
    }
}
