//! A path in user space. It copies frames between the bridge and the gateway, and delays, loses, reorders, changes or
//! repeats some of them. It also records frames, as an observer of the path could.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::Result;
use lab::Port;

use crate::site::{Site, TO_GATEWAY, TRUNK};

/// Maximum number of frames under way in each direction. Further frames are lost, as in a router's queue.
const QUEUE: usize = 4096;
/// Length in bytes of an IP packet above which a frame counts as application data; shorter packets may be of a control
/// protocol.
const DATA: usize = 350;

/// An attack on the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attack {
    /// The path does not attack.
    None,
    /// Flips a bit in each data packet to the gateway, and adapts the outer checksums to the change.
    Flip,
    /// Sends each data packet to the gateway once more, a moment later.
    Repeat,
}

/// The effects of the path on packets. All effects except an attack are the same in both directions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Conditions {
    /// Time by which each packet is delayed.
    pub delay: Duration,
    /// Fraction of the packets that are lost.
    pub loss: f64,
    /// Fraction of the packets that are delayed by 1.5 times `delay`, so that later packets overtake them. Has no
    /// effect if `delay` is zero.
    pub overtaken: f64,
    /// The attack on the packets that pass.
    pub attack: Attack,
}

impl Conditions {
    /// Conditions under which all packets pass unchanged and at once.
    pub const CLEAN: Self = Self { delay: Duration::ZERO, loss: 0.0, overtaken: 0.0, attack: Attack::None };
}

/// A recorded frame.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Whether the frame went to the gateway.
    pub to_gateway: bool,
    /// The frame as it arrived at the emulator, before the emulator changed or lost it.
    pub frame: Vec<u8>,
}

impl Seen {
    /// Returns the length of the IPv4 packet in the frame, if it has one.
    pub fn ip_length(&self) -> Option<usize> {
        ip_length(&self.frame)
    }
}

fn ip_length(frame: &[u8]) -> Option<usize> {
    let is_ip = frame.get(12..14)? == [8, 0];
    is_ip.then(|| Some(usize::from(u16::from_be_bytes(frame.get(16..18)?.try_into().ok()?))))?
}

#[derive(Default)]
struct Shared {
    end: AtomicBool,
    attacked: AtomicU64,
    recording: AtomicBool,
    record: Mutex<Vec<Seen>>,
}

/// A running path between the bridge and the gateway. It ends when this value is dropped.
pub struct Emulator {
    shared: Arc<Shared>,
    conditions: Arc<Mutex<Conditions>>,
    threads: Vec<JoinHandle<()>>,
}

impl Emulator {
    /// Starts the path of `site`, which must have been built with [`Path::Emulated`](crate::site::Path::Emulated). At
    /// first, the conditions are [`Conditions::CLEAN`].
    ///
    /// # Errors
    ///
    /// Fails if a device can't be opened.
    pub fn start(site: &Site) -> Result<Self> {
        let (near, far) = (Arc::new(Port::open(&site.path, TRUNK)?), Arc::new(Port::open(&site.path, TO_GATEWAY)?));
        let (shared, conditions) = (Arc::new(Shared::default()), Arc::new(Mutex::new(Conditions::CLEAN)));
        let carry = |from: &Arc<Port>, to: &Arc<Port>, to_gateway: bool| {
            let lane = Lane {
                from: from.clone(),
                to: to.clone(),
                to_gateway,
                shared: shared.clone(),
                conditions: conditions.clone(),
                // The seeds are fixed, so that two runs lose the same packets of the same sequence.
                chance: if to_gateway { 1 } else { 2 },
                waiting: BinaryHeap::new(),
                number: 0,
            };
            thread::spawn(move || lane.run())
        };
        let threads = vec![carry(&near, &far, true), carry(&far, &near, false)];
        Ok(Self { shared, conditions, threads })
    }

    /// Sets the conditions for all packets from now on.
    pub fn set(&self, conditions: Conditions) {
        *self.conditions.lock().unwrap_or_else(PoisonError::into_inner) = conditions;
    }

    /// Returns how many packets were changed or repeated since the last call.
    pub fn attacked(&self) -> u64 {
        self.shared.attacked.swap(0, Relaxed)
    }

    /// Begins to record frames, from an empty record.
    pub fn record(&self) {
        self.shared.record.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.shared.recording.store(true, Relaxed);
    }

    /// Ends the recording and returns the frames.
    pub fn recorded(&self) -> Vec<Seen> {
        self.shared.recording.store(false, Relaxed);
        std::mem::take(&mut *self.shared.record.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        self.shared.end.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// One direction of the path. Frames leave in the order of their times; frames with equal times leave in the order of
/// their arrival.
struct Lane {
    from: Arc<Port>,
    to: Arc<Port>,
    to_gateway: bool,
    shared: Arc<Shared>,
    conditions: Arc<Mutex<Conditions>>,
    chance: u64,
    waiting: BinaryHeap<Reverse<(Instant, u64, Vec<u8>)>>,
    number: u64,
}

impl Lane {
    fn run(mut self) {
        while !self.shared.end.load(Relaxed) {
            let now = Instant::now();
            let next = self.waiting.peek().map(|Reverse((due, ..))| due.saturating_duration_since(now));
            let within = next.unwrap_or(Duration::from_millis(20)).min(Duration::from_millis(20));
            if let Some(frame) = self.from.receive(within, |frame| Some(frame.to_vec())) {
                self.take(frame);
            }
            let now = Instant::now();
            while let Some(Reverse((due, ..))) = self.waiting.peek()
                && *due <= now
            {
                if let Some(Reverse((_, _, frame))) = self.waiting.pop() {
                    let _ = self.to.send(&frame);
                }
            }
        }
    }

    fn take(&mut self, mut frame: Vec<u8>) {
        if self.shared.recording.load(Relaxed) {
            let seen = Seen { to_gateway: self.to_gateway, frame: frame.clone() };
            self.shared.record.lock().unwrap_or_else(PoisonError::into_inner).push(seen);
        }
        let conditions = *self.conditions.lock().unwrap_or_else(PoisonError::into_inner);
        let is_ip = ip_length(&frame).is_some();
        let is_data = ip_length(&frame).is_some_and(|length| length > DATA);
        if is_ip && self.toss() < conditions.loss || self.waiting.len() >= QUEUE {
            return;
        }
        let mut delay = conditions.delay;
        if is_ip && self.toss() < conditions.overtaken {
            delay += conditions.delay / 2;
        }
        if is_data && self.to_gateway && conditions.attack != Attack::None {
            self.shared.attacked.fetch_add(1, Relaxed);
            match conditions.attack {
                Attack::Flip => flip(&mut frame),
                _ => self.push(Duration::from_millis(100), frame.clone()),
            }
        }
        if delay.is_zero() && self.waiting.is_empty() {
            let _ = self.to.send(&frame);
        } else {
            self.push(delay, frame);
        }
    }

    fn push(&mut self, delay: Duration, frame: Vec<u8>) {
        self.number += 1;
        self.waiting.push(Reverse((Instant::now() + delay, self.number, frame)));
    }

    /// Returns a random number from 0 to 1 (splitmix64).
    fn toss(&mut self) -> f64 {
        self.chance = self.chance.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.chance ^ (self.chance >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Flips a bit of the application's data, which precedes the last hundred bytes. Corrects the outer UDP or TCP
/// checksum, as an attacker would.
fn flip(frame: &mut [u8]) {
    const ETHERNET: usize = 14;
    let Some(length) = ip_length(frame) else { return };
    let header = usize::from(frame[ETHERNET] & 15) * 4;
    let (protocol, transport) = (frame[ETHERNET + 9], ETHERNET + header);
    let Some(byte) = frame.get_mut(ETHERNET + length - 120) else { return };
    *byte ^= 0x40;
    let end = (ETHERNET + length).min(frame.len());
    match protocol {
        // No checksum, which IPv4 allows.
        17 => frame[transport + 6..transport + 8].fill(0),
        6 => {
            frame[transport + 16..transport + 18].fill(0);
            let pseudo =
                [&frame[ETHERNET + 12..ETHERNET + 20], &[0, 6], &((end - transport) as u16).to_be_bytes()].concat();
            let sum = checksum(&[&pseudo[..], &frame[transport..end]].concat());
            frame[transport + 16..transport + 18].copy_from_slice(&sum.to_be_bytes());
        }
        _ => {}
    }
}

/// The Internet checksum (RFC 1071).
fn checksum(bytes: &[u8]) -> u16 {
    let words =
        bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or_default()));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use lab::forge::{Packet, Tcp};

    use super::*;

    #[test]
    fn a_flipped_bit_leaves_the_outer_checksums_right() {
        let [source, destination] = ["10.0.0.1", "10.0.0.2"].map(|text| text.parse().unwrap());
        let packet = || Packet::new(source, destination).ethernet([2; 6], [4; 6]);
        for original in
            [packet().tcp(Tcp::syn(1, 2)).payload(&[7; 500]).frame(), packet().udp(1, 2).payload(&[7; 501]).frame()]
        {
            let mut flipped = original.clone();
            flip(&mut flipped);
            let length = ip_length(&flipped).unwrap();
            let at = 14 + length - 120;
            assert_eq!(flipped[at] ^ original[at], 0x40);
            let body = &flipped[34..14 + length];
            if flipped[23] == 6 {
                let pseudo = [&flipped[26..34], &[0, 6], &(body.len() as u16).to_be_bytes()].concat();
                assert_eq!(checksum(&[&pseudo[..], body].concat()), 0);
            } else {
                assert_eq!(body[6..8], [0, 0]);
            }
        }
    }
}
