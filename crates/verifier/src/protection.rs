//! The kernel programs and their tables, as the daemon uses them. Decides nothing about packets.

use crate::addresses::Addresses;
use crate::drops::Ring;
use crate::gateway::Gateway;
use crate::proving::{self, Proving};
use crate::settings::Settings;
use crate::{addresses, adoption, coverage, explain, now, plan, sampler, view};
use anyhow::{Context, Result};
use datapath::Pins;
use datapath::clock::coarse_to_unix;
use datapath::flows::Flows;
use datapath::hook::Mode;
use datapath::interface::{Interface, Layer, layers};
use datapath::ring::Listener;
use datapath::verifier::{Sizes, Verifier};
use engine::api::{self, LivePair, RevokedGrant};
use engine::protected::{self, Protected};
use std::collections::{BTreeMap, HashSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use tokio::sync::mpsc;
use wire::map::{EpochKey, Flow, FlowKey, GrantUse, LsGrant, SecretEntry, VerifierConfig, counter};
use wire::packet::{TCP, UDP};
use wire::{DropReason, Epoch, Handle, Pair, VerifierKey, ls};

mod marked;
mod proofs;
mod told;

/// Names of the outcomes that are no drops.
const PASSED: [(u32, &str); 5] = [
    (counter::NOT_OURS, "not_ours"),
    (counter::FLOW, "flow"),
    (counter::TOKEN, "token"),
    (counter::CONSUMED, "consumed"),
    (counter::ICMP_ERROR, "icmp_error"),
];
/// Names of what a gateway counts of the flows that the inside opens.
const OPENED: [(u32, &str); 2] = [(counter::OUTBOUND, "outbound"), (counter::OUTBOUND_FULL, "outbound_full")];

const NO_ETHERNET: &str = "unprotected: it has no Ethernet header";

/// What to attach to, and which interfaces are passed over or need a warning, and why.
#[derive(Default)]
struct Wanted {
    attach: Vec<Interface>,
    passed_over: BTreeMap<String, String>,
}

/// What revoking grants did.
pub struct Cut {
    /// Whether all had room. If not, the verifier is closed: it admits nothing new.
    pub complete: bool,
    /// Flows forgotten: revoked or idle.
    pub flows: u32,
    /// The grants that have not ended, which stay revoked.
    pub lasting: Vec<RevokedGrant>,
}

/// Loaded programs, attached or not.
pub struct Protection {
    verifier: Verifier,
    gateway: Option<Gateway>,
    proving: Option<Box<dyn Proving>>,
    pins: Pins,
    settings: Settings,
    kernel: VerifierConfig,
    attached: BTreeMap<String, (Interface, Mode)>,
    /// Interfaces that can't be protected, told once.
    failed: BTreeMap<String, (u32, String)>,
    /// Why others are not attached to, told once.
    passed_over: BTreeMap<String, String>,
    /// Whether attachments are to outlive this process.
    lasting: bool,
    /// Set while a revocation found no room: then no key is held and nothing new is admitted.
    closed: AtomicBool,
    drops: Arc<Mutex<Ring>>,
    _sampler: Listener,
}

impl Protection {
    /// Loads the programs; tables that are pinned are taken over. Nothing is attached.
    pub fn load(
        pins: Pins,
        settings: Settings,
        seed: u64,
        config: &api::VerifierConfig,
        drops: Arc<Mutex<Ring>>,
        unknown: mpsc::Sender<u64>,
    ) -> Result<Self> {
        marked::check(&settings)?;
        let kernel = plan::kernel_config(settings.kernel, seed, config);
        let proving = proving::load(&settings, config, &pins)?;
        let verifier = Verifier::load(settings.hook, kernel, settings.sizes, Some(pins.clone()))?;
        let sampler = sampler::start(&verifier, drops.clone())?;
        let pool = addresses::pool(&settings.pool)?;
        let gateway = Gateway::load(&verifier, &kernel, &settings, &pool, &pins, unknown)?;
        Ok(Self {
            verifier,
            gateway,
            proving,
            pins,
            settings,
            kernel,
            attached: BTreeMap::new(),
            failed: BTreeMap::new(),
            passed_over: BTreeMap::new(),
            lasting: false,
            closed: AtomicBool::new(false),
            drops,
            _sampler: sampler,
        })
    }

    /// Makes the tables what the authority says. Revocations come first: they are written even if the rest can't be.
    pub fn write(&self, config: &api::VerifierConfig, keys: &[api::EpochKey], now: u64) -> Result<()> {
        self.set_clock()?;
        // Keys of epochs of another length would take the place of those that the programs can use.
        let keys_fit = config.epoch_length == self.kernel.epoch_length;
        if self.revoke(&config.revoked, now).complete && keys_fit {
            self.write_keys(keys, now)?;
            if self.closed.swap(false, Ordering::Relaxed) {
                tracing::info!("all revoked grants have room again: grants are admitted");
            }
        }
        self.note_pairs(&config.pairs, config.now.max(now))?;
        let entries = match &self.settings.everything_but {
            Some(open) => plan::everything_but(&config.receivers, open)?,
            None => protected::entries(&config.receivers)?,
        };
        if entries.is_empty() {
            tracing::warn!(verifier = config.verifier, "nothing is protected: the policy names no receiver of it");
        }
        let entries: Vec<_> = entries.iter().map(|e| (e.prefix.addr(), e.prefix.prefix_len(), e.services)).collect();
        self.verifier.protect(&entries).context("cannot write what is protected")
    }

    /// Whether the programs were loaded with the authority's times.
    pub fn is_loaded_for(&self, config: &api::VerifierConfig) -> bool {
        self.kernel == plan::kernel_config(self.settings.kernel, self.kernel.replay_seed, config)
            && self.proofs_are_loaded_for(config)
    }

    /// Loads the programs anew, because the authority's times changed, which are fixed at load; attachments go over.
    pub fn reload(&mut self, config: &api::VerifierConfig) -> Result<()> {
        if let Some(proving) = &mut self.proving {
            proving.reload(config)?;
        }
        let kernel = plan::kernel_config(self.settings.kernel, self.kernel.replay_seed, config);
        let mut verifier = Verifier::load(self.settings.hook, kernel, self.settings.sizes, Some(self.pins.clone()))?;
        let sampler = sampler::start(&verifier, self.drops.clone())?;
        verifier.succeed(&mut self.verifier)?;
        (self.verifier, self.kernel, self._sampler) = (verifier, kernel, sampler);
        let (epoch_length, max_lifetime) = (kernel.epoch_length, kernel.max_lifetime);
        tracing::info!(epoch_length, max_lifetime, "the authority's times changed: programs replaced");
        Ok(())
    }

    fn write_keys(&self, keys: &[api::EpochKey], now: u64) -> Result<()> {
        let held = plan::keys(keys, now, self.kernel.epoch_length);
        let held = held.map_err(|key| anyhow::anyhow!("the authority's key of epoch {} is broken", key.epoch))?;
        let slots: HashSet<u32> = held.iter().map(|(slot, _)| *slot).collect();
        for (slot, key) in &held {
            self.verifier.epoch_keys.set(slot, key)?;
        }
        if self.takes_pairs() {
            for (slot, secret) in plan::secrets(keys, &held) {
                self.verifier.ls_secrets.set(&slot, &secret)?;
            }
        }
        self.clear_keys(|slot| !slots.contains(&slot))
    }

    fn clear_keys(&self, which: impl Fn(u32) -> bool) -> Result<()> {
        const NONE: EpochKey = EpochKey { epoch: 0, siphash: [0; 16], aes: [0; 16] };
        const NO_SECRET: SecretEntry = SecretEntry { epoch: 0, block: [0; 64] };
        for slot in (0..plan::KEY_SLOTS).filter(|slot| which(*slot)) {
            self.verifier.epoch_keys.set(&slot, &NONE)?;
            self.verifier.ls_secrets.set(&slot, &NO_SECRET)?;
        }
        Ok(())
    }

    fn takes_pairs(&self) -> bool {
        self.kernel.speaks(ls::SUITE)
    }

    /// Lets the tokens of these pairs in. Of those from before the table was new nobody knows which nonces were used: they
    /// stay out (wire.md §5.5.1).
    pub fn note_pairs(&self, pairs: &[LivePair], now: u64) -> Result<()> {
        if !self.takes_pairs() {
            return Ok(());
        }
        let since = match self.verifier.ls_since.get(&0)?.filter(|since| *since != 0) {
            Some(since) => since,
            None => {
                self.verifier.ls_since.set(&0, &now)?;
                now
            }
        };
        let mut left = 0;
        for pair in pairs.iter().filter(|pair| pair.issued >= since && u64::from(pair.expires) > now) {
            left += u32::from(
                self.verifier.ls_grants.insert(&pair.handle, &LsGrant::new(pair.epoch, pair.expires)).is_err(),
            );
        }
        if left > 0 {
            let room = self.settings.sizes.pairs;
            tracing::error!(left, room, "no room for pairs: their tokens are dropped. Raise --max-pairs and restart");
        }
        Ok(())
    }

    /// Tells the programs the time.
    pub fn set_clock(&self) -> Result<()> {
        self.proving.as_ref().map_or(Ok(()), |proving| proving.set_clock())?;
        self.verifier.set_clock(coarse_to_unix())
    }

    /// Revokes grants and cuts their flows.
    pub fn revoke(&self, grants: &[RevokedGrant], now: u64) -> Cut {
        let mut left = HashSet::new();
        for grant in grants {
            // One that has ended stays for a while, too: its flows may still be there.
            let until = grant.expires.max(now as u32);
            if let Err(error) = self.verifier.revoked.set(grant.handle, until) {
                tracing::debug!(handle = %Handle(grant.handle), "no room: {error:#}");
                left.insert(grant.handle);
            }
        }
        if !left.is_empty() {
            self.close(left.len());
            self.remove(&left);
        }
        let flows = if grants.is_empty() { 0 } else { self.sweep() };
        Cut { complete: left.is_empty(), flows, lasting: grants.to_vec() }
    }

    /// Cuts the flows of grants that may have ended. Revocations of those that have are there for one sweep only, which
    /// forgets flows first and them last, so that they take no room from others.
    pub fn cut(&self, grants: &[RevokedGrant], now: u64) -> Cut {
        let (ended, lasting) = plan::ended(grants, |handle| self.expiry(handle), now);
        let (mut flows, mut room, mut left) = (0, true, HashSet::new());
        let put = |grant: &RevokedGrant| self.verifier.revoked.set(grant.handle, grant.expires).is_ok();
        for grant in &ended {
            room = room
                && (put(grant) || {
                    flows += self.sweep();
                    put(grant)
                });
            if !room {
                left.insert(grant.handle);
            }
        }
        if !left.is_empty() {
            self.remove(&left);
        }
        if !ended.is_empty() {
            flows += self.sweep();
        }
        let cut = self.revoke(&lasting, now);
        Cut { flows: flows + cut.flows, lasting, ..cut }
    }

    /// When a grant ends, as its tokens said.
    fn expiry(&self, handle: u64) -> Option<u32> {
        self.verifier.grants.get(&handle).ok().flatten().map(|used| used.expires)
    }

    /// The grants that flows live by, each once.
    pub fn handles(&self) -> Vec<u64> {
        let flows = self.verifier.flows.entries();
        let handles: HashSet<u64> =
            flows.iter().filter(|(_, flow)| flow.by_grant()).map(|(_, flow)| flow.handle).collect();
        handles.into_iter().collect()
    }

    /// Without room for a revocation a revoked grant could come back: rather nobody is admitted.
    fn close(&self, left: usize) {
        if let Err(error) = self.clear_keys(|_| true) {
            tracing::error!("cannot clear keys: {error:#}");
        }
        if !self.closed.swap(true, Ordering::Relaxed) {
            let room = self.settings.sizes.revoked;
            tracing::error!(
                left,
                room,
                "no room for revoked grants: nothing new is admitted until some have ended; admitted flows go on. Raise \
                 --max-revoked and restart"
            );
        }
    }

    /// Removes the flows of grants that the table of revoked grants has no room for.
    fn remove(&self, handles: &HashSet<u64>) {
        for (key, flow) in self.verifier.flows.entries() {
            if flow.by_grant() && handles.contains(&flow.handle) {
                let _ = self.verifier.flows.remove(&key);
            }
        }
        for handle in handles {
            let _ = self.verifier.grants.remove(handle);
        }
    }

    /// Forgets what is idle, revoked or has ended; gives how many flows.
    pub fn sweep(&self) -> u32 {
        self.sweep_proofs();
        match self.verifier.sweep(now() as u32) {
            Ok(swept) => {
                self.tidy_classes(swept.now);
                if let Some(Err(error)) = self.gateway.as_ref().map(|gateway| gateway.sweep(swept.now)) {
                    tracing::error!("inside addresses: {error:#}");
                }
                swept.flows
            }
            Err(error) => {
                tracing::error!("sweep: {error:#}");
                0
            }
        }
    }

    /// Whether no key is held because a revocation found no room.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Lets connections in that are established and protected, and have no flow yet; gives how many.
    pub fn adopt(&self) -> Result<usize> {
        let sockets = adoption::sockets().context("cannot list the sockets")?;
        let now = now() as u32;
        let mut count = 0;
        for socket in adoption::protected_sockets(&sockets, &self.protected()) {
            let (key, flow) = adoption::flow(&socket, now);
            if self.verifier.flows.insert(&key, &flow)? {
                tracing::debug!(client = %socket.peer, server = %socket.local, "adopted");
                count += 1;
            }
        }
        Ok(count)
    }

    /// Lets go of what an earlier process left attached. Only for one that observed: until [`Self::attach`] nothing judges
    /// packets, as nothing was dropped before; and a pin that is taken over would outlive a trial.
    pub fn begin_anew(&self) -> Result<()> {
        self.pins.links().iter().try_for_each(|name| self.pins.remove_link(name))
    }

    /// Attaches to the interfaces that are wanted; all that are named must be there.
    pub fn attach(&mut self) -> Result<()> {
        // Whoever is killed in between has left protection, as far as the next process knows: that one takes nothing back.
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
        self.tell_passed_over(passed_over);
        for interface in attach {
            match self.attach_one(&interface) {
                Err(error) if all => self.fail(&interface, &error),
                done => done?,
            }
        }
        anyhow::ensure!(!self.attached.is_empty(), "there is no interface to protect: name one by --interface");
        if self.settings.observe {
            self.pins.note_observing(true)?;
        }
        Ok(())
    }

    /// Whether an interface has come, gone, or come back as another one.
    pub fn interfaces_changed(&self) -> bool {
        let Ok(Wanted { attach: wanted, passed_over }) = self.wanted() else { return false };
        let known = |interface: &Interface| {
            let attached = self.attached.get(&interface.name).map(|(old, _)| old.index);
            attached.or(self.failed.get(&interface.name).map(|(index, _)| *index)) == Some(interface.index)
        };
        passed_over != self.passed_over
            || self.gateway.as_ref().is_some_and(Gateway::has_changed)
            || self.proving.as_ref().is_some_and(|proving| proving.has_changed())
            || !wanted.iter().all(known)
            || self.attached.keys().any(|name| wanted.iter().all(|there| there.name != *name))
    }

    /// Attaches to interfaces that have come, and lets go of those that have gone or are over another now.
    pub fn attach_changed(&mut self) -> Result<()> {
        if let Some(gateway) = self.gateway.as_mut().filter(|gateway| gateway.has_changed()) {
            gateway.attach_changed(self.lasting)?;
        }
        if let Some(proving) = &mut self.proving {
            proving.attach_changed();
        }
        let Wanted { attach: wanted, passed_over } = self.wanted()?;
        self.failed.retain(|name, _| wanted.iter().any(|there| there.name == *name));
        for interface in &wanted {
            if self.attached.get(&interface.name).is_none_or(|(old, _)| old.index != interface.index)
                && let Err(error) = self.attach_one(interface)
            {
                self.fail(interface, &error);
            }
        }
        let unwanted = |name: &&String| wanted.iter().all(|there| there.name != **name);
        for name in self.attached.keys().filter(unwanted).cloned().collect::<Vec<_>>() {
            self.attached.remove(&name);
            self.verifier.forget(&name);
            if let Some(gateway) = &mut self.gateway {
                gateway.forget_outside(&name);
            }
            if !passed_over.contains_key(&name) {
                tracing::warn!(interface = name, "the interface is gone");
            }
        }
        self.tell_passed_over(passed_over);
        Ok(())
    }

    /// The interfaces to protect that are there.
    fn wanted(&self) -> Result<Wanted> {
        let named = !self.settings.interfaces.is_empty();
        let mut all: Vec<_> = if named {
            self.settings.interfaces.iter().flat_map(|name| Interface::named(name)).collect()
        } else {
            Interface::all()?
        };
        all.retain(|interface| !self.settings.inside.contains(&interface.name));
        let layers = layers()?;
        let has_failed = |i: &Interface| self.failed.get(&i.name).is_some_and(|(index, _)| *index == i.index);
        let judges = all.iter().filter(|interface| interface.link_header == 14 && !has_failed(interface));
        let covered = coverage::covered(&layers, &judges.map(|interface| interface.index).collect());
        let mut wanted = Wanted::default();
        for interface in all {
            let layer = layers.iter().find(|layer| layer.index == interface.index);
            let below = covered.get(&interface.index).and_then(|below| layers.iter().find(|l| l.index == *below));
            match below {
                Some(Layer { name, .. }) if named => {
                    let why = format!("its frames come through {name}, which takes tokens out: name one of them only");
                    wanted.passed_over.insert(interface.name.clone(), why);
                    wanted.attach.push(interface);
                }
                Some(Layer { name, .. }) => {
                    wanted.passed_over.insert(interface.name, format!("its frames come through {name}: judged there"));
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

    fn tell_passed_over(&mut self, passed_over: BTreeMap<String, String>) {
        for (interface, why) in &passed_over {
            if self.passed_over.get(interface) != Some(why) {
                if !self.settings.interfaces.is_empty() || why == NO_ETHERNET {
                    tracing::warn!(interface, "{why}");
                } else {
                    tracing::info!(interface, "not attached: {why}");
                }
            }
        }
        self.passed_over = passed_over;
    }

    /// Interfaces that are not attached to, and why.
    pub fn not_attached(&self) -> Vec<view::NotAttached> {
        let failed = self.failed.iter().map(|(name, (_, error))| (name, format!("unprotected: {error}")));
        let passed = self.passed_over.iter().filter(|(name, _)| !self.attached.contains_key(*name));
        let all = failed.chain(passed.map(|(name, why)| (name, why.clone())));
        let all = all.map(|(name, why)| view::NotAttached { name: name.clone(), why });
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
        if self.lasting {
            self.verifier.pin_links()?;
            self.gateway.iter().try_for_each(Gateway::last)?;
        }
        let (name, driver, observe) = (&interface.name, interface.driver(), self.settings.observe);
        let (hook, mode_name) = (mode.hook().name(), mode.name());
        tracing::info!(interface = name, hook, mode = mode_name, driver, observe, "attached");
        self.attached.insert(interface.name.clone(), (interface.clone(), mode));
        self.failed.remove(&interface.name);
        Ok(())
    }

    /// Makes attachments outlive this process, and lets go of pinned ones that are no longer wanted.
    pub fn last(&mut self) -> Result<()> {
        self.verifier.pin_links()?;
        self.gateway.iter().try_for_each(Gateway::last)?;
        self.proving.as_mut().map_or(Ok(()), |proving| proving.last())?;
        self.lasting = true;
        if self.settings.interfaces.is_empty() {
            return Ok(());
        }
        for name in self.pins.links().iter().filter(|name| !self.settings.interfaces.contains(name)) {
            self.pins.remove_link(name)?;
            tracing::warn!(interface = name, "detached: it is no longer among the interfaces to protect");
        }
        Ok(())
    }

    /// Ends protection: attachments go, and with them every table.
    pub fn end(&mut self) -> Result<()> {
        self.verifier.detach();
        if let Some(gateway) = &mut self.gateway {
            gateway.end();
        }
        if let Some(proving) = &mut self.proving {
            proving.end();
        }
        self.attached.clear();
        self.pins.remove()
    }

    /// All flows.
    pub fn flows(&self) -> Vec<(FlowKey, Flow)> {
        self.verifier.flows.entries()
    }

    /// The table of flows, to read without holding the programs.
    pub fn flow_table(&self) -> Arc<Flows> {
        self.verifier.flows.clone()
    }

    /// The flows of a client, to one server or all.
    pub fn flows_of(&self, client: SocketAddr, server: Option<SocketAddr>) -> Vec<(FlowKey, Flow)> {
        let (address, port) = (client.ip().to_canonical(), client.port());
        let mut keys: Vec<FlowKey> = match server {
            Some(server) => {
                let key = |protocol| FlowKey::new(address, port, server.ip().to_canonical(), server.port(), protocol);
                [TCP, UDP].map(key).to_vec()
            }
            None => self.verifier.flows.keys().into_iter().filter(|key| key.client() == (address, port)).collect(),
        };
        // As the inside sees it.
        let inside = self.addresses().map(|addresses| addresses.outside(client)).unwrap_or_default();
        keys.extend(
            inside
                .into_iter()
                .filter(|key| server.is_none_or(|server| key.server() == (server.ip().to_canonical(), server.port()))),
        );
        keys.into_iter().filter_map(|key| Some((key, self.verifier.flows.get(&key).ok()??))).collect()
    }

    /// What is dropped and passed; the ring's samples are not in it.
    pub fn counts(&self) -> Result<view::Drops> {
        let counter = |name: &str, index| Ok(view::Counter { name: name.into(), packets: self.verifier.count(index)? });
        let reasons = DropReason::ALL.iter().map(|reason| counter(reason.name(), *reason as u32));
        let passed = PASSED.iter().map(|(index, name)| counter(name, *index));
        Ok(view::Drops {
            reasons: reasons.collect::<Result<_>>()?,
            passed: passed.collect::<Result<_>>()?,
            opened: OPENED.iter().map(|(index, name)| counter(name, *index)).collect::<Result<_>>()?,
            samples_lost: self.verifier.count(counter::SAMPLES_LOST)?,
            observing: self.settings.observe,
            samples: Vec::new(),
        })
    }

    /// Inside addresses, if this is a gateway with a pool.
    pub fn addresses(&self) -> Option<&Addresses> {
        self.gateway.as_ref().and_then(Gateway::addresses)
    }

    /// The interfaces that lead inside, if this is a gateway.
    pub fn inside(&self) -> Vec<String> {
        self.gateway.as_ref().map(Gateway::interfaces).unwrap_or_default()
    }

    /// The attached interfaces.
    pub fn interfaces(&self) -> Vec<view::Interface> {
        let view = |(interface, mode): &(Interface, Mode)| view::Interface {
            name: interface.name.clone(),
            hook: mode.hook().name().into(),
            mode: mode.name().into(),
            driver: interface.driver(),
        };
        self.attached.values().map(view).collect()
    }

    /// The bounded tables.
    pub fn tables(&self) -> Vec<view::Table> {
        let Sizes { flows, grants, replay_buckets, revoked, pairs, .. } = self.settings.sizes;
        let table = |name: &str, used: Option<usize>, max: u64, bytes| {
            let used = used.map(|used| used as u64);
            view::Table { name: name.into(), used, max, bytes }
        };
        let verifier = &self.verifier;
        let keys = verifier.flows.keys();
        let four = keys.iter().filter(|key| key.family == 4).count();
        let mut all = vec![
            table("flows, IPv4", Some(four), flows.into(), 104),
            table("flows, IPv6", Some(keys.len() - four), flows.into(), 128),
            table("grants", Some(verifier.grants.keys().len()), grants.into(), 112),
            table("revoked", Some(verifier.revoked.handles().len()), revoked.into(), 64),
            table("replays", None, u64::from(replay_buckets) * 8, 4),
        ];
        if self.kernel.max_outbound > 0 {
            let used = verifier.outbound().ok().map(|used| used as usize);
            // They are among the flows.
            if let Some((used, max)) = self.addresses().map(Addresses::usage) {
                all.push(table("inside addresses", Some(used), max.into(), 48));
            }
            all.push(table("outbound", used, self.kernel.max_outbound.into(), 0));
        }
        if self.takes_pairs() {
            all.push(table("pairs", Some(verifier.ls_grants.keys().len()), pairs.into(), 8192));
        }
        all
    }

    /// Until when keys are held.
    pub fn keys_until(&self, now: u64) -> Option<u64> {
        let slots = self.verifier.epoch_keys.entries().into_iter().map(|(_, key)| key.epoch);
        plan::keys_until(slots, now, self.kernel.epoch_length)
    }

    /// The mark of what is admitted, if packets are marked and not dropped.
    pub fn mark(&self) -> Option<String> {
        self.settings.mark.map(|mark| mark.to_string())
    }

    /// What the programs were loaded with.
    pub fn kernel(&self) -> &VerifierConfig {
        &self.kernel
    }

    /// What is protected.
    pub fn protected(&self) -> Vec<Protected> {
        plan::protected(self.verifier.protected.four.entries(), self.verifier.protected.six.entries())
    }
}

impl explain::Tables for Protection {
    fn protected(&self) -> Vec<Protected> {
        self.protected()
    }

    fn flow(&self, key: &FlowKey) -> Option<Flow> {
        self.verifier.flows.get(key).ok().flatten()
    }

    fn key(&self, slot: u8) -> Option<(Epoch, VerifierKey)> {
        let key = self.verifier.epoch_keys.get(&slot.into()).ok().flatten()?;
        let mut bytes = [0; 32];
        bytes[..16].copy_from_slice(&key.siphash);
        bytes[16..].copy_from_slice(&key.aes);
        Some((Epoch(key.epoch), VerifierKey::new(bytes)))
    }

    fn is_revoked(&self, handle: Handle) -> bool {
        self.verifier.revoked.get(handle.0).ok().flatten().is_some()
    }

    fn grant_use(&self, handle: Handle) -> Option<GrantUse> {
        self.verifier.grants.get(&handle.0).ok().flatten()
    }

    fn pair(&self, pair: Pair) -> Option<LsGrant> {
        self.verifier.ls_grants.get(&pair.handle().0).ok().flatten()
    }
}
