//! Bytes on the wire, by capture: what a solution adds to the first packet of a flow and to later ones, and what it sends
//! while nothing is sent.

use std::net::{SocketAddrV4, UdpSocket};
use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use lab::poll;

use super::emulator::Emulator;
use super::services::{COUNT, Services, datagram};
use crate::scene::Scene;

/// Headers of the application's own packet: IPv4 and UDP.
const HEADERS: usize = 28;
/// Longest packet that can be a bare acknowledgement of TCP, with its options.
const BARE: usize = 60;
/// Payload of the shortest measured packet; 15 others follow, each a byte longer, so that a block cipher's padding is
/// averaged.
const PAYLOAD: usize = 1000;

/// Bytes that a solution adds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Added {
    /// To the first packet of a flow.
    pub first: f64,
    /// To later packets, on average.
    pub later: f64,
}

/// Measures what is added to a flow of datagrams.
///
/// # Errors
/// If datagrams do not arrive.
pub fn added(scene: &Scene, services: &Services, emulator: &Emulator) -> Result<Added> {
    let run = services.begin();
    let socket = scene.site.client.enter(|| UdpSocket::bind("0.0.0.0:0"))?;
    socket.connect(SocketAddrV4::new(scene.server(), COUNT))?;
    let (mut added, mut buffer) = (Vec::new(), Vec::new());
    for number in 0..17u64 {
        let length = PAYLOAD + number as usize % 16;
        emulator.record();
        datagram(&mut buffer, run, number, services.now(), length);
        socket.send(&buffer)?;
        let arrived = poll(Duration::from_secs(2), || services.count() > number);
        // What follows the packet belongs to it.
        thread::sleep(Duration::from_millis(15));
        let seen = emulator.recorded();
        ensure!(arrived, "datagram {number} does not arrive");
        let lengths = seen.iter().filter(|seen| seen.to_gateway).filter_map(|seen| seen.ip_length());
        let sum: usize = lengths.filter(|length| *length > BARE).sum();
        added.push(sum as f64 - (length + HEADERS) as f64);
    }
    let later = &added[1..];
    Ok(Added { first: added[0], later: later.iter().sum::<f64>() / later.len() as f64 })
}

/// Returns the bytes per second of IP packets in both directions while nobody sends anything.
pub fn idle(emulator: &Emulator, span: Duration) -> f64 {
    emulator.record();
    thread::sleep(span);
    let lengths: usize = emulator.recorded().iter().filter_map(super::emulator::Seen::ip_length).sum();
    lengths as f64 / span.as_secs_f64()
}
