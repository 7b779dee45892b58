//! Keys by authority and epoch: a look-up per packet.

use wire::Epoch;

/// A hash table without removal: it is made anew when keys change, which is once per epoch.
pub struct Keys<K> {
    /// Authority and epoch, and the key's number and one more in the low bits; 0 where there is none.
    slots: Vec<u64>,
    /// How far the hash is shifted to be a place in `slots`, whose number is a power of two.
    shift: u32,
    /// Never empty.
    keys: Vec<K>,
}

/// Bits of a slot that are its key's number.
pub const NUMBER: u32 = 24;
/// What names are multiplied with.
pub const HASH: u64 = 0x9e37_79b9_7f4a_7c15;
/// Slots for each key: so many that hardly any search has a second step, which no processor would foresee.
const SPARSE: usize = 8;

impl<K> Keys<K> {
    /// The table of keys by authority and epoch, of which no two are alike in the bits that travel. `any` stands where there is
    /// none. Keys beyond 16 million are left out.
    pub fn new(keys: impl ExactSizeIterator<Item = ((u32, Epoch), K)>, any: K) -> Self {
        let count = keys.len().min((1 << NUMBER) - 2);
        let bits = (count * SPARSE + 2).next_power_of_two().trailing_zeros();
        let mut table = Self { slots: vec![0; 1 << bits], shift: 64 - bits, keys: vec![any] };
        for ((authority, epoch), key) in keys.take(count) {
            let name = name(authority, epoch.on_wire());
            let mut at = table.place(name);
            while table.slots[at] != 0 {
                at = (at + 1) % table.slots.len();
            }
            table.slots[at] = name << NUMBER | table.keys.len() as u64;
            table.keys.push(key);
        }
        table
    }

    /// Some key: stands where none is wanted.
    #[inline(always)]
    pub fn any(&self) -> &K {
        &self.keys[0]
    }

    /// This authority's key for the epoch with these low bits.
    #[inline(always)]
    pub fn find(&self, authority: u32, epoch: u8) -> Option<&K> {
        match self.number(name(authority, epoch)) {
            0 => None,
            number => self.keys.get(number),
        }
    }

    /// The number of the key with this name; 0 if there is none. Most slots are free, so that a search ends.
    #[inline(always)]
    pub fn number(&self, name: u64) -> usize {
        let mut at = self.place(name);
        loop {
            let slot = self.slots[at];
            if slot == 0 || slot >> NUMBER == name {
                return (slot & ((1 << NUMBER) - 1)) as usize;
            }
            at = (at + 1) & (self.slots.len() - 1);
        }
    }

    /// The slots, and how far a name times [`HASH`] is shifted to be a place among them.
    #[inline(always)]
    pub fn slots(&self) -> (&[u64], u32) {
        (&self.slots, self.shift)
    }

    /// The key with this number.
    #[inline(always)]
    pub fn numbered(&self, number: usize) -> &K {
        &self.keys[number]
    }

    /// Authorities and epochs are the operator's to choose, not a stranger's: any hash that spreads them will do.
    #[inline(always)]
    fn place(&self, name: u64) -> usize {
        (name.wrapping_mul(HASH) >> self.shift) as usize
    }
}

#[inline(always)]
fn name(authority: u32, epoch: u8) -> u64 {
    u64::from(authority) | u64::from(epoch) << 32
}
