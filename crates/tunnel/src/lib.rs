//! IO of sealed tunnels (wire.md §9): a TUN device, a UDP socket, and the loop that moves super-packets between them.
//! `engine::tunnel` implements the protocol; the roles decide which packets go into which tunnel.

mod agent_end;
pub mod cut;
pub mod device;
mod flows;
mod held;
mod inside;
mod join;
mod legs;
mod pack;
pub mod packet;
mod path;
pub mod pump;
mod random;
pub mod route;
pub mod socket;
pub mod sum;
mod too_long;
mod translate;
mod verifier_end;

pub use agent_end::{AgentEnd, Drops as AgentDrops, SecretsWriter, Shown, suites};
pub use device::Device;
pub use inside::{Client, Inside};
pub use legs::{Key, Leg, Opener};
pub use packet::{Layout, Virtio};
pub use pump::{Counts, End, How, Message, Pump, Sealed, Times, Way, times};
pub use socket::Socket;
pub use verifier_end::{Drops, Knowledge, VerifierEnd};
