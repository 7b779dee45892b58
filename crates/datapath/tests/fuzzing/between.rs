//! Operations between packets: the clock jumps, the daemon restarts, tables change their size, epochs end, grants are
//! revoked, sessions end, and a second grant arrives on a live flow.

use super::Run;
use super::chance::Chance;
use crate::table::Transport;
use crate::world::{Deciders, EPOCH_LENGTH, Grant, LsPair, NOW};
use datapath::Pins;
use datapath::verifier::{Sizes, Verifier};
use engine::model::protected::Protected;
use engine::verifier::Outcome;
use std::collections::BTreeMap;
use wire::map::{EpochKey, FlowKey, LsGrant, SecretEntry, VerifierConfig};
use wire::{Epoch, Handle, Holder, tail};

/// A pinned verifier, as its daemon leaves it. The pins are removed on drop.
pub struct Pinned {
    pub pins: Pins,
    config: VerifierConfig,
    sizes: Sizes,
}

impl Pinned {
    pub fn new(name: &str, config: VerifierConfig, sizes: Sizes) -> Self {
        let pins = Pins::new("verifier", &format!("{name}-{}", std::process::id())).expect("the BPF file system");
        Self { pins, config, sizes }
    }

    pub fn load(&self, hook: datapath::hook::Hook) -> Verifier {
        let loaded = Verifier::load(hook, self.config, self.sizes, Some(self.pins.clone()));
        loaded.unwrap_or_else(|error| panic!("{error:#}"))
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let _ = self.pins.remove();
    }
}

/// An operation between packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    ForwardBySeconds,
    ForwardByHours,
    BackBySeconds,
    BackByMinutes,
    BackByHours,
    ThereAndBack,
    EpochEnds,
    Restart,
    Resize,
    Revoke,
    EndSession,
    NewPair,
    SecondGrantOfHolder,
    SecondGrantOfAnother,
}

use Operation::{
    BackByHours, BackByMinutes, BackBySeconds, EndSession, EpochEnds, ForwardByHours, ForwardBySeconds, NewPair,
    Resize, Restart, Revoke, SecondGrantOfAnother, SecondGrantOfHolder, ThereAndBack,
};

pub const ALL: [Operation; 14] = [
    NewPair,
    SecondGrantOfHolder,
    Revoke,
    Restart,
    ForwardBySeconds,
    SecondGrantOfAnother,
    EndSession,
    BackBySeconds,
    Resize,
    ThereAndBack,
    EpochEnds,
    ForwardByHours,
    BackByMinutes,
    BackByHours,
];
/// Operations that load programs are slow.
const SLOW: [Operation; 2] = [Restart, Resize];
const SLOW_EVERY: usize = 24;
/// Number of packets after each jump of an operation that jumps forth and back.
const BURST: usize = 48;

/// The operations so far.
#[derive(Default)]
pub struct Between {
    counts: BTreeMap<Operation, u64>,
    happened: usize,
    latest: Vec<Operation>,
    /// The latest time that the clock has shown.
    highest: u32,
    /// Statements of the authority, as the daemon keeps them: revoked grants and ended sessions, with their expiries.
    revoked: BTreeMap<u64, u32>,
    ended: BTreeMap<Holder, u32>,
}

impl Between {
    /// Returns the latest operations.
    pub fn latest(&self) -> String {
        let latest = &self.latest[self.latest.len().saturating_sub(6)..];
        format!("{latest:?}")
    }

    /// Returns how often each operation ran.
    pub fn counts(&self) -> Vec<(Operation, u64)> {
        ALL.iter().map(|operation| (*operation, self.counts.get(operation).copied().unwrap_or(0))).collect()
    }

    /// Chooses each operation once in turn, so that none is left out, and then any.
    fn choose(&mut self, chance: &mut Chance) -> Operation {
        self.happened += 1;
        let first = ALL.get(self.happened - 1).copied();
        let any = || {
            let operation = chance.pick(&ALL);
            if SLOW.contains(&operation) && !chance.one_in(SLOW_EVERY) { ForwardBySeconds } else { operation }
        };
        first.unwrap_or_else(any)
    }
}

impl Run {
    /// Runs an operation, and sometimes the sweep. A clock that was set back is usually corrected first: during times
    /// that repeat, no packet is admitted.
    pub fn between(&mut self) {
        if self.now < self.between.highest && !self.chance.one_in(4) {
            let ahead = 31 + self.chance.below(100) as u32;
            self.jump(self.between.highest + ahead);
        }
        let operation = self.between.choose(&mut self.chance);
        self.between.latest.push(operation);
        if self.perform(operation) {
            *self.between.counts.entry(operation).or_default() += 1;
        }
        if self.chance.one_in(2) {
            self.sweep();
        }
    }

    fn perform(&mut self, operation: Operation) -> bool {
        const HOUR: usize = 3600;
        match operation {
            ForwardBySeconds => self.forward(1, 70),
            ForwardByHours => self.forward(HOUR, 7 * HOUR),
            BackBySeconds => self.back(1, 60),
            BackByMinutes => self.back(60, 1200),
            BackByHours => self.back(HOUR, 7 * HOUR),
            ThereAndBack => self.there_and_back(),
            EpochEnds => {
                let next = (self.now / EPOCH_LENGTH + 1) * EPOCH_LENGTH;
                self.jump(next - 1);
                (0..BURST).for_each(|_| self.packet());
                self.jump(next);
                true
            }
            Restart => self.restart(),
            Resize => {
                self.pinned.sizes = Sizes {
                    flows: self.chance.pick(&[32_768, 65_536]),
                    grants: self.chance.pick(&[8192, 16_384]),
                    accounts: self.chance.pick(&[8192, 16_384]),
                    revoked: self.chance.pick(&[4096, 8192]),
                    pairs: self.chance.pick(&[64, 128]),
                    replay_buckets: match self.pinned.sizes.replay_buckets {
                        8192 => self.chance.pick(&[16_384, 32_768]),
                        16_384 => self.chance.pick(&[8192, 32_768]),
                        _ => self.chance.pick(&[8192, 16_384]),
                    },
                };
                self.restart()
            }
            Revoke => self.revoke(),
            EndSession => {
                let holder = self.given.holder(&mut self.chance);
                let (handles, expires) = self.given.end_session(holder);
                let expires = expires.max(self.now);
                handles.iter().for_each(|handle| self.promises.kill(*handle));
                self.between.ended.insert(holder, expires);
                self.deciders.end_session(holder, expires);
                self.sweep();
                !handles.is_empty()
            }
            NewPair => {
                let pair = self.given.pair(&mut self.chance, self.now);
                self.promises.told.insert(pair.pair.handle(), pair);
                self.tell(&pair);
                true
            }
            SecondGrantOfHolder => self.second_grant(true),
            SecondGrantOfAnother => self.second_grant(false),
        }
    }

    fn sweep(&mut self) {
        self.deciders.set_clock(self.now);
        self.deciders.sweep(self.now);
    }

    fn forward(&mut self, least: usize, most: usize) -> bool {
        let seconds = least + self.chance.below(most - least);
        self.jump(self.now + seconds as u32)
    }

    /// Sets the clock back, but not before the start of the run.
    fn back(&mut self, least: usize, most: usize) -> bool {
        let seconds = (least + self.chance.below(most - least)) as u32;
        let to = self.now - seconds;
        if to < NOW - 12 * 3600 {
            self.forward(most, 2 * most);
            return false;
        }
        self.jump(to)
    }

    fn jump(&mut self, to: u32) -> bool {
        self.now = to;
        self.between.highest = self.between.highest.max(to);
        self.deciders.set_clock(to);
        self.hold_keys();
        true
    }

    /// Sets a wrong clock for a while, with a sweep and packets in between.
    fn there_and_back(&mut self) -> bool {
        let (before, far) = (self.now, 60 + self.chance.below(4 * 3600) as u32);
        self.jump(before + far);
        self.sweep();
        (0..BURST).for_each(|_| self.packet());
        let passed = self.chance.below(50) as u32;
        self.jump(before + passed);
        (0..BURST).for_each(|_| self.packet());
        true
    }

    /// Keeps exactly the keys of the epochs around the present one, as the daemon does.
    fn hold_keys(&mut self) {
        let current = Epoch::at(self.now.into(), EPOCH_LENGTH).0;
        let held = current - 1..=current + 2;
        let gone: Vec<Epoch> = self.deciders.model.keys.keys().copied().filter(|one| !held.contains(&one.0)).collect();
        for epoch in gone {
            self.deciders.model.keys.remove(&epoch);
            let (slot, none) = (u32::from(epoch.on_wire()), EpochKey { epoch: 0, siphash: [0; 16], aes: [0; 16] });
            self.deciders.kernel.epoch_keys.set(&slot, &none).expect("keys");
            self.deciders.kernel.ls_secrets.set(&slot, &SecretEntry { epoch: 0, block: [0; 64] }).expect("secrets");
        }
        held.for_each(|number| self.deciders.learn(Epoch(number)));
    }

    /// Announces a pair as the daemon does: a known pair keeps its nonces.
    fn tell(&mut self, pair: &LsPair) {
        let (handle, entry) = (pair.pair.handle(), LsGrant::new(pair.epoch.0, pair.expires, pair.holder));
        if self.deciders.kernel.ls_grants.insert(&handle.0, &entry).is_ok_and(|is_new| is_new) {
            self.deciders.model.ls_grants.insert(handle, entry);
        }
    }

    /// Simulates a restart: a new process with the same pins. The daemon's state in memory is lost, and rebuilt from
    /// the authority's statements.
    fn restart(&mut self) -> bool {
        let kernel = self.pinned.load(self.hook);
        let Deciders { model, kernel: old, .. } = &mut self.deciders;
        *old = kernel;
        let entry = |entry: &Protected| (entry.prefix.network(), entry.prefix.prefix_len(), entry.services);
        let entries: Vec<_> = model.protected.iter().map(entry).collect();
        model.config = *old.config();
        old.protect(&entries).expect("maps take prefixes");
        self.deciders.load_tunnel();
        self.deciders.set_clock(self.now);
        let now = self.now;
        self.between.revoked.retain(|_, expires| *expires > now);
        self.between.ended.retain(|_, expires| *expires > now);
        for (handle, expires) in self.between.revoked.clone() {
            self.deciders.revoke(handle, expires);
        }
        for (holder, expires) in self.between.ended.clone() {
            self.deciders.end_session(holder, expires);
        }
        // Keys are written again as well.
        self.deciders.model.keys.clear();
        self.hold_keys();
        let pairs: Vec<LsPair> = self.given.pairs.iter().copied().filter(|pair| pair.expires > now).collect();
        pairs.iter().for_each(|pair| self.tell(pair));
        true
    }

    fn revoke(&mut self) -> bool {
        let (handle, expires) = match self.given.victim(&mut self.chance) {
            _ if self.chance.one_in(6) && !self.given.pairs.is_empty() => {
                let pair = self.given.any_pair(&mut self.chance);
                (pair.pair.handle(), pair.expires)
            }
            Some(grant) => (Handle(grant.handle), grant.expires),
            None => return false,
        };
        let expires = expires.max(self.now);
        self.promises.kill(handle);
        self.between.revoked.insert(handle.0, expires);
        self.deciders.revoke(handle.0, expires);
        self.sweep();
        true
    }

    /// Uses two grants on one 5-tuple: a newer grant of the same holder takes the flow over, and an open flow keeps its
    /// owner against any other holder (wire.md §6.4.5). Returns `false` if a token was not admitted, or the first did
    /// not get the flow.
    fn second_grant(&mut self, same: bool) -> bool {
        let family = self.family();
        let holder = self.given.newcomer();
        let holders = [holder, if same { holder } else { self.given.newcomer() }];
        // UDP, because its flows are open at once, unlike TCP's.
        let transport = Transport::Udp;
        let (to, port) = (transport.destination(&family), 40_000 + self.chance.below(6) as u16);
        let key = FlowKey::new(family.client, port, to.address, to.port, to.protocol);
        let (mut handles, mut owners) = (Vec::new(), Vec::new());
        for holder in holders {
            let Grant { handle, epoch, expires, .. } = self.given.grant(&mut self.chance, &family, holder, self.now);
            let grant = Grant { handle, epoch, expires, ..Grant::new(&family, 0) };
            let token = grant.token(&to, self.now, self.chance.next() as u32);
            let payload = [b"second".to_vec(), tail::block(&token).to_vec()].concat();
            let frame = transport.opening(&family, port, &to).payload(&payload).frame();
            if self.verify(&frame) != Some(Outcome::Token) {
                return false;
            }
            handles.push(grant.handle);
            owners.push(self.deciders.model.flows.get(&key).map(|flow| flow.handle));
        }
        if owners[0] != Some(handles[0]) {
            return false;
        }
        let owner = if same { handles[1] } else { handles[0] };
        assert_eq!(owners[1], Some(owner), "{}: whose the flow is, by {holders:?}", self.place());
        true
    }
}
