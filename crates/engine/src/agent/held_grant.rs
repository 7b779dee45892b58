//! Grants that the agent has: what they cover, when they are renewed, and their entries in the kernel.

use super::frame::Sender;
use crate::model::{Grant, Sealing, Secret};
use ipnet::IpNet;
use std::collections::BTreeSet;
use std::time::Duration;
use wire::map::GrantEntry;
use wire::{Carrier, Destination, Flags, Handle, Token, ls};

/// The agent stops using a grant this many seconds before the grant ends, to allow for travel time and for clock
/// differences.
const MARGIN: u64 = 3;
/// The agent renews a short grant this many seconds before the grant ends.
const RENEW_BEFORE: u64 = 30;
/// Number of used nonces at which the agent renews a pair. The remaining nonces last until the next pair arrives.
const SPENT_MOST: u32 = ls::SENDERS_NONCES / 4 * 3;

/// Maximum length of a text that the agent keeps from an authority's answer, in characters. A session can keep
/// thousands of such texts.
const TEXT_MAX: usize = 512;

/// Reason why the agent can't make tokens from a grant that it received.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    /// The grant has ended, or ends so soon that no packet would arrive in time. Possible reasons: a time window of the
    /// rule closes, or the answer was delayed.
    #[error("the grant has expired already")]
    Over,
    /// The grant admits packets only inside a sealed tunnel, and this agent has no sealed tunnels.
    #[error(
        "the grant's rule demands a sealed tunnel, but this agent was built without sealed tunnels: the packets are \
        not sent"
    )]
    Sealed,
    /// The grant in the answer does not fit the request. The text is the reason.
    #[error("{0}")]
    Malformed(&'static str),
}

/// A grant that the agent holds. Has no `Debug` because it contains the key.
pub(super) struct HeldGrant {
    secret: Secret,
    /// End of the grant, Unix seconds.
    pub expires: u32,
    pub prefix: IpNet,
    /// The protocol and port if the grant covers one service only, otherwise `None`.
    pub service: Option<(u8, u16)>,
    pub carrier: Carrier,
    pub receiver: String,
    pub rule: String,
    /// The protection that the rule demands in a sealed tunnel.
    pub sealing: Sealing,
    /// Time at which this process got the grant, Unix seconds.
    pub issued: u64,
    /// Time at which a token was last made from the grant, Unix seconds; 0 if never.
    pub used: u32,
    /// Number of used nonces, if the grant is a pair.
    pub spent: u32,
    /// Boot-clock time at which to renew the grant.
    pub renew_at: Duration,
    /// Destinations for which the kernel has this grant.
    pub places: BTreeSet<Destination>,
    /// The flow to which the grant is assigned, if it is a grant for a single flow.
    pub flow: Option<(Destination, Sender)>,
}

impl HeldGrant {
    /// Reads the grant from an answer to a request for `place`.
    ///
    /// # Errors
    ///
    /// Returns the reason why the agent can't make tokens from the grant.
    pub fn from_answer(answer: &Grant, place: &Destination, unix: u64, now: Duration) -> Result<Self, Unusable> {
        let secret = answer.secret.clone();
        let service = match &secret {
            Secret::Grant(header, _) => header.flags.has(Flags::PORT).then_some((place.protocol, place.port)),
            Secret::Pair(..) => None,
        };
        let expires = if let Secret::Grant(header, _) = &secret { header.expires } else { answer.expires };
        let grant = Self::new(secret, expires, answer.prefix, service, unix, now);
        let carrier = answer.carrier;
        if carrier == Carrier::Shim && place.address.is_ipv6() {
            return Err(Unusable::Malformed("the grant's carrier is for IPv4 only"));
        }
        let fits = match &grant.secret {
            Secret::Grant(header, _) if header.flags.has(Flags::BEARER) => {
                return Err(Unusable::Malformed("the grant's suite is for proofs, not for tokens"));
            }
            Secret::Pair(..) if carrier != Carrier::Shim => {
                return Err(Unusable::Malformed("tokens of the grant's suite require the carrier shim"));
            }
            Secret::Grant(header, _) => {
                header.prefix_length == answer.prefix.prefix_len()
                    && header.flags.has(Flags::IPV6) == place.address.is_ipv6()
            }
            Secret::Pair(..) => true,
        };
        if !fits || !grant.prefix.contains(&place.address) {
            return Err(Unusable::Malformed("the grant is not for the requested destination"));
        }
        if !grant.is_good(unix) {
            return Err(Unusable::Over);
        }
        let (receiver, rule) = (shortened(&answer.receiver), shortened(&answer.rule));
        Ok(Self { carrier, receiver, rule, sealing: answer.sealing, ..grant })
    }

    /// Restores the grant from an entry that an earlier process wrote into the kernel. Returns `None` if the entry has
    /// no secret, or if its grant can't be used any more.
    pub fn from_entry(entry: &GrantEntry, place: &Destination, unix: u64, now: Duration) -> Option<Self> {
        let secret = Secret::of_entry(entry)?;
        // The entry does not say which tunnel takes the packets.
        if matches!(&secret, Secret::Grant(header, _) if header.flags.has(Flags::SEALED)) {
            return None;
        }
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
            sealing: Sealing::NONE,
            issued: unix,
            used: 0,
            spent: 0,
            renew_at: now + Duration::from_secs(renew_after),
            places: BTreeSet::new(),
            flow: None,
        }
    }

    /// Returns the grant's handle.
    pub fn handle(&self) -> Handle {
        match &self.secret {
            Secret::Grant(header, _) => header.handle,
            Secret::Pair(pair, _) => pair.handle(),
        }
    }

    /// Returns the name of the suite of the grant's tokens.
    pub fn suite(&self) -> &'static str {
        match &self.secret {
            Secret::Grant(header, _) => header.suite.name(),
            Secret::Pair(..) => ls::NAME,
        }
    }

    /// Makes the token for one first packet; returns `None` for a pair, whose tokens have another form.
    pub fn token(&self, to: &Destination, time: u32, nonce: u32) -> Option<Token> {
        match &self.secret {
            Secret::Grant(header, key) => Some(Token::new(*header, key, time, nonce, to)),
            Secret::Pair(..) => None,
        }
    }

    fn has(&self, flag: Flags) -> bool {
        matches!(&self.secret, Secret::Grant(header, _) if header.flags.has(flag))
    }

    /// Reports whether the grant is a pair, whose tokens are those of the published scheme (suite `sha224`).
    pub fn is_pair(&self) -> bool {
        matches!(self.secret, Secret::Pair(..))
    }

    /// Reports whether the grant's prefix and service include this destination.
    pub fn covers(&self, place: &Destination) -> bool {
        self.prefix.contains(&place.address) && self.service.is_none_or(|own| own == (place.protocol, place.port))
    }

    /// Reports whether the grant can be used at this time.
    pub fn is_good(&self, unix: u64) -> bool {
        self.lasts(unix) && self.spent < ls::SENDERS_NONCES
    }

    /// Reports whether the grant lasts long enough for a packet with its token to arrive.
    pub fn lasts(&self, unix: u64) -> bool {
        self.until() > unix + 1
    }

    fn until(&self) -> u64 {
        u64::from(self.expires).saturating_sub(MARGIN)
    }

    /// Reports whether it is time for the agent to request a new grant in place of this one.
    pub fn is_due(&self, now: Duration) -> bool {
        (self.renew_at <= now || self.spent >= SPENT_MOST) && !self.is_single()
    }

    /// Reports whether the grant admits a single flow only.
    pub fn is_single(&self) -> bool {
        self.has(Flags::SINGLE)
    }

    /// Reports whether the grant is bound to an address of this machine.
    pub fn is_bound(&self) -> bool {
        self.has(Flags::SOURCE)
    }

    /// Returns the grant's entry for the kernel. The authority's clock is `skew` seconds ahead of the kernel's.
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

/// Shortens a text from an authority's answer to the length that the agent keeps.
pub(super) fn shortened(text: &str) -> String {
    text.chars().take(TEXT_MAX).collect()
}

/// Converts a time of the authority's clock to the kernel's clock.
fn local(until: u64, skew: i32) -> u32 {
    u32::try_from(until.saturating_add_signed(-i64::from(skew))).unwrap_or(u32::MAX)
}

/// Returns the entry that makes the kernel send packets without identity until `until`, a time by the authority's
/// clock. The authority's clock is `skew` seconds ahead of the kernel's.
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
