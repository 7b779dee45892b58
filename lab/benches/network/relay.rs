//! Adds delay between a switch and its controller. It works in user space, because not every kernel used here can delay
//! packets.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use lab::{Acceptor, Namespace};

/// The address that switches connect to.
pub const ADDRESS: &str = "127.0.0.1:6654";

/// A running relay. It forwards bytes in both directions, and delays them in each direction by half of the
/// `round_trip` given to [`Self::start`]. Dropping the relay ends it.
pub struct Relay {
    handed_on: Arc<AtomicU64>,
    _acceptor: Acceptor,
}

impl Relay {
    /// Listens on [`ADDRESS`] of the namespace and forwards to the controller at `to`.
    pub fn start(namespace: &Namespace, to: SocketAddr, round_trip: Duration) -> Result<Self> {
        let handed_on = Arc::new(AtomicU64::new(0));
        let counter = handed_on.clone();
        let forward = move |switch: &TcpStream, _| {
            let joined = TcpStream::connect(to).map_err(anyhow::Error::from);
            if let Err(error) = joined.and_then(|controller| join(switch, &controller, round_trip / 2, &counter)) {
                eprintln!("bench: relay: {error:#}");
            }
        };
        // Threads begin in the namespace of the thread that starts them.
        let start = || TcpListener::bind(ADDRESS).map(|listener| Acceptor::start(listener, forward));
        Ok(Self { handed_on, _acceptor: namespace.enter(start).context("relay")? })
    }

    /// Reports whether the relay has forwarded at least as many messages as switch and controller need to exchange
    /// their hellos and the rules.
    pub fn is_used(&self) -> bool {
        self.handed_on.load(Relaxed) >= 8
    }
}

/// Forwards in both directions until a stream ends.
fn join(switch: &TcpStream, controller: &TcpStream, delay: Duration, handed_on: &AtomicU64) -> Result<()> {
    for stream in [switch, controller] {
        stream.set_nodelay(true)?;
    }
    thread::scope(|scope| {
        for (mut from, mut to) in [(switch, controller), (controller, switch)] {
            let (sender, waiting) = mpsc::channel::<(Instant, Vec<u8>)>();
            scope.spawn(move || {
                let mut chunk = vec![0; 64 * 1024];
                while let Ok(len @ 1..) = from.read(&mut chunk) {
                    if sender.send((Instant::now() + delay, chunk[..len].to_vec())).is_err() {
                        break;
                    }
                }
            });
            scope.spawn(move || {
                for (due, bytes) in waiting {
                    thread::sleep(due.saturating_duration_since(Instant::now()));
                    if to.write_all(&bytes).is_err() {
                        break;
                    }
                    handed_on.fetch_add(1, Relaxed);
                }
                let _ = to.shutdown(Shutdown::Both);
            });
        }
    });
    Ok(())
}
