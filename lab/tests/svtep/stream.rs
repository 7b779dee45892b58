//! A live flow of numbered datagrams that records when it is cut.

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use lab::poll;

use crate::SOON;
use crate::stage::Tenant;

/// Interval between datagrams.
const PACE: Duration = Duration::from_millis(2);

#[derive(Default)]
struct Counts {
    sent: AtomicU64,
    heard: AtomicU64,
    /// Time from the beginning until the last datagram arrived, in microseconds.
    last: AtomicU64,
    end: AtomicBool,
}

/// The flow. Dropping it ends the flow.
pub struct Stream {
    began: Instant,
    counts: Arc<Counts>,
    threads: Vec<JoinHandle<()>>,
}

impl Stream {
    /// Starts to send from one tenant to a port of another.
    pub fn start(from: &Tenant, to: &Tenant, port: u16) -> Result<Self> {
        let receiver = to.net.enter(|| UdpSocket::bind(("0.0.0.0", port)))?;
        receiver.set_read_timeout(Some(Duration::from_millis(50)))?;
        let sender = from.net.enter(|| UdpSocket::bind("0.0.0.0:0"))?;
        let (began, counts, at) = (Instant::now(), Arc::<Counts>::default(), to.at(port));
        let (sending, hearing) = (counts.clone(), counts.clone());
        let send = move || {
            while !sending.end.load(SeqCst) {
                // Count before sending, so that no datagram is missed.
                let number = sending.sent.fetch_add(1, SeqCst) + 1;
                let _ = sender.send_to(&number.to_le_bytes(), at);
                sleep(PACE);
            }
        };
        let hear = move || {
            let mut number = [0; 8];
            while !hearing.end.load(SeqCst) {
                if let Ok(8) = receiver.recv(&mut number) {
                    hearing.heard.fetch_max(u64::from_le_bytes(number), SeqCst);
                    hearing.last.store(began.elapsed().as_micros() as u64, SeqCst);
                }
            }
        };
        Ok(Self { began, counts, threads: vec![spawn(send), spawn(hear)] })
    }

    /// Returns the highest number of a datagram that arrived.
    pub fn heard(&self) -> u64 {
        self.counts.heard.load(SeqCst)
    }

    /// Runs `cut`, waits until `is_cut` returns true, and checks that no datagram sent later arrives. Returns the time
    /// from the start of `cut` until the last datagram arrived.
    pub fn cut(&self, cut: impl FnOnce() -> Result<()>, is_cut: impl Fn() -> bool) -> Result<Duration> {
        let began = self.began.elapsed();
        cut()?;
        ensure!(poll(SOON, is_cut), "the flow goes on: {} of {}", self.heard(), self.counts.sent.load(SeqCst));
        let last = self.counts.sent.load(SeqCst);
        ensure!(poll(SOON, || self.counts.sent.load(SeqCst) > last + 100));
        ensure!(self.heard() <= last, "{} came through after {last}", self.heard());
        Ok(Duration::from_micros(self.counts.last.load(SeqCst)).saturating_sub(began))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.counts.end.store(true, SeqCst);
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}
