//! What verifiers report: in memory only, of each that is enrolled the latest report and its activity over a day.

use engine::activity::{Activity, Column, Span, columns};
use engine::api::Report;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Seconds from one report of a verifier to the next, unless there are very many verifiers.
const PAUSE: u32 = 2;
/// Reports that all verifiers together send in a second.
const MOST_A_SECOND: usize = 50;

/// The reports, by verifier.
#[derive(Default)]
pub struct Reports(Mutex<BTreeMap<Arc<str>, Activity>>);

impl Reports {
    /// Takes a verifier's report; gives the seconds until the next is wanted.
    pub fn note(&self, verifier: Arc<str>, report: Report, now: u64) -> u32 {
        let mut reports = self.lock();
        reports.entry(verifier).or_default().note(report, now);
        PAUSE.max(u32::try_from(reports.len().div_ceil(MOST_A_SECOND)).unwrap_or(u32::MAX))
    }

    /// Forgets verifiers that are no longer known.
    pub fn keep(&self, known: impl Fn(&str) -> bool) {
        self.lock().retain(|verifier, _| known(verifier));
    }

    /// The latest report of each verifier and when it came, by id.
    pub fn latest(&self) -> Vec<(Arc<str>, u64, Report)> {
        let reports = self.lock();
        let latest = reports.iter().filter_map(|(verifier, activity)| Some((verifier, activity.latest()?)));
        latest.map(|(verifier, (time, report))| (verifier.clone(), time, report.clone())).collect()
    }

    /// What one verifier did within a span, or all of them.
    pub fn columns(&self, verifier: Option<&str>, span: Span, now: u64) -> Vec<Column> {
        let reports = self.lock();
        let wanted = reports.iter().filter(|(id, _)| verifier.is_none_or(|wanted| wanted == &***id));
        columns(wanted.map(|(_, activity)| activity), span, now)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, Activity>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::api::VerifierState;

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
        let latest = reports.latest();
        assert_eq!((latest.len(), &*latest[0].0, latest[0].2.admitted), (1, "edge-2", 7));
    }

    #[test]
    fn very_many_verifiers_report_less_often() {
        let reports = Reports::default();
        let pauses = (0..=3 * MOST_A_SECOND).map(|nth| reports.note(nth.to_string().into(), report(0), NOW));
        assert_eq!(pauses.last(), Some(4));
    }
}
