//! The grants and pairs that an authority issues while a fuzzer runs. A handle never refers to a second grant.

use super::chance::Chance;
use crate::world::{self, Family, Grant, LsPair, master};
use std::collections::BTreeMap;
use wire::{Epoch, Flags, Handle, Holder, Pair, Suite};

const ACCOUNTS: usize = 6;
const SESSIONS: usize = 2;
/// Number of grants that clients keep, including expired ones.
const GRANTS: usize = 48;
/// Number of pairs that the authority announces at a time.
const PAIRS: usize = 6;

/// The grants and pairs issued so far.
#[derive(Default)]
pub struct Given {
    grants: Vec<Grant>,
    pub pairs: Vec<LsPair>,
    /// The number of the next pair.
    next_pair: u32,
    newcomers: u32,
    /// Current session of each person.
    sessions: [[u8; SESSIONS]; ACCOUNTS],
    /// All grants of a holder, and the latest of their expiries.
    by_holder: BTreeMap<Holder, (Vec<Handle>, u32)>,
    /// The last token made, for replay.
    pub last: Option<[u8; 36]>,
}

impl Given {
    /// Returns the present session of a random person.
    pub fn holder(&self, chance: &mut Chance) -> Holder {
        let (account, session) = (chance.below(ACCOUNTS), chance.below(SESSIONS));
        let number = 2 * self.sessions[account][session] + session as u8;
        Holder::new(1 + account as u32, number).expect("a small account")
    }

    /// Returns a holder who has no flows yet.
    pub fn newcomer(&mut self) -> Holder {
        self.newcomers += 1;
        Holder::new(1000 + self.newcomers, 1).expect("few accounts")
    }

    /// Issues a new grant for everything at the family's server to this holder.
    pub fn grant(&mut self, chance: &mut Chance, family: &Family, holder: Holder, now: u32) -> Grant {
        let epoch = Epoch::at(now.into(), world::EPOCH_LENGTH);
        let key = master().verifier_key("edge-1", epoch).expect("a short id");
        let handle = holder.handle(&key, chance.next() as u32);
        let mut grant =
            Grant { epoch, expires: now + 31 + chance.below(3000) as u32, handle: handle.0, ..Grant::new(family, 0) };
        if chance.one_in(3) {
            grant.suite = Suite::AesCmac;
        }
        if chance.one_in(4) {
            grant.flags = grant.flags.with(chance.pick(&[Flags::SOURCE, Flags::REPLY, Flags::SINGLE, Flags::SEALED]));
        }
        if chance.one_in(8) {
            grant.flags = Flags(grant.flags.0 & !Flags::PORT.0);
            grant.prefix_length = chance.below(usize::from(grant.prefix_length) + 1) as u8;
        }
        let (handles, last) = self.by_holder.entry(holder).or_default();
        handles.push(handle);
        *last = (*last).max(grant.expires);
        if self.grants.len() < GRANTS {
            self.grants.push(grant);
        } else {
            let place = chance.below(GRANTS);
            self.grants[place] = grant;
        }
        grant
    }

    /// Returns a random grant of this family.
    pub fn any(&mut self, chance: &mut Chance, family: &Family, now: u32) -> Grant {
        // Mostly grants that have not expired.
        let fresh = !chance.one_in(8);
        let fits =
            |grant: &Grant| is_of(grant, family) && (!fresh || grant.expires > now && grant.expires - now < 3600);
        let known: Vec<Grant> = self.grants.iter().copied().filter(fits).collect();
        let mut grant = match known[..] {
            [] => None,
            _ if chance.one_in(8) => None,
            _ => Some(chance.pick(&known)),
        }
        .unwrap_or_else(|| {
            let holder = self.holder(chance);
            self.grant(chance, family, holder, now)
        });
        let current = Epoch::at(now.into(), world::EPOCH_LENGTH);
        let other = (grant.epoch, grant.expires);
        match chance.below(40) {
            0 => grant.epoch = Epoch(current.0 - 1),
            1 => grant.epoch = Epoch(current.0 + 1),
            2 => grant.epoch = Epoch(current.0 - 2),
            3 => grant.expires = now,
            4 => grant.expires = now + 3601,
            5 => grant.source = family.stranger,
            _ => {}
        }
        if other != (grant.epoch, grant.expires) {
            grant.handle = 1 << 56 | chance.next() >> 8;
        }
        grant
    }

    /// Returns a random grant to be revoked.
    pub fn victim(&self, chance: &mut Chance) -> Option<Grant> {
        (!self.grants.is_empty()).then(|| self.grants[chance.below(self.grants.len())])
    }

    /// Ends a session; returns its grants and the latest of their expiries. The person then logs in again.
    pub fn end_session(&mut self, holder: Holder) -> (Vec<Handle>, u32) {
        let session = &mut self.sessions[holder.account() as usize - 1][usize::from(holder.session() % 2)];
        *session = (*session + 1) % 128;
        self.by_holder.remove(&holder).unwrap_or_default()
    }

    /// Issues another pair, in place of an older one.
    pub fn pair(&mut self, chance: &mut Chance, now: u32) -> LsPair {
        let number = self.next_pair;
        self.next_pair += 1;
        let [a, b, c, d] = number.to_be_bytes();
        let pair = Pair { unique_id: [b'p', a, b, c, d], nonce1: [c, d] };
        let epoch = Epoch(Epoch::at(now.into(), world::EPOCH_LENGTH).0 - u64::from(number % 2));
        let pair =
            LsPair { pair, epoch, expires: now + 120 + chance.below(900) as u32, holder: Holder(1 + number % 5) };
        if self.pairs.len() >= PAIRS {
            self.pairs.remove(0);
        }
        self.pairs.push(pair);
        pair
    }

    /// Returns a random issued pair, or occasionally one that was never announced.
    pub fn any_pair(&self, chance: &mut Chance) -> LsPair {
        if self.pairs.is_empty() || chance.one_in(PAIRS + 1) {
            return LsPair::new(200);
        }
        chance.pick(&self.pairs)
    }
}

fn is_of(grant: &Grant, family: &Family) -> bool {
    grant.flags.has(Flags::IPV6) == family.server.is_ipv6()
}
