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
