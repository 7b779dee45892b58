//! The state from earlier packets of a capture that helps to explain later packets: the flow that a packet continues,
//! and whether the packet's token was used before.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;

use wire::packet::{Form, Fragment, Packet, TCP, UDP};
use wire::reorder;

use crate::capture::Frame;
use crate::content::{self, Content};
use crate::keys::KeyFile;
use crate::line::{end, names, protocol};
use crate::packet::Explained;
use crate::tunnel::Tunnels;

/// Maximum clock difference that a verifier accepts, in seconds (wire.md §6.4).
const CLOCK_SKEW: u64 = 30;
/// Maximum number of flows and tokens to remember. Beyond it, all are forgotten: a capture may be crafted to fill
/// memory.
const MOST: usize = 1 << 20;

type Flow = (u8, SocketAddr, SocketAddr);

/// The flows, tokens and sealed tunnels in the packets of a capture that were read so far.
#[derive(Default)]
pub struct Flows {
    opened: HashMap<Flow, u64>,
    /// The unique part of each token, with the number of the packet that first had it.
    tokens: HashMap<String, u64>,
    /// Destinations that tokens were sent to.
    guarded: HashSet<(u8, SocketAddr)>,
    /// Connections whose segments travel as datagrams. Each has the client's address and port, and the server's address
    /// and port.
    datagrams: HashSet<(SocketAddr, SocketAddr)>,
    tunnels: Tunnels,
}

impl Flows {
    /// Creates the state before the first packet. `keys` are the keys for sealed tunnels, if the user gave a file of
    /// keys.
    pub fn new(keys: Option<KeyFile>) -> Self {
        let mut flows = Self::default();
        flows.tunnels.keys = keys;
        flows
    }

    /// Explains a packet from its own content and from the packets before it. Packets have to be passed in their order.
    pub fn explain(&mut self, frame: &Frame) -> Explained {
        if self.opened.len() + self.tokens.len() + self.guarded.len() + self.datagrams.len() > MOST {
            *self = Self { tunnels: std::mem::take(&mut self.tunnels), ..Self::default() };
        }
        let outer = Packet::parse(&frame.bytes);
        let segment = self.segment(&frame.bytes, &outer);
        let (bytes, outer) = match &segment {
            Some(segment) => (segment, Packet::parse(segment)),
            None => (&frame.bytes, outer),
        };
        let found = content::find(bytes, &outer, segment.is_some());
        let packet = found.as_ref().map_or(outer, |found| found.packet);
        let mut explained = about(frame, &packet);
        explained.datagram = segment.is_some();
        explained.tunnel = self.tunnels.find(bytes, &packet);
        let flow = flow(&packet);
        if let Some(found) = found {
            explained.carrier = found.carrier.map(|carrier| carrier.name());
            explained.added = found.added;
            explained.remarks.extend(self.verify(&found.content, frame));
            let opens = matches!(found.content, Content::Token { .. } | Content::LsToken { .. });
            if let Some((protocol, from, to)) = flow.filter(|_| opens) {
                self.opened.entry((protocol, from, to)).or_insert(frame.number);
                self.guarded.insert((protocol, to));
            }
            explained.content = Some(found.content);
        } else if let Some((protocol, _, to)) = flow
            && packet.opens()
            && self.guarded.contains(&(protocol, to))
        {
            explained.remarks.push("no_token: other packets to this destination had tokens".to_owned());
        }
        explained.flow = flow.and_then(|(protocol, from, to)| {
            self.opened.get(&(protocol, from, to)).or_else(|| self.opened.get(&(protocol, to, from))).copied()
        });
        explained
    }

    /// Returns the segment that a datagram carries (wire.md §4.8), if it opens a connection of this kind, or belongs to
    /// one that an earlier packet opened.
    fn segment(&mut self, frame: &[u8], packet: &Packet) -> Option<Vec<u8>> {
        let (_, from, to) = flow(packet)?;
        reorder::flags(frame, packet)?;
        if reorder::ends_in_block(frame, packet) {
            self.datagrams.insert((from, to));
        } else if !self.datagrams.contains(&(from, to)) && !self.datagrams.contains(&(to, from)) {
            return None;
        }
        let mut segment = frame.to_vec();
        reorder::to_tcp(&mut segment, packet)?;
        Some(segment)
    }

    /// Returns a verifier's objections to a packet, as far as they can be determined without keys. Compares times with
    /// the capture's clock.
    fn verify(&mut self, content: &Content, frame: &Frame) -> Vec<String> {
        let (number, now) = (frame.number, frame.time.0);
        let mut remarks = Vec::new();
        let once = match content {
            Content::Token { handle, time, nonce, expires, prefix_length, .. } => {
                let (time_made, expires) = (u64::from(*time), u64::from(*expires));
                if expires <= now {
                    remarks.push(format!("expired: the grant expired {} s before this packet", now - expires));
                }
                if time_made.abs_diff(now) > CLOCK_SKEW {
                    let side = if time_made > now { "ahead of" } else { "behind" };
                    remarks.push(format!(
                        "clock_skew: the token's time is {} s {side} the capture's clock",
                        time_made.abs_diff(now)
                    ));
                }
                if *prefix_length == 0 {
                    remarks.push("the grant covers every address".to_owned());
                }
                Some(format!("{handle} {time} {nonce}"))
            }
            Content::LsToken { unique_id, nonce1, nonce2, .. } => Some(format!("ls {unique_id} {nonce1} {nonce2}")),
            Content::KeyTransfer { .. } => {
                remarks.push(
                    "this packet contains an unencrypted client key: anyone who reads it can make tokens".to_owned(),
                );
                None
            }
            Content::Malformed { reason } => {
                remarks.push(format!("{reason}: the packet has a carrier's mark but is malformed"));
                None
            }
            Content::Support | Content::Discovery { .. } => None,
        };
        if let Some(first) =
            once.map(|once| *self.tokens.entry(once).or_insert(number)).filter(|first| *first != number)
        {
            remarks.push(format!("replayed: packet {first} had the same token"));
        }
        remarks
    }
}

fn flow(packet: &Packet) -> Option<Flow> {
    let ported = matches!(packet.protocol, TCP | UDP) && !matches!(packet.fragment, Fragment::Later(_));
    let from = SocketAddr::new(packet.source?, packet.source_port);
    let to = SocketAddr::new(packet.destination?, packet.destination_port);
    (ported && packet.form == Form::Whole).then_some((packet.protocol, from, to))
}

fn about(frame: &Frame, packet: &Packet) -> Explained {
    let mut remarks = Vec::new();
    if frame.cut {
        remarks.push("the packet is truncated in the capture: capture with -s 0".to_owned());
    } else if packet.form == Form::Broken {
        remarks.push("malformed: its headers contradict each other".to_owned());
    }
    if packet.fragment != Fragment::Whole {
        remarks.push("a fragment".to_owned());
    }
    Explained {
        number: frame.number,
        time: format!("{}.{:09}", frame.time.0, frame.time.1),
        source: end(packet, packet.source, packet.source_port),
        destination: end(packet, packet.destination, packet.destination_port),
        protocol: protocol(packet),
        tcp_flags: if packet.protocol == TCP { names(packet.tcp_flags) } else { Vec::new() },
        length: frame.length,
        datagram: false,
        carrier: None,
        added: 0,
        content: None,
        tunnel: None,
        flow: None,
        remarks,
    }
}
