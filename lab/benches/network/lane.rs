//! Connections that stay open while another path is measured.

use std::io::Write;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lab::Namespace;
use lab::transfer::Sink;
use lab::world::{DARK4, Network};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// Server port of the first connection; further connections use the ports after it.
pub const PORT: u16 = 9500;
const CHUNK: usize = 128 * 1024;
const PATIENCE: Duration = Duration::from_secs(10);

/// Connections from a client to a server, each with the sink that receives its data.
pub struct Lane(Vec<Connection>);

struct Connection {
    stream: TcpStream,
    sink: Sink,
    sent: u64,
}

impl Lane {
    /// Opens `clients` connections from Alice to the server.
    pub fn open(network: &Network, clients: u16) -> Result<Self> {
        Self::between(&network.alice, &network.server, DARK4.parse()?, clients)
    }

    /// Opens `clients` connections from the namespace `client` to the namespace `server`, whose address is `address`.
    pub fn between(client: &Namespace, server: &Namespace, address: IpAddr, clients: u16) -> Result<Self> {
        (PORT..PORT + clients)
            .map(|port| Connection::open(client, server, SocketAddr::new(address, port)))
            .collect::<Result<_>>()
            .map(Self)
    }

    /// Sends on all connections during `time`. Returns the throughput in Mbit/s, over the time until the last byte has
    /// arrived.
    pub fn turn(&mut self, time: Duration) -> Result<f64> {
        on_processor(End::Sender, || self.turn_here(time))
    }

    fn turn_here(&mut self, time: Duration) -> Result<f64> {
        let began = Instant::now();
        let bytes = match self.0.as_mut_slice() {
            [one] => one.turn(time)?,
            many => thread::scope(|scope| {
                let turns: Vec<_> = many.iter_mut().map(|one| scope.spawn(|| one.turn(time))).collect();
                turns.into_iter().map(|turn| turn.join().ok().context("a sender panicked")?).sum::<Result<u64>>()
            })?,
        };
        Ok(bytes as f64 * 8e-6 / began.elapsed().as_secs_f64())
    }
}

/// The two ends of a connection.
#[derive(Clone, Copy, PartialEq)]
enum End {
    Sender,
    Sink,
}

/// Runs `work`, and the threads that it starts, on one of the processors that this thread may use: senders on the
/// first, sinks on the last. Otherwise the throughput would depend on the processors that the scheduler chooses, and
/// these differ from one opening to the next.
fn on_processor<T>(end: End, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let this = Pid::from_raw(0);
    let all = sched_getaffinity(this)?;
    let mut usable = (0..CpuSet::count()).filter(|&processor| all.is_set(processor).unwrap_or(false));
    let processor = if end == End::Sender { usable.next() } else { usable.next_back() };
    let mut only = CpuSet::new();
    only.set(processor.context("this thread may use no processor")?)?;
    sched_setaffinity(this, &only)?;
    let result = work();
    sched_setaffinity(this, &all)?;
    result
}

impl Connection {
    fn open(client: &Namespace, server: &Namespace, to: SocketAddr) -> Result<Self> {
        let sink = on_processor(End::Sink, || Sink::start(server, to.port()))?;
        let stream = client.enter(|| TcpStream::connect_timeout(&to, PATIENCE)).with_context(|| format!("to {to}"))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Self { stream, sink, sent: 0 })
    }

    fn turn(&mut self, time: Duration) -> Result<u64> {
        let (chunk, began, before) = (vec![0x5a; CHUNK], Instant::now(), self.sent);
        while began.elapsed() < time {
            self.stream.write_all(&chunk).context("sending")?;
            self.sent += chunk.len() as u64;
        }
        while self.sink.taken() < self.sent {
            ensure!(began.elapsed() < PATIENCE, "not all bytes that were sent have arrived within {PATIENCE:?}");
            thread::yield_now();
        }
        Ok(self.sent - before)
    }
}
