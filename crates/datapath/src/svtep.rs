//! A tunnel endpoint's programs (wire.md §8). They put tenants' packets, together with path segments and proofs, into
//! the tunnel. They verify the packets that arrive from the tunnel, and deliver them to tenants.
//!
//! A tunnel endpoint is also a verifier of proofs: its keys, withdrawals and own address are set through
//! [`Svtep::proofs`].

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

/// Settings with which the programs are loaded.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Settings for verifying proofs of incoming packets.
    pub proofs: ProofsConfig,
    /// Number of proofs that the programs remember.
    pub remembered: u32,
    /// MTU of the underlay: length of the longest packet in bytes, without the link header.
    pub mtu: u32,
    /// Maximum number of packets of one tenant that the programs pass to user space per second.
    pub reports: u32,
}

/// A tenant's packet that did not go into the tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsent {
    /// Interface and length of the packet, and the reason why it was not sent.
    pub header: UnsentHeader,
    /// The frame. It is shortened if it did not fit into the buffer.
    pub frame: Vec<u8>,
}

/// The loaded programs and their tables.
pub struct Svtep {
    attachments: Attachments,
    /// The tables with which the endpoint verifies packets from the tunnel.
    pub proofs: Proofs,
    /// Path segments, and decisions not to send. The key describes the packets to which an entry applies.
    pub segments: Table<SegmentKey, SegmentEntry>,
    /// Received path segments that permit tenants to answer. The key of an entry is the key of the return segment in
    /// `segments`.
    pub consents: Table<SegmentKey, Consent>,
    tenants: Table<u32, Tenant>,
    deliveries: Table<u32, Delivery>,
    counters: Table<u32, u64>,
    unsent: MapHandle,
}

impl Svtep {
    /// Loads the programs for this underlay. With `pins`, takes over the tables and attachments that an earlier process
    /// pinned.
    ///
    /// # Errors
    ///
    /// Fails if the kernel rejects a program, or a map can't be made or taken over.
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

    /// Attaches to the underlay's interface, through which packets from the tunnel arrive.
    ///
    /// # Errors
    ///
    /// Fails if the kernel does not attach the program.
    pub fn attach_underlay(&mut self, interface: &Interface) -> Result<()> {
        self.attach(interface, Spot::Underlay)
    }

    /// Attaches to a tenant's interface: from now on, all packets from there enter the tunnel or are dropped.
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses access to a map, or does not attach the program.
    pub fn attach_tenant(&mut self, interface: &Interface, vni: Vni, id: InterfaceId) -> Result<()> {
        self.admit_tenant(interface.index, vni, id, interface.is_cable_elsewhere()?)?;
        self.attach(interface, Spot::Tenant)
    }

    fn attach(&mut self, interface: &Interface, spot: Spot) -> Result<()> {
        let program = self.proofs.object().program(spot.program())?;
        self.attachments.attach(program.as_fd(), interface, spot).map(drop)
    }

    /// Registers a tenant by the index of its interface. `peer` has the same meaning as in [`Delivery::new`].
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses access to a map.
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

    /// Stops delivery of packets to the tenant. From now on, packets from the tenant are dropped, until
    /// [`Self::release_tenant`] detaches from the tenant's interface.
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses access to a map.
    pub fn remove_tenant(&self, interface: u32, id: InterfaceId) -> Result<()> {
        self.deliveries.set(&id.0.into(), &Delivery::NONE)?;
        self.tenants.remove(&interface)?;
        self.forget_segments(|key| key.interface == interface)
    }

    /// Removes all tenants except those with these interfaces and ids, because an earlier process can have left tenants
    /// that no longer exist.
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses access to a map.
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

    /// Detaches from a tenant's interface, which need not exist any more.
    pub fn release_tenant(&mut self, interface: &Interface) {
        self.attachments.forget(&interface.name, Spot::Tenant);
    }

    /// Pins the attachments, so that they outlive this process. Removes pinned attachments that this process did not
    /// make or take over.
    ///
    /// # Errors
    ///
    /// Fails if an attachment can't be pinned, or if a pin can't be removed.
    pub fn last(&self) -> Result<()> {
        self.attachments.pin()?;
        self.attachments.remove_others()
    }

    /// Detaches from every interface. From then on, packets from tenants reach this host's own stack.
    pub fn detach(&mut self) {
        self.attachments.detach();
    }

    /// Opens the buffer of packets that the programs pass to user space. Whenever the caller polls the result, `each`
    /// is called with every packet in the buffer, and `lost` with the number of packets that did not fit into it. The
    /// result covers the cores that are online at the time of this call.
    ///
    /// # Errors
    ///
    /// Fails if the buffer can't be opened.
    pub fn unsent(
        &self,
        mut each: impl FnMut(Unsent) + Send + 'static,
        lost: impl FnMut(u64) + Send + 'static,
    ) -> Result<PerfBuffer<'static>> {
        let each = move |header, frame| each(Unsent { header, frame });
        handed::open(&self.unsent, |header: &UnsentHeader| header.length as usize, each, lost)
    }

    /// Returns the value of a counter; `index` is one of [`svtep_counter`].
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses access to a map.
    pub fn count(&self, index: u32) -> Result<u64> {
        self.counters.sum_at(index)
    }

    /// Returns all counters. The position of a counter is its index in [`svtep_counter`].
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses access to a map.
    pub fn counts(&self) -> Result<Vec<u64>> {
        self.counters.sums(svtep_counter::COUNT)
    }

    /// Runs the program at a tenant's interface on one frame.
    ///
    /// # Errors
    ///
    /// Fails if the kernel does not run the program.
    pub fn run_out(&self, frame: &[u8]) -> Result<Ran> {
        run::run(&self.proofs.object().runnable(Spot::Tenant.program())?, frame, 1)
    }

    /// Runs the program at a tenant's interface on a super-packet. `segment` is the number of payload bytes of each of
    /// its segments.
    ///
    /// # Errors
    ///
    /// Fails if the kernel does not run the program.
    pub fn run_out_segments(&self, frame: &[u8], segment: u32) -> Result<Ran> {
        run::run_segments(&self.proofs.object().runnable(Spot::Tenant.program())?, frame, segment)
    }

    /// Runs the program at the underlay's interface on one frame.
    ///
    /// # Errors
    ///
    /// Fails if the kernel does not run the program.
    pub fn run_in(&self, frame: &[u8]) -> Result<Ran> {
        run::run(&self.proofs.object().runnable(Spot::Underlay.program())?, frame, 1)
    }
}
