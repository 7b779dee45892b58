//! The program of a verifier of proofs (wire.md §8), and its tables.

use crate::hook::Attached;
use crate::object::{self, Loaded, Opened, Pins};
use crate::protected::Protected;
use crate::run::{self, Ran};
use crate::table::Table;
use anyhow::Result;
use std::collections::HashMap;
use std::net::IpAddr;
use wire::map::{EpochKey, ProofKeySlot, ProofsConfig, Service, Services, WithdrawalKey, counter};
use wire::packet::UDP;
use wire::{Epoch, ProofKey, Suite, Vni, geneve};
use zerocopy::{FromBytes, Immutable, IntoBytes};

mod attach;

static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/proofs.bpf.o"));

/// How many proofs are remembered, unless more or fewer are asked for; 176 bytes each.
pub const REMEMBERED: u32 = 65_536;

/// The tables that outlive a process.
const PINNED: [&str; 10] = [
    "protected4",
    "protected6",
    "open4",
    "open6",
    "proof_keys",
    "withdrawn",
    "remembered",
    "generation",
    "clock",
    "counters",
];

/// The loaded program and its tables.
pub struct Proofs {
    object: Loaded,
    pins: Option<Pins>,
    attached: HashMap<String, Attached>,
    endpoints: Protected,
    keys: Table<ProofKeySlot, EpochKey>,
    withdrawn: Table<WithdrawalKey, u32>,
    generation: Table<u32, u32>,
    clock: Table<u32, u64>,
    counters: Table<u32, u64>,
}

impl Proofs {
    /// Loads the program with room for so many remembered proofs.
    pub fn load(config: ProofsConfig, remembered: u32) -> Result<Self> {
        Self::load_object(OBJECT, config, remembered)
    }

    /// Loads an object file with the program's maps, and perhaps other programs: for benches.
    #[doc(hidden)]
    pub fn load_object(object: &[u8], config: ProofsConfig, remembered: u32) -> Result<Self> {
        Self::open(object, config, remembered, None)
    }

    fn open(object: &[u8], config: ProofsConfig, remembered: u32, pins: Option<Pins>) -> Result<Self> {
        object::log_through_tracing();
        let mut opened = Opened::new("proofs", object)?;
        opened.configure(&config)?;
        opened.resize("remembered", remembered)?;
        if let Some(pins) = &pins {
            opened.pin(pins, &PINNED)?;
        }
        let mut loaded = Self::of(opened.load("proofs")?)?;
        loaded.pins = pins;
        Ok(loaded)
    }

    /// The tables of an object with the verifier's maps.
    pub(crate) fn of(object: Loaded) -> Result<Self> {
        Ok(Self {
            endpoints: Protected::new(&object)?,
            keys: object.table("proof_keys")?,
            withdrawn: object.table("withdrawn")?,
            generation: object.table("generation")?,
            clock: object.table("clock")?,
            counters: object.table("counters")?,
            object,
            pins: None,
            attached: HashMap::new(),
        })
    }

    /// Makes these prefixes (address, length) the endpoints that it stands before, and no others.
    pub fn stand_before(&self, endpoints: &[(IpAddr, u8)]) -> Result<()> {
        let mut services = Services { count: 1, spans: [Service::default(); wire::map::SERVICES_MAX] };
        let span = &mut services.spans[0];
        (span.protocol, span.first_port, span.last_port) = (UDP, geneve::PORT, geneve::PORT);
        let entries: Vec<_> = endpoints.iter().map(|(address, length)| (*address, *length, services)).collect();
        self.endpoints.replace(&entries)?;
        self.forget()
    }

    /// Gives it an authority's key for an epoch.
    pub fn learn(&self, authority: IpAddr, epoch: Epoch, key: &ProofKey) -> Result<()> {
        let entry = EpochKey { epoch: epoch.0, siphash: *key.of(Suite::Siphash), aes: *key.of(Suite::AesCmac) };
        self.keys.set(&ProofKeySlot::new(authority, epoch.on_wire()), &entry)?;
        self.forget()
    }

    /// Voids segments of this receiver's, from one sender or all, that end at `until` or before.
    pub fn withdraw(&self, vni: Vni, receiver: IpAddr, sender: Option<IpAddr>, until: u32) -> Result<()> {
        let key = WithdrawalKey::new(vni, receiver, sender);
        let known = self.withdrawn.get(&key)?.unwrap_or_default();
        self.withdrawn.set(&key, &until.max(known))?;
        self.forget()
    }

    /// Forgets withdrawals that void only what has ended at `now`.
    pub fn sweep(&self, now: u32) -> Result<()> {
        let over = self.withdrawn.entries().into_iter().filter(|(_, until)| *until <= now);
        over.into_iter().try_for_each(|(key, _)| self.withdrawn.remove(&key))
    }

    /// How many withdrawals it holds.
    pub fn withdrawals(&self) -> usize {
        self.withdrawn.keys().len()
    }

    /// Remembered proofs count no more: each is checked again when it comes.
    pub fn forget(&self) -> Result<()> {
        let generation = self.generation.get(&0)?.unwrap_or_default();
        self.generation.set(&0, &generation.wrapping_add(1))
    }

    /// Tells the program what to add to its clock for Unix time, in nanoseconds (see [`crate::clock`]).
    pub fn set_clock(&self, offset: u64) -> Result<()> {
        self.clock.set(&0, &offset)
    }

    /// Every counter, by its index: a drop reason's number, or one of [`counter`], of which `FLOW` counts packets whose proof
    /// was remembered, and `TOKEN` those whose proof was computed.
    pub fn counts(&self) -> Result<Vec<u64>> {
        (0..counter::COUNT).map(|index| self.counters.sum_at(index)).collect()
    }

    pub(crate) fn object(&self) -> &Loaded {
        &self.object
    }

    /// A map beyond the program's own: for benches.
    #[doc(hidden)]
    pub fn table<K, V>(&self, name: &str) -> Result<Table<K, V>>
    where
        K: IntoBytes + FromBytes + Immutable,
        V: IntoBytes + FromBytes + Immutable,
    {
        self.object.table(name)
    }

    /// What another program does with one frame: for benches.
    #[doc(hidden)]
    pub fn run_program(&self, name: &str, frame: &[u8], repeat: u32) -> Result<Ran> {
        run::run(&self.object.runnable(name)?, frame, repeat)
    }

    /// What the program does with one frame.
    pub fn run(&self, frame: &[u8], repeat: u32) -> Result<Ran> {
        run::run(&self.object.runnable("prove")?, frame, repeat)
    }
}
