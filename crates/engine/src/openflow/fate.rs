//! The origin of a packet that a switch sent up to its controller (packet-in), and the decision about the packet.

use super::message::FlowMod;
use crate::agent::frame::Frame;
use wire::map::GrantSlot;

/// Switch and port at which a packet arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Origin {
    /// The switch's number (datapath id).
    pub datapath: u64,
    /// The number of the port on that switch.
    pub port: u32,
}

/// The decision about a packet that a switch sent up.
#[derive(PartialEq, Eq)]
pub enum Fate {
    /// Send the rules, then the frames, to the switch.
    Forward {
        /// Rules for the flow; empty unless it is TCP or UDP.
        rules: Vec<FlowMod>,
        /// Frames for the switch to send, in order.
        frames: Vec<Vec<u8>>,
    },
    /// Queue the frame until its grant arrives.
    Queue(GrantSlot, Frame),
    /// Drop the packet.
    Drop,
}
