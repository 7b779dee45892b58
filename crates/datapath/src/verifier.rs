//! The verifier's programs: admission at XDP or tc ingress, and the sweep.

use crate::attachments::{Attachments, Pins, Spot};
use crate::clock;
use crate::flows::Flows;
use crate::hook::{Choice, Hook, Mode};
use crate::interface::Interface;
use crate::object::{self, Loaded, Opened};
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
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use wire::Holder;
use wire::map::{
    AccountUse, DropSample, EpochKey, FlowKey, FlowNews, Forgotten, GrantClass, GrantUse, LsGrant, ReceivedFlow,
    ReplayBucket, SecretEntry, Services, VerifierConfig, counter,
};
use zerocopy::{FromBytes, IntoBytes};

static XDP: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/verifier.bpf.o"));
static TC: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/verifier_tc.bpf.o"));
/// Both objects define the same tables, so that flows outlive a change of the hook.
pub(crate) const PINNED: [&str; 26] = [
    "protected4",
    "protected6",
    "open4",
    "open6_networks",
    "open6_addresses",
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

/// If two offsets differ by less, in nanoseconds, the clock was not set in between.
const STEP_MIN: u64 = 10_000_000;

/// Largest number of addresses inside a gateway that are counted separately.
const INSIDE_MAX: u32 = 65_536;

/// Capacities of the verifier's tables, in entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Admitted flows of each family, 120 bytes each for IPv4 and 144 for IPv6.
    pub flows: u32,
    /// Grants in use, 120 bytes each.
    pub grants: u32,
    /// Accounts with flows or tokens, 72 bytes each.
    pub accounts: u32,
    /// Buckets for eight tokens each, 64 bytes; a power of two.
    pub replay_buckets: u32,
    /// Revoked grants, and as many ended sessions.
    pub revoked: u32,
    /// Pairs of the LS scheme, 8 KiB each.
    pub pairs: u32,
}

impl Default for Sizes {
    fn default() -> Self {
        Self { flows: 262_144, grants: 65_536, accounts: 65_536, replay_buckets: 65_536, revoked: 65_536, pairs: 1 }
    }
}

/// The result of one pass of the sweep.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)]
#[repr(C)]
pub struct Swept {
    /// The current time that the sweep used, Unix seconds.
    pub now: u32,
    /// The sweep removed entries that expired before this time, Unix seconds.
    pub ended: u32,
    /// Flows removed because they were idle or their grant is revoked.
    pub flows: u32,
    /// Flows left that the inside of a gateway has opened.
    pub outbound: u32,
}

/// The loaded programs and their maps.
pub struct Verifier {
    object: Loaded,
    hook: Hook,
    /// The tc programs, loaded in addition to those for XDP if each interface gets its own hook.
    at_tc: Option<Loaded>,
    attachments: Attachments,
    /// The reason for each interface's hook, by the interface's name.
    reasons: HashMap<String, String>,
    /// Admitted flows.
    pub flows: Arc<Flows>,
    /// Grants in use, by handle.
    pub grants: Table<u64, GrantUse>,
    /// Accounts' use of shared tables, by number.
    pub accounts: Table<u32, AccountUse>,
    /// Revoked grants.
    pub revoked: Revoked,
    /// Ended sessions.
    pub revoked_holders: RevokedHolders,
    /// Keys, by the low 8 bits of their epoch.
    pub epoch_keys: Table<u32, EpochKey>,
    /// Application server secrets, by the low 8 bits of their epoch.
    pub ls_secrets: Table<u32, SecretEntry>,
    /// Pairs of the LS scheme, by handle.
    pub ls_grants: Table<u64, LsGrant>,
    /// The time when the table of pairs was created, Unix seconds, at index 0.
    pub ls_since: Table<u32, u64>,
    /// Classes of grants, by handle; only if packets are marked.
    pub classes: Option<Table<u64, GrantClass>>,
    /// Protected prefixes.
    pub protected: Protected,
    /// Arrival times of first fragments of admitted flows; the key holds the identification in place of the ports.
    pub fragments: Table<FlowKey, u32>,
    /// First fragments of datagrams to unprotected ports: their later fragments pass.
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
    /// Loads the programs for this hook. With `pins`, takes over the tables that an earlier process left, whatever its
    /// hook was.
    pub fn load(hook: Hook, config: VerifierConfig, sizes: Sizes, pins: Option<Pins>) -> Result<Self> {
        let object = match hook {
            Hook::Xdp => XDP,
            Hook::Tc => TC,
        };
        Self::load_object(object, hook, config, sizes, pins)
    }

    /// Loads the programs for this choice; those for different hooks share all tables.
    ///
    /// # Errors
    /// If the kernel rejects them.
    pub fn load_for(choice: Choice, config: VerifierConfig, sizes: Sizes, pins: Option<Pins>) -> Result<Self> {
        let Choice::Only(hook) = choice else {
            let mut verifier = Self::load(Hook::Xdp, config, sizes, pins)?;
            let mut opened = Opened::new("verifier", TC)?;
            opened.configure(&verifier.config)?;
            // Classes are for marks, which only tc sets.
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
        anyhow::ensure!(
            sizes.replay_buckets.is_power_of_two(),
            "the number of replay buckets must be a power of two, not {}",
            sizes.replay_buckets
        );
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
            anyhow::ensure!(hook == Hook::Tc, "packets can be marked only with `hook = \"tc\"`");
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
            hook,
            at_tc: None,
            attachments: Attachments::new(pins),
            reasons: HashMap::new(),
        };
        if let Some(old) = outgrown {
            loaded.carry_over(old)?;
        }
        Ok(loaded)
    }

    /// Carries over the tokens in an outgrown replay table.
    fn carry_over(&self, old: MapHandle) -> Result<()> {
        let (offset, mut forgotten) = (self.clock.get(&0)?.unwrap_or_default(), self.forgotten()?);
        replays::carry_over(old, &self.replays, offset, &mut forgotten)?;
        self.note(&forgotten)
    }

    /// Returns the programs' hook; if each interface has its own, XDP unless all are at tc.
    pub fn hook(&self) -> Hook {
        if self.at_tc.is_some() && self.attachments.are_at_tc() { Hook::Tc } else { self.hook }
    }

    /// Returns the reason for an attached interface's hook.
    pub fn reason(&self, interface: &str) -> &str {
        self.reasons.get(interface).map_or("", String::as_str)
    }

    /// Returns the settings that the programs were loaded with.
    pub fn config(&self) -> &VerifierConfig {
        &self.config
    }

    /// Returns the key of an epoch, if the verifier has it.
    pub fn key(&self, epoch: wire::Epoch) -> Option<wire::VerifierKey> {
        let entry = self.epoch_keys.get(&u32::from(epoch.on_wire())).ok().flatten();
        entry.filter(|entry| entry.epoch != 0 && entry.epoch == epoch.0).map(|entry| verifier_key(&entry))
    }

    /// Attaches to `interface`, or takes over an earlier process's pinned attachment.
    pub fn attach(&mut self, interface: &Interface) -> Result<Mode> {
        anyhow::ensure!(
            interface.link_header == 14,
            "interface {} has no Ethernet header, so the verifier cannot protect it: remove it from the setting \
             `interface`",
            interface.name
        );
        let choice = if self.at_tc.is_some() { Choice::Auto } else { Choice::Only(self.hook) };
        let program = |hook| admission(&self.object, self.at_tc.as_ref(), hook);
        let (mode, reason) = self.attachments.admit(choice, program, interface)?;
        self.reasons.insert(interface.name.clone(), reason);
        Ok(mode)
    }

    /// Makes the attachments outlive this process.
    pub fn pin_links(&self) -> Result<()> {
        self.attachments.pin()
    }

    /// Takes over all attachments of `old`, whether they are pinned or not. This verifier's programs replace the old
    /// ones in place, so no packet passes unchecked. Both verifiers must have been loaded for the same hook setting
    /// ([`Choice`]). Attachments whose interface no longer exists are dropped.
    pub fn succeed(&mut self, old: &mut Self) -> Result<()> {
        let program = |hook| admission(&self.object, self.at_tc.as_ref(), hook);
        self.attachments.succeed(&mut old.attachments, program)?;
        self.reasons.extend(old.reasons.drain());
        Ok(())
    }

    /// Detaches from one interface, which may be gone.
    pub fn forget(&mut self, name: &str) {
        self.attachments.forget(name, Spot::Admission(self.hook));
    }

    /// Detaches from every interface.
    pub fn detach(&mut self) {
        self.attachments.detach();
    }

    /// Makes exactly these prefixes (address, length, services) the protected ones.
    pub fn protect(&self, entries: &[(IpAddr, u8, Services)]) -> Result<()> {
        self.protected.replace(entries)
    }

    /// Sets the offset from the programs' clock to Unix time, in nanoseconds (see [`crate::clock`]). If that makes the
    /// clock jump, first records the times that the programs can no longer account for.
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

    /// Returns the times that the programs can no longer account for because their clock jumped.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn forgotten(&self) -> Result<Forgotten> {
        Ok(self.forgotten.get(&0)?.unwrap_or_default())
    }

    fn note(&self, forgotten: &Forgotten) -> Result<()> {
        if *forgotten == self.forgotten()? { Ok(()) } else { self.forgotten.set(&0, forgotten) }
    }

    /// Resets clock and forgotten times to their state before the clock was first set: for tests that start afresh.
    #[doc(hidden)]
    pub fn forget_clock(&self) -> Result<()> {
        self.clock.set(&0, &0)?;
        self.forgotten.set(&0, &Forgotten::default())
    }

    /// Returns the number of packets counted so far under an outcome: a drop reason's number or one of [`counter`].
    pub fn count(&self, outcome: u32) -> Result<u64> {
        self.counters.sum_at(outcome)
    }

    /// Returns the number of flows that the inside of a gateway has opened.
    pub fn outbound(&self) -> Result<u32> {
        Ok(self.outbound.get(&0)?.unwrap_or_default())
    }

    /// Returns all counters, by index.
    pub fn counts(&self) -> Result<Vec<u64>> {
        (0..counter::COUNT).map(|index| self.count(index)).collect()
    }

    /// Removes flows that are idle or revoked, and grants and revocations that have expired, at `now` (Unix seconds).
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

    /// Recounts the flows and grants of accounts after user space has removed some. Flows and grants that begin or end
    /// concurrently may be missed.
    pub fn recount_accounts(&self) -> Result<()> {
        let mut counts: HashMap<u32, (u32, u32)> = HashMap::new();
        for (_, flow) in self.flows.entries().into_iter().filter(|(_, flow)| flow.has_grant() && flow.holder != 0) {
            counts.entry(Holder(flow.holder).account()).or_default().0 += 1;
        }
        for (_, grant) in self.grants.entries().into_iter().filter(|(_, grant)| grant.holder != 0) {
            counts.entry(Holder(grant.holder).account()).or_default().1 += 1;
        }
        for (account, used) in self.accounts.entries() {
            let (flows, grants) = counts.get(&account).copied().unwrap_or_default();
            if (flows, grants) != (used.flows, used.grants) {
                self.accounts.set(&account, &AccountUse { flows, grants, ..used })?;
            }
        }
        Ok(())
    }

    /// Takes over a flow that a peer gateway reported; returns one of [`wire::map::taken`].
    pub fn take_over(&self, mut received: ReceivedFlow) -> Result<u32> {
        let program = self.object.runnable("take_over")?;
        let input = ProgramInput { context_in: Some(received.as_mut_bytes()), ..ProgramInput::default() };
        Ok(program.test_run(input).context("cannot run the program that takes over flows")?.return_value)
    }

    /// Opens the ring of flows that begin. Whenever the result is polled, it calls `each` with every such flow, if the
    /// programs were loaded to report flows.
    pub fn flow_news(&self, each: impl FnMut(FlowNews) + Send + 'static) -> Result<RingBuffer<'static>> {
        ring::open(&[&self.flow_news], each)
    }

    /// Opens the ring of drop samples. Whenever the result is polled, it calls `each` with every sample from now on.
    pub fn samples(&self, each: impl FnMut(DropSample) + Send + 'static) -> Result<RingBuffer<'static>> {
        ring::open(&[&self.samples], each)
    }

    /// Returns the loaded object, whose tables a gateway's programs share.
    pub(crate) fn object(&self) -> &Loaded {
        &self.object
    }

    /// Opens a map beyond the verifier's own: for benches.
    #[doc(hidden)]
    pub fn table<K, V>(&self, name: &str) -> Result<Table<K, V>>
    where
        K: IntoBytes + FromBytes + zerocopy::Immutable,
        V: IntoBytes + FromBytes + zerocopy::Immutable,
    {
        self.object.table(name)
    }

    /// Runs a program beyond the verifier's own on one frame: for benches.
    #[doc(hidden)]
    pub fn run_program(&self, name: &str, frame: &[u8], repeat: u32) -> Result<Ran> {
        run::run(&self.object.runnable(name)?, frame, repeat)
    }

    /// Runs the program on one frame; see [`Hook::code`] for the meaning of its code.
    pub fn run(&self, frame: &[u8], repeat: u32) -> Result<Ran> {
        run::run(&self.object.runnable("admit")?, frame, repeat)
    }

    /// Returns a program in a form that several threads can run concurrently: for tests.
    #[doc(hidden)]
    pub fn runner(&self, name: &str) -> Result<Runner> {
        let program = self.object.program(name)?;
        Ok(Runner::new(program.as_fd().try_clone_to_owned().context("cannot duplicate a file descriptor")?))
    }

    /// Runs the tc program on a packet with this mark, and returns the resulting mark as well.
    pub fn run_marked(&self, frame: &[u8], mark: u32) -> Result<(Ran, u32)> {
        run::run_marked(&self.object.runnable("admit")?, frame, mark)
    }

    /// Runs the tc program on a super-packet whose segments have this much payload.
    pub fn run_segments(&self, frame: &[u8], segment: u32) -> Result<Ran> {
        run::run_segments(&self.object.runnable("admit")?, frame, segment)
    }
}

/// Returns the program that admits packets at this hook.
fn admission<'a>(object: &'a Loaded, at_tc: Option<&'a Loaded>, hook: Hook) -> Result<Program<'a>> {
    at_tc.filter(|_| hook == Hook::Tc).unwrap_or(object).program("admit")
}

/// Converts an epoch's key to the kernel program's form.
pub fn epoch_key(epoch: wire::Epoch, key: &wire::VerifierKey) -> EpochKey {
    EpochKey { epoch: epoch.0, siphash: *key.of(wire::Suite::Siphash), aes: *key.of(wire::Suite::AesCmac) }
}

/// Converts an epoch's key from the kernel program's form.
fn verifier_key(entry: &EpochKey) -> wire::VerifierKey {
    let mut bytes = [0; 32];
    bytes[..16].copy_from_slice(&entry.siphash);
    bytes[16..].copy_from_slice(&entry.aes);
    wire::VerifierKey::new(bytes)
}
