//! Reports a role's state to the authority, for its console. Nothing else depends on reports. While the authority can't
//! be reached, no reports are queued.

use crate::Backoff;
use anyhow::Result;
use api::{Report, Reported};
use client::{Authority, Error};
use std::time::{Duration, Instant};
use tokio::time::sleep;

/// The shortest and the longest pause between reports that an authority may request.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(300));
/// Pause after the authority has answered that it does not accept reports. The operator may upgrade the authority
/// meanwhile, and a newer one accepts reports.
const UNWANTED: Duration = Duration::from_secs(600);
/// Minimum ratio of the pause to the time that collecting the figures took, so that long tables cost at most a
/// twentieth of a core.
const SHARE: u32 = 20;
/// Upper limit of the pause that [`SHARE`] demands, so that the authority does not consider a busy role silent.
const REST_MAX: Duration = Duration::from_secs(15);

/// Sends reports to the authority, one after the other, until the task is aborted. `figures` is called for each report
/// and returns its content.
pub async fn report<F: Future<Output = Result<Report>>>(authority: Authority, figures: impl Fn() -> F) {
    let mut pace = Pace { backoff: Backoff::AUTHORITY, is_unwanted: false };
    loop {
        let began = Instant::now();
        let figures = figures().await;
        let took = began.elapsed();
        let answer = match figures {
            Ok(report) => authority.report(&report).await,
            Err(error) => Err(Error::Other(format!("{error:#}"))),
        };
        sleep(pace.after(&answer).max((took * SHARE).min(REST_MAX))).await;
    }
}

/// Decides when the next report is due.
struct Pace {
    backoff: Backoff,
    /// Whether the authority did not accept the last report.
    is_unwanted: bool,
}

impl Pace {
    fn after(&mut self, answer: &Result<Reported, Error>) -> Duration {
        let was_unwanted = std::mem::take(&mut self.is_unwanted);
        match answer {
            Ok(answer) => {
                self.backoff.reset();
                Duration::from_secs(answer.pause.into()).clamp(PAUSES.0, PAUSES.1)
            }
            Err(Error::Refused(problem)) if problem.status == 404 => {
                if !was_unwanted {
                    tracing::info!("the authority accepts no reports, so its console shows no figures of this host");
                }
                self.is_unwanted = true;
                UNWANTED
            }
            Err(error) => {
                tracing::debug!(%error, "cannot report");
                self.backoff.pause()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::Problem;

    fn refused(status: u16) -> Result<Reported, Error> {
        Err(Error::Refused(Problem { r#type: "x".into(), title: "x".into(), status, detail: None }))
    }

    fn accepted(pause: u32) -> Result<Reported, Error> {
        Ok(Reported { pause, now: 0 })
    }

    #[test]
    fn reports_go_on_after_an_authority_that_takes_none_was_upgraded() {
        let mut pace = Pace { backoff: Backoff::AUTHORITY, is_unwanted: false };
        for _ in 0..3 {
            assert_eq!(pace.after(&refused(404)), UNWANTED);
        }
        assert_eq!(pace.after(&accepted(7)).as_secs(), 7);
    }

    #[test]
    fn failures_make_pauses_longer_and_an_answer_sets_them() {
        let mut pace = Pace { backoff: Backoff::AUTHORITY, is_unwanted: false };
        let pauses: Vec<_> = (0..3).map(|_| pace.after(&refused(503)).as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4]);
        for (asked, given) in [(0, 1), (7, 7), (9999, 300)] {
            assert_eq!(pace.after(&accepted(asked)).as_secs(), given);
        }
        assert_eq!(pace.after(&refused(503)).as_secs(), 1);
    }
}
