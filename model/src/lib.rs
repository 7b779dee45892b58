//! A model checker that runs the verifier's own kernel program.
//!
//! `bpf/verifier.bpf.c` is compiled for this machine with the thread sanitizer's instrumentation. The calls that this
//! instrumentation inserts go to `c/runtime.c` instead of the sanitizer. So each load, store, atomic operation and
//! table operation on shared data becomes one step. [`world::World`] lets `stateright` take the steps of several cores
//! in every order. No second description of the program exists: a change to the C code is a change to the model.
//!
//! The model assumes guarantees of Linux. A table operation is one step, because the kernel holds the bucket's lock. An
//! update of a hash table replaces the old element by a new one. Memory is sequentially consistent between these steps.
//! A deleted element is not reused for another key while a core still holds it.

pub mod memory;
pub mod program;
pub mod stream;
pub mod world;
