//! Grants that the agent holds: what they cover, when they are renewed, what the kernel gets of them.

use super::Place;
use super::frame::Sender;
use crate::api;
use ipnet::IpNet;
use std::collections::BTreeSet;
use std::time::Duration;
use wire::map::GrantEntry;
use wire::{Carrier, Flags, GrantHeader, GrantKey};

/// Seconds before its end at which a grant is no longer used: the packet travels, and clocks differ.
const MARGIN: u64 = 3;
/// Seconds before its end at which a short grant is renewed.
const RENEW_BEFORE: u64 = 30;

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
    pub header: GrantHeader,
    key: GrantKey,
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
        let bytes = |text: &str| -> Option<[u8; 16]> { hex::decode(text).ok()?.try_into().ok() };
        let header = bytes(&answer.header).and_then(|bytes| GrantHeader::decode(&bytes).ok());
        let header = header.ok_or(Unusable::Malformed("its header can't be read"))?;
        let key = GrantKey::new(bytes(&answer.key).ok_or(Unusable::Malformed("its key can't be read"))?);
        let grant = Self::new(header, key, answer.prefix, place, unix, now);
        let carrier = Carrier::from_name(&answer.carrier);
        let carrier = carrier.ok_or(Unusable::Malformed("it wants a carrier that this agent doesn't have"))?;
        if carrier == Carrier::Shim && place.address.is_ipv6() {
            return Err(Unusable::Malformed("its carrier is for IPv4 only"));
        }
        if header.flags.has(Flags::BEARER) {
            return Err(Unusable::Malformed("it is for proofs, not for tokens"));
        }
        if header.prefix_length != answer.prefix.prefix_len()
            || header.flags.has(Flags::IPV6) != place.address.is_ipv6()
            || !grant.prefix.contains(&place.address)
        {
            return Err(Unusable::Malformed("it is for another destination"));
        }
        if !grant.is_good(unix) {
            return Err(Unusable::Over);
        }
        Ok(Self { carrier, receiver: answer.receiver.clone(), rule: answer.rule.clone(), ..grant })
    }

    /// The grant behind what an earlier process wrote into the kernel.
    pub fn from_entry(entry: &GrantEntry, place: &Place, unix: u64, now: Duration) -> Option<Self> {
        let header = GrantHeader::decode(&entry.header).ok()?;
        let prefix = IpNet::new(place.address, header.prefix_length).ok()?.trunc();
        let grant = Self::new(header, GrantKey::new(entry.key), prefix, place, unix, now);
        let carrier = Carrier::from_number(entry.carrier).unwrap_or_default();
        (entry.plain == 0 && grant.is_good(unix)).then_some(Self { carrier, used: entry.used, ..grant })
    }

    fn new(header: GrantHeader, key: GrantKey, prefix: IpNet, place: &Place, unix: u64, now: Duration) -> Self {
        let lifetime = u64::from(header.expires).saturating_sub(unix);
        let renew_after = match lifetime.checked_sub(RENEW_BEFORE) {
            Some(rest) if rest > 0 => (lifetime * 2 / 3).min(rest),
            _ => lifetime * 2 / 3,
        };
        Self {
            header,
            key,
            prefix: prefix.trunc(),
            service: header.flags.has(Flags::PORT).then_some((place.protocol, place.port)),
            carrier: Carrier::Tail,
            receiver: String::new(),
            rule: String::new(),
            issued: unix,
            used: 0,
            renew_at: now + Duration::from_secs(renew_after),
            places: BTreeSet::new(),
            flow: None,
        }
    }

    /// Whether packets to this destination may use it.
    pub fn covers(&self, place: &Place) -> bool {
        self.prefix.contains(&place.address) && self.service.is_none_or(|own| own == (place.protocol, place.port))
    }

    /// Whether it can be used at this time.
    pub fn is_good(&self, unix: u64) -> bool {
        self.until() > unix + 1
    }

    fn until(&self) -> u64 {
        u64::from(self.header.expires).saturating_sub(MARGIN)
    }

    /// Whether it admits one flow only.
    pub fn is_single(&self) -> bool {
        self.header.flags.has(Flags::SINGLE)
    }

    /// Whether a frame from `sender` may use it: a grant for a single flow is that flow's.
    pub fn serves(&self, place: &Place, sender: Option<Sender>) -> bool {
        !self.is_single() || self.flow.is_none() || sender.is_some_and(|sender| self.flow == Some((*place, sender)))
    }

    /// What the kernel needs of it, where the authority's clock is `skew` seconds ahead of the kernel's.
    pub fn entry(&self, skew: i32) -> GrantEntry {
        GrantEntry {
            until: local(self.until(), skew),
            used: self.used,
            plain: 0,
            suite: self.header.suite as u8,
            carrier: self.carrier as u8,
            reserved: 0,
            skew,
            header: self.header.encode(),
            key: *self.key.bytes(),
        }
    }
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
        key: [0; 16],
    }
}
