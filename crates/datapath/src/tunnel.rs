//! The verifier's program on the device through which packets leave sealed tunnels (wire.md §6.11). It decides with the
//! same tables as the programs for admission.

use crate::attachments::{Attachments, Pins, Spot};
use crate::interface::Interface;
use crate::object::{Loaded, Opened};
use crate::run::{self, Ran};
use crate::stack;
use crate::verifier::{PINNED, Verifier};
use anyhow::{Context, Result, ensure};
use std::os::fd::AsFd;

static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/verifier_tunnel.bpf.o"));

/// The loaded program for packets out of sealed tunnels.
pub struct Tunnel {
    object: Loaded,
    attachments: Attachments,
}

impl Tunnel {
    /// Loads the program next to `verifier`, with the same settings and tables. With `pins`, the attachment can outlive
    /// this process. The directory `pins` must be for this program only.
    ///
    /// # Errors
    ///
    /// Fails if the kernel rejects the program.
    pub fn load(verifier: &Verifier, pins: Option<Pins>) -> Result<Self> {
        Self::load_behind(verifier, pins, 0)
    }

    /// Loads the program for packets with a link header of `link_header` bytes. The caller can then run the program on
    /// single frames.
    ///
    /// # Errors
    ///
    /// Fails if the kernel rejects the program.
    #[doc(hidden)]
    pub fn load_behind(verifier: &Verifier, pins: Option<Pins>, link_header: u32) -> Result<Self> {
        let mut opened = Opened::new("verifier_tunnel", OBJECT)?;
        opened.configure(verifier.config())?;
        opened.set_constant(".rodata.stack", &stack::layout())?;
        opened.set_constant(".rodata.link", &link_header)?;
        // Classes are for marks, which a verifier at XDP does not set.
        let shared: Vec<_> = PINNED
            .into_iter()
            .filter(|name| *name != "classes" || verifier.config().mark_mask != 0)
            .chain(["samples"])
            .collect();
        opened.share(verifier.object(), &shared)?;
        Ok(Self { object: opened.load("verifier_tunnel")?, attachments: Attachments::new(pins) })
    }

    /// Attaches to the tunnel's device, or takes over the attachment that an earlier process pinned.
    ///
    /// # Errors
    ///
    /// Fails if the device has a link header, or if the kernel does not attach the program.
    pub fn attach(&mut self, device: &Interface) -> Result<()> {
        ensure!(device.link_header == 0, "interface {} is no TUN device: it has a link header", device.name);
        self.attachments.attach(self.object.program("admit_sealed")?.as_fd(), device, Spot::Sealed).map(drop)
    }

    /// Pins the attachment, so that it outlives this process. Removes pinned attachments to other devices.
    ///
    /// # Errors
    ///
    /// Fails if the attachment can't be pinned, or if a pin can't be removed.
    pub fn pin(&self) -> Result<()> {
        self.attachments.pin()?;
        self.attachments.remove_others()
    }

    /// Detaches from the device, which need not exist any more.
    pub fn detach(&mut self) {
        self.attachments.detach();
    }

    /// Runs the program on one frame. The frame's link header must have the length for which the program was loaded.
    ///
    /// # Errors
    ///
    /// Fails if the kernel cannot run the program.
    #[doc(hidden)]
    pub fn run(&self, frame: &[u8]) -> Result<Ran> {
        run::run(&self.object.runnable("admit_sealed")?, frame, 1)
            .context("cannot run the program for the tunnel's device")
    }
}
