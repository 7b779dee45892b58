//! Bulk transfers over TCP, with and without a rate limit.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::socket::{setsockopt, sockopt::SndBuf};

use crate::acceptor::Acceptor;
use crate::net::Namespace;

/// Approximate limit of the bytes in flight in a rate-limited transfer.
const SMALL: usize = 64 * 1024;
const CHUNK: usize = 128 * 1024;
/// How long either side waits for the other before it gives up.
const PATIENCE: Duration = Duration::from_secs(10);

/// A server that receives and counts bytes. Dropping it ends the server.
pub struct Sink {
    taken: Arc<AtomicU64>,
    _acceptor: Acceptor,
}

impl Sink {
    /// Listens on TCP `port` of every address of `namespace`.
    pub fn start(namespace: &Namespace, port: u16) -> Result<Self> {
        let listener = namespace.enter(|| TcpListener::bind(("::", port))).context("cannot listen for the transfer")?;
        let taken = Arc::new(AtomicU64::new(0));
        let counter = taken.clone();
        let acceptor = Acceptor::start(listener, move |stream, _| drop(swallow(stream, &counter)));
        Ok(Self { taken, _acceptor: acceptor })
    }

    /// Returns the number of bytes received so far.
    pub fn taken(&self) -> u64 {
        self.taken.load(Relaxed)
    }
}

fn swallow(mut stream: &TcpStream, taken: &AtomicU64) -> std::io::Result<()> {
    let mut buffer = vec![0; CHUNK];
    loop {
        match stream.read(&mut buffer)? {
            // The client waits for this byte, which confirms that everything has arrived.
            0 => return stream.write_all(b"."),
            size => drop(taken.fetch_add(size as u64, Relaxed)),
        }
    }
}

/// A transfer that runs concurrently with the caller.
pub struct Transfer {
    thread: JoinHandle<Result<Rate>>,
    end: Arc<AtomicBool>,
}

/// Size and duration of a transfer.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// Bytes that arrived.
    pub bytes: u64,
    /// Time from the first byte sent until the last has arrived.
    pub time: Duration,
}

impl Rate {
    /// Returns the throughput in Mbit/s.
    pub fn megabits(&self) -> f64 {
        self.bytes as f64 * 8e-6 / self.time.as_secs_f64()
    }
}

impl Transfer {
    /// Sends from `client` to a [`Sink`] during `time`, at a rate of at most `per_second` bytes per second if
    /// `per_second` is set.
    pub fn start(client: &Namespace, to: SocketAddr, time: Duration, per_second: Option<u64>) -> Result<Self> {
        Self::start_with(client, to, time, per_second, Arc::new([0x5a; CHUNK]))
    }

    /// Starts a transfer like [`Self::start`], but sends `content` repeatedly.
    pub fn start_with(
        client: &Namespace,
        to: SocketAddr,
        time: Duration,
        per_second: Option<u64>,
        content: Arc<[u8]>,
    ) -> Result<Self> {
        let stream = client.enter(|| TcpStream::connect_timeout(&to, PATIENCE)).with_context(|| format!("to {to}"))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        if per_second.is_some() {
            // Fewer bytes in flight than the 256 packets of a virtual cable's queue, so that none is lost for lack of
            // room.
            setsockopt(&stream, SndBuf, &SMALL)?;
        }
        let end = Arc::new(AtomicBool::new(false));
        let ends = end.clone();
        Ok(Self { thread: thread::spawn(move || pour(stream, &content, time, per_second, &ends)), end })
    }

    /// Ends the transfer early, and returns its size and duration.
    pub fn end(self) -> Result<Rate> {
        self.end.store(true, Relaxed);
        self.finish()
    }

    /// Waits for the end of the transfer, and returns its size and duration.
    pub fn finish(self) -> Result<Rate> {
        self.thread.join().ok().context("the transfer panicked")?
    }
}

fn pour(
    mut stream: TcpStream,
    content: &[u8],
    time: Duration,
    per_second: Option<u64>,
    end: &AtomicBool,
) -> Result<Rate> {
    let (began, mut bytes) = (Instant::now(), 0);
    for chunk in content.chunks(CHUNK).cycle() {
        if began.elapsed() >= time || end.load(Relaxed) {
            break;
        }
        stream.write_all(chunk).context("cannot send")?;
        bytes += chunk.len() as u64;
        if let Some(per_second) = per_second {
            let due = Duration::from_secs_f64(bytes as f64 / per_second as f64);
            thread::sleep(due.saturating_sub(began.elapsed()));
        }
    }
    stream.shutdown(std::net::Shutdown::Write)?;
    let mut last = [0];
    ensure!(
        stream.read(&mut last).context("cannot receive the last byte")? == 1,
        "the connection was cut before the last byte"
    );
    Ok(Rate { bytes, time: began.elapsed() })
}
