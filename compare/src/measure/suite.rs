//! Everything that is measured of one solution in one round.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use lab::Namespace;

use super::datagrams;
use super::emulator::{Conditions, Emulator};
use super::inside::Inside;
use super::probe;
use super::processors;
use super::security;
use super::services::{Services, Use};
use super::streams;
use super::wire;
use crate::driver::Driver;
use crate::quantity::Quantity;
use crate::record::{Property, Record};
use crate::scene::{End, Scene};
use crate::site::Path;
use crate::stats::{Summary, jitter};
use crate::workshop::Workshop;

/// Time in which the server must answer a client that was started, or after a restart or a move.
const PATIENCE: Duration = Duration::from_secs(20);
/// Time in which the queues of an earlier measurement must run empty.
const SETTLED: Duration = Duration::from_secs(8);
/// Payload of large and of small datagrams.
const LARGE: usize = 1200;
const SMALL: usize = 64;

/// How long, and what.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Length of each TCP transfer.
    pub span: Duration,
    /// Length of each step in the search for a rate without loss.
    pub step: Duration,
    /// Number of round trips.
    pub trips: usize,
    /// Whether the server is restarted.
    pub restart: bool,
    /// Whether the client moves to another address; needs `bad_paths`.
    pub move_client: bool,
    /// Whether the path is emulated, too.
    pub bad_paths: bool,
    /// Whether security is tried and idle traffic observed, in the first round.
    pub security: bool,
    /// How long idle traffic is observed.
    pub idle: Duration,
    /// If set, only these quantities are measured, beside `connect`.
    pub only: Option<&'static [Quantity]>,
}

impl Plan {
    fn wants(&self, quantities: &[Quantity]) -> bool {
        self.only.is_none_or(|only| quantities.iter().any(|quantity| only.contains(quantity)))
    }
}

/// Names of the measurements that are given up for the rest of a run if they fail once: a solution that does not recover
/// would be waited for in every round.
pub const RESTART: &str = "restart of the server";
/// See [`RESTART`].
pub const MOVE: &str = "change of address";

/// Takes records as they come.
pub type Sink<'a> = dyn FnMut(Record) -> Result<()> + 'a;

/// A round in progress.
struct Round<'a> {
    driver: &'a dyn Driver,
    plan: &'a Plan,
    number: u32,
    stop: &'a AtomicBool,
    sink: &'a mut Sink<'a>,
    /// Whether the solution stopped working; it is started anew for the emulated path.
    dead: bool,
}

/// Measures a solution in one round. A measurement that fails is recorded as failed, and the others go on.
///
/// # Errors
/// If a record can't be written, or `stop` was set.
pub fn measure<'a>(
    driver: &'a dyn Driver,
    plan: &'a Plan,
    number: u32,
    stop: &'a AtomicBool,
    sink: &'a mut Sink<'a>,
) -> Result<()> {
    let mut round = Round { driver, plan, number, stop, sink, dead: false };
    let clean = round.clean_path();
    round.failed("the clean path", clean)?;
    if plan.bad_paths {
        let bad = round.emulated_path();
        round.failed("the emulated path", bad)?;
    }
    Ok(())
}

/// Makes the files of ten clients and of eleven; returns the steps for ten, and for one more.
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
        if self.stop.load(Relaxed) {
            return Err(error);
        }
        let error: String = format!("{error:#}").chars().take(2000).collect();
        (self.sink)(Record::Failed { solution: self.driver.name(), what: what.to_owned(), round: self.number, error })
    }

    /// Runs the measurement of some quantities, if they are wanted; records its failure.
    fn measure(
        &mut self,
        quantities: &[Quantity],
        what: &str,
        work: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<()> {
        if self.plan.wants(quantities) { self.attempt(what, work) } else { Ok(()) }
    }

    /// Runs one measurement; records its failure.
    fn attempt(&mut self, what: &str, work: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        if self.stop.load(Relaxed) {
            bail!("stopped");
        }
        let result = work(self);
        self.failed(what, result)
    }

    /// Waits until the path is idle. A solution that does not recover is not waited for again.
    fn settle(&mut self, client: &Namespace, server: Ipv4Addr) -> Result<()> {
        ensure!(!self.dead, "the solution had stopped working");
        let settled = probe::settle(client, server, SETTLED);
        self.dead = settled.is_err();
        settled
    }

    /// Starts the solution; returns its scene and how long it took until the first answer.
    fn start(&self, path: Path, before: impl FnOnce(&Scene) -> Result<Option<Emulator>>) -> Result<Started> {
        let mut shop = Workshop::new()?;
        self.driver.prepare(&mut shop, 1).context("cannot make its files and keys")?;
        let mut scene = Scene::new(path, shop)?;
        let services = Services::start(&scene.site.server)?;
        let emulator = before(&scene)?;
        self.driver.start_server(&mut scene).context("its server does not start")?;
        if let Some(emulator) = &emulator {
            emulator.record();
        }
        let driver = self.driver;
        let took =
            until_answer(&mut scene, |scene| driver.start_client(scene)).context("its client does not connect")?;
        thread::sleep(self.driver.warm_up());
        Ok(Started { services, emulator, scene, took })
    }

    fn clean_path(&mut self) -> Result<()> {
        let started = self.start(Path::Bridge, |_| Ok(None))?;
        let Started { services, mut scene, took, .. } = started;
        let services = &services;
        self.add(Quantity::Connect, took.as_secs_f64() * 1000.0)?;
        let (span, server) = (self.plan.span, scene.server());
        if self.number == 0 {
            let client = scene.steps(End::Client).total() as f64;
            let starts = scene.steps(End::Server).total() as f64 + 10.0 * client;
            self.measure(&[Quantity::EffortTen, Quantity::EffortNext], "steps", |round| {
                let (ten, next) = steps_for_ten_and_one_more(round.driver)?;
                round.add(Quantity::EffortTen, ten + starts)?;
                round.add(Quantity::EffortNext, next + client)
            })?;
        }
        let (client, gateway) = (&scene.site.client, &scene.site.gateway);
        self.measure(&[Quantity::MemoryClient, Quantity::MemoryServer], "memory", |round| {
            round.add(Quantity::MemoryClient, processors::memory(client))?;
            round.add(Quantity::MemoryServer, processors::memory(gateway))
        })?;
        self.measure(&[Quantity::RttIdle, Quantity::JitterIdle], "round trips", |round| {
            let times = probe::round_trips(client, server, round.plan.trips, Duration::from_millis(2))?;
            round.trips(&times, [Quantity::RttIdle, Quantity::JitterIdle])
        })?;
        for (kind, count, quantity) in [
            (Use::Up, 1, Quantity::TcpUp),
            (Use::Down, 1, Quantity::TcpDown),
            (Use::Up, 5, Quantity::TcpUp5),
            (Use::Down, 5, Quantity::TcpDown5),
        ] {
            self.measure(&[quantity], quantity.name(), |round| {
                round.settle(client, server)?;
                let time = || processors::time(client, gateway);
                let (moved, [before, after]) = streams::transfer(client, server, services, (kind, count), span, time)?;
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
            round.settle(client, server)?;
            let times = thread::scope(|scope| {
                let load = scope.spawn(|| {
                    let span = Duration::from_millis(4 * trips as u64);
                    streams::transfer(client, server, services, (Use::Up, 1), span, || ())
                });
                thread::sleep(streams::WARM);
                let times = probe::round_trips(client, server, trips, Duration::from_millis(2));
                load.join().map_err(|_| anyhow::anyhow!("the stream's thread panicked"))??;
                times
            })?;
            round.trips(&times, [Quantity::RttLoad, Quantity::JitterLoad])
        })?;
        self.measure(&[Quantity::Exchanges], "exchanges", |round| {
            round.settle(client, server)?;
            let rate = streams::exchanges(client, server, span)?;
            round.add(Quantity::Exchanges, rate)
        })?;
        self.measure(&[Quantity::UdpLoss], "loss at a low rate", |round| {
            let rate = 10e6 / 8.0 / LARGE as f64;
            let sent = datagrams::send(client, server, services, (rate, LARGE), span.max(Duration::from_millis(500)))?;
            round.add(Quantity::UdpLoss, sent.loss() * 100.0)
        })?;
        for (length, quantity) in [(LARGE, Quantity::UdpFree), (SMALL, Quantity::SmallRate)] {
            self.measure(&[quantity], quantity.name(), |round| {
                round.settle(client, server)?;
                let rate = datagrams::loss_free_rate(client, server, services, length, round.plan.step)?;
                let value = if length == LARGE { rate * LARGE as f64 * 8.0 / 1e6 } else { rate };
                round.add(quantity, value)
            })?;
        }
        if self.number == 0 {
            self.measure(&[Quantity::Mtu], "reachable MTU", |round| {
                round.settle(client, server)?;
                round.add(Quantity::Mtu, probe::reachable_mtu(client, server, 1500)? as f64)
            })?;
        }
        if self.number == 0 && self.plan.security {
            let door = self.driver.door();
            self.attempt("flood", |round| round.see(security::flood(&scene, services, door)?))?;
        }
        if self.plan.restart {
            self.attempt(RESTART, |round| {
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
        let (server, door, first) = (scene.server(), self.driver.door(), self.number == 0);
        if first {
            self.measure(&[Quantity::WireFirst, Quantity::WireLater], "bytes on the wire", |round| {
                let added = wire::added(&scene, emulator)?;
                round.add(Quantity::WireFirst, added.first)?;
                round.add(Quantity::WireLater, added.later)
            })?;
        }
        if first && self.plan.security {
            self.attempt("reading", |round| {
                let data = security::send_data(&scene, services, emulator)?;
                security::reading(&handshake, &data).into_iter().try_for_each(|seen| round.see(seen))
            })?;
            self.attempt("repeated packets", |round| {
                round.see(security::repeated_packets(&scene, services, emulator)?)
            })?;
            self.measure(&[Quantity::KeepAlive], "idle traffic", |round| {
                round.add(Quantity::KeepAlive, wire::idle(emulator, round.plan.idle))
            })?;
            self.attempt("knocking", |round| round.see(security::knocking(&scene, door, &handshake)?))?;
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
                round.settle(&scene.site.client, server)?;
                let (moved, _) = streams::transfer(&scene.site.client, server, services, (Use::Up, 5), span, || ())?;
                round.add(quantity, moved.rate())
            })?;
        }
        emulator.set(Conditions { loss: 0.02, ..long });
        self.measure(&[Quantity::UdpLossyDelay], "delay at 2 % loss", |round| {
            let span = Duration::from_millis(700);
            let sent = datagrams::send(&scene.site.client, server, services, (400.0, 500), span)?;
            let mut delays = sent.arrivals.delays;
            ensure!(!delays.is_empty(), "no datagram arrives");
            delays.sort_by(f64::total_cmp);
            round.add(Quantity::UdpLossyDelay, delays[delays.len() * 19 / 20] / 1000.0)
        })?;
        emulator.set(Conditions::CLEAN);
        if self.plan.move_client {
            self.attempt(MOVE, |round| round.roam(&mut scene))?;
        }
        if first && self.plan.security {
            // The last of all: a tunnel over TCP does not survive it.
            let started = self.start(Path::Emulated, |scene| Emulator::start(&scene.site).map(Some));
            self.attempt("flipped bits", |round| {
                let Started { services, emulator, scene, .. } = started?;
                let emulator = emulator.context("INVARIANT: it was started")?;
                round.see(security::flipped_bits(&scene, &services, &emulator)?)
            })?;
        }
        Ok(())
    }

    fn roam(&mut self, scene: &mut Scene) -> Result<()> {
        use std::io::{Read, Write};
        let mut flow = streams::open(&scene.site.client, scene.server(), Use::Exchange)?;
        let mut exchange = |within: Duration| {
            let mut byte = [7];
            flow.set_read_timeout(Some(within))?;
            flow.write_all(&byte)?;
            flow.read_exact(&mut byte)
        };
        exchange(Duration::from_secs(2)).context("the connection broke before the client moved")?;
        // The way through the old address works until the move: asking begins after it.
        let begun = Instant::now();
        scene.site.move_client()?;
        let answered = probe::first_answer(&Inside::of(&scene.site.client), scene.server(), PATIENCE);
        let survives = exchange(Duration::from_secs(5)).is_ok();
        let evidence = format!(
            "an open TCP connection {} the client's new address",
            if survives { "outlived" } else { "broke at" }
        );
        if self.number == 0 {
            let property = Property::FlowSurvivesRoaming;
            self.see(security::Observation { property, holds: survives, evidence })?;
        }
        let answered = answered.with_context(|| format!("no answer within {} s", PATIENCE.as_secs()))?;
        self.add(Quantity::Roam, answered.saturating_duration_since(begun).as_secs_f64() * 1000.0)
    }
}

/// A solution at work.
struct Started {
    services: Services,
    emulator: Option<Emulator>,
    scene: Scene,
    took: Duration,
}

/// Returns how long it takes from the begin of `change` until the server answers.
fn until_answer(scene: &mut Scene, change: impl FnOnce(&mut Scene) -> Result<()>) -> Result<Duration> {
    let (inside, server) = (Inside::of(&scene.site.client), scene.server());
    let begun = Instant::now();
    let changed = thread::scope(|scope| {
        let asking = scope.spawn(|| probe::first_answer(&inside, server, PATIENCE));
        let changed = change(scene);
        let answered = asking.join().map_err(|_| anyhow::anyhow!("the asking thread panicked"))?;
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
