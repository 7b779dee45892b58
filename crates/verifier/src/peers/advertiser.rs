//! Decides which flows to advertise to another gateway, and when. This module does no IO: tables and times are
//! arguments.

use std::collections::HashMap;
use wire::map::{Flow, FlowKey, origin, stage};
use wire::packet::TCP;

/// A continuing flow is advertised again after its idle timeout divided by this number, so that it stays alive at the
/// peer.
const PART: u32 = 4;
/// Seconds for which a peer keeps a client's inside address in tunnels after it has heard of a flow of the client.
const LEASE: u32 = 3600;

/// State of a flow at the time when it was last advertised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowState {
    handle: u64,
    stage: u8,
    seen: u32,
}

impl From<&Flow> for FlowState {
    fn from(flow: &Flow) -> Self {
        Self { handle: flow.handle, stage: flow.stage, seen: flow.seen }
    }
}

/// The state that other gateways last advertised for each flow.
pub type ReceivedFlows = HashMap<FlowKey, FlowState>;

/// Idle timeouts of flows, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Idle timeout of established TCP flows.
    pub tcp: u32,
    /// Idle timeout of TCP flows that the client has closed, or has not opened completely yet.
    pub closing: u32,
    /// Idle timeout of all other flows.
    pub udp: u32,
}

impl Limits {
    fn of(&self, key: &FlowKey, flow: &Flow) -> u32 {
        match (key.protocol, flow.stage) {
            (TCP, stage::OPEN) => self.tcp,
            (TCP, _) => self.closing,
            _ => self.udp,
        }
    }

    /// Returns after how much time a flow that continues has to be advertised again.
    fn again(&self, key: &FlowKey, flow: &Flow) -> u32 {
        let limit = self.of(key, flow);
        (if key.tunnel == 1 { limit.min(LEASE) } else { limit } / PART).max(1)
    }
}

/// The state that was last advertised to one peer for each flow.
#[derive(Default)]
pub struct Advertiser {
    advertised: HashMap<FlowKey, FlowState>,
}

impl Advertiser {
    /// Reports whether a new flow has to be advertised to the peer; if so, records the flow as advertised.
    pub fn begins(&mut self, key: &FlowKey, flow: &Flow) -> bool {
        let state = FlowState::from(flow);
        can_advertise(flow) && self.advertised.insert(*key, state) != Some(state)
    }

    /// Returns those of `flows` that have to be advertised to the peer at `now`. The `bool` says whether the flow is
    /// new to the peer. Omits a flow that another gateway advertises, unless packets of the flow arrive here.
    pub fn pass(
        &mut self,
        flows: Vec<(FlowKey, Flow)>,
        received: &ReceivedFlows,
        limits: &Limits,
        now: u32,
    ) -> Vec<(FlowKey, Flow, bool)> {
        let before = std::mem::take(&mut self.advertised);
        let mut news = Vec::new();
        for (key, flow) in flows {
            let (state, limit) = (FlowState::from(&flow), limits.of(&key, &flow));
            // The difference is signed: the clock may have been set back.
            if !can_advertise(&flow) || now.wrapping_sub(flow.seen) as i32 > limit as i32 {
                continue;
            }
            let advertised = before.get(&key).filter(|advertised| advertised.handle == state.handle).copied();
            let is_news = match advertised {
                None => true,
                Some(advertised) => {
                    advertised.stage != state.stage
                        || state.seen.saturating_sub(advertised.seen) >= limits.again(&key, &flow)
                }
            };
            let is_theirs = received.get(&key) == Some(&state);
            if is_news && !is_theirs {
                news.push((key, flow, advertised.is_none()));
            }
            self.advertised.insert(key, advertised.filter(|_| !is_news).unwrap_or(state));
        }
        news
    }

    /// Reports whether the flow was among the flows of the last call of [`Self::pass`], or has begun since that call.
    pub fn knows(&self, key: &FlowKey) -> bool {
        self.advertised.contains_key(key)
    }
}

fn can_advertise(flow: &Flow) -> bool {
    matches!(flow.origin, origin::TOKEN | origin::INSIDE) && flow.stage <= stage::RESET
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { tcp: 86_400, closing: 30, udp: 60 };

    fn key(port: u16) -> FlowKey {
        let address = |text: &str| text.parse().expect("an address");
        FlowKey::new(address("198.51.100.7"), port, address("203.0.113.10"), 22, TCP)
    }

    fn flow(seen: u32) -> Flow {
        Flow { handle: 7, since: 100, seen, ..Flow::default() }
    }

    fn pass(
        advertiser: &mut Advertiser,
        flows: &[(FlowKey, Flow)],
        received: &ReceivedFlows,
        now: u32,
    ) -> Vec<(u16, bool)> {
        let news = advertiser.pass(flows.to_vec(), received, &LIMITS, now);
        news.iter().map(|(key, _, begins)| (key.client().1, *begins)).collect()
    }

    #[test]
    fn a_flow_is_advertised_once_and_again_before_it_would_be_forgotten() {
        let (mut advertiser, nothing) = (Advertiser::default(), ReceivedFlows::new());
        assert!(advertiser.begins(&key(1), &flow(100)) && !advertiser.begins(&key(1), &flow(100)));
        assert_eq!(pass(&mut advertiser, &[(key(1), flow(200)), (key(2), flow(200))], &nothing, 200), [(2, true)]);
        let quarter = 100 + LIMITS.tcp / PART;
        assert_eq!(pass(&mut advertiser, &[(key(1), flow(quarter - 1))], &nothing, quarter), []);
        assert_eq!(pass(&mut advertiser, &[(key(1), flow(quarter))], &nothing, quarter), [(1, false)]);
        assert_eq!(pass(&mut advertiser, &[(key(1), flow(quarter))], &nothing, quarter), []);
    }

    #[test]
    fn a_flow_in_a_tunnel_is_advertised_again_before_its_address_would_be_free() {
        let (mut advertiser, nothing) = (Advertiser::default(), ReceivedFlows::new());
        let key = key(1).within(true);
        assert!(advertiser.begins(&key, &flow(100)));
        let later = 100 + LEASE / PART;
        assert_eq!(pass(&mut advertiser, &[(key, flow(later - 1))], &nothing, later), []);
        assert_eq!(pass(&mut advertiser, &[(key, flow(later))], &nothing, later), [(1, false)]);
    }

    #[test]
    fn its_end_is_advertised_at_once_and_another_between_the_same_begins() {
        let (mut advertiser, nothing) = (Advertiser::default(), ReceivedFlows::new());
        advertiser.begins(&key(1), &flow(100));
        let closing = Flow { stage: stage::CLOSING, ..flow(101) };
        assert_eq!(pass(&mut advertiser, &[(key(1), closing)], &nothing, 101), [(1, false)]);
        let another = Flow { handle: 8, ..flow(102) };
        assert_eq!(pass(&mut advertiser, &[(key(1), another)], &nothing, 102), [(1, true)]);
        assert_eq!(pass(&mut advertiser, &[], &nothing, 103), []);
        assert_eq!(
            pass(&mut advertiser, &[(key(1), another)], &nothing, 104),
            [(1, true)],
            "it was gone and came back"
        );
    }

    #[test]
    fn what_others_advertised_is_theirs_until_its_packets_come_here() {
        let mut advertiser = Advertiser::default();
        let received = ReceivedFlows::from([(key(1), FlowState::from(&flow(100)))]);
        assert_eq!(pass(&mut advertiser, &[(key(1), flow(100))], &received, 100), []);
        assert_eq!(pass(&mut advertiser, &[(key(1), flow(105))], &received, 105), []);
        let here = Flow { stage: stage::CLOSING, ..flow(106) };
        assert_eq!(pass(&mut advertiser, &[(key(1), here)], &received, 106), [(1, false)]);
    }

    #[test]
    fn what_is_over_or_was_adopted_is_not_advertised() {
        let (mut advertiser, nothing) = (Advertiser::default(), ReceivedFlows::new());
        let adopted = Flow { handle: 0, origin: origin::ADOPTED, ..flow(200) };
        let idle = Flow { stage: stage::CLOSING, ..flow(100) };
        assert_eq!(pass(&mut advertiser, &[(key(1), adopted), (key(2), idle)], &nothing, 200), []);
        assert!(!advertiser.begins(&key(1), &adopted));
    }
}
