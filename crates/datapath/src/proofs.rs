//! The program of a verifier of proofs (wire.md §8), and its tables.

use crate::attachments::{Attachments, Pins};
use crate::object::{self, Loaded, Opened};
use crate::protected::Protected;
use crate::run::{self, Ran};
use crate::table::Table;
use anyhow::Result;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use wire::map::{ClassSet, EpochKey, ProofKeySlot, ProofsConfig, Service, Services, WithdrawalKey, counter};
use wire::packet::UDP;
use wire::{Epoch, ProofKey, Suite, Vni, geneve};
use zerocopy::{FromBytes, Immutable, IntoBytes};

mod attach;

static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/proofs.bpf.o"));

/// Default number of proofs that the program remembers, at 128 bytes each.
pub const REMEMBERED: u32 = 65_536;

/// The tables that outlive a process. Remembered proofs do not: the program verifies each proof again when it arrives.
const PINNED: [&str; 11] = [
    "protected4",
    "protected6",
    "open4",
    "open6_networks",
    "open6_addresses",
    "proof_keys",
    "withdrawn",
    "withdrawn4",
    "generation",
    "clock",
    "counters",
];

/// Sets the sizes of a program's maps for this number of remembered proofs.
pub(crate) fn make_room(opened: &mut Opened, remembered: u32) -> Result<()> {
    let cores = u32::try_from(libbpf_rs::num_possible_cpus()?)?;
    let places = 1 << (remembered / cores).max(1).ilog2();
    opened.set_constant(".rodata.places", &places)?;
    opened.resize("remembered", places * cores)
}

/// The loaded program that checks proofs, and its tables.
pub struct Proofs {
    object: Loaded,
    attachments: Attachments,
    endpoints: Protected,
    keys: Table<ProofKeySlot, EpochKey>,
    epoch_length: u32,
    withdrawn: Table<WithdrawalKey, u32>,
    /// The classes of IPv4 receivers that contain a receiver that has possibly withdrawn consent.
    withdrawn4: Table<u32, ClassSet>,
    /// Held while a withdrawal changes `withdrawn` and `withdrawn4`. If a class were missing from `withdrawn4` in
    /// between, packets with void segments would pass.
    withdrawing: Mutex<()>,
    generation: Table<u32, u32>,
    clock: Table<u32, u64>,
    counters: Table<u32, u64>,
}

impl Proofs {
    /// Loads the program with room for about `remembered` proofs. The number is approximate because the room on each
    /// core is a power of two.
    ///
    /// # Errors
    ///
    /// Fails if the kernel rejects a program, or a map can't be made or taken over.
    pub fn load(config: ProofsConfig, remembered: u32) -> Result<Self> {
        Self::load_object(OBJECT, config, remembered)
    }

    /// Loads the program from another object file, which has the same maps and possibly further programs. For benches.
    ///
    /// # Errors
    ///
    /// Fails if the kernel rejects a program, or a map can't be made or taken over.
    #[doc(hidden)]
    pub fn load_object(object: &[u8], config: ProofsConfig, remembered: u32) -> Result<Self> {
        Self::open(object, config, remembered, None)
    }

    fn open(object: &[u8], config: ProofsConfig, remembered: u32, pins: Option<Pins>) -> Result<Self> {
        object::log_through_tracing();
        let mut opened = Opened::new("proofs", object)?;
        opened.configure(&config)?;
        make_room(&mut opened, remembered)?;
        if let Some(pins) = &pins {
            opened.pin(pins, &PINNED)?;
        }
        let mut loaded = Self::of(opened.load("proofs")?, config.epoch_length)?;
        loaded.attachments = Attachments::new(pins);
        Ok(loaded)
    }

    /// Opens the tables of a loaded object that has the verifier's maps.
    pub(crate) fn of(object: Loaded, epoch_length: u32) -> Result<Self> {
        let proofs = Self {
            endpoints: Protected::new(&object)?,
            keys: object.table("proof_keys")?,
            epoch_length: epoch_length.max(1),
            withdrawn: object.table("withdrawn")?,
            withdrawn4: object.table("withdrawn4")?,
            withdrawing: Mutex::new(()),
            generation: object.table("generation")?,
            clock: object.table("clock")?,
            counters: object.table("counters")?,
            object,
            attachments: Attachments::new(None),
        };
        proofs.classify(proofs.withdrawn.entries())?;
        Ok(proofs)
    }

    /// Makes the verifier check the proofs of packets to endpoints in exactly these prefixes. An entry consists of
    /// address and prefix length.
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses access to a map.
    pub fn stand_before(&self, endpoints: &[(IpAddr, u8)]) -> Result<()> {
        let mut services = Services { count: 1, spans: [Service::default(); wire::map::SERVICES_MAX] };
        let span = &mut services.spans[0];
        (span.protocol, span.first_port, span.last_port) = (UDP, geneve::PORT, geneve::PORT);
        let entries: Vec<_> = endpoints.iter().map(|(address, length)| (*address, *length, services)).collect();
        self.endpoints.replace(&entries)?;
        self.forget()
    }

    /// Adds the key for the proofs that an authority issues in one epoch.
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses access to a map.
    pub fn learn(&self, authority: IpAddr, epoch: Epoch, key: &ProofKey) -> Result<()> {
        let entry = EpochKey { epoch: epoch.0, siphash: *key.of(Suite::Siphash), aes: *key.of(Suite::AesCmac) };
        self.keys.set(&ProofKeySlot::new(authority, epoch.on_wire()), &entry)?;
        self.forget()
    }

    /// Records a withdrawal of consent. The path segments from `sender` to `receiver` become void if they expire at
    /// `until` (Unix seconds) or earlier. If `sender` is `None`, this applies to all senders.
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses access to a map.
    pub fn withdraw(&self, vni: Vni, receiver: IpAddr, sender: Option<IpAddr>, until: u32) -> Result<()> {
        let _alone = self.withdrawing.lock().unwrap_or_else(PoisonError::into_inner);
        let key = WithdrawalKey::new(vni, receiver, sender);
        let known = self.withdrawn.get(&key)?.unwrap_or_default();
        self.withdrawn.set(&key, &until.max(known))?;
        // INVARIANT: the set contains the class before the generation changes. The program ignores proofs that it
        // remembered under an earlier generation, and so looks up the withdrawals again.
        if receiver.is_ipv4() {
            let mut classes = self.withdrawn4.get(&0)?.unwrap_or(ClassSet::NOTHING);
            classes.insert(ClassSet::class_of(receiver));
            self.withdrawn4.set(&0, &classes)?;
        }
        self.forget()
    }

    /// Removes withdrawals that affect only segments that have expired by `now`, and keys of epochs before the previous
    /// one.
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses access to a map.
    pub fn sweep(&self, now: u32) -> Result<()> {
        let _alone = self.withdrawing.lock().unwrap_or_else(PoisonError::into_inner);
        let (over, live): (Vec<_>, Vec<_>) = self.withdrawn.entries().into_iter().partition(|(_, until)| *until <= now);
        over.iter().try_for_each(|(key, _)| self.withdrawn.remove(key))?;
        self.classify(live)?;
        let ends = |epoch: u64| epoch.saturating_add(2).saturating_mul(self.epoch_length.into());
        let keys = self.keys.entries().into_iter().filter(|(_, key)| ends(key.epoch) <= u64::from(now));
        keys.into_iter().try_for_each(|(slot, _)| self.keys.remove(&slot))
    }

    /// Replaces the set of classes by the classes of the receivers in these withdrawals.
    fn classify(&self, withdrawals: Vec<(WithdrawalKey, u32)>) -> Result<()> {
        let mut classes = ClassSet::NOTHING;
        let receivers = withdrawals.iter().filter_map(|(key, _)| key.receiver4());
        receivers.for_each(|receiver| classes.insert(ClassSet::class_of(receiver.into())));
        self.withdrawn4.set(&0, &classes)
    }

    /// Returns the number of proof keys in the table.
    pub fn keys(&self) -> usize {
        self.keys.keys().len()
    }

    /// Returns the number of withdrawals in the table.
    pub fn withdrawals(&self) -> usize {
        self.withdrawn.keys().len()
    }

    /// Makes the program forget the proofs that it remembers. When one of these proofs arrives again, the program
    /// verifies it again.
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses access to a map.
    pub fn forget(&self) -> Result<()> {
        let generation = self.generation.get(&0)?.unwrap_or_default();
        self.generation.set(&0, &generation.wrapping_add(1))
    }

    /// Sets the offset from the program's clock to Unix time, in nanoseconds (see [`crate::clock`]).
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses access to a map.
    pub fn set_clock(&self, offset: u64) -> Result<()> {
        if crate::clock::put(&self.clock, offset)? {
            crate::clock::wait_for_tick();
        }
        Ok(())
    }

    /// Returns all counters, by index: a drop reason's number, or one of [`counter`]. In particular, `FLOW` is the
    /// number of packets whose proof was remembered, and `TOKEN` the number of packets whose proof was computed.
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses access to a map.
    pub fn counts(&self) -> Result<Vec<u64>> {
        self.counters.sums(counter::COUNT)
    }

    pub(crate) fn object(&self) -> &Loaded {
        &self.object
    }

    /// Opens a map of the loaded object that is none of the maps of [`Proofs`]. For benches.
    ///
    /// # Errors
    ///
    /// Fails if there is no such map, or if its keys do not have the size of `K`, or its values do not have the size of
    /// `V`.
    #[doc(hidden)]
    pub fn table<K, V>(&self, name: &str) -> Result<Table<K, V>>
    where
        K: IntoBytes + FromBytes + Immutable,
        V: IntoBytes + FromBytes + Immutable,
    {
        self.object.table(name)
    }

    /// Runs another program of the loaded object on one frame. For benches.
    ///
    /// # Errors
    ///
    /// Fails if the kernel does not run the program.
    #[doc(hidden)]
    pub fn run_program(&self, name: &str, frame: &[u8], repeat: u32) -> Result<Ran> {
        run::run(&self.object.runnable(name)?, frame, repeat)
    }

    /// Runs another program of the loaded object on a frame as if the frame came from a network card. The kernel then
    /// forwards, delivers or drops the frame as the program decided. For benches.
    ///
    /// # Errors
    ///
    /// Fails if the kernel does not run the program.
    #[doc(hidden)]
    pub fn run_live(&self, name: &str, frame: &[u8], repeat: u32) -> Result<()> {
        run::run_live(&self.object.runnable(name)?, frame, repeat)
    }

    /// Runs the program on one frame.
    ///
    /// # Errors
    ///
    /// Fails if the kernel does not run the program.
    pub fn run(&self, frame: &[u8], repeat: u32) -> Result<Ran> {
        run::run(&self.object.runnable("prove")?, frame, repeat)
    }
}
