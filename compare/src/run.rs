//! Carries out a whole run. Solutions and studies take turns, round by round, so that other work on the machine
//! disturbs all of them. Each record is written as soon as it is known, so that a stopped run can be continued. A
//! budget keeps the run within its time, and a watchdog limits the time of each turn.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};

use crate::budget::{Budget, Coming, Spent};
use crate::driver::{Driver, obstacle, version};
use crate::measure::suite::{Ends, LIMIT, MOVE, Plan, RESTART, measure};
use crate::record::{Journal, Record, Turn};
use crate::study::Study;
use crate::watchdog::Watchdog;

/// The thoroughness of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// All measurements, in enough rounds for 95 % intervals.
    Full,
    /// All measurements, in as many rounds as [`Self::Full`], but with shorter transfers.
    Quick,
    /// A few seconds, for tests.
    Smoke,
}

impl Depth {
    /// Returns the number of rounds. With six rounds or more, the range of the samples contains the true median in at
    /// least 19 of 20 cases.
    pub const fn rounds(self) -> u32 {
        match self {
            Self::Full | Self::Quick => 6,
            Self::Smoke => 1,
        }
    }

    /// Returns the plan of a round for a run of this thoroughness.
    pub const fn plan(self) -> Plan {
        let milliseconds = Duration::from_millis;
        match self {
            Self::Full => Plan {
                span: milliseconds(600),
                step: milliseconds(150),
                trips: 200,
                restart: true,
                changes_once: true,
                move_client: true,
                bad_paths: true,
                security: true,
                idle: Duration::from_secs(11),
                only: None,
                paper_lengths: false,
            },
            Self::Quick => Plan {
                span: milliseconds(300),
                step: milliseconds(100),
                trips: 100,
                restart: true,
                changes_once: true,
                move_client: true,
                bad_paths: true,
                security: true,
                idle: Duration::from_secs(2),
                only: None,
                paper_lengths: false,
            },
            Self::Smoke => Plan {
                span: milliseconds(150),
                step: milliseconds(60),
                trips: 30,
                restart: false,
                changes_once: false,
                move_client: false,
                bad_paths: false,
                security: false,
                idle: milliseconds(100),
                only: None,
                paper_lengths: false,
            },
        }
    }
}

/// The solutions and studies to measure in a run, and the time for them.
pub struct Order<'a> {
    /// The solutions to measure.
    pub solutions: &'a [Box<dyn Driver>],
    /// The studies to measure.
    pub studies: &'a [Box<dyn Study>],
    /// Number of rounds.
    pub rounds: u32,
    /// The measurements of a round, and their durations.
    pub plan: Plan,
    /// The time for the whole run. If it is too short for the plan, transfers become shorter. If that is not enough,
    /// the run has fewer rounds. `None` means that there is no limit.
    pub time: Option<Duration>,
    /// The longest time of one turn; the programs of a solution that takes longer are killed.
    pub limit: Duration,
}

/// Default time limit of a turn: several times the time that the slowest solution needs.
pub const LONGEST_TURN: Duration = Duration::from_secs(150);

impl<'a> Order<'a> {
    /// Returns a description of a run that measures these solutions and no studies, with no time limit for the whole
    /// run.
    pub fn new(solutions: &'a [Box<dyn Driver>], rounds: u32, plan: Plan) -> Self {
        Self { solutions, studies: &[], rounds, plan, time: None, limit: LONGEST_TURN }
    }
}

/// A solution or a study: each takes a turn in each round.
#[derive(Clone, Copy)]
enum Part<'a> {
    Solution(&'a dyn Driver),
    Study(&'a dyn Study),
}

impl Part<'_> {
    fn name(&self) -> String {
        match self {
            Self::Solution(driver) => driver.name(),
            Self::Study(study) => study.name().to_owned(),
        }
    }

    /// Reports whether the order contains another solution that recovers from changes in the same way, so that this one
    /// need not be measured after them.
    fn answers_like_another(&self, order: &Order<'_>) -> bool {
        let Self::Solution(driver) = self else { return false };
        let Some(other) = driver.differs_by_cipher_from() else { return false };
        order.solutions.iter().any(|one| one.name() == other && obstacle(one.as_ref()).is_none())
    }

    fn transfers(&self, plan: &Plan) -> Duration {
        match self {
            Self::Solution(_) => plan.transfers(),
            Self::Study(study) => study.transfers(plan),
        }
    }
}

/// Carries out an order and writes the records to `dir`. Skips solutions and studies that can't run here. Stops a turn
/// that takes longer than the limit, and does not measure its solution again. `say` gets a line about the progress of
/// the run, about each skipped or stopped solution, and about each failure. If `stop` is set, the run ends before the
/// next measurement; a later run with the same `dir` continues it.
///
/// # Errors
/// Fails if records can't be read or written, if no solution or study can run, or if the run was stopped.
pub fn run(order: &Order<'_>, dir: &Path, stop: &AtomicBool, mut say: impl FnMut(&str)) -> Result<()> {
    let mut journal = Journal::open(dir)?;
    if journal.has_begun() {
        say(&format!("continuing the run in {}", dir.display()));
    }
    let able = able(order, &mut journal, &mut say)?;
    let mut budget = Budget::new(order.time);
    for (name, turn) in journal.spent() {
        let part = able.iter().find(|part| part.name() == name);
        let transfers = part.map_or(0.0, |part| part.transfers(&order.plan).as_secs_f64()) * turn.scale;
        budget.took(Spent { name: name.to_owned(), seconds: turn.seconds, once: turn.once, transfers });
    }
    let mut rounds = order.rounds;
    for round in 0..order.rounds {
        let choice = budget.choose(&coming(&able, order, &journal, round), order.rounds);
        let whole = able.iter().all(|part| journal.is_done(&part.name(), round));
        if round > 0 && choice.rounds <= round && !whole {
            say(&format!("there is no time for another round: {round} of {} rounds were measured", order.rounds));
            return Ok(());
        }
        if choice.rounds != rounds || choice.scale < 1.0 {
            say(&format!(
                "to end in time, the number of rounds is {}, and transfers have {:.0} % of their planned length",
                choice.rounds,
                choice.scale * 100.0
            ));
        }
        rounds = choice.rounds.max(round + 1);
        for part in &able {
            let name = part.name();
            if journal.is_done(&name, round) || journal.has_failed(&name, LIMIT) {
                continue;
            }
            let rest = budget.choose(&coming(&able, order, &journal, round), rounds);
            // The rest of this round would take longer than there is time; its first part is kept.
            if round > 0 && budget.left().is_some_and(|left| left <= 0.0) {
                say(&format!("the time is used up: the run ends in round {} and keeps all its results", round + 1));
                return Ok(());
            }
            say(&format!("round {} of {rounds}: {name}, {} left", round + 1, left(rest.seconds)));
            let turn = take_turn(*part, order, (round, choice.scale), stop, &mut journal, &mut say)?;
            let transfers = part.transfers(&order.plan).as_secs_f64() * turn.scale;
            budget.took(Spent { name, seconds: turn.seconds, once: turn.once, transfers });
        }
    }
    Ok(())
}

/// Records the run's solutions and studies, and returns those that can run here.
fn able<'a>(order: &Order<'a>, journal: &mut Journal, say: &mut impl FnMut(&str)) -> Result<Vec<Part<'a>>> {
    let names: Vec<_> = order.solutions.iter().map(|driver| driver.name()).collect();
    journal.add(&Record::Run { date: now(), machine: machine(), rounds: order.rounds, solutions: names })?;
    let mut able = Vec::new();
    let mut skip = |name: String, reason: String, journal: &mut Journal| {
        say(&format!("{name} can't run here: {reason}"));
        journal.add(&Record::Skipped { solution: name, reason })
    };
    for driver in order.solutions {
        match obstacle(driver.as_ref()) {
            None => {
                let (solution, claims) = (driver.name(), driver.claims());
                journal.add(&Record::Solution { solution, version: version(driver.as_ref()), claims })?;
                able.push(Part::Solution(driver.as_ref()));
            }
            Some(reason) => skip(driver.name(), reason, journal)?,
        }
    }
    for study in order.studies {
        match study.obstacle() {
            None => able.push(Part::Study(study.as_ref())),
            Some(reason) => skip(study.name().to_owned(), reason, journal)?,
        }
    }
    ensure!(!able.is_empty(), "none of the chosen solutions and studies can run here");
    Ok(able)
}

/// Returns the turns that are still to come in the round `from` and later rounds.
fn coming(able: &[Part<'_>], order: &Order<'_>, journal: &Journal, from: u32) -> Vec<Coming> {
    let of = |round: u32| {
        able.iter().filter_map(move |part| {
            let name = part.name();
            let over = journal.is_done(&name, round) || journal.has_failed(&name, LIMIT);
            (!over).then(|| Coming { name, round, transfers: part.transfers(&order.plan).as_secs_f64() })
        })
    };
    (from..order.rounds).flat_map(of).collect()
}

/// Measures one solution or study in one round. `scale` is the length of its transfers as a fraction of the length in
/// the plan.
fn take_turn(
    part: Part<'_>,
    order: &Order<'_>,
    (round, scale): (u32, f64),
    stop: &AtomicBool,
    journal: &mut Journal,
    say: &mut impl FnMut(&str),
) -> Result<Turn> {
    let (name, begun) = (part.name(), Instant::now());
    let changes = !order.plan.changes_once || !part.answers_like_another(order);
    let plan = Plan {
        restart: changes && order.plan.restart && !journal.has_failed(&name, RESTART),
        move_client: changes && order.plan.move_client && !journal.has_failed(&name, MOVE),
        ..order.plan.scaled(scale)
    };
    let mut sink = |record: Record| {
        if let Record::Failed { what, error, .. } = &record {
            say(&format!("  {name}: {what}: {}", error.lines().next().unwrap_or_default()));
        }
        journal.add(&record)
    };
    let watchdog = Watchdog::start(order.limit);
    let ends = Ends { stop, expired: watchdog.expired() };
    let measured = match part {
        Part::Solution(driver) => measure(driver, &plan, round, ends, &mut sink),
        Part::Study(study) => study.run(&plan, round, ends, &mut sink).map(|()| Duration::ZERO),
    };
    let once = match measured {
        _ if stop.load(Relaxed) => bail!("the run was stopped: the same command continues it"),
        Err(error) if watchdog.expired().load(Relaxed) => {
            let error = format!("the turn was stopped after {} s: {error:#}", order.limit.as_secs());
            sink(Record::Failed { solution: name.clone(), what: LIMIT.to_owned(), round, error })?;
            Duration::ZERO
        }
        done => done?,
    };
    drop(watchdog);
    let turn = Turn { seconds: begun.elapsed().as_secs_f64(), once: once.as_secs_f64(), scale };
    journal.add(&Record::Done { solution: name, round, seconds: turn.seconds, once: turn.once, scale })?;
    Ok(turn)
}

/// Writes a time for people.
fn left(seconds: f64) -> String {
    if seconds < 90.0 { format!("{seconds:.0} s") } else { format!("{:.0} min", seconds / 60.0) }
}

/// Returns the current time, RFC 3339.
fn now() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Returns a description of the machine: processor, cores, kernel, and TCP's congestion control, which determines how
/// streams react to losses.
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
    fn a_time_is_told_in_seconds_or_minutes() {
        assert_eq!([left(40.0), left(150.0)], ["40 s", "2 min"]);
    }

    #[test]
    fn a_full_run_has_enough_rounds_for_its_intervals() {
        use crate::stats::Summary;
        let samples: Vec<_> = (0..Depth::Full.rounds()).map(f64::from).collect();
        assert!(Summary::of(&samples).unwrap().coverage >= 0.95);
    }
}
