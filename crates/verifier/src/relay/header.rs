//! The PROXY protocol, version 2 (HAProxy's proxy-protocol.txt, §2.2). Its header tells a server the client's address.
//! TLVs whose types the protocol leaves to applications contain the person.

use crate::identity::Identity;
use std::net::SocketAddr;

const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
/// Version 2; a connection that is relayed for a client.
const VERSION_AND_COMMAND: u8 = 0x21;
const TCP4: u8 = 0x11;
const TCP6: u8 = 0x21;
const UNIQUE_ID: u8 = 0x05;
/// Types of the TLVs, from 0xE0 on: docs/identity.md lists them.
const PERSON: u8 = 0xe0;
const DEVICE: u8 = 0xe1;
const RULE: u8 = 0xe2;
const RECEIVER: u8 = 0xe3;
const GRANT: u8 = 0xe4;
/// The longest value of a TLV, in bytes: longer names are cut, so that the header stays within what proxies accept.
const VALUE_MAX: usize = 255;
/// The longest unique id that the protocol allows.
const UNIQUE_ID_MAX: usize = 128;

/// Builds the PROXY protocol header of a connection. `since` is the time when the connection began, in Unix seconds.
pub fn header(client: SocketAddr, server: SocketAddr, identity: &Identity, since: u32) -> Vec<u8> {
    let mut body = Vec::new();
    let Identity { person, device, receiver, rule, handle } = identity;
    for (kind, value) in [(PERSON, person), (DEVICE, device), (RULE, rule), (RECEIVER, receiver), (GRANT, handle)] {
        tlv(&mut body, kind, cut(value, VALUE_MAX));
    }
    // A grant's flows differ in the client's port, or in the time.
    let id = format!("{person}/{handle}/{since:x}-{:x}", client.port());
    tlv(&mut body, UNIQUE_ID, cut(&id, UNIQUE_ID_MAX));
    with(client, server, &body)
}

/// Builds the PROXY protocol header of a stranger's connection. This header has no TLVs, because they describe a
/// person.
pub fn anonymous(client: SocketAddr, server: SocketAddr) -> Vec<u8> {
    with(client, server, &[])
}

/// Builds a header with these TLVs.
fn with(client: SocketAddr, server: SocketAddr, tlvs: &[u8]) -> Vec<u8> {
    let (family, mut body) = addresses(client, server);
    body.extend(tlvs);
    let mut header = SIGNATURE.to_vec();
    header.extend([VERSION_AND_COMMAND, family]);
    header.extend((body.len() as u16).to_be_bytes());
    header.extend(body);
    header
}

fn addresses(client: SocketAddr, server: SocketAddr) -> (u8, Vec<u8>) {
    let ports = [client.port().to_be_bytes(), server.port().to_be_bytes()].concat();
    match (client, server) {
        (SocketAddr::V4(client), SocketAddr::V4(server)) => {
            (TCP4, [&client.ip().octets()[..], &server.ip().octets(), &ports].concat())
        }
        (client, server) => {
            let six = |end: SocketAddr| match end {
                SocketAddr::V4(end) => end.ip().to_ipv6_mapped().octets(),
                SocketAddr::V6(end) => end.ip().octets(),
            };
            (TCP6, [&six(client)[..], &six(server), &ports].concat())
        }
    }
}

fn tlv(body: &mut Vec<u8>, kind: u8, value: &str) {
    body.push(kind);
    body.extend((value.len() as u16).to_be_bytes());
    body.extend(value.as_bytes());
}

fn cut(text: &str, most: usize) -> &str {
    &text[..text.floor_char_boundary(most)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(rule: &str) -> Identity {
        let [person, device, receiver, handle] = ["al", "pc", "web", "00000000000000ff"].map(str::to_owned);
        Identity { person, device, receiver, rule: rule.to_owned(), handle }
    }

    #[test]
    fn the_header_has_these_bytes() {
        let ends = ["192.0.2.9:4660", "192.0.2.20:80"].map(|text| text.parse().expect("an address"));
        let found = header(ends[0], ends[1], &identity("staff"), 0x10);
        let mut expected = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x00\x55".to_vec();
        expected.extend(b"\xc0\x00\x02\x09\xc0\x00\x02\x14\x12\x34\x00\x50");
        expected.extend(b"\xe0\x00\x02al\xe1\x00\x02pc\xe2\x00\x05staff\xe3\x00\x03web\xe4\x00\x1000000000000000ff");
        expected.extend(b"\x05\x00\x1bal/00000000000000ff/10-1234");
        assert_eq!(found.len(), 16 + 0x55);
        assert_eq!(found, expected);
    }

    #[test]
    fn a_strangers_header_has_the_addresses_only() {
        let ends = ["192.0.2.9:4660", "192.0.2.20:80"].map(|text| text.parse().expect("an address"));
        let expected = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x00\x0c\xc0\x00\x02\x09\xc0\x00\x02\x14\x12\x34\x00\x50";
        assert_eq!(anonymous(ends[0], ends[1]), expected);
    }

    #[test]
    fn long_names_are_cut_between_characters() {
        let ends = ["[2001:db8::9]:1", "[2001:db8::20]:80"].map(|text| text.parse().expect("an address"));
        let found = header(ends[0], ends[1], &identity(&"ü".repeat(400)), 1);
        assert_eq!((found[13], usize::from(u16::from_be_bytes([found[14], found[15]]))), (TCP6, found.len() - 16));
        let rule = found.windows(3).position(|window| window == [RULE, 0, 254]).expect("254 bytes");
        assert!(std::str::from_utf8(&found[rule + 3..rule + 3 + 254]).is_ok());
    }
}
