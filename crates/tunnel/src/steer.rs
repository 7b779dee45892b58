//! Loads the kernel program that chooses a queue of the TUN device for each packet. The program chooses by the packet's
//! flow, so all packets of a flow stay on one queue and in order. Without the program, the driver moves a flow to the
//! queue on which the flow's latest answer came, and moves the flow back some seconds after that answer. After such a
//! move, the flow's next packets could overtake packets in the old queue.

use anyhow::{Context, Result};
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use wire::packet::{TCP, UDP};

// Constants of linux/bpf.h.
const BPF_PROG_LOAD: libc::c_long = 5;
const SOCKET_FILTER: u32 = 1;

/// The beginning of `union bpf_attr` for BPF_PROG_LOAD. The kernel takes the rest as zeroes.
#[repr(C)]
struct Load {
    kind: u32,
    instructions: u32,
    code: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
}

/// An instruction: operation, registers (source, destination), offset of a jump, constant.
const fn op(code: u8, source: u8, to: u8, offset: i16, constant: u32) -> u64 {
    code as u64 | ((source << 4 | to) as u64) << 8 | (offset as u16 as u64) << 16 | (constant as u64) << 32
}

const LOAD: u8 = 0x20;
const LOAD_HALF: u8 = 0x28;
const LOAD_BYTE: u8 = 0x30;
const LOAD_AT: u8 = 0x40;
const MOVE: u8 = 0xbf;
const XOR: u8 = 0xaf;
const SET: u8 = 0xb7;
const AND: u8 = 0x57;
const LEFT: u8 = 0x67;
const RIGHT: u8 = 0x77;
const MULTIPLY: u8 = 0x2f;
const TIMES: u8 = 0x27;
const IF_EQUAL: u8 = 0x15;
const IF_NOT: u8 = 0x55;
const GO: u8 = 0x05;
const WIDE: u8 = 0x18;
const EXIT: u8 = 0x95;

/// The last factor of the hash, odd and without a pattern (2^64 divided by the golden ratio).
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
/// The factor after each word: a prime near 2^32 divided by the golden ratio. The kernel extends it by its sign to 64
/// bits.
const STEP: u32 = 0x9e37_79b1;

/// Returns the program: a hash of the packet's addresses and, for TCP and UDP, its ports. R6 has the packet, R7 the
/// hash, R8 where the ports are, and R9 the protocol. Loads outside of the packet end the program with queue 0. They
/// overwrite R1 to R5.
fn program(seed: u32) -> Vec<u64> {
    // Without a step after each word, packets whose words have the same exclusive or would share a queue under every
    // seed.
    let mix = |offset: u32| [op(LOAD, 0, 0, 0, offset), op(XOR, 0, 7, 0, 0), op(TIMES, 0, 7, 0, STEP)];
    let mut four = vec![op(AND, 0, 8, 0, 15), op(LEFT, 0, 8, 0, 2), op(LOAD_BYTE, 0, 0, 0, 9), op(MOVE, 0, 9, 0, 0)];
    four.extend([12, 16].into_iter().flat_map(mix));
    // A fragment has no ports, or does not show them.
    four.push(op(LOAD_HALF, 0, 0, 0, 6));
    four.push(op(AND, 0, 0, 0, 0x3fff));
    let mut six = vec![op(SET, 0, 8, 0, 40), op(LOAD_BYTE, 0, 0, 0, 6), op(MOVE, 0, 9, 0, 0)];
    six.extend([8, 12, 16, 20, 24, 28, 32, 36].into_iter().flat_map(mix));
    let ports = [
        op(IF_EQUAL, 0, 9, 1, u32::from(TCP)),
        // Past the three instructions that follow.
        op(IF_NOT, 0, 9, 3, u32::from(UDP)),
        op(LOAD_AT, 8, 0, 0, 0),
        op(XOR, 0, 7, 0, 0),
        op(TIMES, 0, 7, 0, STEP),
    ];
    let jump = |count: usize| i16::try_from(count).unwrap_or(0);
    let mut all = vec![
        op(MOVE, 1, 6, 0, 0),
        op(SET, 0, 7, 0, seed >> 1),
        op(LOAD_BYTE, 0, 0, 0, 0),
        op(MOVE, 0, 8, 0, 0),
        op(RIGHT, 0, 0, 0, 4),
        op(IF_EQUAL, 0, 0, 3, 4),
        op(IF_EQUAL, 0, 0, jump(2 + four.len() + 2), 6),
        op(SET, 0, 0, 0, 0),
        op(EXIT, 0, 0, 0, 0),
    ];
    all.append(&mut four);
    all.push(op(IF_NOT, 0, 0, jump(1 + six.len() + ports.len()), 0));
    all.push(op(GO, 0, 0, jump(six.len()), 0));
    all.append(&mut six);
    all.extend(ports);
    all.extend([op(MOVE, 7, 1, 0, 0), op(RIGHT, 0, 1, 0, 32), op(XOR, 1, 7, 0, 0)]);
    all.extend([op(WIDE, 0, 1, 0, FACTOR as u32), op(0, 0, 0, 0, (FACTOR >> 32) as u32)]);
    // The driver takes the lowest 16 bits of the result; the product's highest depend on all of the hash.
    all.extend([op(MULTIPLY, 1, 7, 0, 0), op(RIGHT, 0, 7, 0, 48), op(MOVE, 7, 0, 0, 0), op(EXIT, 0, 0, 0, 0)]);
    all
}

/// Loads the program. `seed` determines which flows share a queue. `seed` must be secret: otherwise an attacker could
/// easily find ports whose flows share a queue with the flows of others. Even then, an attacker who learns from delays
/// which flows share a queue can find such ports, because the program's hash is not a keyed hash.
///
/// # Errors
///
/// Fails if the kernel does not load the program.
pub fn load(seed: u32) -> Result<OwnedFd> {
    let code = program(seed);
    let load = Load {
        kind: SOCKET_FILTER,
        instructions: code.len() as u32,
        code: code.as_ptr() as u64,
        license: c"Apache-2.0".as_ptr() as u64,
        log_level: 0,
        log_size: 0,
        log: 0,
    };
    // SAFETY: the structure is the beginning of what the call takes, and its pointers live through the call.
    let file = unsafe { libc::syscall(libc::SYS_bpf, BPF_PROG_LOAD, &raw const load, size_of::<Load>()) };
    if file < 0 {
        return Err(io::Error::last_os_error()).context("the kernel does not load the program that chooses queues");
    }
    // SAFETY: the call returned a new descriptor, which nobody else has.
    Ok(unsafe { OwnedFd::from_raw_fd(file as libc::c_int) })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the program as the kernel does. Returns its result, and how many instructions ran.
    fn run(code: &[u64], packet: &[u8]) -> (u16, usize) {
        let mut r = [0u64; 16];
        let load = |at: usize, length: usize| {
            let bytes = packet.get(at..at + length)?;
            Some(bytes.iter().fold(0u64, |value, byte| (value << 8) | u64::from(*byte)))
        };
        let (mut at, mut ran) = (0, 0);
        loop {
            ran += 1;
            let word = code[at];
            let (to, from) = ((word >> 8 & 15) as usize, (word >> 12 & 15) as usize);
            let (offset, constant) = ((word >> 16) as u16 as usize, (word >> 32) as i32);
            let (value, place) = (i64::from(constant) as u64, constant as usize);
            at += 1;
            match word as u8 {
                LOAD | LOAD_HALF | LOAD_BYTE | LOAD_AT => {
                    let loaded = match word as u8 {
                        LOAD => load(place, 4),
                        LOAD_HALF => load(place, 2),
                        LOAD_BYTE => load(place, 1),
                        _ => load(place + r[from] as usize, 4),
                    };
                    let Some(loaded) = loaded else { return (0, ran) };
                    r[0] = loaded;
                    r[1..6].fill(0xdead);
                }
                MOVE => r[to] = r[from],
                XOR => r[to] ^= r[from],
                SET => r[to] = value,
                AND => r[to] &= value,
                LEFT => r[to] <<= value,
                RIGHT => r[to] >>= value,
                MULTIPLY => r[to] = r[to].wrapping_mul(r[from]),
                TIMES => r[to] = r[to].wrapping_mul(value),
                IF_EQUAL => at += if r[to] == value { offset } else { 0 },
                IF_NOT => at += if r[to] == value { 0 } else { offset },
                GO => at += offset,
                WIDE => {
                    r[to] = word >> 32 | code[at] >> 32 << 32;
                    at += 1;
                }
                EXIT => return (r[0] as u16, ran),
                other => panic!("no such instruction: {other:#x}"),
            }
        }
    }

    /// Returns the beginning of a packet with these words as addresses (2 or 8) and ports (1).
    fn packet(words: &[u32], protocol: u8, is_fragment: bool) -> Vec<u8> {
        let mut packet = vec![0; if words.len() == 3 { 12 } else { 8 }];
        if words.len() == 3 {
            (packet[0], packet[9], packet[6]) = (0x45, protocol, if is_fragment { 0x20 } else { 0 });
        } else {
            (packet[0], packet[6]) = (0x60, protocol);
        }
        packet.extend(words.iter().flat_map(|word| word.to_be_bytes()));
        packet
    }

    #[test]
    fn the_queue_depends_on_all_words_and_their_order_under_every_seed() {
        for length in [3, 9] {
            let words: Vec<u32> = (0..length).map(|at| 0x0a01_0001 + 0x0101_0407 * at).collect();
            // How many of a hundred seeds give both the same queue of 16.
            let shared = |other: &[u32]| {
                let queue = |seed: u32, words: &[u32]| {
                    run(&program(seed.wrapping_mul(0x0100_1235)), &packet(words, TCP, false)).0 % 16
                };
                (0..100).filter(|seed| queue(*seed, &words) == queue(*seed, other)).count()
            };
            for at in 0..words.len() {
                let next = (at + 1) % words.len();
                for bit in 0..32 {
                    let (mut one, mut two) = (words.clone(), words.clone());
                    one[at] ^= 1 << bit;
                    assert!(shared(&one) < 40, "{length} words, bit {bit} of word {at}: {}", shared(&one));
                    // The exclusive or of all words is the same.
                    two[at] ^= 1 << bit;
                    two[next] ^= 1 << bit;
                    assert!(shared(&two) < 40, "{length} words, bit {bit} of words {at} and {next}: {}", shared(&two));
                }
            }
        }
    }

    #[test]
    fn packets_without_visible_ports_go_by_their_addresses() {
        let code = program(77);
        let queue = |ports: u32, protocol: u8, is_fragment: bool| {
            let (queue, ran) = run(&code, &packet(&[0x0a01_0001, 0xc000_0201, ports], protocol, is_fragment));
            assert!(ran > 20, "the program ran to its end");
            queue
        };
        assert_eq!(queue(0x1388_01bb, UDP, true), queue(0x1389_01bb, UDP, true));
        assert_eq!(queue(0x1388_01bb, 50, false), queue(0x1389_01bb, 50, false));
        assert_ne!(queue(0x1388_01bb, UDP, false), queue(0x1389_01bb, UDP, false));
        assert_eq!(queue(0x1388_01bb, UDP, false), queue(0x1388_01bb, TCP, false));
    }
}
