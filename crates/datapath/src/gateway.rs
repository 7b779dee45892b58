//! A gateway's programs: they record the flows that the inside opens, in admission's tables, and assign inside
//! addresses.

use crate::attachments::{Attachments, Pins, Spot};
use crate::interface::Interface;
use crate::nat::{self, Addresses};
use crate::object::{Loaded, Opened};
use crate::run::{self, Ran};
use crate::verifier::{Sizes, Verifier};
use anyhow::{Context, Result};
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use wire::map::{ReceivedAddress, VerifierConfig};

static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/gateway.bpf.o"));
/// Tables shared with admission.
const SHARED: [&str; 13] = [
    "protected4",
    "protected6",
    "open4",
    "open6_networks",
    "open6_addresses",
    "clock",
    "flows4",
    "flows6",
    "outbound",
    "outbound_of",
    "flow_news",
    "counters",
    "samples",
];

/// The loaded programs.
pub struct Gateway {
    object: Loaded,
    attachments: Attachments,
    /// The inside addresses.
    pub addresses: Arc<Addresses>,
}

impl Gateway {
    /// Loads the programs next to `verifier`, which was loaded with the same settings. `pool` has the inside addresses,
    /// IPv4 first; without a pool, clients keep their addresses. If an earlier process used another pool, its state is
    /// discarded.
    pub fn load(
        verifier: &Verifier,
        config: &VerifierConfig,
        sizes: Sizes,
        pool: &[IpAddr],
        pins: Option<Pins>,
    ) -> Result<Self> {
        let mut opened = Opened::new("gateway", OBJECT)?;
        opened.configure(config)?;
        opened.set_constant(".rodata.nat", &nat::config(pool))?;
        nat::resize(&mut opened, pool, sizes.flows, sizes.grants)?;
        opened.share(verifier.object(), &SHARED)?;
        if let Some(pins) = &pins {
            if !nat::is_pinned(pins, pool) {
                pins.empty()?;
                verifier.flows.forget_inside()?;
            }
            opened.pin(pins, &nat::PINNED)?;
        }
        let object = opened.load("gateway")?;
        let addresses = Addresses::new(&object)?;
        addresses.fill(pool)?;
        Ok(Self { object, attachments: Attachments::new(pins), addresses: Arc::new(addresses) })
    }

    /// Removes the entries of `ways_back` whose flows have ended by `now` (Unix seconds), which frees inside addresses.
    /// Returns the number of entries.
    pub fn reclaim(&self, now: u32) -> Result<u32> {
        nat::reclaim(&self.object, now)
    }

    /// Assigns to a flow that a peer gateway reported the inside address that the flow has at the peer. The result is
    /// `received` with its `slot` filled in.
    pub fn bind_received(&self, received: ReceivedAddress) -> Result<ReceivedAddress> {
        nat::bind_received(&self.object, received)
    }

    /// Attaches one of the programs, or takes over an earlier process's pinned attachment.
    pub fn attach(&mut self, interface: &Interface, spot: Spot) -> Result<()> {
        self.attachments.attach(self.object.program(spot.program())?.as_fd(), interface, spot).map(drop)
    }

    /// Makes the attachments outlive this process, and removes pinned ones that are no longer wanted.
    pub fn last(&self) -> Result<()> {
        self.attachments.pin()?;
        self.attachments.remove_others()
    }

    /// Detaches from one interface, which may be gone.
    pub fn forget(&mut self, interface: &Interface, spot: Spot) {
        self.attachments.forget(&interface.name, spot);
    }

    /// Detaches from every interface.
    pub fn detach(&mut self) {
        self.attachments.detach();
    }

    /// Runs one of the programs on a frame.
    pub fn run(&self, spot: Spot, frame: &[u8]) -> Result<Ran> {
        run::run(&self.object.runnable(spot.program())?, frame, 1).context("a gateway's program")
    }
}
