//! Measures sealed tunnels between two namespaces. Compares throughput, processor time and round trips with those of
//! the same path without a tunnel, with wireguard-go and with OpenVPN. Also measures compression on a slow path,
//! re-keying, and the cost of idle tunnels and forged handshakes at the verifier.
//!
//! Prints one JSON object, which `cargo xtask bench` collects. Needs root and the packages of `xtask/setup.sh bench`.
//! Arguments choose parts. The part `rekey-long` takes a quarter of an hour and only runs when it is named.

#[path = "seal/compress.rs"]
mod compress;
#[path = "seal/handshake.rs"]
mod handshake;
#[path = "seal/path.rs"]
mod path;
#[path = "seal/rekey.rs"]
mod rekey;
#[path = "../tests/stage/mod.rs"]
mod stage;

use anyhow::Result;
use engine::model::Treatment;
use measure::{Bound, Figures, Yardstick, median};
use path::{Measured, Path};

const ROUNDS: usize = 5;
const SECONDS: &str = "1";
/// Reads one of a round's figures.
type Get = fn(&Measured) -> f64;

/// Round trips in each round.
const TRIPS: usize = 600;

fn main() {
    measure::run_parts::<anyhow::Error>(
        &[
            ("throughput", throughput),
            ("latency", latency),
            ("compress", compress::measure),
            ("handshake", handshake::measure),
            ("rekey", rekey::measure),
            ("rekey-long", rekey::measure_long),
        ],
        &["rekey-long"],
    )
}

/// Measures every path in turn, in several rounds. Returns the figures of each path.
fn in_turn<T>(paths: &[Path], mut measure: impl FnMut(&Path) -> Result<T>) -> Result<Vec<Vec<T>>> {
    let mut measured: Vec<Vec<T>> = paths.iter().map(|_| Vec::new()).collect();
    for _ in 0..ROUNDS {
        for (path, measured) in paths.iter().zip(&mut measured) {
            measured.push(measure(path)?);
        }
    }
    Ok(measured)
}

fn throughput(figures: &mut Figures) -> Result<()> {
    // Several releases may be on this machine, and the figures depend on which one is measured.
    if let Ok(run) = std::process::Command::new("wireguard-go").arg("--version").output() {
        eprintln!(
            "{}",
            String::from_utf8_lossy(&run.stdout).lines().next().unwrap_or("wireguard-go of no known version")
        );
    }
    let paths = [
        Path::plain()?,
        Path::native()?,
        Path::sealed("encrypt", Treatment::Encrypt)?,
        Path::sealed("authenticate", Treatment::Authenticate)?,
        Path::wireguard()?,
        Path::openvpn()?,
        Path::sealed_with_queues(
            "more queues",
            Treatment::Encrypt,
            (tunnel::default_queues() * 2).min(tunnel::QUEUES_MAX),
        )?,
    ];
    let [plain, none, encrypt, authenticate, wireguard, openvpn, more_queues] = [0, 1, 2, 3, 4, 5, 6];
    for (streams, count) in [("one", "1"), ("five", "5")] {
        let measured = in_turn(&paths, |path| {
            let one = path.throughput(count, SECONDS)?;
            eprintln!("{streams} {:13} {:8.0} Mbit/s {:6.2} CPU s/GB", path.name, one.rate, one.cpu);
            Ok(one)
        })?;
        let all = |of: usize, get: Get| measured[of].iter().map(get).collect::<Vec<_>>();
        let (rate, cpu): (Get, Get) = (|one| one.rate, |one| one.cpu);
        let mut add = |name: &str, unit, get: Get, [of, yardstick]: [usize; 2], bound| {
            let pairs: Vec<_> = all(of, get).into_iter().zip(all(yardstick, get)).collect();
            figures.add_pairs(&format!("seal.{name}.{streams}"), unit, &pairs, bound);
        };
        add("encrypt.throughput", "Mbit/s", rate, [encrypt, wireguard], Bound::AtLeast(3.0));
        add("encrypt.cpu_per_gb", "s", cpu, [encrypt, wireguard], Bound::AtMost(0.35));
        add("encrypt.of_plain", "Mbit/s", rate, [encrypt, plain], Bound::None);
        add("encrypt.cpu_of_plain", "s", cpu, [encrypt, plain], Bound::None);
        add("authenticate.throughput", "Mbit/s", rate, [authenticate, encrypt], Bound::AtLeast(1.0));
        add("authenticate.cpu_per_gb", "s", cpu, [authenticate, encrypt], Bound::None);
        add("none.throughput", "Mbit/s", rate, [none, plain], Bound::AtLeast(0.97));
        add("openvpn.throughput", "Mbit/s", rate, [openvpn, wireguard], Bound::None);
        add("queues.throughput", "Mbit/s", rate, [more_queues, encrypt], Bound::None);
        add("queues.cpu_per_gb", "s", cpu, [more_queues, encrypt], Bound::None);
    }
    Ok(())
}

fn latency(figures: &mut Figures) -> Result<()> {
    let paths = [Path::plain()?, Path::sealed("encrypt", Treatment::Encrypt)?, Path::wireguard()?];
    // The first round trips open the tunnels.
    paths.iter().try_for_each(|path| path.round_trips(10).map(drop))?;
    let trips = in_turn(&paths, |path| Ok(median(&path.round_trips(TRIPS)?)))?;
    let added = |of: usize| trips[of].iter().zip(&trips[0]).map(|(trip, plain)| trip - plain).collect::<Vec<_>>();
    let (ours, theirs) = (added(1), added(2));
    let plain = median(&trips[0]);
    figures.count("seal.encrypt.round_trip_added", "us", median(&ours), Bound::AtMost(60.0));
    figures.add("seal.encrypt.round_trip", "us", median(&trips[1]), &Yardstick::new(trips[0].clone()), Bound::None);
    // The machine's other work changes both figures of a round alike, so their difference is steady.
    let more: Vec<_> = ours.iter().zip(&theirs).map(|(ours, theirs)| ours - theirs).collect();
    figures.count("seal.encrypt.round_trip_over_wireguard", "us", median(&more), Bound::AtMost(0.0));
    figures.count("seal.wireguard.round_trip_added", "us", median(&theirs), Bound::None);
    figures.count("seal.plain.round_trip", "us", plain, Bound::None);
    handshake::first_answer(figures, plain)
}
