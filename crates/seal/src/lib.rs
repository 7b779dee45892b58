//! The records of sealed tunnels (wire.md §9), without IO, clocks or randomness: many packets sealed into one buffer,
//! records opened in place, compression of super-packets, the key exchange. `engine` decides which packets are sent,
//! when, and to whom.
//!
//! - [`Keys`] seals and opens records of one phase and direction; [`suites`] has the AEADs, a file each.
//! - [`Batch`] lays out records of one tunnel so that one system call sends many (`UDP_SEGMENT`).
//! - [`Windows`] records which counters were received before.
//! - [`Compressor`], [`Joiner`] and [`Decompressor`] compress blocks, reassemble their parts, and decompress them.
//! - [`ExchangeSecret`] is an end's half of a key exchange.
#![forbid(unsafe_code)]

mod batch;
mod blocks;
mod compress;
mod exchange;
mod keys;
pub mod suites;
mod window;

pub use batch::{Batch, Run};
pub use blocks::{Joined, Joiner, NotJoined, parts};
pub use compress::{Compressor, Decompressor, Habit, Mode};
pub use exchange::ExchangeSecret;
pub use keys::{Keys, units};
pub use window::Windows;
