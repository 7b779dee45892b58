//! The lifetime of flows: the idle time after which they end, and the changes that each packet makes to them (wire.md
//! §6.3).

use wire::map::{Flow, FlowKey, VerifierConfig, origin, stage};
use wire::packet::{Packet, TCP, UDP};
use wire::{Handle, Holder};

/// Returns the number of seconds without a packet after which the flow is forgotten.
pub fn idle_limit(config: &VerifierConfig, key: &FlowKey, flow: &Flow) -> u32 {
    match (key.protocol, flow.stage) {
        (TCP, stage::OPEN) => config.tcp_idle,
        (TCP, _) => config.closing_idle,
        _ => config.udp_idle,
    }
}

/// Reports whether the flow has not ended, and has not been idle for longer than [`idle_limit`].
pub fn is_live(config: &VerifierConfig, key: &FlowKey, flow: &Flow, now: u32) -> bool {
    match flow.stage {
        stage::CHANGING => true,
        stage::OVER | stage::LEAVING => false,
        // Signed: the clock may have been set back since.
        _ => now.wrapping_sub(flow.seen) as i32 <= idle_limit(config, key, flow) as i32,
    }
}

/// The effect that a valid token has on an existing flow between the same addresses and ports (wire.md §6.4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    /// There is no flow, or a flow that the token can replace: the token opens a flow of its grant.
    Opens,
    /// The flow belongs to the token's grant: the token renews the flow.
    Renews,
    /// The flow belongs to another grant of the same holder: the flow moves to the token's grant.
    Moves,
    /// The flow belongs to another owner and stays as it is; the packet passes.
    Passes,
}

/// Returns the effect of a valid token on the live flow `flow`. `claim` is the handle of the token's grant and the
/// grant's holder.
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

/// Reports whether the client's last token is recent enough. Only UDP flows that a client opened need further tokens. A
/// TCP client sends one token, in the SYN. A flow that no client opened needs no token.
pub fn is_proved(config: &VerifierConfig, key: &FlowKey, flow: &Flow, now: u32) -> bool {
    // Signed: the clock may have been set back since.
    key.protocol != UDP || !flow.by_grant() || now.wrapping_sub(flow.proved) as i32 <= config.udp_renewal as i32
}

/// Reports whether an application of the server can be using the flow now. If so, the application's connection belongs
/// to the flow's owner. Returns false for a connection that its client has not opened yet or has reset, and for a flow
/// that is being removed or moved to another grant.
pub fn is_in_use(config: &VerifierConfig, key: &FlowKey, flow: &Flow, now: u32) -> bool {
    matches!(flow.stage, stage::OPEN | stage::CLOSING)
        && is_live(config, key, flow, now)
        && is_proved(config, key, flow, now)
}

/// Reports whether this flow of a client has ended, although hosts inside a gateway have recently sent packets in it
/// (wire.md §6.9.2).
pub fn only_ended(config: &VerifierConfig, flow: &Flow, now: u32) -> bool {
    flow.origin == origin::ENDED && now.wrapping_sub(flow.seen) as i32 <= config.udp_idle as i32
}

/// Reports whether the table keeps the flow's entry for some time after the flow has ended.
pub fn leaves_trace(config: &VerifierConfig, key: &FlowKey, flow: &Flow) -> bool {
    config.max_outbound > 0 && flow.by_grant() && key.protocol != TCP
}

/// Records that a packet of the flow passed at `now` (Unix seconds).
pub fn count(flow: &mut Flow, packet: &Packet, now: u32) {
    flow.seen = now;
    flow.packets += 1;
    flow.bytes += (packet.end - packet.network) as u64;
}
