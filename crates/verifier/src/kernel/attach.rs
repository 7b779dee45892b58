//! Attaches the programs to interfaces and follows interfaces that appear and disappear.

use super::{Kernel, datagrams};
use crate::gateway::Gateway;
use crate::view;
use anyhow::Result;
use datapath::coverage::{self, OpenWay};
use datapath::hook::Mode;
use datapath::interface::{Interface, Layer, layers};
use datapath::tcp_in_udp::Answers;
use datapath::transparent::Diversion;
use std::collections::BTreeMap;

/// The device where the packets of sealed tunnels come out, which has a program of its own.
const TUNNEL_DEVICE: &str = "vs-sealed";
const NO_ETHERNET: &str = "unprotected: it has no Ethernet header";

/// The interfaces to attach to. Also the interfaces that are passed over or need a warning, with the reasons.
#[derive(Default)]
struct Wanted {
    attach: Vec<Interface>,
    passed_over: BTreeMap<String, String>,
}

impl Kernel {
    /// Removes the attachments that an earlier process left. Without this call, [`Self::attach`] would reuse these
    /// attachments. They would then stay after the end of this process, even if this process protects only on trial
    /// (`--try`). No packet is checked until `attach` is called. Therefore the caller must call this method only if the
    /// earlier process only observed.
    pub fn begin_anew(&self) -> Result<()> {
        self.pins.links().iter().try_for_each(|name| self.pins.remove_link(name))
    }

    /// Attaches to the interfaces that the settings select.
    ///
    /// # Errors
    ///
    /// Fails if an interface that the settings name does not exist, or if attaching to it fails. Also fails if no
    /// interface could be attached to at all.
    pub fn attach(&mut self) -> Result<()> {
        // If this process is killed before it has attached, the next one must assume that protection is on and leave it
        // on.
        if !self.settings.observe {
            self.pins.note_observing(false)?;
        }
        let all = self.settings.interfaces.is_empty();
        for name in &self.settings.interfaces {
            Interface::named(name)?;
        }
        if let Some(gateway) = &mut self.gateway {
            gateway.attach()?;
        }
        if let Some(proving) = &mut self.proving {
            proving.attach()?;
        }
        let Wanted { attach, passed_over } = self.wanted()?;
        self.log_passed_over(passed_over);
        for interface in attach {
            match self.attach_one(&interface) {
                Err(error) if all => self.fail(&interface, &error),
                done => done?,
            }
        }
        self.log_open_ways();
        if self.attached.is_empty() {
            let failed: Vec<_> = self.failed.iter().map(|(name, (_, why))| format!("{name}: {why}")).collect();
            anyhow::ensure!(!failed.is_empty(), "no interface to protect: name one with --interface");
            anyhow::bail!("cannot protect any interface: {}", failed.join("; "));
        }
        if self.settings.observe {
            self.pins.note_observing(true)?;
        }
        Ok(())
    }

    /// Reports whether an interface has appeared, disappeared or been replaced by another interface of the same name.
    pub fn interfaces_changed(&self) -> bool {
        if self.position.number > 0 {
            return false;
        }
        let Ok(Wanted { attach: wanted, passed_over }) = self.wanted() else { return false };
        let known = |interface: &Interface| {
            let attached = self.attached.get(&interface.name).map(|(old, _)| old.index);
            attached.or(self.failed.get(&interface.name).map(|(index, _)| *index)) == Some(interface.index)
        };
        passed_over != self.passed_over
            || self.open_ways() != self.open
            || self.gateway.as_ref().is_some_and(Gateway::has_changed)
            || self.proving.as_ref().is_some_and(|proving| proving.has_changed())
            || !wanted.iter().all(known)
            || self.attached.keys().any(|name| wanted.iter().all(|there| there.name != *name))
    }

    /// Attaches to interfaces that have appeared, and detaches from interfaces that are gone. If the settings name no
    /// interfaces, also detaches from interfaces whose frames now also pass through another protected interface.
    pub fn attach_changed(&mut self) -> Result<()> {
        if let Some(gateway) = self.gateway.as_mut().filter(|gateway| gateway.has_changed()) {
            gateway.attach_changed(self.lasting)?;
        }
        if let Some(proving) = &mut self.proving {
            proving.attach_changed();
        }
        let Wanted { attach: wanted, passed_over } = self.wanted()?;
        self.failed.retain(|name, _| wanted.iter().any(|there| there.name == *name));
        // Detach first, because an interface may have been renamed: removing the attachment under the old name must not
        // end the one under the new name.
        let unwanted = |name: &&String| wanted.iter().all(|there| there.name != **name);
        for name in self.attached.keys().filter(unwanted).cloned().collect::<Vec<_>>() {
            self.attached.remove(&name);
            self.verifier.forget(&name);
            if let Some(answers) = &mut self.answers {
                answers.forget(&name);
            }
            if let Some(gateway) = &mut self.gateway {
                gateway.forget_outside(&name);
            }
            if !passed_over.contains_key(&name) {
                tracing::warn!(interface = name, "the interface has disappeared");
            }
        }
        for interface in &wanted {
            if self.attached.get(&interface.name).is_none_or(|(old, _)| old.index != interface.index)
                && let Err(error) = self.attach_one(interface)
            {
                self.fail(interface, &error);
            }
        }
        self.log_passed_over(passed_over);
        self.log_open_ways();
        Ok(())
    }

    /// Returns the ways into this host that the attachments leave open.
    fn open_ways(&self) -> Vec<OpenWay> {
        let attached = self.attached.values().map(|(interface, _)| interface.index).collect();
        layers().map(|layers| coverage::open_ways(&layers, &attached)).unwrap_or_default()
    }

    fn log_open_ways(&mut self) {
        let open = self.open_ways();
        for OpenWay { name, why } in open.iter().filter(|way| !self.open.contains(way)) {
            tracing::warn!(interface = name, "{why}");
        }
        self.open = open;
    }

    /// Determines which existing interfaces to protect.
    fn wanted(&self) -> Result<Wanted> {
        let named = !self.settings.interfaces.is_empty();
        let mut all: Vec<_> = if named {
            self.settings.interfaces.iter().flat_map(|name| Interface::named(name)).collect()
        } else {
            Interface::all()?
        };
        all.retain(|interface| !self.settings.inside.contains(&interface.name) && interface.name != TUNNEL_DEVICE);
        let layers = layers()?;
        let has_failed = |i: &Interface| self.failed.get(&i.name).is_some_and(|(index, _)| *index == i.index);
        let attached = all.iter().filter(|interface| interface.link_header == 14 && !has_failed(interface));
        let covered = coverage::covered(&layers, &attached.map(|interface| interface.index).collect());
        let mut wanted = Wanted::default();
        for interface in all {
            let layer = layers.iter().find(|layer| layer.index == interface.index);
            let below = covered.get(&interface.index).and_then(|below| layers.iter().find(|l| l.index == *below));
            match below {
                Some(Layer { name, .. }) if named => {
                    let why =
                        format!("its frames pass through {name}, which removes their tokens: name only one of the two");
                    wanted.passed_over.insert(interface.name.clone(), why);
                    wanted.attach.push(interface);
                }
                Some(Layer { name, .. }) => {
                    wanted
                        .passed_over
                        .insert(interface.name, format!("its frames pass through {name} and are checked there"));
                }
                None if named || interface.link_header == 14 => wanted.attach.push(interface),
                None if layer.is_some_and(|layer| layer.up) => {
                    wanted.passed_over.insert(interface.name, NO_ETHERNET.into());
                }
                None => {}
            }
        }
        Ok(wanted)
    }

    fn log_passed_over(&mut self, passed_over: BTreeMap<String, String>) {
        for (interface, why) in &passed_over {
            if self.passed_over.get(interface) != Some(why) {
                if !self.settings.interfaces.is_empty() || why == NO_ETHERNET {
                    tracing::warn!(interface, "{why}");
                } else {
                    tracing::info!(interface, "not attached to this interface: {why}");
                }
            }
        }
        self.passed_over = passed_over;
    }

    /// Returns the interfaces that the programs are not attached to, with the reasons.
    pub fn not_attached(&self) -> Vec<view::NotAttached> {
        let open = self.open.iter().map(|way| (way.name.clone(), way.why.clone()));
        let failed = self.failed.iter().map(|(name, (_, error))| (name.clone(), format!("unprotected: {error}")));
        let open: BTreeMap<String, String> = open.chain(failed).collect();
        let passed = self.passed_over.iter().filter(|(name, _)| {
            let known = self.attached.contains_key(*name) || open.contains_key(*name);
            !known
        });
        let view =
            |(name, why): (&String, &String), open| view::NotAttached { name: name.clone(), why: why.clone(), open };
        let all = open.iter().map(|one| view(one, true)).chain(passed.map(|one| view(one, one.1 == NO_ETHERNET)));
        all.chain(self.gateway.iter().flat_map(Gateway::not_attached)).collect()
    }

    fn fail(&mut self, interface: &Interface, error: &anyhow::Error) {
        let before = self.failed.insert(interface.name.clone(), (interface.index, format!("{error:#}")));
        if before.is_none_or(|(index, _)| index != interface.index) {
            tracing::error!(interface = interface.name, "unprotected: {error:#}");
        }
    }

    fn attach_one(&mut self, interface: &Interface) -> Result<()> {
        if let Some(gateway) = &mut self.gateway {
            gateway.attach_outside(interface)?;
        }
        let mode = self.verifier.attach(interface)?;
        // Without this program, connections in datagrams get no answers. Services stay protected.
        if let Some(answers) = &mut self.answers
            && let Err(error) = answers.attach(interface)
        {
            tracing::error!(
                interface = interface.name,
                "cannot attach the program for `tcp_in_udp`, so connections that travel as datagrams get no answers on \
                 this interface: {error:#}"
            );
        }
        if self.lasting {
            self.verifier.pin_links()?;
            self.gateway.iter().try_for_each(Gateway::last)?;
            self.answers.iter().try_for_each(Answers::last)?;
        }
        let (name, driver, observe) = (&interface.name, interface.driver(), self.settings.observe);
        let (hook, mode_name, why) = (mode.hook().name(), mode.name(), self.verifier.reason(name));
        tracing::info!(interface = name, hook, mode = mode_name, why, driver, observe, "attached");
        self.attached.insert(interface.name.clone(), (interface.clone(), mode));
        self.failed.remove(&interface.name);
        Ok(())
    }

    /// Pins the attachments, so that they outlive this process. Removes pinned attachments that the settings no longer
    /// select.
    pub fn last(&mut self) -> Result<()> {
        self.verifier.pin_links()?;
        self.gateway.iter().try_for_each(Gateway::last)?;
        self.answers.iter().try_for_each(Answers::last)?;
        self.proving.as_mut().map_or(Ok(()), |proving| proving.last())?;
        self.lasting = true;
        if self.settings.interfaces.is_empty() {
            return Ok(());
        }
        for name in self.pins.links().iter().filter(|name| !self.settings.interfaces.contains(name)) {
            self.pins.remove_link(name)?;
            tracing::warn!(interface = name, "detached: no longer among the interfaces to protect");
        }
        Ok(())
    }

    /// Returns the name of the directory of pins, which identifies this instance on this host.
    pub fn pins_name(&self) -> String {
        self.pins.name()
    }

    /// Ends protection: removes the attachments, all tables, and the rules that divert connections to the relay.
    pub fn end(&mut self) -> Result<()> {
        self.verifier.detach();
        if let Some(gateway) = &mut self.gateway {
            gateway.end();
        }
        if let Some(proving) = &mut self.proving {
            proving.end();
        }
        self.attached.clear();
        datagrams::end(&mut self.answers, &self.pins)?;
        self.pins.remove()?;
        Diversion::of(&self.pins_name()).clear()
    }

    /// Returns the names of the interfaces that lead inside; empty if this is not a gateway.
    pub fn inside(&self) -> Vec<String> {
        self.gateway.as_ref().map(Gateway::interfaces).unwrap_or_default()
    }

    /// Returns the interfaces to which the programs are attached.
    pub fn interfaces(&self) -> Vec<view::Interface> {
        let view = |(interface, mode): &(Interface, Mode)| view::Interface {
            name: interface.name.clone(),
            hook: mode.hook().name().into(),
            mode: mode.name().into(),
            why: self.verifier.reason(&interface.name).to_owned(),
            driver: interface.driver(),
        };
        self.attached.values().map(view).collect()
    }
}
