//! Checks the proofs of many packets at once, in user space. Verifiers that receive packets directly from the network
//! card use this crate.
//!
//! This crate parses the most common form of packet (IPv4 in IPv4, suite `aes-cmac`) and checks such packets in
//! parallel. For that, it uses the processor's AES instructions and wide registers, if it has them. It leaves every
//! other packet to [`engine::verifier::proofs`], the reference implementation. Tests compare the two implementations.

mod aes;
mod batch;
mod keys;
mod plain;
#[cfg(target_arch = "x86_64")]
mod wide;

pub use batch::{Batch, Means, fetch};

/// Number of packets in a batch.
pub const BATCH: usize = 32;
