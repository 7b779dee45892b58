//! The measurements. Each takes a scene in which the solution works, and returns values.

pub mod inside;
pub mod probe;
pub mod services;
pub mod streams;
pub mod datagrams;
pub mod processors;
pub mod emulator;
pub mod wire;
pub mod security;

pub mod suite;
