//! Sets of classes, by which a bit spares most packets a look-up.

use core::net::IpAddr;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A set of classes: of addresses none of which is protected, of handles some of which are revoked, or of
/// accounts with sessions that ended.
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ClassSet {
    /// A bit per class.
    pub bits: [u64; 1024],
}

impl ClassSet {
    /// No class is in it.
    pub const NOTHING: Self = Self { bits: [0; 1024] };
    /// Every class is in it.
    pub const EVERYTHING: Self = Self { bits: [u64::MAX; 1024] };

    /// The class of an address: of IPv4 the whole address counts, of IPv6 the first half.
    pub fn class_of(address: IpAddr) -> u16 {
        match address {
            IpAddr::V4(a) => (u32::from_ne_bytes(a.octets()).wrapping_mul(0x9e37_79b1) >> 16) as u16,
            IpAddr::V6(a) => {
                let [b0, b1, b2, b3, b4, b5, b6, b7, ..] = a.octets();
                (u64::from_ne_bytes([b0, b1, b2, b3, b4, b5, b6, b7]).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as u16
            }
        }
    }

    /// The class of a destination: of the ranges of [`Self::one_class`] the first byte counts, else as [`Self::class_of`].
    pub fn class_of_destination(address: IpAddr) -> u16 {
        match (Self::one_class(address), address) {
            (None, _) => Self::class_of(address),
            (Some(_), IpAddr::V4(a)) => u16::from(a.octets()[0]),
            (Some(_), IpAddr::V6(a)) => u16::from(a.octets()[0]),
        }
    }

    /// The length of the range's prefix if the address is in a range that a host protects in wide prefixes: loopback,
    /// link-local, multicast and broadcast. Each has few classes, so that protecting all of it leaves the others open.
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

    /// The class of a handle. Handles are random.
    pub fn class_of_handle(handle: u64) -> u16 {
        handle as u16
    }

    /// The class of an account. Their numbers are given in order.
    pub fn class_of_account(account: u32) -> u16 {
        account as u16
    }

    /// Puts a class in.
    pub fn insert(&mut self, class: u16) {
        if let Some(word) = self.bits.get_mut(usize::from(class >> 6)) {
            *word |= 1 << (class & 63);
        }
    }

    /// Takes a class out.
    pub fn remove(&mut self, class: u16) {
        if let Some(word) = self.bits.get_mut(usize::from(class >> 6)) {
            *word &= !(1 << (class & 63));
        }
    }

    /// Whether a class is in it.
    pub fn contains(&self, class: u16) -> bool {
        self.bits.get(usize::from(class >> 6)).is_some_and(|word| word >> (class & 63) & 1 == 1)
    }

    /// How many classes are in it.
    pub fn len(&self) -> u32 {
        self.bits.iter().map(|word| word.count_ones()).sum()
    }

    /// Whether no class is in it.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
