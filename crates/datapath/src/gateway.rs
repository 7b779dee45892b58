//! A gateway's programs: they note what the inside opens, in the tables of admission.

use crate::hook::{Attached, Spot};
use crate::interface::Interface;
use crate::object::{Loaded, Opened, Pins};
use crate::run::{self, Ran};
use crate::verifier::Verifier;
use anyhow::{Context, Result};
use std::collections::HashMap;
use std::fs;
use std::os::fd::AsFd;
use wire::map::VerifierConfig;

static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/gateway.bpf.o"));
/// The tables that are admission's, too.
const SHARED: [&str; 10] =
    ["protected4", "protected6", "open4", "open6", "clock", "flows4", "flows6", "outbound", "ended", "counters"];

/// The loaded programs.
pub struct Gateway {
    object: Loaded,
    pins: Option<Pins>,
    /// By what they are pinned as.
    attached: HashMap<String, Attached>,
}

impl Gateway {
    /// Loads the programs beside `verifier`, which was loaded with the same settings.
    pub fn load(verifier: &Verifier, config: &VerifierConfig, pins: Option<Pins>) -> Result<Self> {
        let mut opened = Opened::new("gateway", OBJECT)?;
        opened.configure(config)?;
        opened.share(verifier.object(), &SHARED)?;
        Ok(Self { object: opened.load("gateway")?, pins, attached: HashMap::new() })
    }

    /// Attaches one of the programs; takes over what an earlier process attached and pinned.
    pub fn attach(&mut self, interface: &Interface, spot: Spot) -> Result<()> {
        let (program, pin) = (self.object.program(spot.program())?, spot.pin(&interface.name));
        let old = self.pins.as_ref().and_then(|pins| Attached::open_on(&pins.link(&pin), &pin, interface));
        let attached = match old {
            Some(mut old) => {
                old.update(program.as_fd())?;
                old
            }
            None => {
                if let Some(pins) = &self.pins {
                    // A pin of a link whose interface is gone.
                    let _ = fs::remove_file(pins.link(&pin));
                }
                Attached::new(program.as_fd(), interface, spot)?
            }
        };
        self.attached.insert(pin, attached);
        Ok(())
    }

    /// Makes the attachments outlive this process, and lets go of pinned ones that are no longer wanted.
    pub fn last(&self) -> Result<()> {
        let Some(pins) = &self.pins else { return Ok(()) };
        for (name, attached) in &self.attached {
            if !pins.link(name).exists() {
                pins.put_link(name, attached.to_pin())?;
            }
        }
        pins.links()
            .iter()
            .filter(|name| !self.attached.contains_key(*name))
            .try_for_each(|name| pins.remove_link(name))
    }

    /// Lets go of one interface, which may be gone.
    pub fn forget(&mut self, interface: &Interface, spot: Spot) {
        let pin = spot.pin(&interface.name);
        if let Some(attached) = self.attached.remove(&pin) {
            attached.detach();
        }
        if let Some(pins) = &self.pins {
            let _ = fs::remove_file(pins.link(&pin));
        }
    }

    /// Detaches from every interface.
    pub fn detach(&mut self) {
        for (pin, attached) in self.attached.drain() {
            attached.detach();
            if let Some(pins) = &self.pins {
                let _ = fs::remove_file(pins.link(&pin));
            }
        }
    }

    /// What one of the programs does with a frame.
    pub fn run(&self, spot: Spot, frame: &[u8]) -> Result<Ran> {
        run::run(&self.object.runnable(spot.program())?, frame, 1).context("a gateway's program")
    }
}
