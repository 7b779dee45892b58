//! The reasons why tenants got no segments, for people who query the daemon.

use super::segments::{Ordered, in_order};
use crate::view::Refused;
use std::collections::BTreeMap;
use wire::map::SegmentKey;

/// Maximum number of refusals whose reasons are kept. Further refusals are in the kernel's table only, without a
/// reason.
const MOST: usize = 1024;

/// The refusals of tenants' requests.
#[derive(Default)]
pub(super) struct Refusals {
    reasons: BTreeMap<Ordered, String>,
    /// The last refusal, by interface.
    last: BTreeMap<u32, Refused>,
}

impl Refusals {
    /// Records a refusal.
    pub(super) fn note(&mut self, key: &SegmentKey, why: String, at: u64) {
        if self.reasons.len() < MOST || self.reasons.contains_key(&in_order(key)) {
            self.reasons.insert(in_order(key), why.clone());
        }
        self.last.insert(key.interface, Refused { at, why });
    }

    /// Removes the refusals for which `is_kept` returns false.
    pub(super) fn keep(&mut self, is_kept: impl Fn(&Ordered) -> bool) {
        self.reasons.retain(|key, _| is_kept(key));
    }

    /// Returns the reason why the authority refused a request for a segment with this key. Returns `None` if the reason
    /// is unknown.
    pub(super) fn of(&self, key: &SegmentKey) -> Option<String> {
        self.reasons.get(&in_order(key)).cloned()
    }

    /// Returns the last refusal of an interface's tenant.
    pub(super) fn last(&self, interface: u32) -> Option<Refused> {
        self.last.get(&interface).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::Inner;
    use wire::inner::Ports;

    fn key(port: u16) -> SegmentKey {
        let [sender, receiver] = [1, 2].map(|last| [10, 0, 0, last].into());
        SegmentKey::to_service(7, &Inner { sender, receiver, protocol: 6, ports: Ports::Shown(40_000, port) })
    }

    #[test]
    fn what_a_tenant_is_refused_takes_no_more_than_its_room() {
        let mut refusals = Refusals::default();
        let ports = 0..MOST as u16 + 1;
        ports.clone().for_each(|port| refusals.note(&key(port), format!("no rule for {port}"), 5));
        assert_eq!(refusals.of(&key(7)).as_deref(), Some("no rule for 7"));
        assert_eq!(refusals.of(&key(MOST as u16)), None);
        assert_eq!(refusals.last(7).map(|last| last.why), Some(format!("no rule for {MOST}")));
        refusals.keep(|key| *key == in_order(&self::key(7)));
        assert!(refusals.of(&key(7)).is_some() && refusals.of(&key(8)).is_none());
    }
}
