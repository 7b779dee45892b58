//! How long it takes until the server answers, and round trips.

use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lab::Namespace;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::inside::Inside;
use super::services::ECHO;

/// Largest number of attempts that may still be answered.
const WINDOW: usize = 50;
/// Pause between attempts, first and later: a solution that needs seconds must not be flooded.
const PAUSE: [Duration; 2] = [Duration::from_millis(2), Duration::from_millis(10)];

/// Asks the echo again and again, each time as a new flow, and returns when the first answer came.
pub fn first_answer(client: &Inside, server: Ipv4Addr, within: Duration) -> Option<Instant> {
    thread::scope(|scope| scope.spawn(|| ask(client, server, within)).join().ok().flatten())
}

fn ask(client: &Inside, server: Ipv4Addr, within: Duration) -> Option<Instant> {
    client.enter();
    let begun = Instant::now();
    let mut open: Vec<UdpSocket> = Vec::new();
    while begun.elapsed() < within {
        if open.len() == WINDOW {
            open.remove(0);
        }
        let attempt = || -> std::io::Result<UdpSocket> {
            let socket = UdpSocket::bind("0.0.0.0:0")?;
            socket.set_nonblocking(true)?;
            socket.connect(SocketAddrV4::new(server, ECHO))?;
            socket.send(b"is anybody there?")?;
            Ok(socket)
        };
        // Until the solution brings a route, there is none.
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

/// Returns the round-trip times in microseconds of `count` small datagrams of one flow, sent `pace` apart or after the
/// answer, whichever is later. Those that were not answered within a second are missing.
///
/// # Errors
/// If nothing was answered.
pub fn round_trips(client: &Namespace, server: Ipv4Addr, count: usize, pace: Duration) -> Result<Vec<f64>> {
    let work = || -> Result<Vec<f64>> {
        let socket = UdpSocket::bind("0.0.0.0:0")?;
        socket.connect(SocketAddrV4::new(server, ECHO))?;
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
    let mut times = client.enter(work)?;
    // The first of a flow may wait for what later ones find ready: address resolution, a grant.
    times.drain(..times.len().min(3));
    ensure!(!times.is_empty(), "the echo service does not answer");
    Ok(times)
}

/// Waits until the echo service answers at once, so that what an earlier measurement left in queues does not count for
/// the next.
///
/// # Errors
/// If it does not answer at once during the time `within`.
pub fn settle(client: &Namespace, server: Ipv4Addr, within: Duration) -> Result<()> {
    /// An answer within this time has not waited in a queue.
    const PROMPT: Duration = Duration::from_millis(100);
    let prompt = || -> std::io::Result<bool> {
        let socket = UdpSocket::bind("0.0.0.0:0")?;
        socket.connect(SocketAddrV4::new(server, ECHO))?;
        socket.set_read_timeout(Some(PROMPT))?;
        socket.send(b"settled?")?;
        Ok(socket.recv(&mut [0; 16]).is_ok())
    };
    let settled = lab::poll(within, || client.enter(|| prompt().unwrap_or(false)));
    ensure!(settled, "the server has not answered at once for {} s", within.as_secs());
    Ok(())
}

/// Returns the length of the largest IP packet that reaches the echo service whole, up to `most`.
///
/// # Errors
/// If not even small ones do.
pub fn reachable_mtu(client: &Namespace, server: Ipv4Addr, most: usize) -> Result<usize> {
    /// Headers of IPv4 and UDP.
    const HEADERS: usize = 28;
    let passes = |socket: &UdpSocket, length: usize| {
        let payload = vec![0x55; length - HEADERS];
        // A solution may have to learn the path's MTU first.
        (0..3).any(|_| {
            let _ = socket.send(&payload);
            let mut answer = vec![0; 65536];
            socket.recv(&mut answer).is_ok_and(|size| size == payload.len())
        })
    };
    let work = || -> Result<usize> {
        let socket = UdpSocket::bind("0.0.0.0:0")?;
        socket.connect(SocketAddrV4::new(server, ECHO))?;
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
    client.enter(work)
}

/// Has the kernel send datagrams whole or not at all, whatever it knows of the path.
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
    ensure!(done == 0, "IP_MTU_DISCOVER: {}", std::io::Error::last_os_error());
    Ok(())
}
