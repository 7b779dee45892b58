//! The records of a run as a table: for each solution, the summary of every quantity and the outcome of every security
//! property that was tried.

use std::collections::BTreeMap;

use crate::claims::Claims;
use crate::quantity::Quantity;
use crate::record::{Property, Record};
use crate::stats::Summary;

/// The outcome of trying a security property.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observed {
    /// Whether the property holds; `None` if the attempt failed.
    pub holds: Option<bool>,
    /// The observed figures on which the outcome is based.
    pub evidence: String,
}

/// All that is known of one solution.
#[derive(Clone, Debug, PartialEq)]
pub struct Solution {
    /// Name on the command line.
    pub name: String,
    /// Versions of the solution's programs.
    pub version: String,
    /// The solution's description.
    pub claims: Claims,
    /// The measured values, in the order of rounds.
    pub samples: BTreeMap<Quantity, Vec<f64>>,
    /// For each value in `samples`, the round in which it was measured.
    pub rounds: BTreeMap<Quantity, Vec<u32>>,
    /// The outcomes of the security properties that were tried.
    pub observed: BTreeMap<Property, Observed>,
    /// Failed measurements: name and error.
    pub failures: Vec<(String, String)>,
}

impl Solution {
    /// Returns the summary of a quantity, if it was measured.
    pub fn summary(&self, quantity: Quantity) -> Option<Summary> {
        Summary::of(self.samples.get(&quantity)?)
    }

    /// Adds up the values of `quantities` in each round, for this solution and for `other`. Returns, for each round in
    /// which both solutions have all values, the ratio of this solution's sum to the other's. Other work on the machine
    /// in a round slows both solutions, so a ratio within one round varies less than the values do.
    pub fn ratios_of_sums(&self, other: &Self, quantities: &[Quantity]) -> Vec<f64> {
        let others = other.sums(quantities);
        self.sums(quantities).iter().filter_map(|(round, value)| Some(value / others.get(round)?)).collect()
    }

    /// Returns the sum of some quantities for each round in which all of them were measured.
    fn sums(&self, quantities: &[Quantity]) -> BTreeMap<u32, f64> {
        let mut sums: BTreeMap<u32, (usize, f64)> = BTreeMap::new();
        for quantity in quantities {
            let rounds = self.rounds.get(quantity).into_iter().flatten();
            for (round, value) in rounds.zip(self.samples.get(quantity).into_iter().flatten()) {
                let sum = sums.entry(*round).or_default();
                *sum = (sum.0 + 1, sum.1 + value);
            }
        }
        let whole = sums.into_iter().filter(|(_, (count, _))| *count == quantities.len());
        whole.map(|(round, (_, sum))| (round, sum)).collect()
    }

    /// Reports whether a property was seen to hold; `None` if it was not tried, or if the attempt failed.
    pub fn holds(&self, property: Property) -> Option<bool> {
        self.observed.get(&property).and_then(|observed| observed.holds)
    }
}

/// The values of one cell of a study's table.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// Name of the study.
    pub study: String,
    /// Name of the table's row: the thing that was measured.
    pub row: String,
    /// Name of the table's column: the condition under which it was measured.
    pub column: String,
    /// Unit of the values.
    pub unit: String,
    /// The values, in the order of rounds.
    pub values: Vec<f64>,
}

/// The results of a run, as a table.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Results {
    /// Time at which the run began or was last continued, as RFC 3339.
    pub date: String,
    /// Description of the machine: processor, number of cores, kernel, distribution, and TCP's congestion control.
    pub machine: String,
    /// The solutions, in the order in which they were chosen.
    pub solutions: Vec<Solution>,
    /// The cells of studies, in the order in which they were measured.
    pub cells: Vec<Cell>,
    /// Figures of Vouchsafe's own bench (`cargo xtask bench`), by name; empty if there are none.
    pub bench: BTreeMap<String, f64>,
    /// Solutions that can't be measured here, each with the reason.
    pub skipped: Vec<(String, String)>,
}

impl Results {
    /// Builds the table from the records. Leaves out solutions that have neither a value nor a failed measurement.
    pub fn of(records: &[Record]) -> Self {
        let mut this = Self::default();
        for record in records {
            this.add(record);
        }
        this.solutions.retain(|solution| !solution.samples.is_empty() || !solution.failures.is_empty());
        this
    }

    /// Returns the cells of a study.
    pub fn study(&self, name: &str) -> Vec<&Cell> {
        self.cells.iter().filter(|cell| cell.study == name).collect()
    }

    /// Returns the summary of one cell of a study.
    pub fn cell(&self, study: &str, row: &str, column: &str) -> Option<Summary> {
        let found = self.cells.iter().find(|one| one.study == study && one.row == row && one.column == column);
        Summary::of(&found?.values)
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
                        rounds: BTreeMap::new(),
                        observed: BTreeMap::new(),
                        failures: Vec::new(),
                    });
                }
            }
            Record::Sample { solution, quantity, value, round } => {
                if let Some(found) = self.found(solution) {
                    found.samples.entry(*quantity).or_default().push(*value);
                    found.rounds.entry(*quantity).or_default().push(*round);
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
            Record::Cell { study, row, column, unit, value, .. } => {
                let same = |cell: &&mut Cell| cell.study == *study && cell.row == *row && cell.column == *column;
                match self.cells.iter_mut().find(same) {
                    Some(cell) => cell.values.push(*value),
                    None => self.cells.push(Cell {
                        study: study.clone(),
                        row: row.clone(),
                        column: column.clone(),
                        unit: unit.clone(),
                        values: vec![*value],
                    }),
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
