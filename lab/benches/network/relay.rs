//! Adds delay between a switch and its controller. It works in user space, because not every kernel used here can delay
//! packets.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use lab::Namespace;

/// The address that switches connect to.
pub const ADDRESS: &str = "127.0.0.1:6654";

/// A running relay. It forwards bytes in both directions, and delays them in each direction by half of the
/// `round_trip` given to [`Self::start`]. Dropping the relay ends it.
pub struct Relay {
    end: Arc<AtomicBool>,
    handed_on: Arc<AtomicU64>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Relay {
    /// Listens on [`ADDRESS`] of the namespace and forwards to the controller at `to`.
    pub fn start(namespace: &Namespace, to: SocketAddr, round_trip: Duration) -> Result<Self> {
        let listener = namespace.enter(|| TcpListener::bind(ADDRESS)).context("relay")?;
        listener.set_nonblocking(true)?;
        let (end, handed_on) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let path = namespace.path();
        let thread = thread::spawn({
            let (end, handed_on) = (end.clone(), handed_on.clone());
            move || {
                let inside = std::fs::File::open(path)
                    .map_err(anyhow::Error::from)
                    .and_then(|file| Ok(nix::sched::setns(&file, nix::sched::CloneFlags::CLONE_NEWNET)?));
                if let Err(error) = inside {
                    return eprintln!("bench: relay: {error:#}");
                }
                while !end.load(Relaxed) {
                    match listener.accept().and_then(|(switch, _)| Ok((switch, TcpStream::connect(to)?))) {
                        Ok((switch, controller)) => {
                            if let Err(error) = join(switch, controller, round_trip / 2, &handed_on) {
                                eprintln!("bench: relay: {error:#}");
                            }
                        }
                        Err(_) => thread::sleep(Duration::from_millis(1)),
                    }
                }
            }
        });
        Ok(Self { end, handed_on, thread: Some(thread) })
    }

    /// Reports whether the relay has forwarded at least as many messages as switch and controller need to exchange
    /// their hellos and the rules.
    pub fn is_used(&self) -> bool {
        self.handed_on.load(Relaxed) >= 8
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.end.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn join(switch: TcpStream, controller: TcpStream, delay: Duration, handed_on: &Arc<AtomicU64>) -> Result<()> {
    switch.set_nonblocking(false)?;
    for stream in [&switch, &controller] {
        stream.set_nodelay(true)?;
    }
    for (from, to) in [(switch.try_clone()?, controller.try_clone()?), (controller, switch)] {
        let (sender, waiting) = mpsc::channel::<(Instant, Vec<u8>)>();
        let (mut reader, mut writer, handed_on) = (from, to, handed_on.clone());
        thread::spawn(move || {
            let mut chunk = vec![0; 64 * 1024];
            while let Ok(len @ 1..) = reader.read(&mut chunk) {
                if sender.send((Instant::now() + delay, chunk[..len].to_vec())).is_err() {
                    break;
                }
            }
        });
        thread::spawn(move || {
            for (due, bytes) in waiting {
                thread::sleep(due.saturating_duration_since(Instant::now()));
                if writer.write_all(&bytes).is_err() {
                    break;
                }
                handed_on.fetch_add(1, Relaxed);
            }
            let _ = writer.shutdown(Shutdown::Both);
        });
    }
    Ok(())
}
