//! The agent's controller for OpenFlow switches, without IO, designed as in the publication of the scheme LS.
//!
//! The switch sends first packets to protected destinations up to the controller. The controller adds the token and
//! returns the packets to the switch. It also gives the switch rules for exactly this flow, in both directions, by
//! which the switch forwards the rest of the flow without the controller. [`crate::agent::insertion`] decides about
//! each packet, by the same rules as the kernel program.

pub mod fate;
pub mod logins;
pub mod matching;
pub mod message;
pub mod plane;
pub mod rules;
pub mod switch;
#[cfg(test)]
mod tests;
