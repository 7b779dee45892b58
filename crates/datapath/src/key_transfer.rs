//! The programs on an authority's host that transfer client keys in band (wire.md §5.4). They record flows whose client
//! accepts keys in band, and put a key into a packet of such a flow.

use crate::attachments::{Attachments, Spot};
use crate::interface::Interface;
use crate::object::{self, Loaded, Opened};
use crate::run::{self, Ran};
use crate::table::Table;
use anyhow::Result;
use nix::time::{ClockId, clock_gettime};
use std::os::fd::AsFd;
use std::time::Duration;
use wire::ls::KeyTransfer;
use wire::map::{FlowKey, Transfer, TransferConfig, transfer_counter};

static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/key_transfer.bpf.o"));

/// The loaded programs that transfer client keys, on an authority's host. Dropping this value detaches them.
pub struct Transfers {
    object: Loaded,
    attachments: Attachments,
    /// Flows whose client accepts keys in band. The value is the time when the flow was opened, in seconds since boot.
    pub supporters: Table<FlowKey, u32>,
    /// Keys that wait for a packet of their flow, by flow.
    pub waiting: Table<FlowKey, Transfer>,
    counters: Table<u32, u64>,
}

impl Transfers {
    /// Loads the programs for an authority that listens on this port.
    ///
    /// # Errors
    ///
    /// Fails if the kernel rejects a program, or a map can't be made or taken over.
    pub fn load(port: u16) -> Result<Self> {
        object::log_through_tracing();
        let mut opened = Opened::new("transfer", OBJECT)?;
        opened.configure(&TransferConfig { port: port.into(), reserved: 0 })?;
        let object = opened.load("transfer")?;
        let (supporters, waiting) = (object.table("supporters")?, object.table("transfers")?);
        let counters = object.table("counters")?;
        Ok(Self { object, attachments: Attachments::new(None), supporters, waiting, counters })
    }

    /// Attaches the programs to an interface through which clients reach the authority.
    ///
    /// # Errors
    ///
    /// Fails if the kernel does not attach a program.
    pub fn attach(&mut self, interface: &Interface) -> Result<()> {
        for spot in [Spot::Greeting, Spot::HandingOver] {
            let program = self.object.program(spot.program())?;
            self.attachments.attach(program.as_fd(), interface, spot)?;
        }
        Ok(())
    }

    /// Makes the program put the key in `content` into the next suitable packet to the client of this flow, if such a
    /// packet is sent within the time `within`. Does nothing and returns `false` if the client has not announced that
    /// it accepts keys in band, or if an earlier key still waits.
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses access to a map.
    pub fn hand_over(&self, flow: &FlowKey, content: &KeyTransfer, within: Duration) -> Result<bool> {
        if self.supporters.get(flow)?.is_none() {
            return Ok(false);
        }
        let now = now();
        if self.waiting.get(flow)?.is_some_and(|waiting| waiting.until > now) {
            return Ok(false);
        }
        self.waiting.set(flow, &Transfer::new(content, now + within.as_nanos() as u64))?;
        Ok(true)
    }

    /// Returns the value of a counter; `index` is one of [`transfer_counter`].
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses access to a map.
    pub fn count(&self, index: u32) -> Result<u64> {
        self.counters.sum_at(index)
    }

    /// Returns the number of flows whose client accepted keys in band, and the number of keys sent.
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses access to a map.
    pub fn counts(&self) -> Result<(u64, u64)> {
        Ok((self.count(transfer_counter::SUPPORT)?, self.count(transfer_counter::HANDED)?))
    }

    /// Runs the ingress program on one frame.
    ///
    /// # Errors
    ///
    /// Fails if the kernel does not run the program.
    pub fn run_in(&self, frame: &[u8]) -> Result<Ran> {
        run::run(&self.object.runnable(Spot::Greeting.program())?, frame, 1)
    }

    /// Runs the egress program on one frame.
    ///
    /// # Errors
    ///
    /// Fails if the kernel does not run the program.
    pub fn run_out(&self, frame: &[u8]) -> Result<Ran> {
        run::run(&self.object.runnable(Spot::HandingOver.program())?, frame, 1)
    }
}

impl Drop for Transfers {
    fn drop(&mut self) {
        self.attachments.detach();
    }
}

/// Returns the boot clock in nanoseconds.
fn now() -> u64 {
    // Reading a clock that every supported kernel has does not fail.
    clock_gettime(ClockId::CLOCK_BOOTTIME).map(Duration::from).unwrap_or_default().as_nanos() as u64
}
