//! The raw data of a run: one record per line of JSON, appended as soon as it is known, so that a run that was stopped
//! has lost nothing and can be resumed.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::claims::Claims;
use crate::quantity::Quantity;

/// A security property that is tried, not claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Property {
    /// An observer can't read the payload.
    PayloadHidden,
    /// A packet with a flipped bit does not reach the application.
    FlippedBitNoticed,
    /// A packet that was copied and sent again does not reach the application twice.
    ReplayRefused,
    /// A stranger finds no open port.
    SilentToStrangers,
    /// The handshake shows no name or certificate of the client.
    IdentityHidden,
    /// An observer does not see the inside address.
    AddressHidden,
    /// Datagrams of a legitimate client pass while a stranger floods the server.
    WithstandsFlood,
    /// An open TCP connection survives a change of the client's address.
    FlowSurvivesRoaming,
}

impl Property {
    /// All properties, in the order of the report.
    pub const ALL: [Self; 8] = [
        Self::PayloadHidden,
        Self::FlippedBitNoticed,
        Self::ReplayRefused,
        Self::SilentToStrangers,
        Self::IdentityHidden,
        Self::AddressHidden,
        Self::WithstandsFlood,
        Self::FlowSurvivesRoaming,
    ];

    /// Returns the name in weights and files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::PayloadHidden => "payload_hidden",
            Self::FlippedBitNoticed => "flipped_bit_noticed",
            Self::ReplayRefused => "replay_refused",
            Self::SilentToStrangers => "silent_to_strangers",
            Self::IdentityHidden => "identity_hidden",
            Self::AddressHidden => "address_hidden",
            Self::WithstandsFlood => "withstands_flood",
            Self::FlowSurvivesRoaming => "flow_survives_roaming",
        }
    }

    /// Returns the property as a heading.
    pub const fn title(self) -> &'static str {
        match self {
            Self::PayloadHidden => "payload is unreadable",
            Self::FlippedBitNoticed => "a flipped bit is noticed",
            Self::ReplayRefused => "a replayed packet is refused",
            Self::SilentToStrangers => "strangers get no answer",
            Self::IdentityHidden => "the handshake hides who it is",
            Self::AddressHidden => "the inside address is hidden",
            Self::WithstandsFlood => "a flood does not stop a client",
            Self::FlowSurvivesRoaming => "a connection survives a new address",
        }
    }
}

/// One line of a run's raw data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Record {
    /// The machine and the plan of the run; its first record.
    Run {
        /// When the run began, RFC 3339.
        date: String,
        /// Processor, cores, kernel.
        machine: String,
        /// Number of rounds.
        rounds: u32,
        /// The chosen solutions.
        solutions: Vec<String>,
    },
    /// A solution that is measured.
    Solution {
        /// Name on the command line.
        solution: String,
        /// Versions of its programs.
        version: String,
        /// Its description.
        claims: Claims,
    },
    /// One measured value.
    Sample {
        /// The solution.
        solution: String,
        /// The measured quantity.
        quantity: Quantity,
        /// In which round, from 0.
        round: u32,
        /// The value, in the quantity's unit.
        value: f64,
    },
    /// A property that was tried.
    Observation {
        /// The solution.
        solution: String,
        /// The property that was tried.
        property: Property,
        /// Whether the property holds; unknown if the attempt failed.
        holds: Option<bool>,
        /// The figures that were seen.
        evidence: String,
    },
    /// A solution that can't be measured here.
    Skipped {
        /// The solution.
        solution: String,
        /// The missing programs with their packages, or another obstacle.
        reason: String,
    },
    /// A measurement that failed.
    Failed {
        /// The solution.
        solution: String,
        /// Which measurement.
        what: String,
        /// In which round.
        round: u32,
        /// The error.
        error: String,
    },
    /// All measurements of a solution in one round were made.
    Done {
        /// The solution.
        solution: String,
        /// The round.
        round: u32,
    },
}

/// The file of records of a run.
pub struct Journal {
    file: File,
    path: PathBuf,
    done: BTreeSet<(String, u32)>,
    failed: BTreeSet<(String, String)>,
    begun: bool,
}

impl Journal {
    /// Opens the journal in `dir`, new or to be continued.
    ///
    /// # Errors
    /// If the folder can't be made, or the journal can't be read or written.
    pub fn open(dir: &Path) -> Result<Self> {
        std::fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
        let path = dir.join("records.jsonl");
        let earlier = if path.exists() { read(&path)? } else { Vec::new() };
        let finished = earlier.iter().filter_map(|record| match record {
            Record::Done { solution, round } => Some((solution.clone(), *round)),
            _ => None,
        });
        let done = finished.collect();
        let failed = earlier.iter().filter_map(failure).collect();
        let begun = !earlier.is_empty();
        let mut file = OpenOptions::new().create(true).append(true).open(&path);
        if let Ok(file) = &mut file
            && begun
        {
            // A line that a killed run left incomplete ends here.
            let whole: String = earlier.iter().map(line).collect::<Result<_>>()?;
            file.set_len(0)?;
            file.write_all(whole.as_bytes())?;
        }
        let file = file.with_context(|| format!("cannot open {}", path.display()))?;
        Ok(Self { file, path, done, failed, begun })
    }

    /// Reports whether the journal has records of an earlier, stopped run.
    pub const fn has_begun(&self) -> bool {
        self.begun
    }

    /// Reports whether an earlier run has measured this solution in this round.
    pub fn is_done(&self, solution: &str, round: u32) -> bool {
        self.done.contains(&(solution.to_owned(), round))
    }

    /// Reports whether a measurement of the solution has failed in any round.
    pub fn has_failed(&self, solution: &str, what: &str) -> bool {
        self.failed.contains(&(solution.to_owned(), what.to_owned()))
    }

    /// Appends a record.
    ///
    /// # Errors
    /// If it can't be written.
    pub fn add(&mut self, record: &Record) -> Result<()> {
        self.failed.extend(failure(record));
        self.file.write_all(line(record)?.as_bytes()).with_context(|| format!("cannot write {}", self.path.display()))
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn failure(record: &Record) -> Option<(String, String)> {
    match record {
        Record::Failed { solution, what, .. } => Some((solution.clone(), what.clone())),
        _ => None,
    }
}

fn line(record: &Record) -> Result<String> {
    Ok(serde_json::to_string(record)? + "\n")
}

/// Reads the records of a file. A last line without its end, as a killed run leaves it, is ignored.
///
/// # Errors
/// If the file can't be read, or any other line is no record; the error names the line.
pub fn read(path: &Path) -> Result<Vec<Record>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let parse = |(number, line): (usize, &str)| {
        serde_json::from_str(line)
            .with_context(|| format!("{}:{}: this line is not a record of a comparison", path.display(), number + 1))
    };
    whole.lines().enumerate().map(parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stopped_run_is_continued_where_it_stopped() {
        let dir = tempfile::tempdir().unwrap();
        let sample = Record::Sample { solution: "plain".into(), quantity: Quantity::TcpUp, round: 0, value: 1234.5 };
        let done = Record::Done { solution: "plain".into(), round: 0 };
        let path = {
            let mut journal = Journal::open(dir.path()).unwrap();
            assert!(!journal.has_begun());
            journal.add(&sample).unwrap();
            journal.add(&done).unwrap();
            journal.file.write_all(b"{\"kind\":\"sam").unwrap();
            journal.path().to_owned()
        };
        let mut journal = Journal::open(dir.path()).unwrap();
        assert!(journal.has_begun() && journal.is_done("plain", 0) && !journal.is_done("plain", 1));
        let next = Record::Done { solution: "plain".into(), round: 1 };
        journal.add(&next).unwrap();
        assert_eq!(read(&path).unwrap(), [sample, done, next]);
    }

    #[test]
    fn a_line_that_is_no_record_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("records.jsonl");
        std::fs::write(&path, "{\"kind\":\"done\",\"solution\":\"plain\",\"round\":0}\nnonsense\n").unwrap();
        let error = format!("{:#}", read(&path).unwrap_err());
        assert!(error.contains("records.jsonl:2"), "{error}");
    }
}
