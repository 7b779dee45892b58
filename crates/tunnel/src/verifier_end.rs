//! The verifier's ends of all tunnels: which packets come out of them, and which tunnel an answer goes into.

use crate::inside::{Client, Inside};
use crate::packet::{Layout, Virtio};
use crate::pump::{End, Message, Opened, Times, Way};
use crate::random::Random;
use crate::translate::{Side, translate};
use engine::model::Sealing;
use engine::tunnel::{Dropped, Limits, Millis, NotTaken, Outgoing, Packet, Received, Responder, TunnelId, TunnelInfo};
use engine::verifier::Tables;
use ipnet::IpNet;
use seal::Batch;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use wire::map::FlowKey;
use wire::seal::{Suite, Suites, Treatment};
use wire::tail::{BLOCK_LEN, MAGIC};
use wire::{Destination, DropReason, Handle};

/// Time without packets after which a flow's treatment is forgotten. Answers are then encrypted until the client sends
/// again.
const FLOW_IDLE: Millis = 120_000;
/// Maximum number of flows whose treatment is remembered.
const FLOWS_MAX: usize = 65_536;
/// Interval at which idle flows are looked for.
const FLOW_SWEEP: Millis = 5_000;
/// Intervals at which a flow's rule is asked for: while it is not known, and later, because the flow may belong to
/// another grant by then.
const ASK: (Millis, Millis) = (100, 1_000);

/// The verifier's knowledge of grants and flows.
pub trait Knowledge: Send {
    /// Calls `work` with the verifier's tables.
    fn with_tables(&self, work: &mut dyn FnMut(&dyn Tables));

    /// Returns what the rule demands of a flow, which `token` is to admit or an earlier one has admitted; `None` if the
    /// authority has not told yet. Nobody has checked the token.
    fn demanded(&self, flow: &FlowKey, token: Option<Handle>) -> Option<Sealing>;
}

/// Treatment of a flow.
struct Flow {
    demand: Option<Sealing>,
    asked: Millis,
    /// How the client's last packet was sealed.
    treatment: Treatment,
    suite: Suite,
    seen: Millis,
}

/// Numbers of packets that were dropped, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drops {
    /// By [`Dropped::ALL`].
    pub records: [u64; Dropped::ALL.len()],
    /// Initiations, by drop reason's number.
    pub initiations: [u64; 16],
    /// Packets in records that are weaker than the rule demands.
    pub weak: u64,
    /// Packets that no inside address is left for.
    pub no_address: u64,
}

/// The verifier's ends.
pub struct VerifierEnd<K> {
    responder: Responder,
    knowledge: K,
    /// The tunnels' service.
    service: SocketAddr,
    inside: Inside,
    flows: HashMap<FlowKey, Flow>,
    swept: Millis,
    /// Treatment and suites of the frame that was routed last.
    routed: (Treatment, Suites),
    drops: Drops,
    outgoing: Vec<Outgoing>,
}

impl<K: Knowledge> VerifierEnd<K> {
    /// Makes the ends of a service at this address, with clients in these networks.
    pub fn new(knowledge: K, service: SocketAddr, networks: Vec<IpNet>, seed: u64, limits: Limits) -> Self {
        Self {
            responder: Responder::new(limits, (Suites::ALL, seal::suites::helped())),
            knowledge,
            service,
            inside: Inside::new(networks, seed),
            flows: HashMap::new(),
            swept: 0,
            routed: (Treatment::Encrypt, Suites::ALL),
            drops: Drops::default(),
            outgoing: Vec::new(),
        }
    }

    /// Returns the number of tunnels.
    pub fn count(&self) -> usize {
        self.responder.len()
    }

    /// Returns the clients in tunnels, by inside address, with their tunnels.
    pub fn clients(&self) -> Vec<(IpAddr, Client, Option<TunnelInfo>)> {
        let info = |client: &Client| self.responder.info(self.responder.of(client.holder)?);
        self.inside.list().map(|(address, client)| (address, client, info(&client))).collect()
    }

    /// Returns the numbers of dropped packets.
    pub fn drops(&self) -> Drops {
        self.drops
    }

    fn note(&mut self, why: NotTaken) {
        let counter = match why {
            NotTaken::Record(dropped) => {
                let index = Dropped::ALL.iter().position(|known| *known == dropped);
                index.and_then(|index| self.drops.records.get_mut(index))
            }
            NotTaken::Initiation(reason) => self.drops.initiations.get_mut(reason as usize),
        };
        if let Some(counter) = counter {
            *counter += 1;
        }
    }

    /// Reports whether a record was sealed as well as its packet's rule demands, and remembers how.
    fn is_enough(&mut self, key: FlowKey, packet: &[u8], treatment: Treatment, suite: Suite, now: Millis) -> bool {
        let token = token_handle(packet);
        let is_full = self.flows.len() >= FLOWS_MAX;
        if is_full && !self.flows.contains_key(&key) {
            // Nothing is remembered: the demand is the strongest.
            return Sealing::UNKNOWN.allows(treatment, suite);
        }
        let flow = self.flows.entry(key).or_insert(Flow { demand: None, asked: 0, treatment, suite, seen: now });
        let pause = if flow.demand.is_none() { ASK.0 } else { ASK.1 };
        if now.saturating_sub(flow.asked) >= pause || token.is_some() && flow.demand.is_none() {
            flow.asked = now;
            if let Some(demand) = self.knowledge.demanded(&key, token) {
                flow.demand = Some(demand);
            }
        }
        if !flow.demand.unwrap_or(Sealing::UNKNOWN).allows(treatment, suite) {
            return false;
        }
        (flow.treatment, flow.suite, flow.seen) = (treatment, suite, now);
        true
    }

    fn reply(&mut self, source: Option<IpAddr>, replies: &mut Vec<Message>) {
        let outgoing = self.outgoing.drain(..);
        replies.extend(outgoing.map(|Outgoing { to, datagram }| Message { to, source, datagram }));
    }
}

/// Returns the handle in the token at the end of a packet. Nothing has checked the token.
fn token_handle(packet: &[u8]) -> Option<Handle> {
    let block = packet.last_chunk::<BLOCK_LEN>().filter(|block| block.starts_with(&MAGIC))?;
    let header: &[u8; 16] = block.get(4..)?.first_chunk()?;
    Some(wire::GrantHeader::decode(header).ok()?.handle)
}

impl<K: Knowledge> End for VerifierEnd<K> {
    type Tunnel = TunnelId;

    fn route(&mut self, packet: &mut [u8], layout: &Layout, virtio: Virtio, (now, _): Times) -> Option<Way<TunnelId>> {
        let inside = layout.destination(packet);
        let client = self.inside.client(inside)?;
        let tunnel = self.responder.of(client.holder)?;
        let (server_port, client_port) = layout.ports(packet);
        let key = FlowKey::new(inside, client_port, layout.source(packet), server_port, layout.protocol).within(true);
        self.routed = match self.flows.get(&key) {
            Some(flow) if now.saturating_sub(flow.seen) < FLOW_IDLE => {
                (flow.treatment, Suites::default().with(flow.suite))
            }
            _ => (Treatment::Encrypt, Suites::ALL),
        };
        translate(packet, layout, Side::Destination, client.address, virtio.partial)?;
        let to = self.responder.info(tunnel)?.address;
        let source = (!self.service.ip().is_unspecified()).then_some(self.service.ip());
        Some(Way { tunnel, to, source })
    }

    fn seal(&mut self, tunnel: TunnelId, parts: [&[u8]; 2], partial: bool, times: Times, out: &mut Batch) -> bool {
        let (treatment, suites) = self.routed;
        let packet = Packet { treatment, suites, lane: 0, partial, parts: &parts };
        self.responder.seal(tunnel, &packet, times, out).is_ok()
    }

    fn open<'d>(
        &mut self,
        from: SocketAddr,
        to: Option<IpAddr>,
        datagram: &'d mut [u8],
        times: Times,
        replies: &mut Vec<Message>,
    ) -> Option<Opened<'d>> {
        let address = to.unwrap_or(self.service.ip());
        let service = Destination { address, protocol: 17, port: self.service.port() };
        let (responder, outgoing) = (&mut self.responder, &mut self.outgoing);
        let mut datagram = Some(datagram);
        let mut received = Err(NotTaken::Record(Dropped::Malformed));
        self.knowledge.with_tables(&mut |tables| {
            if let Some(datagram) = datagram.take() {
                received = responder.receive(datagram, from, &service, times, tables, &mut Random, outgoing);
            }
        });
        self.reply(Some(address), replies);
        let (tunnel, received) = match received {
            Ok(received) => received,
            Err(why) => {
                self.note(why);
                return None;
            }
        };
        let Received::Packet { treatment, suite, partial, packet, .. } = received else { return None };
        let layout = Layout::of(packet)?;
        let holder = self.responder.info(tunnel)?.holder;
        let client = Client { holder, address: layout.source(packet) };
        let Some(inside) = self.inside.of(client, times.0) else {
            self.drops.no_address += 1;
            return None;
        };
        translate(packet, &layout, Side::Source, inside, partial)?;
        let (client_port, server_port) = layout.ports(packet);
        let key = FlowKey::new(inside, client_port, layout.destination(packet), server_port, layout.protocol);
        if !self.is_enough(key.within(true), packet, treatment, suite, times.0) {
            self.drops.weak += 1;
            return None;
        }
        Some(Opened { packet, layout, partial })
    }

    fn poll(&mut self, times: Times, replies: &mut Vec<Message>) {
        let (responder, outgoing) = (&mut self.responder, &mut self.outgoing);
        self.knowledge.with_tables(&mut |tables| responder.poll(times, tables, &mut Random, outgoing));
        self.reply((!self.service.ip().is_unspecified()).then_some(self.service.ip()), replies);
        if times.0.saturating_sub(self.swept) >= FLOW_SWEEP {
            self.swept = times.0;
            self.flows.retain(|_, flow| times.0.saturating_sub(flow.seen) < FLOW_IDLE);
        }
    }
}

/// Reasons why an initiation was dropped have numbers below 16.
const _: () = assert!((DropReason::NoAddress as usize) < 16);
