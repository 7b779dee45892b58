//! A verifier of proofs on interfaces: it and its tables outlive the process that put them there, as admission does.

use super::{OBJECT, Proofs};
use crate::hook::{Attached, Hook, Mode, Spot};
use crate::interface::Interface;
use crate::object::Pins;
use anyhow::Result;
use std::collections::HashSet;
use std::fs;
use std::net::IpAddr;
use std::os::fd::AsFd;
use wire::map::{EpochKey, ProofKeySlot, ProofsConfig};
use wire::{Epoch, ProofKey, Suite};
use zerocopy::IntoBytes;

impl Proofs {
    /// Loads the program; tables that an earlier process left are taken over.
    pub fn load_pinned(config: ProofsConfig, remembered: u32, pins: Pins) -> Result<Self> {
        Self::open(OBJECT, config, remembered, Some(pins))
    }

    /// Attaches to `interface`; takes over what an earlier process attached and pinned.
    pub fn attach(&mut self, interface: &Interface) -> Result<Mode> {
        anyhow::ensure!(
            interface.link_header == 14,
            "interface {} has no Ethernet header; proofs can't be checked there",
            interface.name
        );
        let name = &interface.name;
        let program = self.object.program("prove")?;
        let old = self.pins.as_ref().and_then(|pins| Attached::open_on(&pins.link(name), name, interface));
        let attached = match old {
            Some(mut old) if old.is_at(Hook::Xdp) => {
                old.update(program.as_fd())?;
                old
            }
            _ => {
                if let Some(pins) = &self.pins {
                    // A pin of a link whose interface is gone.
                    let _ = fs::remove_file(pins.link(name));
                }
                Attached::new(program.as_fd(), interface, Spot::Proving)?
            }
        };
        if let Some(pins) = &self.pins {
            pins.remove_unfinished(name);
        }
        let mode = attached.mode(interface)?;
        self.attached.insert(name.clone(), attached);
        Ok(mode)
    }

    /// Makes the attachments outlive this process.
    pub fn pin_links(&self) -> Result<()> {
        let Some(pins) = &self.pins else { return Ok(()) };
        let unpinned = self.attached.iter().filter(|(name, _)| !pins.link(name).exists());
        unpinned.into_iter().try_for_each(|(name, attached)| pins.put_link(name, attached.to_pin()))
    }

    /// Lets go of one interface, which may be gone.
    pub fn release(&mut self, name: &str) {
        if let Some(attached) = self.attached.remove(name) {
            attached.detach();
        }
        if let Some(pins) = &self.pins {
            let _ = fs::remove_file(pins.link(name));
        }
    }

    /// Makes these keys those that it has, and no others. Where none changes, what is remembered stays so.
    pub fn hold(&self, keys: &[(IpAddr, Epoch, ProofKey)]) -> Result<()> {
        let mut held = HashSet::new();
        let mut changed = false;
        for (authority, epoch, key) in keys {
            let slot = ProofKeySlot::new(*authority, epoch.on_wire());
            let entry = EpochKey { epoch: epoch.0, siphash: *key.of(Suite::Siphash), aes: *key.of(Suite::AesCmac) };
            held.insert(slot);
            if self.keys.get(&slot)?.is_none_or(|held| held.as_bytes() != entry.as_bytes()) {
                self.keys.set(&slot, &entry)?;
                changed = true;
            }
        }
        for slot in self.keys.keys().into_iter().filter(|slot| !held.contains(slot)) {
            self.keys.remove(&slot)?;
            changed = true;
        }
        if changed { self.forget() } else { Ok(()) }
    }

    /// The epochs that it has keys for, of any authority.
    pub fn epochs(&self) -> Vec<u64> {
        self.keys.entries().into_iter().map(|(_, key)| key.epoch).collect()
    }
}
