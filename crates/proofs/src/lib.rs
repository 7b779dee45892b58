//! Checks the proofs of many packets at once, in user space: for verifiers that take packets from the network card
//! themselves.
//!
//! What most packets look like (IPv4 in IPv4, suite `aes-cmac`) is read here and checked side by side, with the processor's AES
//! where it has that. Every other packet goes to [`engine::proofs`], which says what is right; tests hold the two together.

mod aes;
mod batch;
mod keys;
mod plain;

pub use batch::{BATCH, Batch};
