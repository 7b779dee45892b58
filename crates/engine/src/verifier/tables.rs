//! The state that a decision looks up and changes. The kernel program keeps the same state in its maps.

use super::flow::is_live;
use std::net::IpAddr;
use wire::map::{AccountUse, Flow, FlowKey, GrantUse, LsGrant, Services, VerifierConfig};
use wire::token::TOKEN_LEN;
use wire::{Epoch, Handle, Holder, VerifierKey};

/// The part of a token that is valid only once, and that distinguishes the token from all other tokens of its grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Once {
    /// The whole token, for a token of wire.md §3.
    Token([u8; TOKEN_LEN]),
    /// The pair's handle and the second nonce, for a token of a pair.
    Nonce2(Handle, u16),
    /// No part of the token is valid only once: the token may be used again. This applies to a token of a pair that was
    /// not announced to the verifier.
    Nothing,
}

/// Result of looking up a token in the replay table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replay {
    /// The token is new, and the table has room for it.
    Fresh,
    /// The token was used before.
    Seen,
    /// The token is new, but the part of the table where it would be stored is full of tokens that are still valid.
    Full,
}

/// The terms of a pair of the LS scheme, as the authority announced them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairTerms {
    /// Epoch of the verifier secret from which the pair's client key derives.
    pub epoch: Epoch,
    /// Expiry of the pair, in Unix seconds.
    pub expires: u32,
    /// Account and session to which the pair was issued.
    pub holder: Holder,
}

impl PairTerms {
    /// Returns the terms of a pair, from the pair's entry in a verifier's table.
    pub fn of(pair: &LsGrant) -> Self {
        Self { epoch: Epoch(pair.epoch), expires: pair.expires, holder: Holder(pair.holder) }
    }
}

/// State of a TCP connection in the server's own stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stack {
    /// The stack has no state of the connection, or its state is unknown because the server is another host.
    #[default]
    Unknown,
    /// The stack has answered the client's SYN, and waits for the client to acknowledge this number.
    Answered(u32),
    /// The stack has a connection, and expects this sequence number from the client.
    Expects(u32),
}

/// The tables in which a decision looks up entries.
pub trait Tables {
    /// Returns the verifier's settings.
    fn config(&self) -> &VerifierConfig;
    /// Reports whether the program is attached at tc. There the kernel has already removed the outer VLAN tag, and the
    /// program cannot remove a shim behind a second VLAN tag.
    fn at_tc(&self) -> bool;
    /// Reports whether the packets come out of a sealed tunnel (wire.md §6.11), so that they begin with their IP
    /// header.
    fn in_tunnel(&self) -> bool {
        false
    }
    /// Returns the protected services at an address: those of the longest prefix that contains the address.
    fn services(&self, address: IpAddr) -> Option<Services>;
    /// Reports whether a TCP service is an optional receiver, which everybody may reach (wire.md §6.12). A decision
    /// calls this method only if the verifier's settings say that there are optional receivers.
    fn is_optional(&self, address: IpAddr, port: u16) -> bool;
    /// Reports whether a jump of the verifier's clock possibly made the verifier forget which tokens made at `time`
    /// were used, or which grants that end at `time` were revoked.
    fn has_forgotten(&self, time: u32) -> bool;
    /// Returns the verifier key of an epoch.
    fn key(&self, epoch: Epoch) -> Option<VerifierKey>;
    /// Reports whether a grant is revoked.
    fn is_revoked(&self, handle: Handle) -> bool;
    /// Reports whether the session has ended, or its account is shut out. Returns `false` for holder 0, which means
    /// that there is no holder.
    fn is_ended(&self, holder: Holder) -> bool;
    /// Returns the flow with this key, even if it has ended.
    fn flow(&self, key: &FlowKey) -> Option<Flow>;
    /// Returns the record of a grant that has admitted a packet.
    fn grant(&self, handle: Handle) -> Option<GrantUse>;
    /// Returns an account's resource use.
    fn account(&self, account: u32) -> Option<AccountUse>;
    /// Returns a pair that the authority has announced.
    fn pair(&self, handle: Handle) -> Option<PairTerms>;
    /// Reports whether a token was used before. Does not record the token; [`TablesMut::remember`] does.
    fn replay(&self, once: &Once, now: u32) -> Replay;
    /// Returns the time at which the first fragment of a datagram of an admitted flow arrived, in Unix seconds. The key
    /// has no ports.
    fn fragment(&self, key: &FlowKey, id: u32) -> Option<u32>;
    /// Returns the time at which the first fragment of a datagram to an open port arrived, in Unix seconds. The key has
    /// no ports.
    fn open_fragment(&self, key: &FlowKey, id: u32) -> Option<u32>;
    /// Returns the state of a connection in the server's stack. The state affects how long the verifier keeps a flow,
    /// but not the outcome of a decision.
    fn stack(&self, _key: &FlowKey) -> Stack {
        Stack::Unknown
    }
    /// Reports whether the table of flows has room for another flow of this key's family.
    fn has_room_for_flow(&self, _key: &FlowKey) -> bool {
        true
    }
    /// Reports whether the table of grants in use has room for another grant.
    fn has_room_for_grant(&self) -> bool {
        true
    }

    /// Reports whether the table of accounts has room for another account.
    fn has_room_for_account(&self) -> bool {
        true
    }

    /// Returns the admitted flow with this key, unless it has been idle for too long. The flow possibly needs another
    /// token.
    fn live_flow(&self, key: &FlowKey, now: u32) -> Option<Flow> {
        self.flow(key).filter(|flow| is_live(self.config(), key, flow, now))
    }
}

/// Tables that a decision can change. If a table is full, it accepts no new entry; it never removes another entry to
/// make room.
pub trait TablesMut: Tables {
    /// Stores a flow. Returns false if the flow is new and the table is full.
    fn put_flow(&mut self, key: &FlowKey, flow: Flow) -> bool;
    /// Stores a grant in use. Returns false if the grant is new and the table is full.
    fn put_grant(&mut self, handle: Handle, used: GrantUse) -> bool;
    /// Stores an account's resource use. Returns false if the account is new and the table is full.
    fn put_account(&mut self, account: u32, used: AccountUse) -> bool;
    /// Records a token for which [`Tables::replay`] returned [`Replay::Fresh`].
    fn remember(&mut self, once: &Once, now: u32);
    /// Records the first fragment of a datagram of an admitted flow.
    fn put_fragment(&mut self, key: &FlowKey, id: u32, now: u32);
    /// Records the first fragment of a datagram to an open port.
    fn put_open_fragment(&mut self, key: &FlowKey, id: u32, now: u32);
}
