//! Table of keys by authority and epoch, for one look-up per packet.

use wire::Epoch;

/// A hash table from which nothing is removed. A new table is built when keys change, and when an epoch begins.
pub struct Keys<K> {
    /// Authority and epoch, with the key's number plus one in the low bits; 0 if the slot is empty.
    slots: Vec<u64>,
    /// Right shift that turns a hash into an index of `slots`; the number of slots is a power of two.
    shift: u32,
    /// The keys; never empty.
    keys: Vec<K>,
}

/// Number of low bits of a slot that hold the number of a key. The bits above them hold the key's name, which consists
/// of authority and epoch.
pub const NUMBER: u32 = 24;
/// The number by which the name of a key (authority and epoch) is multiplied to get the name's hash.
pub const HASH: u64 = 0x9e37_79b9_7f4a_7c15;
/// Slots per key: enough that hardly any search takes a second step, which the processor would mispredict.
const SPARSE: usize = 8;

impl<K> Keys<K> {
    /// Builds a table of keys by authority and epoch. The epochs of an authority's keys must differ in their low 8
    /// bits, because packets contain only these bits. Callers use `any` in place of a missing key. Keys beyond the
    /// first 16 million are left out.
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

    /// Returns the key that takes the place of a missing key. Callers also use it where the result of the MAC does not
    /// matter.
    #[inline(always)]
    pub fn any(&self) -> &K {
        &self.keys[0]
    }

    /// Returns this authority's key for the epoch with the low 8 bits `epoch`.
    #[inline(always)]
    pub fn find(&self, authority: u32, epoch: u8) -> Option<&K> {
        match self.number(name(authority, epoch)) {
            0 => None,
            number => self.keys.get(number),
        }
    }

    /// Returns the number of the key with this name, which consists of authority and epoch. Returns 0 if there is no
    /// such key. Most slots are free, so every search ends.
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

    /// Returns the slots and a shift. The product of a name and [`HASH`], shifted right by this many bits, is the index
    /// of a slot.
    #[inline(always)]
    #[cfg(target_arch = "x86_64")]
    pub fn slots(&self) -> (&[u64], u32) {
        (&self.slots, self.shift)
    }

    /// Returns the key with the number that [`Self::number`] returned.
    #[inline(always)]
    #[cfg(target_arch = "x86_64")]
    pub fn numbered(&self, number: usize) -> &K {
        &self.keys[number]
    }

    /// Returns the slot at which the search for a name begins. Any hash that spreads the names will do, because the
    /// operator chooses the authorities and epochs, and unauthenticated senders do not.
    #[inline(always)]
    fn place(&self, name: u64) -> usize {
        (name.wrapping_mul(HASH) >> self.shift) as usize
    }
}

#[inline(always)]
fn name(authority: u32, epoch: u8) -> u64 {
    u64::from(authority) | u64::from(epoch) << 32
}
