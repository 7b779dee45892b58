//! Scenarios of `lab` in a real browser. They form a crate of their own because the WebDriver dependencies take long to
//! build and only these scenarios need them.

pub mod approval;
pub mod console;
mod driver;

pub use driver::{Browser, NAME};
