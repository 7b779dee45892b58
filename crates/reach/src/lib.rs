//! Connections to protected destinations from a process without privileges; Linux is supported best.
//!
//! A [`Session`] is a login of this user. It knows the receivers that the person may reach, fetches grants, and opens
//! connections whose SYN carries a token in the carrier `stream` (wire.md §4.6). The verifier removes the token, so
//! that the application at the other end reads exactly what the caller writes. If the agent runs and the user is logged
//! in there, this crate makes ordinary connections and the agent puts the tokens into packets.
//!
//! ```no_run
//! use reach::{Places, Session, Timeouts};
//! # fn main() -> Result<(), reach::Error> {
//! let session = Session::open(&Places::of_user()?)?;
//! let stream = session.connect("git.example.org", 22, Timeouts::default())?;
//! # Ok(())
//! # }
//! ```
//!
//! A token never goes to an address that the person's authority does not list as protected, because an application
//! there would read the token. If a connection fails, [`Error`] says why.

pub mod access;
pub mod agent;
mod datagrams;
mod error;
mod fetching;
mod folder;
pub mod joining;
pub mod kept;
#[cfg(target_os = "linux")]
mod keyring;
#[cfg(not(target_os = "linux"))]
#[path = "keyring/none.rs"]
mod keyring;
pub mod login;
pub mod organisation;
pub mod own;
pub mod protocol;
mod session;
pub mod stream;

pub use client::dns as resolver;
pub use datagrams::Datagrams;
pub use error::Error;
pub use folder::{Places, default_dir};
pub use session::{Session, Timeouts, Way};
