//! How a flow goes on: when it has been idle for too long, and what each packet changes (wire.md §6.3).

use wire::map::{Flow, FlowKey, VerifierConfig, stage};
use wire::packet::{Packet, TCP, UDP};

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
    // Signed: the clock may have been set back since.
    now.wrapping_sub(flow.seen) as i32 <= idle_limit(config, key, flow) as i32
}

/// Whether the client has shown a token recently enough. TCP shows one in its SYN; a flow that no client opened shows none.
pub fn is_proved(config: &VerifierConfig, key: &FlowKey, flow: &Flow, now: u32) -> bool {
    // Signed: the clock may have been set back since.
    key.protocol != UDP || !flow.by_grant() || now.wrapping_sub(flow.proved) as i32 <= config.udp_renewal as i32
}

/// Counts a packet of the flow.
pub fn count(flow: &mut Flow, packet: &Packet, now: u32) {
    flow.seen = now;
    flow.packets += 1;
    flow.bytes += (packet.end - packet.network) as u64;
}
