//! Attachment of a verifier of proofs to interfaces. The program and its tables outlive the process that attached the
//! program. The same is true of the programs for admission and their tables.

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
    /// Loads the program, and takes over the tables that an earlier process pinned.
    ///
    /// # Errors
    ///
    /// Fails if the kernel rejects a program, or a map can't be made or taken over.
    pub fn load_pinned(config: ProofsConfig, remembered: u32, pins: Pins) -> Result<Self> {
        Self::open(OBJECT, config, remembered, Some(pins))
    }

    /// Attaches to `interface`, or takes over the attachment that an earlier process pinned.
    ///
    /// # Errors
    ///
    /// Fails if the interface has no Ethernet header, or if the kernel does not attach the program.
    pub fn attach(&mut self, interface: &Interface) -> Result<Mode> {
        anyhow::ensure!(
            interface.link_header == 14,
            "interface {} has no Ethernet header, so proofs cannot be checked there",
            interface.name
        );
        self.attachments.attach(self.object.program(Spot::Proving.program())?.as_fd(), interface, Spot::Proving)
    }

    /// Pins the attachments, so that they outlive this process.
    ///
    /// # Errors
    ///
    /// Fails if an attachment can't be pinned.
    pub fn pin_links(&self) -> Result<()> {
        self.attachments.pin()
    }

    /// Detaches from the interface with the name `name`, which need not exist any more.
    pub fn release(&mut self, name: &str) {
        self.attachments.forget(name, Spot::Proving);
    }

    /// Gives the verifier exactly these keys, in place of the keys that it has. If the keys do not change, remembered
    /// proofs stay valid.
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses access to a map.
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

    /// Returns the epoch of each key that the verifier has. If the verifier has keys of several authorities for an
    /// epoch, the result contains this epoch several times.
    pub fn epochs(&self) -> Vec<u64> {
        self.keys.entries().into_iter().map(|(_, key)| key.epoch).collect()
    }
}
