//! IO of sealed tunnels (wire.md §9): a TUN device, a UDP socket, and the loop that moves super-packets between them.
//! `engine::tunnel` has the protocol, and the roles decide which packets go where.

mod agent_end;
pub mod cut;
pub mod device;
mod inside;
mod join;
pub mod packet;
pub mod pump;
mod random;
pub mod route;
pub mod socket;
pub mod sum;
mod translate;
mod verifier_end;

pub use agent_end::{AgentEnd, Key, Leg, Shown, suites};
pub use device::Device;
pub use inside::{Client, Inside};
pub use packet::{Layout, Virtio};
pub use pump::{Counts, End, Message, Opened, Pump, Times, Way, times};
pub use socket::Socket;
pub use verifier_end::{Drops, Knowledge, VerifierEnd};
