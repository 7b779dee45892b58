//! Checks the proofs of many packets at once, in user space: for verifiers that take packets from the network card
//! themselves.
//!
//! What most packets look like (IPv4 in IPv4, suite `aes-cmac`) is read here and checked side by side, with the processor's AES
//! and wide registers where it has these. Every other packet goes to [`engine::proofs`], which says what is right; tests hold them
//! together.

mod aes;
mod batch;
mod keys;
mod plain;
#[cfg(target_arch = "x86_64")]
mod wide;

pub use batch::{Batch, Means, fetch};

/// Packets that are judged together.
pub const BATCH: usize = 32;
