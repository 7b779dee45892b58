//! The verifier of proofs (wire.md §8) beside admission: what checks them, on its interfaces, its keys, what was withdrawn. Decides
//! nothing about packets.

mod crossing;
mod program;

use crate::settings::{Engine, ProofsSettings, Settings};
use crate::{now, view};
use anyhow::{Result, ensure};
use datapath::Pins;
use datapath::hook::{Choice, Hook};
use engine::api::{self, Withdrawal};
use std::net::IpAddr;
use wire::map::counter;
use wire::{DropReason, Epoch, ProofKey};

/// Names of the outcomes that are no drops.
const PASSED: [(u32, &str); 3] =
    [(counter::NOT_OURS, "not_ours"), (counter::FLOW, "remembered"), (counter::TOKEN, "computed")];

/// What checks proofs, on its interfaces or not yet.
pub trait Proving: Send + Sync {
    /// Makes keys, endpoints and withdrawals what the authority says. Withdrawals come first.
    fn write(&self, config: &api::VerifierConfig, keys: &api::EpochKeys) -> Result<()>;
    /// Voids segments. Without room for one nothing passes any more.
    fn withdraw(&self, withdrawn: &[Withdrawal]);
    /// Whether no key is held because a withdrawal found no room.
    fn is_closed(&self) -> bool;
    /// Whether it was loaded with the authority's times.
    fn is_loaded_for(&self, config: &api::VerifierConfig) -> bool;
    /// Takes the authority's times, which changed.
    fn reload(&mut self, config: &api::VerifierConfig) -> Result<()>;
    /// Takes its interfaces, of which every one must be there.
    fn attach(&mut self) -> Result<()>;
    /// Whether an interface has come, gone, or come back as another one.
    fn has_changed(&self) -> bool;
    /// Takes interfaces that have come, and lets go of those that have gone.
    fn attach_changed(&mut self);
    /// Makes attachments outlive this process, as far as they can.
    fn last(&mut self) -> Result<()>;
    /// Lets go of every interface.
    fn end(&mut self);
    /// Tells it the time, if it can't tell itself.
    fn set_clock(&self) -> Result<()>;
    /// Forgets withdrawals of what has ended.
    fn sweep(&self) -> Result<()>;
    /// How it stands.
    fn view(&self) -> Result<view::Proofs>;
}

/// What the settings want, where proofs are to be checked; lets go of what an earlier process left and is not wanted.
pub fn load(settings: &Settings, config: &api::VerifierConfig, pins: &Pins) -> Result<Option<Box<dyn Proving>>> {
    let Some(proofs) = settings.proofs.clone() else { return pins.remove_proofs().map(|()| None) };
    let apart = |name: &String| !settings.interfaces.is_empty() && !settings.interfaces.contains(name);
    let both = proofs.interfaces.iter().find(|name| !apart(name));
    match (both, proofs.engine) {
        (Some(name), Engine::Xdp) if settings.hook == Choice::Only(Hook::Xdp) => {
            let why = format!("proofs are checked by XDP on {name}, which takes one program");
            anyhow::bail!("{why}: set hook = \"tc\" for tokens, or name other interfaces for them");
        }
        (Some(name), Engine::AfXdp) => {
            let why =
                format!("frames of {name} cross by way of the verifier of proofs, and tokens are not looked for there");
            anyhow::bail!("{why}: name other interfaces for tokens");
        }
        _ => {}
    }
    ensure!(!settings.observe, "`observe` drops nothing, and proofs are checked by dropping: leave one out");
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

/// The keys as the authority gives them.
fn read(keys: Option<&api::ProofKeys>) -> Result<Vec<(IpAddr, Epoch, ProofKey)>> {
    let broken = |epoch| anyhow::anyhow!("the authority's key for proofs of epoch {epoch} is broken");
    keys.map_or_else(|| Ok(Vec::new()), |keys| keys.read().map_err(broken))
}
