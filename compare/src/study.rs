//! Experiments that are not about one solution: experiments of the papers, repeated with today's software. They take
//! turns with the solutions, and their values are cells of a table.

mod ciphers;
mod downloads;
mod first_packets;
mod switched;

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::driver::{Driver, obstacle};
use crate::measure::probe;
use crate::measure::services::Services;
use crate::measure::suite::{Ends, Plan, Sink};
use crate::record::{Record, error_text};
use crate::scene::{End, Scene};
use crate::site::Path;
use crate::workshop::Workshop;

pub use ciphers::NAME as CIPHERS;
pub use downloads::NAME as DOWNLOADS;
pub use first_packets::NAME as FIRST_PACKETS;
pub use switched::NAME as SWITCHED;

/// Time in which a client must be connected.
const PATIENCE: Duration = Duration::from_secs(20);

/// An experiment that is not about one solution.
pub trait Study: Send + Sync {
    /// Returns the name on the command line and in files.
    fn name(&self) -> &'static str;

    /// Returns the study's title in the report.
    fn title(&self) -> &'static str;

    /// Returns the reason why nothing of the study can be measured on this machine; `None` if something can be
    /// measured.
    fn obstacle(&self) -> Option<String> {
        None
    }

    /// Returns the total time of the study's transfers in one round.
    fn transfers(&self, plan: &Plan) -> Duration;

    /// Measures all cells of the study once. If a cell fails, this is recorded, and the other cells are still measured.
    ///
    /// # Errors
    /// Fails if a record can't be written, or if a flag of `ends` is set.
    fn run(&self, plan: &Plan, round: u32, ends: Ends<'_>, sink: &mut Sink<'_>) -> Result<()>;
}

/// Returns every study.
pub fn all() -> Vec<Box<dyn Study>> {
    vec![
        Box::new(downloads::Downloads),
        Box::new(first_packets::FirstPackets),
        Box::new(switched::Switched),
        Box::new(ciphers::Ciphers),
    ]
}

/// Records the cells of a study that are measured in one round.
struct Cells<'a, 's> {
    study: &'static str,
    round: u32,
    ends: Ends<'a>,
    sink: &'a mut Sink<'s>,
}

impl Cells<'_, '_> {
    fn add(&mut self, row: &str, column: &str, unit: &str, value: f64) -> Result<()> {
        (self.sink)(Record::Cell {
            study: self.study.to_owned(),
            row: row.to_owned(),
            column: column.to_owned(),
            unit: unit.to_owned(),
            round: self.round,
            value,
        })
    }

    /// Measures a part of the study. If the part fails, records the failure, so that the study continues with the next
    /// part.
    fn part(&mut self, row: &str, work: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        ensure!(!self.ends.reached(), "ended before `{row}`");
        let Err(error) = work(self) else { return Ok(()) };
        if self.ends.reached() {
            return Err(error.context(format!("ended during `{row}`")));
        }
        let error = error_text(&error);
        let (solution, what) = (self.study.to_owned(), row.to_owned());
        (self.sink)(Record::Failed { solution, what, round: self.round, error })
    }
}

/// Starts a solution with several clients, each of which reaches the server.
fn start(driver: &dyn Driver, clients: usize, path: Path) -> Result<(Scene, Services)> {
    let mut shop = Workshop::new()?;
    driver.prepare(&mut shop, clients).context("cannot make the solution's files and keys")?;
    let mut scene = Scene::new(path, shop)?;
    let services = Services::start(&scene.site.server)?;
    driver.start_server(&mut scene).context("the solution's server does not start")?;
    for number in 1..=clients {
        scene.turn_to(number)?;
        driver.start_client(&mut scene).with_context(|| format!("client {number} does not start"))?;
        let answered = probe::first_answer(&scene.way(), scene.server(), PATIENCE);
        ensure!(answered.is_some(), "client {number} gets no answer:\n{}", scene.logs(End::Client));
    }
    Ok((scene, services))
}

/// Returns the driver's name with the reason why it can't run here; `None` if it can.
fn missing(driver: &dyn Driver) -> Option<String> {
    obstacle(driver).map(|reason| format!("{}: {reason}", driver.name()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn studies_have_names_of_their_own() {
        let solutions: BTreeSet<_> = crate::drivers::all().iter().map(|driver| driver.name()).collect();
        let names: BTreeSet<_> = all().iter().map(|study| study.name().to_owned()).collect();
        assert_eq!(names.len(), all().len());
        assert!(names.is_disjoint(&solutions));
    }
}
