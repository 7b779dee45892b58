//! Tables of a verifier that checks proofs (wire.md §8).

use super::address_bytes;
use crate::segment::Vni;
use core::net::{IpAddr, Ipv4Addr};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The settings of the program that checks proofs, fixed when it is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ProofsConfig {
    /// Length of an epoch, in seconds.
    pub epoch_length: u32,
    /// Maximum remaining lifetime of a segment, in seconds.
    pub max_lifetime: u32,
}

/// Key of the table of proof keys: an authority and the low 8 bits of an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ProofKeySlot {
    authority: [u8; 16],
    family: u32,
    epoch: u32,
}

impl ProofKeySlot {
    /// Returns the slot of an authority's proof key for the epoch whose low 8 bits are `epoch`.
    pub fn new(authority: IpAddr, epoch: u8) -> Self {
        Self { authority: address_bytes(authority), family: family(authority).into(), epoch: epoch.into() }
    }
}

/// Key of the table of withdrawals: identifies the consent that a receiver has withdrawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct WithdrawalKey {
    vni: [u8; 4],
    family: u16,
    from_all: u16,
    receiver: [u8; 16],
    sender: [u8; 16],
}

impl WithdrawalKey {
    /// Returns the key for a receiver's withdrawal of consent to one sender or, if `sender` is `None`, to all senders.
    pub fn new(vni: Vni, receiver: IpAddr, sender: Option<IpAddr>) -> Self {
        let [a, b, c] = vni.bytes();
        Self {
            vni: [0, a, b, c],
            family: family(receiver),
            from_all: sender.is_none().into(),
            receiver: address_bytes(receiver),
            sender: sender.map_or([0; 16], address_bytes),
        }
    }

    /// Returns the receiver's address, if it is IPv4.
    pub fn receiver4(&self) -> Option<Ipv4Addr> {
        let [a, b, c, d, ..] = self.receiver;
        (self.family == 4).then_some(Ipv4Addr::new(a, b, c, d))
    }
}

const fn family(address: IpAddr) -> u16 {
    if address.is_ipv4() { 4 } else { 6 }
}
