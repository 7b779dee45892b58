//! The records of sealed tunnels (wire.md §9): sealing, opening, compression, and the key exchange. This crate does no
//! IO, reads no clock and draws no random numbers. The crate `engine` decides which packets are sent, when, and to
//! whom.
//!
//! - [`Keys`] seals and opens records of one phase and direction; [`suites`] contains the AEADs.
//! - [`Batch`] lays out records of one tunnel so that one system call sends many of them (`UDP_SEGMENT`).
//! - [`Windows`] records which counters were received before.
//! - [`Compressor`], [`Joiner`] and [`Decompressor`] compress blocks, reassemble their parts, and decompress them.
//! - [`Effort`] chooses the compression that a thread has time for.
//! - [`ExchangeSecret`] is the secret of one end in a key exchange.
#![forbid(unsafe_code)]

mod batch;
mod blocks;
mod compress;
mod effort;
mod exchange;
mod keys;
pub mod suites;
mod window;

pub use batch::{Batch, Run};
pub use blocks::{Joined, Joiner, NotJoined, parts};
pub use compress::{Compressor, Decompressor, Habit, Mode};
pub use effort::Effort;
pub use exchange::ExchangeSecret;
pub use keys::{Keys, units};
pub use window::Windows;
