//! Sessions that have ended.

use crate::holder::Holder;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Index in the table of class sets (see [`super::ClassSet`]). The set at this index contains the class of each account
/// of which a session has ended. The set at index 0 contains the class of each revoked handle.
pub const CLASSES_OF_ACCOUNTS: u32 = 1;

/// Key of the table of ended sessions: one session, or all sessions of an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RevokedKey {
    /// The number of the holder; if `whole` is 1, the number of the account.
    pub number: u32,
    /// 1 if the entry is for all sessions of an account, 0 if it is for one session.
    pub whole: u32,
}

impl RevokedKey {
    /// Returns the key for one session.
    pub const fn session(holder: Holder) -> Self {
        Self { number: holder.0, whole: 0 }
    }

    /// Returns the key for all sessions of an account.
    pub const fn account(account: u32) -> Self {
        Self { number: account, whole: 1 }
    }

    /// Returns the number of the key's account.
    pub const fn account_number(self) -> u32 {
        if self.whole == 1 { self.number } else { Holder(self.number).account() }
    }
}
