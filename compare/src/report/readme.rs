//! The comparison in the README: a short table of a committed result, between two marks.

use anyhow::{Context, Result, bail};

use super::tables;
use crate::quantity::Quantity;
use crate::results::Results;
use crate::stats::Summary;

/// The marks around the generated text.
const MARKS: [&str; 2] =
    ["<!-- generated: cargo xtask compare report --from compare/result --into README.md -->", "<!-- /generated -->"];
/// The section before which the comparison's goes, if the text has no marks yet.
const BEFORE: &str = "\n## Status\n";
/// The solutions in the table: one of each kind that many people know, and every treatment of Vouchsafe's.
const SOLUTIONS: [&str; 16] = [
    "plain",
    "vouchsafe-tail",
    "vouchsafe-shim",
    "vouchsafe-stream",
    "vouchsafe-seal",
    "vouchsafe-seal-auth",
    "vouchsafe-proofs",
    "wireguard",
    "wireguard-go",
    "openvpn-udp",
    "openvpn-tcp",
    "ipsec-kernel",
    "ipsec",
    "ocserv-dtls",
    "softether",
    "ssh",
];

/// Returns the comparison that belongs between [`MARKS`] in the README, as Markdown.
pub fn generated(results: &Results) -> String {
    let shown: Vec<_> =
        results.solutions.iter().filter(|one| SOLUTIONS.contains(&one.name.as_str())).cloned().collect();
    let left = results.solutions.len() - shown.len();
    let table = tables::markdown(&Results { solutions: shown, ..results.clone() });
    format!(
        "{table}\nThe figures are medians over rounds, on one machine whose processors all solutions shared. {}\n\
         [docs/compare.md](docs/compare.md) describes the method, and what it favours and hides. `cargo xtask compare report\n\
         --from compare/result` shows {left} more solutions, intervals, security as observed, and where others are better.\n",
        spread(results)
    )
}

/// Returns a sentence about how much the plain path's rate differed between rounds; empty if there is no plain path.
fn spread(results: &Results) -> String {
    let plain = results.solution("plain").and_then(|plain| plain.summary(Quantity::TcpUp));
    let Some(Summary { low, high, .. }) = plain else { return String::new() };
    format!(
        "The plain path's own\nrate differed from {low:.0} to {high:.0} Mbit/s between rounds, so smaller differences say nothing."
    )
}

/// Returns the README `text` with the comparison between its marks, in place of an earlier comparison. If `text` has no
/// marks, adds a section with marks.
///
/// # Errors
/// Fails if the marks are in the wrong order, or if one of them is missing. Also fails if the README has no marks and
/// lacks the section before which the new section would go.
pub fn insert(text: &str, results: &Results) -> Result<String> {
    let [open, close] = MARKS;
    let block = format!("{open}\n{}{close}", generated(results));
    match (text.find(open), text.find(close)) {
        (Some(from), Some(to)) if from < to => Ok(text[..from].to_owned() + &block + &text[to + close.len()..]),
        (None, None) => {
            let at =
                text.find(BEFORE).with_context(|| format!("there is no section{BEFORE}to put the table before"))?;
            Ok(format!("{}\n## Compared with VPNs\n\n{block}\n{}", &text[..at], &text[at..]))
        }
        _ => bail!("one of the marks is missing, or they are in the wrong order: {open} … {close}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_solution_of_the_table_exists() {
        let known: Vec<_> = crate::drivers::all().iter().map(|driver| driver.name()).collect();
        for name in SOLUTIONS {
            assert!(known.iter().any(|one| one == name), "no solution {name}");
        }
    }
}
