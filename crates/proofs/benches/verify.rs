//! What the check of a proof takes in user space, reading the packet included, in batches and alone, beside a loop that only
//! touches the packets.
//!
//! Prints one JSON object: {name: {value, unit, baseline, ratio, bound, holds}}; `cargo xtask bench` collects it. Packets are as
//! many, and keys as many, as fit the caches of a core; rounds with and without the check alternate.

use engine::proofs::{Outcome, Verifier};
use proofs::{BATCH, Batch};
use serde_json::{Map, Value, json};
use std::hint::black_box;
use std::net::IpAddr;
use std::time::Instant;
use wire::geneve::{ENCAPSULATION_MAX, Encapsulation, Payload};
use wire::{Ends, Epoch, InterfaceId, MasterKey, Proof, Segment, SegmentFlags, Suite, Vni};

const NOW: u32 = 1_800_000_000;
const LENGTH: u32 = 3600;
const PACKETS: usize = 1024;
const ROUNDS: usize = 400;
/// Where a packet's pointer is.
const POINTER: usize = 54;
/// The most that a packet may take, nanoseconds.
const BOUND: f64 = 12.0;

fn main() {
    let mut figures = Map::new();
    for (keys, suffix) in [(1, ""), (1000, "_1000_keys")] {
        let (verifier, frames) = world(keys);
        let mut batch = Batch::new(verifier);
        assert!(all_pass(&mut batch, &frames), "every proof is right");
        let mut check = |frames: &mut [&mut [u8]]| {
            let mut outcomes = [Outcome::NotOurs; BATCH];
            batch.judge(frames, black_box(NOW), &mut outcomes);
            black_box(&mut outcomes);
        };
        figure(&mut figures, format!("verify.batch{suffix}_ns"), &frames, BATCH, &mut check, Some(BOUND));
        figure(&mut figures, format!("verify.single{suffix}_ns"), &frames, 1, &mut check, None);
    }
    println!("{}", Value::Object(figures));
}

fn all_pass(batch: &mut Batch, frames: &[Vec<u8>]) -> bool {
    frames.to_vec().chunks_mut(BATCH).all(|chunk| {
        let mut outcomes = [Outcome::NotOurs; BATCH];
        let mut borrowed: Vec<_> = chunk.iter_mut().map(Vec::as_mut_slice).collect();
        batch.judge(&mut borrowed, NOW, &mut outcomes);
        outcomes == [Outcome::Proved; BATCH]
    })
}

fn authority(number: usize) -> IpAddr {
    [198, 18, (number >> 8) as u8, number as u8].into()
}

/// A verifier with so many keys, and packets with three proofs each, of which it is the first's verifier; each of another sender,
/// and given by the authorities in turn.
fn world(keys: usize) -> (Verifier, Vec<Vec<u8>>) {
    let mut verifier = Verifier::new(vec!["192.0.2.0/24".parse().expect("a prefix")], LENGTH, 3600);
    let epoch = Epoch::at(NOW.into(), LENGTH);
    let master = MasterKey::new([7; 32]);
    for number in 0..keys {
        let key = master.proof_key("edge", authority(number), epoch).expect("a short id");
        verifier.keys.insert((authority(number), epoch), key);
    }
    let frames = (0..PACKETS).map(|number| {
        let authority = authority(number % keys);
        let segment = Segment {
            suite: Suite::AesCmac,
            count: 3,
            pointer: 0,
            flags: SegmentFlags::PORT,
            protocol: 6,
            epoch: epoch.on_wire(),
            expires: NOW + 300,
            interface: InterfaceId(5),
            port: 443,
            sender_port: 0,
            authority,
        };
        let sender = [10, 1, (number >> 8) as u8, number as u8].into();
        let ends = Ends {
            sending: [192, 0, 2, 1].into(),
            receiving: [192, 0, 2, 2].into(),
            sender,
            receiver: [10, 0, 0, 9].into(),
        };
        let vni = Vni::from([0, 0, 77]);
        let proof = Proof::new(&verifier.keys[&(authority, epoch)], &segment, vni, &ends).0;
        let proofs = [proof, [1; 16], [2; 16]];
        let mut header = [0; ENCAPSULATION_MAX];
        let made = Encapsulation { payload: Payload::Ipv4, vni, segment, proofs: &proofs };
        let len = made.encode(&mut header).expect("there is room");
        let transport = [&[0x9c, 0x40, 1, 0xbb][..], &[0; 60]].concat();
        let inner = ipv4(ends.sender, ends.receiver, 6, &transport);
        let length = (8 + len + inner.len()) as u16;
        let udp = [&[0xc0, 0, 0x17, 0xc1][..], &length.to_be_bytes(), &[0, 0], &header[..len], &inner].concat();
        [&[2; 12][..], &[8, 0], &ipv4(ends.sending, ends.receiving, 17, &udp)].concat()
    });
    let frames = frames.collect();
    (verifier, frames)
}

fn ipv4(source: IpAddr, destination: IpAddr, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x45, 0];
    packet.extend(((20 + payload.len()) as u16).to_be_bytes());
    packet.extend([0, 7, 0, 0, 64, protocol, 0, 0]);
    for address in [source, destination] {
        let IpAddr::V4(address) = address else { unreachable!("all of them are IPv4") };
        packet.extend(address.octets());
    }
    packet.extend(payload);
    packet
}

/// Nanoseconds per packet of one pass over all of them, in batches of `size`.
fn pass(frames: &mut [Vec<u8>], size: usize, each: &mut impl FnMut(&mut [&mut [u8]])) -> f64 {
    for frame in frames.iter_mut() {
        frame[POINTER] = (Suite::AesCmac as u8) << 6 | 3 << 3;
    }
    let mut borrowed: Vec<_> = frames.iter_mut().map(Vec::as_mut_slice).collect();
    let begun = Instant::now();
    for batch in borrowed.chunks_mut(size) {
        each(batch);
    }
    begun.elapsed().as_nanos() as f64 / PACKETS as f64
}

/// The mean of the middle half.
fn middle(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let quarter = values.len() / 4;
    let half = &values[quarter..values.len() - quarter];
    half.iter().sum::<f64>() / half.len() as f64
}

fn figure(
    figures: &mut Map<String, Value>,
    name: String,
    frames: &[Vec<u8>],
    size: usize,
    mut check: impl FnMut(&mut [&mut [u8]]),
    bound: Option<f64>,
) {
    let mut frames = frames.to_vec();
    let mut touch = |frames: &mut [&mut [u8]]| {
        for frame in frames.iter_mut() {
            frame[POINTER] = black_box(frame[POINTER]).wrapping_add(1);
        }
    };
    let rounds = (0..ROUNDS).map(|_| (pass(&mut frames, size, &mut check), pass(&mut frames, size, &mut touch)));
    let (values, baselines) = rounds.unzip();
    let (value, baseline) = (middle(values), middle(baselines));
    let round = |value: f64| (value * 100.0).round() / 100.0;
    figures.insert(
        name,
        json!({
            "value": round(value), "unit": "ns", "baseline": round(baseline), "ratio": round(value / baseline),
            "bound": bound, "holds": bound.is_none_or(|bound| value <= bound),
        }),
    );
}
