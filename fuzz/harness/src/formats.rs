//! The formats of fixed length, and the packet parser. Input that can be decoded must encode to the same bytes, and the
//! offsets that the packet parser returns must be inside the frame.

use wire::ls::KeyTransfer;
use wire::packet::{Form, Fragment, Packet, ROUTE_MAX, TCP, UDP};
use wire::shim::Content;
use wire::token::TOKEN_LEN;
use wire::{DropReason, Flags, GrantHeader, LsToken, Token};

/// Decodes the input as a token of an IPv4 packet, and then as a token of an IPv6 packet.
pub fn token(input: &[u8]) {
    let Some(bytes) = input.first_chunk::<TOKEN_LEN>() else { return };
    for ipv6 in [false, true] {
        match Token::decode(bytes, ipv6) {
            Ok(token) => {
                assert_eq!(token.encode(), *bytes);
                assert_eq!(token.header.flags.has(Flags::IPV6), ipv6);
                assert!(!token.header.flags.has(Flags::BEARER));
            }
            Err(reason) => assert!(matches!(reason, DropReason::Malformed | DropReason::UnknownSuite)),
        }
    }
}

/// Decodes a grant header, and checks that it encodes to the same bytes.
pub fn grant_header(input: &[u8]) {
    let Some(bytes) = input.first_chunk() else { return };
    match GrantHeader::decode(bytes) {
        Ok(header) => {
            assert_eq!(header.encode(), *bytes);
            assert_eq!(header.flags.0 & 0x80, 0, "reserved flags");
            assert!(header.prefix_length <= if header.flags.has(Flags::IPV6) { 128 } else { 32 });
        }
        Err(reason) => assert!(matches!(reason, DropReason::Malformed | DropReason::UnknownSuite)),
    }
}

/// Decodes the option of a shim, and its content.
pub fn option(input: &[u8]) {
    let Some(bytes) = input.first_chunk() else { return };
    match Content::decode(bytes) {
        Ok(content) => {
            assert_eq!(content.encode(), *bytes);
            match content {
                Content::Ls(bytes) => assert_eq!(LsToken::decode(&bytes).encode(), bytes),
                Content::KeyTransfer(bytes) => assert_eq!(KeyTransfer::decode(&bytes).encode(), bytes),
                Content::Support | Content::Token(_) => {}
            }
        }
        Err(reason) => assert_eq!(reason, DropReason::Malformed),
    }
}

/// Parses an Ethernet frame, and checks the offsets that the parser returns.
pub fn packet(input: &[u8]) {
    let packet = Packet::parse(input);
    assert!(packet.end <= input.len());
    assert!(packet.route.addresses().len() <= ROUTE_MAX);
    if packet.form != Form::Whole {
        return;
    }
    assert!(packet.source.is_some() && packet.destination.is_some());
    assert!(packet.source.map(|a| a.is_ipv6()) == packet.destination.map(|a| a.is_ipv6()));
    assert!(packet.network < packet.transport && packet.transport <= packet.end);
    match packet.fragment {
        Fragment::Whole if matches!(packet.protocol, TCP | UDP) => {
            assert!(packet.transport < packet.payload && packet.payload <= packet.end);
        }
        Fragment::Whole => assert!(packet.payload <= packet.end),
        Fragment::First(_) => assert!(packet.transport <= packet.payload),
        Fragment::Later(_) => assert_eq!((packet.source_port, packet.destination_port), (0, 0)),
    }
    // Link padding after the IP packet must have no influence.
    let cut = Packet::parse(&input[..packet.end]);
    assert_eq!((cut.form, cut.payload, cut.end), (packet.form, packet.payload, packet.end));
}

/// Parses the packet that an ICMP error quotes. The first two bytes of the input select the family and the offset.
pub fn quoted(input: &[u8]) {
    let Some(([family, at], frame)) = input.split_first_chunk() else { return };
    for end in [frame.len(), frame.len() / 2, frame.len() + 1] {
        let quoted = Packet::parse_quoted(frame, usize::from(*at), end, family & 1 != 0);
        assert!(end <= frame.len() || quoted.form == Form::Broken);
        if quoted.form == Form::Whole {
            assert!(quoted.source.is_some_and(|source| source.is_ipv6() == (family & 1 != 0)));
            assert!(quoted.destination.is_some());
        }
    }
}
