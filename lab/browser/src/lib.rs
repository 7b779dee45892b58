//! Scenarios of `lab` in a real browser. They form a crate of their own because the WebDriver dependencies take long to
//! build and only these scenarios need them.
#![allow(
    clippy::missing_errors_doc,
    reason = "every function fails if the browser fails; a scenario ends then, and prints the error"
)]

pub mod approval;
pub mod console;
mod driver;

pub use driver::{Browser, NAME};
