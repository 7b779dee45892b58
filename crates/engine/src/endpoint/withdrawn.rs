//! Withdrawals of consent at a tunnel endpoint, and the segments that they make void (wire.md §8.10).

use super::Endpoint;
use crate::model::Withdrawal;
use std::net::IpAddr;
use wire::SegmentFlags;
use wire::geneve::Encapsulation;
use wire::map::{Consent, SegmentEntry, SegmentKey, segment_state};

impl Endpoint {
    /// Records withdrawals, each with the latest expiry of the segments that it voids. From then on, the endpoint uses
    /// none of these segments, even if one arrives later in an answer of the authority. The caller has to remove each
    /// entry of the kernel's tables for which [`Self::is_void`] or [`Self::voids_consent`] now returns true.
    pub fn withdraw(&mut self, withdrawn: impl IntoIterator<Item = (Withdrawal, u32)>) {
        for (what, until) in withdrawn {
            self.withdrawn.add(what, until);
        }
    }

    /// Removes withdrawals that void only expired segments.
    pub fn sweep(&mut self, now: u32) {
        self.withdrawn.sweep(now);
    }

    /// Reports whether a tenant must not send with this entry of the table of segments. This is the case if the entry's
    /// segment is void, or if the segment for the receiver's answers would be void.
    pub fn is_void(&self, key: &SegmentKey, entry: &SegmentEntry) -> bool {
        if entry.state() != segment_state::GIVEN {
            return false;
        }
        // Without a segment that ends later, the receiver gets no return segment. The next packet requests a segment
        // that ends later.
        let has_no_answer = || {
            let read = Encapsulation::decode(entry.geneve());
            read.is_ok_and(|(header, _)| header.segment.flags.has(SegmentFlags::REPLY))
                && self.is_withdrawn(key.interface, (key.receiver(), key.sender()), entry.until)
        };
        self.is_withdrawn(key.interface, (key.sender(), key.receiver()), entry.until) || has_no_answer()
    }

    /// Reports whether a tenant must no longer answer under a received segment, because a withdrawal voids the segment.
    pub fn voids_consent(&self, key: &SegmentKey, consent: &Consent) -> bool {
        // The received segment came from the receiver of the answer.
        self.is_withdrawn(key.interface, (key.receiver(), key.sender()), consent.expires)
    }

    fn is_withdrawn(&self, interface: u32, (sender, receiver): (IpAddr, IpAddr), expires: u32) -> bool {
        let tenant = self.tenants.get(&interface);
        tenant.is_some_and(|tenant| self.withdrawn.void(tenant.vni, sender, receiver, expires))
    }
}
