//! Grants in use, their classes, and the accounts' use of flows and tokens.

use super::FlowKey;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Seconds over which a grant's tokens are counted: the time that a token can be valid, rounded up to a power of two.
pub const TOKEN_WINDOW: u32 = 64;
/// Number of tokens of a grant that a verifier accepts in a window for each flow that the grant may have, so that no
/// grant fills the replay table.
pub const TOKENS_PER_FLOW: u32 = 8;

/// State of a grant that has admitted a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct GrantUse {
    /// Number of flows.
    pub flows: u32,
    /// Expiry, Unix seconds.
    pub expires: u32,
    /// Number of tokens accepted in this window.
    pub tokens: u32,
    /// The window, in units of [`TOKEN_WINDOW`] of Unix time.
    pub window: u32,
    /// The flow that the grant admitted first: the only one if the grant is for a single flow.
    pub first: FlowKey,
    /// The holder, against whose account this entry counts; 0 if it counts against no account.
    pub holder: u32,
    /// Zero.
    pub reserved: u32,
}

/// Use of an account: its flows under all grants and sessions, its tokens, and its grants in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct AccountUse {
    /// Number of flows.
    pub flows: u32,
    /// Number of tokens accepted in this window.
    pub tokens: u32,
    /// The window, in units of [`TOKEN_WINDOW`] of Unix time.
    pub window: u32,
    /// Number of entries in the table of grants in use.
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
