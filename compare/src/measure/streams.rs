//! TCP: transfers by one or several streams, and exchanges of single bytes.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddrV4, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::services::{Services, TCP, Use};
use super::way::Way;

/// Time before a transfer is measured, in which TCP finds the path's bandwidth.
pub const WARM: Duration = Duration::from_millis(250);

/// Opens a connection to the services.
///
/// # Errors
/// Fails if the connection can't be opened in time (see [`Way::tcp`]), or if it breaks at once.
pub fn open(client: &Way, server: Ipv4Addr, kind: Use) -> Result<TcpStream> {
    let stream = client.tcp(SocketAddrV4::new(server, TCP));
    let mut stream = stream.context("cannot open a TCP connection through the solution")?;
    stream.set_nodelay(true)?;
    stream.write_all(&[kind.byte()])?;
    Ok(stream)
}

/// A transfer that was measured.
#[derive(Clone, Copy, Debug)]
pub struct Transfer {
    /// Bytes that the receiver got.
    pub bytes: u64,
    /// Time in which these bytes arrived.
    pub time: Duration,
}

impl Transfer {
    /// Returns the rate in Mbit/s.
    pub fn rate(&self) -> f64 {
        self.bytes as f64 * 8.0 / 1e6 / self.time.as_secs_f64()
    }
}

/// Transfers data through `count` streams for the time `span`, after [`WARM`]. Calls `around` at the beginning and at
/// the end of the measured time, and returns the results of both calls, for the caller to compare.
///
/// # Errors
///
/// Fails if a stream can't be opened, or nothing arrives.
pub fn transfer<T>(
    client: &Way,
    server: Ipv4Addr,
    services: &Services,
    (kind, count): (Use, usize),
    span: Duration,
    mut around: impl FnMut() -> T,
) -> Result<(Transfer, [T; 2])> {
    let streams: Vec<_> = (0..count).map(|_| open(client, server, kind)).collect::<Result<_>>()?;
    let taken = AtomicU64::new(0);
    let counter: &AtomicU64 = if kind == Use::Up { &services.bytes } else { &taken };
    let measured = thread::scope(|scope| {
        for stream in &streams {
            let taken = &taken;
            // An error ends the thread. Nothing arrives then, which is noticed below.
            scope.spawn(move || drop(if kind == Use::Up { push(stream) } else { pull(stream, taken) }));
        }
        thread::sleep(WARM);
        let before = around();
        let (begun, from) = (Instant::now(), counter.load(Relaxed));
        thread::sleep(span);
        let (bytes, time) = (counter.load(Relaxed) - from, begun.elapsed());
        let after = around();
        for stream in &streams {
            let _ = stream.shutdown(Shutdown::Both);
        }
        (Transfer { bytes, time }, [before, after])
    });
    ensure!(measured.0.bytes > 0, "no byte arrived in {span:?}");
    Ok(measured)
}

fn push(mut stream: &TcpStream) -> std::io::Result<()> {
    let buffer = vec![0x55; 256 * 1024];
    loop {
        stream.write_all(&buffer)?;
    }
}

fn pull(mut stream: &TcpStream, taken: &AtomicU64) -> std::io::Result<()> {
    let mut buffer = vec![0; 256 * 1024];
    loop {
        let size = stream.read(&mut buffer)?;
        if size == 0 {
            return Ok(());
        }
        taken.fetch_add(size as u64, Relaxed);
    }
}

/// Returns the number of one-byte exchanges per second on a new connection, measured for the time `span`.
///
/// # Errors
/// Fails if the connection can't be opened or breaks, or if an answer takes more than two seconds.
pub fn exchanges(client: &Way, server: Ipv4Addr, span: Duration) -> Result<f64> {
    let mut stream = open(client, server, Use::Exchange)?;
    stream.set_read_timeout(Some(Duration::from_secs(2)))?;
    let mut byte = [1];
    let (begun, mut count) = (Instant::now(), 0u32);
    while begun.elapsed() < span {
        stream.write_all(&byte)?;
        stream.read_exact(&mut byte)?;
        count += 1;
    }
    Ok(f64::from(count) / begun.elapsed().as_secs_f64())
}
