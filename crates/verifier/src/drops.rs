//! The latest dropped packets. A ring of limited length contains them. The kernel program's samples fill the ring.

use crate::view;
use engine::model::protocol;
use std::collections::VecDeque;
use wire::map::{DropSample, FlowKey};
use wire::{DropReason, Handle};

/// Largest number of drops that are kept.
pub const DROPS_MAX: usize = 1024;

/// A ring buffer of the latest dropped packets, at most [`DROPS_MAX`].
#[derive(Default)]
pub struct Ring {
    drops: VecDeque<view::Drop>,
    next: u64,
}

impl Ring {
    /// Adds a drop, and removes the oldest drop if the ring is full. Returns the added drop with its number set.
    pub fn push(&mut self, mut dropped: view::Drop) -> &view::Drop {
        dropped.number = self.next;
        self.next += 1;
        if self.drops.len() == DROPS_MAX {
            self.drops.pop_front();
        }
        self.drops.push_back(dropped);
        &self.drops[self.drops.len() - 1]
    }

    /// Returns the drops whose number is `from` or higher, oldest first.
    pub fn since(&self, from: u64) -> Vec<view::Drop> {
        self.drops.iter().filter(|dropped| dropped.number >= from).cloned().collect()
    }
}

/// Returns the name of a drop reason. If this version has no name for the number, returns the number as text.
pub fn reason(number: u8) -> String {
    DropReason::from_number(number).map_or_else(|| number.to_string(), |reason| reason.name().to_owned())
}

/// Converts a sample of the kernel program for display. The result's number is 0 until [`Ring::push`] sets it.
pub fn read(sample: &DropSample, interface: String, time: u64) -> view::Drop {
    let known = |flow: &FlowKey| flow.family == 4 || flow.family == 6;
    let flow = Some(&sample.flow).filter(|flow| known(flow));
    view::Drop {
        number: 0,
        time,
        reason: reason(sample.reason),
        client: flow.map(|flow| flow.client().into()),
        server: flow.map(|flow| flow.server().into()),
        protocol: protocol::name(sample.flow.protocol),
        handle: (sample.handle != 0).then(|| Handle(sample.handle).to_string()),
        interface,
        length: sample.length,
        observed: sample.observed != 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(reason: u8) -> view::Drop {
        let (client, server) = ("203.0.113.5".parse(), "2001:db8::1".parse());
        let flow = FlowKey::new(client.expect("an address"), 4711, server.expect("an address"), 22, 6);
        read(&DropSample { handle: 0, flow, interface: 2, length: 60, reason, observed: 0 }, "eth0".into(), 1000)
    }

    #[test]
    fn the_ring_keeps_the_latest() {
        let mut ring = Ring::default();
        for _ in 0..DROPS_MAX + 10 {
            ring.push(sample(1));
        }
        assert_eq!(ring.since(0).len(), DROPS_MAX);
        assert_eq!(ring.since(0)[0].number, 10);
        assert_eq!(ring.since(DROPS_MAX as u64 + 8).len(), 2);
    }

    #[test]
    fn reasons_have_names() {
        assert_eq!((sample(1).reason.as_str(), sample(200).reason.as_str()), ("no_token", "200"));
        assert_eq!((sample(1).handle, sample(1).protocol.as_str()), (None, "tcp"));
    }
}
