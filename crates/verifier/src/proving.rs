//! The verifier of proofs (wire.md §8) beside admission: its program on its interfaces, its keys, what was withdrawn. Decides
//! nothing about packets.

use crate::settings::{ProofsSettings, Settings};
use crate::{now, view};
use anyhow::{Context, Result, ensure};
use datapath::Pins;
use datapath::clock::coarse_to_unix;
use datapath::hook::{Hook, Mode};
use datapath::interface::Interface;
use datapath::proofs::Proofs;
use engine::api::{self, Withdrawal};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use wire::map::{ProofsConfig, counter};
use wire::{DropReason, Epoch, ProofKey, Vni};

/// Names of the outcomes that are no drops.
const PASSED: [(u32, &str); 3] =
    [(counter::NOT_OURS, "not_ours"), (counter::FLOW, "remembered"), (counter::TOKEN, "computed")];

/// The program, attached or not.
pub struct Proving {
    programs: Proofs,
    settings: ProofsSettings,
    config: ProofsConfig,
    pins: Pins,
    attached: BTreeMap<String, (Interface, Mode)>,
    failed: BTreeMap<String, String>,
    /// Whether attachments are to outlive this process.
    lasting: bool,
    /// Set while a withdrawal found no room: then no key is held and nothing passes.
    closed: AtomicBool,
}

impl Proving {
    /// Loads the program where proofs are to be checked; else lets go of what an earlier process left.
    pub fn load(settings: &Settings, config: &api::VerifierConfig, pins: &Pins) -> Result<Option<Self>> {
        let Some(proofs) = settings.proofs.clone() else { return pins.remove_proofs().map(|()| None) };
        let apart = |name: &String| !settings.interfaces.is_empty() && !settings.interfaces.contains(name);
        let both = proofs.interfaces.iter().find(|name| settings.hook == Hook::Xdp && !apart(name));
        if let Some(name) = both {
            let why = format!("proofs are checked by XDP on {name}, which takes one program");
            anyhow::bail!("{why}: set hook = \"tc\" for tokens, or name other interfaces for them");
        }
        ensure!(!settings.observe, "`observe` drops nothing, and proofs are checked by dropping: leave one out");
        let (pins, config) = (pins.proofs()?, kernel_config(config));
        let programs = Proofs::load_pinned(config, proofs.remembered, pins.clone())?;
        let (attached, failed) = (BTreeMap::new(), BTreeMap::new());
        let closed = AtomicBool::new(false);
        Ok(Some(Self { programs, settings: proofs, config, pins, attached, failed, lasting: false, closed }))
    }

    /// Makes the tables what the authority says. Withdrawals come first.
    pub fn write(&self, config: &api::VerifierConfig, keys: &api::EpochKeys) -> Result<()> {
        self.set_clock()?;
        let endpoints: Vec<_> =
            self.settings.endpoints.iter().map(|prefix| (prefix.addr(), prefix.prefix_len())).collect();
        if self.withdraw(&config.withdrawn) {
            // Keys of epochs of another length would take the place of those that the program can use.
            if config.epoch_length == self.config.epoch_length {
                self.programs.hold(&read(keys.proofs.as_ref())?)?;
                self.closed.store(false, Ordering::Relaxed);
            }
            if keys.proofs.is_none() {
                tracing::warn!(verifier = config.verifier, "no path leads by this verifier of proofs: nothing passes");
            }
        }
        self.programs.stand_before(&endpoints).context("cannot write which endpoints it stands before")
    }

    /// Voids segments. Without room for one nothing passes any more; gives whether there was.
    pub fn withdraw(&self, withdrawn: &[Withdrawal]) -> bool {
        let left = withdrawn.iter().filter(|what| u64::from(what.until) >= now()).find_map(|what| {
            let vni = Vni::new(what.vni)?;
            self.programs.withdraw(vni, what.receiver, what.sender, what.until).err()
        });
        let Some(error) = left else { return true };
        tracing::error!("no room for withdrawn consent, so no proof is taken until some has ended: {error:#}");
        if let Err(error) = self.programs.hold(&[]) {
            tracing::error!("cannot clear keys: {error:#}");
        }
        self.closed.store(true, Ordering::Relaxed);
        false
    }

    /// Whether no key is held because a withdrawal found no room.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Whether the program was loaded with the authority's times.
    pub fn is_loaded_for(&self, config: &api::VerifierConfig) -> bool {
        self.config == kernel_config(config)
    }

    /// Loads the program anew, because the authority's times changed; attachments go over.
    pub fn reload(&mut self, config: &api::VerifierConfig) -> Result<()> {
        let config = kernel_config(config);
        // An attachment that is taken over has to be pinned.
        self.programs.pin_links()?;
        self.programs = Proofs::load_pinned(config, self.settings.remembered, self.pins.clone())?;
        self.config = config;
        self.attach()
    }

    /// Attaches to its interfaces, of which every one must be there; to the others where one is not, too.
    pub fn attach(&mut self) -> Result<()> {
        let mut done = Ok(());
        for name in self.settings.interfaces.clone() {
            let attached = Interface::named(&name).and_then(|interface| self.attach_one(interface));
            done = done.and(attached);
        }
        done
    }

    /// Whether an interface has come, gone, or come back as another one.
    pub fn has_changed(&self) -> bool {
        self.settings.interfaces.iter().any(|name| {
            let there = Interface::named(name).ok().map(|interface| interface.index);
            there != self.attached.get(name).map(|(interface, _)| interface.index)
        })
    }

    /// Attaches to interfaces that have come, and lets go of those that have gone.
    pub fn attach_changed(&mut self) {
        for name in self.settings.interfaces.clone() {
            let there = Interface::named(&name).ok();
            if there.as_ref().map(|there| there.index) == self.attached.get(&name).map(|(known, _)| known.index) {
                continue;
            }
            self.attached.remove(&name);
            self.programs.release(&name);
            let done = there.context("the interface is gone").and_then(|interface| self.attach_one(interface));
            if let Err(error) = done {
                let text = format!("{error:#}");
                if self.failed.insert(name.clone(), text.clone()).as_ref() != Some(&text) {
                    tracing::error!(interface = name, "proofs are not checked: {text}");
                }
            }
        }
    }

    fn attach_one(&mut self, interface: Interface) -> Result<()> {
        let mode = self.programs.attach(&interface)?;
        if self.lasting {
            self.programs.pin_links()?;
        }
        tracing::info!(interface = interface.name, mode = mode.name(), "checking proofs");
        self.failed.remove(&interface.name);
        self.attached.insert(interface.name.clone(), (interface, mode));
        Ok(())
    }

    /// Makes attachments outlive this process, and lets go of pinned ones that are no longer wanted.
    pub fn last(&mut self) -> Result<()> {
        self.programs.pin_links()?;
        self.lasting = true;
        let unwanted = self.pins.links().into_iter().filter(|name| !self.settings.interfaces.contains(name));
        unwanted.into_iter().try_for_each(|name| self.pins.remove_link(&name))
    }

    /// Lets go of every interface.
    pub fn end(&mut self) {
        for name in std::mem::take(&mut self.attached).into_keys() {
            self.programs.release(&name);
        }
    }

    /// Tells the program the time.
    pub fn set_clock(&self) -> Result<()> {
        self.programs.set_clock(coarse_to_unix())
    }

    /// Forgets withdrawals of what has ended.
    pub fn sweep(&self) -> Result<()> {
        self.programs.sweep(now().saturating_sub(u64::from(engine::verifier::CLOCK_SKEW_MAX)) as u32)
    }

    /// How it stands.
    pub fn view(&self) -> Result<view::Proofs> {
        let counts = self.programs.counts()?;
        let counter = |name: &str, index: u32| view::Counter {
            name: name.into(),
            packets: counts.get(index as usize).copied().unwrap_or_default(),
        };
        let interface = |(interface, mode): &(Interface, Mode)| view::Interface {
            name: interface.name.clone(),
            hook: mode.hook().name().into(),
            mode: mode.name().into(),
            driver: interface.driver(),
        };
        let failed = self.failed.iter().map(|(name, why)| view::NotAttached { name: name.clone(), why: why.clone() });
        Ok(view::Proofs {
            endpoints: self.settings.endpoints.iter().map(ToString::to_string).collect(),
            interfaces: self.attached.values().map(interface).collect(),
            not_attached: failed.collect(),
            withdrawn: self.programs.withdrawals() as u64,
            keys_until: crate::plan::keys_until(self.programs.epochs().into_iter(), now(), self.config.epoch_length),
            passed: PASSED.iter().map(|(index, name)| counter(name, *index)).collect(),
            reasons: DropReason::ALL.iter().map(|reason| counter(reason.name(), *reason as u32)).collect(),
        })
    }
}

fn kernel_config(config: &api::VerifierConfig) -> ProofsConfig {
    ProofsConfig { epoch_length: config.epoch_length, max_lifetime: config.max_lifetime }
}

/// The keys as the authority gives them.
fn read(keys: Option<&api::ProofKeys>) -> Result<Vec<(IpAddr, Epoch, ProofKey)>> {
    let broken = |epoch| anyhow::anyhow!("the authority's key for proofs of epoch {epoch} is broken");
    keys.map_or_else(|| Ok(Vec::new()), |keys| keys.read().map_err(broken))
}
