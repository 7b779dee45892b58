//! Measures how long it takes until the server answers, and round-trip times.

use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::services::ECHO;
use super::way::Way;

/// Maximum number of attempts that may still get an answer.
const WINDOW: usize = 50;
/// Pause between attempts, at first and later: a solution that needs seconds to start must not be flooded.
const PAUSE: [Duration; 2] = [Duration::from_millis(2), Duration::from_millis(10)];

/// Sends datagrams to the echo service, each as a new flow, until one is answered. Returns the time at which the first
/// answer came; `None` if no answer came within `within`.
pub fn first_answer(client: &Way, server: Ipv4Addr, within: Duration) -> Option<Instant> {
    let begun = Instant::now();
    let mut open: Vec<UdpSocket> = Vec::new();
    while begun.elapsed() < within {
        if open.len() == WINDOW {
            open.remove(0);
        }
        let attempt = || -> std::io::Result<UdpSocket> {
            let socket = client.udp(SocketAddrV4::new(server, ECHO))?;
            socket.set_nonblocking(true)?;
            socket.send(b"is anybody there?")?;
            Ok(socket)
        };
        // There is no route until the solution adds it.
        open.extend(attempt());
        let pause = PAUSE[usize::from(begun.elapsed() > Duration::from_millis(300))];
        let mut descriptors: Vec<_> =
            open.iter().map(|socket| PollFd::new(socket.as_fd(), PollFlags::POLLIN)).collect();
        let next = Instant::now() + pause;
        loop {
            let left = next.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let timeout = PollTimeout::try_from(left.max(Duration::from_millis(1))).unwrap_or(PollTimeout::ZERO);
            let _ = poll(&mut descriptors, timeout);
            if open.iter().any(|socket| socket.recv(&mut [0; 64]).is_ok_and(|size| size > 0)) {
                return Some(Instant::now());
            }
        }
    }
    None
}

/// Sends `count` small datagrams of one flow, and returns their round-trip times in microseconds. Sends each datagram
/// when the previous one was answered or has waited a second for its answer, but not earlier than `pace` after the
/// previous one. Leaves out datagrams without an answer, and the first three answered datagrams.
///
/// # Errors
/// Fails if at most three datagrams were answered, or if a datagram can't be sent.
pub fn round_trips(client: &Way, server: Ipv4Addr, count: usize, pace: Duration) -> Result<Vec<f64>> {
    let work = || -> Result<Vec<f64>> {
        let socket = client.udp(SocketAddrV4::new(server, ECHO))?;
        socket.set_read_timeout(Some(Duration::from_secs(1)))?;
        let (mut times, mut lost) = (Vec::new(), 0);
        for number in 0..count as u64 {
            let sent = Instant::now();
            socket.send(&number.to_be_bytes()).context("cannot send a small datagram")?;
            let mut answer = [0; 16];
            let answered = loop {
                match socket.recv(&mut answer) {
                    Ok(8) if answer[..8] == number.to_be_bytes() => break true,
                    Ok(_) => {}
                    Err(_) => break false,
                }
            };
            match answered {
                true => times.push(sent.elapsed().as_nanos() as f64 / 1000.0),
                false => lost += 1,
            }
            if lost > 2 && times.is_empty() {
                break;
            }
            thread::sleep(pace.saturating_sub(sent.elapsed()));
        }
        Ok(times)
    };
    let mut times = work()?;
    // The first of a flow may wait for what later ones find ready: address resolution, a grant.
    times.drain(..times.len().min(3));
    ensure!(!times.is_empty(), "the echo service does not answer");
    Ok(times)
}

/// Sends `count` small datagrams, each the first of a new flow, and returns their round-trip times in microseconds.
/// Leaves out datagrams that are not answered within a second.
///
/// # Errors
/// Fails if a datagram can't be sent, or if no datagram was answered. Gives up if none of the first 21 is answered.
pub fn first_trips(client: &Way, server: Ipv4Addr, count: usize) -> Result<Vec<f64>> {
    let mut times = Vec::new();
    for number in 0..count {
        let socket = client.udp(SocketAddrV4::new(server, ECHO))?;
        socket.set_read_timeout(Some(Duration::from_secs(1)))?;
        let sent = Instant::now();
        socket.send(b"first of its flow")?;
        if socket.recv(&mut [0; 32]).is_ok() {
            times.push(sent.elapsed().as_nanos() as f64 / 1000.0);
        }
        ensure!(number < 20 || !times.is_empty(), "the echo service does not answer first datagrams");
    }
    ensure!(!times.is_empty(), "the echo service does not answer first datagrams");
    Ok(times)
}

/// Waits until the echo service answers a datagram within 100 ms. The packets that an earlier measurement left in
/// queues then no longer delay the next measurement.
///
/// # Errors
/// Fails if the echo service answers no datagram that fast before the time `within` has passed.
pub fn settle(client: &Way, server: Ipv4Addr, within: Duration) -> Result<()> {
    /// An answer within this time has not waited in a queue.
    const PROMPT: Duration = Duration::from_millis(100);
    let prompt = || -> std::io::Result<bool> {
        let socket = client.udp(SocketAddrV4::new(server, ECHO))?;
        socket.set_read_timeout(Some(PROMPT))?;
        socket.send(b"settled?")?;
        Ok(socket.recv(&mut [0; 16]).is_ok())
    };
    let settled = lab::poll(within, || prompt().unwrap_or(false));
    ensure!(settled, "for {} s, the server answered no datagram within {PROMPT:?}", within.as_secs());
    Ok(())
}

/// Returns the length in bytes of the largest IP packet, up to `most`, that reaches the echo service whole.
///
/// # Errors
/// Fails if not even packets of 500 bytes arrive.
pub fn reachable_mtu(client: &Way, server: Ipv4Addr, most: usize) -> Result<usize> {
    /// Headers of IPv4 and UDP.
    const HEADERS: usize = 28;
    let passes = |socket: &UdpSocket, length: usize| {
        let payload = vec![0x55; length - HEADERS];
        // A solution may first have to learn the path's MTU.
        (0..3).any(|_| {
            let _ = socket.send(&payload);
            let mut answer = vec![0; 65536];
            socket.recv(&mut answer).is_ok_and(|size| size == payload.len())
        })
    };
    let work = || -> Result<usize> {
        let socket = client.udp(SocketAddrV4::new(server, ECHO))?;
        socket.set_read_timeout(Some(Duration::from_millis(60)))?;
        do_not_fragment(&socket)?;
        let (mut good, mut bad) = (500, most + 1);
        ensure!(passes(&socket, good), "no packet of {good} bytes arrives");
        while bad - good > 1 {
            let middle = usize::midpoint(good, bad);
            if passes(&socket, middle) { good = middle } else { bad = middle }
        }
        Ok(good)
    };
    work()
}

/// Makes the kernel send each datagram whole or not at all, whatever it knows of the path.
fn do_not_fragment(socket: &UdpSocket) -> Result<()> {
    use std::os::fd::AsRawFd;
    let probe: libc::c_int = libc::IP_PMTUDISC_DO;
    // SAFETY: the pointer refers to an integer that outlives the call, and the length is its size.
    let done = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_IP,
            libc::IP_MTU_DISCOVER,
            (&raw const probe).cast(),
            size_of_val(&probe) as libc::socklen_t,
        )
    };
    ensure!(done == 0, "cannot turn off fragmentation (IP_MTU_DISCOVER): {}", std::io::Error::last_os_error());
    Ok(())
}
