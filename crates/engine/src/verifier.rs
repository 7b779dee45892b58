//! The verifier's decision about a packet (wire.md §6), as a function of the packet, the verifier's tables and the
//! time.
//!
//! The kernel program (`bpf/verifier.bpf.c`) decides in the same way; the case table and the differential fuzzer of
//! `datapath` compare the two. One function, [`decide`], makes all decisions of this module. It works with the
//! in-memory tables of [`Verifier`] or with the kernel's own maps. An [`Observer`] can explain each check.

mod connection;
mod datagrams;
mod decide;
mod explain;
mod flow;
mod observer;
mod overlay;
pub mod proofs;
mod tables;
mod token;

use crate::model::protected::Protected;
use flow::{is_live, leaves_trace, only_ended};
use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use wire::map::{
    AccountUse, Flow, FlowKey, Forgotten, GrantUse, LsGrant, Services, TOKEN_WINDOW, VerifierConfig, counter,
};
use wire::token::TOKEN_LEN;
use wire::{DropReason, Epoch, Handle, Holder, VerifierKey};

pub use decide::decide;
pub use explain::{Check, Explanation, Trace, explain, explain_flow};
pub use flow::is_in_use;
pub use observer::Observer;
pub use overlay::Overlay;
pub use tables::{Once, PairTerms, Replay, Stack, Tables, TablesMut};

/// Maximum difference between a sender's clock and the verifier's, in seconds (wire.md §6.4).
pub const CLOCK_SKEW_MAX: u32 = 30;
/// Time for which the first fragment of an admitted flow lets later fragments pass, in seconds.
pub const FRAGMENT_LIFE: u32 = 30;

/// Returns the time, in Unix seconds, until which the verifier can admit packets without new keys. `slots` contains the
/// epochs of its keys, or 0 for a slot without a key. The time is the end of the last epoch that follows the current
/// epoch without a gap. Returns `None` if there is no key for the current epoch.
pub fn keys_until(slots: impl Iterator<Item = u64>, now: u64, epoch_length: u32) -> Option<u64> {
    let mut epochs: Vec<u64> = slots.filter(|epoch| *epoch != 0).collect();
    epochs.sort_unstable();
    let mut next = Epoch::at(now, epoch_length).0;
    let first = next;
    for epoch in epochs {
        if epoch == next {
            next += 1;
        }
    }
    (next > first).then(|| next * u64::from(epoch_length))
}

/// Outcome of the decision about a packet (wire.md §6.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The destination is not protected: the packet passes unchanged.
    NotOurs,
    /// The packet belongs to an admitted flow: it passes.
    Flow,
    /// The token admits the packet: it passes without the token.
    Token,
    /// The packet contained only a token: its flow is admitted, and the packet goes no further.
    Consumed,
    /// The packet is an ICMP error that quotes an admitted flow: it passes.
    IcmpError,
    /// The packet is from a stranger: it has no token and belongs to no flow, but everybody may send to its
    /// destination.
    Stranger,
    /// The packet is dropped.
    Drop(DropReason),
}

impl Outcome {
    /// Returns the index of the kernel program's counter for this outcome.
    pub const fn counter(self) -> u32 {
        match self {
            Self::NotOurs => counter::NOT_OURS,
            Self::Flow => counter::FLOW,
            Self::Token => counter::TOKEN,
            Self::Consumed => counter::CONSUMED,
            Self::IcmpError => counter::ICMP_ERROR,
            Self::Stranger => counter::STRANGER,
            Self::Drop(reason) => reason as u32,
        }
    }

    /// Returns the name of the outcome in metrics and explanations.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NotOurs => "not_ours",
            Self::Flow => "flow",
            Self::Token => "token",
            Self::Consumed => "consumed",
            Self::IcmpError => "icmp_error",
            Self::Stranger => "stranger",
            Self::Drop(reason) => reason.name(),
        }
    }

    /// Reports whether the host's stack receives the packet. If `observing` is true, the stack also receives packets
    /// that would be dropped.
    pub const fn passes(self, observing: bool) -> bool {
        match self {
            Self::Consumed => false,
            Self::Drop(_) => observing,
            _ => true,
        }
    }
}

/// The tables of a verifier, in memory.
#[derive(Clone, Default)]
pub struct Verifier {
    /// Settings of the verifier.
    pub config: VerifierConfig,
    /// Protected prefixes and their services.
    pub protected: Vec<Protected>,
    /// Optional receivers: TCP services that everybody may reach. They take effect if `config` says that there are any.
    pub optional: BTreeSet<(IpAddr, u16)>,
    /// Verifier keys, by epoch.
    pub keys: BTreeMap<Epoch, VerifierKey>,
    /// Revoked grants, each with the Unix time in seconds at which it would have expired.
    pub revoked: BTreeMap<Handle, u32>,
    /// Ended sessions, each with the Unix time in seconds at which the last of its grants would have expired.
    pub revoked_holders: BTreeMap<Holder, u32>,
    /// Accounts that are shut out with all their sessions, each with the Unix time, in seconds, at which this ends.
    pub revoked_accounts: BTreeMap<u32, u32>,
    /// Admitted flows.
    pub flows: BTreeMap<FlowKey, Flow>,
    /// Grants in use.
    pub grants: BTreeMap<Handle, GrantUse>,
    /// Resource use of accounts, by account number.
    pub accounts: BTreeMap<u32, AccountUse>,
    /// Tokens that were used already.
    pub tokens: BTreeSet<[u8; TOKEN_LEN]>,
    /// Pairs of the published scheme (LS) that the authority announced, and their used nonces.
    pub ls_grants: BTreeMap<Handle, LsGrant>,
    /// First fragments of admitted flows, by flow and fragment id, each with the Unix time in seconds at which it
    /// arrived.
    pub fragments: BTreeMap<(FlowKey, u32), u32>,
    /// First fragments of datagrams to open ports, by flow and fragment id, each with the Unix time in seconds at which
    /// it arrived.
    pub open_fragments: BTreeMap<(FlowKey, u32), u32>,
    /// State of connections in the server's own stack.
    pub stack: BTreeMap<FlowKey, Stack>,
    /// The times for which the verifier no longer knows which tokens were used and which grants were revoked. Such
    /// times exist if the verifier's clock has jumped.
    pub forgotten: Forgotten,
    /// Whether the program is attached at tc. At tc, the kernel has already removed the outer VLAN tag, and the program
    /// can't remove a shim behind a second VLAN tag.
    pub at_tc: bool,
    /// Whether the packets come out of a sealed tunnel.
    pub in_tunnel: bool,
}

impl Verifier {
    /// Decides about a frame at `now` (Unix seconds): an Ethernet frame, or an IP packet out of a sealed tunnel. If a
    /// token admits the frame, removes the token from it.
    pub fn verify(&mut self, frame: &mut Vec<u8>, now: u32) -> Outcome {
        decide(self, &mut (), frame, now)
    }

    /// Removes flows that are idle or revoked, and grants and revocations that have expired.
    pub fn sweep(&mut self, now: u32) {
        let ended = self.forgotten.sweep_time(now);
        let Self { config, flows, grants, accounts, revoked, revoked_holders, revoked_accounts, ls_grants, .. } = self;
        flows.retain(|key, flow| {
            let holder = Holder(flow.holder);
            let is_shut_out = holder.0 != 0 && revoked_accounts.contains_key(&holder.account());
            let cut =
                revoked.contains_key(&Handle(flow.handle)) || revoked_holders.contains_key(&holder) || is_shut_out;
            let is_revoked = flow.handle != 0 && cut;
            let mut keep = only_ended(config, flow, now) || is_live(config, key, flow, now) && !is_revoked;
            if !keep && leaves_trace(config, key, flow) {
                *flow = flow.over(now);
                keep = true;
            }
            if !keep && flow.has_grant() {
                if let Some(used) = grants.get_mut(&Handle(flow.handle)) {
                    used.flows = used.flows.saturating_sub(1);
                }
                if let Some(used) = accounts.get_mut(&Holder(flow.holder).account()).filter(|_| flow.holder != 0) {
                    used.flows = used.flows.saturating_sub(1);
                }
            }
            keep
        });
        grants.retain(|_, grant| {
            let keep = grant.expires.wrapping_add(CLOCK_SKEW_MAX) >= ended || grant.flows != 0;
            let account = accounts.get_mut(&Holder(grant.holder).account()).filter(|_| !keep && grant.holder != 0);
            if let Some(used) = account {
                used.grants = used.grants.saturating_sub(1);
            }
            keep
        });
        accounts.retain(|_, used| used.flows != 0 || used.grants != 0 || used.window == now / TOKEN_WINDOW);
        revoked.retain(|_, expires| expires.wrapping_add(CLOCK_SKEW_MAX) >= ended);
        revoked_holders.retain(|_, expires| expires.wrapping_add(CLOCK_SKEW_MAX) >= ended);
        revoked_accounts.retain(|_, expires| expires.wrapping_add(CLOCK_SKEW_MAX) >= ended);
        ls_grants.retain(|_, pair| pair.expires.wrapping_add(CLOCK_SKEW_MAX) >= ended);
    }
}

impl Tables for Verifier {
    fn config(&self) -> &VerifierConfig {
        &self.config
    }

    fn at_tc(&self) -> bool {
        self.at_tc
    }

    fn in_tunnel(&self) -> bool {
        self.in_tunnel
    }

    fn services(&self, address: IpAddr) -> Option<Services> {
        let around = self.protected.iter().filter(|entry| entry.prefix.contains(&IpNet::from(address)));
        around.max_by_key(|entry| entry.prefix.prefix_len()).map(|entry| entry.services)
    }

    fn is_optional(&self, address: IpAddr, port: u16) -> bool {
        self.optional.contains(&(address, port))
    }

    fn has_forgotten(&self, time: u32) -> bool {
        self.forgotten.contains(time)
    }

    fn key(&self, epoch: Epoch) -> Option<VerifierKey> {
        self.keys.get(&epoch).cloned()
    }

    fn is_revoked(&self, handle: Handle) -> bool {
        self.revoked.contains_key(&handle)
    }

    fn is_ended(&self, holder: Holder) -> bool {
        self.revoked_holders.contains_key(&holder) || self.revoked_accounts.contains_key(&holder.account())
    }

    fn flow(&self, key: &FlowKey) -> Option<Flow> {
        self.flows.get(key).copied()
    }

    fn grant(&self, handle: Handle) -> Option<GrantUse> {
        self.grants.get(&handle).copied()
    }

    fn account(&self, account: u32) -> Option<AccountUse> {
        self.accounts.get(&account).copied()
    }

    fn pair(&self, handle: Handle) -> Option<PairTerms> {
        self.ls_grants.get(&handle).map(PairTerms::of)
    }

    fn replay(&self, once: &Once, _now: u32) -> Replay {
        let seen = match once {
            Once::Token(bytes) => self.tokens.contains(bytes),
            Once::Nonce2(handle, nonce2) => self.ls_grants.get(handle).is_none_or(|pair| pair.is_used(*nonce2)),
            Once::Nothing => false,
        };
        if seen { Replay::Seen } else { Replay::Fresh }
    }

    fn stack(&self, key: &FlowKey) -> Stack {
        self.stack.get(key).copied().unwrap_or_default()
    }

    fn fragment(&self, key: &FlowKey, id: u32) -> Option<u32> {
        self.fragments.get(&(*key, id)).copied()
    }

    fn open_fragment(&self, key: &FlowKey, id: u32) -> Option<u32> {
        self.open_fragments.get(&(*key, id)).copied()
    }
}

impl TablesMut for Verifier {
    fn put_flow(&mut self, key: &FlowKey, flow: Flow) -> bool {
        self.flows.insert(*key, flow);
        true
    }

    fn put_grant(&mut self, handle: Handle, used: GrantUse) -> bool {
        self.grants.insert(handle, used);
        true
    }

    fn put_account(&mut self, account: u32, used: AccountUse) -> bool {
        self.accounts.insert(account, used);
        true
    }

    fn remember(&mut self, once: &Once, _now: u32) {
        match once {
            Once::Token(bytes) => {
                self.tokens.insert(*bytes);
            }
            Once::Nonce2(handle, nonce2) => {
                if let Some(pair) = self.ls_grants.get_mut(handle) {
                    pair.take(*nonce2);
                }
            }
            Once::Nothing => {}
        }
    }

    fn put_fragment(&mut self, key: &FlowKey, id: u32, now: u32) {
        self.fragments.insert((*key, id), now);
    }

    fn put_open_fragment(&mut self, key: &FlowKey, id: u32, now: u32) {
        self.open_fragments.insert((*key, id), now);
    }
}
