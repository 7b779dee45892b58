//! Loads and attaches the kernel programs of `bpf/`, and gives typed access to their maps.
//!
//! The only crate that speaks to BPF. It decides nothing: what to write into which map comes from the roles, and what the
//! maps mean for a packet from `engine`, which reads them through [`kernel_tables`].

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
mod link;
pub mod local;
pub mod nat;
pub mod netlink;
mod object;
pub mod packet_socket;
pub mod probe;
pub mod proofs;
pub mod protected;
mod replays;
pub mod revoked;
pub mod revoked_holders;
pub mod ring;
pub mod run;
pub mod sockets;
mod stack;
pub mod svtep;
pub mod table;
pub mod tc;
pub mod transfer;
pub mod verifier;

pub use object::{Pins, bpf_file_system_is_mounted};
