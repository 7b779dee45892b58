//! The reports of the enrolled verifiers, in memory only: the latest report of each, and its activity over a day.

use crate::push::activity::{Activity, Column, Span, columns};
use api::Report;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Seconds between two reports of a verifier, unless there are very many verifiers.
const PAUSE: u32 = 2;
/// Maximum number of reports per second from all verifiers together.
const MOST_A_SECOND: usize = 50;
/// A verifier is silent after this many seconds without a report, or after this many missed reports, whichever is
/// longer.
const SILENCE: (u32, u32) = (30, 3);

/// The latest report of a verifier.
pub struct Latest {
    /// The verifier's id.
    pub verifier: Arc<str>,
    /// Time of arrival, in Unix seconds.
    pub time: u64,
    /// Whether the report is current. If not, the verifier has sent no report for 30 seconds or for three report
    /// intervals, whichever is longer.
    pub is_current: bool,
    /// The contents of the report.
    pub report: Report,
}

/// The reports of all verifiers.
#[derive(Default)]
pub struct Reports(Mutex<BTreeMap<Arc<str>, Activity>>);

impl Reports {
    /// Records a report that arrived at `now`, and returns the number of seconds until the verifier's next report is
    /// due.
    pub fn note(&self, verifier: Arc<str>, report: Report, now: u64) -> u32 {
        let mut reports = self.lock();
        reports.entry(verifier).or_default().note(report, now);
        pause(reports.len())
    }

    /// Removes the reports of the verifiers for which `known` returns false.
    pub fn keep(&self, known: impl Fn(&str) -> bool) {
        self.lock().retain(|verifier, _| known(verifier));
    }

    /// Returns the latest report of each verifier, sorted by id. `now` decides which reports are current.
    pub fn latest(&self, now: u64) -> Vec<Latest> {
        let reports = self.lock();
        let silence = u64::from(SILENCE.0.max(pause(reports.len()).saturating_mul(SILENCE.1)));
        let latest = reports.iter().filter_map(|(verifier, activity)| Some((verifier, activity.latest()?)));
        let latest = latest.map(|(verifier, (time, report))| {
            let (verifier, report, is_current) = (verifier.clone(), report.clone(), time.abs_diff(now) <= silence);
            Latest { verifier, time, is_current, report }
        });
        latest.collect()
    }

    /// Returns the activity of one verifier, or of all verifiers together, in the columns of a span that ends at `now`.
    pub fn columns(&self, verifier: Option<&str>, span: Span, now: u64) -> Vec<Column> {
        let reports = self.lock();
        let wanted = reports.iter().filter(|(id, _)| verifier.is_none_or(|wanted| wanted == &***id));
        columns(wanted.map(|(_, activity)| activity), span, now)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, Activity>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the seconds between two reports for this number of verifiers.
fn pause(verifiers: usize) -> u32 {
    PAUSE.max(u32::try_from(verifiers.div_ceil(MOST_A_SECOND)).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::VerifierState;

    const NOW: u64 = 1_772_452_800;

    fn report(admitted: u64) -> Report {
        let (drops, flows) = (Vec::new(), Vec::new());
        Report { state: VerifierState::Protecting, keys_until: None, admitted, passed: 0, drops, live: 0, flows }
    }

    #[test]
    fn each_verifier_speaks_for_itself_and_they_add_up() {
        let reports = Reports::default();
        for (verifier, admitted) in [("edge-1", 0), ("edge-2", 0), ("edge-1", 5), ("edge-2", 7)] {
            assert_eq!(reports.note(verifier.into(), report(admitted), NOW), PAUSE);
        }
        let admitted = |verifier| reports.columns(verifier, Span::Hour, NOW).last().unwrap().amount.unwrap().admitted;
        assert_eq!((admitted(Some("edge-1")), admitted(Some("edge-2")), admitted(None)), (5, 7, 12));
        reports.keep(|verifier| verifier == "edge-2");
        let latest = reports.latest(NOW);
        assert_eq!((latest.len(), &*latest[0].verifier, latest[0].report.admitted), (1, "edge-2", 7));
    }

    #[test]
    fn very_many_verifiers_report_less_often() {
        let reports = Reports::default();
        let pauses = (0..=3 * MOST_A_SECOND).map(|nth| reports.note(nth.to_string().into(), report(0), NOW));
        assert_eq!(pauses.last(), Some(4));
    }

    #[test]
    fn a_verifier_is_silent_after_half_a_minute_and_after_three_of_its_reports_where_there_are_very_many() {
        let is_current = |verifiers: usize, after: u64| {
            let reports = Reports::default();
            for nth in 0..verifiers {
                reports.note(nth.to_string().into(), report(0), NOW);
            }
            reports.latest(NOW + after).iter().filter(|latest| latest.is_current).count()
        };
        assert_eq!((is_current(3, 30), is_current(3, 31)), (3, 0));
        // 20 000 verifiers report every 400 s.
        assert_eq!((is_current(20_000, 1200), is_current(20_000, 1201)), (20_000, 0));
    }
}
