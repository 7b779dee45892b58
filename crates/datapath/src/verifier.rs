//! The verifier's programs: the programs for admission, at XDP or at tc ingress, and the program for the sweep.

mod chain;
mod running;

pub use chain::Link;

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
use crate::stack;
use crate::table::Table;
use anyhow::{Context, Result};
use libbpf_rs::{MapHandle, Program, ProgramInput, RingBuffer};
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use wire::Holder;
use wire::map::{
    AccountUse, DropSample, EpochKey, FlowKey, FlowNews, Forgotten, GrantClass, GrantUse, LsGrant, OptionalService,
    ReceivedFlow, ReplayBucket, SecretEntry, Services, VerifierConfig, counter,
};
use zerocopy::{FromBytes, IntoBytes};

static XDP: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/verifier.bpf.o"));
static TC: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/verifier_tc.bpf.o"));
/// Names of the tables that are pinned. The objects for both hooks define the same tables, so flows survive a change of
/// hook.
pub(crate) const PINNED: [&str; 28] = [
    "protected4",
    "protected6",
    "open4",
    "open6_networks",
    "open6_addresses",
    "optional",
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
    "cores",
];

/// Maximum number of addresses inside a gateway that are counted separately.
const INSIDE_MAX: u32 = 65_536;

/// Sizes of the verifier's tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Maximum number of admitted flows of each address family. An entry takes 120 bytes for IPv4 and 144 for IPv6.
    pub flows: u32,
    /// Maximum number of grants in use. An entry takes 120 bytes.
    pub grants: u32,
    /// Maximum number of accounts with flows or tokens. An entry takes 72 bytes.
    pub accounts: u32,
    /// Number of buckets of the replay table, a power of two. A bucket holds eight tokens and takes 64 bytes.
    pub replay_buckets: u32,
    /// Maximum number of revoked grants. The table of ended sessions has the same maximum.
    pub revoked: u32,
    /// Maximum number of pairs of the suite `sha224`. An entry takes 8 KiB.
    pub pairs: u32,
}

impl Default for Sizes {
    fn default() -> Self {
        Self { flows: 262_144, grants: 65_536, accounts: 65_536, replay_buckets: 65_536, revoked: 65_536, pairs: 1 }
    }
}

/// Result of one pass of the sweep.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)]
#[repr(C)]
pub struct Swept {
    /// The time of the sweep, Unix seconds.
    pub now: u32,
    /// The sweep removed only entries that had expired before this time, Unix seconds. It is earlier than `now` after a
    /// jump of the clock.
    pub ended: u32,
    /// Number of flows removed because they were idle, or because their grant is revoked.
    pub flows: u32,
    /// Number of the remaining flows that the inside of a gateway has opened.
    pub outbound: u32,
}

/// The loaded programs and their maps.
pub struct Verifier {
    object: Loaded,
    hook: Hook,
    /// The tc programs. They are loaded next to the XDP programs if different interfaces can have different hooks.
    at_tc: Option<Loaded>,
    attachments: Attachments,
    /// The reason for the hook of each interface, by the interface's name.
    reasons: HashMap<String, String>,
    /// The table of admitted flows.
    pub flows: Arc<Flows>,
    /// Grants in use, by handle.
    pub grants: Table<u64, GrantUse>,
    /// The resources that accounts use, by account number.
    pub accounts: Table<u32, AccountUse>,
    /// The table of revoked grants.
    pub revoked: Revoked,
    /// The table of ended sessions.
    pub revoked_holders: RevokedHolders,
    /// Verifier keys, by the low 8 bits of their epochs.
    pub epoch_keys: Table<u32, EpochKey>,
    /// Application server secrets, by the low 8 bits of their epochs.
    pub ls_secrets: Table<u32, SecretEntry>,
    /// Pairs of the LS scheme, by handle.
    pub ls_grants: Table<u64, LsGrant>,
    /// The time when the table of pairs was created, Unix seconds. The only entry has the index 0.
    pub ls_since: Table<u32, u64>,
    /// Classes of grants, by handle; `None` if the verifier does not mark packets.
    pub classes: Option<Table<u64, GrantClass>>,
    /// The maps of protected prefixes.
    pub protected: Protected,
    /// Optional receivers. The values have no meaning.
    pub optional: Table<OptionalService, u32>,
    /// Arrival times of the first fragments of packets in admitted flows. In the key, the packet's identification takes
    /// the place of the ports.
    pub fragments: Table<FlowKey, u32>,
    /// Arrival times of the first fragments of datagrams to unprotected ports. The later fragments of these datagrams
    /// pass.
    pub open_fragments: Table<FlowKey, u32>,
    /// The replay table: used tokens, in buckets.
    pub replays: Table<u32, ReplayBucket>,
    clock: Table<u32, u64>,
    forgotten: Table<u32, Forgotten>,
    outbound: Table<u32, u32>,
    counters: Table<u32, u64>,
    /// The fast path's state on each core. The first number counts packets of open flows.
    cores: Table<u32, [u64; 3]>,
    samples: MapHandle,
    flow_news: MapHandle,
    config: VerifierConfig,
}

impl Verifier {
    /// Loads the programs for this hook. With `pins`, takes over the tables that an earlier process pinned, even if the
    /// earlier process used the other hook.
    ///
    /// # Errors
    ///
    /// Fails if the kernel rejects a program, or a map can't be made or taken over.
    pub fn load(hook: Hook, config: VerifierConfig, sizes: Sizes, pins: Option<Pins>) -> Result<Self> {
        let object = match hook {
            Hook::Xdp => XDP,
            Hook::Tc => TC,
        };
        Self::load_object(object, hook, config, sizes, pins)
    }

    /// Loads the programs for each hook that `choice` permits. Programs for different hooks share all tables.
    ///
    /// # Errors
    ///
    /// Fails if the kernel rejects a program, or a map can't be made or taken over.
    pub fn load_for(choice: Choice, config: VerifierConfig, sizes: Sizes, pins: Option<Pins>) -> Result<Self> {
        let Choice::Only(hook) = choice else {
            let mut verifier = Self::load(Hook::Xdp, config, sizes, pins.clone())?;
            let mut opened = Opened::new("verifier", TC)?;
            opened.configure(&verifier.config)?;
            pins.iter().try_for_each(|pins| opened.pin(pins, &chain::NEXT))?;
            // Classes are for marks, which only tc sets.
            let shared: Vec<_> = PINNED.into_iter().filter(|name| *name != "classes").chain(["samples"]).collect();
            opened.share(&verifier.object, &shared)?;
            verifier.at_tc = Some(opened.load("verifier")?);
            return Ok(verifier);
        };
        Self::load(hook, config, sizes, pins)
    }

    /// Loads the programs from another object file. It has the verifier's maps and programs, and possibly others. For
    /// benches.
    ///
    /// # Errors
    ///
    /// Fails if the kernel rejects a program, or a map can't be made or taken over.
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
            opened.pin(pins, &chain::NEXT)?;
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
            optional: object.table("optional")?,
            fragments: object.table("fragments")?,
            open_fragments: object.table("open_fragments")?,
            replays: object.table("replays")?,
            clock: object.table("clock")?,
            forgotten: object.table("forgotten")?,
            outbound: object.table("outbound")?,
            counters: object.table("counters")?,
            cores: object.table("cores")?,
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

    /// Copies the tokens of a replay table that another size replaces.
    fn carry_over(&self, old: MapHandle) -> Result<()> {
        let (offset, mut forgotten) = (self.clock.get(&0)?.unwrap_or_default(), self.forgotten()?);
        replays::carry_over(old, &self.replays, offset, &mut forgotten)?;
        self.note(&forgotten)
    }

    /// Returns the hook of the programs. If the hook can differ between interfaces, returns tc if all attachments are
    /// at tc, otherwise XDP.
    pub fn hook(&self) -> Hook {
        if self.at_tc.is_some() && self.attachments.are_at_tc() { Hook::Tc } else { self.hook }
    }

    /// Returns the reason for which the interface with this name has one hook and not the other. Empty if the programs
    /// were never attached to the interface.
    pub fn reason(&self, interface: &str) -> &str {
        self.reasons.get(interface).map_or("", String::as_str)
    }

    /// Returns the settings with which the programs were loaded.
    pub fn config(&self) -> &VerifierConfig {
        &self.config
    }

    /// Returns the verifier key of an epoch, if the verifier has it.
    pub fn key(&self, epoch: wire::Epoch) -> Option<wire::VerifierKey> {
        let entry = self.epoch_keys.get(&u32::from(epoch.on_wire())).ok().flatten();
        entry.filter(|entry| entry.epoch != 0 && entry.epoch == epoch.0).map(|entry| verifier_key(&entry))
    }

    /// Attaches to `interface`, or takes over the attachment that an earlier process pinned.
    ///
    /// # Errors
    ///
    /// Fails if the interface has no Ethernet header, or if the kernel does not attach the program.
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

    /// Pins the attachments, so that they outlive this process.
    ///
    /// # Errors
    ///
    /// Fails if an attachment can't be pinned.
    pub fn pin_links(&self) -> Result<()> {
        self.attachments.pin()
    }

    /// Takes over all attachments of `old`, whether they are pinned or not. The programs of this verifier replace those
    /// of `old` in place, so that no packet passes unchecked. Both verifiers must have been loaded for the same
    /// [`Choice`]. Attachments to interfaces that no longer exist are dropped.
    ///
    /// # Errors
    ///
    /// Fails if a program can't be replaced.
    pub fn succeed(&mut self, old: &mut Self) -> Result<()> {
        let program = |hook| admission(&self.object, self.at_tc.as_ref(), hook);
        self.attachments.succeed(&mut old.attachments, program)?;
        self.reasons.extend(old.reasons.drain());
        Ok(())
    }

    /// Detaches from one interface, which need not exist any more.
    pub fn forget(&mut self, name: &str) {
        self.attachments.forget(name, Spot::Admission(self.hook));
    }

    /// Detaches from every interface.
    pub fn detach(&mut self) {
        self.attachments.detach();
    }

    /// Protects exactly these prefixes, in place of the prefixes protected before. An entry consists of address, prefix
    /// length and services.
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses access to a map.
    pub fn protect(&self, entries: &[(IpAddr, u8, Services)]) -> Result<()> {
        self.protected.replace(entries)
    }

    /// Makes exactly these TCP services the optional receivers, in place of the previous optional receivers.
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses access to the map, or if there are more services than it has room for.
    pub fn make_optional(&self, services: &[(IpAddr, u16)]) -> Result<()> {
        let wanted: Vec<_> = services.iter().map(|(address, port)| OptionalService::new(*address, *port)).collect();
        for service in self.optional.keys().into_iter().filter(|service| !wanted.contains(service)) {
            self.optional.remove(&service)?;
        }
        wanted.iter().try_for_each(|service| self.optional.set(service, &1))
    }

    /// Sets the offset from the programs' clock to Unix time, in nanoseconds (see [`crate::clock`]). If this makes the
    /// clock jump, first records the times that the programs have forgotten. For these times, the programs no longer
    /// know which tokens were used and which grants were revoked. After a jump, and when it sets the clock for the
    /// first time, waits until no core's program uses the old offset any more.
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses access to a map.
    pub fn set_clock(&self, offset: u64) -> Result<()> {
        if self.put_clock(offset)? {
            clock::wait_for_tick();
        }
        Ok(())
    }

    fn put_clock(&self, offset: u64) -> Result<bool> {
        let before = self.clock.get(&0)?.unwrap_or_default();
        if before != 0 && before.abs_diff(offset) >= clock::STEP_MIN {
            let mut forgotten = self.forgotten()?;
            forgotten.jump(clock::coarse_to(before), clock::coarse_to(offset));
            self.note(&forgotten)?;
        }
        clock::put(&self.clock, offset)
    }

    /// Returns the times that the programs have forgotten because their clock jumped (see [`Forgotten`]).
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses access to the map.
    pub fn forgotten(&self) -> Result<Forgotten> {
        Ok(self.forgotten.get(&0)?.unwrap_or_default())
    }

    fn note(&self, forgotten: &Forgotten) -> Result<()> {
        if *forgotten == self.forgotten()? { Ok(()) } else { self.forgotten.set(&0, forgotten) }
    }

    /// Resets the clock and the forgotten times to their state before the clock was first set. For tests.
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses access to a map.
    #[doc(hidden)]
    pub fn forget_clock(&self) -> Result<()> {
        self.clock.set(&0, &0)?;
        self.forgotten.set(&0, &Forgotten::default())
    }

    /// Returns the number of packets that have had this outcome so far. `outcome` is a drop reason's number or one of
    /// [`counter`].
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses access to a map.
    pub fn count(&self, outcome: u32) -> Result<u64> {
        let settled = if outcome == counter::FLOW { self.cores.sum_at(0)? } else { 0 };
        Ok(self.counters.sum_at(outcome)? + settled)
    }

    /// Returns the current number of flows that the inside of a gateway has opened.
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses access to a map.
    pub fn outbound(&self) -> Result<u32> {
        Ok(self.outbound.get(&0)?.unwrap_or_default())
    }

    /// Returns all counters. The position of a counter is its index: a drop reason's number, or one of [`counter`].
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses access to a map.
    pub fn counts(&self) -> Result<Vec<u64>> {
        let mut counts = self.counters.sums(counter::COUNT)?;
        counts[counter::FLOW as usize] += self.cores.sum_at(0)?;
        Ok(counts)
    }

    /// Removes, at `now` (Unix seconds), flows that are idle or whose grants are revoked, and grants and revocations
    /// that have expired.
    ///
    /// # Errors
    ///
    /// Fails if the kernel does not run the program for the sweep, or refuses access to a map.
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

    /// Corrects the numbers of flows and grants in the entries of accounts, after user space has removed flows or
    /// grants. Flows and grants that begin or end during the call can be missed.
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses access to a map.
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

    /// Takes over a flow that a peer gateway reported. Returns the outcome: one of [`wire::map::taken`].
    ///
    /// # Errors
    ///
    /// Fails if the kernel does not run the program that takes over flows.
    pub fn take_over(&self, mut received: ReceivedFlow) -> Result<u32> {
        let program = self.object.runnable("take_over")?;
        let input = ProgramInput { context_in: Some(received.as_mut_bytes()), ..ProgramInput::default() };
        Ok(program.test_run(input).context("cannot run the program that takes over flows")?.return_value)
    }

    /// Opens the ring of new flows. Whenever the caller polls the result, `each` is called with every flow that has
    /// begun, if the programs were loaded with the setting to report flows.
    ///
    /// # Errors
    ///
    /// Fails if the ring can't be opened.
    pub fn flow_news(&self, each: impl FnMut(FlowNews) + Send + 'static) -> Result<RingBuffer<'static>> {
        ring::open(&[&self.flow_news], each)
    }

    /// Opens the ring of drop samples. Whenever the caller polls the result, `each` is called with every sample in the
    /// ring.
    ///
    /// # Errors
    ///
    /// Fails if the ring can't be opened.
    pub fn samples(&self, each: impl FnMut(DropSample) + Send + 'static) -> Result<RingBuffer<'static>> {
        ring::open(&[&self.samples], each)
    }

    /// Returns the loaded BPF object. A gateway's own programs use its tables, too.
    pub(crate) fn object(&self) -> &Loaded {
        &self.object
    }
}

/// Returns the program for admission at this hook.
fn admission<'a>(object: &'a Loaded, at_tc: Option<&'a Loaded>, hook: Hook) -> Result<Program<'a>> {
    at_tc.filter(|_| hook == Hook::Tc).unwrap_or(object).program("admit")
}

/// Converts the verifier key of an epoch to the form in which the kernel program has it.
pub fn epoch_key(epoch: wire::Epoch, key: &wire::VerifierKey) -> EpochKey {
    EpochKey { epoch: epoch.0, siphash: *key.of(wire::Suite::Siphash), aes: *key.of(wire::Suite::AesCmac) }
}

/// Converts an epoch's key from the form of the kernel program.
fn verifier_key(entry: &EpochKey) -> wire::VerifierKey {
    let mut bytes = [0; 32];
    bytes[..16].copy_from_slice(&entry.siphash);
    bytes[16..].copy_from_slice(&entry.aes);
    wire::VerifierKey::new(bytes)
}
