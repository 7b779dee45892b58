//! Sessions that ended.

use crate::holder::Holder;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Where the classes of accounts with sessions that ended are, beside those of revoked handles, which are at 0.
pub const CLASSES_OF_ACCOUNTS: u32 = 1;

/// A session that ended, or an account that lost all its sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RevokedKey {
    /// The holder, or the account's number.
    pub number: u32,
    /// 1 if it stands for the whole account.
    pub whole: u32,
}

impl RevokedKey {
    /// The entry for one session.
    pub const fn session(holder: Holder) -> Self {
        Self { number: holder.0, whole: 0 }
    }

    /// The entry for all sessions of an account.
    pub const fn account(account: u32) -> Self {
        Self { number: account, whole: 1 }
    }

    /// The account that it is about.
    pub const fn account_number(self) -> u32 {
        if self.whole == 1 { self.number } else { Holder(self.number).account() }
    }
}
