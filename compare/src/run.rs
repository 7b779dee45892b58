//! A whole run: the solutions take turns, round by round, so that whatever else the machine does meets them all; records
//! are written as they come; a stopped run is resumed.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};

use crate::driver::{Driver, obstacle, version};
use crate::measure::suite::{MOVE, Plan, RESTART, measure};
use crate::record::{Journal, Record};

/// How thorough a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// Everything, with enough rounds for 95 % intervals.
    Full,
    /// Everything, shorter.
    Quick,
    /// Seconds: for tests.
    Smoke,
}

impl Depth {
    /// Returns the number of rounds: six are the fewest whose range covers the median in 19 of 20 cases.
    pub const fn rounds(self) -> u32 {
        match self {
            Self::Full | Self::Quick => 6,
            Self::Smoke => 1,
        }
    }

    /// Returns the plan of a round.
    pub const fn plan(self) -> Plan {
        let milliseconds = Duration::from_millis;
        match self {
            Self::Full => Plan {
                span: milliseconds(600),
                step: milliseconds(150),
                trips: 200,
                restart: true,
                move_client: true,
                bad_paths: true,
                security: true,
                idle: Duration::from_secs(11),
                only: None,
            },
            Self::Quick => Plan {
                span: milliseconds(300),
                step: milliseconds(100),
                trips: 100,
                restart: true,
                move_client: true,
                bad_paths: true,
                security: true,
                idle: Duration::from_secs(2),
                only: None,
            },
            Self::Smoke => Plan {
                span: milliseconds(150),
                step: milliseconds(60),
                trips: 30,
                restart: false,
                move_client: false,
                bad_paths: false,
                security: false,
                idle: milliseconds(100),
                only: None,
            },
        }
    }
}

/// Runs the solutions for `rounds` rounds and writes the records to `dir`. Solutions that can't run here are named and
/// left out. `stop` ends the run between two measurements; running again with the same folder continues it.
///
/// # Errors
/// If records can't be read or written, no solution can run, or the run was stopped.
pub fn run(
    solutions: &[Box<dyn Driver>],
    rounds: u32,
    plan: &Plan,
    dir: &Path,
    stop: &AtomicBool,
    mut say: impl FnMut(&str),
) -> Result<()> {
    let mut journal = Journal::open(dir)?;
    let names: Vec<_> = solutions.iter().map(|driver| driver.name()).collect();
    if journal.has_begun() {
        say(&format!("continuing the run in {}", dir.display()));
    }
    journal.add(&Record::Run { date: now(), machine: machine(), rounds, solutions: names })?;
    let mut able = Vec::new();
    for driver in solutions {
        match obstacle(driver.as_ref()) {
            None => {
                let (solution, claims) = (driver.name(), driver.claims());
                journal.add(&Record::Solution { solution, version: version(driver.as_ref()), claims })?;
                able.push(driver.as_ref());
            }
            Some(reason) => {
                say(&format!("{}: not here: {reason}", driver.name()));
                journal.add(&Record::Skipped { solution: driver.name(), reason })?;
            }
        }
    }
    ensure!(!able.is_empty(), "none of these solutions can run here");
    let mut progress = Progress::new(&journal, &able, rounds);
    for round in 0..rounds {
        for driver in &able {
            let name = driver.name();
            if journal.is_done(&name, round) {
                continue;
            }
            say(&format!("round {} of {rounds}: {name}{}", round + 1, progress.left()));
            let begun = Instant::now();
            let plan = Plan {
                restart: plan.restart && !journal.has_failed(&name, RESTART),
                move_client: plan.move_client && !journal.has_failed(&name, MOVE),
                ..plan.clone()
            };
            let mut sink = |record: Record| {
                if let Record::Failed { what, error, .. } = &record {
                    say(&format!("  {name}: {what}: {}", error.lines().next().unwrap_or_default()));
                }
                journal.add(&record)
            };
            measure(*driver, &plan, round, stop, &mut sink)?;
            if stop.load(Relaxed) {
                bail!("stopped; `--out {}` again continues", dir.display());
            }
            journal.add(&Record::Done { solution: name, round })?;
            progress.took(begun.elapsed());
        }
    }
    Ok(())
}

/// Estimates the time left from the solutions measured so far.
struct Progress {
    left: usize,
    spent: Duration,
    count: u32,
}

impl Progress {
    fn new(journal: &Journal, able: &[&dyn Driver], rounds: u32) -> Self {
        let all = (0..rounds).flat_map(|round| able.iter().map(move |driver| (driver.name(), round)));
        let left = all.filter(|(name, round)| !journal.is_done(name, *round)).count();
        Self { left, spent: Duration::ZERO, count: 0 }
    }

    fn took(&mut self, time: Duration) {
        self.left = self.left.saturating_sub(1);
        self.spent += time;
        self.count += 1;
    }

    fn left(&self) -> String {
        if self.count == 0 {
            return String::new();
        }
        let seconds = (self.spent / self.count).as_secs_f64() * self.left as f64;
        match seconds {
            ..90.0 => format!(", {seconds:.0} s left"),
            _ => format!(", {:.0} min left", seconds / 60.0),
        }
    }
}

/// Returns the time, RFC 3339.
fn now() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Returns processor, cores, kernel, and TCP's congestion control, which decides how streams take losses.
fn machine() -> String {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu.lines().find(|line| line.starts_with("model name")).and_then(|line| line.split_once(':'));
    let model = model.map_or("unknown processor", |(_, name)| name.trim());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let system = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    let system =
        system.lines().find_map(|line| line.strip_prefix("PRETTY_NAME=")).unwrap_or_default().trim_matches('"');
    let control = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").unwrap_or_default();
    format!("{model}, {cores} cores, Linux {}, {system}, TCP with {}", kernel.trim(), control.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_left_is_that_of_the_solutions_left() {
        let mut progress = Progress { left: 5, spent: Duration::ZERO, count: 0 };
        assert_eq!(progress.left(), "");
        progress.took(Duration::from_secs(10));
        assert_eq!(progress.left(), ", 40 s left");
        progress.took(Duration::from_secs(90));
        assert_eq!(progress.left(), ", 2 min left");
    }

    #[test]
    fn a_full_run_has_enough_rounds_for_its_intervals() {
        use crate::stats::Summary;
        let samples: Vec<_> = (0..Depth::Full.rounds()).map(f64::from).collect();
        assert!(Summary::of(&samples).unwrap().coverage >= 0.95);
    }
}
