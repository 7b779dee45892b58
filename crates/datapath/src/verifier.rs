//! The verifier's programs: admission at XDP or tc ingress, and its upkeep.

use crate::clock;
use crate::flows::Flows;
use crate::hook::{Attached, Choice, Hook, Mode, Spot, favours_tc};
use crate::interface::Interface;
use crate::object::{self, Loaded, Opened, Pins};
use crate::protected::Protected;
use crate::replays;
use crate::revoked::Revoked;
use crate::revoked_holders::RevokedHolders;
use crate::ring;
use crate::run::{self, Ran, Runner};
use crate::stack;
use crate::table::Table;
use anyhow::{Context, Result};
use libbpf_rs::{MapHandle, Program, ProgramInput, RingBuffer};
use std::collections::HashMap;
use std::fs;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use wire::Holder;
use wire::map::{
    AccountUse, DropSample, EpochKey, FlowKey, FlowNews, Forgotten, GrantClass, GrantUse, LsGrant, ReplayBucket,
    SecretEntry, Services, ToldFlow, VerifierConfig, counter,
};
use zerocopy::{FromBytes, IntoBytes};

static XDP: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/verifier.bpf.o"));
static TC: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/verifier_tc.bpf.o"));
/// Both objects define the same tables, so that flows outlive a change of the hook.
const PINNED: [&str; 25] = [
    "protected4",
    "protected6",
    "open4",
    "open6",
    "epoch_keys",
    "clock",
    "forgotten",
    "revoked",
    "revoked_classes",
    "revoked_holders",
    "flows4",
    "flows6",
    "grants",
    "accounts",
    "fragments",
    "open_fragments",
    "outbound",
    "outbound_of",
    "replays",
    "ls_secrets",
    "ls_grants",
    "ls_since",
    "flow_news",
    "classes",
    "counters",
];

/// Clocks that differ by less are the same, read twice; nanoseconds.
const STEP_MIN: u64 = 10_000_000;

/// Addresses of a gateway's inside with flows of their own, at most.
const INSIDE_MAX: u32 = 65_536;

/// How many entries the verifier's tables have room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Admitted flows of each family, 120 bytes each for IPv4 and 144 for IPv6.
    pub flows: u32,
    /// Grants in use, 112 bytes each.
    pub grants: u32,
    /// Accounts with flows or tokens, 72 bytes each.
    pub accounts: u32,
    /// Buckets for eight tokens each, 64 bytes; a power of two.
    pub replay_buckets: u32,
    /// Revoked grants, and as many sessions that ended.
    pub revoked: u32,
    /// Pairs of the scheme of LS, 8 KiB each.
    pub pairs: u32,
}

impl Default for Sizes {
    fn default() -> Self {
        Self { flows: 262_144, grants: 65_536, accounts: 65_536, replay_buckets: 65_536, revoked: 65_536, pairs: 1 }
    }
}

/// What one pass of upkeep did.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)]
#[repr(C)]
pub struct Swept {
    /// The time it went by, Unix seconds.
    pub now: u32,
    /// The time up to which it forgot what had ended.
    pub ended: u32,
    /// Flows forgotten because they were idle or their grant is revoked.
    pub flows: u32,
    /// Flows left that the inside of a gateway has opened.
    pub outbound: u32,
}

/// The loaded programs and their maps.
pub struct Verifier {
    object: Loaded,
    pins: Option<Pins>,
    hook: Hook,
    /// The programs for tc besides those for XDP, where each interface gets what suits it.
    at_tc: Option<Loaded>,
    attached: HashMap<String, Attached>,
    /// Why interfaces have the hook that they have.
    reasons: HashMap<String, String>,
    /// Admitted flows.
    pub flows: Arc<Flows>,
    /// Grants in use, by handle.
    pub grants: Table<u64, GrantUse>,
    /// What accounts use, by number.
    pub accounts: Table<u32, AccountUse>,
    /// Revoked grants.
    pub revoked: Revoked,
    /// Sessions that ended.
    pub revoked_holders: RevokedHolders,
    /// Keys, by the low 8 bits of their epoch.
    pub epoch_keys: Table<u32, EpochKey>,
    /// Application server secrets, by the low 8 bits of their epoch.
    pub ls_secrets: Table<u32, SecretEntry>,
    /// Pairs of the scheme of LS, by their handle.
    pub ls_grants: Table<u64, LsGrant>,
    /// When the table of pairs was new, Unix seconds, at 0.
    pub ls_since: Table<u32, u64>,
    /// Classes of grants, by handle; only where packets are marked.
    pub classes: Option<Table<u64, GrantClass>>,
    /// What is protected.
    pub protected: Protected,
    /// First fragments of admitted flows: when they came; the ports' place holds the identification.
    pub fragments: Table<FlowKey, u32>,
    /// First fragments of datagrams to ports that nobody protects: their later fragments pass.
    pub open_fragments: Table<FlowKey, u32>,
    /// Tokens seen, by bucket.
    pub replays: Table<u32, ReplayBucket>,
    clock: Table<u32, u64>,
    forgotten: Table<u32, Forgotten>,
    outbound: Table<u32, u32>,
    counters: Table<u32, u64>,
    samples: MapHandle,
    flow_news: MapHandle,
    config: VerifierConfig,
}

impl Verifier {
    /// Loads the programs for this hook. With `pins`, tables that an earlier process left are taken over, whatever its
    /// hook was.
    pub fn load(hook: Hook, config: VerifierConfig, sizes: Sizes, pins: Option<Pins>) -> Result<Self> {
        let object = match hook {
            Hook::Xdp => XDP,
            Hook::Tc => TC,
        };
        Self::load_object(object, hook, config, sizes, pins)
    }

    /// Loads the programs that this choice takes; those for different hooks share all tables.
    ///
    /// # Errors
    /// If the kernel does not take them.
    pub fn load_for(choice: Choice, config: VerifierConfig, sizes: Sizes, pins: Option<Pins>) -> Result<Self> {
        let Choice::Only(hook) = choice else {
            let mut verifier = Self::load(Hook::Xdp, config, sizes, pins)?;
            let mut opened = Opened::new("verifier", TC)?;
            opened.configure(&verifier.config)?;
            // Classes are for marks, which are made at tc alone.
            let shared: Vec<_> = PINNED.into_iter().filter(|name| *name != "classes").chain(["samples"]).collect();
            opened.share(&verifier.object, &shared)?;
            verifier.at_tc = Some(opened.load("verifier")?);
            return Ok(verifier);
        };
        Self::load(hook, config, sizes, pins)
    }

    /// Loads an object file with the verifier's maps and programs, and perhaps more: for benches.
    #[doc(hidden)]
    pub fn load_object(
        object: &[u8],
        hook: Hook,
        mut config: VerifierConfig,
        sizes: Sizes,
        pins: Option<Pins>,
    ) -> Result<Self> {
        object::log_through_tracing();
        anyhow::ensure!(sizes.replay_buckets.is_power_of_two(), "replay buckets must be a power of two");
        config.replay_mask = sizes.replay_buckets - 1;
        let mut opened = Opened::new("verifier", object)?;
        opened.configure(&config)?;
        opened.set_constant(".rodata.stack", &stack::layout())?;
        opened.resize("flows4", sizes.flows)?;
        opened.resize("flows6", sizes.flows)?;
        opened.resize("grants", sizes.grants)?;
        opened.resize("accounts", sizes.accounts)?;
        opened.resize("replays", sizes.replay_buckets)?;
        opened.resize("revoked", sizes.revoked)?;
        opened.resize("revoked_holders", sizes.revoked)?;
        opened.resize("ls_grants", sizes.pairs)?;
        opened.resize("outbound_of", config.max_outbound.clamp(1, INSIDE_MAX))?;
        if config.mark_mask != 0 {
            anyhow::ensure!(hook == Hook::Tc, "packets are marked at tc only");
            opened.resize("classes", sizes.grants)?;
        }
        let outgrown = pins.as_ref().and_then(|pins| replays::outgrown(pins, sizes.replay_buckets));
        if let Some(pins) = &pins {
            opened.carry(&["replays"]);
            opened.pin(pins, &PINNED)?;
        }
        let object = opened.load("verifier")?;
        let loaded = Self {
            flows: Arc::new(Flows::new(object.table("flows4")?, object.table("flows6")?)),
            grants: object.table("grants")?,
            accounts: object.table("accounts")?,
            revoked: Revoked::new(&object)?,
            revoked_holders: RevokedHolders::new(&object)?,
            epoch_keys: object.table("epoch_keys")?,
            ls_secrets: object.table("ls_secrets")?,
            ls_grants: object.table("ls_grants")?,
            ls_since: object.table("ls_since")?,
            classes: (config.mark_mask != 0).then(|| object.table("classes")).transpose()?,
            protected: Protected::new(&object)?,
            fragments: object.table("fragments")?,
            open_fragments: object.table("open_fragments")?,
            replays: object.table("replays")?,
            clock: object.table("clock")?,
            forgotten: object.table("forgotten")?,
            outbound: object.table("outbound")?,
            counters: object.table("counters")?,
            samples: object.map("samples")?,
            flow_news: object.map("flow_news")?,
            config,
            object,
            pins,
            hook,
            at_tc: None,
            attached: HashMap::new(),
            reasons: HashMap::new(),
        };
        if let Some(old) = outgrown {
            loaded.carry_over(old)?;
        }
        Ok(loaded)
    }

    /// Takes the tokens over that an outgrown table remembers.
    fn carry_over(&self, old: MapHandle) -> Result<()> {
        let (offset, mut forgotten) = (self.clock.get(&0)?.unwrap_or_default(), self.forgotten()?);
        replays::carry_over(old, &self.replays, offset, &mut forgotten)?;
        self.note(&forgotten)
    }

    /// Where the programs hook in; where each interface has its own hook, XDP unless all are at tc.
    pub fn hook(&self) -> Hook {
        let all_at_tc = !self.attached.is_empty() && self.attached.values().all(|attached| attached.is_at(Hook::Tc));
        if self.at_tc.is_some() && all_at_tc { Hook::Tc } else { self.hook }
    }

    /// Why an attached interface has the hook that it has.
    pub fn reason(&self, interface: &str) -> &str {
        self.reasons.get(interface).map_or("", String::as_str)
    }

    fn admission(&self, hook: Hook) -> Result<Program<'_>> {
        let object = self.at_tc.as_ref().filter(|_| hook == Hook::Tc).unwrap_or(&self.object);
        object.program("admit")
    }

    /// The settings that the programs were loaded with.
    pub fn config(&self) -> &VerifierConfig {
        &self.config
    }

    /// The key of an epoch, if it is held.
    pub fn key(&self, epoch: wire::Epoch) -> Option<wire::VerifierKey> {
        let entry = self.epoch_keys.get(&u32::from(epoch.on_wire())).ok().flatten();
        entry.filter(|entry| entry.epoch != 0 && entry.epoch == epoch.0).map(|entry| verifier_key(&entry))
    }

    /// Attaches to `interface`; takes over what an earlier process attached and pinned. If that hangs on another hook, it
    /// goes once this one is attached and pinned: in between a packet passes both, and a SYN, whose token the first takes
    /// out, is dropped by the second and sent again.
    pub fn attach(&mut self, interface: &Interface) -> Result<Mode> {
        anyhow::ensure!(
            interface.link_header == 14,
            "interface {} has no Ethernet header; the verifier can't protect it",
            interface.name
        );
        let (attached, reason) = match self.at_tc {
            None => (self.attach_at(self.hook, interface)?, "chosen in the settings".to_owned()),
            Some(_) => {
                match favours_tc(interface).map_or_else(|| self.attach_natively(interface), |why| Ok(Err(why)))? {
                    Ok(native) => (native, "its driver runs XDP".to_owned()),
                    Err(why) => (self.attach_at(Hook::Tc, interface)?, why),
                }
            }
        };
        if let Some(pins) = &self.pins {
            pins.remove_unfinished(&interface.name);
        }
        let mode = attached.mode(interface)?;
        self.attached.insert(interface.name.clone(), attached);
        self.reasons.insert(interface.name.clone(), reason);
        Ok(mode)
    }

    /// What an earlier process attached to `interface` and pinned.
    fn pinned_on(&self, interface: &Interface) -> Option<Attached> {
        let pins = self.pins.as_ref()?;
        Attached::open_on(&pins.link(&interface.name), &interface.name, interface)
    }

    fn attach_at(&self, hook: Hook, interface: &Interface) -> Result<Attached> {
        let program = self.admission(hook)?;
        match self.pinned_on(interface) {
            Some(mut old) if old.is_at(hook) => {
                old.update(program.as_fd())?;
                Ok(old)
            }
            old => self.put(Attached::new(program.as_fd(), interface, Spot::Admission(hook))?, old, interface),
        }
    }

    /// Attaches at XDP in the driver; gives why not, where the driver does not run it.
    fn attach_natively(&self, interface: &Interface) -> Result<Result<Attached, String>> {
        let program = self.admission(Hook::Xdp)?;
        let old = self.pinned_on(interface);
        if let Some(mut old) = old.filter(|old| old.mode(interface).is_ok_and(|mode| mode == Mode::Native)) {
            old.update(program.as_fd())?;
            return Ok(Ok(old));
        }
        match Attached::natively(program.as_fd(), interface) {
            Ok(native) => self.put(native, self.pinned_on(interface), interface).map(Ok),
            Err(error) => Ok(Err(format!("its driver does not run XDP: {}", error.root_cause()))),
        }
    }

    /// Pins an attachment in the place of an old one, which goes.
    fn put(&self, attached: Attached, old: Option<Attached>, interface: &Interface) -> Result<Attached> {
        if let (Some(old), Some(pins)) = (old, &self.pins) {
            pins.put_link(&interface.name, attached.to_pin())?;
            old.detach();
        } else if let Some(pins) = &self.pins {
            // A pin of a link whose interface is gone.
            let _ = fs::remove_file(pins.link(&interface.name));
        }
        Ok(attached)
    }

    /// Makes the attachments outlive this process.
    pub fn pin_links(&self) -> Result<()> {
        let Some(pins) = &self.pins else { return Ok(()) };
        for (name, attached) in &self.attached {
            if !pins.link(name).exists() {
                pins.put_link(name, attached.to_pin())?;
            }
        }
        Ok(())
    }

    /// Takes the attachments of `old` over, pinned or not, without a packet between the programs. Both were loaded for one choice.
    /// Attachments whose interface is gone are let go of.
    pub fn succeed(&mut self, old: &mut Self) -> Result<()> {
        let mut gone = Vec::new();
        for (name, attached) in &mut old.attached {
            let program = self.admission(if attached.is_at(Hook::Xdp) { Hook::Xdp } else { Hook::Tc })?;
            match attached.update(program.as_fd()) {
                Err(_) if attached.is_gone() => gone.push(name.clone()),
                done => done.with_context(|| format!("cannot take over interface {name}"))?,
            }
        }
        for name in gone {
            old.forget(&name);
        }
        self.attached.extend(old.attached.drain());
        self.reasons.extend(old.reasons.drain());
        Ok(())
    }

    /// Lets go of one interface, which may be gone.
    pub fn forget(&mut self, name: &str) {
        if let Some(attached) = self.attached.remove(name) {
            attached.detach();
        }
        if let Some(pins) = &self.pins {
            let _ = fs::remove_file(pins.link(name));
        }
    }

    /// Detaches from every interface.
    pub fn detach(&mut self) {
        for name in self.attached.keys().cloned().collect::<Vec<_>>() {
            self.forget(&name);
        }
    }

    /// Makes these prefixes (address, length, services) the protected ones, and no others.
    pub fn protect(&self, entries: &[(IpAddr, u8, Services)]) -> Result<()> {
        self.protected.replace(entries)
    }

    /// Tells the programs what to add to their clock for Unix time, in nanoseconds (see [`crate::clock`]), and notes before what
    /// they forget if it jumps by that.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn set_clock(&self, offset: u64) -> Result<()> {
        let before = self.clock.get(&0)?.unwrap_or_default();
        if before != 0 && before.abs_diff(offset) >= STEP_MIN {
            let mut forgotten = self.forgotten()?;
            forgotten.jump(clock::coarse_to(before), clock::coarse_to(offset));
            self.note(&forgotten)?;
        }
        self.clock.set(&0, &offset)
    }

    /// What the programs have forgotten because their clock jumped.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn forgotten(&self) -> Result<Forgotten> {
        Ok(self.forgotten.get(&0)?.unwrap_or_default())
    }

    fn note(&self, forgotten: &Forgotten) -> Result<()> {
        if *forgotten == self.forgotten()? { Ok(()) } else { self.forgotten.set(&0, forgotten) }
    }

    /// Makes clock and memory what they are where nobody has set the clock yet: for tests, which begin anew.
    #[doc(hidden)]
    pub fn forget_clock(&self) -> Result<()> {
        self.clock.set(&0, &0)?;
        self.forgotten.set(&0, &Forgotten::default())
    }

    /// Packets counted so far under an outcome: a drop reason's number or one of [`counter`].
    pub fn count(&self, outcome: u32) -> Result<u64> {
        self.counters.sum_at(outcome)
    }

    /// Flows there are that the inside of a gateway opened.
    pub fn outbound(&self) -> Result<u32> {
        Ok(self.outbound.get(&0)?.unwrap_or_default())
    }

    /// Every counter, by its index.
    pub fn counts(&self) -> Result<Vec<u64>> {
        (0..counter::COUNT).map(|index| self.count(index)).collect()
    }

    /// Forgets flows that are idle or revoked, and grants and revocations that have ended, at `now` (Unix seconds).
    pub fn sweep(&self, now: u32) -> Result<Swept> {
        let program = self.object.runnable("sweep")?;
        let mut forgotten = self.forgotten()?;
        let ended = forgotten.sweep_time(now);
        self.note(&forgotten)?;
        let mut swept = Swept { now, ended, flows: 0, outbound: 0 };
        let input = ProgramInput { context_in: Some(swept.as_mut_bytes()), ..ProgramInput::default() };
        let result = program.test_run(input).context("cannot run the sweep program")?;
        anyhow::ensure!(result.return_value == 0, "the sweep program failed: {}", result.return_value);
        self.revoked.tidy()?;
        self.revoked_holders.tidy()?;
        Ok(swept)
    }

    /// Counts the flows of accounts anew, where user space has removed some. Flows that come and go meanwhile may be missed.
    pub fn recount_accounts(&self) -> Result<()> {
        let mut flows: HashMap<u32, u32> = HashMap::new();
        for (_, flow) in self.flows.entries().into_iter().filter(|(_, flow)| flow.by_grant() && flow.holder != 0) {
            *flows.entry(Holder(flow.holder).account()).or_default() += 1;
        }
        for (account, used) in self.accounts.entries() {
            let flows = flows.get(&account).copied().unwrap_or_default();
            if flows != used.flows {
                self.accounts.set(&account, &AccountUse { flows, ..used })?;
            }
        }
        Ok(())
    }

    /// Brings a flow in that another gateway told of; gives one of [`wire::map::taken`].
    pub fn take_over(&self, mut told: ToldFlow) -> Result<u32> {
        let program = self.object.runnable("take_over")?;
        let input = ProgramInput { context_in: Some(told.as_mut_bytes()), ..ProgramInput::default() };
        Ok(program.test_run(input).context("cannot run the program that takes flows over")?.return_value)
    }

    /// Calls `each` with every flow that begins, if the programs were loaded to tell, whenever the result is polled.
    pub fn flow_news(&self, each: impl FnMut(FlowNews) + Send + 'static) -> Result<RingBuffer<'static>> {
        ring::open(&self.flow_news, each)
    }

    /// Calls `each` with every drop sample from here on, whenever the result is polled.
    pub fn samples(&self, each: impl FnMut(DropSample) + Send + 'static) -> Result<RingBuffer<'static>> {
        ring::open(&self.samples, each)
    }

    /// The loaded object, whose tables a gateway's programs share.
    pub(crate) fn object(&self) -> &Loaded {
        &self.object
    }

    /// A map beyond the verifier's own: for benches.
    #[doc(hidden)]
    pub fn table<K, V>(&self, name: &str) -> Result<Table<K, V>>
    where
        K: IntoBytes + FromBytes + zerocopy::Immutable,
        V: IntoBytes + FromBytes + zerocopy::Immutable,
    {
        self.object.table(name)
    }

    /// What a program beyond the verifier's own does with one frame: for benches.
    #[doc(hidden)]
    pub fn run_program(&self, name: &str, frame: &[u8], repeat: u32) -> Result<Ran> {
        run::run(&self.object.runnable(name)?, frame, repeat)
    }

    /// What the program does with one frame; what its code means says [`Hook::code`].
    pub fn run(&self, frame: &[u8], repeat: u32) -> Result<Ran> {
        run::run(&self.object.runnable("admit")?, frame, repeat)
    }

    /// A program, for several threads at once: for tests.
    #[doc(hidden)]
    pub fn runner(&self, name: &str) -> Result<Runner> {
        let program = self.object.program(name)?;
        Ok(Runner::new(program.as_fd().try_clone_to_owned().context("cannot copy a descriptor")?))
    }

    /// What the program at tc does with a packet that has this mark, and the mark that it then has.
    pub fn run_marked(&self, frame: &[u8], mark: u32) -> Result<(Ran, u32)> {
        run::run_marked(&self.object.runnable("admit")?, frame, mark)
    }

    /// What the program at tc does with a super-packet of segments with this much payload.
    pub fn run_segments(&self, frame: &[u8], segment: u32) -> Result<Ran> {
        run::run_segments(&self.object.runnable("admit")?, frame, segment)
    }
}

/// What the epoch's key looks like to the kernel program.
pub fn epoch_key(epoch: wire::Epoch, key: &wire::VerifierKey) -> EpochKey {
    EpochKey { epoch: epoch.0, siphash: *key.of(wire::Suite::Siphash), aes: *key.of(wire::Suite::AesCmac) }
}

/// The epoch's key as the kernel program holds it.
fn verifier_key(entry: &EpochKey) -> wire::VerifierKey {
    let mut bytes = [0; 32];
    bytes[..16].copy_from_slice(&entry.siphash);
    bytes[16..].copy_from_slice(&entry.aes);
    wire::VerifierKey::new(bytes)
}
