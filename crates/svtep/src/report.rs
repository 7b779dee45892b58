//! The figures that the endpoint reports as a verifier, for the authority's console.

use anyhow::{Context, Result};
use api::{DropCount, Report, VerifierState};
use tokio::sync::watch;
use wire::DropReason;
use wire::map::counter;

/// Builds a report from the counters of the program that checks proofs. `keys_until` is in Unix seconds.
pub fn report(counts: &[u64], is_closed: bool, keys_until: Option<u64>) -> Report {
    let count = |index: u32| counts.get(index as usize).copied().unwrap_or_default();
    let drops = DropReason::ALL.iter().map(|reason| (*reason as u8, count(*reason as u32)));
    Report {
        state: if is_closed { VerifierState::Closed } else { VerifierState::Protecting },
        keys_until,
        admitted: count(counter::TOKEN),
        passed: count(counter::FLOW),
        drops: drops
            .filter(|(_, packets)| *packets > 0)
            .map(|(reason, packets)| DropCount { reason, packets })
            .collect(),
        // There are no flows: segments have none.
        live: 0,
        flows: Vec::new(),
    }
}

/// Returns the latest report. If there is no report yet, waits for the first one.
pub async fn latest(mut reports: watch::Receiver<Option<Report>>) -> Result<Report> {
    let report = reports.wait_for(Option::is_some).await.context("the tunnel endpoint is stopping")?;
    report.clone().context("the tunnel endpoint has made no report yet")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_counts_proofs_as_first_packets_and_what_was_remembered_as_the_rest() {
        let mut counts = vec![0; counter::COUNT as usize];
        (counts[counter::TOKEN as usize], counts[counter::FLOW as usize]) = (3, 40);
        counts[DropReason::BadTag as usize] = 7;
        let reported = report(&counts, false, Some(9));
        assert_eq!((reported.admitted, reported.passed, reported.state), (3, 40, VerifierState::Protecting));
        assert_eq!(reported.drops, [DropCount { reason: DropReason::BadTag as u8, packets: 7 }]);
        assert_eq!(report(&counts, true, None).state, VerifierState::Closed);
    }
}
