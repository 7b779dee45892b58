//! The verifier as a gateway. This module has the interfaces that lead inside, the programs there that record the flows
//! that the inside opens, and the inside addresses of clients.

use crate::addresses::Addresses;
use crate::settings::Settings;
use crate::view;
use anyhow::{Result, ensure};
use datapath::Pins;
use datapath::Spot;
use datapath::gateway::Gateway as Programs;
use datapath::interface::Interface;
use datapath::verifier::Verifier;
use std::collections::BTreeMap;
use std::net::IpAddr;
use tokio::sync::mpsc;
use wire::map::{ReceivedAddress, VerifierConfig};

/// The kernel programs of a gateway: loaded, and possibly attached to its interfaces.
pub struct Gateway {
    programs: Programs,
    /// Names of the interfaces that lead inside.
    inside: Vec<String>,
    attached: BTreeMap<(String, &'static str), (Interface, Spot)>,
    /// Interfaces to which attaching failed, with their index and the reason. The map is kept so that each failure is
    /// logged only once.
    failed: BTreeMap<String, (u32, String)>,
    /// The leases of inside addresses, if there is a pool.
    addresses: Option<Addresses>,
}

impl Gateway {
    /// Loads the gateway's programs if the settings name inside interfaces. Otherwise removes the programs and tables
    /// that an earlier process left pinned, and returns `None`. If the kernel program needs to know the owner of a
    /// grant, it sends the grant's handle to `unknown`.
    pub fn load(
        verifier: &Verifier,
        config: &VerifierConfig,
        settings: &Settings,
        pool: &[IpAddr],
        pins: &Pins,
        unknown: mpsc::Sender<u64>,
    ) -> Result<Option<Self>> {
        if settings.inside.is_empty() {
            ensure!(pool.is_empty(), "`pool` requires a gateway: set `inside`");
            let alone = settings.peers.is_empty() && settings.peer_listen.is_none();
            ensure!(alone, "`peers` and `peer_listen` require a gateway: set `inside`");
            return pins.remove_gateway().map(|()| None);
        }
        ensure!(
            pool.is_empty() || !settings.observe,
            "`observe` and `pool` exclude each other, because `observe` must not change packets: remove one of them"
        );
        let both = settings.peers.is_empty() == settings.peer_listen.is_none();
        ensure!(both, "gateways exchange flows in both directions: set both `peers` and `peer_listen`, or neither");
        let programs = Programs::load(verifier, config, settings.sizes, pool, Some(pins.gateway()?))?;
        let addresses = match pool {
            [] => None,
            _ => Some(Addresses::new(programs.addresses.clone(), pool.to_vec(), unknown)?),
        };
        let (attached, failed) = (BTreeMap::new(), BTreeMap::new());
        Ok(Some(Self { programs, inside: settings.inside.clone(), attached, failed, addresses }))
    }

    /// Returns the leases of inside addresses; `None` if the gateway has no pool.
    pub fn addresses(&self) -> Option<&Addresses> {
        self.addresses.as_ref()
    }

    /// Frees the inside addresses of flows that have ended, and forgets the owners of ended grants. `now` is in Unix
    /// seconds.
    pub fn sweep(&self, now: u32) -> Result<()> {
        let Some(addresses) = &self.addresses else { return Ok(()) };
        self.programs.reclaim(now)?;
        addresses.tidy()
    }

    /// Assigns an inside address to a flow that another gateway advertised: the address that the flow has at that
    /// gateway. Returns `received` with the slot of this address.
    pub fn bind_received(&self, received: ReceivedAddress) -> Result<ReceivedAddress> {
        self.programs.bind_received(received)
    }

    /// Attaches to all inside interfaces.
    ///
    /// # Errors
    ///
    /// Fails if an inside interface does not exist or has no Ethernet header, or if attaching to it fails.
    pub fn attach(&mut self) -> Result<()> {
        for name in self.inside.clone() {
            let interface = Interface::named(&name)?;
            ensure!(
                interface.link_header == 14,
                "interface {name} has no Ethernet header, so it cannot be an inside interface"
            );
            self.attach_one(&interface, Spot::Outward)?;
        }
        Ok(())
    }

    fn attach_one(&mut self, interface: &Interface, spot: Spot) -> Result<()> {
        self.programs.attach(interface, spot)?;
        let side = side(spot);
        tracing::info!(interface = interface.name, side, "attached");
        self.attached.insert((interface.name.clone(), side), (interface.clone(), spot));
        Ok(())
    }

    /// Attaches to an outside interface, on which packets from clients are admitted.
    pub fn attach_outside(&mut self, interface: &Interface) -> Result<()> {
        self.attach_one(interface, Spot::Own)?;
        if self.addresses.is_some() { self.attach_one(interface, Spot::Inward) } else { Ok(()) }
    }

    /// Reports whether an inside interface has appeared, disappeared or been replaced by another interface of the same
    /// name.
    pub fn has_changed(&self) -> bool {
        let known = |name: &String| {
            let attached = self.attached.get(&(name.clone(), side(Spot::Outward))).map(|(old, _)| old.index);
            attached.or(self.failed.get(name).map(|(index, _)| *index))
        };
        self.inside.iter().any(|name| Interface::named(name).ok().map(|there| there.index) != known(name))
    }

    /// Attaches to inside interfaces that have reappeared. While an interface is gone, no packets arrive from it. If
    /// `lasting` is true, also pins the attachments, so that they outlive this process.
    pub fn attach_changed(&mut self, lasting: bool) -> Result<()> {
        for name in self.inside.clone() {
            let key = (name.clone(), side(Spot::Outward));
            let there = Interface::named(&name).ok();
            let old = self.attached.get(&key).map(|(old, _)| old.index);
            if old.is_some() && old != there.as_ref().map(|there| there.index) {
                if let Some((interface, spot)) = self.attached.remove(&key) {
                    self.programs.forget(&interface, spot);
                }
                tracing::warn!(interface = name, "the inside interface has disappeared");
            }
            self.failed.remove(&name);
            if let Some(there) = there.filter(|there| !self.is_attached(there))
                && let Err(error) = self.attach_one(&there, Spot::Outward)
            {
                tracing::error!(interface = name, "cannot track flows opened by this inside interface: {error:#}");
                self.failed.insert(name, (there.index, format!("{error:#}")));
            }
        }
        if lasting { self.programs.last() } else { Ok(()) }
    }

    fn is_attached(&self, interface: &Interface) -> bool {
        self.attached.get(&(interface.name.clone(), side(Spot::Outward))).is_some_and(|(old, _)| old == interface)
    }

    /// Detaches from an outside interface.
    pub fn forget_outside(&mut self, name: &str) {
        for spot in [Spot::Own, Spot::Inward] {
            if let Some((interface, spot)) = self.attached.remove(&(name.to_owned(), side(spot))) {
                self.programs.forget(&interface, spot);
            }
        }
    }

    /// Pins the attachments, so that they outlive this process. Removes pinned attachments that the settings no longer
    /// select.
    pub fn last(&self) -> Result<()> {
        self.programs.last()
    }

    /// Detaches from every interface.
    pub fn end(&mut self) {
        self.programs.detach();
        self.attached.clear();
    }

    /// Returns the names of the inside interfaces that the programs are attached to.
    pub fn interfaces(&self) -> Vec<String> {
        let inside = self.attached.values().filter(|(_, spot)| *spot == Spot::Outward);
        inside.map(|(interface, _)| interface.name.clone()).collect()
    }

    /// Returns the inside interfaces that the programs are not attached to, with the reasons.
    pub fn not_attached(&self) -> Vec<view::NotAttached> {
        let why = |name: &String| match self.failed.get(name) {
            Some((_, error)) => Some(format!("cannot track flows opened by this interface: {error}")),
            None if Interface::named(name).is_err() => Some("no such interface".to_owned()),
            None => None,
        };
        let missing = self.inside.iter().filter_map(|name| Some((name, why(name)?)));
        missing.map(|(name, why)| view::NotAttached { name: name.clone(), why, open: false }).collect()
    }
}

const fn side(spot: Spot) -> &'static str {
    match spot {
        Spot::Outward => "inside",
        Spot::Inward => "outside, inward",
        _ => "outside, own",
    }
}
