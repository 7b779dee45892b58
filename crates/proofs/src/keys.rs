//! Keys by authority and epoch: a look-up per packet.

use crate::aes::KeySet;
use wire::Epoch;
use zeroize::Zeroizing;

/// A hash table without removal: it is made anew when keys change, which is once per epoch.
pub struct Keys {
    slots: Vec<Slot>,
    /// How far the hash is shifted to be a place in `slots`, whose number is a power of two.
    shift: u32,
    /// The keys, by their number.
    pub set: KeySet,
}

#[derive(Clone, Copy)]
struct Slot {
    epoch: Epoch,
    authority: u32,
    /// Of its key, and one more; 0 where there is none.
    number: u32,
}

impl Keys {
    /// The table of these authorities and epochs, to each of which belongs the key at its place.
    pub fn new(places: &[(u32, Epoch)], keys: Zeroizing<Vec<[u8; 16]>>) -> Self {
        let bits = (places.len() * 2 + 2).next_power_of_two().trailing_zeros();
        let free = Slot { epoch: Epoch(0), authority: 0, number: 0 };
        let mut table = Self { slots: vec![free; 1 << bits], shift: 64 - bits, set: KeySet::new(keys) };
        for (number, &(authority, epoch)) in (1..).zip(places) {
            let mut at = table.place(authority, epoch);
            while table.slots[at].number != 0 {
                at = (at + 1) % table.slots.len();
            }
            table.slots[at] = Slot { epoch, authority, number };
        }
        table
    }

    /// The number of this authority's key for this epoch. At least half of the slots are free, so that a search ends.
    #[inline]
    pub fn find(&self, authority: u32, epoch: Epoch) -> Option<usize> {
        let mut at = self.place(authority, epoch);
        loop {
            let slot = &self.slots[at];
            if slot.number == 0 || slot.authority == authority && slot.epoch == epoch {
                return (slot.number as usize).checked_sub(1);
            }
            at = (at + 1) & (self.slots.len() - 1);
        }
    }

    /// Authorities and epochs are the operator's to choose, not a stranger's: any hash that spreads them will do.
    #[inline]
    fn place(&self, authority: u32, epoch: Epoch) -> usize {
        let hash = (u64::from(authority) << 8 ^ epoch.0).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (hash >> self.shift) as usize
    }
}
