//! What a decision looks up and what it changes. The kernel program does the same with its maps.

use super::flow::is_live;
use std::net::IpAddr;
use wire::map::{AccountUse, Flow, FlowKey, GrantUse, LsGrant, Services, VerifierConfig};
use wire::token::TOKEN_LEN;
use wire::{Epoch, Handle, Holder, VerifierKey};

/// What makes a token different from every other token of its grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Once {
    /// A token of wire.md §3: all of it.
    Token([u8; TOKEN_LEN]),
    /// A token of a pair: the pair's handle and the second nonce.
    Nonce2(Handle, u16),
}

/// What the replay table says of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replay {
    /// It is new, and the table has room for it.
    Fresh,
    /// It was used before.
    Seen,
    /// It is new, but its bucket is full of tokens that are still valid.
    Full,
}

/// What the authority said of a pair of the scheme of LS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairTerms {
    /// The epoch whose secret its client key is made with.
    pub epoch: Epoch,
    /// When it ends, Unix seconds.
    pub expires: u32,
    /// Whose it is.
    pub holder: Holder,
}

impl PairTerms {
    /// The terms in a verifier's table.
    pub fn of(pair: &LsGrant) -> Self {
        Self { epoch: Epoch(pair.epoch), expires: pair.expires, holder: Holder(pair.holder) }
    }
}

/// What the server's own stack holds of a TCP connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stack {
    /// Nothing, or nobody knows: the server is elsewhere.
    #[default]
    Unknown,
    /// It has answered the client's SYN, and waits for the client to acknowledge this number.
    Answered(u32),
    /// It holds a connection, and expects this sequence number of the client.
    Expects(u32),
}

/// What a decision looks up.
pub trait Tables {
    /// The verifier's settings.
    fn config(&self) -> &VerifierConfig;
    /// Whether the program is attached at tc. There the kernel has already removed the outer VLAN tag, and the program cannot
    /// remove a shim behind a second one.
    fn at_tc(&self) -> bool;
    /// The services that are protected at an address: those of the longest prefix that contains it.
    fn services(&self, address: IpAddr) -> Option<Services>;
    /// Whether what was used or ended at this time may have been forgotten, because the clock was set back.
    fn has_forgotten(&self, time: u32) -> bool;
    /// The verifier's key of an epoch.
    fn key(&self, epoch: Epoch) -> Option<VerifierKey>;
    /// Whether a grant is revoked.
    fn is_revoked(&self, handle: Handle) -> bool;
    /// Whether a session ended. Nobody's (0) never does.
    fn is_ended(&self, holder: Holder) -> bool;
    /// The flow at this key, live or not.
    fn flow(&self, key: &FlowKey) -> Option<Flow>;
    /// What the verifier remembers of a grant that has admitted something.
    fn grant(&self, handle: Handle) -> Option<GrantUse>;
    /// What an account uses.
    fn account(&self, account: u32) -> Option<AccountUse>;
    /// A pair that the authority has announced.
    fn pair(&self, handle: Handle) -> Option<PairTerms>;
    /// Whether a token was used before. This only looks: [`TablesMut::remember`] takes the token's place.
    fn replay(&self, once: &Once, now: u32) -> Replay;
    /// When the first fragment of a datagram of an admitted flow came. The key has no ports.
    fn fragment(&self, key: &FlowKey, id: u32) -> Option<u32>;
    /// When the first fragment of a datagram to an open port came. The key has no ports.
    fn open_fragment(&self, key: &FlowKey, id: u32) -> Option<u32>;
    /// What the server's stack holds of a connection. It changes how long a flow is remembered, and no outcome.
    fn stack(&self, _key: &FlowKey) -> Stack {
        Stack::Unknown
    }
    /// Whether the table of flows has room for one more in this key's family.
    fn has_room_for_flow(&self, _key: &FlowKey) -> bool {
        true
    }
    /// Whether the table of grants in use has room for one more.
    fn has_room_for_grant(&self) -> bool {
        true
    }

    /// Whether the table of accounts has room for one more.
    fn has_room_for_account(&self) -> bool {
        true
    }

    /// The admitted flow at this key, unless it has been idle for too long. It may need another token.
    fn live_flow(&self, key: &FlowKey, now: u32) -> Option<Flow> {
        self.flow(key).filter(|flow| is_live(self.config(), key, flow, now))
    }
}

/// Tables that a decision may change. A full table refuses a new entry; it never removes another one to make room.
pub trait TablesMut: Tables {
    /// Writes a flow. Returns false if it is new and the table is full.
    fn put_flow(&mut self, key: &FlowKey, flow: Flow) -> bool;
    /// Writes a grant in use. Returns false if it is new and the table is full.
    fn put_grant(&mut self, handle: Handle, used: GrantUse) -> bool;
    /// Writes what an account uses. Returns false if it is new and the table is full.
    fn put_account(&mut self, account: u32, used: AccountUse) -> bool;
    /// Remembers a token that [`Tables::replay`] called fresh.
    fn remember(&mut self, once: &Once, now: u32);
    /// Remembers the first fragment of a datagram of an admitted flow.
    fn put_fragment(&mut self, key: &FlowKey, id: u32, now: u32);
    /// Remembers the first fragment of a datagram to an open port.
    fn put_open_fragment(&mut self, key: &FlowKey, id: u32, now: u32);
}
