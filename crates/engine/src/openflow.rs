//! The agent's controller for OpenFlow switches, without IO, designed as in the publication of the scheme LS.
//!
//! The switch sends first packets to protected destinations up to the controller. The controller adds the token and
//! sends the packets down again, together with rules for exactly this flow in both directions, so that the switch
//! forwards the rest of the flow by itself. [`crate::agent::insertion`] decides about each packet; the kernel program
//! makes the same decisions.

pub mod fate;
pub mod logins;
pub mod matching;
pub mod message;
pub mod plane;
pub mod rules;
pub mod switch;
#[cfg(test)]
mod tests;
