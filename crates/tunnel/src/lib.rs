//! IO of sealed tunnels (wire.md §9): a TUN device, a UDP socket, and the loops that move super-packets between them.
//! `engine::tunnel` implements the protocol; the roles decide which packets go into which tunnel.
//!
//! A packet that an application sends to the device arrives in this process, with a virtio header. This needs root:
//!
//! ```no_run
//! use tunnel::Device;
//!
//! let device = Device::new("sealed0", 1420)?;
//! device.turn_on()?;
//! let mut room = [0; 1 << 16];
//! // Reading does not block. It returns `None` if no packet is waiting.
//! while let Some(length) = device.read(&mut room)? {
//!     println!("{length} bytes for the tunnel");
//! }
//! # anyhow::Ok(())
//! ```

mod agent_end;
pub mod cut;
pub mod device;
mod end;
mod fit;
mod flows;
mod inside;
mod join;
mod legs;
mod line;
mod pack;
pub mod packet;
mod path;
pub mod pump;
mod random;
pub mod route;
pub mod socket;
mod spin;
mod steer;
pub mod sum;
mod too_long;
mod translate;
mod turns;
mod verifier_end;
mod waiting_frames;

pub use agent_end::{AgentEnd, Drops as AgentDrops, SecretsWriter, Shown, suites};
pub use device::Device;
pub use end::{End, How, Message, Sealed, Times, Way};
pub use inside::{Client, Inside};
pub use legs::{Key, Leg, Opener};
pub use packet::{Layout, Virtio};
pub use pump::{Counts, Load, Pump, QUEUES_MAX, default_queues, times};
pub use socket::Socket;
pub use verifier_end::{Drops, Knowledge, VerifierEnd};
