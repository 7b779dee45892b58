//! A persistent hash index from prefixes to values: a clone is one count, a change copies the path to one leaf, and what
//! others hold of it stays as it was.
//!
//! A million prefixes are found with one miss of the caches each: two small levels that stay in them, and a leaf that
//! is itself a table with open addressing, half empty. Several values may stand under one prefix.

use ipnet::IpNet;
use std::hint::black_box;
use std::net::IpAddr;
use std::sync::Arc;

/// Ways out of each of the two upper levels: 65 536 leaves, of some 16 values where there are a million.
const WAYS: usize = 256;

/// The index.
#[derive(Clone)]
pub(super) struct Index<V> {
    v4: Table<u32, V>,
    v6: Table<[u64; 2], V>,
}

/// Prefix lengths whose hashes a search keeps; of any more it reckons them again.
const SOUGHT: usize = 8;

/// A search that was begun: the hashes of the prefixes around an address, the widest first.
pub(super) struct Seek([u64; SOUGHT]);

/// The bits of an address of one family.
trait Bits: Copy + Eq {
    const LENGTH: u8;

    /// With all bits behind the prefix cleared.
    fn masked(self, length: u8) -> Self;

    /// All bits in one word, as evenly spread as two multiplications do it.
    fn stirred(self) -> u64;

    fn address(self) -> IpAddr;
}

/// The index of one family.
struct Table<K, V> {
    root: Arc<Root<K, V>>,
    /// The prefix lengths that occur, ascending. None is ever struck off.
    lengths: Arc<[u8]>,
    count: usize,
}

type Root<K, V> = [Option<Arc<Branch<K, V>>>; WAYS];
type Branch<K, V> = [Option<Leaf<K, V>>; WAYS];
type Leaf<K, V> = Arc<[Option<Item<K, V>>]>;

#[derive(Clone)]
struct Item<K, V> {
    value: V,
    bits: K,
    length: u8,
}

impl<V> Default for Index<V> {
    fn default() -> Self {
        Self { v4: Table::default(), v6: Table::default() }
    }
}

impl<V: Clone> Index<V> {
    /// How many values there are.
    pub(super) fn len(&self) -> usize {
        self.v4.count + self.v6.count
    }

    /// The first value under exactly this prefix that `is_it`.
    pub(super) fn find<'a>(&'a self, prefix: IpNet, is_it: impl Fn(&V) -> bool) -> Option<&'a V> {
        let mut found: Option<&'a V> = None;
        let each = |value: &'a V| found = found.or(Some(value).filter(|value| is_it(value)));
        let length = prefix.prefix_len();
        match prefix {
            IpNet::V4(net) => self.v4.at(hash(v4(net.addr()), length), v4(net.addr()), length, each),
            IpNet::V6(net) => self.v6.at(hash(v6(net.addr()), length), v6(net.addr()), length, each),
        }
        found
    }

    /// Begins a search for [`Self::around`]: has the memory fetch what it will read first, all of it side by side, while
    /// something else is done.
    #[inline]
    pub(super) fn seek(&self, address: IpAddr) -> Seek {
        match address {
            IpAddr::V4(address) => self.v4.seek(v4(address)),
            IpAddr::V6(address) => self.v6.seek(v6(address)),
        }
    }

    /// Calls `each` with every value under a prefix that `address` is in, and that prefix's length, the widest first.
    #[inline]
    pub(super) fn around<'a>(&'a self, address: IpAddr, seek: &Seek, each: impl FnMut(u8, &'a V)) {
        match address {
            IpAddr::V4(address) => self.v4.around(v4(address), seek, each),
            IpAddr::V6(address) => self.v6.around(v6(address), seek, each),
        }
    }

    /// Whether some prefix of this one's family is or was longer than it.
    pub(super) fn has_longer(&self, prefix: IpNet) -> bool {
        let lengths = if prefix.addr().is_ipv4() { &self.v4.lengths } else { &self.v6.lengths };
        lengths.last().is_some_and(|longest| *longest > prefix.prefix_len())
    }

    /// Every value, in no order that means anything, but always the same one.
    pub(super) fn all(&self) -> impl Iterator<Item = (IpNet, &V)> {
        self.v4.all().chain(self.v6.all())
    }

    /// Adds a value, beside those that are under the prefix already.
    pub(super) fn add(&mut self, prefix: IpNet, value: V) {
        match prefix {
            IpNet::V4(net) => self.v4.add(v4(net.addr()), prefix.prefix_len(), value),
            IpNet::V6(net) => self.v6.add(v6(net.addr()), prefix.prefix_len(), value),
        }
    }

    /// Has `change` change the value that `is_it`, or take it out by saying `None`; says whether there was one.
    pub(super) fn change(
        &mut self,
        prefix: IpNet,
        is_it: impl Fn(&V) -> bool,
        change: impl FnOnce(&V) -> Option<V>,
    ) -> bool {
        match prefix {
            IpNet::V4(net) => self.v4.change(v4(net.addr()), prefix.prefix_len(), is_it, change),
            IpNet::V6(net) => self.v6.change(v6(net.addr()), prefix.prefix_len(), is_it, change),
        }
    }
}

impl<K: Bits, V: Clone> Table<K, V> {
    #[inline]
    fn seek(&self, bits: K) -> Seek {
        let mut seek = Seek([0; SOUGHT]);
        for (length, hash) in self.lengths.iter().zip(&mut seek.0) {
            *hash = self::hash(bits.masked(*length), *length);
            let leaf = self.leaf(*hash);
            // Of an item's two lines of the cache, both.
            black_box(leaf.get(home(leaf, *hash)).and_then(Option::as_ref).map(|item| item.length));
        }
        seek
    }

    #[inline]
    fn around<'a>(&'a self, bits: K, seek: &Seek, mut each: impl FnMut(u8, &'a V)) {
        for (place, length) in self.lengths.iter().enumerate() {
            let bits = bits.masked(*length);
            let hash = seek.0.get(place).copied().unwrap_or_else(|| hash(bits, *length));
            self.at(hash, bits, *length, |value| each(*length, value));
        }
    }

    /// Calls `each` with every value under exactly this prefix.
    #[inline]
    fn at<'a>(&'a self, hash: u64, bits: K, length: u8, mut each: impl FnMut(&'a V)) {
        let leaf = self.leaf(hash);
        let mut at = home(leaf, hash);
        while let Some(Some(item)) = leaf.get(at) {
            if item.bits == bits && item.length == length {
                each(&item.value);
            }
            at = if at + 1 == leaf.len() { 0 } else { at + 1 };
        }
    }

    fn all(&self) -> impl Iterator<Item = (IpNet, &V)> {
        let leaves = self.root.iter().flatten().flat_map(|branch| branch.iter()).flatten();
        let items = leaves.flat_map(|leaf| leaf.iter().flatten());
        items.filter_map(|item| Some((IpNet::new(item.bits.address(), item.length).ok()?, &item.value)))
    }

    fn add(&mut self, bits: K, length: u8, value: V) {
        if let Err(place) = self.lengths.binary_search(&length) {
            let (shorter, longer) = self.lengths.split_at(place);
            self.lengths = shorter.iter().chain(&[length]).chain(longer).copied().collect();
        }
        self.count += 1;
        let hash = hash(bits, length);
        let item = Item { value, bits, length };
        // Nobody else holds the leaf while a rulebook is being filled.
        match Arc::get_mut(self.place(hash)) {
            Some(slots) if (slots.iter().flatten().count() + 1) * 3 <= slots.len() * 2 => put(slots, hash, item),
            _ => self.rewrite(hash, |items| items.push(item)),
        }
    }

    fn change(
        &mut self,
        bits: K,
        length: u8,
        is_it: impl Fn(&V) -> bool,
        change: impl FnOnce(&V) -> Option<V>,
    ) -> bool {
        let (mut found, mut removed) = (false, false);
        self.rewrite(hash(bits, length), |items| {
            let it = |item: &Item<K, V>| item.bits == bits && item.length == length && is_it(&item.value);
            let Some(place) = items.iter().position(it) else { return };
            found = true;
            match change(&items[place].value) {
                Some(value) => items[place].value = value,
                None => {
                    items.remove(place);
                    removed = true;
                }
            }
        });
        self.count -= usize::from(removed);
        found
    }

    #[inline]
    fn leaf(&self, hash: u64) -> &[Option<Item<K, V>>] {
        let branch = self.root[(hash >> 56) as usize].as_ref();
        branch.and_then(|branch| branch[(hash >> 48) as usize % WAYS].as_deref()).unwrap_or_default()
    }

    /// Where the leaf for a hash hangs.
    fn place(&mut self, hash: u64) -> &mut Leaf<K, V> {
        let root = Arc::make_mut(&mut self.root);
        let branch = root[(hash >> 56) as usize].get_or_insert_with(|| Arc::new([const { None }; WAYS]));
        Arc::make_mut(branch)[(hash >> 48) as usize % WAYS].get_or_insert_with(|| Arc::from([]))
    }

    fn rewrite(&mut self, hash_here: u64, change: impl FnOnce(&mut Vec<Item<K, V>>)) {
        let place = self.place(hash_here);
        let mut items: Vec<_> = place.iter().flatten().cloned().collect();
        change(&mut items);
        // A free slot ends every search: there are as many as items, so that most searches read one slot.
        let mut slots = vec![None; items.len() * 2 + 1];
        for item in items {
            put(&mut slots, hash(item.bits, item.length), item);
        }
        *place = slots.into();
    }
}

impl<K, V> Clone for Table<K, V> {
    fn clone(&self) -> Self {
        Self { root: self.root.clone(), lengths: self.lengths.clone(), count: self.count }
    }
}

impl<K, V> Default for Table<K, V> {
    fn default() -> Self {
        Self { root: Arc::new([const { None }; WAYS]), lengths: Arc::from([]), count: 0 }
    }
}

impl Bits for u32 {
    const LENGTH: u8 = 32;

    #[inline]
    fn masked(self, length: u8) -> Self {
        self & Self::MAX.checked_shl(u32::from(Self::LENGTH - length)).unwrap_or(0)
    }

    #[inline]
    fn stirred(self) -> u64 {
        stir(u64::from(self))
    }

    fn address(self) -> IpAddr {
        std::net::Ipv4Addr::from_bits(self).into()
    }
}

/// In halves: as one number, its alignment would make items longer.
impl Bits for [u64; 2] {
    const LENGTH: u8 = 128;

    #[inline]
    fn masked(self, length: u8) -> Self {
        let keep = u128::MAX.checked_shl(u32::from(<Self as Bits>::LENGTH - length)).unwrap_or(0);
        [self[0] & (keep >> 64) as u64, self[1] & keep as u64]
    }

    #[inline]
    fn stirred(self) -> u64 {
        stir(stir(self[0]).wrapping_add(self[1]))
    }

    fn address(self) -> IpAddr {
        std::net::Ipv6Addr::from_bits((u128::from(self[0]) << 64) | u128::from(self[1])).into()
    }
}

#[inline]
fn v4(address: std::net::Ipv4Addr) -> u32 {
    address.to_bits()
}

#[inline]
fn v6(address: std::net::Ipv6Addr) -> [u64; 2] {
    [(address.to_bits() >> 64) as u64, address.to_bits() as u64]
}

/// Puts an item into the first free slot from where a search begins; there has to be one.
fn put<T>(slots: &mut [Option<T>], hash: u64, item: T) {
    let mut at = home(slots, hash);
    while slots[at].is_some() {
        at = (at + 1) % slots.len();
    }
    slots[at] = Some(item);
}

/// Where a search begins.
#[inline]
fn home<T>(slots: &[T], hash: u64) -> usize {
    ((u64::from(hash as u32) * slots.len() as u64) >> 32) as usize
}

/// Not keyed: receivers and networks come from the policy, and what others ask for is only looked up.
#[inline]
fn hash(bits: impl Bits, length: u8) -> u64 {
    stir(bits.stirred().wrapping_add(u64::from(length)))
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
        let around = |address: &str| {
            let address = address.parse().expect("an address");
            let mut found = Vec::new();
            index.around(address, &index.seek(address), |_, number| found.push(*number));
            found
        };
        assert_eq!(around("10.1.2.3"), [1, 2, 0]);
        assert_eq!(around("10.2.2.3"), [1]);
        assert_eq!(around("2001:db8::1"), [4, 5]);
        assert!(around("192.0.2.1").is_empty());
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
