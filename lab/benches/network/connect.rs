//! Measures connect times: with the grant in the kernel's cache, and on first contact.

use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lab::world::{AUTHORITY, DARK4, Network, Way};
use lab::{Namespace, poll};
use measure::{Bound, Figures, Yardstick, median, quantile};

use crate::Guarded;

/// Server port for connects with a grant that is already in the kernel's cache.
pub const PORT: u16 = 9000;
const COLD_PORTS: std::ops::Range<u16> = 9100..9140;
/// Server ports for connects on first contact whose grants come by UDP. There are enough connects that a disturbance of
/// a tenth of a second does not change their median.
const COLD_UDP_PORTS: std::ops::Range<u16> = 9400..9500;
/// Number of installations in which these connects are measured. Their times differ by a tenth from one installation to
/// the next, depending on where the threads and the memory of a process happen to be.
const INSTALLATIONS: usize = 5;
/// Server ports for connects that wait until the agent has a line.
const EARLY_PORTS: std::ops::Range<u16> = 9200..9300;
/// UDP port of an echo on the authority's host.
const ECHO: u16 = 7;
/// Maximum time of a first connect whose grant comes by UDP, in addition to a round trip to the authority and a
/// connect.
const COLD_UDP_US: f64 = 200.0;
/// Number of rounds of connects. With this number, the 99th percentile of each part of the run rests on some twenty
/// connects. If it rested on three, the yardstick would move by a quarter from part to part.
const ROUNDS: usize = 600;
const CONNECTS: usize = 30;
/// Number of parts into which the run is split; each yields one sample of the yardstick.
const PARTS: usize = 10;
const PATIENCE: Duration = Duration::from_secs(10);

/// Measures the time of a connect with the grant in the kernel's cache, and on first contact.
pub fn measure(figures: &mut Figures) -> Result<()> {
    let plain = Network::new(Way::Direct)?;
    let guarded = Guarded::new(&[])?;
    listen(&plain.server, &[PORT])?;
    listen(&guarded.network.server, &COLD_PORTS.chain([PORT]).collect::<Vec<_>>())?;
    let (mut without, mut with) = (Vec::new(), Vec::new());
    // The first connects fill caches: neighbours, routes, the grant.
    connects(&plain.alice, PORT, 5)?;
    connects(&guarded.network.alice, PORT, 5)?;
    for _ in 0..ROUNDS {
        without.extend(connects(&plain.alice, PORT, CONNECTS)?);
        with.extend(connects(&guarded.network.alice, PORT, CONNECTS)?);
    }
    for (name, part, bound) in [("connect.p50_us", 0.5, 1.3), ("connect.p99_us", 0.99, 1.6)] {
        let plain = without.chunks(without.len() / PARTS).map(|times| quantile(times, part)).collect();
        figures.add(name, "us", quantile(&with, part), &Yardstick::new(plain), Bound::AtMost(bound));
    }
    let mut cold = Vec::new();
    for port in COLD_PORTS {
        cold.extend(connects(&guarded.network.alice, port, 1)?);
    }
    let [cold, warm, path] = [&cold, &with, &without].map(|times| median(times) / 1000.0);
    let connect = Yardstick::new(with.chunks(with.len() / PARTS).map(|times| median(times) / 1000.0).collect());
    for (name, milliseconds) in [
        ("cold_connect_ms", cold),
        ("cold_connect.path_ms", path),
        ("cold_connect.token_and_check_ms", warm - path),
        ("cold_connect.held_for_grant_ms", cold - warm),
    ] {
        figures.add(name, "ms", milliseconds, &connect, Bound::None);
    }
    let resent = lab::counter::Stack::read(&guarded.network.alice)?.syn_retransmissions()?;
    ensure!(resent == 0, "{resent} SYNs were sent again");
    Ok(())
}

/// Measures the time of a connect on first contact, if the grant comes by UDP.
pub fn cold_by_udp(figures: &mut Figures) -> Result<()> {
    let times = (0..INSTALLATIONS).map(|_| cold_in_one_installation()).collect::<Result<Vec<_>>>()?;
    let of = |time: fn(&Cold) -> f64| times.iter().map(time).collect::<Vec<_>>();
    let beside = Yardstick::new(of(|time| time.trip + time.warm));
    let middle = |time| median(&of(time));
    figures.count("cold_connect.udp_ms", "ms", middle(|time| time.cold) / 1000.0, Bound::None);
    figures.count("cold_connect.udp_round_trip_us", "us", middle(|time| time.trip), Bound::None);
    let above = middle(|time| time.cold - time.trip - time.warm);
    figures.add_time("cold_connect.udp_above_us", "us", above, &beside, Bound::AtMost(COLD_UDP_US));
    Ok(())
}

/// Medians of one installation, in microseconds.
struct Cold {
    /// Duration of a connect on first contact.
    cold: f64,
    /// Duration of a connect with the grant in the kernel's cache.
    warm: f64,
    /// Duration of a round trip to the authority's host.
    trip: f64,
}

/// Measures connects on first contact. A round trip to the authority's host and a connect with the grant in the
/// kernel's cache follow each of them.
fn cold_in_one_installation() -> Result<Cold> {
    let guarded = Guarded::with_line()?;
    let network = &guarded.network;
    listen(&network.server, &COLD_UDP_PORTS.chain(EARLY_PORTS).chain([PORT]).collect::<Vec<_>>())?;
    let echo = network.authority.enter(|| UdpSocket::bind((AUTHORITY, ECHO))).context("an echo")?;
    std::thread::spawn(move || {
        let mut room = [0; 512];
        while let Ok((length, from)) = echo.recv_from(&mut room) {
            let _ = echo.send_to(&room[..length], from);
        }
    });
    let by_udp =
        || Ok::<_, anyhow::Error>(guarded.agent.status()?["session"]["grants_by"]["udp"].as_u64().unwrap_or(0));
    let mut early = EARLY_PORTS;
    let has_line = poll(PATIENCE, || {
        early.next().is_some_and(|port| connects(&network.alice, port, 1).is_ok()) && by_udp().is_ok_and(|udp| udp > 0)
    });
    ensure!(has_line, "the agent has got no grant by UDP");
    connects(&network.alice, PORT, 5)?;
    round_trips(&network.alice, 5)?;
    let before = by_udp()?;
    let (mut cold, mut warm, mut trips) = (Vec::new(), Vec::new(), Vec::new());
    for port in COLD_UDP_PORTS {
        cold.extend(connects(&network.alice, port, 1)?);
        warm.extend(connects(&network.alice, PORT, 5)?);
        trips.extend(round_trips(&network.alice, 5)?);
    }
    let came = by_udp()? - before;
    ensure!(came >= COLD_UDP_PORTS.len() as u64, "only {came} grants came by UDP");
    let [cold, warm, trip] = [&cold, &warm, &trips].map(|times| median(times));
    Ok(Cold { cold, warm, trip })
}

/// Returns the duration of each of `count` round trips to the authority's host, in microseconds.
fn round_trips(client: &Namespace, count: usize) -> Result<Vec<f64>> {
    client.enter(|| {
        let socket = UdpSocket::bind("0.0.0.0:0")?;
        socket.connect((AUTHORITY, ECHO))?;
        socket.set_read_timeout(Some(PATIENCE))?;
        let mut room = [0; wire::ask::REQUEST_LEN];
        let trip = |_| -> Result<f64> {
            let began = Instant::now();
            socket.send(&room)?;
            socket.recv(&mut room)?;
            Ok(began.elapsed().as_secs_f64() * 1e6)
        };
        (0..count).map(trip).collect()
    })
}

/// Accepts and closes all connections to these ports, until this process ends.
pub fn listen(namespace: &Namespace, ports: &[u16]) -> Result<()> {
    for port in ports {
        let listener = namespace.enter(|| TcpListener::bind(("0.0.0.0", *port))).context("listener")?;
        std::thread::spawn(move || listener.incoming().for_each(drop));
    }
    Ok(())
}

/// Returns the duration of each of `count` connects, in microseconds.
pub fn connects(client: &Namespace, port: u16, count: usize) -> Result<Vec<f64>> {
    let to = SocketAddr::new(DARK4.parse::<IpAddr>()?, port);
    client.enter(|| {
        (0..count)
            .map(|_| {
                let began = Instant::now();
                TcpStream::connect_timeout(&to, PATIENCE).with_context(|| format!("to {to}"))?;
                Ok(began.elapsed().as_secs_f64() * 1e6)
            })
            .collect()
    })
}
