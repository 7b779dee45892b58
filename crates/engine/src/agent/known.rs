//! Grants that the agent holds: what they cover, when they are renewed, what the kernel gets of them.

use super::Place;
use super::frame::Sender;
use crate::api;
use crate::insertion::Secret;
use ipnet::IpNet;
use std::collections::BTreeSet;
use std::time::Duration;
use wire::map::GrantEntry;
use wire::{Carrier, ClientKey, Flags, GrantHeader, GrantKey, Handle, Pair, ls};

/// Seconds before its end at which a grant is no longer used: the packet travels, and clocks differ.
const MARGIN: u64 = 3;
/// Seconds before its end at which a short grant is renewed.
const RENEW_BEFORE: u64 = 30;
/// After so many of its nonces a pair is renewed: the rest lasts until the next one is there.
const SPENT_MOST: u32 = ls::SENDERS_NONCES / 4 * 3;

/// Why an agent makes no tokens from a grant that it was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    /// It is over, or so nearly that no packet would arrive in time: a time window closes, or the answer was long on its way.
    #[error("it has ended already")]
    Over,
    /// It is not what was asked for.
    #[error("{0}")]
    Malformed(&'static str),
}

/// A grant. Has no `Debug`: it holds the key.
pub(super) struct Known {
    secret: Secret,
    /// When it ends, Unix seconds.
    pub expires: u32,
    pub prefix: IpNet,
    /// The protocol and port, if the grant is for one.
    pub service: Option<(u8, u16)>,
    pub carrier: Carrier,
    pub receiver: String,
    pub rule: String,
    /// Unix seconds.
    pub issued: u64,
    /// When a token was last made from it, Unix seconds.
    pub used: u32,
    /// How many nonces of a pair were used.
    pub spent: u32,
    /// When to renew it.
    pub renew_at: Duration,
    /// The destinations that the kernel has it for.
    pub places: BTreeSet<Place>,
    /// The flow of a grant for a single one.
    pub flow: Option<(Place, Sender)>,
}

impl Known {
    /// The grant in an answer to a request for `place`; an error says what is wrong with it.
    pub fn from_answer(answer: &api::Grant, place: &Place, unix: u64, now: Duration) -> Result<Self, Unusable> {
        let expires = u32::try_from(answer.expires).map_err(|_| Unusable::Malformed("it would never end"))?;
        let secret = secret_of(answer)?;
        let service = match &secret {
            Secret::Grant(header, _) => header.flags.has(Flags::PORT).then_some((place.protocol, place.port)),
            Secret::Pair(..) => None,
        };
        let expires = if let Secret::Grant(header, _) = &secret { header.expires } else { expires };
        let grant = Self::new(secret, expires, answer.prefix, service, unix, now);
        let carrier = Carrier::from_name(&answer.carrier);
        let carrier = carrier.ok_or(Unusable::Malformed("it wants a carrier that this agent doesn't have"))?;
        if carrier == Carrier::Shim && place.address.is_ipv6() {
            return Err(Unusable::Malformed("its carrier is for IPv4 only"));
        }
        let fits = match &grant.secret {
            Secret::Grant(header, _) if header.flags.has(Flags::BEARER) => {
                return Err(Unusable::Malformed("it is for proofs, not for tokens"));
            }
            Secret::Pair(..) if carrier != Carrier::Shim => {
                return Err(Unusable::Malformed("tokens of its suite travel by shim only"));
            }
            Secret::Grant(header, _) => {
                header.prefix_length == answer.prefix.prefix_len()
                    && header.flags.has(Flags::IPV6) == place.address.is_ipv6()
            }
            Secret::Pair(..) => true,
        };
        if !fits || !grant.prefix.contains(&place.address) {
            return Err(Unusable::Malformed("it is for another destination"));
        }
        if !grant.is_good(unix) {
            return Err(Unusable::Over);
        }
        Ok(Self { carrier, receiver: answer.receiver.clone(), rule: answer.rule.clone(), ..grant })
    }

    /// The grant behind what an earlier process wrote into the kernel.
    pub fn from_entry(entry: &GrantEntry, place: &Place, unix: u64, now: Duration) -> Option<Self> {
        let secret = Secret::of_entry(entry)?;
        let (expires, prefix_length, service) = match &secret {
            Secret::Grant(header, _) => {
                let service = header.flags.has(Flags::PORT).then_some((place.protocol, place.port));
                (header.expires, header.prefix_length, service)
            }
            Secret::Pair(..) => {
                let [.., e0, e1, e2, e3, prefix_length, _, _, _] = entry.header;
                (u32::from_be_bytes([e0, e1, e2, e3]), prefix_length, None)
            }
        };
        let prefix = IpNet::new(place.address, prefix_length).ok()?.trunc();
        let grant = Self::new(secret, expires, prefix, service, unix, now);
        let carrier = Carrier::from_number(entry.carrier).unwrap_or_default();
        grant.is_good(unix).then_some(Self { carrier, used: entry.used, spent: entry.spent, ..grant })
    }

    fn new(secret: Secret, expires: u32, prefix: IpNet, service: Option<(u8, u16)>, unix: u64, now: Duration) -> Self {
        let lifetime = u64::from(expires).saturating_sub(unix);
        let renew_after = match lifetime.checked_sub(RENEW_BEFORE) {
            Some(rest) if rest > 0 => (lifetime * 2 / 3).min(rest),
            _ => lifetime * 2 / 3,
        };
        Self {
            secret,
            expires,
            prefix: prefix.trunc(),
            service,
            carrier: Carrier::Tail,
            receiver: String::new(),
            rule: String::new(),
            issued: unix,
            used: 0,
            spent: 0,
            renew_at: now + Duration::from_secs(renew_after),
            places: BTreeSet::new(),
            flow: None,
        }
    }

    /// Its identifier.
    pub fn handle(&self) -> Handle {
        match &self.secret {
            Secret::Grant(header, _) => header.handle,
            Secret::Pair(pair, _) => pair.handle(),
        }
    }

    /// The suite's name.
    pub fn suite(&self) -> &'static str {
        match &self.secret {
            Secret::Grant(header, _) => header.suite.name(),
            Secret::Pair(..) => ls::NAME,
        }
    }

    fn has(&self, flag: Flags) -> bool {
        matches!(&self.secret, Secret::Grant(header, _) if header.flags.has(flag))
    }

    /// Whether its tokens are those of the scheme of LS.
    pub fn is_pair(&self) -> bool {
        matches!(self.secret, Secret::Pair(..))
    }

    /// Whether packets to this destination may use it.
    pub fn covers(&self, place: &Place) -> bool {
        self.prefix.contains(&place.address) && self.service.is_none_or(|own| own == (place.protocol, place.port))
    }

    /// Whether it can be used at this time.
    pub fn is_good(&self, unix: u64) -> bool {
        self.until() > unix + 1 && self.spent < ls::SENDERS_NONCES
    }

    fn until(&self) -> u64 {
        u64::from(self.expires).saturating_sub(MARGIN)
    }

    /// Whether its successor is to be asked for.
    pub fn is_due(&self, now: Duration) -> bool {
        (self.renew_at <= now || self.spent >= SPENT_MOST) && !self.is_single()
    }

    /// Whether it admits one flow only.
    pub fn is_single(&self) -> bool {
        self.has(Flags::SINGLE)
    }

    /// Whether it is bound to an address of this machine.
    pub fn is_bound(&self) -> bool {
        self.has(Flags::SOURCE)
    }

    /// Whether a frame from `sender` may use it: a grant for a single flow is that flow's.
    pub fn serves(&self, place: &Place, sender: Option<Sender>) -> bool {
        !self.is_single() || self.flow.is_none() || sender.is_some_and(|sender| self.flow == Some((*place, sender)))
    }

    /// What the kernel needs of it, where the authority's clock is `skew` seconds ahead of the kernel's.
    pub fn entry(&self, skew: i32) -> GrantEntry {
        let mut entry = GrantEntry {
            until: local(self.until(), skew),
            used: self.used,
            plain: 0,
            carrier: self.carrier as u8,
            spent: self.spent,
            ..plain_entry(0, skew)
        };
        match &self.secret {
            Secret::Grant(header, key) => {
                entry.suite = header.suite as u8;
                entry.header = header.encode();
                entry.key[..key.bytes().len()].copy_from_slice(key.bytes());
            }
            Secret::Pair(pair, key) => {
                entry.suite = ls::SUITE;
                entry.header[..ls::PAIR_LEN].copy_from_slice(&pair.bytes());
                entry.header[8..12].copy_from_slice(&self.expires.to_be_bytes());
                entry.header[12] = self.prefix.prefix_len();
                entry.key[..ls::HASH_LEN].copy_from_slice(key.bytes());
            }
        }
        entry
    }
}

/// A pair has a shorter header and a longer key than a grant of wire.md §3.
fn secret_of(answer: &api::Grant) -> Result<Secret, Unusable> {
    if let Some(pair) = bytes(&answer.header).map(Pair::from_bytes) {
        let key = bytes(&answer.key).ok_or(Unusable::Malformed("its client key can't be read"))?;
        return Ok(Secret::Pair(pair, ClientKey::new(key)));
    }
    let header = bytes(&answer.header).and_then(|bytes| GrantHeader::decode(&bytes).ok());
    let header = header.ok_or(Unusable::Malformed("its header can't be read"))?;
    let key = bytes(&answer.key).ok_or(Unusable::Malformed("its key can't be read"))?;
    Ok(Secret::Grant(header, GrantKey::new(key)))
}

fn bytes<const N: usize>(text: &str) -> Option<[u8; N]> {
    hex::decode(text).ok()?.try_into().ok()
}

/// The authority's time by the kernel's clock.
fn local(until: u64, skew: i32) -> u32 {
    u32::try_from(until.saturating_add_signed(-i64::from(skew))).unwrap_or(u32::MAX)
}

/// What the kernel is told so that packets go without identity until then.
pub(super) fn plain_entry(until: u64, skew: i32) -> GrantEntry {
    GrantEntry {
        until: local(until, skew),
        used: 0,
        plain: 1,
        suite: 0,
        carrier: 0,
        reserved: 0,
        skew,
        header: [0; 16],
        key: [0; 32],
        spent: 0,
        reserved2: 0,
    }
}
