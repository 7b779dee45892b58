//! Control packets (wire.md §8.15.2): messages of one tunnel endpoint to another, sent under a path segment for a
//! tenant's packets.

use super::{Action, ETHERNET_LEN, Endpoint, Wanted, payload, payload_of, read};
use std::net::{IpAddr, Ipv6Addr};
use wire::Inner;
use wire::answers::{MESSAGE_KIND, PROBE, PROBE_ANSWER};
use wire::checksum::{fold, sum};
use wire::geneve::{ENCAPSULATION_MAX, Encapsulation, Payload};
use wire::inner::Ports;
use wire::map::{Consent, SegmentEntry, SegmentKey};

const IPV4_LEN: usize = 20;
const IPV6_LEN: usize = 40;
/// Length of the ports in front of a message.
const PORTS_LEN: usize = 4;
const TTL: u8 = 64;
const DONT_FRAGMENT: u8 = 0x40;

impl Endpoint {
    /// Handles a control packet that arrived with a valid proof for the tenant behind `interface`. `frame` contains the
    /// inner packet behind an Ethernet header. `consent` looks up the received segment that allows the tenant to
    /// answer, and `entry` an entry of the table of segments.
    pub fn controlled(
        &mut self,
        interface: u32,
        frame: &[u8],
        consent: impl Fn(&SegmentKey) -> Option<Consent>,
        entry: impl Fn(&SegmentKey) -> Option<SegmentEntry>,
        now: u32,
    ) -> Vec<Action> {
        let Some((answer, message)) = read(frame).and_then(|inner| Some((answer_to(&inner)?, message(frame)?))) else {
            return Vec::new();
        };
        let is_tenants = self.tenants.get(&interface).is_some_and(|tenant| tenant.addresses.contains(&answer.sender));
        let [kind, 0, 0, 0, bytes @ ..] = message else { return Vec::new() };
        let actions = match *kind {
            _ if !is_tenants => None,
            MESSAGE_KIND => self.take(interface, &answer, bytes, consent, entry, now),
            PROBE => self.answer_probe(interface, &answer, bytes, consent, entry, now),
            PROBE_ANSWER => {
                self.probed(interface, &answer, bytes);
                None
            }
            _ => None,
        };
        actions.unwrap_or_default()
    }
}

/// Returns the action that sends a control packet with this message from one endpoint to the other. `header` is the
/// header of the segment under which the packet travels. `wanted` describes the tenant's packets for which the segment
/// was issued.
pub(super) fn send_control(
    header: Encapsulation<'_>,
    (from, to): (IpAddr, IpAddr),
    hops: &[Ipv6Addr],
    wanted: &Wanted,
    message: &[u8],
) -> Option<Action> {
    let control = Encapsulation { control: true, payload: payload_of(wanted.sender), ..header };
    let mut geneve = [0; ENCAPSULATION_MAX];
    let length = control.encode(&mut geneve)?;
    let datagram = [geneve.get(..length)?, &packet(wanted, message)?].concat();
    Some(Action::Send { from, to, hops: hops.to_vec(), datagram })
}

/// Builds the inner packet of a control packet (wire.md §8.15.2): addresses, protocol and ports of the tenant's
/// packets, then the message.
fn packet(wanted: &Wanted, message: &[u8]) -> Option<Vec<u8>> {
    let Wanted { sender, receiver, protocol, ports: (source, destination), .. } = *wanted;
    let ports = [source.to_be_bytes(), destination.to_be_bytes()];
    let transport = [ports.as_flattened(), message].concat();
    let header = match (sender, receiver) {
        (IpAddr::V4(sender), IpAddr::V4(receiver)) => {
            let [l0, l1] = u16::try_from(IPV4_LEN + transport.len()).ok()?.to_be_bytes();
            let fixed = [0x45, 0, l0, l1, 0, 0, DONT_FRAGMENT, 0, TTL, protocol, 0, 0];
            let mut header = [&fixed[..], &sender.octets(), &receiver.octets()].concat();
            let checksum = !fold(sum(&header, false));
            header[10..12].copy_from_slice(&checksum.to_be_bytes());
            header
        }
        (IpAddr::V6(sender), IpAddr::V6(receiver)) => {
            let [l0, l1] = u16::try_from(transport.len()).ok()?.to_be_bytes();
            [&[0x60, 0, 0, 0, l0, l1, protocol, TTL][..], &sender.octets(), &receiver.octets()].concat()
        }
        _ => return None,
    };
    Some([header, transport].concat())
}

/// Returns the message in a control packet.
fn message(frame: &[u8]) -> Option<&[u8]> {
    let packet = frame.get(ETHERNET_LEN..)?;
    let length = |at: usize| Some(usize::from(u16::from_be_bytes(*packet.get(at..)?.first_chunk()?)));
    let (header, end) = match payload(frame)? {
        Payload::Ipv4 => (IPV4_LEN, length(2)?),
        _ => (IPV6_LEN, IPV6_LEN + length(4)?),
    };
    packet.get(header + PORTS_LEN..end)
}

/// Returns an example of the packets that answer `inner`.
fn answer_to(inner: &Inner) -> Option<Inner> {
    let Ports::Shown(source, destination) = inner.ports else { return None };
    let (sender, receiver) = (inner.receiver, inner.sender);
    Some(Inner { sender, receiver, protocol: inner.protocol, ports: Ports::Shown(destination, source) })
}
