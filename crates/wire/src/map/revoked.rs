//! Sessions that ended.

use crate::holder::Holder;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Index of the classes of accounts with ended sessions; the classes of revoked handles are at index 0.
pub const CLASSES_OF_ACCOUNTS: u32 = 1;

/// A session that ended, or an account that lost all its sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RevokedKey {
    /// The holder, or the account's number.
    pub number: u32,
    /// 1 if the entry covers the whole account.
    pub whole: u32,
}

impl RevokedKey {
    /// Returns the entry for one session.
    pub const fn session(holder: Holder) -> Self {
        Self { number: holder.0, whole: 0 }
    }

    /// Returns the entry for all sessions of an account.
    pub const fn account(account: u32) -> Self {
        Self { number: account, whole: 1 }
    }

    /// Returns the account that the entry is about.
    pub const fn account_number(self) -> u32 {
        if self.whole == 1 { self.number } else { Holder(self.number).account() }
    }
}
