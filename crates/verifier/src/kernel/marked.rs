//! The classes of grants, for verifiers that mark packets instead of dropping them.

use super::Kernel;
use crate::settings::Settings;
use anyhow::{Context, Result, ensure};
use api::GrantOwner;
use datapath::hook::{Choice, Hook};
use wire::map::GrantClass;

const SKEW: u32 = engine::verifier::CLOCK_SKEW_MAX;

/// If the settings demand that packets are marked, checks that the other settings permit this.
pub(super) fn check(settings: &Settings) -> Result<()> {
    let marks = settings.mark.is_some();
    ensure!(
        !marks || settings.hook == Choice::Only(Hook::Tc),
        "`verdict = \"mark\"` requires `hook = \"tc\"`: XDP cannot mark packets"
    );
    ensure!(
        !marks || !settings.observe,
        "`observe` and `verdict = \"mark\"` exclude each other, because `observe` must not change packets: remove one \
         of them"
    );
    Ok(())
}

impl Kernel {
    /// Writes the class of a grant to the kernel's tables, if the verifier marks packets.
    pub fn note_class(&self, owner: &GrantOwner) -> Result<()> {
        let Some(classes) = &self.verifier.classes else { return Ok(()) };
        let expires = u32::try_from(owner.expires).unwrap_or(u32::MAX);
        classes.set(&owner.handle, &GrantClass { class: owner.class.into(), expires }).context("classes")
    }

    /// Returns the handles of the grants that have flows but no class yet; empty if the verifier does not mark packets.
    pub fn without_class(&self) -> Vec<u64> {
        let Some(classes) = &self.verifier.classes else { return Vec::new() };
        let mut handles = self.handles();
        handles.retain(|handle| classes.get(handle).is_ok_and(|class| class.is_none()));
        handles
    }

    /// Removes the classes of grants that have ended and have no flow.
    pub(super) fn tidy_classes(&self, now: u32) {
        let Some(classes) = &self.verifier.classes else { return };
        for (handle, class) in classes.entries() {
            if class.expires.saturating_add(SKEW) < now && self.expiry(handle).is_none() {
                let _ = classes.remove(&handle);
            }
        }
    }
}
