//! Frames that wait for a grant. Before such a frame is sent again, this module completes its checksum, and cuts a
//! super-packet into datagrams (UDP segmentation offload). The network card does this work for frames that do not wait.

use std::net::IpAddr;
use wire::checksum::{fold, is_partial, pseudo_header, sum};
use wire::packet::{Form, Fragment, Packet, TCP, UDP};

const ETHERNET_LEN: usize = 14;
const UDP_LEN: usize = 8;

/// A frame that waits for a grant.
#[derive(Clone, PartialEq, Eq)]
pub struct Frame {
    /// Index of the interface through which the frame leaves.
    pub interface: u32,
    /// Payload bytes per datagram if the frame is a super-packet, otherwise 0.
    segment: usize,
    /// Whether the interface has no link header. `bytes` begins with a link header in either case.
    bare: bool,
    /// VLAN tag to insert between the addresses and the EtherType.
    tag: Option<[u8; 4]>,
    /// The treatment that the sender asks for, in the form of [`wire::map::Steered::wish`].
    wish: u16,
    bytes: Vec<u8>,
}

/// A frame ready to be sent, and its EtherType.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ready {
    /// The number of the protocol in the frame, such as 0x0800 for IPv4.
    pub ether_type: u16,
    /// The frame in the form that the interface expects.
    pub bytes: Vec<u8>,
}

/// The sender of a frame: address, port and protocol. Two SYNs to the same destination from the same sender are one SYN
/// and its retransmission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sender {
    address: IpAddr,
    port: u16,
    tcp: bool,
}

impl Frame {
    /// Takes a frame from the interface with the index `interface`, whose link header has `link_header` bytes. If the
    /// frame is a super-packet, `segment` is the number of payload bytes of each datagram, otherwise 0. Returns `None`
    /// if the frame is cut short.
    pub fn new(interface: u32, link_header: u32, segment: u32, frame: &[u8]) -> Option<Self> {
        let bare = link_header == 0;
        let mut bytes = Vec::new();
        if bare {
            bytes.resize(ETHERNET_LEN - 2, 0);
            bytes.extend_from_slice(if frame.first()? >> 4 == 6 { &[0x86, 0xdd] } else { &[0x08, 0x00] });
        }
        bytes.extend_from_slice(frame);
        let whole = Packet::parse(&bytes).form == Form::Whole;
        whole.then_some(Self { interface, segment: segment as usize, bare, tag: None, wish: 0, bytes })
    }

    /// Adds the VLAN tag that the kernel delivered separately: its protocol identifier `protocol` and its control
    /// information `tci`. A `protocol` of zero means that there was no tag.
    pub fn tagged(self, protocol: [u8; 2], tci: u16) -> Self {
        let [first, second] = protocol;
        let [high, low] = tci.to_be_bytes();
        let tag = (protocol != [0; 2] && !self.bare).then_some([first, second, high, low]);
        Self { tag, ..self }
    }

    /// Sets the treatment that the sender asks for, in the form of [`wire::map::Steered::wish`].
    pub fn asking(self, wish: u16) -> Self {
        Self { wish, ..self }
    }

    /// Returns the treatment that the sender asks for, in the form of [`wire::map::Steered::wish`].
    pub fn wish(&self) -> u16 {
        self.wish
    }

    /// Returns the whole frame in bytes, with a link header even if the interface has none.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the frame's size in memory, in bytes.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns `false`: a frame is never empty.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns the sender of the frame.
    pub fn sender(&self) -> Option<Sender> {
        let packet = Packet::parse(&self.bytes);
        Some(Sender { address: packet.source?, port: packet.source_port, tcp: packet.protocol == TCP })
    }

    /// Reports whether `other` is a retransmission of this frame: both are SYNs of the same sender. The caller has to
    /// make sure that both have the same destination.
    pub fn is_repeated_by(&self, other: &Self) -> bool {
        self.sender().is_some_and(|sender| sender.tcp && Some(sender) == other.sender())
    }

    /// Returns the frames to send, in order. A super-packet becomes several frames.
    pub fn ready(&self) -> Vec<Ready> {
        let packet = Packet::parse(&self.bytes);
        let frames = match split(&self.bytes, &packet, self.segment) {
            Some(frames) => frames,
            None => {
                let mut frame = self.bytes.clone();
                // A frame without a transport checksum is sent unchanged.
                let _ = complete_checksum(&mut frame, &packet);
                vec![frame]
            }
        };
        frames.into_iter().map(|frame| self.as_the_interface_takes_it(frame)).collect()
    }

    fn as_the_interface_takes_it(&self, mut bytes: Vec<u8>) -> Ready {
        const TYPE_AT: usize = ETHERNET_LEN - 2;
        if let Some(tag) = self.tag {
            bytes.splice(TYPE_AT..TYPE_AT, tag);
        }
        let ether_type = u16::from_be_bytes([bytes[TYPE_AT], bytes[TYPE_AT + 1]]);
        if self.bare {
            bytes.drain(..ETHERNET_LEN);
        }
        Ready { ether_type, bytes }
    }
}

/// Completes a transport checksum that so far contains only the sum of the pseudo-header. Leaves the frame unchanged if
/// its checksum is already complete, or absent as UDP allows. Returns `None` if the frame can have no transport
/// checksum.
pub fn complete_checksum(frame: &mut [u8], packet: &Packet) -> Option<()> {
    if packet.form != Form::Whole || packet.fragment != Fragment::Whole || !matches!(packet.protocol, TCP | UDP) {
        return None;
    }
    let field = packet.transport + if packet.protocol == TCP { 16 } else { 6 };
    if packet.protocol == UDP && frame.get(field..field + 2)? == [0, 0] || !is_partial(frame, packet)? {
        return Some(());
    }
    write_checksum(frame, packet, field)
}

/// Computes the transport checksum and writes it.
fn write_checksum(frame: &mut [u8], packet: &Packet, field: usize) -> Option<()> {
    put16(frame, field, 0)?;
    let len = u16::try_from(packet.end - packet.transport).ok()?;
    let checksum = !fold(pseudo_header(packet, len) + sum(frame.get(packet.transport..packet.end)?, false));
    // A checksum of 0 means "no checksum" in UDP (RFC 768).
    put16(frame, field, if packet.protocol == UDP && checksum == 0 { 0xffff } else { checksum })
}

/// Cuts a UDP datagram with more than `segment` bytes of payload into several. Returns `None` if it need not be cut.
fn split(frame: &[u8], packet: &Packet, segment: usize) -> Option<Vec<Vec<u8>>> {
    if segment == 0 || packet.protocol != UDP || packet.fragment != Fragment::Whole {
        return None;
    }
    let payload = frame.get(packet.payload..packet.end)?;
    if payload.len() <= segment {
        return None;
    }
    payload.chunks(segment).enumerate().map(|(index, chunk)| datagram(frame, packet, chunk, index as u16)).collect()
}

/// Builds a datagram with the headers of the datagram in `frame` and with the payload `payload`. Adds `later` to the
/// IPv4 identification.
pub fn datagram(frame: &[u8], packet: &Packet, payload: &[u8], later: u16) -> Option<Vec<u8>> {
    let with_checksum = frame.get(packet.transport + 6..packet.transport + 8)? != [0, 0];
    let mut datagram = [frame.get(..packet.payload)?, payload].concat();
    let end = datagram.len();
    put16(&mut datagram, packet.transport + 4, u16::try_from(UDP_LEN + payload.len()).ok()?)?;
    let ip = packet.network;
    if packet.ipv6() {
        put16(&mut datagram, ip + 4, u16::try_from(end - ip - 40).ok()?)?;
    } else {
        let id = u16::from_be_bytes(*frame.get(ip + 4..)?.first_chunk()?).wrapping_add(later);
        put16(&mut datagram, ip + 2, u16::try_from(end - ip).ok()?)?;
        put16(&mut datagram, ip + 4, id)?;
        put16(&mut datagram, ip + 10, 0)?;
        let header = datagram.get(ip..ip + usize::from(frame.get(ip)? & 15) * 4)?;
        let checksum = !fold(sum(header, false));
        put16(&mut datagram, ip + 10, checksum)?;
    }
    if with_checksum {
        let cut = Packet { end, ..*packet };
        write_checksum(&mut datagram, &cut, packet.transport + 6)?;
    }
    Some(datagram)
}

fn put16(frame: &mut [u8], at: usize, value: u16) -> Option<()> {
    *frame.get_mut(at..)?.first_chunk_mut()? = value.to_be_bytes();
    Some(())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Builds a datagram or a SYN with an incomplete checksum, which contains only the sum of the pseudo-header.
    pub fn partial(source: &str, source_port: u16, to: &str, protocol: u8, port: u16, payload: &[u8]) -> Vec<u8> {
        let (source, to): (IpAddr, IpAddr) = (source.parse().expect("source"), to.parse().expect("destination"));
        let mut transport = [source_port.to_be_bytes(), port.to_be_bytes()].concat();
        let checksum = match protocol {
            UDP => {
                transport.extend((UDP_LEN as u16 + payload.len() as u16).to_be_bytes());
                6
            }
            _ => {
                transport.extend([0, 0, 0, 7, 0, 0, 0, 0, 0x50, 2, 0xff, 0xff]);
                16
            }
        };
        transport.extend([0; 2]);
        if protocol == TCP {
            transport.extend([0; 2]);
        }
        transport.extend(payload);
        let mut frame = vec![0; 12];
        let len = transport.len() as u16;
        match (source, to) {
            (IpAddr::V4(source), IpAddr::V4(to)) => {
                frame.extend([0x08, 0x00, 0x45, 0]);
                frame.extend((20 + len).to_be_bytes());
                frame.extend([0xff, 0xff, 0x40, 0, 64, protocol, 0, 0]);
                frame.extend(source.octets());
                frame.extend(to.octets());
                let checksum = !fold(sum(&frame[14..34], false));
                frame[24..26].copy_from_slice(&checksum.to_be_bytes());
            }
            (IpAddr::V6(source), IpAddr::V6(to)) => {
                frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
                frame.extend(len.to_be_bytes());
                frame.extend([protocol, 64]);
                frame.extend(source.octets());
                frame.extend(to.octets());
            }
            _ => panic!("one family"),
        }
        frame.extend(transport);
        let packet = Packet::parse(&frame);
        assert_eq!(packet.form, Form::Whole);
        put16(&mut frame, packet.transport + checksum, fold(pseudo_header(&packet, len))).expect("room");
        frame
    }

    fn checksum_is_right(frame: &[u8]) -> bool {
        let packet = Packet::parse(frame);
        let transport = &frame[packet.transport..packet.end];
        packet.form == Form::Whole
            && fold(pseudo_header(&packet, transport.len() as u16) + sum(transport, false)) == 0xffff
            && (packet.ipv6() || fold(sum(&frame[packet.network..packet.transport], false)) == 0xffff)
    }

    #[test]
    fn a_partial_checksum_is_completed_once() {
        for (source, to) in [("192.0.2.1", "198.51.100.2"), ("2001:db8::1", "2001:db8::2")] {
            for (protocol, payload) in [(TCP, &b""[..]), (UDP, &b"odd"[..])] {
                let mut frame = partial(source, 40000, to, protocol, 443, payload);
                assert!(!checksum_is_right(&frame));
                let packet = Packet::parse(&frame);
                complete_checksum(&mut frame, &packet).expect("done");
                assert!(checksum_is_right(&frame));
                let whole = frame.clone();
                complete_checksum(&mut frame, &packet).expect("done");
                assert_eq!(frame, whole);
            }
        }
    }

    #[test]
    fn a_datagram_without_checksum_stays_without() {
        let mut frame = partial("192.0.2.1", 40000, "198.51.100.2", UDP, 53, b"x");
        let packet = Packet::parse(&frame);
        frame[packet.transport + 6..packet.transport + 8].copy_from_slice(&[0, 0]);
        let before = frame.clone();
        complete_checksum(&mut frame, &packet).expect("done");
        assert_eq!(frame, before);
    }

    #[test]
    fn several_datagrams_in_one_are_cut_up() {
        for (source, to) in [("192.0.2.1", "198.51.100.2"), ("2001:db8::1", "2001:db8::2")] {
            let bytes = partial(source, 40000, to, UDP, 443, b"aaaabbbbcc");
            let frame = Frame::new(3, 14, 4, &bytes).expect("whole");
            let ready = frame.ready();
            let payloads: Vec<_> = ready
                .iter()
                .map(|ready| {
                    assert!(checksum_is_right(&ready.bytes));
                    let packet = Packet::parse(&ready.bytes);
                    ready.bytes[packet.payload..packet.end].to_vec()
                })
                .collect();
            assert_eq!(payloads, [b"aaaa".to_vec(), b"bbbb".to_vec(), b"cc".to_vec()]);
            if to.contains('.') {
                // The IP identification is 0xffff, then continues from 0.
                assert_eq!(ready.iter().map(|ready| ready.bytes[19]).collect::<Vec<_>>(), [255, 0, 1]);
            }
        }
    }

    #[test]
    fn a_frame_without_link_header_leaves_without() {
        let bytes = partial("192.0.2.1", 40000, "198.51.100.2", TCP, 443, b"");
        let frame = Frame::new(3, 0, 0, &bytes[14..]).expect("whole");
        let [ready] = &frame.ready()[..] else { panic!("one") };
        assert_eq!((ready.bytes[0], ready.bytes.len(), ready.ether_type), (0x45, bytes.len() - 14, 0x0800));
    }

    #[test]
    fn a_vlan_tag_that_was_beside_the_frame_is_put_in() {
        let bytes = partial("192.0.2.1", 40000, "198.51.100.2", UDP, 443, b"aaaabb");
        let frame = Frame::new(3, 14, 4, &bytes).expect("whole");
        let plain = frame.ready();
        assert_eq!(frame.clone().tagged([0; 2], 7).ready(), plain);
        for protocol in [0x8100, 0x88a8u16] {
            let tagged = frame.clone().tagged(protocol.to_be_bytes(), 0x6007).ready();
            assert_eq!(tagged.len(), 2);
            for (tagged, plain) in tagged.iter().zip(&plain) {
                let tag = [protocol.to_be_bytes(), [0x60, 7]].concat();
                assert_eq!(tagged.bytes, [&plain.bytes[..12], &tag[..], &plain.bytes[12..]].concat());
                assert!(tagged.ether_type == protocol && checksum_is_right(&tagged.bytes));
                // The EtherType of a tag that is already in the frame is reported as well.
                let again = Frame::new(3, 14, 0, &tagged.bytes).expect("whole").ready();
                assert_eq!(again, std::slice::from_ref(tagged));
            }
        }
        let bare = Frame::new(3, 0, 0, &bytes[14..]).expect("whole");
        assert_eq!(bare.clone().tagged([0x81, 0], 7).ready(), bare.ready());
    }

    #[test]
    fn what_is_cut_short_is_no_frame() {
        let bytes = partial("192.0.2.1", 40000, "198.51.100.2", UDP, 443, &[7; 100]);
        assert!(Frame::new(3, 14, 0, &bytes[..90]).is_none());
        assert!(Frame::new(3, 0, 0, &[]).is_none());
    }

    #[test]
    fn a_syn_sent_again_is_recognised() {
        let frame = |port, protocol| {
            Frame::new(3, 14, 0, &partial("192.0.2.1", port, "198.51.100.2", protocol, 443, b"")).expect("whole")
        };
        assert!(frame(1, TCP).is_repeated_by(&frame(1, TCP)));
        assert!(!frame(1, TCP).is_repeated_by(&frame(2, TCP)));
        assert!(!frame(1, UDP).is_repeated_by(&frame(1, UDP)));
    }
}
