//! Connections to protected destinations from a process without privileges, Linux first.
//!
//! A [`Session`] is a login of this user. It knows the receivers that the person may reach, fetches grants, and opens
//! connections whose SYN carries a token by the carrier `stream` (wire.md §4.6): the verifier takes the token off, and
//! the stream holds what the caller writes and nothing else. Where the agent runs and the user is logged in there, the
//! agent puts tokens into packets, and this crate makes plain connections.
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
//! No token goes to an address that the person's authority does not list as protected, because an application there
//! would read it. A client that is turned away learns why by [`Error`].

pub mod agent;
mod datagrams;
mod error;
mod fetching;
mod folder;
pub mod kept;
#[cfg(target_os = "linux")]
mod keyring;
#[cfg(not(target_os = "linux"))]
#[path = "keyring/none.rs"]
mod keyring;
pub mod login;
pub mod own;
pub mod protocol;
pub mod resolver;
mod session;
pub mod stream;

pub use datagrams::Datagrams;
pub use error::Error;
pub use folder::{Places, default_dir};
pub use session::{Session, Timeouts, Way};
