//! Measures throughput by suite, forward secrecy and re-keying, as published for IPsec by Bollinger.
//!
//! A run takes a second, far less than the time between two re-keyings. So a run with an interval by time begins
//! shortly before its tunnel is due to re-key. It contains one re-keying, as a whole interval does. The bench counts
//! the re-keyings of each run.

use crate::stage::{self, SERVER, Stage, demand};
use anyhow::{Context, Result, ensure};
use engine::model::{Sealing, Treatment};
use engine::tunnel::Terms;
use lab::transfer::{Sink, Transfer};
use measure::{Bound, Figures, Yardstick};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use tunnel::{Key, Leg, times};
use wire::Destination;
use wire::packet::TCP;
use wire::seal::{Suite, Suites};

const PORT: u16 = 5001;
/// Time of a run, and how long before a re-keying it begins.
const TIME: Duration = Duration::from_millis(1000);
const BEFORE: Duration = Duration::from_millis(500);
/// Number of sealed bytes after which a tunnel re-keys, if its interval is in bytes.
const BYTES: u64 = 256 << 20;
const HALF_MINUTE: Duration = Duration::from_secs(30);
const TEN_MINUTES: Duration = Duration::from_secs(600);
/// Number of runs of other tunnels between the openings of two tunnels for whose re-keying the bench waits.
const RUNS_BETWEEN: usize = 4;
/// Number of runs with the interval of half a minute in the long form.
const LONG_ROUNDS: usize = 5;
/// A time that no run reaches.
const NEVER: Duration = Duration::from_secs(3600);

/// When a tunnel re-keys.
#[derive(Clone, Copy)]
struct Interval {
    name: &'static str,
    time: Duration,
    bytes: Option<u64>,
    /// Whether the runs are to have a re-keying by time in them.
    waits: bool,
}

struct Cell {
    name: String,
    key: Key,
    suite: Suite,
    interval: Interval,
    opened: Instant,
    rates: Vec<f64>,
    rekeys: u32,
}

/// Measures every combination of suite, forward secrecy and re-keying interval, in about a minute. With the interval of
/// ten minutes, the runs contain no re-keying.
pub fn measure(figures: &mut Figures) -> Result<()> {
    table(figures, false)
}

/// Measures the same combinations as [`measure`], but waits so that the runs with the interval of ten minutes contain a
/// re-keying.
pub fn measure_long(figures: &mut Figures) -> Result<()> {
    table(figures, true)
}

fn table(figures: &mut Figures, long: bool) -> Result<()> {
    // The rule sets the age at which the verifier re-keys. The age is high here, so that the agent's end re-keys first.
    let stage = Stage::new(false, Sealing { rekey: 3600, ..demand(Treatment::Encrypt) });
    let _sink = Sink::start(&stage.server, PORT)?;
    let intervals = [
        Interval { name: "30s", time: HALF_MINUTE, bytes: None, waits: true },
        Interval { name: "10min", time: TEN_MINUTES, bytes: None, waits: long },
        Interval { name: "256mib", time: NEVER, bytes: Some(BYTES), waits: false },
    ];
    let each = |interval: Interval| {
        let suites = Suite::ALL.into_iter().flat_map(|suite| [(suite, true), (suite, false)]);
        suites.map(move |(suite, forward)| (suite, forward, interval))
    };
    let (waiting, others): (Vec<_>, Vec<_>) = intervals.into_iter().partition(|interval| interval.waits);
    let mut numbers = 0..;
    let mut open = |(suite, forward, interval)| open(&stage, suite, forward, interval, numbers.next().unwrap_or(0));
    let mut cells = others.into_iter().flat_map(each).map(&mut open).collect::<Result<Vec<_>>>()?;
    // The runs of the tunnels that wait for a re-keying come one after the other. So the tunnels also open one after
    // the other.
    let mut waits = Vec::new();
    for (number, what) in waiting.into_iter().flat_map(each).enumerate() {
        waits.push(open(what)?);
        for turn in 0..RUNS_BETWEEN {
            let count = cells.len();
            if let Some(cell) = cells.get_mut((number * RUNS_BETWEEN + turn) % count) {
                run(&stage, cell)?;
            }
        }
    }
    for round in 1..=if long { LONG_ROUNDS } else { 1 } {
        for cell in waits.iter_mut().filter(|cell| round == 1 || cell.interval.time == HALF_MINUTE) {
            let age = cell.interval.time;
            let due = (1..).map(|times| cell.opened + age * times - BEFORE).find(|due| *due > Instant::now());
            std::thread::sleep(due.context("a time")?.saturating_duration_since(Instant::now()));
            run(&stage, cell)?;
            ensure!(cell.rekeys > 0, "{}: the run had no re-keying", cell.name);
        }
    }
    cells.append(&mut waits);
    let best = |cell: &Cell| cell.rates.iter().copied().fold(0.0, f64::max);
    for suite in Suite::ALL {
        // The yardstick of a suite is its rate without forward secrecy and with the longest time between re-keyings.
        let base = cells.iter().find(|cell| cell.suite == suite && cell.name.ends_with("off.10min"));
        let base = Yardstick::fixed(base.map_or(f64::NAN, best));
        for cell in cells.iter().filter(|cell| cell.suite == suite) {
            let name = format!("seal.rekey.{}{}", cell.name, if long { ".long" } else { "" });
            figures.add(&name, "Mbit/s", best(cell), &base, Bound::None);
            figures.count(&format!("{name}.rekeys"), "times", f64::from(cell.rekeys), Bound::None);
        }
    }
    Ok(())
}

fn open(stage: &Stage, suite: Suite, forward: bool, interval: Interval, number: u32) -> Result<Cell> {
    let key = Key { subject: 200 + number, ..stage::key() };
    let name = format!("{}.forward_{}.{}", suite.name(), if forward { "on" } else { "off" }, interval.name);
    let rekey_after = interval.time.as_millis() as u64;
    let mut end = stage.agent.end();
    end.set_tunnel(key, Terms { forward, rekey_after, ..stage::terms(200 + number) }, tunnel::times());
    if let Some(bytes) = interval.bytes {
        end.rekey_after_bytes(key, bytes);
    }
    let leg =
        Leg { tunnel: key, demand: Sealing { suites: Suites::default().with(suite), ..demand(Treatment::Encrypt) } };
    // A leg of its own keeps the tunnel wanted.
    end.set_leg(Destination { address: SERVER.parse()?, protocol: TCP, port: 10_000 + number as u16 }, leg);
    drop(end);
    stage.agent.wake();
    let is_open = || stage.agent.end().show(times()).iter().any(|shown| shown.key == key && shown.is_open);
    ensure!(lab::poll(Duration::from_secs(5), is_open), "{name}: no tunnel");
    let cell = Cell { name, key, suite, interval, opened: Instant::now(), rates: Vec::new(), rekeys: 0 };
    // The verifier learns from a flow at which age the rule wants new keys. Until then it has an age of its own.
    let to = direct(stage, &cell)?;
    stage.client.enter(|| TcpStream::connect_timeout(&to, Duration::from_secs(5))).context(cell.name.clone())?;
    Ok(cell)
}

/// Sends the flows to the sink into the tunnel of `cell`. Returns the sink's address.
fn direct(stage: &Stage, cell: &Cell) -> Result<SocketAddr> {
    let demand = Sealing { suites: Suites::default().with(cell.suite), ..demand(Treatment::Encrypt) };
    let to = SocketAddr::new(SERVER.parse()?, PORT);
    let destination = Destination { address: to.ip(), protocol: TCP, port: PORT };
    stage.opener.store(cell.key.subject, Relaxed);
    stage.agent.end().set_leg(destination, Leg { tunnel: cell.key, demand });
    Ok(to)
}

fn run(stage: &Stage, cell: &mut Cell) -> Result<()> {
    let phase = || stage.agent.end().show(times()).iter().find(|shown| shown.key == cell.key).map(|shown| shown.phase);
    let to = direct(stage, cell)?;
    let before = phase().context("a tunnel")?;
    let rate = Transfer::start(&stage.client, to, TIME, None)?.finish()?.megabits();
    let rekeys = phase().context("a tunnel")? - before;
    eprintln!("rekey {:40} {rate:8.0} Mbit/s, {rekeys} re-keyings", cell.name);
    cell.rates.push(rate);
    cell.rekeys += rekeys;
    Ok(())
}
