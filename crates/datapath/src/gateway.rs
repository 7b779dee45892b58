//! A gateway's programs. They record flows that are opened from inside, in the same tables that the programs for
//! admission use. They also assign inside addresses.

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

/// The loaded programs of a gateway.
pub struct Gateway {
    object: Loaded,
    attachments: Attachments,
    /// The tables of inside addresses.
    pub addresses: Arc<Addresses>,
}

impl Gateway {
    /// Loads the gateway's programs next to the programs of `verifier`, which must have been loaded with the same
    /// `config` and `sizes`. `pool` contains the inside addresses, IPv4 first; without a pool, the inside sees clients'
    /// own addresses. If an earlier process used another pool, its state is discarded.
    ///
    /// # Errors
    ///
    /// Fails if the kernel rejects a program, or a map can't be made or taken over.
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

    /// Removes the entries of [`Addresses::ways_back`] whose flows have ended by `now` (Unix seconds). This frees the
    /// flows' inside addresses. Returns the number of removed entries.
    ///
    /// # Errors
    ///
    /// Fails if the kernel does not run the program that removes the entries.
    pub fn reclaim(&self, now: u32) -> Result<u32> {
        nat::reclaim(&self.object, now)
    }

    /// Assigns an inside address to a flow that a peer gateway reported: the inside address that the flow has at the
    /// peer gateway. Returns `received` with the slot of this address.
    ///
    /// # Errors
    ///
    /// Fails if the kernel does not run the program that assigns the address.
    pub fn bind_received(&self, received: ReceivedAddress) -> Result<ReceivedAddress> {
        nat::bind_received(&self.object, received)
    }

    /// Attaches the program for `spot` to `interface`, or takes over the attachment that an earlier process pinned.
    ///
    /// # Errors
    ///
    /// Fails if the kernel does not attach the program.
    pub fn attach(&mut self, interface: &Interface, spot: Spot) -> Result<()> {
        self.attachments.attach(self.object.program(spot.program())?.as_fd(), interface, spot).map(drop)
    }

    /// Pins the attachments, so that they outlive this process. Removes pinned attachments that this process did not
    /// make or take over.
    ///
    /// # Errors
    ///
    /// Fails if an attachment can't be pinned, or if a pin can't be removed.
    pub fn last(&self) -> Result<()> {
        self.attachments.pin()?;
        self.attachments.remove_others()
    }

    /// Detaches the program for `spot` from one interface, which need not exist any more.
    pub fn forget(&mut self, interface: &Interface, spot: Spot) {
        self.attachments.forget(&interface.name, spot);
    }

    /// Detaches from every interface.
    pub fn detach(&mut self) {
        self.attachments.detach();
    }

    /// Runs the program for `spot` on a frame, without a network.
    ///
    /// # Errors
    ///
    /// Fails if the kernel does not run the program.
    pub fn run(&self, spot: Spot, frame: &[u8]) -> Result<Ran> {
        run::run(&self.object.runnable(spot.program())?, frame, 1).context("cannot run a gateway's program")
    }
}
