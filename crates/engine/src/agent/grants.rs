//! The grants of a session, with indices that find a grant by packet, by handle (for a revocation) and by kernel entry,
//! without a scan.

use super::frame::Sender;
use super::held_grant::HeldGrant;
use crate::model::prefixes::Prefixes;
use crate::model::work::examined;
use std::collections::{BTreeMap, BTreeSet};
use wire::{Destination, Handle};

/// Maximum number of a session's grants.
pub const GRANTS_MAX: usize = 4096;
/// Maximum number of a session's entries in the kernel. An entry is for one destination, and all sessions share the
/// kernel's table. Without this limit, one grant for a whole network could fill the table with an entry for each
/// address and port.
pub const PLACES_MAX: usize = 4096;

/// Grants in the order in which they end.
type ByEnd = BTreeSet<(u32, Handle)>;
/// The protocol and port if a grant covers one service only, otherwise `None`.
type Service = Option<(u8, u16)>;

#[derive(Default)]
pub(super) struct Grants {
    all: BTreeMap<Handle, HeldGrant>,
    by_end: ByEnd,
    /// Grants that any flow may use, by prefix and service.
    open: Prefixes<BTreeMap<Service, ByEnd>>,
    /// Grants for a single flow, by the flow that uses them.
    flows: BTreeMap<(Destination, Sender), ByEnd>,
    /// For each destination with an entry in the kernel, the entry's grant and when the entry was written.
    places: BTreeMap<Destination, (Handle, u64)>,
    oldest: BTreeMap<u64, Destination>,
    written: u64,
}

impl Grants {
    pub fn iter(&self) -> impl Iterator<Item = &HeldGrant> {
        self.all.values()
    }

    /// Returns all grants. The caller can record that a grant was used, but must not change what the grant covers.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut HeldGrant> {
        self.all.values_mut()
    }

    pub fn get(&self, handle: Handle) -> Option<&HeldGrant> {
        self.all.get(&handle)
    }

    pub fn get_mut(&mut self, handle: Handle) -> Option<&mut HeldGrant> {
        self.all.get_mut(&handle)
    }

    /// Returns the grant to use for a packet to `place`. If several grants are possible, returns the grant that ends
    /// last. A grant that is assigned to a single flow is possible only if this flow is from `sender` to `place`.
    pub fn best(&self, unix: u64, place: &Destination, sender: Option<Sender>) -> Option<Handle> {
        let own = sender.and_then(|sender| self.flows.get(&(*place, sender)));
        let best = self.covering(place).chain(own).filter_map(|grants| self.last_good(unix, grants));
        best.max().map(|(_, handle)| handle)
    }

    /// Reports whether there is a grant for this destination that any flow can use. The grant may have ended.
    pub fn has_for(&self, place: &Destination) -> bool {
        self.covering(place).next().is_some()
    }

    fn covering(&self, place: &Destination) -> impl Iterator<Item = &ByEnd> + use<'_> {
        let services = [None, Some((place.protocol, place.port))];
        let around = self.open.around(place.address.into());
        around.flat_map(move |by_service| services.into_iter().filter_map(move |service| by_service.get(&service)))
    }

    fn last_good(&self, unix: u64, grants: &ByEnd) -> Option<(u32, Handle)> {
        let latest = grants.iter().rev().inspect(|_| examined());
        let mut alive = latest.map_while(|key| self.all.get(&key.1).filter(|held| held.lasts(unix)).map(|_| *key));
        alive.find(|(_, handle)| self.all.get(handle).is_some_and(|held| held.is_good(unix)))
    }

    /// Adds a grant that has no entries in the kernel yet. If the session then has too many grants, returns the grant that ends
    /// first. The caller has to remove this grant.
    #[must_use]
    pub fn insert(&mut self, held: HeldGrant) -> Option<Handle> {
        let key = (held.expires, held.handle());
        self.by_end.insert(key);
        self.by_end_of(&held).insert(key);
        self.all.insert(key.1, held);
        let first = self.by_end.iter().find(|(_, handle)| *handle != key.1);
        first.filter(|_| self.all.len() > GRANTS_MAX).map(|(_, handle)| *handle)
    }

    /// Removes a grant. The caller has to remove its entries in the kernel.
    pub fn remove(&mut self, handle: Handle) -> Option<HeldGrant> {
        let held = self.all.remove(&handle)?;
        self.by_end.remove(&(held.expires, handle));
        self.forget(&held);
        for place in &held.places {
            if let Some((_, written)) = self.places.remove(place) {
                self.oldest.remove(&written);
            }
        }
        Some(held)
    }

    /// Assigns a grant to `flow`, or to no flow if `flow` is `None`. The grant must be a grant for a single flow.
    pub fn bind(&mut self, handle: Handle, flow: Option<(Destination, Sender)>) {
        let Some(mut held) = self.all.remove(&handle) else { return };
        self.forget(&held);
        held.flow = flow;
        self.by_end_of(&held).insert((held.expires, handle));
        self.all.insert(handle, held);
    }

    /// Records that the kernel's entry for a destination contains this grant. If the session then has too many entries,
    /// returns the destination of the oldest entry. The caller has to remove this entry.
    #[must_use]
    pub fn place(&mut self, handle: Handle, place: Destination) -> Option<Destination> {
        self.unplace(&place);
        let held = self.all.get_mut(&handle)?;
        held.places.insert(place);
        self.written += 1;
        self.places.insert(place, (handle, self.written));
        self.oldest.insert(self.written, place);
        let oldest = self.oldest.first_key_value().map(|(_, oldest)| *oldest);
        let oldest = oldest.filter(|_| self.places.len() > PLACES_MAX)?;
        self.unplace(&oldest);
        Some(oldest)
    }

    /// Records that the kernel has no entry for a destination any more.
    pub fn unplace(&mut self, place: &Destination) {
        let Some((handle, written)) = self.places.remove(place) else { return };
        self.oldest.remove(&written);
        if let Some(held) = self.all.get_mut(&handle) {
            held.places.remove(place);
        }
    }

    /// Returns the destinations for which the kernel has a grant.
    pub fn places(&self) -> impl Iterator<Item = &Destination> {
        self.places.keys()
    }

    fn by_end_of(&mut self, held: &HeldGrant) -> &mut ByEnd {
        match held.flow {
            Some(flow) => self.flows.entry(flow).or_default(),
            None => self.open.entry(&held.prefix).entry(held.service).or_default(),
        }
    }

    /// Removes a grant from the indices by prefix and by flow.
    fn forget(&mut self, held: &HeldGrant) {
        let key = (held.expires, held.handle());
        let of_it = self.by_end_of(held);
        of_it.remove(&key);
        if !of_it.is_empty() {
            return;
        }
        match held.flow {
            Some(flow) => drop(self.flows.remove(&flow)),
            None => {
                let by_service = self.open.entry(&held.prefix);
                by_service.remove(&held.service);
                if by_service.is_empty() {
                    self.open.remove(&held.prefix);
                }
            }
        }
    }
}
