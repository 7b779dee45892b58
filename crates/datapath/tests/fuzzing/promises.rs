//! Invariants that must hold throughout (wire.md §6.4.1, §6.4.4, §6.6): a token admits once; a revoked grant stays out;
//! no packet is admitted without a valid tag.

use super::chance::Chance;
use crate::world::{self, LsPair, master};
use engine::verifier::{Outcome, Verifier};
use std::collections::{BTreeMap, BTreeSet};
use wire::map::FlowKey;
use wire::packet::Packet;
use wire::shim::{self, Content};
use wire::{Destination, Epoch, Flags, Handle, LsToken, Token, tail};

/// Number of admitted frames that are kept for replay.
const ADMITTED_MAX: usize = 20_000;

/// Tokens that were admitted, and grants that must never be admitted again.
#[derive(Default)]
pub struct Promises {
    /// Tokens that were admitted once.
    used: BTreeSet<Vec<u8>>,
    /// Grants and pairs that were revoked, or whose session ended.
    dead: BTreeSet<Handle>,
    /// Admitted frames, by their tokens' time.
    admitted: BTreeMap<u32, Vec<u8>>,
    /// Pairs that the authority announced.
    pub told: BTreeMap<Handle, LsPair>,
    /// Number of replays of admitted tokens.
    pub copies: u64,
}

/// A token in a frame, and the packet that it is for.
struct Claim {
    bytes: Vec<u8>,
    handle: Handle,
    time: Option<u32>,
    about: Packet,
    right: bool,
    sealed: bool,
}

impl Promises {
    /// Records that no packet of this grant may pass from now on.
    pub fn kill(&mut self, handle: Handle) {
        self.dead.insert(handle);
    }

    /// Returns a frame that was admitted, with a token of about this time.
    pub fn admitted_around(&mut self, chance: &mut Chance, now: u32) -> Option<Vec<u8>> {
        let near: Vec<&Vec<u8>> = self.admitted.range(now - 30..=now + 30).map(|(_, frame)| frame).collect();
        if near.is_empty() {
            return None;
        }
        self.copies += 1;
        Some(near[chance.below(near.len())].clone())
    }

    /// Checks the outcome of a frame; `flows` is the number of flows before it.
    pub fn judged(
        &mut self,
        model: &Verifier,
        (frame, inside): (&[u8], bool),
        outcome: Outcome,
        now: u32,
        flows: usize,
    ) -> Result<(), String> {
        let admitted = matches!(outcome, Outcome::Token | Outcome::Consumed);
        if model.flows.len() > flows && !admitted {
            return Err("a flow without a token".into());
        }
        let packet = Packet::parse(frame);
        if admitted {
            let claim = self.claim(frame, &packet, now).ok_or("admitted without a token")?;
            if claim.sealed && !inside {
                return Err("a sealed grant was admitted outside of the tunnel".into());
            }
            if !claim.right {
                return Err("admitted without a right tag".into());
            }
            if !self.used.insert(claim.bytes) {
                return Err("a token admitted twice".into());
            }
            if self.dead.contains(&claim.handle) {
                return Err(format!("a revoked grant, {}, was admitted", claim.handle));
            }
            if self.admitted.len() >= ADMITTED_MAX {
                self.admitted.pop_first();
            }
            self.admitted.insert(claim.time.unwrap_or(now), frame.to_vec());
            return self.alive(model, &claim.about, inside);
        }
        if outcome == Outcome::Flow { self.alive(model, &packet, inside) } else { Ok(()) }
    }

    /// Checks that the flow by which a packet passed does not belong to a revoked grant.
    fn alive(&self, model: &Verifier, packet: &Packet, inside: bool) -> Result<(), String> {
        let flow = FlowKey::to_server(packet).and_then(|key| model.flows.get(&key.within(inside)));
        match flow.filter(|flow| self.dead.contains(&Handle(flow.handle))) {
            Some(flow) => Err(format!("a packet passed by a flow of {}, which was revoked", Handle(flow.handle))),
            None => Ok(()),
        }
    }

    /// Checks that the tables contain no flow of a revoked grant.
    pub fn tables(&self, model: &Verifier) -> Result<(), String> {
        match model.flows.values().find(|flow| self.dead.contains(&Handle(flow.handle))) {
            Some(flow) => Err(format!("a flow of {}, which was revoked, is in the table", Handle(flow.handle))),
            None => Ok(()),
        }
    }

    /// Reads a token and computes its tag without any of the tables.
    fn claim(&self, frame: &[u8], packet: &Packet, now: u32) -> Option<Claim> {
        let (bytes, about) = match shim::open(frame, packet) {
            Some(opened) => match opened.ok()? {
                (about, Content::Token(bytes)) => (bytes, about),
                (about, Content::Ls(bytes)) => {
                    let token = LsToken::decode(&bytes);
                    let handle = token.pair.handle();
                    let right = self.told.get(&handle).is_some_and(|pair| token.proves(&pair.key()));
                    let bytes = [&handle.0.to_be_bytes()[..], &token.nonce2.to_be_bytes()].concat();
                    return Some(Claim { bytes, handle, time: None, about, right, sealed: false });
                }
                _ => return None,
            },
            None => (*tail::find(frame, packet)?.0, *packet),
        };
        let token = Token::decode(&bytes, about.ipv6()).ok()?;
        let epoch = Epoch::at(now.into(), world::EPOCH_LENGTH).from_wire(token.header.epoch)?;
        let key = master().verifier_key("edge-1", epoch)?;
        let to = Destination { address: about.destination?, protocol: about.protocol, port: about.destination_port };
        let right = token.proves(&token.header.key(&key, &to, about.source?), &to);
        let (handle, sealed) = (token.header.handle, token.header.flags.has(Flags::SEALED));
        Some(Claim { bytes: bytes.to_vec(), handle, time: Some(token.time), about, right, sealed })
    }
}
