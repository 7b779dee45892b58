//! A tunnel endpoint's programs (wire.md §8): tenants' packets enter the tunnel under their segments; packets from the
//! tunnel are verified and delivered.
//!
//! A tunnel endpoint is also a verifier: keys, withdrawals and the endpoint's own address go to [`Svtep::proofs`].

use crate::attachments::{Attachments, Pins, Spot};
use crate::handed;
use crate::interface::Interface;
use crate::object::{self, Opened};
use crate::proofs::{Proofs, make_room};
use crate::run::{self, Ran};
use crate::table::Table;
use crate::tc;
use anyhow::Result;
use libbpf_rs::{MapHandle, PerfBuffer};
use std::os::fd::AsFd;
use wire::map::{
    Consent, Delivery, ProofsConfig, SegmentEntry, SegmentKey, SvtepConfig, Tenant, UnsentHeader, svtep_counter,
};
use wire::{InterfaceId, Vni};

static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/svtep.bpf.o"));
const PINNED: [&str; 16] = [
    "protected4",
    "protected6",
    "open4",
    "open6_networks",
    "open6_addresses",
    "clock",
    "counters",
    "proof_keys",
    "withdrawn",
    "withdrawn4",
    "generation",
    "tenants",
    "deliveries",
    "segments",
    "consents",
    "tunnel_counters",
];
/// First version of Linux that can remove an outer IP header around an inner packet of the other IP family.
const TURNS_SINCE: (u32, u32) = (6, 3);

/// Configuration that the programs are loaded with.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Settings for verifying proofs of incoming packets.
    pub proofs: ProofsConfig,
    /// Number of remembered proofs.
    pub remembered: u32,
    /// Length of the longest packet of the underlay, without its link header.
    pub mtu: u32,
    /// Largest number of packets per tenant and second that are passed to user space.
    pub reports: u32,
}

/// A tenant's packet that did not go into the tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsent {
    /// Interface, length and reason.
    pub header: UnsentHeader,
    /// The frame, truncated if it did not fit.
    pub frame: Vec<u8>,
}

/// The loaded programs and their tables.
pub struct Svtep {
    attachments: Attachments,
    /// The endpoint's verifier.
    pub proofs: Proofs,
    /// Segments, and records of packets that have none.
    pub segments: Table<SegmentKey, SegmentEntry>,
    /// Received segments that may be answered, under the keys that the answers' segments will have.
    pub consents: Table<SegmentKey, Consent>,
    tenants: Table<u32, Tenant>,
    deliveries: Table<u32, Delivery>,
    counters: Table<u32, u64>,
    unsent: MapHandle,
}

impl Svtep {
    /// Loads the programs for this underlay. With `pins`, takes over tables and attachments that an earlier process
    /// left.
    pub fn load(underlay: &Interface, config: &Config, pins: Option<Pins>) -> Result<Self> {
        object::log_through_tracing();
        let mut opened = Opened::new("svtep", OBJECT)?;
        opened.configure(&config.proofs)?;
        let turns = tc::kernel_version() >= TURNS_SINCE;
        let constants =
            SvtepConfig { underlay: underlay.index, mtu: config.mtu, turns: turns.into(), reports: config.reports };
        opened.set_constant(".rodata.svtep", &constants)?;
        make_room(&mut opened, config.remembered)?;
        if let Some(pins) = &pins {
            opened.pin(pins, &PINNED)?;
        }
        let object = opened.load("svtep")?;
        Ok(Self {
            segments: object.table("segments")?,
            consents: object.table("consents")?,
            tenants: object.table("tenants")?,
            deliveries: object.table("deliveries")?,
            counters: object.table("tunnel_counters")?,
            unsent: object.map("unsent")?,
            proofs: Proofs::of(object, config.proofs.epoch_length)?,
            attachments: Attachments::new(pins),
        })
    }

    /// Starts taking tunnelled packets from the underlay's interface.
    pub fn attach_underlay(&mut self, interface: &Interface) -> Result<()> {
        self.attach(interface, Spot::Underlay)
    }

    /// Attaches to a tenant's interface: from now on, all packets from there enter the tunnel or are dropped.
    pub fn attach_tenant(&mut self, interface: &Interface, vni: Vni, id: InterfaceId) -> Result<()> {
        self.admit_tenant(interface.index, vni, id, interface.is_cable_elsewhere()?)?;
        self.attach(interface, Spot::Tenant)
    }

    fn attach(&mut self, interface: &Interface, spot: Spot) -> Result<()> {
        let program = self.proofs.object().program(spot.program())?;
        self.attachments.attach(program.as_fd(), interface, spot).map(drop)
    }

    /// Registers a tenant by its interface's index; `peer` as in [`Delivery::new`].
    pub fn admit_tenant(&self, interface: u32, vni: Vni, id: InterfaceId, peer: bool) -> Result<()> {
        let slot = u32::from(id.0);
        let known = self.deliveries.get(&slot)?.unwrap_or(Delivery::NONE);
        let mut delivery = Delivery::new(interface, vni, peer);
        if known.interface == interface {
            delivery.mac = known.mac;
        }
        self.deliveries.set(&slot, &delivery)?;
        self.tenants.set(&interface, &Tenant::new(id))
    }

    /// Stops delivery to the tenant. Packets from the tenant are dropped as long as its interface exists.
    pub fn remove_tenant(&self, interface: u32, id: InterfaceId) -> Result<()> {
        self.deliveries.set(&id.0.into(), &Delivery::NONE)?;
        self.tenants.remove(&interface)?;
        self.forget_segments(|key| key.interface == interface)
    }

    /// Removes all tenants except those with these interfaces and ids; an earlier process may have left others.
    pub fn remove_tenants_but(&self, known: &[(u32, InterfaceId)]) -> Result<()> {
        for (slot, delivery) in self.deliveries.entries() {
            let is_known =
                known.iter().any(|(interface, id)| (*interface, u32::from(id.0)) == (delivery.interface, slot));
            if delivery.interface != 0 && !is_known {
                self.deliveries.set(&slot, &Delivery::NONE)?;
            }
        }
        let is_known = |interface: u32| known.iter().any(|(known, _)| *known == interface);
        let gone = self.tenants.keys().into_iter().filter(|interface| !is_known(*interface));
        gone.into_iter().try_for_each(|interface| self.tenants.remove(&interface))?;
        self.forget_segments(|key| !is_known(key.interface))
    }

    fn forget_segments(&self, of: impl Fn(&SegmentKey) -> bool) -> Result<()> {
        let segments = self.segments.keys().into_iter().filter(&of);
        segments.into_iter().try_for_each(|key| self.segments.remove(&key))?;
        let consents = self.consents.keys().into_iter().filter(&of);
        consents.into_iter().try_for_each(|key| self.consents.remove(&key))
    }

    /// Detaches from a tenant's interface, which may be gone.
    pub fn release_tenant(&mut self, interface: &Interface) {
        self.attachments.forget(&interface.name, Spot::Tenant);
    }

    /// Makes the attachments outlive this process, and removes pinned ones that are no longer wanted.
    pub fn last(&self) -> Result<()> {
        self.attachments.pin()?;
        self.attachments.remove_others()
    }

    /// Detaches from every interface. Packets from tenants then reach this host's own stack.
    pub fn detach(&mut self) {
        self.attachments.detach();
    }

    /// Opens the buffer of packets that the programs pass on. Whenever the result is polled, it calls `each` with every
    /// packet, and `lost` with the number of packets that did not fit. The result covers the cores that are online.
    pub fn unsent(
        &self,
        mut each: impl FnMut(Unsent) + Send + 'static,
        lost: impl FnMut(u64) + Send + 'static,
    ) -> Result<PerfBuffer<'static>> {
        let each = move |header, frame| each(Unsent { header, frame });
        handed::open(&self.unsent, |header: &UnsentHeader| header.length as usize, each, lost)
    }

    /// Returns the number of packets counted so far under one of [`svtep_counter`].
    pub fn count(&self, index: u32) -> Result<u64> {
        self.counters.sum_at(index)
    }

    /// Returns all counters, by index.
    pub fn counts(&self) -> Result<Vec<u64>> {
        (0..svtep_counter::COUNT).map(|index| self.count(index)).collect()
    }

    /// Runs the program at a tenant's interface on one frame.
    pub fn run_out(&self, frame: &[u8]) -> Result<Ran> {
        run::run(&self.proofs.object().runnable(Spot::Tenant.program())?, frame, 1)
    }

    /// Runs the program at a tenant's interface on a super-packet whose segments have this much payload.
    pub fn run_out_segments(&self, frame: &[u8], segment: u32) -> Result<Ran> {
        run::run_segments(&self.proofs.object().runnable(Spot::Tenant.program())?, frame, segment)
    }

    /// Runs the program at the underlay's interface on one frame.
    pub fn run_in(&self, frame: &[u8]) -> Result<Ran> {
        run::run(&self.proofs.object().runnable(Spot::Underlay.program())?, frame, 1)
    }
}
