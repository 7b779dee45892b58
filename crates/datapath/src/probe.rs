//! Programs that do nothing: they find out what this kernel and its interfaces can do, and are the benches' baseline.

use crate::agent::Attachment;
use crate::hook::{self, Mode};
use crate::interface::Interface;
use crate::link::{Link, Place};
use crate::object::{self, Loaded, Opened};
use crate::run::{self, Ran};
use anyhow::{Context, Result};
use std::os::fd::AsFd;

static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/probe.bpf.o"));

/// The loaded programs.
pub struct Probe(Loaded);

/// Something attached for as long as this lives.
#[must_use = "dropping it detaches at once"]
pub struct Attached(#[allow(dead_code, reason = "held for its drop")] Link);

impl Probe {
    /// Loads the programs: the first thing that fails where BPF is missing.
    pub fn load() -> Result<Self> {
        object::log_through_tracing();
        Opened::new("probe", OBJECT)?.load("probe").map(Self)
    }

    /// How XDP would be attached to `interface`: attaches a program that passes everything, for a moment.
    ///
    /// # Errors
    /// If another XDP program is there, or the interface takes none.
    pub fn xdp(&self, interface: &Interface) -> Result<Mode> {
        let _link = self.attach(interface, "pass")?;
        hook::mode(interface)
    }

    /// Attaches the XDP program that passes everything, or everything but TCP SYNs over IPv4 to port 9.
    pub fn attach_xdp(&self, interface: &Interface, drop_syns: bool) -> Result<Attached> {
        self.attach(interface, if drop_syns { "drop_syns" } else { "pass" }).map(Attached)
    }

    fn attach(&self, interface: &Interface, program: &str) -> Result<Link> {
        let program = self.0.program(program)?;
        Link::attach(program.as_fd(), interface.index, Place::Xdp, 0)
            .with_context(|| format!("interface {} takes no XDP program", interface.name))
    }

    /// Which hook this kernel has for the agent: tries TCX on `interface`, for a moment.
    pub fn tc(&self, interface: &Interface) -> Result<Attachment> {
        let program = self.0.program("next")?;
        Ok(match Link::attach(program.as_fd(), interface.index, Place::TcxEgress, 0) {
            Ok(_) => Attachment::Tcx,
            Err(_) => Attachment::Clsact,
        })
    }

    /// What the empty XDP program does with one frame.
    pub fn run_xdp(&self, frame: &[u8], repeat: u32) -> Result<Ran> {
        run::run(&self.0.runnable("pass")?, frame, repeat)
    }

    /// What the empty tc program does with one frame.
    pub fn run_tc(&self, frame: &[u8], repeat: u32) -> Result<Ran> {
        run::run(&self.0.runnable("next")?, frame, repeat)
    }
}
