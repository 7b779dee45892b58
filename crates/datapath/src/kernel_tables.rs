//! The kernel's maps as read-only tables for decisions about packets. `verifier explain` uses them.

use crate::verifier::Verifier;
use engine::verifier::{Once, PairTerms, Replay, Tables};
use std::cell::OnceCell;
use std::net::IpAddr;
use wire::map::{
    AccountUse, Flow, FlowKey, GrantUse, OptionalService, Prefix4, Prefix6, ReplayBucket, ReplayLook, Services,
    VerifierConfig,
};
use wire::token::TOKEN_LEN;
use wire::{Epoch, Handle, Holder, VerifierKey};

/// Read access to the maps of a verifier's programs. A map that can't be read counts as empty.
pub struct KernelTables<'a> {
    verifier: &'a Verifier,
    in_tunnel: bool,
    room: OnceCell<Room>,
}

/// Whether each of these tables has room for one more entry.
struct Room {
    flows4: bool,
    flows6: bool,
    grants: bool,
    accounts: bool,
}

impl<'a> KernelTables<'a> {
    /// Creates a view of the live maps. The view counts the maps' entries only once: when a decision first asks whether
    /// a map has room.
    pub fn new(verifier: &'a Verifier) -> Self {
        Self { verifier, in_tunnel: false, room: OnceCell::new() }
    }

    /// Makes this view decide about packets that came out of a sealed tunnel.
    pub fn in_tunnel(self) -> Self {
        Self { in_tunnel: true, ..self }
    }

    /// Creates a view that reports every map as not full. The view counts no entries, because counting takes longer
    /// than a decision.
    pub fn with_room(verifier: &'a Verifier) -> Self {
        let room = Room { flows4: true, flows6: true, grants: true, accounts: true };
        Self { verifier, in_tunnel: false, room: OnceCell::from(room) }
    }

    fn room(&self) -> &Room {
        self.room.get_or_init(|| {
            let Verifier { flows, grants, accounts, .. } = self.verifier;
            let keys = flows.keys();
            let four = keys.iter().filter(|key| key.family == 4).count();
            let fits = |used: usize, most: u32| used < most as usize;
            Room {
                flows4: fits(four, flows.capacity()),
                flows6: fits(keys.len() - four, flows.capacity()),
                grants: fits(grants.keys().len(), grants.capacity()),
                accounts: fits(accounts.keys().len(), accounts.capacity()),
            }
        })
    }

    fn token_seen(&self, token: &[u8; TOKEN_LEN], now: u32) -> Option<Replay> {
        let (time, tag) = (token.get(16..)?.first_chunk()?, token.last_chunk()?);
        let config = self.config();
        let index = ReplayBucket::index(tag, config.replay_seed, config.replay_mask);
        let bucket = self.verifier.replays.get(&index).ok().flatten()?;
        Some(match bucket.look(tag, u32::from_be_bytes(*time), now) {
            ReplayLook::Fresh => Replay::Fresh,
            ReplayLook::Seen => Replay::Seen,
            ReplayLook::Full => Replay::Full,
        })
    }
}

impl Tables for KernelTables<'_> {
    fn config(&self) -> &VerifierConfig {
        self.verifier.config()
    }

    fn at_tc(&self) -> bool {
        self.verifier.hook() == crate::hook::Hook::Tc
    }

    fn in_tunnel(&self) -> bool {
        self.in_tunnel
    }

    fn services(&self, address: IpAddr) -> Option<Services> {
        let protected = &self.verifier.protected;
        let found = match address {
            IpAddr::V4(address) => protected.four.get(&Prefix4 { length: 32, address: address.octets() }),
            IpAddr::V6(address) => protected.six.get(&Prefix6 { length: 128, address: address.octets() }),
        };
        found.ok().flatten()
    }

    fn is_optional(&self, address: IpAddr, port: u16) -> bool {
        self.verifier.optional.get(&OptionalService::new(address, port)).ok().flatten().is_some()
    }

    fn has_forgotten(&self, time: u32) -> bool {
        self.verifier.forgotten().map_or(true, |forgotten| forgotten.contains(time))
    }

    fn key(&self, epoch: Epoch) -> Option<VerifierKey> {
        self.verifier.key(epoch)
    }

    fn is_revoked(&self, handle: Handle) -> bool {
        self.verifier.revoked.get(handle.0).ok().flatten().is_some()
    }

    fn is_ended(&self, holder: Holder) -> bool {
        self.verifier.revoked_holders.contains(holder).unwrap_or_default()
    }

    fn flow(&self, key: &FlowKey) -> Option<Flow> {
        self.verifier.flows.get(key).ok().flatten()
    }

    fn grant(&self, handle: Handle) -> Option<GrantUse> {
        self.verifier.grants.get(&handle.0).ok().flatten()
    }

    fn account(&self, account: u32) -> Option<AccountUse> {
        self.verifier.accounts.get(&account).ok().flatten()
    }

    fn pair(&self, handle: Handle) -> Option<PairTerms> {
        let pair = self.verifier.ls_grants.get(&handle.0).ok().flatten()?;
        Some(PairTerms::of(&pair))
    }

    fn replay(&self, once: &Once, now: u32) -> Replay {
        match once {
            Once::Token(token) => self.token_seen(token, now).unwrap_or(Replay::Full),
            Once::Nonce2(handle, nonce2) => {
                let pair = self.verifier.ls_grants.get(&handle.0).ok().flatten();
                if pair.is_none_or(|pair| pair.is_used(*nonce2)) { Replay::Seen } else { Replay::Fresh }
            }
            Once::Nothing => Replay::Fresh,
        }
    }

    fn fragment(&self, key: &FlowKey, id: u32) -> Option<u32> {
        self.verifier.fragments.get(&fragment_key(*key, id)).ok().flatten()
    }

    fn open_fragment(&self, key: &FlowKey, id: u32) -> Option<u32> {
        self.verifier.open_fragments.get(&fragment_key(*key, id)).ok().flatten()
    }

    fn has_room_for_flow(&self, key: &FlowKey) -> bool {
        if key.family == 4 { self.room().flows4 } else { self.room().flows6 }
    }

    fn has_room_for_grant(&self) -> bool {
        self.room().grants
    }

    fn has_room_for_account(&self) -> bool {
        self.room().accounts
    }
}

/// Returns the key for a first fragment. Its identification takes the place of the ports, in host byte order.
fn fragment_key(mut key: FlowKey, id: u32) -> FlowKey {
    key.client_port = ((id >> 16) as u16).to_ne_bytes();
    key.server_port = (id as u16).to_ne_bytes();
    key
}
