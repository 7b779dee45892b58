//! Shared by the tables and the fuzzer: keys, receivers, clients, and the two deciders side by side.

use datapath::clock;
use datapath::hook::Hook;
use datapath::kernel_tables::KernelTables;
use datapath::run::Ran;
use datapath::tunnel::Tunnel;
use datapath::verifier::{Sizes, Verifier as Kernel, epoch_key};
use engine::model::protected;
use engine::model::{Receiver, Service};
use engine::verifier::{Outcome, Verifier as Model, explain};
use std::net::IpAddr;
use wire::map::{Forgotten, LsGrant, ReplayBucket, SecretEntry, VerifierConfig, counter};
use wire::{
    Carrier, ClientKey, Destination, Epoch, Flags, GrantHeader, GrantKey, Handle, Holder, LsToken, MasterKey, Pair,
    ServerSecret, Suite, Token, ls,
};

/// Start time of all tests, as in the published vectors.
pub const NOW: u32 = 1_800_000_000;
pub const EPOCH_LENGTH: u32 = 3600;
/// Few enough to reach the limit easily.
pub const FLOWS_PER_GRANT: u32 = 4;
pub const FLOWS_PER_ACCOUNT: u32 = 6;
/// The port that everybody may reach at [`Family::neighbour`].
pub const OPTIONAL: u16 = 8000;
pub const GRANTS_PER_ACCOUNT: u32 = 8;

pub fn address(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

pub fn master() -> MasterKey {
    MasterKey::new(std::array::from_fn(|index| index as u8))
}

pub fn config() -> VerifierConfig {
    VerifierConfig {
        flows_per_grant: FLOWS_PER_GRANT,
        flows_per_account: FLOWS_PER_ACCOUNT,
        grants_per_account: GRANTS_PER_ACCOUNT,
        epoch_length: EPOCH_LENGTH,
        optional: 1,
        ..VerifierConfig::default()
    }
}

pub const SIZES: Sizes =
    Sizes { flows: 4096, grants: 4096, accounts: 4096, replay_buckets: 256, revoked: 4096, pairs: 64 };

fn receiver(prefix: &str, services: &[(u8, u16, u16)]) -> Receiver {
    let service = |&(protocol, first_port, last_port): &(u8, u16, u16)| Service { protocol, first_port, last_port };
    Receiver {
        name: prefix.to_owned(),
        prefix: prefix.parse().expect("a prefix"),
        services: services.iter().map(service).collect(),
    }
}

/// Returns one server with two ports, one with all, and one network with a span, in both families.
pub fn receivers() -> Vec<Receiver> {
    let two_ports: &[_] = &[(6, 22, 22), (17, 443, 443)];
    let all: &[_] = &[(0, 0, u16::MAX)];
    let span: &[_] = &[(6, 8000, 8100)];
    vec![
        receiver("203.0.113.10/32", two_ports),
        receiver("203.0.113.20/32", all),
        receiver("203.0.113.128/25", span),
        receiver("2001:db8::10/128", two_ports),
        receiver("2001:db8::20/128", all),
        receiver("2001:db8:0:1::/64", span),
        // As a host's verifier adds them: its service at the host's other addresses.
        receiver("169.254.0.0/16", two_ports),
        receiver("224.0.0.0/4", two_ports),
        receiver("255.255.255.255/32", two_ports),
        receiver("fe80::/10", two_ports),
        receiver("ff00::/8", two_ports),
    ]
}

/// Returns the optional receivers: one port of the network with a span, at the address of [`Family::neighbour`].
pub fn optional() -> Vec<(IpAddr, u16)> {
    families().map(|family| (family.neighbour, OPTIONAL)).to_vec()
}

/// Returns a receiver for everything, as the published vectors need it.
pub fn everything() -> Vec<Receiver> {
    vec![receiver("0.0.0.0/0", &[(0, 0, u16::MAX)]), receiver("::/0", &[(0, 0, u16::MAX)])]
}

/// A family's addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Family {
    pub name: &'static str,
    /// A client, and an unauthenticated sender at another address.
    pub client: IpAddr,
    pub stranger: IpAddr,
    /// Protected: TCP 22 and UDP 443.
    pub server: IpAddr,
    /// Protected as a whole.
    pub fortress: IpAddr,
    /// In the protected network: TCP 8000 to 8100.
    pub neighbour: IpAddr,
    /// Not protected.
    pub open: IpAddr,
}

pub fn families() -> [Family; 2] {
    [
        Family {
            name: "ipv4",
            client: address("198.51.100.7"),
            stranger: address("198.51.100.8"),
            server: address("203.0.113.10"),
            fortress: address("203.0.113.20"),
            neighbour: address("203.0.113.200"),
            open: address("203.0.113.30"),
        },
        Family {
            name: "ipv6",
            client: address("2001:db8:ffff::7"),
            stranger: address("2001:db8:ffff::8"),
            server: address("2001:db8::10"),
            fortress: address("2001:db8::20"),
            neighbour: address("2001:db8:0:1::99"),
            open: address("2001:db8::30"),
        },
    ]
}

/// A grant as the authority would issue it, with every field open to change.
#[derive(Clone, Copy, Debug)]
pub struct Grant {
    pub suite: Suite,
    pub flags: Flags,
    pub epoch: Epoch,
    pub prefix_length: u8,
    pub expires: u32,
    pub handle: u64,
    pub source: IpAddr,
}

impl Grant {
    /// Creates a grant for one address, protocol and port, for five minutes.
    pub fn new(family: &Family, handle: u64) -> Self {
        let ipv6 = family.server.is_ipv6();
        Self {
            suite: Suite::Siphash,
            flags: Flags::PORT.with(if ipv6 { Flags::IPV6 } else { Flags(0) }),
            epoch: Epoch::at(NOW.into(), EPOCH_LENGTH),
            prefix_length: if ipv6 { 128 } else { 32 },
            expires: NOW + 300,
            handle,
            source: family.client,
        }
    }

    /// Creates the grant of this number in a holder's session.
    pub fn of(family: &Family, holder: Holder, number: u32) -> Self {
        let grant = Self::new(family, 0);
        let key = master().verifier_key("edge-1", grant.epoch).expect("a short id");
        Self { handle: holder.handle(&key, number).0, ..grant }
    }

    /// Creates a grant whose handle names this account and session (wire.md §3.9).
    pub fn held(family: &Family, account: u32, session: u8, chance: u32) -> Self {
        let grant = Self::new(family, 0);
        let key = master().verifier_key("edge-1", grant.epoch).expect("a short id");
        Self { handle: Holder::new(account, session).expect("small").handle(&key, chance).0, ..grant }
    }

    /// Creates another grant of the same holder.
    pub fn newer(&self, chance: u32) -> Self {
        let key = master().verifier_key("edge-1", self.epoch).expect("a short id");
        Self { handle: Holder::of(Handle(self.handle), &key).handle(&key, chance).0, ..*self }
    }

    pub fn header(&self) -> GrantHeader {
        GrantHeader {
            suite: self.suite,
            flags: self.flags,
            epoch: self.epoch.on_wire(),
            prefix_length: self.prefix_length,
            expires: self.expires,
            handle: Handle(self.handle),
        }
    }

    pub fn key(&self, to: &Destination) -> GrantKey {
        let verifier_key = master().verifier_key("edge-1", self.epoch).expect("a short id");
        self.header().key(&verifier_key, to, self.source)
    }

    pub fn token(&self, to: &Destination, time: u32, nonce: u32) -> [u8; 36] {
        Token::new(self.header(), &self.key(to), time, nonce, to).encode()
    }
}

/// Returns the configuration that also accepts what is off by default: shims, and the LS scheme.
pub fn config_with_shims() -> VerifierConfig {
    let config = config();
    VerifierConfig {
        carriers: Carrier::Tail as u16 | Carrier::Shim as u16,
        suites: config.suites | 1 << ls::SUITE,
        ..config
    }
}

/// A pair of the LS scheme as the authority would announce it.
#[derive(Clone, Copy, Debug)]
pub struct LsPair {
    pub pair: Pair,
    pub epoch: Epoch,
    pub expires: u32,
    pub holder: Holder,
}

impl LsPair {
    /// Creates a pair that is valid for five minutes.
    pub fn new(number: u8) -> Self {
        let pair = Pair { unique_id: [b'a', b'l', b'i', b'c', number], nonce1: [1, number] };
        Self { pair, epoch: Epoch::at(NOW.into(), EPOCH_LENGTH), expires: NOW + 300, holder: Holder(number.into()) }
    }

    pub fn key(&self) -> ClientKey {
        let verifier_key = master().verifier_key("edge-1", self.epoch).expect("a short id");
        let secret = ServerSecret::of(&verifier_key).expect("a length that fits");
        ClientKey::of(self.pair, secret.bytes())
    }

    pub fn token(&self, nonce2: u16) -> [u8; ls::TOKEN_LEN] {
        LsToken::new(self.pair, nonce2, &self.key()).encode()
    }
}

/// The Rust decision and the kernel program with the same tables.
pub struct Deciders {
    pub model: Model,
    pub kernel: Kernel,
    /// The program for what comes out of a sealed tunnel, if a test needs it.
    pub tunnel: Option<Tunnel>,
}

const ETHERNET_LEN: usize = 14;

impl Deciders {
    pub fn new(hook: Hook, config: VerifierConfig, receivers: &[Receiver]) -> Self {
        Self::with_sizes(hook, config, receivers, SIZES)
    }

    pub fn with_sizes(hook: Hook, config: VerifierConfig, receivers: &[Receiver], sizes: Sizes) -> Self {
        let kernel = Kernel::load(hook, config, sizes, None).unwrap_or_else(|error| panic!("{error:#}"));
        Self::around(kernel, config, receivers)
    }

    pub fn around(kernel: Kernel, config: VerifierConfig, receivers: &[Receiver]) -> Self {
        let protected = protected::entries(receivers).expect("few spans");
        let entries: Vec<_> =
            protected.iter().map(|entry| (entry.prefix.network(), entry.prefix.prefix_len(), entry.services)).collect();
        kernel.protect(&entries).expect("maps take prefixes");
        let optional = optional();
        kernel.make_optional(&optional).expect("map takes services");
        let (at_tc, optional) = (kernel.hook() == Hook::Tc, optional.into_iter().collect());
        let model = Model { config, protected, optional, at_tc, ..Model::default() };
        let mut deciders = Self { model, kernel, tunnel: None };
        let current = Epoch::at(NOW.into(), EPOCH_LENGTH);
        for number in current.0 - 2..=current.0 + 2 {
            deciders.learn(Epoch(number));
        }
        deciders
    }

    /// Loads the program for what comes out of a sealed tunnel, too.
    pub fn with_tunnel(mut self) -> Self {
        self.load_tunnel();
        self
    }

    /// Loads the program of the tunnel's device for the verifier's present tables.
    pub fn load_tunnel(&mut self) {
        let tunnel = Tunnel::load_behind(&self.kernel, None, ETHERNET_LEN as u32);
        self.tunnel = Some(tunnel.unwrap_or_else(|error| panic!("{error:#}")));
    }

    /// Adds the key of an epoch to both.
    pub fn learn(&mut self, epoch: Epoch) {
        if self.model.keys.contains_key(&epoch) {
            return;
        }
        let key = master().verifier_key("edge-1", epoch).expect("a short id");
        self.kernel.epoch_keys.set(&u32::from(epoch.on_wire()), &epoch_key(epoch, &key)).expect("map takes keys");
        let secret = SecretEntry::new(epoch.0, &ServerSecret::of(&key).expect("a length that fits"));
        self.kernel.ls_secrets.set(&u32::from(epoch.on_wire()), &secret).expect("map takes secrets");
        self.model.keys.insert(epoch, key);
    }

    /// Announces a pair, with no nonce used, to both.
    pub fn tell(&mut self, pair: &LsPair) {
        let (handle, entry) = (pair.pair.handle(), LsGrant::new(pair.epoch.0, pair.expires, pair.holder));
        self.kernel.ls_grants.set(&handle.0, &entry).expect("map takes pairs");
        self.model.ls_grants.insert(handle, entry);
    }

    /// Empties all tables but receivers and keys.
    pub fn forget(&mut self) {
        for key in self.kernel.flows.keys() {
            self.kernel.flows.remove(&key).expect("flows");
        }
        for key in self.kernel.grants.keys() {
            self.kernel.grants.remove(&key).expect("grants");
        }
        for key in self.kernel.accounts.keys() {
            self.kernel.accounts.remove(&key).expect("accounts");
        }
        for key in self.kernel.revoked.handles() {
            self.kernel.revoked.remove(key).expect("revoked");
        }
        for (key, _) in self.kernel.revoked_holders.entries() {
            self.kernel.revoked_holders.remove(&key).expect("revoked holders");
        }
        for key in self.kernel.ls_grants.keys() {
            self.kernel.ls_grants.remove(&key).expect("pairs");
        }
        let empty = ReplayBucket::default();
        for (index, bucket) in self.kernel.replays.entries() {
            if bucket != empty {
                self.kernel.replays.set(&index, &empty).expect("replays");
            }
        }
        self.model.flows.clear();
        self.model.grants.clear();
        self.model.accounts.clear();
        self.model.revoked.clear();
        self.model.revoked_holders.clear();
        self.model.revoked_accounts.clear();
        self.model.tokens.clear();
        self.model.ls_grants.clear();
        for table in [&self.kernel.fragments, &self.kernel.open_fragments] {
            for key in table.keys() {
                table.remove(&key).expect("fragments");
            }
        }
        self.kernel.forget_clock().expect("clock");
        self.model.forgotten = Forgotten::default();
        self.model.fragments.clear();
        self.model.open_fragments.clear();
    }

    pub fn set_clock(&self, now: u32) {
        // A fifth of a second into it, so that neither the coarse clock's lag nor a few packets leave that second.
        self.kernel.set_clock_alone(clock::coarse_reading(now.into()).wrapping_add(200_000_000)).expect("clock");
    }

    /// Copies the kernel's forgotten times to the model: [`wire::map::Forgotten`] computes them for both.
    pub fn forget_alike(&mut self) {
        self.model.forgotten = self.kernel.forgotten().expect("memory");
    }

    pub fn revoke(&mut self, handle: u64, expires: u32) {
        self.model.revoked.insert(Handle(handle), expires);
        self.kernel.revoked.set(handle, expires).expect("revoked");
    }

    pub fn end_session(&mut self, holder: Holder, expires: u32) {
        self.model.revoked_holders.insert(holder, expires);
        self.kernel.revoked_holders.set(holder, expires).expect("revoked holders");
    }

    pub fn shut_out(&mut self, account: u32, expires: u32) {
        self.model.revoked_accounts.insert(account, expires);
        self.kernel.revoked_holders.set_account(account, expires).expect("revoked holders");
    }

    pub fn sweep(&mut self, now: u32) {
        self.forget_alike();
        self.model.sweep(now);
        self.kernel.sweep(now).expect("sweep");
    }

    /// Returns the model's outcome and frame, and the kernel's; the kernel's outcome is the one counter that moved.
    /// Checks that explaining the frame by either's tables gives the same outcome.
    pub fn verify(&mut self, frame: &[u8], now: u32) -> [(Outcome, Vec<u8>); 2] {
        self.forget_alike();
        let explained = explain(&self.model, frame, now);
        let by_kernel_tables = explain(&KernelTables::new(&self.kernel), frame, now);
        let mut modelled = frame.to_vec();
        let outcome = self.model.verify(&mut modelled, now);
        assert_eq!(explained.outcome, outcome, "{explained:?}");
        assert_eq!(by_kernel_tables, explained);
        let (counted, ran) = self.counted(|deciders| deciders.kernel.run(frame, 1).expect("the program runs"));
        let passes = counted.passes(self.model.config.observe != 0 && !explained.is_never_spared);
        assert_eq!(ran.code, self.kernel.hook().code(passes), "code and counter {counted:?} agree");
        [(outcome, modelled), (counted, ran.frame)]
    }

    /// Runs a program; returns the outcome whose counter moved, and the result.
    fn counted(&self, run: impl FnOnce(&Self) -> Ran) -> (Outcome, Ran) {
        let before = self.kernel.counts().expect("counters");
        let ran = run(self);
        let after = self.kernel.counts().expect("counters");
        let moved: Vec<u32> = (0..counter::COUNT)
            .filter(|index| *index != counter::SAMPLES_LOST)
            .filter(|index| after[*index as usize] != before[*index as usize])
            .collect();
        let [index] = moved[..] else { panic!("counters {moved:?} moved, not one") };
        assert_eq!(after[index as usize], before[index as usize] + 1);
        (outcome_of(index), ran)
    }

    /// Does what [`Self::verify`] does for an IP packet that comes out of a sealed tunnel.
    pub fn verify_inside(&mut self, packet: &[u8], now: u32) -> [(Outcome, Vec<u8>); 2] {
        self.forget_alike();
        self.model.in_tunnel = true;
        let explained = explain(&self.model, packet, now);
        let by_kernel_tables = explain(&KernelTables::new(&self.kernel).in_tunnel(), packet, now);
        let mut modelled = packet.to_vec();
        let outcome = self.model.verify(&mut modelled, now);
        self.model.in_tunnel = false;
        assert_eq!(explained.outcome, outcome, "{explained:?}");
        assert_eq!(by_kernel_tables, explained);
        let frame = with_link(packet).expect("an IP packet");
        let (counted, mut ran) = self.counted(|deciders| {
            let tunnel = deciders.tunnel.as_ref().expect("the test has loaded the tunnel's program");
            tunnel.run(&frame).expect("the program runs")
        });
        // Observing, too, the verifier drops there.
        assert_eq!(ran.code, Hook::Tc.code(counted.passes(false)), "code and counter {counted:?} agree");
        [(outcome, modelled), (counted, ran.frame.split_off(ETHERNET_LEN))]
    }
}

/// Puts a link header before an IP packet, which a run on a single frame needs. `None` if it begins like no IP packet: a
/// TUN device takes none of those.
pub fn with_link(packet: &[u8]) -> Option<Vec<u8>> {
    let (kind, header) = match packet.first()? >> 4 {
        4 => ([0x08, 0x00], 20),
        6 => ([0x86, 0xdd], 40),
        _ => return None,
    };
    (packet.len() >= header).then(|| [&[0; 12], &kind[..], packet].concat())
}

/// Reports whether the program can be run on this frame. The tc program runs on a socket buffer, which the kernel does
/// not create from a frame without a whole IP header; it does not accept such a frame from an interface either.
pub fn runs(hook: Hook, frame: &[u8]) -> bool {
    let header = match frame.get(12..14) {
        Some([0x08, 0x00]) => 20,
        Some([0x86, 0xdd]) => 40,
        _ => 1,
    };
    hook == Hook::Xdp || frame.len() >= 14 + header
}

pub fn outcome_of(index: u32) -> Outcome {
    match index {
        counter::NOT_OURS => Outcome::NotOurs,
        counter::FLOW => Outcome::Flow,
        counter::TOKEN => Outcome::Token,
        counter::CONSUMED => Outcome::Consumed,
        counter::ICMP_ERROR => Outcome::IcmpError,
        counter::STRANGER => Outcome::Stranger,
        _ => Outcome::Drop(wire::DropReason::from_number(index as u8).expect("a reason's counter")),
    }
}
