//! Tries security properties: what an observer can read, and what happens after flipped bits, repeated packets, a
//! stranger's attempts, and floods.

use std::net::{SocketAddrV4, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sys::socket::{setsockopt, sockopt};

use super::datagrams;
use super::emulator::{Attack, Conditions, Emulator, Seen};
use super::inside::Inside;
use super::processors;
use super::services::{COUNT, ECHO, MARK, Services, TCP, datagram};
use crate::driver::Door;
use crate::record::Property;
use crate::scene::Scene;
use crate::site::{GATEWAY, LAN, SERVER};
use crate::workshop::IDENTITY;

/// Number of datagrams in an attempt.
const TRIES: u64 = 30;
/// Payload length of these datagrams, in bytes. They are longer than any control packet that is sent repeatedly.
const LENGTH: usize = 700;

/// A security property, and the result of observing it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observation {
    /// The security property that was tried.
    pub property: Property,
    /// Whether the solution has the property.
    pub holds: bool,
    /// The observed figures on which the result is based.
    pub evidence: String,
}

fn observed(property: Property, holds: bool, evidence: String) -> Observation {
    Observation { property, holds, evidence }
}

fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    haystack.windows(needle.len()).any(|window| window == needle)
}

/// Searches the frames of the handshake and of the data for content that an observer could read: the payload, the
/// client's name, and the server's address. Returns one observation for each of the three.
pub fn reading(handshake: &[Seen], data: &[Seen]) -> [Observation; 3] {
    let count = |frames: &[Seen], needle: &[u8]| frames.iter().filter(|seen| contains(&seen.frame, needle)).count();
    // Every other datagram has the text with its last bit flipped, see `datagram`.
    let flipped: Vec<u8> = MARK[..24].iter().map(|byte| byte ^ 1).collect();
    let readable = count(data, &MARK[..24]) + count(data, &flipped);
    let of =
        data.iter().filter(|seen| seen.to_gateway && seen.ip_length().is_some_and(|length| length > LENGTH)).count();
    // Programs that do not allow a hyphen write the name with another character.
    let named = count(handshake, IDENTITY.as_bytes()) + count(handshake, IDENTITY.replace('-', "_").as_bytes());
    let inside: std::net::Ipv4Addr = SERVER.parse().expect("INVARIANT: a constant address");
    let addressed = count(data, &inside.octets());
    let frames = handshake.len();
    [
        observed(
            Property::PayloadHidden,
            of > 0 && readable == 0,
            format!("the text of {readable} of {of} data packets was read on the path"),
        ),
        observed(
            Property::IdentityHidden,
            named == 0,
            format!("{named} of {frames} frames until the first answer show the client's name"),
        ),
        observed(
            Property::AddressHidden,
            of > 0 && addressed == 0,
            format!("{addressed} of {} frames show the server's address {SERVER}", data.len()),
        ),
    ]
}

/// Sends data as an application without its own checksums would. Returns the recorded frames.
///
/// # Errors
///
/// Fails if the client's socket can't be opened.
pub fn send_data(scene: &Scene, services: &Services, emulator: &Emulator) -> Result<Vec<Seen>> {
    emulator.record();
    send(scene, services)?;
    thread::sleep(Duration::from_millis(200));
    Ok(emulator.recorded())
}

fn send(scene: &Scene, services: &Services) -> Result<()> {
    let run = services.begin();
    let socket = scene.way().udp(SocketAddrV4::new(scene.server(), COUNT))?;
    without_checksum(&socket)?;
    let mut buffer = Vec::new();
    for number in 0..TRIES {
        // A broken tunnel may refuse the datagram, which is also a result.
        datagram(&mut buffer, run, number, services.now(), LENGTH);
        let _ = socket.send(&buffer);
        thread::sleep(Duration::from_millis(4));
    }
    Ok(())
}

/// Makes the kernel send datagrams without a UDP checksum. The checksum would show the application a change that the
/// solution missed.
fn without_checksum(socket: &UdpSocket) -> Result<()> {
    use std::os::fd::AsRawFd;
    let on: libc::c_int = 1;
    // SAFETY: the pointer refers to an integer that outlives the call, and the length is its size.
    let done = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NO_CHECK,
            (&raw const on).cast(),
            size_of_val(&on) as libc::socklen_t,
        )
    };
    anyhow::ensure!(done == 0, "cannot turn off UDP checksums (SO_NO_CHECK): {}", std::io::Error::last_os_error());
    Ok(())
}

/// Flips a bit in every data packet, and observes whether the changed packets arrive.
///
/// # Errors
///
/// Fails if the client's socket can't be opened, or if no data packet reached the path.
pub fn flipped_bits(scene: &Scene, services: &Services, emulator: &Emulator) -> Result<Observation> {
    let (attacked, arrivals) = under(Attack::Flip, scene, services, emulator)?;
    let evidence = format!(
        "a bit was flipped in {attacked} packets on the path: the application received {} datagrams as they were sent, \
         and {} changed datagrams",
        arrivals.arrived, arrivals.changed
    );
    anyhow::ensure!(attacked > 0, "no packet was changed");
    Ok(observed(Property::FlippedBitNoticed, arrivals.changed == 0, evidence))
}

/// Repeats every data packet, and observes whether the copies arrive.
///
/// # Errors
///
/// Fails if the client's socket can't be opened, if no data packet reached the path, or if no datagram arrived.
pub fn repeated_packets(scene: &Scene, services: &Services, emulator: &Emulator) -> Result<Observation> {
    let (attacked, arrivals) = under(Attack::Repeat, scene, services, emulator)?;
    let evidence = format!(
        "{attacked} packets were sent twice: {} datagrams arrived, {} of them again",
        arrivals.arrived, arrivals.again
    );
    anyhow::ensure!(attacked > 0 && arrivals.arrived > 0, "{evidence}");
    Ok(observed(Property::ReplayRefused, arrivals.again == 0, evidence))
}

fn under(
    attack: Attack,
    scene: &Scene,
    services: &Services,
    emulator: &Emulator,
) -> Result<(u64, super::services::Arrivals)> {
    emulator.attacked();
    emulator.set(Conditions { attack, ..Conditions::CLEAN });
    let sent = send(scene, services);
    // Repeated packets come a moment later.
    thread::sleep(Duration::from_millis(400));
    emulator.set(Conditions::CLEAN);
    sent?;
    Ok((emulator.attacked(), services.arrived()))
}

/// Tries, as a stranger would, to get an answer. If the solution has a TCP port, the stranger connects to this port. If
/// the solution has a UDP port, the stranger sends noise and copies of the client's first packets to this port. If the
/// solution has no port, the stranger sends TCP and UDP packets to the server. Observes whether anything answers.
///
/// # Errors
///
/// Fails if the stranger can't send.
pub fn knocking(scene: &Scene, door: Door, handshake: &[Seen]) -> Result<Observation> {
    let property = Property::SilentToStrangers;
    let stranger = &scene.site.stranger;
    let wait = Duration::from_millis(400);
    let gateway = |port| SocketAddrV4::new(GATEWAY.parse().expect("INVARIANT: a constant address"), port);
    match door {
        Door::Tcp(port) => {
            let open = stranger.enter(|| TcpStream::connect_timeout(&gateway(port).into(), wait)).is_ok();
            let answer = if open { "accepts a stranger's connection" } else { "does not answer" };
            Ok(observed(property, !open, format!("TCP port {port} {answer}")))
        }
        Door::Udp(port) => {
            let copies: Vec<_> = handshake.iter().filter_map(|seen| payload_to(seen, port)).take(8).collect();
            let noise = [vec![0; 1], vec![0x38; 64], vec![0xff; 200]];
            let work = || -> Result<usize> {
                let socket = UdpSocket::bind("0.0.0.0:0")?;
                socket.set_read_timeout(Some(wait))?;
                for message in noise.iter().chain(&copies) {
                    socket.send_to(message, gateway(port))?;
                }
                let begun = Instant::now();
                let mut answers = 0;
                while begun.elapsed() < wait {
                    answers += usize::from(socket.recv_from(&mut [0; 2048]).is_ok());
                }
                Ok(answers)
            };
            let answers = stranger.enter(work)?;
            let evidence =
                format!("UDP port {port}: {answers} answers to noise and {} copied packets of a client", copies.len());
            Ok(observed(property, answers == 0, evidence))
        }
        Door::Inside => {
            stranger.ip(&format!("route replace {LAN} via {GATEWAY}"))?;
            let work = || -> Result<[bool; 2]> {
                let tcp = TcpStream::connect_timeout(&SocketAddrV4::new(scene.server(), TCP).into(), wait).is_ok();
                let socket = UdpSocket::bind("0.0.0.0:0")?;
                socket.set_read_timeout(Some(wait))?;
                socket.send_to(b"knock", SocketAddrV4::new(scene.server(), ECHO))?;
                Ok([tcp, socket.recv_from(&mut [0; 64]).is_ok()])
            };
            let [tcp, udp] = stranger.enter(work)?;
            let word = |answers: bool| if answers { "answers" } else { "is silent" };
            let evidence = format!("to a stranger, the server {} by TCP and {} by UDP", word(tcp), word(udp));
            Ok(observed(property, !tcp && !udp, evidence))
        }
    }
}

/// Returns the payload of a UDP packet to a port of the gateway.
fn payload_to(seen: &Seen, port: u16) -> Option<Vec<u8>> {
    let length = seen.ip_length()?;
    let header = usize::from(seen.frame.get(14)? & 15) * 4;
    let udp = seen.frame.get(14 + header..14 + length)?;
    let is_wanted = seen.to_gateway && seen.frame.get(23) == Some(&17) && udp.get(2..4)? == port.to_be_bytes();
    is_wanted.then(|| udp[8..].to_vec())
}

/// Floods the solution's port, as a stranger would, while the client sends a thousand datagrams a second. If the
/// solution has no port, the stranger floods the server. Observes how many of the client's datagrams are lost. The
/// solution withstands the flood if fewer than 5 % are.
///
/// # Errors
///
/// Fails if the client or the stranger can't send.
pub fn flood(scene: &Scene, services: &Services, door: Door) -> Result<Observation> {
    let span = Duration::from_millis(1000);
    let end = AtomicBool::new(false);
    let stranger = Inside::of(&scene.site.stranger);
    if door == Door::Inside {
        scene.site.stranger.ip(&format!("route replace {LAN} via {GATEWAY}"))?;
    }
    let gateway: std::net::Ipv4Addr = GATEWAY.parse().context("cannot parse the gateway's address")?;
    let work = || -> Result<u64> {
        stranger.enter();
        let (mut sent, mut open) = (0u64, Vec::new());
        let target = match door {
            Door::Udp(port) | Door::Tcp(port) => SocketAddrV4::new(gateway, port),
            Door::Inside => SocketAddrV4::new(scene.server(), COUNT),
        };
        let socket = UdpSocket::bind("0.0.0.0:0")?;
        setsockopt(&socket, sockopt::SndBuf, &(1 << 20))?;
        while !end.load(Relaxed) {
            if let Door::Tcp(_) = door {
                // A connection that sends nothing is the cheapest way to occupy the server.
                if open.len() >= 200 {
                    open.clear();
                }
                open.extend(TcpStream::connect_timeout(&target.into(), Duration::from_millis(50)));
                sent += 1;
            } else {
                sent += u64::from(socket.send_to(&[0xa5; 148], target).is_ok());
            }
        }
        Ok(sent)
    };
    let (sent, flooded, cpu) = thread::scope(|scope| -> Result<_> {
        let flooding = scope.spawn(work);
        thread::sleep(Duration::from_millis(100));
        let before = processors::time(&scene.site.client, &scene.site.gateway);
        let begun = Instant::now();
        let sent = datagrams::send(&scene.way(), scene.server(), services, (1000.0, 200), span);
        let time = begun.elapsed().as_secs_f64();
        let cpu = (processors::time(&scene.site.client, &scene.site.gateway).server - before.server) / time;
        end.store(true, Relaxed);
        let flooded = flooding.join().map_err(|_| anyhow::anyhow!("the stranger's thread panicked"))??;
        Ok((sent?, flooded, cpu))
    })?;
    let loss = sent.loss() * 100.0;
    let what = if matches!(door, Door::Tcp(_)) { "connections" } else { "datagrams" };
    let evidence = format!(
        "while a stranger sent {flooded} {what}, a client lost {loss:.1} % of its datagrams; the server's processes \
         used {:.0} % of a processor",
        cpu * 100.0
    );
    Ok(observed(Property::WithstandsFlood, loss < 5.0, evidence))
}
