//! Known facts that a run must find. They check the method, not the solutions.

use std::time::Duration;

use crate::measure::suite::Plan;
use crate::quantity::Quantity;
use crate::rank;
use crate::results::Results;
use crate::run::Depth;
use crate::stats::Summary;

/// The solutions that the checks need.
pub const SOLUTIONS: [&str; 7] =
    ["plain", "plain-again", "faulty", "openvpn-udp", "openvpn-udp-none", "openvpn-udp-camellia", "openvpn-tcp"];

/// Returns the plan of a check: it measures only the quantities that the check compares, with long enough transfers.
pub fn plan() -> Plan {
    const ONLY: &[Quantity] = &[
        Quantity::TcpUp,
        Quantity::TcpDown,
        Quantity::RttIdle,
        Quantity::Exchanges,
        Quantity::UdpLoss,
        Quantity::TcpLong5,
        Quantity::TcpLossy5,
    ];
    let span = Duration::from_secs(1);
    Plan { span, trips: 200, only: Some(ONLY), bad_paths: true, ..Depth::Smoke.plan() }
}

/// Quantities in which two runs of the same path must tie.
const SAME: [Quantity; 5] =
    [Quantity::TcpUp, Quantity::TcpDown, Quantity::RttIdle, Quantity::Exchanges, Quantity::UdpLoss];

/// Percentage of the datagrams that the faulty path drops. The measured loss may differ a little, because the count
/// starts anywhere and includes other packets.
const DROPPED: f64 = 2.0;
const DROPPED_ERROR: f64 = 0.6;

/// Minimum coverage of an interval that decides whether a truth was found.
const ENOUGH: f64 = 0.95;

/// A known truth, and whether the run found it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The known truth, in words.
    pub truth: &'static str,
    /// Whether the run found the truth; `None` if its intervals are too wide to tell, or if a measurement is missing.
    pub found: Option<bool>,
    /// The figures on which `found` is based.
    pub evidence: String,
}

/// Returns all findings of a run.
pub fn check(results: &Results) -> Vec<Finding> {
    vec![faulty(results), same(results), cipher(results), aided_cipher(results), stacked(results)]
}

fn median(results: &Results, name: &str, quantity: Quantity) -> Option<f64> {
    Some(results.solution(name)?.summary(quantity)?.median)
}

fn finding(truth: &'static str, found: Option<bool>, evidence: String) -> Finding {
    Finding { truth, found, evidence }
}

/// Checks that the run reports a loss of about 2 % for the path that drops every 50th packet, and almost none for the
/// path that drops none.
pub fn faulty(results: &Results) -> Finding {
    let loss = |name| median(results, name, Quantity::UdpLoss);
    let (faulty, plain) = (loss("faulty"), loss("plain"));
    let found = faulty.zip(plain).map(|(faulty, plain)| (faulty - DROPPED).abs() < DROPPED_ERROR && plain < 0.5);
    let shown = |loss: Option<f64>| loss.map_or_else(|| "?".to_owned(), |loss| format!("{loss:.2}"));
    let evidence =
        format!("lost: {} % where every 50th packet is dropped, {} % where none is", shown(faulty), shown(plain));
    finding("a path that drops every 50th packet is found to lose 2 %", found, evidence)
}

/// Checks that the solutions `plain` and `plain-again`, which are the same path, tie in all compared quantities.
pub fn same(results: &Results) -> Finding {
    let (Some(one), Some(other)) = (results.solution("plain"), results.solution("plain-again")) else {
        return finding("two runs of the same path tie", None, "the plain path was not measured twice".to_owned());
    };
    let ties: Vec<_> =
        SAME.into_iter().filter_map(|quantity| Some((quantity, rank::tie(one, other, quantity)?))).collect();
    let apart: Vec<_> = ties.iter().filter(|(_, tie)| !tie).map(|(quantity, _)| quantity.name()).collect();
    let found = (!ties.is_empty()).then_some(apart.is_empty());
    let but = if apart.is_empty() { String::new() } else { format!("; these do not: {}", apart.join(", ")) };
    let evidence = format!("{} of {} quantities tie{but}", ties.len() - apart.len(), ties.len());
    finding("two runs of the same path tie", found, evidence)
}

/// Checks that a tunnel without a cipher is faster than a tunnel with Camellia, which costs as much processor time as
/// all ciphers did when the papers were written. The rates are compared round by round, because the cost of system
/// calls limits both tunnels. This cost changes from round to round by more than the cipher costs.
pub fn cipher(results: &Results) -> Finding {
    let rate = Contrast::of(results, "openvpn-udp-none", "openvpn-udp-camellia", &[Quantity::TcpUp]);
    let evidence =
        format!("one stream: the rate without a cipher is {} times the rate with Camellia and SHA-512", rate.shown());
    finding("OpenVPN without cipher is faster than with a cipher in software", rate.is_above_one(), evidence)
}

/// Checks that the default cipher, for which processors have instructions, costs processor time at both ends. The
/// evidence also has the rates. They need not differ, because passing a packet through the TUN device costs many times
/// as much as encrypting it.
pub fn aided_cipher(results: &Results) -> Finding {
    let (none, aes) = ("openvpn-udp-none", "openvpn-udp");
    let work = Contrast::of(results, aes, none, &[Quantity::CpuClient, Quantity::CpuServer]);
    let rate = Contrast::of(results, none, aes, &[Quantity::TcpUp]);
    let evidence = format!(
        "both ends together use {} times as much processor time per byte with AES-256-GCM; one stream is {} times as \
         fast without a cipher{}",
        work.shown(),
        rate.shown(),
        if rate.is_above_one().is_none() { ", which does not show whether the rates differ" } else { "" }
    );
    finding("OpenVPN with its default cipher takes more processor time than without", work.is_above_one(), evidence)
}

/// The ratios of two solutions' values, round by round.
struct Contrast(Option<Summary>);

impl Contrast {
    /// Compares the sums of some quantities.
    fn of(results: &Results, one: &str, other: &str, quantities: &[Quantity]) -> Self {
        let ratios = || {
            let (one, other) = (results.solution(one)?, results.solution(other)?);
            Summary::of(&one.ratios_of_sums(other, quantities))
        };
        Self(ratios())
    }

    /// Reports whether the first value is the larger one. Returns `None` if the interval of the ratio contains 1, or if
    /// its coverage is too small.
    fn is_above_one(&self) -> Option<bool> {
        let summary = self.0.filter(|summary| summary.coverage >= ENOUGH)?;
        (summary.low > 1.0 || summary.high < 1.0).then_some(summary.low > 1.0)
    }

    fn shown(&self) -> String {
        self.0.map_or_else(|| "?".to_owned(), |one| format!("{:.2} ({:.2} to {:.2})", one.median, one.low, one.high))
    }
}

/// Checks that, at 2 % loss, streams through a tunnel over UDP are more than twice as fast as streams through a tunnel
/// over TCP.
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
