//! A persistent hash index from prefixes to values. A clone increments a reference count; a change copies only the path
//! to one leaf and leaves clones unchanged.
//!
//! With a million prefixes, each look-up costs one cache miss, because the root stays in the caches. A leaf is a table
//! with open addressing, at most half full. Several values can be stored under one prefix.

use super::fetch::fetch;
use ipnet::IpNet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

/// Number of leaves, as a power of two: with a million values each leaf has some 500.
const LEAVES_BITS: u32 = 11;
/// Number of prefix lengths for which a search stores its positions. For further lengths, the search computes them
/// again.
const SOUGHT: usize = 8;

/// A persistent hash index from prefixes to values.
#[derive(Clone)]
pub(super) struct Index<V> {
    leaves: Arc<[Arc<Leaf<V>>]>,
    /// The prefix lengths of IPv4 and of IPv6 that occur, ascending. A length is never removed.
    lengths: [Arc<[Length]>; 2],
    count: usize,
}

type Leaf<V> = [Option<Item<V>>];

/// An address or the bits of a prefix, in two halves: a single `u128` would need more alignment and so make items
/// longer. IPv4 is in the first 32 bits.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
struct Bits([u64; 2]);

/// A prefix length of one family.
#[derive(Clone, Copy)]
struct Length {
    mask: Bits,
    /// The prefix length in the low byte; bit 8 is set for IPv6.
    kind: u16,
}

#[derive(Clone)]
struct Item<V> {
    value: V,
    bits: Bits,
    kind: u16,
    /// Whether an item that hashes to this slot had to be stored elsewhere, because this slot and the next one were
    /// full.
    far: bool,
}

/// A search in progress.
pub(super) struct Seek<'a, V> {
    bits: Bits,
    family: usize,
    /// The slots at which the search begins, one for each prefix length, widest prefix first.
    places: [Slot<'a, V>; SOUGHT],
}

/// The slot where the search for a prefix begins.
struct Slot<'a, V> {
    leaf: &'a Leaf<V>,
    at: usize,
}

impl<V> Default for Index<V> {
    fn default() -> Self {
        let empty: Arc<Leaf<V>> = Arc::from([]);
        let leaves = std::iter::repeat_n(empty, 1 << LEAVES_BITS).collect();
        Self { leaves, lengths: [Arc::from([]), Arc::from([])], count: 0 }
    }
}

impl<V: Clone> Index<V> {
    /// Returns the number of values.
    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// Returns the first value under exactly this prefix for which `is_it` holds.
    pub(super) fn find<'a>(&'a self, prefix: IpNet, is_it: impl Fn(&V) -> bool) -> Option<&'a V> {
        let mut found: Option<&'a V> = None;
        let (bits, length) = parts(prefix);
        self.place(bits, length.kind).each(bits, length.kind, |value| {
            found = found.or(Some(value).filter(|value| is_it(value)));
        });
        found
    }

    /// Begins a search for [`Self::around`]: prefetches the memory that `around` reads first. The caller can do other
    /// work in the meantime.
    #[inline]
    pub(super) fn seek<'a>(&'a self, address: IpAddr, seek: &mut Seek<'a, V>) {
        (seek.bits, seek.family) = (Bits::of(address), usize::from(address.is_ipv6()));
        for (length, place) in self.lengths[seek.family].iter().zip(&mut seek.places) {
            *place = self.place(seek.bits.masked(length.mask), length.kind);
            // Fetch both cache lines that an item may span.
            place.leaf.get(place.at..).into_iter().flatten().take(2).for_each(fetch);
        }
    }

    /// Calls `each` with the prefix length and value of every prefix that contains the address, widest prefix first.
    #[inline]
    pub(super) fn around<'a>(&'a self, seek: &Seek<'a, V>, mut each: impl FnMut(u8, &'a V)) {
        for (place, length) in self.lengths[seek.family].iter().enumerate() {
            let bits = seek.bits.masked(length.mask);
            let each = |value| each(length.bits(), value);
            match seek.places.get(place) {
                Some(place) => place.each(bits, length.kind, each),
                None => self.place(bits, length.kind).each(bits, length.kind, each),
            }
        }
    }

    /// Reports whether a longer prefix of the same family is or was in the index.
    pub(super) fn has_longer(&self, prefix: IpNet) -> bool {
        let longest = self.lengths[usize::from(prefix.addr().is_ipv6())].last();
        longest.is_some_and(|longest| longest.bits() > prefix.prefix_len())
    }

    /// Iterates over every value, in an order that is arbitrary but stable.
    pub(super) fn all(&self) -> impl Iterator<Item = (IpNet, &V)> {
        self.leaves
            .iter()
            .flat_map(|leaf| leaf.iter().flatten())
            .filter_map(|item| item.prefix().map(|prefix| (prefix, &item.value)))
    }

    /// Adds a value under the prefix. The values that are already stored under this prefix stay.
    pub(super) fn add(&mut self, prefix: IpNet, value: V) {
        let (bits, length) = parts(prefix);
        let lengths = &mut self.lengths[length.family()];
        if let Err(place) = lengths.binary_search_by_key(&length.kind, |length| length.kind) {
            let (shorter, longer) = lengths.split_at(place);
            *lengths = shorter.iter().chain(&[length]).chain(longer).copied().collect();
        }
        self.count += 1;
        let hash = hash(bits, length.kind);
        let item = Item { value, bits, kind: length.kind, far: false };
        // While a rulebook is being filled, nothing else references the leaf.
        match Arc::get_mut(self.leaf_mut(hash)) {
            Some(slots) if (slots.iter().flatten().count() + 1) * 2 < slots.len() => put(slots, hash, item),
            _ => self.rewrite(hash, |items| items.push(item)),
        }
    }

    /// Applies `change` to the value under the prefix for which `is_it` returns true. If `change` returns `None`,
    /// removes the value. Returns whether there was such a value.
    pub(super) fn change(
        &mut self,
        prefix: IpNet,
        is_it: impl Fn(&V) -> bool,
        change: impl FnOnce(&V) -> Option<V>,
    ) -> bool {
        let (bits, Length { kind, .. }) = parts(prefix);
        let hash_here = hash(bits, kind);
        let Slot { leaf, at } = self.place(bits, kind);
        let is_here = |item: &Item<V>| item.is(bits, kind) && is_it(&item.value);
        let mut places = (at..leaf.len()).chain(0..at).map_while(|at| Some((at, leaf[at].as_ref()?)));
        let Some((place, item)) = places.find(|(_, item)| is_here(item)) else { return false };
        match change(&item.value) {
            Some(value) => {
                // Copies the leaf if a snapshot has it, too.
                let item = Arc::make_mut(self.leaf_mut(hash_here))[place].as_mut();
                item.expect("INVARIANT: an item was found there").value = value;
            }
            None => {
                self.rewrite(hash_here, |items| {
                    if let Some(place) = items.iter().position(is_here) {
                        items.remove(place);
                    }
                });
                self.count -= 1;
            }
        }
        true
    }

    #[inline]
    fn place(&self, bits: Bits, kind: u16) -> Slot<'_, V> {
        let hash = hash(bits, kind);
        let leaf: &Leaf<V> = self.leaves.get(leaf(hash)).map_or(&[], |leaf| leaf);
        Slot { leaf, at: home(leaf, hash) }
    }

    /// Returns the leaf for a hash, to be changed or replaced.
    fn leaf_mut(&mut self, hash: u64) -> &mut Arc<Leaf<V>> {
        &mut Arc::make_mut(&mut self.leaves)[leaf(hash)]
    }

    fn rewrite(&mut self, hash_here: u64, change: impl FnOnce(&mut Vec<Item<V>>)) {
        let leaf = self.leaf_mut(hash_here);
        let mut items: Vec<_> = leaf.iter().flatten().cloned().collect();
        change(&mut items);
        // A free slot ends a search. Two thirds of the slots are free, so that most searches read one slot.
        let mut slots = vec![None; items.len() * 3 + 1];
        for item in items {
            put(&mut slots, hash(item.bits, item.kind), Item { far: false, ..item });
        }
        *leaf = slots.into();
    }
}

impl<V> Seek<'_, V> {
    /// Value for a slot without a search.
    pub(super) const NOTHING: Self =
        Self { bits: Bits([0; 2]), family: 0, places: [const { Slot { leaf: &[], at: 0 } }; SOUGHT] };
}

impl<'a, V> Slot<'a, V> {
    /// Calls `each` with every value under exactly this prefix. Reads the first two slots without a loop, because most
    /// searches end there and the processor could not predict the end of a loop.
    #[inline]
    fn each(&self, bits: Bits, kind: u16, mut each: impl FnMut(&'a V)) {
        let next = |at: usize| if at + 1 == self.leaf.len() { 0 } else { at + 1 };
        let Some(Some(first)) = self.leaf.get(self.at) else { return };
        if first.is(bits, kind) {
            each(&first.value);
        }
        let mut at = next(self.at);
        if let Some(Some(second)) = self.leaf.get(at)
            && second.is(bits, kind)
        {
            each(&second.value);
        }
        if !first.far {
            return;
        }
        at = next(at);
        while let Some(Some(item)) = self.leaf.get(at) {
            if item.is(bits, kind) {
                each(&item.value);
            }
            at = next(at);
        }
    }
}

impl<V> Item<V> {
    #[inline]
    fn is(&self, bits: Bits, kind: u16) -> bool {
        let Bits([one, other]) = bits;
        (self.bits.0[0] ^ one) | (self.bits.0[1] ^ other) | u64::from(self.kind ^ kind) == 0
    }

    fn prefix(&self) -> Option<IpNet> {
        let Bits([one, other]) = self.bits;
        let address = match self.kind >> 8 {
            0 => IpAddr::from(Ipv4Addr::from_bits((one >> 32) as u32)),
            _ => IpAddr::from(Ipv6Addr::from_bits((u128::from(one) << 64) | u128::from(other))),
        };
        IpNet::new(address, self.kind as u8).ok()
    }
}

impl Bits {
    #[inline]
    fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => Self([u64::from(address.to_bits()) << 32, 0]),
            IpAddr::V6(address) => Self([(address.to_bits() >> 64) as u64, address.to_bits() as u64]),
        }
    }

    /// Returns a mask with the first `length` bits set.
    fn of_length(length: u8) -> Self {
        let mask = u128::MAX.checked_shl(u32::from(128 - length.min(128))).unwrap_or(0);
        Self([(mask >> 64) as u64, mask as u64])
    }

    #[inline]
    fn masked(self, mask: Self) -> Self {
        Self([self.0[0] & mask.0[0], self.0[1] & mask.0[1]])
    }
}

impl Length {
    #[inline]
    fn bits(self) -> u8 {
        self.kind as u8
    }

    fn family(self) -> usize {
        usize::from(self.kind >> 8)
    }
}

/// Returns the bits and the length of a prefix.
fn parts(prefix: IpNet) -> (Bits, Length) {
    let kind = (u16::from(prefix.addr().is_ipv6()) << 8) | u16::from(prefix.prefix_len());
    (Bits::of(prefix.addr()), Length { mask: Bits::of_length(prefix.prefix_len()), kind })
}

/// Returns the number of the leaf for a hash.
#[inline]
fn leaf(hash: u64) -> usize {
    (hash >> (u64::BITS - LEAVES_BITS)) as usize
}

/// Stores an item in the first free slot from its home slot on; a slot must be free.
fn put<V>(slots: &mut Leaf<V>, hash: u64, item: Item<V>) {
    let home = home(slots, hash);
    let place = (home..slots.len()).chain(0..home).position(|at| slots[at].is_none());
    let place = place.expect("INVARIANT: a slot is free");
    if let Some(first) = slots[home].as_mut().filter(|_| place > 1) {
        first.far = true;
    }
    let at = (home + place) % slots.len();
    slots[at] = Some(item);
}

/// Returns the slot where a search begins.
#[inline]
fn home<T>(slots: &[T], hash: u64) -> usize {
    ((u64::from(hash as u32) * slots.len() as u64) >> 32) as usize
}

/// Hashes a prefix without a secret key: the policy determines the entries, and requests only look them up.
#[inline]
fn hash(Bits([one, other]): Bits, kind: u16) -> u64 {
    stir(stir(one ^ u64::from(kind)).wrapping_add(other))
}

#[inline]
fn stir(word: u64) -> u64 {
    let wide = u128::from(word ^ 0x9e37_79b9_7f4a_7c15) * 0xa076_1d64_78bd_642f;
    (wide >> 64) as u64 ^ wide as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(text: &str) -> IpNet {
        text.parse().expect("a prefix")
    }

    #[test]
    fn all_prefixes_around_an_address_are_found_the_widest_first() {
        let mut index = Index::default();
        for (number, prefix) in
            ["10.1.2.3/32", "10.0.0.0/8", "10.1.0.0/16", "11.0.0.0/8", "::/0", "2001:db8::/32"].into_iter().enumerate()
        {
            index.add(net(prefix), number);
        }
        let all_around = |address: &str| {
            let mut found = Vec::new();
            around(&index, address, |_, number| found.push(*number));
            found
        };
        assert_eq!(all_around("10.1.2.3"), [1, 2, 0]);
        assert_eq!(all_around("10.2.2.3"), [1]);
        assert_eq!(all_around("2001:db8::1"), [4, 5]);
        assert!(all_around("192.0.2.1").is_empty());
    }

    fn around<'a, V: Clone>(index: &'a Index<V>, address: &str, each: impl FnMut(u8, &'a V)) {
        let mut seek = Seek::NOTHING;
        index.seek(address.parse().expect("an address"), &mut seek);
        index.around(&seek, each);
    }

    #[test]
    fn addresses_that_are_mapped_into_ipv6_are_not_ipv4() {
        let mut index = Index::default();
        ["192.0.2.0/24", "c000:200::/24"].into_iter().for_each(|prefix| index.add(net(prefix), prefix));
        for (address, expected) in [("192.0.2.1", "192.0.2.0/24"), ("c000:200::1", "c000:200::/24")] {
            let mut found = Vec::new();
            around(&index, address, |length, prefix| found.push((length, *prefix)));
            assert_eq!(found, [(24, expected)]);
        }
        let mut found = 0;
        around(&index, "::ffff:192.0.2.1", |_, _| found += 1);
        assert_eq!(found, 0);
        assert!(index.all().all(|(prefix, text)| prefix == net(text)));
    }

    #[test]
    fn of_many_lengths_all_are_found() {
        let mut index = Index::default();
        (0..=128).for_each(|length| index.add(net(&format!("::/{length}")), length));
        let mut found = Vec::new();
        around(&index, "::1", |length, _| found.push(length));
        assert_eq!(found, (0..128).collect::<Vec<_>>());
    }

    #[test]
    fn what_is_held_of_an_index_stays_as_it_was() {
        let mut index = Index::default();
        index.add(net("10.0.0.0/8"), 1);
        let before = index.clone();
        index.add(net("10.0.0.0/8"), 2);
        assert!(index.change(net("10.0.0.0/8"), |value| *value == 1, |_| None));
        assert!(!index.change(net("10.0.0.0/8"), |value| *value == 1, |_| None));
        assert!(index.change(net("10.0.0.0/8"), |value| *value == 2, |_| Some(3)));
        let values = |index: &Index<i32>| index.all().map(|(_, value)| *value).collect::<Vec<_>>();
        assert_eq!((values(&before), values(&index)), (vec![1], vec![3]));
        assert_eq!((before.len(), index.len()), (1, 1));
    }

    #[test]
    fn many_prefixes_are_found_again() {
        let mut index = Index::default();
        let prefix = |n: u32| IpNet::from(IpAddr::from((n * 4).to_be_bytes()));
        (0..20_000).for_each(|n| index.add(prefix(n), n));
        assert!((0..20_000).all(|n| index.find(prefix(n), |_| true) == Some(&n)));
        assert_eq!((index.len(), index.all().count()), (20_000, 20_000));
    }
}
