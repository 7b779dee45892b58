//! The measurements. Each takes a scene in which the solution works, and returns values.

pub mod datagrams;
pub mod emulator;
pub mod inside;
pub mod probe;
pub mod processors;
pub mod security;
pub mod services;
pub mod streams;
pub mod way;
pub mod wire;

pub mod suite;
