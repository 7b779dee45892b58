//! Scenarios of `lab` in a real browser. A crate of its own, because what drives a browser takes long to build and only these need it.

pub mod console;
mod driver;

pub use driver::{Browser, NAME};
