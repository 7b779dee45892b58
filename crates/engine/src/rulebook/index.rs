//! A persistent hash index from prefixes to values: a clone is one count, a change copies the path to one leaf, and what
//! others hold of it stays as it was.
//!
//! A million prefixes are found with one miss of the caches each: two small levels that stay in them, and a leaf that
//! is itself a table with open addressing. Several values may stand under one prefix.

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
    pub(super) fn find(&self, prefix: IpNet, mut is_it: impl FnMut(&V) -> bool) -> Option<&V> {
        match prefix {
            IpNet::V4(net) => self.v4.at(v4(net.addr()), prefix.prefix_len()).find(|value| is_it(value)),
            IpNet::V6(net) => self.v6.at(v6(net.addr()), prefix.prefix_len()).find(|value| is_it(value)),
        }
    }

    /// Has the memory fetch what [`Self::around`] will read first, all of it side by side: the comparisons there would have
    /// it fetch one after the other.
    #[inline]
    pub(super) fn touch(&self, address: IpAddr) {
        match address {
            IpAddr::V4(address) => self.v4.touch(v4(address)),
            IpAddr::V6(address) => self.v6.touch(v6(address)),
        }
    }

    /// Calls `each` with every value under a prefix that `address` is in, and that prefix's length, the widest first.
    #[inline]
    pub(super) fn around<'a>(&'a self, address: IpAddr, each: impl FnMut(u8, &'a V)) {
        match address {
            IpAddr::V4(address) => self.v4.around(v4(address), each),
            IpAddr::V6(address) => self.v6.around(v6(address), each),
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
    fn touch(&self, bits: K) {
        for length in self.lengths.iter() {
            let hash = hash(bits.masked(*length), *length);
            black_box(self.leaf(hash).is_some_and(|leaf| leaf[home(leaf, hash)].is_some()));
        }
    }

    #[inline]
    fn around<'a>(&'a self, bits: K, mut each: impl FnMut(u8, &'a V)) {
        for length in self.lengths.iter() {
            self.at(bits.masked(*length), *length).for_each(|value| each(*length, value));
        }
    }

    #[inline]
    fn at(&self, bits: K, length: u8) -> impl Iterator<Item = &V> {
        let hash = hash(bits, length);
        let leaf = self.leaf(hash).map_or(&[][..], |leaf| leaf);
        let first = home(leaf, hash);
        let from_there = (first..first + leaf.len()).map(|at| &leaf[at & (leaf.len() - 1)]);
        let those = from_there.map_while(Option::as_ref).filter(move |item| item.bits == bits && item.length == length);
        those.map(|item| &item.value)
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
        self.rewrite(hash(bits, length), |items| items.push(Item { value, bits, length }));
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
    fn leaf(&self, hash: u64) -> Option<&Leaf<K, V>> {
        self.root[(hash >> 56) as usize].as_ref()?[(hash >> 48) as usize % WAYS].as_ref()
    }

    fn rewrite(&mut self, hash_here: u64, change: impl FnOnce(&mut Vec<Item<K, V>>)) {
        let root = Arc::make_mut(&mut self.root);
        let branch = root[(hash_here >> 56) as usize].get_or_insert_with(|| Arc::new([const { None }; WAYS]));
        let place = &mut Arc::make_mut(branch)[(hash_here >> 48) as usize % WAYS];
        let mut items: Vec<_> = place.iter().flat_map(|leaf| leaf.iter()).flatten().cloned().collect();
        change(&mut items);
        // A free slot ends every search, so one stays free.
        let size = (items.len() * 4 / 3 + 1).next_power_of_two();
        let mut slots = vec![None; size];
        for item in items {
            let mut at = home(&slots, hash(item.bits, item.length));
            while slots[at].is_some() {
                at = (at + 1) % size;
            }
            slots[at] = Some(item);
        }
        *place = Some(slots.into());
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

/// Where a search begins.
#[inline]
fn home<T>(slots: &[T], hash: u64) -> usize {
    hash as usize & slots.len().wrapping_sub(1)
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
            index.around(address, |_, number| found.push(*number));
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
