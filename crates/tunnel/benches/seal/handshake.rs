//! Measures the cost of tunnels at the verifier without a network: the memory of idle tunnels, and the time for forged
//! handshakes and for the timer's work. Also measures how long the first answer takes through a tunnel that does not
//! exist yet.

use crate::stage::{self, Dice, SERVER, Stage, demand};
use anyhow::{Context, Result, ensure};
use engine::model::Treatment;
use engine::tunnel::{Chance, Initiator, Packet, Received};
use measure::{Bound, Figures, Yardstick, median};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use tunnel::{End, Key, Layout, Leg, Message, Sealed, Times, VerifierEnd, times};
use wire::Destination;
use wire::packet::UDP;
use wire::seal::record::LANES;
use wire::seal::{INITIATION_LEN, Suites};

/// Number of idle tunnels to measure.
const TUNNELS: u32 = 10_000;
/// Number of forged handshakes, and of the rounds in which they are sent.
const FORGED: usize = 1_000_000;
const ROUNDS: usize = 20;
/// Number of measured times from a first packet to its first answer.
const FIRST: u32 = 31;
const ECHO: u16 = 7;

type Verifier = VerifierEnd<stage::Known>;

/// Measures the verifier's memory for idle tunnels, and its time for forged handshakes and for the timer's work.
pub fn measure(figures: &mut Figures) -> Result<()> {
    forged(figures)?;
    idle(figures)
}

/// Returns a UDP packet from a client to the server.
fn packet() -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 36, 0, 1, 0, 0, 64, UDP, 0, 0, 10, 1, 0, 1, 192, 0, 2, 1];
    packet.extend([0x9c, 0x40, 0, 7, 0, 16, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
    packet
}

fn receive(verifier: &mut Verifier, from: SocketAddr, datagram: &mut [u8], times: Times) -> Vec<Message> {
    let mut replies = Vec::new();
    let received = verifier.receive(from, None, datagram, times, &mut replies);
    if let Some((tunnel, Received::Packet { packet, treatment, suite, partial, .. })) = received
        && let Some(layout) = Layout::of(packet)
    {
        let sealed = Sealed { treatment, suite, is_compressed: false };
        assert!(verifier.admit(tunnel, packet, &layout, partial, sealed, times), "the packet may pass");
    }
    replies
}

/// Opens a tunnel of an account and sends a packet in every lane.
fn open(verifier: &mut Verifier, account: u32, dice: &mut Dice, (now, wall): Times) -> Result<()> {
    let from = SocketAddr::new(IpAddr::from([10, (account >> 16) as u8, (account >> 8) as u8, account as u8]), 40_000);
    let mut initiator = Initiator::new(stage::terms(account));
    let text = packet();
    let parts = [&text[..]];
    let treatment = wire::seal::Treatment::Encrypt;
    for lane in 0..LANES {
        let packet = Packet { treatment, suites: Suites::ALL, lane, partial: false, parts: &parts };
        let mut batch = seal::Batch::default();
        ensure!(initiator.seal(&packet, (now, wall), dice, &mut batch).is_ok(), "the packet is not sealed");
        let mut datagrams: Vec<_> = batch.runs().map(|run| run.bytes.to_vec()).collect();
        while let Some(mut datagram) = datagrams.pop() {
            for mut reply in receive(verifier, from, &mut datagram, (now, wall)) {
                let _ = initiator.receive(&mut reply.datagram, (now, wall), dice);
            }
            datagrams.extend(initiator.poll((now, wall), dice));
        }
    }
    ensure!(initiator.is_open(now), "the tunnel is not open");
    Ok(())
}

/// Returns the memory of this process, in bytes.
fn resident() -> Result<f64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("/proc/self/status")?;
    Ok(line.trim().trim_end_matches(" kB").trim().parse::<f64>()? * 1024.0)
}

fn idle(figures: &mut Figures) -> Result<()> {
    let (mut verifier, mut dice) = (stage::verifier_end(demand(Treatment::Encrypt)), Dice(1));
    let (mut now, mut wall) = times();
    open(&mut verifier, 1, &mut dice, (now, wall))?;
    let before = resident()?;
    for account in 2..2 + TUNNELS {
        open(&mut verifier, account, &mut dice, (now, wall))?;
    }
    ensure!(verifier.count() as u32 == TUNNELS + 1, "{} tunnels", verifier.count());
    let busy = resident()?;
    // The verifier forgets the state that repeats a handshake, and keys that it can derive again.
    let mut replies = Vec::new();
    for _ in 0..70 {
        (now, wall) = (now + 1_000, wall + 1);
        verifier.poll((now, wall), &mut replies);
    }
    let idle = resident()?;
    ensure!(verifier.count() as u32 == TUNNELS + 1, "{} tunnels are left", verifier.count());
    let each = |memory: f64| (memory - before) / f64::from(TUNNELS);
    figures.count("seal.idle_tunnel_memory", "bytes", each(idle), Bound::AtMost(8192.0));
    figures.count("seal.new_tunnel_memory", "bytes", each(busy), Bound::None);
    // The timer's work for tunnels with nothing to do, on the average of a second.
    let mut walk = measure::memory::Walk::new(16 << 20);
    let (mut polls, mut walks) = (Vec::new(), Vec::new());
    for _ in 0..100 {
        let begun = Instant::now();
        for _ in 0..20 {
            now += 50;
            verifier.poll((now, wall), &mut replies);
        }
        polls.push(begun.elapsed().as_nanos() as f64 / 20e3);
        walks.push(walk.sample() / 1e3);
        wall += 1;
    }
    // A poll looks at a twentieth of the tunnels, each of which costs some reads of memory.
    let yardstick = Yardstick::new(walks).scaled(f64::from(TUNNELS) / 20.0);
    figures.add("seal.poll_of_10000", "us", median(&polls), &yardstick, Bound::None);
    Ok(())
}

fn forged(figures: &mut Figures) -> Result<()> {
    let mut verifier = stage::verifier_end(demand(Treatment::Encrypt));
    let (now, wall) = times();
    let (mut dice, terms, verifier_key) = (Dice(2), stage::terms(9), stage::verifier_key());
    let mut initiator = Initiator::new(terms.clone());
    initiator.want(true);
    let right = initiator.poll((now, wall), &mut dice).pop().context("an initiation")?;
    ensure!(right.len() == INITIATION_LEN, "the first datagram has more or fewer bytes than an initiation");
    let from = SocketAddr::new(IpAddr::from([203, 0, 113, 66]), 6666);
    let mut before = resident()?;
    let (mut forging, mut macs) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        if round == 1 {
            // The first round has touched the memory that all of them use.
            before = resident()?;
        }
        let begun = Instant::now();
        for _ in 0..FORGED / ROUNDS {
            let mut datagram = right.clone();
            // Another index, share and tag in each, under a header of a grant that an observer saw.
            datagram[4..8].copy_from_slice(&dice.bytes()[..4]);
            datagram[32..64].copy_from_slice(&dice.bytes());
            datagram[64..].copy_from_slice(&dice.bytes()[..16]);
            ensure!(receive(&mut verifier, from, &mut datagram, (now, wall)).is_empty(), "a stranger got an answer");
        }
        forging.push(begun.elapsed().as_nanos() as f64 / (FORGED / ROUNDS) as f64);
        let begun = Instant::now();
        for _ in 0..10_000 {
            std::hint::black_box(terms.grant.key(&verifier_key, &terms.to, from.ip()));
        }
        macs.push(begun.elapsed().as_nanos() as f64 / 10_000.0);
    }
    ensure!(verifier.is_empty(), "a forged handshake left a tunnel, a tag, a flow or an inside address");
    ensure!(receive(&mut verifier, from, &mut right.clone(), (now, wall)).len() == 1, "the right one is answered");
    figures.count("seal.forged_handshake", "ns", median(&forging), Bound::AtMost(2000.0));
    // The unavoidable work is to derive the grant's key and to compute a MAC; this is the first part.
    let yardstick = Yardstick::new(macs);
    figures.add("seal.forged_handshake.of_mac", "ns", median(&forging), &yardstick, Bound::AtMost(12.0));
    figures.count("seal.forged_handshake.memory", "bytes", (resident()? - before).max(0.0), Bound::AtMost(262_144.0));
    Ok(())
}

/// Measures the time from a flow's first packet to its first answer, in microseconds, if the grants are at hand and the
/// tunnel does not exist yet. Compares it with `round_trip`, the time of a round trip on the plain path in
/// microseconds.
pub fn first_answer(figures: &mut Figures, round_trip: f64) -> Result<()> {
    let stage = Stage::new(false, demand(Treatment::Encrypt));
    let server = stage.server.enter(|| UdpSocket::bind((SERVER, ECHO)))?;
    std::thread::spawn(move || {
        let mut room = [0; 64];
        while let Ok((length, from)) = server.recv_from(&mut room) {
            let _ = server.send_to(&room[..length], from);
        }
    });
    let mut answered = Vec::new();
    for account in 100..100 + FIRST {
        let socket = stage.client.enter(|| UdpSocket::bind("0.0.0.0:0"))?;
        socket.connect((SERVER, ECHO))?;
        socket.set_read_timeout(Some(Duration::from_secs(2)))?;
        let key = Key { subject: account, ..stage::key() };
        let to = Destination { address: SERVER.parse()?, protocol: UDP, port: ECHO };
        stage.opener.store(account, Relaxed);
        let mut end = stage.agent.end();
        end.set_tunnel(key, stage::terms(account), tunnel::times());
        end.set_leg(to, Leg { tunnel: key, demand: demand(Treatment::Encrypt) });
        drop(end);
        let begun = Instant::now();
        socket.send(b"first")?;
        socket.recv(&mut [0; 64]).context("no answer to the first packet")?;
        answered.push(begun.elapsed().as_nanos() as f64 / 1e3);
    }
    figures.count("seal.first_answer", "us", median(&answered), Bound::AtMost(round_trip + 1000.0));
    Ok(())
}
