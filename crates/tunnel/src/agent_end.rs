//! The agent's ends of its tunnels, one to each verifier: which packets go into which, and which may come out.

use crate::packet::{Layout, Virtio};
use crate::pump::{End, Message, Opened, Times, Way};
use crate::random::Random;
use engine::model::Sealing;
use engine::tunnel::{Chance, Dropped, Initiator, Millis, Packet, Received, Terms};
use seal::Batch;
use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use wire::seal::{Close, Refusal, Suites, Treatment};
use wire::{Destination, Token, tail};

/// Maximum interval between tokens of the tunnel's UDP flow (wire.md §4.1).
const TOKEN_EVERY: Millis = 15_000;
/// Interval between tokens while the verifier does not answer: the first may have been lost, or a translator may have
/// given the flow another port.
const TOKEN_AGAIN: Millis = 250;
/// Silence of the verifier, while records are sent, that counts as no answer.
const SILENCE: Millis = 1_000;
/// Maximum number of destinations without a tunnel that are remembered for the agent.
const UNKNOWN_MAX: usize = 64;

/// Identifies a tunnel: the subject on this machine, and the verifier's service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// The subject's number.
    pub subject: u32,
    /// Address of the service.
    pub service: SocketAddr,
}

/// Where packets to a destination go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leg {
    /// The tunnel.
    pub tunnel: Key,
    /// The rule's demand, or more.
    pub demand: Sealing,
}

/// A tunnel as a person sees it.
#[derive(Clone, Debug)]
pub struct Shown {
    /// The tunnel.
    pub key: Key,
    /// Whether it is open.
    pub is_open: bool,
    /// The phase of its keys.
    pub phase: u32,
    /// Why the verifier refused it.
    pub refused: Option<Refusal>,
}

struct Tunnel {
    initiator: Initiator,
    terms: Terms,
    token: Option<Millis>,
    sent: Millis,
    received: Millis,
}

/// The agent's ends.
#[derive(Default)]
pub struct AgentEnd {
    tunnels: HashMap<Key, Tunnel>,
    legs: HashMap<Destination, Leg>,
    /// The destination of the frame that was routed last.
    routed: Sealing,
    unknown: VecDeque<Destination>,
    drops: Drops,
}

/// Numbers of packets that were dropped, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drops {
    /// Records, by [`Dropped::ALL`].
    pub records: [u64; Dropped::ALL.len()],
    /// Packets whose destination has no tunnel.
    pub no_leg: u64,
    /// Packets from a verifier that its tunnel is not for, or in records that are weaker than demanded.
    pub refused: u64,
}

impl AgentEnd {
    /// Sets the terms of a tunnel, which exists from then on.
    pub fn set_tunnel(&mut self, key: Key, terms: Terms) {
        match self.tunnels.get_mut(&key) {
            Some(tunnel) => {
                tunnel.initiator.renew(terms.clone());
                tunnel.terms = terms;
            }
            None => {
                let initiator = Initiator::new(terms.clone());
                self.tunnels.insert(key, Tunnel { initiator, terms, token: None, sent: 0, received: 0 });
            }
        }
    }

    /// Sends packets to this destination into a tunnel.
    pub fn set_leg(&mut self, to: Destination, leg: Leg) {
        self.legs.insert(to, leg);
    }

    /// Forgets where packets to a destination go: they are dropped.
    pub fn remove_leg(&mut self, to: &Destination) {
        self.legs.remove(to);
    }

    /// Ends the tunnels that nothing goes into any more; returns what to tell the other ends.
    pub fn close_unused(&mut self, times: Times) -> Vec<Message> {
        let used: Vec<Key> = self.legs.values().map(|leg| leg.tunnel).collect();
        let gone = self.tunnels.extract_if(|key, _| !used.contains(key));
        let close = |(key, mut tunnel): (Key, Tunnel)| {
            let datagram = tunnel.initiator.close(Close::Ended, times.0)?;
            Some(Message { to: key.service, source: None, datagram })
        };
        gone.filter_map(close).collect()
    }

    /// Makes every tunnel send a token at once: this machine has other addresses.
    pub fn moved(&mut self) {
        self.tunnels.values_mut().for_each(|tunnel| tunnel.token = None);
    }

    /// Returns a destination whose packets were dropped because nobody said where they go.
    pub fn unknown(&mut self) -> Option<Destination> {
        self.unknown.pop_front()
    }

    /// Returns the tunnels.
    pub fn show(&self, times: Times) -> Vec<Shown> {
        let shown = self.tunnels.iter().map(|(key, tunnel)| Shown {
            key: *key,
            is_open: tunnel.initiator.is_open(times.0),
            phase: tunnel.initiator.phase(),
            refused: tunnel.initiator.refused(),
        });
        shown.collect()
    }

    /// Returns the numbers of dropped packets.
    pub fn drops(&self) -> Drops {
        self.drops
    }

    fn note(&mut self, why: Dropped) {
        let index = Dropped::ALL.iter().position(|known| *known == why);
        if let Some(counter) = index.and_then(|index| self.drops.records.get_mut(index)) {
            *counter += 1;
        }
    }

    /// Reports whether a tunnel may bring this packet: it comes from a destination that the tunnel is for, and is sealed
    /// as demanded. Without ports (fragments, ICMP), any destination at the address will do, at its demand.
    fn may_bring(
        &self,
        key: Key,
        packet: &[u8],
        layout: &Layout,
        (treatment, suite): (Treatment, wire::seal::Suite),
    ) -> bool {
        let address = layout.source(packet);
        if layout.payload > layout.transport {
            let from = Destination { address, protocol: layout.protocol, port: layout.ports(packet).0 };
            return self.legs.get(&from).is_some_and(|leg| leg.tunnel == key && leg.demand.allows(treatment, suite));
        }
        let mut legs = self.legs.iter().filter(|(to, leg)| to.address == address && leg.tunnel == key).peekable();
        legs.peek().is_some() && legs.all(|(_, leg)| leg.demand.allows(treatment, suite))
    }
}

impl Tunnel {
    /// Returns a token for the UDP flow if one is due.
    fn token(&mut self, (now, wall): Times) -> Option<Vec<u8>> {
        let is_silent = self.sent > self.received && now.saturating_sub(self.received) >= SILENCE;
        let pause = if is_silent { TOKEN_AGAIN } else { TOKEN_EVERY };
        if self.token.is_some_and(|last| now.saturating_sub(last) < pause) {
            return None;
        }
        self.token = Some(now);
        let [a, b, c, d, ..] = Random.bytes();
        let Terms { grant, key, to, .. } = &self.terms;
        let token = Token::new(*grant, key, wall, u32::from_be_bytes([a, b, c, d]), to);
        Some(tail::block(&token.encode()).to_vec())
    }
}

impl End for AgentEnd {
    type Tunnel = Key;

    fn route(&mut self, packet: &mut [u8], layout: &Layout, _: Virtio, _: Times) -> Option<Way<Key>> {
        let address = layout.destination(packet);
        let leg = if layout.payload > layout.transport {
            let to = Destination { address, protocol: layout.protocol, port: layout.ports(packet).1 };
            let leg = self.legs.get(&to).copied();
            if leg.is_none() && !self.unknown.contains(&to) && self.unknown.len() < UNKNOWN_MAX {
                self.unknown.push_back(to);
            }
            leg
        } else {
            let legs = self.legs.iter().filter(|(to, _)| to.address == address).map(|(_, leg)| *leg);
            // Which flow the packet is of is not known here: it is treated as the strongest demands.
            legs.max_by_key(|leg| leg.demand.treatment)
        };
        let Some(Leg { tunnel, demand }) = leg.filter(|leg| self.tunnels.contains_key(&leg.tunnel)) else {
            self.drops.no_leg += 1;
            return None;
        };
        self.routed = demand;
        Some(Way { tunnel, to: tunnel.service, source: None })
    }

    fn seal(&mut self, key: Key, parts: [&[u8]; 2], partial: bool, times: Times, out: &mut Batch) -> bool {
        let Some(tunnel) = self.tunnels.get_mut(&key) else { return false };
        let Sealing { suites, .. } = self.routed;
        // A flow that is in the tunnel by choice has at least its changes noticed.
        let treatment = self.routed.treatment.of_records().unwrap_or(Treatment::Authenticate);
        tunnel.sent = times.0;
        if let Some(token) = tunnel.token(times) {
            out.push(&[&token]);
        }
        let packet = Packet { treatment, suites, lane: 0, partial, parts: &parts };
        tunnel.initiator.seal(&packet, times, &mut Random, out).is_ok()
    }

    fn open<'d>(
        &mut self,
        from: SocketAddr,
        _: Option<IpAddr>,
        datagram: &'d mut [u8],
        times: Times,
        replies: &mut Vec<Message>,
    ) -> Option<Opened<'d>> {
        // Several people of this machine may have a tunnel to one verifier: the index tells whose a datagram is.
        let mut at_service = self.tunnels.iter_mut().filter(|(key, _)| key.service == from);
        let Some((key, tunnel)) = at_service.find(|(_, tunnel)| tunnel.initiator.knows(datagram)) else {
            self.note(Dropped::NoTunnel);
            return None;
        };
        let key = *key;
        let received = tunnel.initiator.receive(datagram, times, &mut Random);
        if received.is_ok() {
            tunnel.received = times.0;
        }
        let waiting = tunnel.initiator.poll(times, &mut Random);
        replies.extend(waiting.into_iter().map(|datagram| Message { to: from, source: None, datagram }));
        let received = match received {
            Ok(received) => received,
            Err(why) => {
                self.note(why);
                return None;
            }
        };
        let Received::Packet { treatment, suite, partial, packet, .. } = received else { return None };
        let layout = Layout::of(packet)?;
        if !self.may_bring(key, packet, &layout, (treatment, suite)) {
            self.drops.refused += 1;
            return None;
        }
        Some(Opened { packet, layout, partial })
    }

    fn poll(&mut self, times: Times, replies: &mut Vec<Message>) {
        let wanted: Vec<Key> = self.legs.values().map(|leg| leg.tunnel).collect();
        for (key, tunnel) in &mut self.tunnels {
            tunnel.initiator.want(wanted.contains(key));
            let waiting = tunnel.initiator.poll(times, &mut Random);
            if waiting.is_empty() && tunnel.sent + TOKEN_EVERY < times.0 {
                continue;
            }
            if !waiting.is_empty() {
                tunnel.sent = times.0;
            }
            if let Some(datagram) = tunnel.token(times) {
                replies.push(Message { to: key.service, source: None, datagram });
            }
            replies.extend(waiting.into_iter().map(|datagram| Message { to: key.service, source: None, datagram }));
        }
    }
}

/// The suites that this machine opens, and those that its hardware accelerates.
pub fn suites() -> (Suites, Suites) {
    (Suites::ALL, seal::suites::helped())
}
