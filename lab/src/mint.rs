//! Makes tokens with the authority's own key: valid ones, and invalid ones of every kind.

use std::net::IpAddr;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use wire::{Destination, Epoch, Flags, GrantHeader, Handle, MasterKey, Suite, Token, tail};

/// Length of an epoch in seconds, the authority's default.
const EPOCH_LENGTH: u32 = 3600;
/// Maximum lifetime of a grant in seconds, the authority's default.
pub const MAX_LIFETIME: u32 = 3600;

/// Makes tokens as if the authority had issued their grants.
pub struct Mint {
    master: MasterKey,
    verifier: String,
    epoch_length: u32,
    nonce: u32,
}

/// A grant for one destination, which a test can alter before it makes a token.
#[derive(Clone, Copy, Debug)]
pub struct Forgery {
    /// The grant's header.
    pub header: GrantHeader,
    /// Unix time that the token contains.
    pub time: u32,
    /// The destination that the token is bound to.
    pub to: Destination,
    /// The sender's address, used only if the grant is bound to its source.
    pub source: IpAddr,
}

/// Returns the current Unix time in seconds.
pub fn now() -> u32 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as u32)
}

/// Returns the number of the epoch that is `ahead` epochs after the current one, shortened to its low bits as in a
/// token.
pub fn epoch(ahead: i64) -> u8 {
    Epoch(Epoch::at(now().into(), EPOCH_LENGTH).0.wrapping_add_signed(ahead)).on_wire()
}

impl Mint {
    /// Creates a mint of tokens for the verifier with this id, with epochs of the authority's default length.
    pub fn new(master: MasterKey, verifier: &str) -> Self {
        Self::for_epochs(master, verifier, EPOCH_LENGTH)
    }

    /// Creates a mint of tokens for the verifier with this id, with epochs of `epoch_length` seconds.
    pub fn for_epochs(master: MasterKey, verifier: &str, epoch_length: u32) -> Self {
        Self { master, verifier: verifier.to_owned(), epoch_length, nonce: std::process::id() << 16 }
    }

    /// Returns a valid grant for the protocol and port of `to`, with a lifetime of five minutes or half an epoch,
    /// whichever is shorter.
    pub fn grant(&self, handle: u64, to: Destination, source: IpAddr) -> Forgery {
        let family = if to.address.is_ipv4() { Flags(0) } else { Flags::IPV6 };
        let header = GrantHeader {
            suite: Suite::Siphash,
            flags: Flags::PORT.with(family),
            epoch: Epoch::at(now().into(), self.epoch_length).on_wire(),
            prefix_length: if to.address.is_ipv4() { 32 } else { 128 },
            expires: now() + 300.min(self.epoch_length / 2),
            handle: Handle(handle),
        };
        Forgery { header, time: now(), to, source }
    }

    /// Makes a token with a nonce of its own, and returns the token's block (wire.md §4). The caller appends the block
    /// to a first packet.
    pub fn block(&mut self, forgery: &Forgery) -> Result<[u8; tail::BLOCK_LEN]> {
        self.nonce = self.nonce.wrapping_add(1);
        let current = Epoch::at(now().into(), self.epoch_length);
        let epoch = current.from_wire(forgery.header.epoch).unwrap_or(current);
        let key = self.master.verifier_key(&self.verifier, epoch).context("the verifier's id is too long")?;
        let key = forgery.header.key(&key, &forgery.to, forgery.source);
        let token = Token::new(forgery.header, &key, forgery.time, self.nonce, &forgery.to);
        Ok(tail::block(&token.encode()))
    }
}
