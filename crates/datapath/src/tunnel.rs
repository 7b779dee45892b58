//! The verifier's program on the device where the packets of sealed tunnels come out (wire.md §6.11): it decides in
//! admission's tables.

use crate::attachments::{Attachments, Pins, Spot};
use crate::interface::Interface;
use crate::object::{Loaded, Opened};
use crate::run::{self, Ran};
use crate::stack;
use crate::verifier::{PINNED, Verifier};
use anyhow::{Context, Result, ensure};
use std::os::fd::AsFd;

static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/verifier_tunnel.bpf.o"));

/// The loaded program.
pub struct Tunnel {
    object: Loaded,
    attachments: Attachments,
}

impl Tunnel {
    /// Loads the program next to `verifier`, with the same settings and tables. With `pins`, a directory of its own,
    /// the attachment can outlive this process.
    ///
    /// # Errors
    /// If the kernel rejects the program.
    pub fn load(verifier: &Verifier, pins: Option<Pins>) -> Result<Self> {
        Self::load_behind(verifier, pins, 0)
    }

    /// Loads the program for packets with a link header of this length: for runs on single frames.
    ///
    /// # Errors
    /// If the kernel rejects the program.
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

    /// Attaches to the tunnel's device, or takes over an earlier process's pinned attachment.
    ///
    /// # Errors
    /// If the device has a link header, or the kernel refuses.
    pub fn attach(&mut self, device: &Interface) -> Result<()> {
        ensure!(device.link_header == 0, "interface {} is no TUN device: it has a link header", device.name);
        self.attachments.attach(self.object.program("admit_sealed")?.as_fd(), device, Spot::Sealed).map(drop)
    }

    /// Makes the attachment outlive this process, and removes pinned ones to other devices.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn pin(&self) -> Result<()> {
        self.attachments.pin()?;
        self.attachments.remove_others()
    }

    /// Detaches from the device, which may be gone.
    pub fn detach(&mut self) {
        self.attachments.detach();
    }

    /// Runs the program on one frame with the link header that it was loaded for.
    ///
    /// # Errors
    /// If the kernel cannot run it.
    #[doc(hidden)]
    pub fn run(&self, frame: &[u8]) -> Result<Ran> {
        run::run(&self.object.runnable("admit_sealed")?, frame, 1).context("the program on the tunnel's device")
    }
}
