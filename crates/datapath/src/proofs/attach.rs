//! A verifier of proofs on interfaces: like admission, it and its tables outlive the process that attached it.

use super::{OBJECT, Proofs};
use crate::attachments::{Pins, Spot};
use crate::hook::Mode;
use crate::interface::Interface;
use anyhow::Result;
use std::collections::HashSet;
use std::net::IpAddr;
use std::os::fd::AsFd;
use wire::map::{EpochKey, ProofKeySlot, ProofsConfig};
use wire::{Epoch, ProofKey, Suite};
use zerocopy::IntoBytes;

impl Proofs {
    /// Loads the program, and takes over tables that an earlier process left.
    pub fn load_pinned(config: ProofsConfig, remembered: u32, pins: Pins) -> Result<Self> {
        Self::open(OBJECT, config, remembered, Some(pins))
    }

    /// Attaches to `interface`, or takes over an earlier process's pinned attachment.
    pub fn attach(&mut self, interface: &Interface) -> Result<Mode> {
        anyhow::ensure!(
            interface.link_header == 14,
            "interface {} has no Ethernet header, so proofs cannot be checked there",
            interface.name
        );
        self.attachments.attach(self.object.program(Spot::Proving.program())?.as_fd(), interface, Spot::Proving)
    }

    /// Makes the attachments outlive this process.
    pub fn pin_links(&self) -> Result<()> {
        self.attachments.pin()
    }

    /// Detaches from one interface, which may be gone.
    pub fn release(&mut self, name: &str) {
        self.attachments.forget(name, Spot::Proving);
    }

    /// Makes exactly these keys the verifier's keys. If none changes, remembered proofs stay valid.
    pub fn hold(&self, keys: &[(IpAddr, Epoch, ProofKey)]) -> Result<()> {
        let mut wanted = HashSet::new();
        let mut changed = false;
        for (authority, epoch, key) in keys {
            let slot = ProofKeySlot::new(*authority, epoch.on_wire());
            let entry = EpochKey { epoch: epoch.0, siphash: *key.of(Suite::Siphash), aes: *key.of(Suite::AesCmac) };
            wanted.insert(slot);
            if self.keys.get(&slot)?.is_none_or(|current| current.as_bytes() != entry.as_bytes()) {
                self.keys.set(&slot, &entry)?;
                changed = true;
            }
        }
        for slot in self.keys.keys().into_iter().filter(|slot| !wanted.contains(slot)) {
            self.keys.remove(&slot)?;
            changed = true;
        }
        if changed { self.forget() } else { Ok(()) }
    }

    /// Returns the epochs for which there are keys, of any authority.
    pub fn epochs(&self) -> Vec<u64> {
        self.keys.entries().into_iter().map(|(_, key)| key.epoch).collect()
    }
}
