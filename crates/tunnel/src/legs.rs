//! The agent's legs. A *leg* determines into which tunnel a subject's packets to a destination go, and from which
//! tunnel the answers are accepted. A packet belongs to a flow, and the flow belongs to the subject that opened it. So
//! two people on one machine never share a tunnel.

use crate::packet::{Layout, TCP, UDP};
use engine::agent::Turns;
use engine::model::{Sealing, Wish};
use engine::tunnel::Millis;
use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use wire::Destination;
use wire::map::{FlowKey, Steered};
use wire::packet::tcp_flags;
use wire::seal::{Suite, Treatment};

/// Maximum number of destinations without a leg that are remembered for the agent.
const UNKNOWN_MAX: usize = 64;
/// Interval at which the agent determines again who opened a UDP flow, because somebody else may use the port by then.
const OPENER_AGAIN: Millis = 1_000;
/// Time without packets after which a flow is forgotten, and the shorter time for a subject that has many flows.
const FLOW_IDLE: (Millis, Millis) = (7_200_000, 120_000);
/// Time since a flow's last packet for which [`Legs::sources`] returns the flow's client address.
const IN_USE: Millis = 600_000;
/// Interval at which the agent looks for idle flows.
const FLOW_SWEEP: Millis = 5_000;
/// Maximum number of flows of a subject. The agent drops the packets of further flows of this subject, and no packets
/// of other subjects.
const FLOWS_MAX: usize = 16_384;

/// Key of a tunnel: the subject on this machine, and the service at which the verifier accepts tunnels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// The subject's number.
    pub subject: u32,
    /// The number of the subject's organisation whose authority gives the grants for the tunnel.
    pub organisation: u16,
    /// Address and port of the service.
    pub service: SocketAddr,
}

/// The tunnel for packets to a destination, and their protection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leg {
    /// Key of the tunnel into which the packets go.
    pub tunnel: Key,
    /// The minimum protection of the packets: the rule's demand, or more.
    pub demand: Sealing,
}

/// A function that returns who opened a flow, and the treatment for which they asked. Returns `None` if this is not
/// known.
pub type Opener = Box<dyn FnMut(&FlowKey) -> Option<Steered> + Send>;

/// A flow and its opener. The packets of the flow travel in the tunnel of the opener.
struct Flow {
    opener: Steered,
    looked_up: Millis,
    seen: Millis,
}

/// Subjects and destinations whose packets were dropped because there is no leg for them. The subjects take turns, so a
/// subject that sends to many destinations takes no room from other subjects.
struct Unknown {
    turns: Turns<(u32, Destination)>,
    waiting: HashSet<(u32, Destination)>,
}

/// The legs of all subjects.
#[derive(Default)]
pub struct Legs {
    /// The legs by subject and destination.
    legs: HashMap<(u32, Destination), Leg>,
    /// The tunnels that legs use. `None` after a leg has changed, until the set is computed again.
    tunnels: Option<HashSet<Key>>,
    /// The function that tells who opened a flow. If it is `None`, a flow belongs to the only subject that has a leg to
    /// its destination.
    opener: Option<Opener>,
    flows: HashMap<FlowKey, Flow>,
    /// Numbers of flows by subject.
    counts: HashMap<u32, usize>,
    swept: Millis,
    unknown: Unknown,
    /// Number of packets of flows whose opener is not known, or whose opener already has the maximum number of flows.
    pub no_opener: u64,
}

impl Default for Unknown {
    fn default() -> Self {
        Self { turns: Turns::new(UNKNOWN_MAX), waiting: HashSet::new() }
    }
}

impl Unknown {
    fn push(&mut self, subject: u32, to: Destination) {
        if self.waiting.insert((subject, to))
            && let Some(dropped) = self.turns.push(subject, (subject, to))
        {
            self.waiting.remove(&dropped);
        }
    }

    fn pop(&mut self) -> Option<(u32, Destination)> {
        let first = self.turns.pop()?;
        self.waiting.remove(&first);
        Some(first)
    }
}

impl Legs {
    /// Creates an empty table of legs. It calls `opener` to learn which subject has opened a flow.
    pub fn asking(opener: Opener) -> Self {
        Self { opener: Some(opener), ..Self::default() }
    }

    /// Sets the leg for packets of its tunnel's subject to the destination `to`, in place of an earlier leg.
    pub fn set(&mut self, to: Destination, leg: Leg) {
        self.tunnels = None;
        self.legs.insert((leg.tunnel.subject, to), leg);
    }

    /// Removes all legs except those for which `is_wanted` returns true and those that a flow uses. `is_wanted` gets
    /// the subject and the destination of a leg. Packets without a leg are dropped.
    pub fn retain(&mut self, is_wanted: impl Fn(u32, &Destination) -> bool) {
        let used: HashSet<(u32, Destination)> =
            self.flows.iter().map(|(key, flow)| (flow.opener.subject, destination(key))).collect();
        self.tunnels = None;
        self.legs.retain(|(subject, to), _| is_wanted(*subject, to) || used.contains(&(*subject, *to)));
    }

    /// Removes a subject's legs into the tunnels of one organisation, and the flows that used these legs. If the
    /// subject then has no leg left, removes its other flows, too.
    pub fn forget(&mut self, subject: u32, organisation: u16) {
        self.tunnels = None;
        let is_gone = |leg: &Leg| (leg.tunnel.subject, leg.tunnel.organisation) == (subject, organisation);
        let gone: HashSet<_> = self.legs.extract_if(|_, leg| is_gone(leg)).map(|(place, _)| place).collect();
        let has_others = self.legs.keys().any(|(of, _)| *of == subject);
        let is_over = |key: &FlowKey, flow: &Flow| {
            flow.opener.subject == subject && (!has_others || gone.contains(&(subject, destination(key))))
        };
        let ended = self.flows.extract_if(|key, flow| is_over(key, flow)).count();
        if let Some(count) = self.counts.get_mut(&subject) {
            *count = count.saturating_sub(ended);
        }
        self.counts.retain(|_, count| *count > 0);
    }

    /// Returns the keys of the tunnels that at least one leg uses.
    pub fn tunnels(&mut self) -> &HashSet<Key> {
        self.tunnels.get_or_insert_with(|| self.legs.values().map(|leg| leg.tunnel).collect())
    }

    /// Returns the client addresses of all flows that had a packet in the last ten minutes.
    pub fn sources(&self, now: Millis) -> HashSet<IpAddr> {
        let used = self.flows.iter().filter(|(_, flow)| now.saturating_sub(flow.seen) < IN_USE);
        used.map(|(key, _)| key.client().0).collect()
    }

    /// Removes and returns a subject and a destination whose packets were dropped because no leg was set for them.
    pub fn unknown(&mut self) -> Option<(u32, Destination)> {
        self.unknown.pop()
    }

    /// Returns the tunnel for a packet to a server, and the packet's protection. Returns `None` if there is no leg for
    /// the packet.
    pub fn route(&mut self, packet: &[u8], layout: &Layout, now: Millis) -> Option<(Key, Sealing)> {
        let address = layout.destination(packet);
        if !layout.has_ports() {
            return self.legs_at(address);
        }
        let (client_port, server_port) = layout.ports(packet);
        let flow = FlowKey::new(layout.source(packet), client_port, address, server_port, layout.protocol);
        self.leg(&flow, begins(packet, layout), now)
    }

    /// Reports whether this packet is allowed to come out of the tunnel `key`. A leg of the packet's sender must use
    /// this tunnel, and the packet must be sealed as the leg demands. A packet without ports (a fragment, or ICMP) must
    /// satisfy the demands of all legs that lead to its sender's address through this tunnel.
    pub fn may_bring(
        &mut self,
        key: Key,
        packet: &[u8],
        layout: &Layout,
        (treatment, suite): (Treatment, Suite),
        now: Millis,
    ) -> bool {
        let address = layout.source(packet);
        if layout.has_ports() {
            let (server_port, client_port) = layout.ports(packet);
            let flow = FlowKey::new(layout.destination(packet), client_port, address, server_port, layout.protocol);
            let leg = self.leg(&flow, false, now);
            return leg.is_some_and(|(tunnel, demand)| tunnel == key && demand.allows(treatment, suite));
        }
        let is_there = |((subject, to), leg): &(&(u32, Destination), &Leg)| {
            *subject == key.subject && to.address == address && leg.tunnel == key
        };
        let mut legs = self.legs.iter().filter(is_there).peekable();
        legs.peek().is_some() && legs.all(|(_, leg)| leg.demand.allows(treatment, suite))
    }

    /// Returns who opened a flow. If `begins` is true, the packet begins a new flow, and an earlier flow with the same
    /// addresses and ports is over.
    fn opener(&mut self, key: &FlowKey, begins: bool, now: Millis) -> Option<Steered> {
        let Some(opener) = &mut self.opener else {
            let to = destination(key);
            let mut subjects = self.legs.keys().filter(|(_, leg)| *leg == to).map(|(subject, _)| *subject);
            let subject = subjects.next().filter(|_| subjects.next().is_none())?;
            return Some(Steered { subject, wish: 0 });
        };
        if let Some(flow) = self.flows.get_mut(key) {
            let again = begins || key.protocol == UDP && now.saturating_sub(flow.looked_up) >= OPENER_AGAIN;
            if !again {
                flow.seen = now;
                return Some(flow.opener);
            }
        }
        let told = opener(key);
        let opener = told.or_else(|| Some(self.flows.get(key)?.opener))?;
        if let Some(before) = self.flows.remove(key) {
            self.count_out(before.opener.subject);
        }
        let count = self.counts.entry(opener.subject).or_default();
        if *count >= FLOWS_MAX {
            return None;
        }
        *count += 1;
        self.flows.insert(*key, Flow { opener, looked_up: now, seen: now });
        Some(opener)
    }

    fn count_out(&mut self, subject: u32) {
        if let Some(count) = self.counts.get_mut(&subject) {
            *count = count.saturating_sub(1);
        }
    }

    /// Removes idle flows.
    pub fn sweep(&mut self, now: Millis) {
        if now.saturating_sub(self.swept) < FLOW_SWEEP {
            return;
        }
        self.swept = now;
        let counts = &self.counts;
        let is_idle = |flow: &Flow| {
            let has_many = counts.get(&flow.opener.subject).is_some_and(|count| *count >= FLOWS_MAX / 4 * 3);
            now.saturating_sub(flow.seen) >= if has_many { FLOW_IDLE.1 } else { FLOW_IDLE.0 }
        };
        let gone: Vec<u32> =
            self.flows.extract_if(|_, flow| is_idle(flow)).map(|(_, flow)| flow.opener.subject).collect();
        gone.into_iter().for_each(|subject| self.count_out(subject));
        self.counts.retain(|_, count| *count > 0);
    }

    /// Returns the tunnel for a flow's packets, and how the packets are to be sealed.
    fn leg(&mut self, key: &FlowKey, begins: bool, now: Millis) -> Option<(Key, Sealing)> {
        let Some(opener) = self.opener(key, begins, now) else {
            self.no_opener += 1;
            return None;
        };
        let to = destination(key);
        let Some(leg) = self.legs.get(&(opener.subject, to)) else {
            self.unknown.push(opener.subject, to);
            return None;
        };
        Some((leg.tunnel, if opener.wish == 0 { leg.demand } else { leg.demand.raised(&Wish::from_bits(opener.wish)) }))
    }

    /// Returns the tunnel for packets without ports (fragments, ICMP) to an address, and how the packets are to be
    /// sealed. The tunnel is that of the only subject that has legs to the address. The leg with the strongest demand
    /// decides how to seal.
    fn legs_at(&self, address: IpAddr) -> Option<(Key, Sealing)> {
        let mut legs = self.legs.iter().filter(|((_, to), _)| to.address == address).map(|(_, leg)| leg);
        let first = legs.next()?;
        let mut strongest = first.demand;
        for leg in legs {
            if leg.tunnel.subject != first.tunnel.subject {
                return None;
            }
            if leg.demand.treatment > strongest.treatment {
                strongest = leg.demand;
            }
        }
        Some((first.tunnel, strongest))
    }
}

/// Returns the destination of a flow: the server's address and port, and the protocol.
fn destination(key: &FlowKey) -> Destination {
    let (address, port) = key.server();
    Destination { address, protocol: key.protocol, port }
}

/// Reports whether a packet begins a TCP connection.
fn begins(packet: &[u8], layout: &Layout) -> bool {
    const SYN_ACK: u8 = tcp_flags::SYN | tcp_flags::ACK;
    layout.protocol == TCP && packet.get(layout.transport + 13).is_some_and(|flags| flags & SYN_ACK == tcp_flags::SYN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::model::{Compress, Treatment as Least};
    use std::sync::{Arc, Mutex};

    const SERVER: &str = "192.0.2.1";
    const ALICE: u32 = 1;
    const BOB: u32 = 2;

    fn printer() -> Destination {
        Destination { address: SERVER.parse().expect("an address"), protocol: TCP, port: 9100 }
    }

    fn key(subject: u32) -> Key {
        Key { subject, organisation: 0, service: "192.0.2.1:4499".parse().expect("an address") }
    }

    fn leg(subject: u32, treatment: Least) -> Leg {
        Leg { tunnel: key(subject), demand: Sealing { treatment, ..Sealing::NONE } }
    }

    /// A packet from this port to the printer, with these TCP flags.
    fn packet(port: u16, flags: u8) -> (Vec<u8>, Layout) {
        let mut packet = vec![0x45, 0, 0, 40, 0, 0, 0, 0, 64, TCP, 0, 0, 10, 0, 0, 1, 192, 0, 2, 1];
        packet.extend(port.to_be_bytes());
        packet.extend(9100u16.to_be_bytes());
        packet.extend([0; 8]);
        packet.extend([0x50, flags, 0, 0, 0, 0, 0, 0]);
        let layout = Layout::of(&packet).expect("a packet");
        (packet, layout)
    }

    /// Legs of two people to one printer, and the table of who opened a flow from which port.
    fn legs() -> (Legs, Arc<Mutex<HashMap<u16, Steered>>>) {
        let openers = Arc::new(Mutex::new(HashMap::new()));
        let told = openers.clone();
        let mut legs =
            Legs::asking(Box::new(move |flow| told.lock().expect("no panic").get(&flow.client().1).copied()));
        legs.set(printer(), leg(ALICE, Least::Authenticate));
        legs.set(printer(), leg(BOB, Least::Encrypt));
        (legs, openers)
    }

    fn opens(openers: &Mutex<HashMap<u16, Steered>>, port: u16, subject: u32, wish: u32) {
        openers.lock().expect("no panic").insert(port, Steered { subject, wish });
    }

    #[test]
    fn each_flow_goes_into_the_tunnel_of_whoever_opened_it() {
        let (mut legs, openers) = legs();
        opens(&openers, 1000, ALICE, 0);
        opens(&openers, 2000, BOB, 0);
        for (port, subject, treatment) in [(1000, ALICE, Least::Authenticate), (2000, BOB, Least::Encrypt)] {
            let (packet, layout) = packet(port, 0x10);
            let (tunnel, demand) = legs.route(&packet, &layout, 0).expect("a way");
            assert_eq!((tunnel, demand.treatment), (key(subject), treatment));
        }
        let (packet, layout) = packet(3000, 0x10);
        assert!(legs.route(&packet, &layout, 0).is_none(), "nobody opened it");
        assert_eq!(legs.no_opener, 1);
    }

    #[test]
    fn a_flow_whose_entry_is_gone_keeps_its_tunnel_and_a_new_one_with_its_port_has_its_own() {
        let (mut legs, openers) = legs();
        opens(&openers, 1000, ALICE, 0);
        let (data, layout) = packet(1000, 0x10);
        assert_eq!(legs.route(&data, &layout, 0).map(|way| way.0), Some(key(ALICE)));
        openers.lock().expect("no panic").clear();
        assert_eq!(legs.route(&data, &layout, 5).map(|way| way.0), Some(key(ALICE)));
        opens(&openers, 1000, BOB, 0);
        let (syn, layout) = packet(1000, 0x02);
        assert_eq!(legs.route(&syn, &layout, 6).map(|way| way.0), Some(key(BOB)));
        assert_eq!(legs.route(&data, &layout, 7).map(|way| way.0), Some(key(BOB)));
    }

    #[test]
    fn a_wish_raises_a_demand_and_lowers_none() {
        let (mut legs, openers) = legs();
        let wishes = [(ALICE, 2, Least::Encrypt), (ALICE, 1, Least::Authenticate), (BOB, 1, Least::Encrypt)];
        for (port, (subject, wish, treatment)) in (1000..).zip(wishes) {
            opens(&openers, port, subject, wish);
            let (packet, layout) = packet(port, 0x02);
            assert_eq!(legs.route(&packet, &layout, 0).map(|way| way.1.treatment), Some(treatment));
        }
        opens(&openers, 1100, ALICE, Steered::COMPRESS);
        let (packet, layout) = packet(1100, 0x02);
        assert_eq!(legs.route(&packet, &layout, 0).and_then(|way| way.1.compress), Some(Compress::Auto));
    }

    #[test]
    fn somebody_with_too_many_flows_takes_none_from_others() {
        let (mut legs, openers) = legs();
        for port in 1..=FLOWS_MAX as u16 + 10 {
            opens(&openers, port, ALICE, 0);
            let (packet, layout) = packet(port, 0x02);
            assert_eq!(legs.route(&packet, &layout, 0).is_some(), port <= FLOWS_MAX as u16, "{port}");
        }
        opens(&openers, 60_000, BOB, 0);
        let (packet, layout) = packet(60_000, 0x02);
        assert!(legs.route(&packet, &layout, 0).is_some());
        legs.sweep(FLOW_IDLE.1 + FLOW_SWEEP);
        let (packet, layout) = super::tests::packet(FLOWS_MAX as u16 + 1, 0x02);
        assert!(legs.route(&packet, &layout, FLOW_IDLE.1 + FLOW_SWEEP).is_some(), "idle ones make room");
    }

    #[test]
    fn somebody_who_sends_to_many_destinations_without_a_leg_delays_no_other() {
        let (mut legs, openers) = legs();
        let to = |port: u16| Destination { port, ..printer() };
        legs.retain(|_, _| false);
        let send = |legs: &mut Legs, subject, client: u16, server: u16| {
            opens(&openers, client, subject, 0);
            let (mut packet, layout) = packet(client, 0x02);
            packet[22..24].copy_from_slice(&server.to_be_bytes());
            assert!(legs.route(&packet, &layout, 0).is_none());
        };
        for port in 1..10_000 {
            send(&mut legs, ALICE, port, port);
        }
        for _ in 0..3 {
            send(&mut legs, BOB, 20_000, 443);
        }
        let first = [legs.unknown(), legs.unknown()];
        assert_eq!(first, [Some((ALICE, to(1))), Some((BOB, to(443)))]);
        let others: Vec<_> = std::iter::from_fn(|| legs.unknown()).collect();
        assert!(others.len() < UNKNOWN_MAX && others.iter().all(|(subject, _)| *subject == ALICE), "each once");
        send(&mut legs, ALICE, 1, 1);
        assert_eq!(legs.unknown(), Some((ALICE, to(1))), "what was taken can come again");
    }

    #[test]
    fn what_shows_no_flow_has_no_way_where_two_people_have_legs() {
        let (mut legs, openers) = legs();
        let mut fragment = packet(1000, 0).0;
        fragment[7] = 100;
        let layout = Layout::of(&fragment).expect("a packet");
        assert!(legs.route(&fragment, &layout, 0).is_none());
        legs.forget(BOB, 0);
        assert_eq!(legs.route(&fragment, &layout, 0).map(|way| way.0), Some(key(ALICE)));
        opens(&openers, 2000, BOB, 0);
        let (packet, layout) = packet(2000, 0x02);
        assert!(legs.route(&packet, &layout, 0).is_none(), "a person who has logged out has no way");
    }

    #[test]
    fn legs_of_ended_grants_stay_while_a_flow_uses_them() {
        let (mut legs, openers) = legs();
        opens(&openers, 1000, ALICE, 0);
        let (data, layout) = packet(1000, 0x10);
        assert!(legs.route(&data, &layout, 0).is_some());
        legs.retain(|_, _| false);
        assert_eq!(*legs.tunnels(), HashSet::from([key(ALICE)]));
        assert!(legs.route(&data, &layout, 1).is_some());
    }

    #[test]
    fn a_forgotten_organisation_leaves_the_flows_of_the_subjects_other_one() {
        let (mut legs, openers) = legs();
        let far = Destination { address: "203.0.113.9".parse().expect("an address"), ..printer() };
        let other = Key { organisation: 1, service: "203.0.113.1:4499".parse().expect("an address"), ..key(ALICE) };
        legs.set(far, Leg { tunnel: other, ..leg(ALICE, Least::Authenticate) });
        opens(&openers, 4000, ALICE, 0);
        let (packet, layout) = packet(4000, tcp_flags::SYN);
        assert_eq!(legs.route(&packet, &layout, 0).map(|(tunnel, _)| tunnel), Some(key(ALICE)));
        legs.forget(ALICE, 1);
        assert_eq!(legs.route(&packet, &layout, 0).map(|(tunnel, _)| tunnel), Some(key(ALICE)));
        assert!(!legs.tunnels().contains(&other));
        legs.forget(ALICE, 0);
        assert!(legs.route(&packet, &layout, 0).is_none());
    }
}
