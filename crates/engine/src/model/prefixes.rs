//! A map whose keys are network prefixes. One look-up for each prefix length in use finds the prefixes that contain an
//! address, without a scan.

use ipnet::IpNet;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// A map from prefixes of both families to values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Prefixes<T> {
    v4: Family<T>,
    v6: Family<T>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Family<T> {
    /// The values, by the first address of the prefix and its length.
    values: BTreeMap<(u128, u8), T>,
    /// Number of values for each length in use.
    lengths: BTreeMap<Reverse<u8>, usize>,
}

impl<T> Default for Prefixes<T> {
    fn default() -> Self {
        let family = || Family { values: BTreeMap::new(), lengths: BTreeMap::new() };
        Self { v4: family(), v6: family() }
    }
}

impl<T> Prefixes<T> {
    /// Returns the value of a prefix. Inserts the default first if there is no value.
    pub(crate) fn entry(&mut self, prefix: &IpNet) -> &mut T
    where
        T: Default,
    {
        let (family, bits, length) = self.family_mut(prefix);
        let lengths = &mut family.lengths;
        family.values.entry((bits, length)).or_insert_with(|| {
            *lengths.entry(Reverse(length)).or_default() += 1;
            T::default()
        })
    }

    /// Sets the value of a prefix. Returns whether the prefix had no value before.
    pub(crate) fn insert(&mut self, prefix: &IpNet, value: T) -> bool {
        let (family, bits, length) = self.family_mut(prefix);
        let is_new = family.values.insert((bits, length), value).is_none();
        if is_new {
            *family.lengths.entry(Reverse(length)).or_default() += 1;
        }
        is_new
    }

    /// Removes the value of a prefix.
    pub(crate) fn remove(&mut self, prefix: &IpNet) {
        let (family, bits, length) = self.family_mut(prefix);
        if family.values.remove(&(bits, length)).is_some()
            && let Some(count) = family.lengths.get_mut(&Reverse(length))
        {
            *count -= 1;
            if *count == 0 {
                family.lengths.remove(&Reverse(length));
            }
        }
    }

    /// Returns the map with every value converted.
    pub(crate) fn map<U>(self, convert: impl Fn(T) -> U) -> Prefixes<U> {
        let family = |family: Family<T>| Family {
            values: family.values.into_iter().map(|(prefix, value)| (prefix, convert(value))).collect(),
            lengths: family.lengths,
        };
        Prefixes { v4: family(self.v4), v6: family(self.v6) }
    }

    /// Returns all values, in the order of [`Self::iter`].
    pub(crate) fn values(&self) -> impl Iterator<Item = &T> {
        self.v4.values.values().chain(self.v6.values.values())
    }

    /// Returns every prefix with its value, IPv4 first. A prefix comes before the longer ones in it.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (IpNet, &T)> {
        let net = |address: IpAddr, length| IpNet::new(address, length).ok();
        let v4 = self.v4.values.iter().map(move |((bits, length), value)| {
            let address = u32::try_from(*bits).ok().map(|bits| IpAddr::V4(bits.into()));
            Some((net(address?, *length)?, value))
        });
        let v6 = self.v6.values.iter();
        let v6 = v6.map(move |((bits, length), value)| Some((net(IpAddr::V6((*bits).into()), *length)?, value)));
        v4.chain(v6).flatten()
    }

    /// Returns the values of the prefixes that contain `prefix`, longest prefix first.
    pub(crate) fn around(&self, prefix: IpNet) -> impl Iterator<Item = &T> + use<'_, T> {
        let (family, bits, most, longest) = self.family(&prefix);
        let lengths = family.lengths.range(Reverse(longest)..);
        lengths.filter_map(move |(Reverse(length), _)| {
            super::work::examined();
            family.values.get(&(bits & leading_ones(*length, most), *length))
        })
    }

    /// Returns the values of the prefixes that overlap `prefix`.
    pub(crate) fn overlapping(&self, prefix: &IpNet) -> impl Iterator<Item = &T> + use<'_, T> {
        let (family, bits, most, length) = self.family(prefix);
        let last = bits | !leading_ones(length, most) & leading_ones(most, most);
        // No prefix is within a single address.
        let within = (length < most).then(|| family.values.range((bits, length)..=(last, most)));
        let within = within.into_iter().flatten().filter(move |((_, other), _)| *other > length);
        self.around(*prefix).chain(within.map(|(_, value)| value))
    }

    fn family(&self, prefix: &IpNet) -> (&Family<T>, u128, u8, u8) {
        match prefix.network() {
            IpAddr::V4(first) => (&self.v4, u32::from(first).into(), 32, prefix.prefix_len()),
            IpAddr::V6(first) => (&self.v6, first.into(), 128, prefix.prefix_len()),
        }
    }

    fn family_mut(&mut self, prefix: &IpNet) -> (&mut Family<T>, u128, u8) {
        match prefix.network() {
            IpAddr::V4(first) => (&mut self.v4, u32::from(first).into(), prefix.prefix_len()),
            IpAddr::V6(first) => (&mut self.v6, first.into(), prefix.prefix_len()),
        }
    }
}

/// Returns a mask of `most` bits whose first `length` bits are ones.
fn leading_ones(length: u8, most: u8) -> u128 {
    let ones = |count: u8| if count == 0 { 0 } else { u128::MAX >> (128 - u32::from(count)) };
    ones(most) & !ones(most - length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_are_the_heads_of_addresses() {
        assert_eq!(leading_ones(0, 32), 0);
        assert_eq!(leading_ones(24, 32), 0xffff_ff00);
        assert_eq!(leading_ones(32, 32), 0xffff_ffff);
        assert_eq!(leading_ones(64, 128), u128::MAX << 64);
        assert_eq!(leading_ones(128, 128), u128::MAX);
    }

    #[test]
    fn prefixes_are_found_around_and_inside_another() {
        let mut prefixes = Prefixes::default();
        for (number, prefix) in ["10.0.0.0/8", "10.1.0.0/16", "10.1.2.3/32", "10.2.0.0/16", "::/0"].iter().enumerate() {
            *prefixes.entry(&prefix.parse().unwrap()) = number;
        }
        let all: Vec<_> = prefixes.iter().map(|(prefix, number)| format!("{prefix} {number}")).collect();
        assert_eq!(all, ["10.0.0.0/8 0", "10.1.0.0/16 1", "10.1.2.3/32 2", "10.2.0.0/16 3", "::/0 4"]);
        assert!(prefixes.insert(&"192.0.2.0/24".parse().unwrap(), 5));
        assert!(!prefixes.insert(&"192.0.2.0/24".parse().unwrap(), 6));
        assert_eq!(prefixes.values().copied().collect::<Vec<_>>(), [0, 1, 2, 3, 6, 4]);
        let around = |prefixes: &Prefixes<usize>, address: &str| {
            let address: IpAddr = address.parse().unwrap();
            prefixes.around(address.into()).copied().collect::<Vec<_>>()
        };
        assert_eq!(around(&prefixes, "10.1.2.3"), [2, 1, 0]);
        assert_eq!(around(&prefixes, "10.9.9.9"), [0]);
        assert_eq!(around(&prefixes, "11.0.0.0"), [0; 0]);
        assert_eq!(around(&prefixes, "::a01:203"), [4]);
        let overlapping = |prefix: &str| prefixes.overlapping(&prefix.parse().unwrap()).copied().collect::<Vec<_>>();
        assert_eq!(overlapping("10.1.0.0/16"), [1, 0, 2]);
        assert_eq!(overlapping("0.0.0.0/0"), [0, 1, 2, 3, 6]);
        assert_eq!(overlapping("10.3.0.0/16"), [0]);
        assert_eq!(overlapping("2001:db8::/32"), [4]);
        for prefix in ["10.1.0.0/16", "10.3.0.0/16", "10.0.0.0/8"] {
            prefixes.remove(&prefix.parse().unwrap());
        }
        assert_eq!(around(&prefixes, "10.1.2.3"), [2]);
        assert_eq!(around(&prefixes, "10.2.0.0"), [3]);
    }
}
