//! Sealed tunnels end to end, between real stacks: what an observer on the path sees, what happens while daemons are killed
//! and addresses change, and what people and programs of one machine can do to each other.
//!
//! With `VOUCHSAFE_SEAL_MINUTES=10` the scenes that watch for leaks and roam take that long; without it, seconds.

mod again;
mod applications;
mod handover;
mod itself;
mod keys;
mod leaks;
mod path;
mod people;
mod roaming;
#[path = "../../examples/seals_itself.rs"]
mod seals_itself;
mod stage;
mod wishes;
