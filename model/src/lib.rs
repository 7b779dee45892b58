//! A model checker over the verifier's own kernel program.
//!
//! `bpf/verifier.bpf.c` is compiled for this machine with a thread sanitizer's instrumentation, whose calls end in
//! `c/runtime.c` instead of the sanitizer. So each load, store, atomic operation and table operation on what cores share is
//! one step, and [`world::World`] lets `stateright` take the steps of several cores in every order. Nothing is written down
//! twice: a change of the C is a change of the model.
//!
//! It assumes what Linux gives: a table operation is one step (the kernel holds the bucket's lock), an update of a hash table
//! puts a new element in the place of the old, and memory is sequentially consistent between these steps. An element that was
//! deleted is not given to another key while a core still holds it.

pub mod memory;
pub mod program;
pub mod world;
