//! The carriers, and the agent's code that adds them to packets.

use crate::world::{self, NOW};
use engine::agent::Frame;
use engine::agent::insertion::{Action, Grant, Inserter};
use engine::model::Secret;
use engine::verifier::Outcome;
use wire::checksum;
use wire::map::GrantSlot;
use wire::packet::{Form, Packet, TCP, UDP, tcp_flags};
use wire::reorder;
use wire::shim::{self, Content, OPTION_LEN, SHIM_LEN};
use wire::tail::{self, BLOCK_LEN};
use wire::token::TOKEN_LEN;
use wire::{Carrier, Destination, DropReason, Epoch, Flags, GrantHeader, Handle, Suite};

/// Appends a block to a frame and strips it again. The first 36 bytes of the input are the token.
pub fn tail(input: &[u8]) {
    let Some((token, frame)) = input.split_first_chunk::<TOKEN_LEN>() else { return };
    let packet = Packet::parse(frame);
    let found = tail::find(frame, &packet);
    let mut stripped = frame.to_vec();
    match tail::strip(&mut stripped, &packet) {
        Some(length) => assert!(found.is_some() && length + BLOCK_LEN == packet.end),
        None => assert_eq!(stripped, frame, "what is not stripped is not touched"),
    }
    let mut carrying = frame.get(..packet.end).unwrap_or_default().to_vec();
    carrying.extend([0; BLOCK_LEN]);
    let Some(length) = tail::append(&mut carrying, &packet, &tail::block(token)) else { return };
    assert_eq!(length, carrying.len());
    let longer = Packet::parse(&carrying);
    assert_eq!((longer.form, longer.end), (Form::Whole, length));
    assert_eq!(tail::find(&carrying, &longer), Some((token, Carrier::Tail)));
    if sum_is_right(frame, &packet) {
        assert!(sum_is_right(&carrying, &longer), "a right checksum stays right");
    }
    let clear = sums_are_clear(frame, &packet);
    let still_clear = sums_are_clear(&carrying, &longer);
    assert_eq!(tail::strip(&mut carrying, &longer), Some(packet.end));
    if clear && still_clear {
        assert_eq!(carrying[..packet.end], frame[..packet.end]);
    }
}

/// Strips the shim of a frame that has one. Then adds a shim to the original frame and strips it again. The first 40
/// bytes of the input are the shim's option; the rest is the frame.
pub fn shim(input: &[u8]) {
    let Some((option, frame)) = input.split_first_chunk::<OPTION_LEN>() else { return };
    let packet = Packet::parse(frame);
    match shim::open(frame, &packet) {
        Some(Ok((opened, _))) => {
            assert_eq!((opened.form, opened.end), (Form::Whole, packet.end));
            assert!(opened.transport <= opened.payload && opened.payload <= opened.end);
            let mut stripped = frame.to_vec();
            let length = shim::strip(&mut stripped, &opened).expect("what is opened is stripped");
            assert_eq!(length + SHIM_LEN, packet.end);
            stripped.truncate(length);
            let shorter = Packet::parse(&stripped);
            assert_eq!((shorter.network, shorter.end), (packet.network, length));
            assert!(!matches!(opened.protocol, TCP | UDP) || shorter.protocol == opened.protocol);
            assert_eq!(stripped[shorter.network + 20..], frame[opened.transport..opened.end]);
        }
        Some(Err(reason)) => assert_eq!(reason, DropReason::Malformed),
        None => {}
    }
    let Ok(content) = Content::decode(option) else { return };
    let mut carrying = frame.get(..packet.end).unwrap_or_default().to_vec();
    carrying.extend([0; SHIM_LEN]);
    let Some(length) = shim::insert(&mut carrying, &packet, &content) else { return };
    assert_eq!(length, carrying.len());
    let Some(Ok((opened, found))) = shim::open(&carrying, &Packet::parse(&carrying)) else {
        panic!("what was put in is found");
    };
    assert!(found == content);
    assert_eq!((opened.protocol, opened.source_port), (packet.protocol, packet.source_port));
    assert_eq!(shim::strip(&mut carrying, &opened), Some(packet.end));
    if header_sum_is_clear(frame, &packet) {
        assert_eq!(carrying[..packet.end], frame[..packet.end]);
    }
}

/// Turns a datagram into the segment that it carries and back, and a segment into a datagram and back (wire.md §4.8).
/// The input is the frame.
pub fn reordered(frame: &[u8]) {
    let packet = Packet::parse(frame);
    let mut segment = frame.to_vec();
    match reorder::to_tcp(&mut segment, &packet) {
        Some(()) => {
            let turned = Packet::parse(&segment);
            assert_eq!((turned.form, turned.protocol, turned.end), (Form::Whole, TCP, packet.end));
            assert_eq!(turned.opens(), reorder::flags(frame, &packet).is_some_and(reorder::opens));
            let mut back = segment.clone();
            reorder::to_udp(&mut back, &turned).expect("a segment");
            assert_turned(frame, &packet, &segment, &turned);
            assert_same(frame, &back, &packet);
        }
        None => assert_eq!(segment, frame, "what carries no segment is not touched"),
    }
    let mut datagram = frame.to_vec();
    if reorder::to_udp(&mut datagram, &packet).is_none() {
        return assert_eq!(datagram, frame, "what can't be turned is not touched");
    }
    let turned = Packet::parse(&datagram);
    assert_eq!((turned.form, turned.protocol, turned.end), (Form::Whole, UDP, packet.end));
    assert_eq!(reorder::flags(&datagram, &turned), Some(packet.tcp_flags & !tcp_flags::URG));
    let has_block = tail::find(frame, &packet).is_some_and(|(_, carrier)| carrier == Carrier::TcpInUdp);
    assert_eq!(reorder::ends_in_block(&datagram, &turned), has_block);
    assert_turned(&datagram, &turned, frame, &packet);
    let mut back = datagram.clone();
    reorder::to_tcp(&mut back, &turned).expect("a datagram that carries a segment");
    // An urgent pointer is lost.
    let mut sent = frame.to_vec();
    sent[packet.transport + 13] &= !tcp_flags::URG;
    sent[packet.transport + 18..packet.transport + 20].fill(0);
    assert_same(&sent, &back, &packet);
}

/// Checks that a datagram's checksum is right if and only if that of the segment is that it carries.
fn assert_turned(datagram: &[u8], udp: &Packet, segment: &[u8], tcp: &Packet) {
    assert_eq!(
        sum_is_right(datagram, udp),
        sum_is_right(segment, tcp),
        "a right checksum stays right, a wrong one wrong"
    );
}

/// Checks that two frames are the same, apart from checksums: one's complement has two representations of zero, and an
/// urgent pointer changes the segment's.
fn assert_same(one: &[u8], other: &[u8], packet: &Packet) {
    let without = |frame: &[u8]| {
        let mut frame = frame.to_vec();
        if !packet.ipv6() {
            frame[packet.network + 10..packet.network + 12].fill(0);
        }
        let field = packet.transport + if packet.protocol == TCP { 16 } else { 6 };
        frame[field..field + 2].fill(0);
        frame
    };
    assert_eq!(without(one), without(other));
}

/// Reports whether the IPv4 header's checksum is one that a sender computes. One's complement has two representations
/// of zero, and updating a checksum may turn the one into the other.
fn header_sum_is_clear(frame: &[u8], packet: &Packet) -> bool {
    packet.ipv6() || frame[packet.network + 10..packet.network + 12] != [0xff, 0xff]
}

/// Reports whether the transport's checksum is the one that the receiver computes.
fn sum_is_right(frame: &[u8], packet: &Packet) -> bool {
    let Some(transport) = frame.get(packet.transport..packet.end) else { return false };
    let pseudo = checksum::pseudo_header(packet, transport.len() as u16);
    checksum::fold(pseudo + checksum::sum(transport, false)) == 0xffff
}

/// Reports whether the transport's checksum is either right or partial, and IPv4's is one that a sender computes. A
/// wrong checksum stays wrong, but one representation of zero may turn into the other (one's complement has two). A
/// checksum that is both right and partial, as one partial checksum in 65,536 is, counts as complete.
fn sums_are_clear(frame: &[u8], packet: &Packet) -> bool {
    let Some(transport) = frame.get(packet.transport..packet.end) else { return false };
    let field = packet.transport + if packet.protocol == TCP { 16 } else { 6 };
    let checksum = u16::from_be_bytes([frame[field], frame[field + 1]]);
    let pseudo = checksum::pseudo_header(packet, transport.len() as u16);
    let right = sum_is_right(frame, packet);
    let of_udp = packet.protocol == UDP;
    let ip_is_clear = header_sum_is_clear(frame, packet);
    let transport_is_clear = match checksum {
        0 => of_udp,
        0xffff => of_udp && right,
        _ => right != (checksum == checksum::fold(pseudo)),
    };
    ip_is_clear && transport_is_clear
}

/// Sends a packet from the client's stack through the agent and the verifier to the server's stack, and checks that the
/// same bytes arrive (wire.md §4.5). The input's first byte selects suite, flags and carrier.
pub fn journey(input: &[u8]) {
    let Some((choice, frame)) = input.split_first() else { return };
    let packet = Packet::parse(frame);
    let (Some(address), Some(source)) = (packet.destination, packet.source) else { return };
    let to = Destination { address, protocol: packet.protocol, port: packet.destination_port };
    let epoch = Epoch::at(NOW.into(), world::EPOCH_LENGTH);
    let width = if address.is_ipv6() { 128 } else { 32 };
    let family = if address.is_ipv6() { Flags::IPV6 } else { Flags(0) };
    let header = GrantHeader {
        suite: if choice & 16 == 0 { Suite::Siphash } else { Suite::AesCmac },
        flags: family.with(Flags(choice & 0x0f)),
        epoch: epoch.on_wire(),
        prefix_length: if choice & 32 == 0 { width } else { width / 2 },
        expires: NOW + 300,
        handle: Handle(7),
    };
    let key = header.key(&world::verifier_key(epoch), &to, source);
    let carrier = if choice & 64 == 0 { Carrier::Tail } else { Carrier::Shim };
    let secret = Some(Secret::Grant(header, key));
    let grant = Grant { until: NOW + 270, skew: 0, secret, carrier };
    let grants = [(GrantSlot::new(1, &to), grant)];
    let mut agent =
        Inserter { subject: 1, protected: world::protected(), grants: grants.into(), ..Inserter::default() };
    let mut sent = frame.to_vec();
    match agent.insert(&mut sent, NOW) {
        Action::Token => {}
        Action::Failed => return,
        action => return assert_eq!(sent, frame, "{action:?} leaves the frame alone"),
    }
    let (added, clear) = match carrier {
        Carrier::Tail | Carrier::Stream | Carrier::FastOpen | Carrier::TcpInUdp => {
            (BLOCK_LEN, sums_are_clear(frame, &packet) && sums_are_clear(&sent, &Packet::parse(&sent)))
        }
        Carrier::Shim => (SHIM_LEN, header_sum_is_clear(frame, &packet)),
    };
    assert_eq!(sent.len(), packet.end + added);
    let outcome = world::verifier().verify(&mut sent, NOW);
    if packet.route.unknown || !packet.route.addresses().is_empty() {
        return;
    }
    assert_eq!(outcome, Outcome::Token);
    assert_eq!(sent.len(), packet.end);
    if clear {
        assert_eq!(sent, frame[..packet.end]);
    }
}

/// Queues a frame in the agent and releases it. Checks that splitting a super-packet loses no payload, and that each
/// part has the right checksum or none. The input's first two bytes are the segment size and the kind of link.
pub fn queued(input: &[u8]) {
    let Some(([segment, kind], frame)) = input.split_first_chunk() else { return };
    let link_header = if kind & 1 == 0 { 14 } else { 0 };
    let Some(queued) = Frame::new(1, link_header, (*segment).into(), frame) else { return };
    let ready = queued.ready();
    assert!(!ready.is_empty());
    let whole = Packet::parse(&framed(link_header, ready[0].ether_type, frame));
    let mut payload = Vec::new();
    for part in &ready {
        let bytes = framed(link_header, part.ether_type, &part.bytes);
        let packet = Packet::parse(&bytes);
        assert_eq!((packet.form, packet.fragment, packet.protocol), (Form::Whole, whole.fragment, whole.protocol));
        assert_eq!((packet.source, packet.destination), (whole.source, whole.destination));
        payload.extend_from_slice(bytes.get(packet.payload..packet.end).unwrap_or_default());
        if ready.len() > 1 {
            assert!(packet.end - packet.payload <= usize::from(*segment));
            let absent = bytes[packet.transport + 6..packet.transport + 8] == [0, 0];
            assert!(absent || sum_is_right(&bytes, &packet));
        }
    }
    let original = framed(link_header, ready[0].ether_type, frame);
    assert_eq!(payload, original.get(whole.payload..whole.end).unwrap_or_default());
}

/// Returns the frame, with an Ethernet header added if `link_header` is 0.
fn framed(link_header: u32, ether_type: u16, frame: &[u8]) -> Vec<u8> {
    if link_header != 0 {
        return frame.to_vec();
    }
    [&[0; 12][..], &ether_type.to_be_bytes(), frame].concat()
}
