//! The services behind the gateway with which measurements communicate. They run on threads of this program whose
//! sockets are in the server's namespace, so that sender and receiver share a clock and counters.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use lab::{Acceptor, Namespace};
use nix::sys::socket::{setsockopt, sockopt::RcvBufForce};

use crate::site::SERVER;

/// Port of the TCP service. The first byte of a connection selects its purpose, see [`Use`].
pub const TCP: u16 = 9001;
/// UDP port of the service that sends every datagram back.
pub const ECHO: u16 = 9002;
/// UDP port of the service that counts datagrams, and answers the first of each run.
pub const COUNT: u16 = 9003;

const TICK: Duration = Duration::from_millis(50);
/// Length in bytes of a counted datagram's header: run, number, and time of sending.
pub const HEADER: usize = 24;

/// The purpose of a TCP connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// The client sends data to the server.
    Up,
    /// The server sends data to the client.
    Down,
    /// The server answers each byte by one byte.
    Exchange,
}

impl Use {
    /// Returns the first byte of a connection for this purpose.
    pub const fn byte(self) -> u8 {
        match self {
            Self::Up => b'u',
            Self::Down => b'd',
            Self::Exchange => b'e',
        }
    }
}

/// Counts and delays of the datagrams that arrived in one run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Arrivals {
    run: u64,
    seen: Vec<u64>,
    /// Number of different datagrams that arrived.
    pub arrived: u64,
    /// Number of arrivals of datagrams that had arrived before.
    pub again: u64,
    /// Number of datagrams whose content was changed.
    pub changed: u64,
    /// Number of datagrams that arrived after a datagram that was sent later.
    pub overtaken: u64,
    highest: u64,
    /// Delays in microseconds, in the order of arrival.
    pub delays: Vec<f64>,
}

impl Arrivals {
    fn begin(run: u64) -> Self {
        Self { run, ..Self::default() }
    }

    fn add(&mut self, datagram: &[u8], now: u64) {
        let word = |at: usize| datagram.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map(u64::from_be_bytes);
        let [Some(run), Some(number), Some(sent)] = [word(0), word(8), word(16)] else {
            self.changed += 1;
            return;
        };
        // A number larger than any that is sent must come from a changed datagram.
        if run != self.run || number >= 1 << 26 {
            self.changed +=
                u64::from(run != self.run && run.abs_diff(self.run) > 1 << 32) + u64::from(number >= 1 << 26);
            return;
        }
        let content = &datagram[HEADER..];
        if FILLERS[(number & 1) as usize].get(..content.len()) != Some(content) {
            self.changed += 1;
            return;
        }
        let (place, bit) = ((number / 64) as usize, 1 << (number % 64));
        if self.seen.len() <= place {
            self.seen.resize(place + 1, 0);
        }
        if self.seen[place] & bit != 0 {
            self.again += 1;
            return;
        }
        self.seen[place] |= bit;
        self.overtaken += u64::from(number < self.highest);
        self.highest = self.highest.max(number);
        self.arrived += 1;
        self.delays.push(now.saturating_sub(sent) as f64 / 1000.0);
    }
}

/// The bytes that follow the header of a datagram. They are readable, and differ between even and odd numbers.
static FILLERS: LazyLock<[Vec<u8>; 2]> = LazyLock::new(|| {
    let of = |odd: u8| MARK.iter().copied().cycle().take(MOST).map(|byte| byte ^ odd).collect();
    [of(0), of(1)]
});

/// Length of the longest datagram, in bytes.
const MOST: usize = 2048;

/// The text that fills datagrams. Security tests search captured frames for it.
pub const MARK: &[u8] = b"this-is-what-an-observer-would-like-to-read.";

/// Replaces the content of `buffer` by a datagram of `length` bytes, which must be between [`HEADER`] and [`MOST`].
pub fn datagram(buffer: &mut Vec<u8>, run: u64, number: u64, sent: u64, length: usize) {
    buffer.clear();
    for word in [run, number, sent] {
        buffer.extend_from_slice(&word.to_be_bytes());
    }
    let filler = &FILLERS[(number & 1) as usize];
    buffer.extend_from_slice(&filler[..length.saturating_sub(HEADER).min(MOST)]);
}

/// The running services. They end when they are dropped.
pub struct Services {
    _tcp: Acceptor,
    end: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    begun: Instant,
    runs: AtomicU64,
    /// Number of bytes that arrived on connections for [`Use::Up`].
    pub bytes: Arc<AtomicU64>,
    arrivals: Arc<Mutex<Arrivals>>,
}

impl Services {
    /// Starts the services in the server's namespace.
    ///
    /// # Errors
    ///
    /// Fails if a port can't be opened.
    pub fn start(server: &Namespace) -> Result<Self> {
        let at = |port: u16| SocketAddrV4::new(SERVER.parse().expect("INVARIANT: a constant address"), port);
        let open = || -> Result<_> {
            let (echo, count) = (UdpSocket::bind(at(ECHO))?, UdpSocket::bind(at(COUNT))?);
            // Bursts that the solution has delivered must not be lost here.
            setsockopt(&count, RcvBufForce, &(16 << 20))?;
            for socket in [&echo, &count] {
                socket.set_read_timeout(Some(TICK))?;
            }
            let tcp = TcpListener::bind(at(TCP))?;
            Ok((tcp, echo, count))
        };
        let (tcp, echo, count) = server.enter(open).context("cannot start the services behind the gateway")?;
        let bytes: Arc<AtomicU64> = Arc::default();
        let counter = bytes.clone();
        let mut this = Self {
            _tcp: Acceptor::start(tcp, move |stream, _| drop(serve(stream, &counter))),
            end: Arc::default(),
            threads: Vec::new(),
            begun: Instant::now(),
            runs: AtomicU64::new(1),
            bytes,
            arrivals: Arc::default(),
        };
        let end = this.end.clone();
        this.threads.push(thread::spawn(move || answer(&echo, &end)));
        let (end, arrivals, begun) = (this.end.clone(), this.arrivals.clone(), this.begun);
        this.threads.push(thread::spawn(move || receive(&count, &end, &arrivals, begun)));
        Ok(this)
    }

    /// Returns the nanoseconds since the services started, the clock of counted datagrams.
    pub fn now(&self) -> u64 {
        self.begun.elapsed().as_nanos() as u64
    }

    /// Begins a run of counted datagrams and returns its number.
    pub fn begin(&self) -> u64 {
        let run = self.runs.fetch_add(1, Relaxed);
        *self.arrivals() = Arrivals::begin(run);
        run
    }

    /// Returns counts and delays of the datagrams that have arrived in the present run.
    pub fn arrived(&self) -> Arrivals {
        self.arrivals().clone()
    }

    /// Returns the number of datagrams of the present run that have arrived.
    pub fn count(&self) -> u64 {
        self.arrivals().arrived
    }

    fn arrivals(&self) -> std::sync::MutexGuard<'_, Arrivals> {
        self.arrivals.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Services {
    fn drop(&mut self) {
        self.end.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn serve(mut stream: &TcpStream, bytes: &AtomicU64) -> std::io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    stream.set_write_timeout(Some(Duration::from_secs(10)))?;
    stream.set_nodelay(true)?;
    let mut kind = [0];
    stream.read_exact(&mut kind)?;
    stream.set_read_timeout(None)?;
    let mut buffer = vec![0; 256 * 1024];
    loop {
        if kind[0] == Use::Down.byte() {
            stream.write_all(&buffer)?;
            continue;
        }
        let size = match stream.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(size) => size,
            // The handler of a signal has run in this thread.
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        match kind[0] == Use::Exchange.byte() {
            true => stream.write_all(&buffer[..size])?,
            false => drop(bytes.fetch_add(size as u64, Relaxed)),
        }
    }
}

fn answer(socket: &UdpSocket, end: &AtomicBool) {
    let mut buffer = vec![0; 64 * 1024];
    while !end.load(Relaxed) {
        if let Ok((size, peer)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(&buffer[..size], peer);
        }
    }
}

fn receive(socket: &UdpSocket, end: &AtomicBool, arrivals: &Mutex<Arrivals>, begun: Instant) {
    let mut buffer = vec![0; 64 * 1024];
    while !end.load(Relaxed) {
        if let Ok((size, peer)) = socket.recv_from(&mut buffer) {
            let now = begun.elapsed().as_nanos() as u64;
            arrivals.lock().unwrap_or_else(PoisonError::into_inner).add(&buffer[..size], now);
            // The first datagram is answered, as in most protocols, because some solutions treat one-way flows
            // differently.
            if buffer.get(8..16) == Some(&[0; 8]) {
                let _ = socket.send_to(&buffer[..8], peer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_tell_lost_repeated_changed_and_overtaken_datagrams_apart() {
        let mut arrivals = Arrivals::begin(7);
        let written = |run, number| {
            let mut buffer = Vec::new();
            datagram(&mut buffer, run, number, 1000, 100);
            buffer
        };
        let sent = |number| written(7, number);
        for number in [0, 1, 3, 2, 1] {
            arrivals.add(&sent(number), 6000);
        }
        let mut flipped = sent(4);
        flipped[90] ^= 1;
        arrivals.add(&flipped, 6000);
        arrivals.add(&written(6, 5), 6000);
        assert_eq!((arrivals.arrived, arrivals.again, arrivals.changed, arrivals.overtaken), (4, 1, 1, 1));
        assert_eq!(arrivals.delays, [5.0; 4]);
    }
}
