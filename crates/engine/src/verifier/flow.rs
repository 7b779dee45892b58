//! How a flow goes on: when it has been idle for too long, and what each packet changes (wire.md §6.3).

use wire::map::{Flow, FlowKey, VerifierConfig, origin, stage};
use wire::packet::{Packet, TCP, UDP};
use wire::{Handle, Holder};

/// After how many seconds without a packet the flow is forgotten.
pub fn idle_limit(config: &VerifierConfig, key: &FlowKey, flow: &Flow) -> u32 {
    match (key.protocol, flow.stage) {
        (TCP, stage::OPEN) => config.tcp_idle,
        (TCP, _) => config.closing_idle,
        _ => config.udp_idle,
    }
}

/// Whether the flow has had a packet recently enough.
pub fn is_live(config: &VerifierConfig, key: &FlowKey, flow: &Flow, now: u32) -> bool {
    match flow.stage {
        stage::CHANGING => true,
        stage::OVER | stage::LEAVING => false,
        // Signed: the clock may have been set back since.
        _ => now.wrapping_sub(flow.seen) as i32 <= idle_limit(config, key, flow) as i32,
    }
}

/// What a right token means to the flow between the same (wire.md §6.4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    /// There is none, or one that gives way: a flow more of the grant.
    Opens,
    /// It is the grant's own.
    Renews,
    /// It is another grant's of the same holder, and gets the newer one.
    Moves,
    /// It is somebody else's and keeps its owner; the packet passes.
    Passes,
}

/// What a right token of this grant and holder means to a live flow.
pub fn relation(config: &VerifierConfig, key: &FlowKey, flow: &Flow, claim: (Handle, Holder), now: u32) -> Relation {
    let (handle, holder) = claim;
    match (flow.origin, flow.stage) {
        (_, stage::CHANGING) => Relation::Passes,
        (origin::TOKEN, _) if flow.handle == handle.0 => Relation::Renews,
        (origin::TOKEN, _) if holder.0 != 0 && flow.holder == holder.0 => Relation::Moves,
        (origin::TOKEN, _) if !is_proved(config, key, flow, now) => Relation::Opens,
        (origin::TOKEN, stage::OPENING) | (_, stage::CLOSING | stage::RESET) => Relation::Opens,
        _ => Relation::Passes,
    }
}

/// Whether the client has shown a token recently enough. TCP shows one in its SYN; a flow that no client opened shows none.
pub fn is_proved(config: &VerifierConfig, key: &FlowKey, flow: &Flow, now: u32) -> bool {
    // Signed: the clock may have been set back since.
    key.protocol != UDP || !flow.by_grant() || now.wrapping_sub(flow.proved) as i32 <= config.udp_renewal as i32
}

/// Whether it is a client's flow that is over and on which the inside of a gateway has gone on sending (wire.md §6.9.2).
pub fn only_ended(config: &VerifierConfig, flow: &Flow, now: u32) -> bool {
    flow.origin == origin::ENDED && now.wrapping_sub(flow.seen) as i32 <= config.udp_idle as i32
}

/// Whether something of the flow stays in its place once it is over.
pub fn leaves_trace(config: &VerifierConfig, key: &FlowKey, flow: &Flow) -> bool {
    config.max_outbound > 0 && flow.by_grant() && key.protocol != TCP
}

/// Counts a packet of the flow.
pub fn count(flow: &mut Flow, packet: &Packet, now: u32) {
    flow.seen = now;
    flow.packets += 1;
    flow.bytes += (packet.end - packet.network) as u64;
}
