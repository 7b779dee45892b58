//! CSRA: protocols by medium, and the costs of ciphers, forward secrecy and new keys.

use maud::{Markup, html};

use super::cells;
use crate::papers::{CSRA_TABLE_1, CSRA_TABLES_2_3};
use crate::rank::rounded;
use crate::results::Results;
use crate::study::CIPHERS;

pub fn section(results: &Results) -> Markup {
    html! {
        h3 { "CSRA, Table 1: protocols by medium" }
        div.wide { table {
            thead { tr { th { "medium" } th { "encryption, paper" } th { "authentication, paper" } th { "encryption today" } th { "authentication today" } } }
            tbody { @for (medium, encryption, authentication, now, now_too) in CSRA_TABLE_1 {
                tr { th { (medium) } td { (encryption) } td { (authentication) } td { (now) } td { (now_too) } }
            } }
        } }
        p { "What changed: then, each medium had its own encryption; now, tunnels and TLS work over any medium. Certificates, single sign-on and passkeys have replaced passwords. None of the paper's ciphers is recommended any more." }
        h3 { "CSRA, Tables 2 and 3: cipher, forward secrecy, and new keys" }
        div.wide { table {
            thead { tr { th { "paper, IPsec in hardware" } th { "Table 2: 30 s runs, Kb/s" } th { "Table 3: 10 min, new key every 120 s, Kb/s" } } }
            tbody { @for (name, short, long) in CSRA_TABLES_2_3 { tr { td { (name) } td.number { (short) } td.number { (long) } } } }
        } }
        (cells(results, CIPHERS, "this run"))
        p { (spread(results)) " " (cost_of_keys(results)) }
        p { "A stream of this run is shorter than the paper's. Keys are renewed every second instead of every 120 s: up to five times in a run, as in the paper. The table shows how often. " code { "run ciphers --paper-lengths" } " takes the paper's times. Without a group in the proposal, IKEv2 derives new keys from the first exchange. The paper calls the exchange of its phase 2 perfect forward secrecy. The paper measured no exchanges." }
    }
}

fn median(results: &Results, row: &str, column: &str) -> Option<f64> {
    results.cell(CIPHERS, row, column).map(|summary| summary.median)
}

/// Tells how far ciphers are apart, then and now.
fn spread(results: &Results) -> String {
    let most =
        |values: &[f64]| values.iter().copied().fold(0.0, f64::max) / values.iter().copied().fold(f64::MAX, f64::min);
    let published: Vec<f64> = CSRA_TABLES_2_3.iter().map(|(_, short, _)| *short).collect();
    let cells = results.study(CIPHERS);
    let rows = cells.iter().filter(|cell| cell.column == "stream" && cell.row.starts_with("IPsec"));
    let rates: Vec<f64> = rows.filter_map(|cell| median(results, &cell.row, "stream")).collect();
    if rates.len() < 2 {
        return String::new();
    }
    format!(
        "What changed: in the paper, the slowest and the fastest cipher differ by {} %, because a link and a processor \
         made for encryption limited all ciphers. In this run, general processors limit them, and the fastest is {} times \
         as fast as the slowest.",
        rounded((most(&published) - 1.0) * 100.0),
        rounded(most(&rates))
    )
}

/// Tells what new keys cost, then and now.
fn cost_of_keys(results: &Results) -> String {
    let loss = |before: f64, after: f64| (1.0 - after / before) * 100.0;
    let published: Vec<f64> = CSRA_TABLES_2_3[2..].iter().map(|(_, short, long)| loss(*short, *long)).collect();
    let row = "IPsec: AES-256-GCM, forward secrecy";
    let own = median(results, row, "stream").zip(median(results, row, "stream, keys renewed by time"));
    let Some((steady, renewed)) = own else { return String::new() };
    // Both ciphers lose the same.
    let published = published.iter().sum::<f64>() / published.len() as f64;
    format!(
        "In the paper, renewal with forward secrecy costs {} % of the rate. In this run, {row} moves {} % {} data with a \
         new key each second.",
        rounded(published),
        rounded(loss(steady, renewed).abs()),
        if renewed < steady { "less" } else { "more" }
    )
}
