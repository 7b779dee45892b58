//! Connections that stay open while another path has its turn.

use std::io::Write;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lab::Namespace;
use lab::transfer::Sink;
use lab::world::{DARK4, Network};

/// Server port of the first connection.
pub const PORT: u16 = 9500;
const CHUNK: usize = 128 * 1024;
const PATIENCE: Duration = Duration::from_secs(10);

/// Alice's connections to the server on one network, each with its sink.
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

    /// Opens `clients` connections from one namespace to another, which has this address.
    pub fn between(client: &Namespace, server: &Namespace, address: IpAddr, clients: u16) -> Result<Self> {
        (PORT..PORT + clients)
            .map(|port| Connection::open(client, server, SocketAddr::new(address, port)))
            .collect::<Result<_>>()
            .map(Self)
    }

    /// Sends on all connections during `time`; returns the throughput in Mbit/s until the last byte has arrived.
    pub fn turn(&mut self, time: Duration) -> Result<f64> {
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

impl Connection {
    fn open(client: &Namespace, server: &Namespace, to: SocketAddr) -> Result<Self> {
        let sink = Sink::start(server, to.port())?;
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
            ensure!(began.elapsed() < PATIENCE, "what was sent does not arrive");
            thread::yield_now();
        }
        Ok(self.sent - before)
    }
}
