//! The kernel program that checks proofs: its interfaces (XDP), keys and withdrawals.

use super::{Proving, read};
use crate::settings::ProofsSettings;
use crate::{now, view};
use anyhow::{Context, Result};
use api::Withdrawal;
use datapath::Pins;
use datapath::clock::coarse_to_unix;
use datapath::hook::Mode;
use datapath::interface::Interface;
use datapath::proofs::Proofs;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use wire::Vni;
use wire::map::ProofsConfig;

/// The XDP program that checks proofs: loaded, and possibly attached to its interfaces.
pub struct Program {
    programs: Proofs,
    settings: ProofsSettings,
    config: ProofsConfig,
    pins: Pins,
    attached: BTreeMap<String, (Interface, Mode)>,
    failed: BTreeMap<String, String>,
    /// Whether attachments outlive this process.
    lasting: bool,
    /// Whether all keys are cleared because there was no room for a withdrawal, so that nothing passes.
    closed: AtomicBool,
}

impl Program {
    /// Loads the program and takes over the tables of an earlier process. Attaches nothing.
    pub fn load(settings: ProofsSettings, config: &api::VerifierConfig, pins: &Pins) -> Result<Self> {
        let (pins, config) = (pins.proofs()?, kernel_config(config));
        let programs = Proofs::load_pinned(config, settings.remembered, pins.clone())?;
        let (attached, failed) = (BTreeMap::new(), BTreeMap::new());
        let closed = AtomicBool::new(false);
        Ok(Self { programs, settings, config, pins, attached, failed, lasting: false, closed })
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

    /// Voids the path segments that these withdrawals cover; returns whether there was room. If not, clears all keys,
    /// so that nothing passes any more.
    fn could_withdraw(&self, withdrawn: &[Withdrawal]) -> bool {
        let left = withdrawn.iter().filter(|what| u64::from(what.until) >= now()).find_map(|what| {
            let vni = Vni::new(what.vni)?;
            self.programs.withdraw(vni, what.receiver, what.sender, what.until).err()
        });
        let Some(error) = left else { return true };
        tracing::error!(
            "cannot store a withdrawal of consent (is the table full?), so no proof is accepted until all \
             withdrawals are stored: {error:#}"
        );
        if let Err(error) = self.programs.hold(&[]) {
            tracing::error!(
                "cannot clear the keys for proofs, so packets of withdrawn path segments may still pass: {error:#}"
            );
        }
        self.closed.store(true, Ordering::Relaxed);
        false
    }
}

impl Proving for Program {
    fn write(&self, config: &api::VerifierConfig, keys: &api::EpochKeys) -> Result<()> {
        self.set_clock()?;
        let endpoints: Vec<_> =
            self.settings.endpoints.iter().map(|prefix| (prefix.addr(), prefix.prefix_len())).collect();
        if self.could_withdraw(&config.withdrawn) {
            // Keys for epochs of another length would replace those that the loaded program can use.
            if config.epoch_length == self.config.epoch_length {
                self.programs.hold(&read(keys.proofs.as_ref())?)?;
                self.closed.store(false, Ordering::Relaxed);
            }
            if keys.proofs.is_none() {
                tracing::warn!(
                    verifier = config.verifier,
                    "no path leads through this verifier of proofs: all packets are dropped"
                );
            }
        }
        self.programs.stand_before(&endpoints).context("cannot store the endpoints that this verifier protects")
    }

    fn withdraw(&self, withdrawn: &[Withdrawal]) {
        self.could_withdraw(withdrawn);
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    fn is_loaded_for(&self, config: &api::VerifierConfig) -> bool {
        self.config == kernel_config(config)
    }

    fn reload(&mut self, config: &api::VerifierConfig) -> Result<()> {
        let config = kernel_config(config);
        // Pin the attachments first: the new program can only take over pinned ones.
        self.programs.pin_links()?;
        self.programs = Proofs::load_pinned(config, self.settings.remembered, self.pins.clone())?;
        self.config = config;
        self.attach()
    }

    fn attach(&mut self) -> Result<()> {
        let mut done = Ok(());
        for name in self.settings.interfaces.clone() {
            let attached = Interface::named(&name).and_then(|interface| self.attach_one(interface));
            done = done.and(attached);
        }
        done
    }

    fn has_changed(&self) -> bool {
        self.settings.interfaces.iter().any(|name| {
            let there = Interface::named(name).ok().map(|interface| interface.index);
            there != self.attached.get(name).map(|(interface, _)| interface.index)
        })
    }

    fn attach_changed(&mut self) {
        for name in self.settings.interfaces.clone() {
            let there = Interface::named(&name).ok();
            if there.as_ref().map(|there| there.index) == self.attached.get(&name).map(|(known, _)| known.index) {
                continue;
            }
            self.attached.remove(&name);
            self.programs.release(&name);
            let done = there.context("the interface has disappeared").and_then(|interface| self.attach_one(interface));
            if let Err(error) = done {
                let text = format!("{error:#}");
                if self.failed.insert(name.clone(), text.clone()).as_ref() != Some(&text) {
                    tracing::error!(interface = name, "cannot check proofs on this interface: {text}");
                }
            }
        }
    }

    fn last(&mut self) -> Result<()> {
        self.programs.pin_links()?;
        self.lasting = true;
        let unwanted = self.pins.links().into_iter().filter(|name| !self.settings.interfaces.contains(name));
        unwanted.into_iter().try_for_each(|name| self.pins.remove_link(&name))
    }

    fn end(&mut self) {
        for name in std::mem::take(&mut self.attached).into_keys() {
            self.programs.release(&name);
        }
    }

    fn set_clock(&self) -> Result<()> {
        self.programs.set_clock(coarse_to_unix())
    }

    fn sweep(&self) -> Result<()> {
        self.programs.sweep(now().saturating_sub(u64::from(engine::verifier::CLOCK_SKEW_MAX)) as u32)
    }

    fn view(&self) -> Result<view::Proofs> {
        let interface = |(interface, mode): &(Interface, Mode)| view::Interface {
            name: interface.name.clone(),
            hook: mode.hook().name().into(),
            mode: mode.name().into(),
            why: "proofs".into(),
            driver: interface.driver(),
        };
        let failed = self.failed.iter().map(|(name, why)| view::NotAttached {
            name: name.clone(),
            why: why.clone(),
            open: true,
        });
        let epochs = self.programs.epochs().into_iter();
        Ok(view::Proofs {
            interfaces: self.attached.values().map(interface).collect(),
            not_attached: failed.collect(),
            withdrawn: self.programs.withdrawals() as u64,
            ..super::view(&self.settings, &self.programs.counts()?, epochs, self.config.epoch_length)
        })
    }
}

fn kernel_config(config: &api::VerifierConfig) -> ProofsConfig {
    ProofsConfig { epoch_length: config.epoch_length, max_lifetime: config.max_lifetime }
}
