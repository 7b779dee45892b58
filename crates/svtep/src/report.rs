//! Reports this endpoint's state as a verifier to the authority, for its console. Nothing depends on it.

use api::{DropCount, Report, VerifierState};
use client::{Authority, Error};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::sleep;
use wire::DropReason;
use wire::map::counter;

/// The shortest and the longest pause between reports that an authority can ask for.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(300));
/// The pause after a failure.
const RETRY: Duration = Duration::from_secs(15);

/// Builds a report from the counters of proofs.
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

/// Sends the latest report periodically until it is aborted.
pub async fn keep(authority: Authority, mut latest: watch::Receiver<Option<Report>>) {
    loop {
        let report = latest.borrow_and_update().clone();
        let Some(report) = report else {
            if latest.changed().await.is_err() {
                return;
            }
            continue;
        };
        let pause = match authority.report(&report).await {
            Ok(answer) => Duration::from_secs(answer.pause.into()).clamp(PAUSES.0, PAUSES.1),
            Err(Error::Refused(problem)) if problem.status == 404 => return,
            Err(error) => {
                tracing::debug!(%error, "cannot report");
                RETRY
            }
        };
        sleep(pause).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_counts_proofs_as_first_packets_and_what_was_remembered_as_the_rest() {
        let mut counts = vec![0; counter::COUNT as usize];
        (counts[counter::TOKEN as usize], counts[counter::FLOW as usize]) = (3, 40);
        counts[DropReason::BadTag as usize] = 7;
        let told = report(&counts, false, Some(9));
        assert_eq!((told.admitted, told.passed, told.state), (3, 40, VerifierState::Protecting));
        assert_eq!(told.drops, [DropCount { reason: DropReason::BadTag as u8, packets: 7 }]);
        assert_eq!(report(&counts, true, None).state, VerifierState::Closed);
    }
}
