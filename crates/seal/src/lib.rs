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
//!
//! One end of a tunnel seals a packet, and the other end opens it:
//!
//! ```
//! use seal::{Batch, Keys};
//! use wire::seal::{Content, Counter, Direction, Index, PhaseSecret, RecordHeader, Suite, Treatment};
//!
//! // Both ends have this secret after the handshake.
//! let secret = PhaseSecret::new([7; 32]);
//! let header = RecordHeader {
//!     content: Content::Packet { treatment: Treatment::Encrypt, partial: false },
//!     suite: Suite::Aes128Gcm,
//!     index: Index::new(1).expect("not 0"),
//!     counter: Counter::new(0, 0).expect("a lane and a number in range"),
//! };
//! let mut batch = Batch::default();
//! batch.seal(&Keys::new(secret.clone(), Direction::FromInitiator), &header, &[b"a packet"]).expect("sealed");
//! let mut record = batch.runs().next().expect("one record").bytes.to_vec();
//!
//! let received = RecordHeader::of(&record).expect("a record");
//! let keys = Keys::new(secret, Direction::FromInitiator);
//! assert_eq!(keys.open(&received, &mut record).as_deref(), Some(&b"a packet"[..]));
//! ```
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
