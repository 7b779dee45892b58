//! Grants in use, their classes, and what accounts use.

use super::FlowKey;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Seconds over which a grant's tokens are counted: as long as a token can be valid, in a power of two.
pub const TOKEN_WINDOW: u32 = 64;
/// How many tokens of a grant are taken in a window, for each flow it may have: so that no grant fills the replay table.
pub const TOKENS_PER_FLOW: u32 = 8;

/// What the verifier remembers of a grant that has admitted something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct GrantUse {
    /// How many flows it has.
    pub flows: u32,
    /// When it ends, Unix seconds.
    pub expires: u32,
    /// How many of its tokens were taken in this window.
    pub tokens: u32,
    /// The window, in units of [`TOKEN_WINDOW`] of Unix time.
    pub window: u32,
    /// The flow it admitted first: the only one if the grant is for a single flow.
    pub first: FlowKey,
}

/// What the verifier counts of an account: its flows, whatever their grants and sessions, and its tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct AccountUse {
    /// How many flows it has.
    pub flows: u32,
    /// How many of its tokens were taken in this window.
    pub tokens: u32,
    /// The window, in units of [`TOKEN_WINDOW`] of Unix time.
    pub window: u32,
    /// Zero.
    pub reserved: u32,
}

/// The class of a grant, for rules of a packet filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct GrantClass {
    /// The class, 0 to 255.
    pub class: u32,
    /// When the grant ends, Unix seconds.
    pub expires: u32,
}
