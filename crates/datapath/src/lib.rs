//! Loads and attaches the kernel programs of `bpf/`, and gives typed access to their maps.
//!
//! This is the only crate that uses BPF, and it makes no decisions. The crates of the roles determine the entries of
//! the maps. The crate `engine` decides about packets from these entries, and reads them through [`kernel_tables`].
//!
//! This function loads the verifier's program and attaches it to all interfaces. It needs root:
//!
//! ```no_run
//! use datapath::hook::Choice;
//! use datapath::interface::Interface;
//! use datapath::verifier::{Sizes, Verifier};
//! use wire::map::VerifierConfig;
//!
//! fn protect(config: VerifierConfig) -> anyhow::Result<Verifier> {
//!     let mut verifier = Verifier::load_for(Choice::Auto, config, Sizes::default(), None)?;
//!     for interface in Interface::all()? {
//!         let mode = verifier.attach(&interface)?;
//!         println!("{}: {} ({mode:?})", interface.name, verifier.reason(&interface.name));
//!     }
//!     // Dropping the value detaches the program.
//!     Ok(verifier)
//! }
//! ```

pub mod agent;
mod attachments;
mod batch;
pub mod clock;
pub mod coverage;
pub mod crossing;
pub mod flows;
#[doc(hidden)]
pub mod forger;
pub mod gateway;
mod handed;
pub mod hook;
pub mod interface;
pub mod kernel_tables;
pub mod key_transfer;
pub mod local;
pub mod nat;
pub mod netlink;
mod object;
pub mod optional;
pub mod packet_socket;
pub mod probe;
pub mod proofs;
pub mod protected;
mod replays;
pub mod revoked;
pub mod revoked_holders;
pub mod ring;
pub mod routed;
pub mod run;
pub mod shut_out;
pub mod sockets;
mod stack;
pub mod svtep;
pub mod table;
pub mod tc;
pub mod tcp_in_udp;
pub mod transparent;
pub mod tunnel;
pub mod verifier;

pub use attachments::{Pins, Spot, bpf_file_system_is_mounted};
