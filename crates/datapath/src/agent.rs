//! The agent's programs: token insertion at tc egress, and recording of answers at tc ingress.

use crate::attachments::{Attachments, Pins, Spot, remove_filter};
use crate::handed;
use crate::interface::Interface;
use crate::object::{self, Loaded, Opened};
use crate::protected::Protected;
use crate::run::{self, Ran};
use crate::table::Table;
use crate::tc::Attachment;
use anyhow::{Context, Result};
use libbpf_rs::{MapHandle, PerfBuffer};
use std::net::IpAddr;
use std::os::fd::AsFd;
use wire::map::{
    AgentConfig, AuthorityEnd, Conversation, FlowKey, GrantEntry, GrantSlot, Owner, QueuedHeader, Services, TakenKey,
    agent_counter,
};

static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/agent.bpf.o"));
const PINNED: [&str; 16] = [
    "protected4",
    "protected6",
    "open4",
    "open6_networks",
    "open6_addresses",
    "clock",
    "nonces",
    "ls_nonces",
    "owners",
    "grants",
    "conversations",
    "injector",
    "counters",
    "key_authorities",
    "key_flows",
    "keys_taken",
];
const SPOTS: [Spot; 2] = [Spot::Insertion, Spot::Notice];

/// A packet that waits for its grant.
#[derive(Clone, Debug)]
pub struct Queued {
    /// Subject and destination of the packet, and its original length.
    pub header: QueuedHeader,
    /// The frame; shorter than `header.length` if it did not fit.
    pub frame: Vec<u8>,
}

/// The programs of one interface, and the maps that all interfaces share through their pins.
pub struct Agent {
    object: Loaded,
    attachments: Attachments,
    /// Grants that are ready for use.
    pub grants: Table<GrantSlot, GrantEntry>,
    /// Subjects by owner of the socket.
    pub owners: Table<Owner, u32>,
    /// Protected prefixes.
    pub protected: Protected,
    /// UDP flows.
    pub conversations: Table<FlowKey, Conversation>,
    /// Number of used nonces per pair, by the pair's handle.
    pub ls_nonces: Table<u64, u32>,
    /// Authorities that transfer keys in band.
    pub key_authorities: Table<AuthorityEnd, u32>,
    /// Flows on which keys are accepted, with the time when they were opened, in seconds since boot.
    pub key_flows: Table<FlowKey, u32>,
    clock: Table<u32, u64>,
    nonces: Table<u32, u32>,
    injector: Table<u32, u64>,
    counters: Table<u32, u64>,
    queued: MapHandle,
}

impl Agent {
    /// Loads the programs for links whose header has `link_header` bytes; `cgroups` says whether an owner is a cgroup.
    /// With `pins`, all loads share the pinned maps, also with an earlier process.
    pub fn load(link_header: u32, cgroups: bool, attachment: Attachment, pins: Option<Pins>) -> Result<Self> {
        Self::load_overhearing(link_header, cgroups, false, attachment, pins)
    }

    /// Loads the programs like [`Self::load`]; if they `overhear`, they also pass copies of name servers' answers to user
    /// space, as queued packets of subject 0.
    pub fn load_overhearing(
        link_header: u32,
        cgroups: bool,
        overhear: bool,
        attachment: Attachment,
        pins: Option<Pins>,
    ) -> Result<Self> {
        object::log_through_tracing();
        let mut opened = Opened::new("agent", OBJECT)?;
        opened.configure(&AgentConfig {
            link_header,
            tcx: (attachment == Attachment::Tcx).into(),
            match_cgroups: cgroups.into(),
            overhear: overhear.into(),
        })?;
        if let Some(pins) = &pins {
            opened.pin(pins, &PINNED)?;
        }
        let object = opened.load("agent")?;
        Ok(Self {
            grants: object.table("grants")?,
            owners: object.table("owners")?,
            protected: Protected::new(&object)?,
            conversations: object.table("conversations")?,
            clock: object.table("clock")?,
            ls_nonces: object.table("ls_nonces")?,
            key_authorities: object.table("key_authorities")?,
            key_flows: object.table("key_flows")?,
            nonces: object.table("nonces")?,
            injector: object.table("injector")?,
            counters: object.table("counters")?,
            queued: object.map("queued")?,
            object,
            attachments: Attachments::by(attachment, pins),
        })
    }

    /// Attaches to `interface`, or takes over an earlier process's attachment.
    pub fn attach(&mut self, interface: &Interface) -> Result<()> {
        for spot in SPOTS {
            let program = self.object.program(spot.program())?;
            self.attachments.attach(program.as_fd(), interface, spot)?;
            self.attachments.pin()?;
        }
        Ok(())
    }

    /// Detaches from every interface.
    pub fn detach(&mut self) {
        self.attachments.detach();
    }

    /// Detaches from an interface that is gone or was renamed.
    pub fn forget(&mut self, interface: &Interface) {
        SPOTS.iter().for_each(|spot| self.attachments.forget(&interface.name, *spot));
    }

    /// Makes exactly these prefixes (address, length, services) the protected ones.
    pub fn protect(&self, entries: &[(IpAddr, u8, Services)]) -> Result<()> {
        self.protected.replace(entries)
    }

    /// Sets the offset from the programs' clock to Unix time, in nanoseconds (see [`crate::clock`]).
    pub fn set_clock(&self, offset: u64) -> Result<()> {
        self.clock.set(&0, &offset)
    }

    /// Returns the offset that the programs add to their clock; 0 if none was set.
    pub fn clock(&self) -> Result<u64> {
        Ok(self.clock.get(&0)?.unwrap_or_default())
    }

    /// Sets the next nonce. The caller sets a random one when the maps are new, so that a restart within the same
    /// second repeats no nonce.
    pub fn set_nonce(&self, nonce: u32) -> Result<()> {
        self.nonces.set(&0, &nonce)
    }

    /// Returns the next nonce.
    pub fn nonce(&self) -> Result<u32> {
        Ok(self.nonces.get(&0)?.unwrap_or_default())
    }

    /// Lets the socket with this cookie send packets on behalf of the subject in their mark.
    pub fn set_injector(&self, cookie: u64) -> Result<()> {
        self.injector.set(&0, &cookie)
    }

    /// Returns the number of packets counted so far under one of [`agent_counter`].
    pub fn count(&self, index: u32) -> Result<u64> {
        self.counters.sum_at(index)
    }

    /// Returns all counters, by index.
    pub fn counts(&self) -> Result<Vec<u64>> {
        (0..agent_counter::COUNT).map(|index| self.count(index)).collect()
    }

    /// Returns the buffer of packets that wait for a grant.
    pub fn queued(&self) -> Result<QueuedPackets> {
        MapHandle::try_from(&self.queued).map(QueuedPackets).context("cannot open the buffer of queued packets")
    }

    /// Returns the keys that arrived in band, by their pairs' handles.
    pub fn keys_taken(&self) -> Result<Table<u64, TakenKey>> {
        self.object.table("keys_taken")
    }

    /// Runs the egress program on one frame.
    pub fn run(&self, frame: &[u8], repeat: u32) -> Result<Ran> {
        run::run(&self.object.runnable(Spot::Insertion.program())?, frame, repeat)
    }

    /// Runs the ingress program on one frame.
    pub fn run_answer(&self, frame: &[u8], repeat: u32) -> Result<Ran> {
        run::run(&self.object.runnable(Spot::Notice.program())?, frame, repeat)
    }
}

/// The buffer of packets that wait for a grant, from one load's programs.
pub struct QueuedPackets(MapHandle);

impl QueuedPackets {
    /// Calls `each` with every packet, and `lost` with the number of packets that did not fit, whenever the result is
    /// polled. The result covers the cores that are online: drop it and open another when that has changed.
    pub fn open(
        &self,
        mut each: impl FnMut(Queued) + Send + 'static,
        lost: impl FnMut(u64) + Send + 'static,
    ) -> Result<PerfBuffer<'static>> {
        let each = move |header, frame| each(Queued { header, frame });
        handed::open(&self.0, |header: &QueuedHeader| header.length as usize, each, lost)
    }
}

/// Returns the name of the interface that a pinned link is on.
pub fn interface_of(link: &str) -> &str {
    link.rsplit_once('-').map_or(link, |(interface, _)| interface)
}

/// Removes the clsact filters from an interface, whichever process attached them: filters can't be pinned, and outlive
/// processes by themselves.
pub fn remove_filters(interface: &Interface) -> Result<()> {
    object::log_through_tracing();
    SPOTS.iter().try_for_each(|spot| remove_filter(interface, *spot))
}
