//! The agent's back end for OpenFlow switches, without IO: a controller in the sense of LS.
//!
//! First packets to protected destinations come up from the switch, get their token, and go down again together with exact
//! rules for both directions, so that the rest of the flow never sees the controller. What [`crate::insertion`] decides for
//! a packet is the same as in the kernel program.

pub mod matching;
pub mod message;
pub mod plane;
pub mod rules;
pub mod switch;
#[cfg(test)]
mod tests;
