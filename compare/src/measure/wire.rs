//! Bytes on the wire, by capture: what a solution adds to the first packet of a flow and to later ones, and what it sends
//! while nothing is sent.

use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};

use super::emulator::{Emulator, Seen};
use super::services::ECHO;
use crate::scene::Scene;
use crate::site::CLIENT;

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

/// Measures what is added to the client's packets of a flow of datagrams that are answered.
///
/// # Errors
/// If a datagram is not answered.
pub fn added(scene: &Scene, emulator: &Emulator) -> Result<Added> {
    let socket = scene.site.client.enter(|| UdpSocket::bind("0.0.0.0:0"))?;
    socket.connect(SocketAddrV4::new(scene.server(), ECHO))?;
    socket.set_read_timeout(Some(Duration::from_secs(2)))?;
    let mut added = Vec::new();
    for number in 0..17 {
        let length = PAYLOAD + number % 16;
        emulator.record();
        socket.send(&vec![number as u8; length])?;
        let answered = socket.recv(&mut [0; 2048]);
        // Packets that follow belong to it.
        thread::sleep(Duration::from_millis(15));
        let seen = emulator.recorded();
        answered.with_context(|| format!("datagram {number} was not answered"))?;
        let lengths = seen.iter().filter(|seen| from_client(seen)).filter_map(Seen::ip_length);
        let sum: usize = lengths.filter(|length| *length > BARE).sum();
        added.push(sum as f64 - (length + HEADERS) as f64);
    }
    let later = &added[1..];
    Ok(Added { first: added[0], later: later.iter().sum::<f64>() / later.len() as f64 })
}

/// Reports whether a frame is the client's: others on its Ethernet talk to the gateway, too.
fn from_client(seen: &Seen) -> bool {
    let client: Ipv4Addr = CLIENT.parse().expect("INVARIANT: a constant address");
    seen.to_gateway && seen.frame.get(26..30) == Some(&client.octets())
}

/// Returns the bytes per second of IP packets in both directions while nobody sends anything.
pub fn idle(emulator: &Emulator, span: Duration) -> f64 {
    emulator.record();
    thread::sleep(span);
    let lengths: usize = emulator.recorded().iter().filter_map(Seen::ip_length).sum();
    lengths as f64 / span.as_secs_f64()
}
