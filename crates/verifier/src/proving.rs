//! The verification of proofs (wire.md §8), which is independent of admission. This module connects the engines that
//! verify proofs with their interfaces, keys and withdrawals. It makes no decisions about packets.

mod crossing;
mod program;

use crate::settings::{Engine, ProofsSettings, Settings};
use crate::{now, view};
use anyhow::{Result, ensure};
use api::Withdrawal;
use datapath::Pins;
use datapath::hook::{Choice, Hook};
use std::net::IpAddr;
use wire::map::counter;
use wire::{DropReason, Epoch, ProofKey};

/// Names of the outcomes other than drops.
const PASSED: [(u32, &str); 3] =
    [(counter::NOT_OURS, "not_ours"), (counter::FLOW, "remembered"), (counter::TOKEN, "computed")];

/// An engine that checks proofs: loaded, and possibly attached to its interfaces.
pub trait Proving: Send + Sync {
    /// Writes to the engine first the authority's withdrawals, then the authority's keys, and the endpoints in the
    /// settings.
    fn write(&self, config: &api::VerifierConfig, keys: &api::EpochKeys) -> Result<()>;
    /// Voids the path segments that these withdrawals cover. If there is no room for a withdrawal, nothing passes any
    /// more.
    fn withdraw(&self, withdrawn: &[Withdrawal]);
    /// Reports whether all keys are cleared because there was no room for a withdrawal.
    fn is_closed(&self) -> bool;
    /// Reports whether the engine was loaded with the epoch length and maximum lifetime in `config`.
    fn is_loaded_for(&self, config: &api::VerifierConfig) -> bool;
    /// Reloads the engine with the epoch length and maximum lifetime in `config`.
    fn reload(&mut self, config: &api::VerifierConfig) -> Result<()>;
    /// Attaches to the interfaces of the settings. Fails if one of them does not exist.
    fn attach(&mut self) -> Result<()>;
    /// Reports whether an interface has appeared, disappeared or been replaced by another interface of the same name.
    fn has_changed(&self) -> bool;
    /// Attaches to interfaces that have appeared, and detaches from interfaces that are gone.
    fn attach_changed(&mut self);
    /// Makes the attachments outlive this process, if the engine supports this.
    fn last(&mut self) -> Result<()>;
    /// Detaches from every interface.
    fn end(&mut self);
    /// Sets the engine's clock, if the engine does not read a clock itself.
    fn set_clock(&self) -> Result<()>;
    /// Forgets withdrawals that have ended.
    fn sweep(&self) -> Result<()>;
    /// Returns the engine's state and counters.
    fn view(&self) -> Result<view::Proofs>;
}

/// Loads the engine that the settings name. Returns `None` if the settings name none. Removes programs and tables that
/// an earlier process left pinned and that this process does not need.
pub fn load(settings: &Settings, config: &api::VerifierConfig, pins: &Pins) -> Result<Option<Box<dyn Proving>>> {
    let Some(proofs) = settings.proofs.clone() else { return pins.remove_proofs().map(|()| None) };
    let apart = |name: &String| !settings.interfaces.is_empty() && !settings.interfaces.contains(name);
    let both = proofs.interfaces.iter().find(|name| !apart(name));
    match (both, proofs.engine) {
        (Some(name), Engine::Xdp) if settings.hook == Choice::Only(Hook::Xdp) => {
            let why = format!("proofs are checked by XDP on {name}, which accepts only one XDP program");
            anyhow::bail!("{why}: set hook = \"tc\" for tokens, or name other interfaces for them");
        }
        (Some(name), Engine::AfXdp) => {
            let why = format!(
                "the check of proofs takes all frames of {name} by AF_XDP, so the check of tokens would not see them"
            );
            anyhow::bail!("{why}: name other interfaces for tokens");
        }
        _ => {}
    }
    ensure!(
        !settings.observe,
        "`observe` and `[proofs]` exclude each other, because the check of proofs would drop packets in spite of \
         `observe`: remove one of them"
    );
    Ok(Some(match proofs.engine {
        Engine::Xdp => Box::new(program::Program::load(proofs, config, pins)?),
        Engine::AfXdp => {
            pins.remove_proofs()?;
            Box::new(crossing::Crossing::new(proofs, config))
        }
    }))
}

fn view(
    settings: &ProofsSettings,
    counts: &[u64],
    epochs: impl Iterator<Item = u64>,
    epoch_length: u32,
) -> view::Proofs {
    let counter = |name: &str, index: u32| view::Counter {
        name: name.into(),
        packets: counts.get(index as usize).copied().unwrap_or_default(),
    };
    view::Proofs {
        endpoints: settings.endpoints.iter().map(ToString::to_string).collect(),
        interfaces: Vec::new(),
        not_attached: Vec::new(),
        withdrawn: 0,
        keys_until: crate::plan::keys_until(epochs, now(), epoch_length),
        passed: PASSED.iter().map(|(index, name)| counter(name, *index)).collect(),
        reasons: DropReason::ALL.iter().map(|reason| counter(reason.name(), *reason as u32)).collect(),
    }
}

/// Parses the keys that the authority sent.
fn read(keys: Option<&api::ProofKeys>) -> Result<Vec<(IpAddr, Epoch, ProofKey)>> {
    let broken = |epoch| anyhow::anyhow!("the authority's key for proofs of epoch {epoch} is malformed");
    keys.map_or_else(|| Ok(Vec::new()), |keys| keys.read().map_err(broken))
}
