//! All measurements of one solution in one round.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::datagrams;
use super::emulator::{Conditions, Emulator};
use super::probe;
use super::processors;
use super::security;
use super::services::{Services, Use};
use super::streams;
use super::way::Way;
use super::wire;
use crate::driver::Driver;
use crate::quantity::Quantity;
use crate::record::{Property, Record, error_text};
use crate::scene::{End, Scene};
use crate::site::Path;
use crate::stats::{Summary, jitter};
use crate::workshop::Workshop;

/// Time within which the server must answer the client: after the client's start, after a restart of the server, and
/// after a move of the client.
const PATIENCE: Duration = Duration::from_secs(20);
/// Time within which the queues of an earlier measurement must become empty.
const SETTLED: Duration = Duration::from_secs(8);
/// Payload lengths of large and of small datagrams, in bytes.
const LARGE: usize = 1200;
const SMALL: usize = 64;

/// The measurements of a round, and their durations.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Duration of each TCP transfer.
    pub span: Duration,
    /// Duration of each step in the search for a rate without loss.
    pub step: Duration,
    /// Number of datagrams whose round-trip times are measured.
    pub trips: usize,
    /// Whether to measure the recovery after a restart of the server.
    pub restart: bool,
    /// Whether restart and move are measured in the first round only.
    pub changes_once: bool,
    /// Whether to measure the recovery after the client has moved to another address. Needs `bad_paths`.
    pub move_client: bool,
    /// Whether to measure on an emulated path, too.
    pub bad_paths: bool,
    /// Whether the first round tries the security properties and observes idle traffic.
    pub security: bool,
    /// Time for which idle traffic is observed.
    pub idle: Duration,
    /// If set, only these quantities and the time to connect are measured.
    pub only: Option<&'static [Quantity]>,
    /// Whether studies renew keys as seldom as their papers did: minutes instead of seconds.
    pub paper_lengths: bool,
}

/// Minimum number of round trips in a shortened round.
const FEW_TRIPS: usize = 40;
/// Minimum time for which idle traffic is observed in a shortened round.
const SHORT_IDLE: Duration = Duration::from_secs(2);

impl Plan {
    /// Returns the plan with shorter measurements: multiplies the durations of transfers and steps, the number of round
    /// trips and the idle time by `scale`, which is at most 1. At least 40 round trips and 2 s of idle time remain,
    /// unless this plan has less.
    pub fn scaled(&self, scale: f64) -> Self {
        Self {
            span: self.span.mul_f64(scale),
            step: self.step.mul_f64(scale),
            trips: ((self.trips as f64 * scale) as usize).max(FEW_TRIPS.min(self.trips)),
            idle: self.idle.mul_f64(scale).max(SHORT_IDLE.min(self.idle)),
            ..self.clone()
        }
    }

    /// Returns the estimated time of a round's transfers, searches and round trips, which [`Self::scaled`] shortens.
    pub fn transfers(&self) -> Duration {
        let clean = self.span * 6 + self.step * 14 + Duration::from_millis(4) * self.trips as u32;
        if self.bad_paths { clean + self.span * 6 } else { clean }
    }

    fn wants(&self, quantities: &[Quantity]) -> bool {
        self.only.is_none_or(|only| quantities.iter().any(|quantity| only.contains(quantity)))
    }
}

/// Name of the measurement of restarts. Once it has failed for a solution, it is not tried again in the run. Otherwise,
/// every round would wait for a solution that does not recover.
pub const RESTART: &str = "restart of the server";
/// Name of the measurement of moves. Like [`RESTART`], it is not tried again once it has failed.
pub const MOVE: &str = "change of address";

/// Name of the record that says that a solution was stopped because it took too long. The run does not measure such a
/// solution again.
pub const LIMIT: &str = "time limit";

/// A function that gets each record as soon as it is made.
pub type Sink<'a> = dyn FnMut(Record) -> Result<()> + 'a;

/// A round in progress.
struct Round<'a> {
    driver: &'a dyn Driver,
    plan: &'a Plan,
    number: u32,
    ends: Ends<'a>,
    sink: &'a mut Sink<'a>,
    /// Whether the solution has stopped working. It is started again for the emulated path.
    dead: bool,
    /// Time of the measurements that only the first round makes.
    once: Duration,
}

/// The two flags that end a round early.
#[derive(Clone, Copy)]
pub struct Ends<'a> {
    /// Set when the user wants the run to stop.
    pub stop: &'a AtomicBool,
    /// Set when the turn has taken longer than its limit.
    pub expired: &'a AtomicBool,
}

impl Ends<'_> {
    /// Reports whether the round must end.
    pub fn reached(&self) -> bool {
        self.stop.load(Relaxed) || self.expired.load(Relaxed)
    }
}

/// Measures a solution in one round. If a measurement fails, this is recorded, and the other measurements go on.
/// Returns the time spent on measurements that later rounds do not repeat.
///
/// # Errors
/// Fails if a record can't be written, or if one of `ends` was set; the error names the measurement.
pub fn measure<'a>(
    driver: &'a dyn Driver,
    plan: &'a Plan,
    number: u32,
    ends: Ends<'a>,
    sink: &'a mut Sink<'a>,
) -> Result<Duration> {
    let mut round = Round { driver, plan, number, ends, sink, dead: false, once: Duration::ZERO };
    let clean = round.clean_path();
    round.failed("the clean path", clean)?;
    if plan.bad_paths {
        let bad = round.emulated_path();
        round.failed("the emulated path", bad)?;
    }
    Ok(round.once)
}

/// Makes the files for ten clients and for eleven. Returns the number of steps for ten, and for the additional client.
fn steps_for_ten_and_one_more(driver: &dyn Driver) -> Result<(f64, f64)> {
    let make = |clients: usize| -> Result<Workshop> {
        let mut shop = Workshop::new()?;
        driver.prepare(&mut shop, clients)?;
        Ok(shop)
    };
    let (ten, eleven) = (make(10)?, make(11)?);
    Ok((ten.steps().total() as f64, eleven.steps_since(&ten).total() as f64))
}

impl Round<'_> {
    fn add(&mut self, quantity: Quantity, value: f64) -> Result<()> {
        let solution = self.driver.name();
        (self.sink)(Record::Sample { solution, quantity, round: self.number, value })
    }

    fn see(&mut self, observation: security::Observation) -> Result<()> {
        let security::Observation { property, holds, evidence } = observation;
        let solution = self.driver.name();
        (self.sink)(Record::Observation { solution, property, holds: Some(holds), evidence })
    }

    fn failed(&mut self, what: &str, result: Result<()>) -> Result<()> {
        let Err(error) = result else { return Ok(()) };
        if self.ends.reached() {
            return Err(error.context(format!("ended during `{what}`")));
        }
        let error = error_text(&error);
        (self.sink)(Record::Failed { solution: self.driver.name(), what: what.to_owned(), round: self.number, error })
    }

    /// Runs the measurement of some quantities if they are wanted, and records a failure.
    fn measure(
        &mut self,
        quantities: &[Quantity],
        what: &str,
        work: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<()> {
        if self.plan.wants(quantities) { self.attempt(what, work) } else { Ok(()) }
    }

    /// Runs a measurement, and records a failure.
    fn attempt(&mut self, what: &str, work: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        if self.ends.reached() {
            bail!("ended before `{what}`");
        }
        let result = work(self);
        self.failed(what, result)
    }

    /// Runs one measurement that only the first round makes; records its failure.
    fn attempt_once(&mut self, what: &str, work: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        if self.number > 0 {
            return Ok(());
        }
        let begun = Instant::now();
        let done = self.attempt(what, work);
        self.once += begun.elapsed();
        done
    }

    /// Runs the measurement of a change, in every round or in the first one only.
    fn attempt_change(&mut self, what: &str, work: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        if self.plan.changes_once { self.attempt_once(what, work) } else { self.attempt(what, work) }
    }

    /// Does the same as [`Round::measure`], but in the first round only.
    fn measure_once(
        &mut self,
        quantities: &[Quantity],
        what: &str,
        work: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<()> {
        if self.plan.wants(quantities) { self.attempt_once(what, work) } else { Ok(()) }
    }

    /// Waits until the path is idle. A solution that does not recover is not waited for again.
    fn settle(&mut self, client: &Way, server: Ipv4Addr) -> Result<()> {
        ensure!(!self.dead, "the solution had stopped working");
        let settled = probe::settle(client, server, SETTLED);
        self.dead = settled.is_err();
        settled
    }

    /// Starts the solution. Returns its scene and the time until the first answer.
    fn start(&self, path: Path, before: impl FnOnce(&Scene) -> Result<Option<Emulator>>) -> Result<Started> {
        let mut shop = Workshop::new()?;
        self.driver.prepare(&mut shop, 1).context("cannot make the solution's files and keys")?;
        let mut scene = Scene::new(path, shop)?;
        let services = Services::start(&scene.site.server)?;
        let emulator = before(&scene)?;
        self.driver.start_server(&mut scene).context("the solution's server does not start")?;
        if let Some(emulator) = &emulator {
            emulator.record();
        }
        let driver = self.driver;
        let took = until_answer(&mut scene, |scene| driver.start_client(scene))
            .context("the solution's client does not connect")?;
        thread::sleep(self.driver.warm_up());
        Ok(Started { services, emulator, scene, took })
    }

    fn clean_path(&mut self) -> Result<()> {
        let started = self.start(Path::Bridge, |_| Ok(None))?;
        let Started { services, mut scene, took, .. } = started;
        let services = &services;
        self.add(Quantity::Connect, took.as_secs_f64() * 1000.0)?;
        let (span, server) = (self.plan.span, scene.server());
        let starting = scene.steps(End::Client).total() as f64;
        let starts = scene.steps(End::Server).total() as f64 + 10.0 * starting;
        self.measure_once(&[Quantity::EffortTen, Quantity::EffortNext], "steps", |round| {
            let (ten, next) = steps_for_ten_and_one_more(round.driver)?;
            round.add(Quantity::EffortTen, ten + starts)?;
            round.add(Quantity::EffortNext, next + starting)
        })?;
        let way = scene.way();
        let (client, gateway) = (&scene.site.client, &scene.site.gateway);
        self.measure(&[Quantity::MemoryClient, Quantity::MemoryServer], "memory", |round| {
            round.add(Quantity::MemoryClient, processors::memory(client))?;
            round.add(Quantity::MemoryServer, processors::memory(gateway))
        })?;
        self.measure(&[Quantity::RttIdle, Quantity::JitterIdle], "round trips", |round| {
            let times = probe::round_trips(&way, server, round.plan.trips, Duration::from_millis(2))?;
            round.trips(&times, [Quantity::RttIdle, Quantity::JitterIdle])
        })?;
        for (kind, count, quantity) in [
            (Use::Up, 1, Quantity::TcpUp),
            (Use::Down, 1, Quantity::TcpDown),
            (Use::Up, 5, Quantity::TcpUp5),
            (Use::Down, 5, Quantity::TcpDown5),
        ] {
            self.measure(&[quantity], quantity.name(), |round| {
                round.settle(&way, server)?;
                let time = || processors::time(client, gateway);
                let (moved, [before, after]) = streams::transfer(&way, server, services, (kind, count), span, time)?;
                round.add(quantity, moved.rate())?;
                if quantity == Quantity::TcpUp {
                    let gigabytes = moved.bytes as f64 / 1e9;
                    round.add(Quantity::CpuClient, (after.client - before.client) / gigabytes)?;
                    round.add(Quantity::CpuServer, (after.server - before.server) / gigabytes)?;
                    round.add(Quantity::CpuMachine, (after.machine - before.machine) / gigabytes)?;
                }
                Ok(())
            })?;
        }
        self.measure(&[Quantity::RttLoad, Quantity::JitterLoad], "round trips beside a stream", |round| {
            let trips = round.plan.trips / 2;
            round.settle(&way, server)?;
            let times = thread::scope(|scope| {
                let load = scope.spawn(|| {
                    let span = Duration::from_millis(4 * trips as u64);
                    streams::transfer(&way, server, services, (Use::Up, 1), span, || ())
                });
                thread::sleep(streams::WARM);
                let times = probe::round_trips(&way, server, trips, Duration::from_millis(2));
                load.join().map_err(|_| anyhow::anyhow!("the stream's thread panicked"))??;
                times
            })?;
            round.trips(&times, [Quantity::RttLoad, Quantity::JitterLoad])
        })?;
        self.measure(&[Quantity::Exchanges], "exchanges", |round| {
            round.settle(&way, server)?;
            let rate = streams::exchanges(&way, server, span)?;
            round.add(Quantity::Exchanges, rate)
        })?;
        self.measure(&[Quantity::UdpLoss], "loss at a low rate", |round| {
            let rate = 10e6 / 8.0 / LARGE as f64;
            let sent = datagrams::send(&way, server, services, (rate, LARGE), span.max(Duration::from_millis(500)))?;
            round.add(Quantity::UdpLoss, sent.loss() * 100.0)
        })?;
        for (length, quantity) in [(LARGE, Quantity::UdpFree), (SMALL, Quantity::SmallRate)] {
            self.measure(&[quantity], quantity.name(), |round| {
                round.settle(&way, server)?;
                let rate = datagrams::loss_free_rate(&way, server, services, length, round.plan.step)?;
                let value = if length == LARGE { rate * LARGE as f64 * 8.0 / 1e6 } else { rate };
                round.add(quantity, value)
            })?;
        }
        self.measure_once(&[Quantity::Mtu], "reachable MTU", |round| {
            round.settle(&way, server)?;
            round.add(Quantity::Mtu, probe::reachable_mtu(&way, server, 1500)? as f64)
        })?;
        if self.plan.security {
            let door = self.driver.door();
            self.attempt_once("flood", |round| round.see(security::flood(&scene, services, door)?))?;
        }
        if self.plan.restart {
            self.attempt_change(RESTART, |round| {
                round.driver.stop_server(&mut scene)?;
                let driver = round.driver;
                let took = until_answer(&mut scene, |scene| driver.start_server(scene))?;
                round.add(Quantity::Reconnect, took.as_secs_f64() * 1000.0)
            })?;
        }
        Ok(())
    }

    fn trips(&mut self, times: &[f64], [median, variation]: [Quantity; 2]) -> Result<()> {
        let summary = Summary::of(times).context("no round trip was measured")?;
        self.add(median, summary.median)?;
        self.add(variation, jitter(times))
    }

    fn emulated_path(&mut self) -> Result<()> {
        self.dead = false;
        let started = self.start(Path::Emulated, |scene| Emulator::start(&scene.site).map(Some))?;
        let Started { services, emulator, mut scene, .. } = started;
        let (services, emulator) = (&services, emulator.context("INVARIANT: it was started")?);
        let (emulator, handshake) = (&emulator, emulator.recorded());
        let (server, door, way) = (scene.server(), self.driver.door(), scene.way());
        self.measure_once(&[Quantity::WireFirst, Quantity::WireLater], "bytes on the wire", |round| {
            let added = wire::added(&scene, emulator)?;
            round.add(Quantity::WireFirst, added.first)?;
            round.add(Quantity::WireLater, added.later)
        })?;
        if self.plan.security {
            self.attempt_once("reading", |round| {
                let data = security::send_data(&scene, services, emulator)?;
                security::reading(&handshake, &data).into_iter().try_for_each(|seen| round.see(seen))
            })?;
            self.attempt_once("stolen keys", |round| {
                // The recorded handshake and these data belong to the same keys.
                let data = security::send_data(&scene, services, emulator)?;
                let Some(attempt) = round.driver.open_with_stolen_keys(&scene, &[&handshake[..], &data].concat())?
                else {
                    return Ok(());
                };
                let (property, evidence) = (Property::ForwardSecrecy, attempt.evidence);
                round.see(security::Observation { property, holds: !attempt.opened, evidence })
            })?;
            self.attempt_once("repeated packets", |round| {
                round.see(security::repeated_packets(&scene, services, emulator)?)
            })?;
            self.measure_once(&[Quantity::KeepAlive], "idle traffic", |round| {
                round.add(Quantity::KeepAlive, wire::idle(emulator, round.plan.idle))
            })?;
            self.attempt_once("knocking", |round| round.see(security::knocking(&scene, door, &handshake)?))?;
        }
        let delay = Duration::from_millis(10);
        let long = Conditions { delay, ..Conditions::CLEAN };
        for (conditions, quantity) in [
            (long, Quantity::TcpLong5),
            (Conditions { loss: 0.02, ..long }, Quantity::TcpLossy5),
            (Conditions { overtaken: 0.02, ..long }, Quantity::TcpReorder5),
        ] {
            emulator.set(conditions);
            self.measure(&[quantity], quantity.name(), |round| {
                let span = round.plan.span * 2;
                round.settle(&way, server)?;
                let (moved, _) = streams::transfer(&way, server, services, (Use::Up, 5), span, || ())?;
                round.add(quantity, moved.rate())
            })?;
        }
        emulator.set(Conditions { loss: 0.02, ..long });
        self.measure(&[Quantity::UdpLossyDelay], "delay at 2 % loss", |round| {
            let span = Duration::from_millis(700);
            let sent = datagrams::send(&way, server, services, (400.0, 500), span)?;
            let mut delays = sent.arrivals.delays;
            ensure!(!delays.is_empty(), "no datagram arrives");
            delays.sort_by(f64::total_cmp);
            round.add(Quantity::UdpLossyDelay, delays[delays.len() * 19 / 20] / 1000.0)
        })?;
        emulator.set(Conditions::CLEAN);
        if self.plan.move_client {
            self.attempt_change(MOVE, |round| round.roam(&mut scene))?;
        }
        if self.plan.security {
            // This measurement is the last one, because a tunnel over TCP does not survive flipped bits.
            self.attempt_once("flipped bits", |round| {
                let started = round.start(Path::Emulated, |scene| Emulator::start(&scene.site).map(Some));
                let Started { services, emulator, scene, .. } = started?;
                let emulator = emulator.context("INVARIANT: it was started")?;
                round.see(security::flipped_bits(&scene, &services, &emulator)?)
            })?;
        }
        Ok(())
    }

    fn roam(&mut self, scene: &mut Scene) -> Result<()> {
        use std::io::{Read, Write};
        let mut flow = streams::open(&scene.way(), scene.server(), Use::Exchange)?;
        let mut exchange = |within: Duration| {
            let mut byte = [7];
            flow.set_read_timeout(Some(within))?;
            flow.write_all(&byte)?;
            flow.read_exact(&mut byte)
        };
        exchange(Duration::from_secs(2)).context("the connection broke before the client moved")?;
        // The path through the old address works until the move, so the first question must come after the move.
        let begun = Instant::now();
        scene.site.move_client()?;
        let answered = probe::first_answer(&scene.way(), scene.server(), PATIENCE);
        // Where no datagram is answered, no connection goes on, either.
        let survives = answered.is_some() && exchange(Duration::from_secs(5)).is_ok();
        let evidence = format!(
            "an open TCP connection {} the change of the client's address",
            if survives { "survived" } else { "did not survive" }
        );
        if self.number == 0 {
            let property = Property::FlowSurvivesRoaming;
            self.see(security::Observation { property, holds: survives, evidence })?;
        }
        let answered = answered.with_context(|| format!("no answer within {} s", PATIENCE.as_secs()))?;
        self.add(Quantity::Roam, answered.saturating_duration_since(begun).as_secs_f64() * 1000.0)
    }
}

/// A solution that has been started and has answered.
struct Started {
    services: Services,
    emulator: Option<Emulator>,
    scene: Scene,
    took: Duration,
}

/// Makes a change, and returns the time from its beginning until the server answers.
fn until_answer(scene: &mut Scene, change: impl FnOnce(&mut Scene) -> Result<()>) -> Result<Duration> {
    let (way, server) = (scene.way(), scene.server());
    let begun = Instant::now();
    let changed = thread::scope(|scope| {
        let asking = scope.spawn(|| probe::first_answer(&way, server, PATIENCE));
        let changed = change(scene);
        let answered = asking.join().map_err(|_| anyhow::anyhow!("the thread that waits for an answer panicked"))?;
        changed?;
        Ok::<_, anyhow::Error>(answered)
    })?;
    let Some(answered) = changed else {
        bail!(
            "no answer within {} s; the client says:\n{}\nthe server says:\n{}",
            PATIENCE.as_secs(),
            scene.logs(End::Client),
            scene.logs(End::Server)
        );
    };
    Ok(answered.saturating_duration_since(begun))
}
