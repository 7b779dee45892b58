//! Measures how long it takes in user space to parse a packet and to verify its proof, for packets in batches and for
//! single packets. The yardstick is the time that AES alone takes for as many blocks as a proof covers. With 1000 keys,
//! the expanded keys do not fit into the first-level cache. In this case, the yardstick also reads one expanded key per
//! packet.
//!
//! Prints one JSON object, which `cargo xtask bench` collects. All packets and keys fit into the other caches of one
//! core. Rounds of the measurement and of the yardstick alternate.

use aes::cipher::{BlockCipherEncrypt, KeyInit};
use engine::verifier::proofs::{Outcome, Verifier};
use measure::{Bound, Figures, Yardstick, alternate, mean_of_middle};
use proofs::{BATCH, Batch};
use std::hint::black_box;
use std::net::IpAddr;
use std::time::Instant;
use wire::geneve::{ENCAPSULATION_MAX, Encapsulation, Payload};
use wire::{Ends, Epoch, InterfaceId, MasterKey, Proof, Segment, SegmentFlags, Suite, Vni};

const NOW: u32 = 1_800_000_000;
const LENGTH: u32 = 3600;
const PACKETS: usize = 1024;
const ROUNDS: usize = 400;
/// AES blocks of a proof over IPv4 addresses (wire.md §8.6).
const BLOCKS: usize = 2;
/// Words of an expanded key: eleven round keys of 16 bytes.
const EXPANDED: usize = 22;
/// Offset of a packet's pointer.
const POINTER: usize = 54;
/// Maximum time for a packet, as a multiple of the time that AES alone takes: 12 ns on a machine on which AES takes 3.6
/// ns.
const BOUND: f64 = 3.3;
/// Bound with 1000 keys. It is lower because the yardstick then includes reading the keys.
const BOUND_OF_MANY: f64 = 2.6;

fn main() {
    let mut figures = Figures::default();
    for (keys, suffix, bound) in [(1, "", BOUND), (1000, "_1000_keys", BOUND_OF_MANY)] {
        let (verifier, frames) = world(keys);
        let mut batch = Batch::new(verifier);
        assert!(all_pass(&mut batch, &frames), "every proof is right");
        let mut check = |frames: &mut [&mut [u8]]| {
            let mut outcomes = [Outcome::NotOurs; BATCH];
            batch.verify(frames, black_box(NOW), &mut outcomes);
            black_box(&mut outcomes);
        };
        figure(
            &mut figures,
            format!("verify.batch{suffix}_ns"),
            keys,
            &frames,
            BATCH,
            &mut check,
            Bound::AtMost(bound),
        );
        figure(&mut figures, format!("verify.single{suffix}_ns"), keys, &frames, 1, &mut check, Bound::None);
    }
    figures.print();
}

fn all_pass(batch: &mut Batch, frames: &[Vec<u8>]) -> bool {
    frames.to_vec().chunks_mut(BATCH).all(|chunk| {
        let mut outcomes = [Outcome::NotOurs; BATCH];
        let mut borrowed: Vec<_> = chunk.iter_mut().map(Vec::as_mut_slice).collect();
        batch.verify(&mut borrowed, NOW, &mut outcomes);
        outcomes == [Outcome::Proved; BATCH]
    })
}

fn authority(number: usize) -> IpAddr {
    [198, 18, (number >> 8) as u8, number as u8].into()
}

/// Returns a verifier with this number of keys, and packets with three proofs each, the first of which is the
/// verifier's. Each packet has a sender of its own. The segments of consecutive packets come from different
/// authorities, in turn.
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
        let made = Encapsulation { control: false, payload: Payload::Ipv4, vni, segment, proofs: &proofs };
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

/// Returns nanoseconds per packet of one pass over all packets, in batches of `size`.
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

fn figure(
    figures: &mut Figures,
    name: String,
    keys: usize,
    frames: &[Vec<u8>],
    size: usize,
    mut check: impl FnMut(&mut [&mut [u8]]),
    bound: Bound,
) {
    let mut frames = frames.to_vec();
    let aes = aes::Aes128::new(&[7; 16].into());
    let mut blocks = vec![aes::Block::default(); PACKETS * BLOCKS];
    let expanded = vec![[7u64; EXPANDED]; keys];
    let bare = || {
        let begun = Instant::now();
        // Encrypt one block of each packet after the other, as the MAC chains them.
        for row in blocks.chunks_mut(PACKETS) {
            aes.encrypt_blocks(row);
        }
        black_box(&mut blocks);
        if keys > 1 {
            let walk = black_box(&expanded).iter().cycle().take(PACKETS);
            let read = walk.fold([0; EXPANDED], |sum, key| std::array::from_fn(|word| sum[word] ^ key[word]));
            black_box(read);
        }
        begun.elapsed().as_nanos() as f64 / PACKETS as f64
    };
    let (values, bare) = alternate(ROUNDS, || pass(&mut frames, size, &mut check), bare);
    figures.add(&name, "ns", mean_of_middle(&values), &Yardstick::new(bare), bound);
}
