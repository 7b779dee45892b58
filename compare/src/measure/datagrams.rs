//! UDP: paced datagrams, and the highest rate at which none is lost.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use lab::poll;

use super::services::{Arrivals, COUNT, Services, datagram};
use super::way::Way;

/// Largest loss that still counts as none: one in a thousand. On a shared machine, a pause of the scheduler may lose a
/// burst, and this loss is not the solution's.
const FREE: f64 = 0.001;
/// Number of steps of the search after a rate without loss was found. Each step halves the interval.
const STEPS: usize = 5;
/// Maximum number of steps until a rate without loss is found.
const FIRST_STEPS: usize = 8;
/// The rate that is tried first if nothing arrives of a flood, in datagrams per second.
const SLOW: f64 = 4000.0;

/// The datagrams that one measurement sent, and those of them that arrived.
#[derive(Clone, Debug)]
pub struct Sent {
    /// Number of datagrams that the application sent, including those that the socket refused.
    pub sent: u64,
    /// The datagrams that arrived.
    pub arrivals: Arrivals,
    /// Time in which all datagrams except the first were sent.
    pub time: Duration,
}

impl Sent {
    /// Returns the lost fraction, from 0 to 1.
    pub fn loss(&self) -> f64 {
        1.0 - self.arrivals.arrived as f64 / self.sent.max(1) as f64
    }
}

/// Sends datagrams with payloads of `length` bytes, `rate` per second, for the time `span`. If the rate is infinite,
/// sends them as fast as the socket accepts them. Then waits until no more arrive.
///
/// # Errors
///
/// Fails if the socket can't be opened, or if the first datagram can't be sent.
pub fn send(
    client: &Way,
    server: Ipv4Addr,
    services: &Services,
    (rate, length): (f64, usize),
    span: Duration,
) -> Result<Sent> {
    let run = services.begin();
    let work = || -> Result<(u64, Duration)> {
        let socket = client.udp(SocketAddrV4::new(server, COUNT))?;
        let mut buffer = Vec::new();
        datagram(&mut buffer, run, 0, services.now(), length);
        socket.send(&buffer)?;
        // A lost answer is no reason to stop: the search is for the rate at which none is lost.
        socket.set_read_timeout(Some(Duration::from_millis(100)))?;
        let _ = socket.recv(&mut [0; 64]);
        let begun = Instant::now();
        let mut sent = 1u64;
        loop {
            let elapsed = begun.elapsed();
            if elapsed >= span {
                return Ok((sent, elapsed));
            }
            let due = (elapsed.as_secs_f64() * rate).min(sent as f64 + 256.0) as u64 + 1;
            while sent < due {
                // A datagram that a full queue refuses counts as sent, because the application has lost it.
                datagram(&mut buffer, run, sent, services.now(), length);
                let _ = socket.send(&buffer);
                sent += 1;
            }
            if rate.is_finite() {
                thread::sleep(Duration::from_secs_f64((1.0 / rate).clamp(200e-6, 5e-3)));
            }
        }
    };
    let (sent, time) = work()?;
    ensure!(sent > 0, "no datagram could be sent");
    let mut last = (services.count(), Instant::now());
    let _ = poll(Duration::from_secs(2), || {
        let now = services.count();
        if now != last.0 {
            last = (now, Instant::now());
        }
        now >= sent || last.1.elapsed() > Duration::from_millis(80)
    });
    Ok(Sent { sent, arrivals: services.arrived(), time })
}

/// Searches for the highest rate, in datagrams per second, at which at most one datagram in a thousand is lost.
///
/// # Errors
///
/// Fails if no datagram arrives, or if more than one datagram in a thousand is lost at every rate that was tried.
pub fn loss_free_rate(
    client: &Way,
    server: Ipv4Addr,
    services: &Services,
    length: usize,
    step: Duration,
) -> Result<f64> {
    let flood = send(client, server, services, (f64::INFINITY, length), step)?;
    if flood.loss() <= FREE {
        return Ok(flood.sent as f64 / flood.time.as_secs_f64());
    }
    let (mut good, mut bad) = (0.0, flood.sent as f64 / flood.time.as_secs_f64());
    // The rate at which a flood arrives is a good first guess, unless the solution collapses under it.
    let mut next = f64::max(flood.arrivals.arrived as f64 / flood.time.as_secs_f64(), f64::min(SLOW, bad / 2.0));
    let (mut arrived, mut left) = (flood.arrivals.arrived, FIRST_STEPS);
    while left > 0 {
        left -= 1;
        let tried = send(client, server, services, (next, length), step)?;
        let offered = tried.sent as f64 / tried.time.as_secs_f64();
        arrived += tried.arrivals.arrived;
        if tried.loss() <= FREE {
            left = if good == 0.0 { left.min(STEPS) } else { left };
            good = f64::max(good, offered.min(next));
        } else {
            bad = f64::min(bad, next);
        }
        next = if good == 0.0 { bad / 2.0 } else { f64::midpoint(good, bad) };
    }
    ensure!(arrived > 0, "no datagram arrives");
    ensure!(good > 0.0, "datagrams are lost even at {bad:.0} datagrams a second");
    Ok(good)
}
