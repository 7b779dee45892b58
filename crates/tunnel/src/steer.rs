//! The kernel program that chooses the queue of the TUN device for a packet: by the packet's flow, so that all packets of
//! a flow stay on one queue and in order. Without the program, the driver moves a flow to the queue on which its latest
//! answer came, or back some seconds after it, and packets on the old queue would be overtaken.

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
const IF_EQUAL: u8 = 0x15;
const IF_NOT: u8 = 0x55;
const GO: u8 = 0x05;
const WIDE: u8 = 0x18;
const EXIT: u8 = 0x95;

/// Odd and without a pattern (2^64 divided by the golden ratio).
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// Returns the program: a hash of the packet's addresses and, for TCP and UDP, its ports. R6 has the packet, R7 the
/// hash, R8 where the ports are, and R9 the protocol. Loads outside of the packet end the program with queue 0.
fn program(seed: u32) -> Vec<u64> {
    let mix = |offset: u32| [op(LOAD, 0, 0, 0, offset), op(XOR, 0, 7, 0, 0)];
    let mut four = vec![op(AND, 0, 8, 0, 15), op(LEFT, 0, 8, 0, 2), op(LOAD_BYTE, 0, 0, 0, 9), op(MOVE, 0, 9, 0, 0)];
    four.extend([12, 16].into_iter().flat_map(mix));
    // A fragment has no ports, or does not show them.
    four.push(op(LOAD_HALF, 0, 0, 0, 6));
    four.push(op(AND, 0, 0, 0, 0x3fff));
    let mut six = vec![op(SET, 0, 8, 0, 40), op(LOAD_BYTE, 0, 0, 0, 6), op(MOVE, 0, 9, 0, 0)];
    six.extend([8, 12, 16, 20, 24, 28, 32, 36].into_iter().flat_map(mix));
    let ports = [
        op(IF_EQUAL, 0, 9, 1, u32::from(TCP)),
        op(IF_NOT, 0, 9, 2, u32::from(UDP)),
        op(LOAD_AT, 8, 0, 0, 0),
        op(XOR, 0, 7, 0, 0),
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
    all.extend([op(WIDE, 0, 1, 0, FACTOR as u32), op(0, 0, 0, 0, (FACTOR >> 32) as u32)]);
    // The driver takes the lowest 16 bits of the result; the product's highest depend on all of the hash.
    all.extend([op(MULTIPLY, 1, 7, 0, 0), op(RIGHT, 0, 7, 0, 48), op(MOVE, 7, 0, 0, 0), op(EXIT, 0, 0, 0, 0)]);
    all
}

/// Loads the program. Its choices depend on `seed`, which nobody outside must know, so that nobody can choose ports whose
/// flows share the queue of somebody else's.
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
