//! The records of a run as a table: for each solution, the summary of every quantity and what was observed.

use std::collections::BTreeMap;

use crate::claims::Claims;
use crate::quantity::Quantity;
use crate::record::{Property, Record};
use crate::stats::Summary;

/// An attempt and its outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observed {
    /// Whether the property holds.
    pub holds: Option<bool>,
    /// The figures that were seen.
    pub evidence: String,
}

/// All that is known of one solution.
#[derive(Clone, Debug, PartialEq)]
pub struct Solution {
    /// Name on the command line.
    pub name: String,
    /// Versions of its programs.
    pub version: String,
    /// Its description.
    pub claims: Claims,
    /// The measured values, in the order of rounds.
    pub samples: BTreeMap<Quantity, Vec<f64>>,
    /// The outcomes of attempts.
    pub observed: BTreeMap<Property, Observed>,
    /// Failed measurements: name and error.
    pub failures: Vec<(String, String)>,
}

impl Solution {
    /// Returns the summary of a quantity, if it was measured.
    pub fn summary(&self, quantity: Quantity) -> Option<Summary> {
        Summary::of(self.samples.get(&quantity)?)
    }

    /// Reports whether a property was seen to hold.
    pub fn holds(&self, property: Property) -> Option<bool> {
        self.observed.get(&property).and_then(|observed| observed.holds)
    }
}

/// A run as a table.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Results {
    /// When the run began.
    pub date: String,
    /// Processor, cores, kernel.
    pub machine: String,
    /// The solutions, in the order in which they were chosen.
    pub solutions: Vec<Solution>,
    /// Solutions that can't be measured here, and why.
    pub skipped: Vec<(String, String)>,
}

impl Results {
    /// Makes the table.
    pub fn of(records: &[Record]) -> Self {
        let mut this = Self::default();
        for record in records {
            this.add(record);
        }
        this.solutions.retain(|solution| !solution.samples.is_empty() || !solution.failures.is_empty());
        this
    }

    /// Finds a solution by its name.
    pub fn solution(&self, name: &str) -> Option<&Solution> {
        self.solutions.iter().find(|solution| solution.name == name)
    }

    fn add(&mut self, record: &Record) {
        match record {
            Record::Run { date, machine, .. } => {
                (self.date, self.machine) = (date.clone(), machine.clone());
            }
            Record::Solution { solution, version, claims } => {
                if self.solution(solution).is_none() {
                    self.solutions.push(Solution {
                        name: solution.clone(),
                        version: version.clone(),
                        claims: claims.clone(),
                        samples: BTreeMap::new(),
                        observed: BTreeMap::new(),
                        failures: Vec::new(),
                    });
                }
            }
            Record::Sample { solution, quantity, value, .. } => {
                if let Some(found) = self.found(solution) {
                    found.samples.entry(*quantity).or_default().push(*value);
                }
            }
            Record::Observation { solution, property, holds, evidence } => {
                if let Some(found) = self.found(solution) {
                    found.observed.insert(*property, Observed { holds: *holds, evidence: evidence.clone() });
                }
            }
            Record::Failed { solution, what, error, .. } => {
                if let Some(found) = self.found(solution) {
                    found.failures.push((what.clone(), error.clone()));
                }
            }
            Record::Skipped { solution, reason } => {
                if !self.skipped.iter().any(|(name, _)| name == solution) {
                    self.skipped.push((solution.clone(), reason.clone()));
                }
            }
            Record::Done { .. } => {}
        }
    }

    fn found(&mut self, name: &str) -> Option<&mut Solution> {
        self.solutions.iter_mut().find(|solution| solution.name == name)
    }
}
