//! Counts bytes on the path in a capture: those that a solution adds to the first packet of a flow and to later
//! packets, and those that it sends while the application sends nothing.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::emulator::{Emulator, Seen};
use super::services::ECHO;
use crate::scene::Scene;
use crate::site::CLIENT;

/// Length in bytes of the headers of the application's own packet: IPv4 and UDP.
const HEADERS: usize = 28;
/// Length in bytes of the longest packet that can be a bare TCP acknowledgement with its options.
const BARE: usize = 60;
/// Payload length, in bytes, of the shortest measured packet. 15 more follow, each a byte longer, so that the padding
/// of a block cipher is averaged.
const PAYLOAD: usize = 1000;
/// Time for which the client has to be silent before a measurement, and the number of tries.
const QUIET: Duration = Duration::from_millis(200);
const QUIET_TRIES: u32 = 25;

/// Bytes that a solution adds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Added {
    /// Bytes added to the first packet of a flow.
    pub first: f64,
    /// Bytes added to later packets, on average.
    pub later: f64,
}

/// Measures the bytes that the solution adds to the client's packets, in a flow of datagrams that the server answers.
///
/// # Errors
///
/// Fails if the client keeps sending although no application sends, or if a datagram is not answered.
pub fn added(scene: &Scene, emulator: &Emulator) -> Result<Added> {
    quiet(emulator)?;
    // A datagram that is sent when the socket is connected belongs to the first one of the application.
    emulator.record();
    let socket = scene.way().udp(SocketAddrV4::new(scene.server(), ECHO))?;
    socket.set_read_timeout(Some(Duration::from_secs(2)))?;
    let mut added = Vec::new();
    for number in 0..17 {
        let length = PAYLOAD + number % 16;
        if number > 0 {
            emulator.record();
        }
        socket.send(&vec![number as u8; length])?;
        let answered = socket.recv(&mut [0; 2048]);
        // Packets that follow soon are caused by this datagram.
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

/// Waits until the client sends nothing of its own accord: a program that has just started may still exchange messages
/// with its server, which would be counted as part of the first packet.
fn quiet(emulator: &Emulator) -> Result<()> {
    let silent = || {
        emulator.record();
        thread::sleep(QUIET);
        emulator.recorded().iter().filter(|seen| from_client(seen)).filter_map(Seen::ip_length).all(|size| size <= BARE)
    };
    ensure!((0..QUIET_TRIES).any(|_| silent()), "the client does not stop sending though no application sends");
    Ok(())
}

/// Reports whether a frame comes from the client. Other hosts on its Ethernet also communicate with the gateway.
fn from_client(seen: &Seen) -> bool {
    let client: Ipv4Addr = CLIENT.parse().expect("INVARIANT: a constant address");
    seen.to_gateway && seen.frame.get(26..30) == Some(&client.octets())
}

/// Returns the bytes per second of IP packets in both directions while the application sends nothing.
pub fn idle(emulator: &Emulator, span: Duration) -> f64 {
    emulator.record();
    thread::sleep(span);
    let lengths: usize = emulator.recorded().iter().filter_map(Seen::ip_length).sum();
    lengths as f64 / span.as_secs_f64()
}
