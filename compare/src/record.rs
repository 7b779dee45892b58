//! The raw data of a run: one JSON record per line. Each record is appended as soon as it is known, so a run that was
//! stopped has lost nothing and can be continued.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::claims::Claims;
use crate::quantity::Quantity;

/// A security property that is tried and not only claimed.
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
    /// Datagrams of a legitimate client arrive while a stranger floods the server.
    WithstandsFlood,
    /// An open TCP connection survives a change of the client's address.
    FlowSurvivesRoaming,
    /// Somebody who gets the long-term keys of both ends can't decrypt a session recorded earlier.
    #[serde(rename = "forward_secret")]
    ForwardSecrecy,
}

impl Property {
    /// All properties, in the order of the report.
    pub const ALL: [Self; 9] = [
        Self::PayloadHidden,
        Self::FlippedBitNoticed,
        Self::ReplayRefused,
        Self::SilentToStrangers,
        Self::IdentityHidden,
        Self::AddressHidden,
        Self::WithstandsFlood,
        Self::FlowSurvivesRoaming,
        Self::ForwardSecrecy,
    ];

    /// Returns the name that records and files of weights use.
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
            Self::ForwardSecrecy => "forward_secret",
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
            Self::ForwardSecrecy => "stolen keys don't open a recording",
        }
    }
}

/// A line of a run's raw data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Record {
    /// The machine and the plan of the run. A run begins with this record, and each continuation of the run adds
    /// another one.
    Run {
        /// Time at which the run began or was continued, as RFC 3339.
        date: String,
        /// Description of the machine: processor, number of cores, kernel, distribution, and TCP's congestion control.
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
        /// Versions of the solution's programs.
        version: String,
        /// The solution's description.
        claims: Claims,
    },
    /// A measured value.
    Sample {
        /// Name of the solution.
        solution: String,
        /// The measured quantity.
        quantity: Quantity,
        /// The round, from 0.
        round: u32,
        /// The value, in the quantity's unit.
        value: f64,
    },
    /// A property that was tried.
    Observation {
        /// Name of the solution.
        solution: String,
        /// The property that was tried.
        property: Property,
        /// Whether the property holds; absent if the attempt failed.
        holds: Option<bool>,
        /// The figures that were seen.
        evidence: String,
    },
    /// One measured value of a study.
    Cell {
        /// Name of the study.
        study: String,
        /// Name of the table's row: the thing that was measured.
        row: String,
        /// Name of the table's column: the condition under which it was measured.
        column: String,
        /// The value's unit.
        unit: String,
        /// The round, from 0.
        round: u32,
        /// The measured value.
        value: f64,
    },
    /// A solution that can't be measured here.
    Skipped {
        /// Name of the solution.
        solution: String,
        /// The missing programs with their packages, or another obstacle.
        reason: String,
    },
    /// A measurement that failed.
    Failed {
        /// Name of the solution.
        solution: String,
        /// Name of the measurement.
        what: String,
        /// The round, from 0.
        round: u32,
        /// The error message, made by [`error_text`].
        error: String,
    },
    /// All measurements of a solution in a round are done.
    Done {
        /// Name of the solution.
        solution: String,
        /// The round, from 0.
        round: u32,
        /// Time of the whole turn, in seconds.
        #[serde(default)]
        seconds: f64,
        /// Part of `seconds` for measurements that later rounds do not repeat.
        #[serde(default)]
        once: f64,
        /// Length of the transfers, as a fraction of the length in the plan.
        #[serde(default = "whole")]
        scale: f64,
    },
}

const fn whole() -> f64 {
    1.0
}

/// The file to which the records of a run are written.
pub struct Journal {
    file: File,
    path: PathBuf,
    done: BTreeSet<(String, u32)>,
    failed: BTreeSet<(String, String)>,
    spent: Vec<(String, Turn)>,
    begun: bool,
}

/// The time of a turn that was measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Turn {
    /// Time of the whole turn, in seconds.
    pub seconds: f64,
    /// Part of `seconds` for measurements that later rounds do not repeat.
    pub once: f64,
    /// Length of the transfers, as a fraction of the length in the plan.
    pub scale: f64,
}

impl Journal {
    /// Opens the journal in `dir`. Continues an existing journal.
    ///
    /// # Errors
    ///
    /// Fails if the folder can't be made, or the journal can't be read or written.
    pub fn open(dir: &Path) -> Result<Self> {
        std::fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
        let path = dir.join("records.jsonl");
        let earlier = if path.exists() { read(&path)? } else { Vec::new() };
        let finished = earlier.iter().filter_map(|record| match record {
            Record::Done { solution, round, .. } => Some((solution.clone(), *round)),
            _ => None,
        });
        let done = finished.collect();
        let failed = earlier.iter().filter_map(failure).collect();
        let turn = |record: &Record| match record {
            Record::Done { solution, seconds, once, scale, .. } => {
                Some((solution.clone(), Turn { seconds: *seconds, once: *once, scale: *scale }))
            }
            _ => None,
        };
        let spent = earlier.iter().filter_map(turn).collect();
        let begun = !earlier.is_empty();
        let mut file = OpenOptions::new().create(true).append(true).open(&path);
        if let Ok(file) = &mut file
            && begun
        {
            // This removes an incomplete last line that a killed run has left.
            let whole: String = earlier.iter().map(line).collect::<Result<_>>()?;
            file.set_len(0)?;
            file.write_all(whole.as_bytes())?;
        }
        let file = file.with_context(|| format!("cannot open {}", path.display()))?;
        Ok(Self { file, path, done, failed, spent, begun })
    }

    /// Reports whether the journal has records of an earlier, stopped run.
    pub const fn has_begun(&self) -> bool {
        self.begun
    }

    /// Reports whether this solution was measured in this round before the journal was opened.
    pub fn is_done(&self, solution: &str, round: u32) -> bool {
        self.done.contains(&(solution.to_owned(), round))
    }

    /// Returns the times of the turns that were measured before the journal was opened.
    pub fn spent(&self) -> impl Iterator<Item = (&str, Turn)> {
        self.spent.iter().map(|(name, turn)| (name.as_str(), *turn))
    }

    /// Reports whether a measurement of the solution has failed in any round.
    pub fn has_failed(&self, solution: &str, what: &str) -> bool {
        self.failed.contains(&(solution.to_owned(), what.to_owned()))
    }

    /// Appends a record.
    ///
    /// # Errors
    ///
    /// Fails if the record can't be written.
    pub fn add(&mut self, record: &Record) -> Result<()> {
        self.failed.extend(failure(record));
        self.file.write_all(line(record)?.as_bytes()).with_context(|| format!("cannot write {}", self.path.display()))
    }

    /// Returns the path of the journal's file.
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

/// Returns the text of an error for [`Record::Failed`]. A text of more than 2000 characters lacks its middle: the
/// beginning says what failed, and the end has the last lines of the daemons' logs.
pub fn error_text(error: &anyhow::Error) -> String {
    const BEGINNING: usize = 600;
    const END: usize = 1400;
    let text: Vec<char> = format!("{error:#}").chars().collect();
    if text.len() <= BEGINNING + END {
        return text.into_iter().collect();
    }
    let [beginning, end] = [&text[..BEGINNING], &text[text.len() - END..]].map(|part| part.iter().collect::<String>());
    format!("{beginning}\n[…]\n{end}")
}

fn line(record: &Record) -> Result<String> {
    Ok(serde_json::to_string(record)? + "\n")
}

/// Reads the records of a file. Ignores an incomplete last line, which a killed run leaves.
///
/// # Errors
///
/// Fails if the file can't be read, or any other line is no record; the error names the line.
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
    fn a_long_error_keeps_its_beginning_and_the_last_lines_of_the_logs() {
        let short = anyhow::anyhow!("ping").context("no answer");
        assert_eq!(error_text(&short), "no answer: ping");
        let long = error_text(&anyhow::anyhow!("{}last line", "é".repeat(3000)).context("does not start"));
        assert!(long.starts_with("does not start: é") && long.ends_with("élast line"), "{long}");
        assert_eq!(long.chars().count(), 2000 + "\n[…]\n".chars().count());
    }

    #[test]
    fn a_stopped_run_is_continued_where_it_stopped() {
        let dir = tempfile::tempdir().unwrap();
        let sample = Record::Sample { solution: "plain".into(), quantity: Quantity::TcpUp, round: 0, value: 1234.5 };
        let done = |round| Record::Done { solution: "plain".into(), round, seconds: 12.5, once: 2.5, scale: 0.5 };
        let path = {
            let mut journal = Journal::open(dir.path()).unwrap();
            assert!(!journal.has_begun());
            journal.add(&sample).unwrap();
            journal.add(&done(0)).unwrap();
            journal.file.write_all(b"{\"kind\":\"sam").unwrap();
            journal.path().to_owned()
        };
        let mut journal = Journal::open(dir.path()).unwrap();
        assert!(journal.has_begun() && journal.is_done("plain", 0) && !journal.is_done("plain", 1));
        let past: Vec<_> = journal.spent().map(|(name, turn)| (name.to_owned(), turn)).collect();
        assert_eq!(past, [("plain".to_owned(), Turn { seconds: 12.5, once: 2.5, scale: 0.5 })]);
        journal.add(&done(1)).unwrap();
        assert_eq!(read(&path).unwrap(), [sample, done(0), done(1)]);
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
