//! The decision about a packet (wire.md §6.1 to §6.5). [`super::token`] verifies tokens.

use super::connection::{begin, follow};
use super::flow::{count, idle_limit, is_live, is_proved};
use super::observer::Observer;
use super::tables::TablesMut;
use super::{FRAGMENT_LIFE, Outcome};
use crate::model::protocol;
use std::net::{IpAddr, SocketAddr};
use wire::map::{Flow, FlowKey, Services, chain, origin};
use wire::packet::{Form, Fragment, ICMP, ICMPV6, Packet, TCP, UDP};
use wire::shim::{self, Content};
use wire::tail::{self, BLOCK_LEN};
use wire::{Carrier, DropReason, Handle, LsToken};

const ETHERNET_LEN: usize = 14;
const IPV6_LEN: usize = 40;

/// Decides about an Ethernet frame, or an IP packet out of a sealed tunnel, at `now` (Unix seconds), and reports each
/// check to the observer. If a token admits the frame, removes the token from it.
pub fn decide(tables: &mut impl TablesMut, observer: &mut impl Observer, frame: &mut Vec<u8>, now: u32) -> Outcome {
    Decision::new(tables, observer, now).outcome(frame)
}

/// A decision in progress.
pub(super) struct Decision<'a, T, O> {
    pub(super) tables: &'a mut T,
    pub(super) observer: &'a mut O,
    pub(super) now: u32,
    /// Whether the packet came as a datagram, and was turned into a segment (wire.md §4.8).
    is_turned: bool,
    /// Whether the verifier drops the packet if it refuses it, even if it only observes or marks (wire.md §4.6.3).
    pub(super) is_never_spared: bool,
}

impl<'a, T: TablesMut, O: Observer> Decision<'a, T, O> {
    pub(super) fn new(tables: &'a mut T, observer: &'a mut O, now: u32) -> Self {
        let is_never_spared = tables.in_tunnel();
        Self { tables, observer, now, is_turned: false, is_never_spared }
    }

    pub(super) fn outcome(&mut self, frame: &mut Vec<u8>) -> Outcome {
        let outcome = self.packet(frame).unwrap_or_else(Outcome::Drop);
        if outcome != Outcome::NotOurs {
            return outcome;
        }
        if self.tables.config().chain & chain::LATER != 0 {
            // Only a packet that another authority's programs have refused gets here (§6.13).
            self.note("organisation", false, || {
                "an earlier organisation has this service and refused the packet; this one does not have it".into()
            });
            return Outcome::Drop(DropReason::NoToken);
        }
        if !self.tables.in_tunnel() {
            return outcome;
        }
        // A tunnel leads to protected services only (§6.11.1).
        self.note("tunnel", false, || "the packet left a sealed tunnel, but its destination is unprotected".into());
        Outcome::Drop(DropReason::NoToken)
    }

    /// Reports a check to the observer. The result of this check alone does not decide about the packet.
    pub(super) fn note(&mut self, name: &'static str, passed: bool, text: impl FnOnce() -> String) {
        self.observer.check(name, passed, text);
    }

    /// Reports a check to the observer. If the check failed, returns the reason to drop the packet.
    pub(super) fn require(
        &mut self,
        name: &'static str,
        passed: bool,
        reason: DropReason,
        text: impl FnOnce() -> String,
    ) -> Result<(), DropReason> {
        self.observer.check(name, passed, text);
        if passed { Ok(()) } else { Err(reason) }
    }

    fn packet(&mut self, frame: &mut Vec<u8>) -> Result<Outcome, DropReason> {
        let turned = self.turn_back(frame);
        self.is_never_spared |= turned != Ok(false);
        self.is_turned = turned?;
        let packet = if self.tables.in_tunnel() { Packet::parse_ip(frame) } else { Packet::parse(frame) };
        if packet.form == Form::NotIp {
            self.note("packet", true, || "neither IPv4 nor IPv6".into());
            return Ok(Outcome::NotOurs);
        }
        self.note("packet", packet.form == Form::Whole, || summary(&packet));
        let destination = packet.destination.ok_or(DropReason::Malformed)?;
        let route = packet.route;
        if route.unknown || !route.addresses().is_empty() {
            let leads = route.unknown || route.addresses().iter().any(|hop| self.tables.services(*hop).is_some());
            self.require("source route", !leads, DropReason::Malformed, || match (leads, route.unknown) {
                (true, true) => "the verifier cannot follow the source route".into(),
                (true, false) => "the source route leads to a protected address".into(),
                (false, _) => "the source route leads to no protected address".into(),
            })?;
        }
        let Some(services) = self.tables.services(destination) else {
            self.note("destination", false, || format!("nothing at {destination} is protected"));
            return Ok(Outcome::NotOurs);
        };
        if packet.form == Form::Broken {
            self.note("destination", true, || format!("at least one service at {destination} is protected"));
            return Err(DropReason::Malformed);
        }
        if packet.fragment != Fragment::Whole {
            return self.fragment(&packet, &services);
        }
        if self.takes(Carrier::Shim)
            && let Some(opened) = shim::open(frame, &packet)
        {
            self.note("shim", opened.is_ok(), || match &opened {
                Ok((inner, _)) => format!("it contains {}", summary(inner)),
                Err(_) => "it is malformed".into(),
            });
            let (opened, content) = opened?;
            return self.shim(frame, &opened, content, &services);
        }
        if packet.icmp_error() {
            return self.icmp_error(frame, &packet, &services);
        }
        if packet.neighbour_discovery() {
            self.note("destination", false, || "neighbour discovery from the link itself always passes".into());
            return Ok(Outcome::NotOurs);
        }
        if !self.covers(&services, &packet) {
            return Ok(Outcome::NotOurs);
        }
        // Routing rules don't see the ports behind any fragment header: the packet would go around a gateway's relay.
        if packet.atomic && packet.protocol == TCP {
            self.note("fragment", false, || "the packet is TCP and whole, but has a fragment header".into());
            return Err(DropReason::Fragment);
        }
        let key = self.key(&packet)?;
        let mut admitted = false;
        if !packet.opens()
            && let Some(flow) = self.live_flow(&key)
        {
            self.refresh(&key, flow, &packet);
            if packet.protocol == TCP {
                return Ok(Outcome::Flow);
            }
            admitted = true;
        }
        if packet.protocol != UDP && !packet.opens() {
            return self.later(frame, &packet, key);
        }
        let found = tail::find(frame, &packet);
        let found = found.filter(|(_, carrier)| *carrier != Carrier::TcpInUdp || self.is_turned);
        self.is_never_spared |= matches!(found, Some((_, Carrier::Stream)));
        let taken = found.filter(|(_, carrier)| self.takes(*carrier));
        let Some((bytes, carrier)) = taken.map(|(bytes, carrier)| (*bytes, carrier)) else {
            self.note("token", false, || match found {
                None => "the payload ends without a token".into(),
                Some((_, carrier)) => format!("this verifier accepts no tokens by the carrier `{}`", carrier.name()),
            });
            return match found {
                _ if admitted => Ok(Outcome::Flow),
                None => self.stranger(&packet, &key, DropReason::NoToken),
                Some(_) => Err(DropReason::NoToken),
            };
        };
        self.own(&services, &packet)?;
        match self.token(&bytes, &packet) {
            // On an admitted flow, a tail without a token's form is payload that happens to look like one.
            Err(DropReason::Malformed | DropReason::UnknownSuite) if admitted => return Ok(Outcome::Flow),
            Err(reason) => return Err(reason),
            Ok(claim) => self.admit(&claim, key, &without_block(&packet, carrier))?,
        }
        if packet.protocol == UDP && packet.payload + BLOCK_LEN == packet.end {
            return Ok(Outcome::Consumed);
        }
        let length = tail::strip(frame, &packet).ok_or(DropReason::Malformed)?;
        frame.truncate(length);
        Ok(Outcome::Token)
    }

    /// Requires that the authority of these tables may admit the packet (wire.md §6.13). The caller has found that the
    /// packet's destination is protected.
    fn own(&mut self, services: &Services, packet: &Packet) -> Result<(), DropReason> {
        if services.is_foreign(packet.protocol, packet.destination_port) {
            self.note("organisation", false, || "only another organisation may admit packets to this service".into());
            return Err(DropReason::NoToken);
        }
        Ok(())
    }

    /// Returns the key of the packet's flow, on this side of the tunnel.
    fn key(&self, packet: &Packet) -> Result<FlowKey, DropReason> {
        let key = FlowKey::to_server(packet).ok_or(DropReason::Malformed)?;
        Ok(if self.is_turned { key.in_datagrams() } else { key.within(self.tables.in_tunnel()) })
    }

    /// Reports whether the verifier accepts tokens in this carrier. Inside a tunnel, it accepts `tail` only (§6.11.1).
    pub(super) fn takes(&self, carrier: Carrier) -> bool {
        if self.tables.in_tunnel() { carrier == Carrier::Tail } else { self.tables.config().takes(carrier) }
    }

    /// Decides about a packet that belongs to no admitted flow and can't carry a token.
    fn later(&mut self, frame: &[u8], packet: &Packet, key: FlowKey) -> Result<Outcome, DropReason> {
        if packet.protocol == TCP {
            self.note("first packet", false, || "only a SYN without ACK may open a flow".into());
            return self.stranger(packet, &key, DropReason::NoFlow);
        }
        if self.answers_echo(frame, packet, key) {
            return Ok(Outcome::Flow);
        }
        self.note("token", false, || format!("a packet of {} carries no token", protocol::name(packet.protocol)));
        Err(DropReason::NoToken)
    }

    /// Reports whether the packet answers an echo request that the inside of a gateway sent. The identifier of the echo
    /// takes the place of a port (§6.9.1).
    fn answers_echo(&mut self, frame: &[u8], packet: &Packet, mut key: FlowKey) -> bool {
        if self.tables.config().max_outbound == 0 || !packet.icmp_echo_reply() {
            return false;
        }
        let Some(id) = frame.get(packet.transport + 4..).and_then(<[u8]>::first_chunk) else { return false };
        key.server_port = *id;
        let Some(mut flow) = self.live_flow(&key) else { return false };
        count(&mut flow, packet, self.now);
        self.tables.put_flow(&key, flow);
        true
    }

    /// Decides about a packet with a shim as about the packet without the shim (wire.md §4.3).
    fn shim(
        &mut self,
        frame: &mut Vec<u8>,
        packet: &Packet,
        content: Content,
        services: &Services,
    ) -> Result<Outcome, DropReason> {
        if !self.covers(services, packet) {
            return Ok(Outcome::NotOurs);
        }
        self.own(services, packet)?;
        if self.tables.at_tc() && packet.network != ETHERNET_LEN {
            self.note("shim", false, || "a program at tc cannot remove a shim behind a second VLAN tag".into());
            return Err(DropReason::Malformed);
        }
        if packet.protocol != UDP && !packet.opens() {
            self.note("first packet", false, || "a packet with a shim must open its flow".into());
            return Err(if packet.protocol == TCP { DropReason::NoFlow } else { DropReason::NoToken });
        }
        let key = self.key(packet)?;
        if packet.protocol == UDP
            && let Some(flow) = self.live_flow(&key)
        {
            self.refresh(&key, flow, packet);
        }
        let claim = match content {
            Content::Token(bytes) => self.token(&bytes, packet)?,
            Content::Ls(bytes) => self.ls_token(&LsToken::decode(&bytes))?,
            Content::Support | Content::KeyTransfer(_) => {
                self.note("token", false, || "the shim contains no token".into());
                return Err(DropReason::NoToken);
            }
        };
        self.admit(&claim, key, packet)?;
        if packet.protocol == UDP && packet.payload == packet.end {
            return Ok(Outcome::Consumed);
        }
        let length = shim::strip(frame, packet).ok_or(DropReason::Malformed)?;
        frame.truncate(length);
        Ok(Outcome::Token)
    }

    fn fragment(&mut self, packet: &Packet, services: &Services) -> Result<Outcome, DropReason> {
        let key = self.key(packet)?;
        if packet.protocol == if packet.ipv6() { ICMPV6 } else { ICMP } {
            // A fragmented ICMP error could quote anything. Without the first fragment, no stack reassembles the
            // others.
            let passes = !services.covers(packet.protocol, 0) && !packet.icmp_error();
            self.require("fragment", passes, DropReason::Fragment, || match packet.icmp_error() {
                true => "a fragment of an ICMP error, whose quoted packet cannot be read".into(),
                false => "a fragment of an ICMP message".into(),
            })?;
            return Ok(Outcome::NotOurs);
        }
        self.note("fragment", true, || format!("a fragment of {}", protocol::name(packet.protocol)));
        let some = services.covers_some(packet.protocol);
        let id = match packet.fragment {
            Fragment::First(id) => id,
            Fragment::Later(id) if some => return self.later_fragment(&key, id),
            _ => {
                self.note("destination", false, || {
                    format!("no {} port of the destination is protected", protocol::name(packet.protocol))
                });
                return Ok(Outcome::NotOurs);
            }
        };
        let portless = FlowKey { client_port: [0; 2], server_port: [0; 2], ..key };
        if !self.covers(services, packet) {
            if some {
                self.tables.put_open_fragment(&portless, id, self.now);
            }
            return Ok(Outcome::NotOurs);
        }
        // A fragmented SYN would need no token; TCP discovers the path MTU and needs no fragments.
        self.require("fragment", packet.protocol != TCP, DropReason::Fragment, || "the first fragment".into())?;
        let flow = self.live_flow(&key).ok_or(DropReason::Fragment)?;
        self.refresh(&key, flow, packet);
        self.tables.put_fragment(&portless, id, self.now);
        Ok(Outcome::Flow)
    }

    /// Decides about a later fragment, which contains no ports, as about the first fragment of the same datagram. The
    /// key has no ports.
    fn later_fragment(&mut self, key: &FlowKey, id: u32) -> Result<Outcome, DropReason> {
        let now = self.now;
        let is_recent = |at: Option<u32>| at.is_some_and(|at| now.wrapping_sub(at) as i32 <= FRAGMENT_LIFE as i32);
        let outcome = match () {
            () if is_recent(self.tables.fragment(key, id)) => Some(Outcome::Flow),
            () if is_recent(self.tables.open_fragment(key, id)) => Some(Outcome::NotOurs),
            () => None,
        };
        self.note("first fragment", outcome.is_some(), || match outcome {
            Some(Outcome::Flow) => "it belonged to an admitted flow".into(),
            Some(_) => "it was sent to a port that is not protected".into(),
            None => format!("no first fragment that may pass arrived in the last {FRAGMENT_LIFE} s"),
        });
        outcome.ok_or(DropReason::Fragment)
    }

    /// Lets an ICMP error pass if it quotes a packet that was sent back on an admitted flow (wire.md §6.5).
    fn icmp_error(&mut self, frame: &[u8], packet: &Packet, services: &Services) -> Result<Outcome, DropReason> {
        let quoted = Packet::parse_quoted(frame, packet.payload, packet.end, packet.ipv6());
        let readable = quoted.form == Form::Whole;
        self.require("quoted packet", readable, DropReason::Malformed, || match readable {
            true => summary(&quoted),
            false => "the packet that this ICMP error quotes cannot be read".into(),
        })?;
        let source = quoted.source.ok_or(DropReason::Malformed)?;
        let ours = services.covers(packet.protocol, 0)
            || self
                .tables
                .services(source)
                .is_some_and(|services| services.covers(quoted.protocol, quoted.source_port));
        self.note("destination", ours, || match ours {
            true => "the quoted packet came from a protected service".into(),
            false => "the quoted packet did not come from a protected service".into(),
        });
        if !ours {
            return Ok(Outcome::NotOurs);
        }
        let key = FlowKey::to_client(&quoted).ok_or(DropReason::Malformed)?.within(self.tables.in_tunnel());
        match self.live_flow(&key) {
            Some(_) => Ok(Outcome::IcmpError),
            None if self.is_optional(&key) => Ok(Outcome::Stranger),
            None => Err(DropReason::NoFlow),
        }
    }

    /// Decides about a TCP packet that has no token and belongs to no admitted flow. The packet passes if everybody may
    /// send to its destination (wire.md §6.12), with two exceptions. A SYN is dropped if a flow has the same addresses
    /// and ports, because the sender's connection would bear the name of the flow's person. A packet with an IPv6
    /// extension header is dropped, because a fragment header would hide the port from the rules that lead connections
    /// to a gateway's relay. Strangers need no extension header.
    fn stranger(&mut self, packet: &Packet, key: &FlowKey, reason: DropReason) -> Result<Outcome, DropReason> {
        if !self.is_optional(key) {
            return Err(reason);
        }
        let plain = !packet.ipv6() || packet.transport == packet.network + IPV6_LEN;
        self.require("stranger", plain, reason, || match plain {
            true => "the packet's header shows its ports".into(),
            false => "a packet with extension headers needs a token".into(),
        })?;
        let taken = packet.opens() && self.live_flow(key).is_some();
        self.require("stranger", !taken, reason, || match taken {
            true => "these addresses and ports belong to a flow that has not ended".into(),
            false => "the packet needs no token".into(),
        })?;
        Ok(Outcome::Stranger)
    }

    /// Reports whether everybody may send to the server of this flow.
    fn is_optional(&mut self, key: &FlowKey) -> bool {
        let (address, port) = key.server();
        let optional = self.tables.config().optional != 0
            && !self.tables.in_tunnel()
            && key.protocol == TCP
            && self.tables.is_optional(address, port);
        if optional {
            self.note("optional receiver", true, || format!("everybody may reach port {port} of {address}"));
        }
        optional
    }

    /// Reports whether the packet's destination is protected.
    fn covers(&mut self, services: &Services, packet: &Packet) -> bool {
        let covers = services.covers(packet.protocol, packet.destination_port);
        self.note("destination", covers, || {
            let (name, port) = (protocol::name(packet.protocol), packet.destination_port);
            let at = packet.destination.map_or_else(String::new, |address| format!(" of {address}"));
            format!("{name} port {port}{at} is {}", if covers { "protected" } else { "not protected" })
        });
        covers
    }

    /// Returns the flow of a packet from outside, if the flow is live. A live flow is admitted, has not been idle for
    /// too long and, if it is UDP, has a recent enough token.
    fn live_flow(&mut self, key: &FlowKey) -> Option<Flow> {
        let Some(flow) = self.tables.flow(key) else {
            self.note("flow", false, || "the flow is not admitted".into());
            return None;
        };
        let (now, limit) = (self.now, idle_limit(self.tables.config(), key, &flow));
        let live = is_live(self.tables.config(), key, &flow, now);
        self.note("flow", live, || {
            let by = match flow.origin {
                origin::TOKEN => format!("admitted by grant {}", Handle(flow.handle)),
                origin::INSIDE => "opened from inside".into(),
                origin::ENDED => format!("admitted by grant {}, and ended", Handle(flow.handle)),
                _ => "established before protection began".into(),
            };
            let silent = now.saturating_sub(flow.seen);
            let end = if live { "" } else { ", which is too long" };
            format!("{by}; idle for {silent} s (the limit is {limit} s){end}")
        });
        if !live {
            return None;
        }
        let proved = is_proved(self.tables.config(), key, &flow, now);
        if !proved {
            let (age, renewal) = (now.saturating_sub(flow.proved), self.tables.config().udp_renewal);
            self.note("renewal", false, || {
                format!("the flow's last token arrived {age} s ago; one is due every {renewal} s")
            });
        }
        proved.then_some(flow)
    }

    /// Counts a packet of the flow, and advances the state of its connection.
    pub(super) fn refresh(&mut self, key: &FlowKey, mut flow: Flow, packet: &Packet) {
        count(&mut flow, packet, self.now);
        if packet.opens() {
            begin(&mut flow, packet);
        } else if packet.protocol == TCP {
            let tables = &*self.tables;
            follow(tables.config(), &mut flow, packet, || tables.stack(key));
        }
        self.tables.put_flow(key, flow);
    }
}

/// Returns the packet with the sequence number that the server will see.
fn without_block(packet: &Packet, carrier: Carrier) -> Packet {
    let skipped = if carrier == Carrier::Stream { BLOCK_LEN as u32 } else { 0 };
    Packet { sequence: packet.sequence.wrapping_add(skipped), ..*packet }
}

fn summary(packet: &Packet) -> String {
    let end = |address: Option<IpAddr>, port| address.map_or("?".into(), |a| SocketAddr::new(a, port).to_string());
    let opens = if packet.opens() { " SYN" } else { "" };
    let broken = if packet.form == Form::Whole { "" } else { ", malformed" };
    let (from, to) = (end(packet.source, packet.source_port), end(packet.destination, packet.destination_port));
    format!("{}{opens} from {from} to {to}{broken}", protocol::name(packet.protocol))
}
