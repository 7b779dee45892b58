//! The agent's back end for OpenFlow switches, without IO: a controller as in the LS publication.
//!
//! The switch sends first packets to protected destinations up to the controller. The controller adds the token and
//! sends them down again, together with rules for exactly this flow in both directions, so that the rest of the flow
//! never comes up. [`crate::agent::insertion`] makes the same decision about a packet as the kernel program.

pub mod matching;
pub mod message;
pub mod plane;
pub mod rules;
pub mod switch;
#[cfg(test)]
mod tests;
