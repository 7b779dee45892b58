//! Tables that a decision can change without changing the underlying tables, because an overlay keeps the changes.

use super::tables::{Once, PairTerms, Replay, Stack, Tables, TablesMut};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use wire::map::{AccountUse, Flow, FlowKey, GrantUse, Services, VerifierConfig};
use wire::{Epoch, Handle, Holder, VerifierKey};

/// A decision's changes on top of tables that must not change. Only this decision sees the changes.
pub struct Overlay<'a, T> {
    below: &'a T,
    flows: BTreeMap<FlowKey, Flow>,
    grants: BTreeMap<Handle, GrantUse>,
    accounts: BTreeMap<u32, AccountUse>,
    tokens: BTreeSet<Once>,
    fragments: BTreeMap<(FlowKey, u32), u32>,
    open_fragments: BTreeMap<(FlowKey, u32), u32>,
}

impl<'a, T: Tables> Overlay<'a, T> {
    /// Creates an overlay without changes.
    pub fn new(below: &'a T) -> Self {
        Self {
            below,
            flows: BTreeMap::new(),
            grants: BTreeMap::new(),
            accounts: BTreeMap::new(),
            tokens: BTreeSet::new(),
            fragments: BTreeMap::new(),
            open_fragments: BTreeMap::new(),
        }
    }
}

impl<T: Tables> Tables for Overlay<'_, T> {
    fn config(&self) -> &VerifierConfig {
        self.below.config()
    }

    fn at_tc(&self) -> bool {
        self.below.at_tc()
    }

    fn in_tunnel(&self) -> bool {
        self.below.in_tunnel()
    }

    fn services(&self, address: IpAddr) -> Option<Services> {
        self.below.services(address)
    }

    fn is_optional(&self, address: IpAddr, port: u16) -> bool {
        self.below.is_optional(address, port)
    }

    fn has_forgotten(&self, time: u32) -> bool {
        self.below.has_forgotten(time)
    }

    fn key(&self, epoch: Epoch) -> Option<VerifierKey> {
        self.below.key(epoch)
    }

    fn is_revoked(&self, handle: Handle) -> bool {
        self.below.is_revoked(handle)
    }

    fn is_ended(&self, holder: Holder) -> bool {
        self.below.is_ended(holder)
    }

    fn flow(&self, key: &FlowKey) -> Option<Flow> {
        self.flows.get(key).copied().or_else(|| self.below.flow(key))
    }

    fn grant(&self, handle: Handle) -> Option<GrantUse> {
        self.grants.get(&handle).copied().or_else(|| self.below.grant(handle))
    }

    fn account(&self, account: u32) -> Option<AccountUse> {
        self.accounts.get(&account).copied().or_else(|| self.below.account(account))
    }

    fn pair(&self, handle: Handle) -> Option<PairTerms> {
        self.below.pair(handle)
    }

    fn replay(&self, once: &Once, now: u32) -> Replay {
        if self.tokens.contains(once) { Replay::Seen } else { self.below.replay(once, now) }
    }

    fn fragment(&self, key: &FlowKey, id: u32) -> Option<u32> {
        self.fragments.get(&(*key, id)).copied().or_else(|| self.below.fragment(key, id))
    }

    fn open_fragment(&self, key: &FlowKey, id: u32) -> Option<u32> {
        self.open_fragments.get(&(*key, id)).copied().or_else(|| self.below.open_fragment(key, id))
    }

    fn stack(&self, key: &FlowKey) -> Stack {
        self.below.stack(key)
    }

    fn has_room_for_flow(&self, key: &FlowKey) -> bool {
        self.below.has_room_for_flow(key)
    }

    fn has_room_for_grant(&self) -> bool {
        self.below.has_room_for_grant()
    }

    fn has_room_for_account(&self) -> bool {
        self.below.has_room_for_account()
    }
}

impl<T: Tables> TablesMut for Overlay<'_, T> {
    fn put_flow(&mut self, key: &FlowKey, flow: Flow) -> bool {
        let fits = self.flow(key).is_some() || self.has_room_for_flow(key);
        if fits {
            self.flows.insert(*key, flow);
        }
        fits
    }

    fn put_grant(&mut self, handle: Handle, used: GrantUse) -> bool {
        let fits = self.grant(handle).is_some() || self.has_room_for_grant();
        if fits {
            self.grants.insert(handle, used);
        }
        fits
    }

    fn put_account(&mut self, account: u32, used: AccountUse) -> bool {
        let fits = self.account(account).is_some() || self.has_room_for_account();
        if fits {
            self.accounts.insert(account, used);
        }
        fits
    }

    fn remember(&mut self, once: &Once, _now: u32) {
        self.tokens.insert(*once);
    }

    fn put_fragment(&mut self, key: &FlowKey, id: u32, now: u32) {
        self.fragments.insert((*key, id), now);
    }

    fn put_open_fragment(&mut self, key: &FlowKey, id: u32, now: u32) {
        self.open_fragments.insert((*key, id), now);
    }
}
