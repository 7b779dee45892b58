//! A tunnel endpoint's programs (wire.md §8): tenants' packets go in under their segments, what comes in is checked and
//! delivered.
//!
//! It is a verifier, too: keys, withdrawals and the endpoint's own address are given to [`Svtep::proofs`].

use crate::attachments::Attachments;
use crate::handed;
use crate::hook::Spot;
use crate::interface::Interface;
use crate::object::{self, Opened, Pins};
use crate::proofs::{Proofs, make_room};
use crate::run::{self, Ran};
use crate::table::Table;
use crate::tc;
use anyhow::Result;
use libbpf_rs::{MapHandle, PerfBuffer};
use wire::map::{
    Consent, Delivery, ProofsConfig, SegmentEntry, SegmentKey, SvtepConfig, Tenant, UnsentHeader, svtep_counter,
};
use wire::{InterfaceId, Vni};

static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/svtep.bpf.o"));
const PINNED: [&str; 15] = [
    "protected4",
    "protected6",
    "open4",
    "open6",
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
/// Linux can take a header of one family off a packet of the other from this version on.
const TURNS_SINCE: (u32, u32) = (6, 3);

/// What the programs are loaded with.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// For the proofs of what comes in.
    pub proofs: ProofsConfig,
    /// How many proofs are remembered.
    pub remembered: u32,
    /// The longest packet of the underlay, without its link header.
    pub mtu: u32,
    /// How many packets of one tenant are handed over in a second.
    pub reports: u32,
}

/// A tenant's packet that did not go into the tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsent {
    /// Where from, how long, and why.
    pub header: UnsentHeader,
    /// The frame; shorter than it was if it did not fit.
    pub frame: Vec<u8>,
}

/// The loaded programs and their tables.
pub struct Svtep {
    attachments: Attachments,
    /// What it is as a verifier.
    pub proofs: Proofs,
    /// Segments, and what is known to have none.
    pub segments: Table<SegmentKey, SegmentEntry>,
    /// What came in and may be answered, under the keys that the answers' segments will have.
    pub consents: Table<SegmentKey, Consent>,
    tenants: Table<u32, Tenant>,
    deliveries: Table<u32, Delivery>,
    counters: Table<u32, u64>,
    unsent: MapHandle,
}

impl Svtep {
    /// Loads the programs for this underlay. With `pins`, tables and attachments that an earlier process left are taken
    /// over.
    pub fn load(underlay: &Interface, settings: &Settings, pins: Option<Pins>) -> Result<Self> {
        object::log_through_tracing();
        let mut opened = Opened::new("svtep", OBJECT)?;
        opened.configure(&settings.proofs)?;
        let turns = tc::kernel_version() >= TURNS_SINCE;
        let config =
            SvtepConfig { underlay: underlay.index, mtu: settings.mtu, turns: turns.into(), reports: settings.reports };
        opened.set_constant(".rodata.svtep", &config)?;
        make_room(&mut opened, settings.remembered)?;
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
            proofs: Proofs::of(object, settings.proofs.epoch_length)?,
            attachments: Attachments::new(pins),
        })
    }

    /// Takes tunnelled packets from the underlay's interface from here on.
    pub fn attach_underlay(&mut self, interface: &Interface) -> Result<()> {
        self.attachments.attach(self.proofs.object(), interface, Spot::Underlay)
    }

    /// Takes an interface's tenant in: from here on all that it sends goes into the tunnel or nowhere.
    pub fn attach_tenant(&mut self, interface: &Interface, vni: Vni, id: InterfaceId) -> Result<()> {
        self.admit_tenant(interface.index, vni, id, interface.is_cable_elsewhere()?)?;
        self.attachments.attach(self.proofs.object(), interface, Spot::Tenant)
    }

    /// Has the programs know a tenant by its interface's index; `peer` as in [`Delivery::new`].
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

    /// Nothing is delivered to the tenant any more. What it sends is dropped as long as its interface is there.
    pub fn remove_tenant(&self, interface: u32, id: InterfaceId) -> Result<()> {
        self.deliveries.set(&id.0.into(), &Delivery::NONE)?;
        self.tenants.remove(&interface)?;
        self.forget_segments(|key| key.interface == interface)
    }

    /// The same for all tenants but those behind these interfaces by these ids, of whom an earlier process may have left some.
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

    /// Lets go of a tenant's interface, which may be gone.
    pub fn release_tenant(&mut self, interface: &Interface) {
        self.attachments.forget(interface, Spot::Tenant);
    }

    /// Makes the attachments outlive this process, and lets go of pinned ones that are no longer wanted.
    pub fn last(&self) -> Result<()> {
        self.attachments.last()
    }

    /// Detaches from every interface. What tenants send then meets this host's own stack.
    pub fn detach(&mut self) {
        self.attachments.detach();
    }

    /// Calls `each` with every packet that is handed over, and `lost` with the number of those that found no room, whenever
    /// the result is polled. It covers the cores that are on.
    pub fn unsent(
        &self,
        mut each: impl FnMut(Unsent) + Send + 'static,
        lost: impl FnMut(u64) + Send + 'static,
    ) -> Result<PerfBuffer<'static>> {
        let each = move |header, frame| each(Unsent { header, frame });
        handed::open(&self.unsent, |header: &UnsentHeader| header.length as usize, each, lost)
    }

    /// Packets counted so far under one of [`svtep_counter`].
    pub fn count(&self, index: u32) -> Result<u64> {
        self.counters.sum_at(index)
    }

    /// Every counter, by its index.
    pub fn counts(&self) -> Result<Vec<u64>> {
        (0..svtep_counter::COUNT).map(|index| self.count(index)).collect()
    }

    /// What the program at a tenant's interface does with one frame.
    pub fn run_out(&self, frame: &[u8]) -> Result<Ran> {
        run::run(&self.proofs.object().runnable(Spot::Tenant.program())?, frame, 1)
    }

    /// The same with a super-packet of segments with this much payload.
    pub fn run_out_segments(&self, frame: &[u8], segment: u32) -> Result<Ran> {
        run::run_segments(&self.proofs.object().runnable(Spot::Tenant.program())?, frame, segment)
    }

    /// What the program at the underlay's interface does with one frame.
    pub fn run_in(&self, frame: &[u8]) -> Result<Ran> {
        run::run(&self.proofs.object().runnable(Spot::Underlay.program())?, frame, 1)
    }
}
