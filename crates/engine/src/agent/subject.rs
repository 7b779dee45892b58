//! The subjects of packets and sessions.

use super::{RECEIVERS_MAX, RECEIVERS_OF_OTHERS_MAX};
use std::ops::RangeInclusive;
use wire::Destination;
use wire::map::GrantSlot;

/// A user of this machine in one of the user's organisations. Each subject has a session of its own. The kernel program
/// identifies only the user, by a number that is never 0 and does not change when the agent restarts. The packet's
/// destination determines to which of the user's subjects a packet belongs (see [`super::Agent::holder`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Subject {
    pub(super) number: u32,
    pub(super) organisation: u16,
}

impl Subject {
    /// Returns the subject of a user id in the user's default organisation. The kernel uses the highest user id to mean
    /// "no change", so this user id has no subject of its own, but shares the subject of the next lower user id.
    pub const fn of_user(uid: u32) -> Self {
        Self { number: uid.saturating_add(1), organisation: 0 }
    }

    /// Returns the subject of the same user in the organisation with this number. The default organisation has the
    /// number 0.
    pub const fn in_organisation(self, organisation: u16) -> Self {
        Self { number: self.number, organisation }
    }

    /// Returns the organisation's number, which is unique among the organisations of the user.
    pub const fn organisation(self) -> u16 {
        self.organisation
    }

    /// Returns the user id of this subject.
    pub const fn user(self) -> u32 {
        self.number - 1
    }

    /// Returns the number that stands for this subject's user in the kernel's maps.
    pub const fn number(self) -> u32 {
        self.number
    }

    /// Returns the key of the entry for this subject's user and a destination in the kernel's grant map.
    pub fn slot(self, to: &Destination) -> GrantSlot {
        GrantSlot::new(self.number, to)
    }

    pub(super) const fn is_default(self) -> bool {
        self.organisation == 0
    }

    /// Returns the maximum number of receivers of the subject's session.
    pub(super) const fn receivers_max(self) -> usize {
        if self.is_default() { RECEIVERS_MAX } else { RECEIVERS_OF_OTHERS_MAX }
    }

    /// Returns the range of all subjects of this subject's user.
    pub(super) const fn all(self) -> RangeInclusive<Self> {
        self.in_organisation(0)..=self.in_organisation(u16::MAX)
    }
}
