//! Runs the verifier's programs on single packets, sets the programs' clock, and opens the maps that benches add.

use super::Verifier;
use crate::run::{self, Ran, Runner};
use crate::table::Table;
use anyhow::{Context, Result};
use std::os::fd::AsFd;
use zerocopy::{FromBytes, Immutable, IntoBytes};

impl Verifier {
    /// Sets the clock as [`Self::set_clock`] does, but does not wait for the programs. No program may run meanwhile.
    /// For tests.
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses access to a map.
    #[doc(hidden)]
    pub fn set_clock_alone(&self, offset: u64) -> Result<()> {
        if !self.put_clock(offset)? {
            return Ok(());
        }
        // No tick is the zeroth.
        self.cores.change_at(0, |[settled, _, second]| [settled, 0, second])
    }

    /// Opens a map of the loaded object that is none of the verifier's own maps. For benches.
    ///
    /// # Errors
    ///
    /// Fails if there is no such map, or if its keys do not have the size of `K`, or its values do not have the size of
    /// `V`.
    #[doc(hidden)]
    pub fn table<K, V>(&self, name: &str) -> Result<Table<K, V>>
    where
        K: IntoBytes + FromBytes + Immutable,
        V: IntoBytes + FromBytes + Immutable,
    {
        self.object.table(name)
    }

    /// Runs another program of the loaded object on one frame. For benches.
    ///
    /// # Errors
    ///
    /// Fails if the kernel does not run the program.
    #[doc(hidden)]
    pub fn run_program(&self, name: &str, frame: &[u8], repeat: u32) -> Result<Ran> {
        run::run(&self.object.runnable(name)?, frame, repeat)
    }

    /// Runs the program on one frame. [`Hook::code`] says what the return code means.
    ///
    /// # Errors
    ///
    /// Fails if the kernel does not run the program.
    pub fn run(&self, frame: &[u8], repeat: u32) -> Result<Ran> {
        run::run(&self.object.runnable("admit")?, frame, repeat)
    }

    /// Returns the program with this name, in a form that several threads can run at the same time. For tests.
    ///
    /// # Errors
    ///
    /// Fails if there is no such program, or if its file descriptor can't be duplicated.
    #[doc(hidden)]
    pub fn runner(&self, name: &str) -> Result<Runner> {
        let program = self.object.program(name)?;
        Ok(Runner::new(program.as_fd().try_clone_to_owned().context("cannot duplicate a file descriptor")?))
    }

    /// Runs the tc program on a packet with the mark `mark`. Returns also the mark that the packet has afterwards.
    ///
    /// # Errors
    ///
    /// Fails if the kernel does not run the program.
    pub fn run_marked(&self, frame: &[u8], mark: u32) -> Result<(Ran, u32)> {
        run::run_marked(&self.object.runnable("admit")?, frame, mark)
    }

    /// Runs the tc program on a super-packet. `segment` is the number of payload bytes of each of its segments.
    ///
    /// # Errors
    ///
    /// Fails if the kernel does not run the program.
    pub fn run_segments(&self, frame: &[u8], segment: u32) -> Result<Ran> {
        run::run_segments(&self.object.runnable("admit")?, frame, segment)
    }
}
