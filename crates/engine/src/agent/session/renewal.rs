//! Renewal of a grant before it is due.

use super::{Destination, HeldGrant, Outputs, Session};

impl Session {
    /// Requests a renewal of the grant that the kernel uses for a destination, before the renewal is due. Does nothing
    /// if the kernel uses no grant for this destination.
    pub fn renew_early(&mut self, place: Destination, next_fetch: &mut u64, outputs: &mut Outputs) {
        let held = self.grants.iter().find(|held| held.places.contains(&place)).map(HeldGrant::handle);
        if held.is_some() {
            let guess = self.guess(&place);
            self.begin_fetch(place, guess, held, next_fetch, outputs);
        }
    }
}
