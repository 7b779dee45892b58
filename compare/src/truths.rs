//! Known truths that a run must find: checks of the method, not of the solutions.

use crate::quantity::Quantity;
use crate::rank;
use crate::results::Results;

/// The solutions that the checks need.
pub const SOLUTIONS: [&str; 6] = ["plain", "plain-again", "faulty", "openvpn-udp", "openvpn-udp-none", "openvpn-tcp"];

/// Quantities in which two runs of the same path must tie.
const SAME: [Quantity; 5] =
    [Quantity::TcpUp, Quantity::TcpDown, Quantity::RttIdle, Quantity::Exchanges, Quantity::UdpLoss];

/// Part of the datagrams that the faulty path drops, in percent, and how far the measured one may be from it: the count
/// begins anywhere, and other packets are counted, too.
const DROPPED: f64 = 2.0;
const DROPPED_ERROR: f64 = 0.6;

/// A known truth, and whether the run found it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The truth.
    pub truth: &'static str,
    /// Whether the run found it; unknown if its intervals do not tell, or a measurement is missing.
    pub found: Option<bool>,
    /// The figures.
    pub evidence: String,
}

/// Returns all findings of a run.
pub fn check(results: &Results) -> Vec<Finding> {
    vec![faulty(results), same(results), cipher(results), stacked(results)]
}

fn median(results: &Results, name: &str, quantity: Quantity) -> Option<f64> {
    Some(results.solution(name)?.summary(quantity)?.median)
}

fn finding(truth: &'static str, found: Option<bool>, evidence: String) -> Finding {
    Finding { truth, found, evidence }
}

/// A path that drops every 50th packet is reported so, and one that drops none, too.
pub fn faulty(results: &Results) -> Finding {
    let loss = |name| median(results, name, Quantity::UdpLoss);
    let (faulty, plain) = (loss("faulty"), loss("plain"));
    let found = faulty.zip(plain).map(|(faulty, plain)| (faulty - DROPPED).abs() < DROPPED_ERROR && plain < 0.5);
    let shown = |loss: Option<f64>| loss.map_or_else(|| "?".to_owned(), |loss| format!("{loss:.2}"));
    let evidence =
        format!("lost: {} % where every 50th packet is dropped, {} % where none is", shown(faulty), shown(plain));
    finding("a path that drops every 50th packet is found to lose 2 %", found, evidence)
}

/// Two runs of the same path tie.
pub fn same(results: &Results) -> Finding {
    let (Some(one), Some(other)) = (results.solution("plain"), results.solution("plain-again")) else {
        return finding("two runs of the same path tie", None, "the plain path was not measured twice".to_owned());
    };
    let ties: Vec<_> =
        SAME.into_iter().filter_map(|quantity| Some((quantity, rank::tie(one, other, quantity)?))).collect();
    let apart: Vec<_> = ties.iter().filter(|(_, tie)| !tie).map(|(quantity, _)| quantity.name()).collect();
    let found = (!ties.is_empty()).then_some(apart.is_empty());
    let evidence = format!("{} of {} quantities tie {}", ties.len() - apart.len(), ties.len(), apart.join(", "));
    finding("two runs of the same path tie", found, evidence)
}

/// A tunnel without cipher is faster than with one.
pub fn cipher(results: &Results) -> Finding {
    let of = |name: &str| results.solution(name)?.summary(Quantity::TcpUp);
    let (with, without) = (of("openvpn-udp"), of("openvpn-udp-none"));
    let found = with
        .zip(without)
        .and_then(|(with, without)| with.differs_from(&without).then_some(without.median > with.median));
    let shown = |summary: Option<crate::stats::Summary>| {
        summary.map_or_else(|| "?".to_owned(), |one| format!("{:.0} ({:.0} to {:.0})", one.median, one.low, one.high))
    };
    let evidence = format!("one stream, Mbit/s: {} without cipher, {} with", shown(without), shown(with));
    finding("OpenVPN without cipher is faster than with", found, evidence)
}

/// Loss costs streams in a TCP channel more than streams in a UDP channel.
pub fn stacked(results: &Results) -> Finding {
    let kept = |name: &str| {
        let [lossy, long] = [Quantity::TcpLossy5, Quantity::TcpLong5].map(|quantity| median(results, name, quantity));
        Some(lossy? / long?)
    };
    let (udp, tcp) = (kept("openvpn-udp"), kept("openvpn-tcp"));
    let rate = |name| median(results, name, Quantity::TcpLossy5);
    let ahead = rate("openvpn-udp").zip(rate("openvpn-tcp")).map(|(udp, tcp)| udp > 2.0 * tcp);
    let shown = |rate: Option<f64>| rate.map_or_else(|| "?".to_owned(), |rate| format!("{rate:.1}"));
    let percent = |kept: Option<f64>| kept.map_or_else(|| "?".to_owned(), |kept| format!("{:.0} %", kept * 100.0));
    let evidence = format!(
        "five streams at 2 % loss, Mbit/s: {} by UDP ({} of the rate without loss), {} by TCP ({})",
        shown(rate("openvpn-udp")),
        percent(udp),
        shown(rate("openvpn-tcp")),
        percent(tcp)
    );
    finding("TCP inside TCP collapses under 2 % loss, TCP inside UDP does not", ahead, evidence)
}
