//! Decides which flows to announce to another gateway, and when. Pure: the input is tables and time, the output is
//! flows to announce.

use std::collections::HashMap;
use wire::map::{Flow, FlowKey, origin, stage};
use wire::packet::TCP;

/// A continuing flow is announced again after this fraction of its idle timeout, so that it stays alive at the peer,
/// too.
const PART: u32 = 4;

/// State of a flow when it was last announced.
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

/// State of flows as other gateways announced it.
pub type Heard = HashMap<FlowKey, FlowState>;

/// Idle timeouts of flows, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Established TCP flows.
    pub tcp: u32,
    /// TCP flows that the client has closed or is only just opening.
    pub closing: u32,
    /// Flows of all other protocols.
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
}

/// State of flows as it was announced to one peer.
#[derive(Default)]
pub struct Teller {
    told: HashMap<FlowKey, FlowState>,
}

impl Teller {
    /// Reports whether to announce a new flow to the peer, and records that it is announced.
    pub fn begins(&mut self, key: &FlowKey, flow: &Flow) -> bool {
        let state = FlowState::from(flow);
        tellable(flow) && self.told.insert(*key, state) != Some(state)
    }

    /// Selects from all flows at `now` those to announce to the peer, each with whether it begins. Flows that another
    /// gateway announced are left to that gateway unless their packets arrive here.
    pub fn pass(
        &mut self,
        flows: Vec<(FlowKey, Flow)>,
        heard: &Heard,
        limits: &Limits,
        now: u32,
    ) -> Vec<(FlowKey, Flow, bool)> {
        let before = std::mem::take(&mut self.told);
        let mut news = Vec::new();
        for (key, flow) in flows {
            let (state, limit) = (FlowState::from(&flow), limits.of(&key, &flow));
            // The difference is signed: the clock may have been set back.
            if !tellable(&flow) || now.wrapping_sub(flow.seen) as i32 > limit as i32 {
                continue;
            }
            let told = before.get(&key).filter(|told| told.handle == state.handle).copied();
            let is_news = match told {
                None => true,
                Some(told) => {
                    told.stage != state.stage || state.seen.saturating_sub(told.seen) >= (limit / PART).max(1)
                }
            };
            let is_theirs = heard.get(&key) == Some(&state);
            if is_news && !is_theirs {
                news.push((key, flow, told.is_none()));
            }
            self.told.insert(key, told.filter(|_| !is_news).unwrap_or(state));
        }
        news
    }

    /// Reports whether a flow was seen in the last pass or has begun since.
    pub fn knows(&self, key: &FlowKey) -> bool {
        self.told.contains_key(key)
    }
}

fn tellable(flow: &Flow) -> bool {
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

    fn pass(teller: &mut Teller, flows: &[(FlowKey, Flow)], heard: &Heard, now: u32) -> Vec<(u16, bool)> {
        let news = teller.pass(flows.to_vec(), heard, &LIMITS, now);
        news.iter().map(|(key, _, begins)| (key.client().1, *begins)).collect()
    }

    #[test]
    fn a_flow_is_told_once_and_again_before_it_would_be_forgotten() {
        let (mut teller, nothing) = (Teller::default(), Heard::new());
        assert!(teller.begins(&key(1), &flow(100)) && !teller.begins(&key(1), &flow(100)));
        assert_eq!(pass(&mut teller, &[(key(1), flow(200)), (key(2), flow(200))], &nothing, 200), [(2, true)]);
        let quarter = 100 + LIMITS.tcp / PART;
        assert_eq!(pass(&mut teller, &[(key(1), flow(quarter - 1))], &nothing, quarter), []);
        assert_eq!(pass(&mut teller, &[(key(1), flow(quarter))], &nothing, quarter), [(1, false)]);
        assert_eq!(pass(&mut teller, &[(key(1), flow(quarter))], &nothing, quarter), []);
    }

    #[test]
    fn its_end_is_told_at_once_and_another_between_the_same_begins() {
        let (mut teller, nothing) = (Teller::default(), Heard::new());
        teller.begins(&key(1), &flow(100));
        let closing = Flow { stage: stage::CLOSING, ..flow(101) };
        assert_eq!(pass(&mut teller, &[(key(1), closing)], &nothing, 101), [(1, false)]);
        let another = Flow { handle: 8, ..flow(102) };
        assert_eq!(pass(&mut teller, &[(key(1), another)], &nothing, 102), [(1, true)]);
        assert_eq!(pass(&mut teller, &[], &nothing, 103), []);
        assert_eq!(pass(&mut teller, &[(key(1), another)], &nothing, 104), [(1, true)], "it was gone and came back");
    }

    #[test]
    fn what_others_told_is_theirs_until_its_packets_come_here() {
        let mut teller = Teller::default();
        let heard = Heard::from([(key(1), FlowState::from(&flow(100)))]);
        assert_eq!(pass(&mut teller, &[(key(1), flow(100))], &heard, 100), []);
        assert_eq!(pass(&mut teller, &[(key(1), flow(105))], &heard, 105), []);
        let here = Flow { stage: stage::CLOSING, ..flow(106) };
        assert_eq!(pass(&mut teller, &[(key(1), here)], &heard, 106), [(1, false)]);
    }

    #[test]
    fn what_is_over_or_was_adopted_is_not_told() {
        let (mut teller, nothing) = (Teller::default(), Heard::new());
        let adopted = Flow { handle: 0, origin: origin::ADOPTED, ..flow(200) };
        let idle = Flow { stage: stage::CLOSING, ..flow(100) };
        assert_eq!(pass(&mut teller, &[(key(1), adopted), (key(2), idle)], &nothing, 200), []);
        assert!(!teller.begins(&key(1), &adopted));
    }
}
