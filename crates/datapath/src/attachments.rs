//! The attachments of several programs of one object, pinned so that they outlive the process.

use crate::hook::{Attached, Spot};
use crate::interface::Interface;
use crate::object::{Loaded, Pins};
use anyhow::Result;
use std::collections::HashMap;
use std::fs;
use std::os::fd::AsFd;

/// Attachments by what they are pinned as.
pub(crate) struct Attachments {
    pins: Option<Pins>,
    attached: HashMap<String, Attached>,
}

impl Attachments {
    /// None yet.
    pub(crate) fn new(pins: Option<Pins>) -> Self {
        Self { pins, attached: HashMap::new() }
    }

    /// Attaches one of the programs; takes over what an earlier process attached and pinned.
    pub(crate) fn attach(&mut self, object: &Loaded, interface: &Interface, spot: Spot) -> Result<()> {
        let (program, pin) = (object.program(spot.program())?, spot.pin(&interface.name));
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
    pub(crate) fn last(&self) -> Result<()> {
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
    pub(crate) fn forget(&mut self, interface: &Interface, spot: Spot) {
        let pin = spot.pin(&interface.name);
        if let Some(attached) = self.attached.remove(&pin) {
            attached.detach();
        }
        if let Some(pins) = &self.pins {
            let _ = fs::remove_file(pins.link(&pin));
        }
    }

    /// Lets go of every interface.
    pub(crate) fn detach(&mut self) {
        for (pin, attached) in self.attached.drain() {
            attached.detach();
            if let Some(pins) = &self.pins {
                let _ = fs::remove_file(pins.link(&pin));
            }
        }
    }
}
