//! Checks the proofs of many packets at once, in user space. Verifiers that receive packets directly from the network
//! card use this crate.
//!
//! This crate parses the most common form of packet (IPv4 in IPv4, suite `aes-cmac`) and checks such packets in
//! parallel. For that, it uses the processor's AES instructions and wide registers, if it has them. It leaves every
//! other packet to [`engine::verifier::proofs`], the reference implementation. Tests compare the two implementations.
//!
//! A packet to a protected endpoint is dropped if it has no proof:
//!
//! ```
//! use engine::verifier::proofs::{Outcome, Verifier};
//! use proofs::{BATCH, Batch};
//!
//! let endpoints = vec!["203.0.113.0/24".parse()?];
//! let mut batch = Batch::new(Verifier::new(endpoints, 3600, 3600));
//!
//! // An Ethernet frame with a UDP datagram to 203.0.113.10.
//! let mut frame = [0; 60];
//! frame[12] = 8;
//! frame[14..24].copy_from_slice(&[0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17]);
//! frame[30..34].copy_from_slice(&[203, 0, 113, 10]);
//!
//! let mut outcomes = [Outcome::NotOurs; BATCH];
//! batch.verify(&mut [&mut frame], 1_767_225_600, &mut outcomes);
//! assert!(matches!(outcomes[0], Outcome::Drop(_)));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod aes;
mod batch;
mod keys;
mod plain;
#[cfg(target_arch = "x86_64")]
mod wide;

pub use batch::{Batch, Means, fetch};

/// Number of packets in a batch.
pub const BATCH: usize = 32;
