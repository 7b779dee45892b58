//! IO of sealed tunnels (wire.md §9): a TUN device, a UDP socket, and the loops that move super-packets between them.
//! `engine::tunnel` implements the protocol; the roles decide which packets go into which tunnel.

mod agent_end;
pub mod cut;
pub mod device;
mod end;
mod fit;
mod flows;
mod held;
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

pub use agent_end::{AgentEnd, Drops as AgentDrops, SecretsWriter, Shown, suites};
pub use device::Device;
pub use end::{End, How, Message, Sealed, Times, Way};
pub use inside::{Client, Inside};
pub use legs::{Key, Leg, Opener};
pub use packet::{Layout, Virtio};
pub use pump::{Counts, Load, Pump, QUEUES_MAX, default_queues, times};
pub use socket::Socket;
pub use verifier_end::{Drops, Knowledge, VerifierEnd};
