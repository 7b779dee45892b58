//! Grants in use, the classes of grants, and the numbers of flows, grants and tokens of accounts.

use super::FlowKey;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Length of the window in which a grant's tokens are counted, in seconds: the time for which a token can be valid,
/// rounded up to a power of two.
pub const TOKEN_WINDOW: u32 = 64;
/// Maximum number of a grant's tokens that a verifier accepts in a window, for each flow that the grant is allowed to
/// have. The limit prevents a grant from filling the replay table.
pub const TOKENS_PER_FLOW: u32 = 8;

/// State of a grant that has admitted at least one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct GrantUse {
    /// Number of flows that the grant has.
    pub flows: u32,
    /// Expiry of the grant, Unix seconds.
    pub expires: u32,
    /// Number of tokens accepted in the current window.
    pub tokens: u32,
    /// The number of the current window: Unix time divided by [`TOKEN_WINDOW`].
    pub window: u32,
    /// The first flow that the grant admitted. A grant for a single flow admits no other flow.
    pub first: FlowKey,
    /// The holder whose account this entry counts towards; 0 if it counts towards no account.
    pub holder: u32,
    /// Reserved; zero.
    pub reserved: u32,
}

/// The resources that an account uses: flows under all its grants and sessions, tokens, and grants in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct AccountUse {
    /// Number of flows under all grants of the account.
    pub flows: u32,
    /// Number of tokens accepted in the current window.
    pub tokens: u32,
    /// The number of the current window: Unix time divided by [`TOKEN_WINDOW`].
    pub window: u32,
    /// Number of the account's entries in the table of grants in use.
    pub grants: u32,
}

/// The class of a grant, for rules of a packet filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct GrantClass {
    /// The class, 0 to 255.
    pub class: u32,
    /// Expiry of the grant, Unix seconds.
    pub expires: u32,
}
