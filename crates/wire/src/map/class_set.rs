//! Sets of classes of addresses, of handles or of accounts. For most packets, one bit in such a set shows that the
//! program need not look anything up in a map.

use core::net::{IpAddr, Ipv6Addr};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A set of classes. A class is a 16-bit number that many addresses, handles or accounts have in common. The kernel
/// programs use four of these sets. The first contains the classes of addresses in which no address is protected. The
/// second contains the classes of handles in which a handle is revoked. The third contains the classes of accounts in
/// which a session has ended. The fourth contains the classes of receivers in which a receiver has withdrawn consent.
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ClassSet {
    /// One bit for each class.
    pub bits: [u64; 1024],
}

impl ClassSet {
    /// The empty set.
    pub const NOTHING: Self = Self { bits: [0; 1024] };
    /// The set of all classes.
    pub const EVERYTHING: Self = Self { bits: [u64::MAX; 1024] };

    /// Returns the class of an address: a hash of the whole address if it is IPv4, or of its first half if it is IPv6.
    pub fn class_of(address: IpAddr) -> u16 {
        match address {
            IpAddr::V4(a) => (u32::from_ne_bytes(a.octets()).wrapping_mul(0x9e37_79b1) >> 16) as u16,
            IpAddr::V6(a) => {
                let [b0, b1, b2, b3, b4, b5, b6, b7, ..] = a.octets();
                (u64::from_ne_bytes([b0, b1, b2, b3, b4, b5, b6, b7]).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as u16
            }
        }
    }

    /// Returns the class of an IPv6 address: its first byte if [`Self::one_class`] returns a prefix length for the
    /// address, otherwise a hash of all 16 bytes. [`Self::class_of_destination`] hashes only the first 8 bytes.
    pub fn class_of_address6(address: Ipv6Addr) -> u16 {
        let octets = address.octets();
        let (half, rest) = octets.split_at(8);
        let word = |bytes: &[u8]| bytes.first_chunk().map_or(0, |word| u64::from_ne_bytes(*word));
        match Self::one_class(address.into()) {
            Some(_) => u16::from(octets[0]),
            None => ((word(half) ^ word(rest).rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as u16,
        }
    }

    /// Returns the class of a destination: its first byte if [`Self::one_class`] returns a prefix length for it,
    /// otherwise the result of [`Self::class_of`].
    pub fn class_of_destination(address: IpAddr) -> u16 {
        match (Self::one_class(address), address) {
            (None, _) => Self::class_of(address),
            (Some(_), IpAddr::V4(a)) => u16::from(a.octets()[0]),
            (Some(_), IpAddr::V6(a)) => u16::from(a.octets()[0]),
        }
    }

    /// Returns the prefix length of the special range that contains `address`: 127.0.0.0/8, 169.254.0.0/16, 224.0.0.0/3
    /// or fe00::/7. Returns `None` if `address` is in none of these ranges. Hosts protect large networks in these
    /// ranges, such as the loopback and multicast networks. All addresses in these ranges belong to a few classes, so
    /// that protecting such a network does not affect the other classes.
    pub fn one_class(address: IpAddr) -> Option<u8> {
        match address {
            IpAddr::V4(a) => match a.octets() {
                [127, ..] => Some(8),
                [169, 254, ..] => Some(16),
                [224..=255, ..] => Some(3),
                _ => None,
            },
            IpAddr::V6(a) => (a.octets()[0] >= 0xfe).then_some(7),
        }
    }

    /// Returns the class of a handle. Handles are random, so their low bits suffice.
    pub fn class_of_handle(handle: u64) -> u16 {
        handle as u16
    }

    /// Returns the class of an account. Account numbers are assigned in order, so their low bits suffice.
    pub fn class_of_account(account: u32) -> u16 {
        account as u16
    }

    /// Inserts a class.
    pub fn insert(&mut self, class: u16) {
        if let Some(word) = self.bits.get_mut(usize::from(class >> 6)) {
            *word |= 1 << (class & 63);
        }
    }

    /// Removes a class.
    pub fn remove(&mut self, class: u16) {
        if let Some(word) = self.bits.get_mut(usize::from(class >> 6)) {
            *word &= !(1 << (class & 63));
        }
    }

    /// Reports whether a class is in the set.
    pub fn contains(&self, class: u16) -> bool {
        self.bits.get(usize::from(class >> 6)).is_some_and(|word| word >> (class & 63) & 1 == 1)
    }

    /// Returns the number of classes in the set.
    pub fn len(&self) -> u32 {
        self.bits.iter().map(|word| word.count_ones()).sum()
    }

    /// Reports whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
