//! A gateway's programs: they note what the inside opens, in the tables of admission, and give inside addresses.

use crate::attachments::Attachments;
use crate::hook::Spot;
use crate::interface::Interface;
use crate::nat::{self, Addresses};
use crate::object::{Loaded, Opened, Pins};
use crate::run::{self, Ran};
use crate::verifier::{Sizes, Verifier};
use anyhow::{Context, Result};
use std::net::IpAddr;
use std::sync::Arc;
use wire::map::{ToldAddress, VerifierConfig};

static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/gateway.bpf.o"));
/// The tables that are admission's, too.
const SHARED: [&str; 12] = [
    "protected4",
    "protected6",
    "open4",
    "open6",
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
    /// Inside addresses.
    pub addresses: Arc<Addresses>,
}

impl Gateway {
    /// Loads the programs beside `verifier`, which was loaded with the same settings, for a pool of inside addresses (none:
    /// clients keep theirs), IPv4 first. With another pool than an earlier process had, what that left goes.
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

    /// Forgets the ways back of flows that are gone at `now` (Unix seconds), and so frees inside addresses; gives how many.
    pub fn reclaim(&self, now: u32) -> Result<u32> {
        nat::reclaim(&self.object, now)
    }

    /// Gives a flow that another gateway told of the inside address that it has there. The slot is filled in.
    pub fn bind_told(&self, told: ToldAddress) -> Result<ToldAddress> {
        nat::bind_told(&self.object, told)
    }

    /// Attaches one of the programs; takes over what an earlier process attached and pinned.
    pub fn attach(&mut self, interface: &Interface, spot: Spot) -> Result<()> {
        self.attachments.attach(&self.object, interface, spot)
    }

    /// Makes the attachments outlive this process, and lets go of pinned ones that are no longer wanted.
    pub fn last(&self) -> Result<()> {
        self.attachments.last()
    }

    /// Lets go of one interface, which may be gone.
    pub fn forget(&mut self, interface: &Interface, spot: Spot) {
        self.attachments.forget(interface, spot);
    }

    /// Detaches from every interface.
    pub fn detach(&mut self) {
        self.attachments.detach();
    }

    /// What one of the programs does with a frame.
    pub fn run(&self, spot: Spot, frame: &[u8]) -> Result<Ran> {
        run::run(&self.object.runnable(spot.program())?, frame, 1).context("a gateway's program")
    }
}
