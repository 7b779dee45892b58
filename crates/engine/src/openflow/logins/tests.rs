use super::*;
use crate::agent::frame::tests::partial;
use crate::openflow::message::port;
use crate::openflow::plane::{Household, Plane};
use wire::checksum::{fold, sum};
use wire::packet::UDP;
use wire::{ClientKey, LsToken, Pair};

const NOW: u32 = 1_800_000_000;
const AUTHORITY: &str = "198.51.100.10";
const CLIENT: &str = "192.0.2.1";
const DEVICE: Origin = Origin { datapath: 1, port: 5 };
const UPLINK: Origin = Origin { datapath: 1, port: 9 };
const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const OTHER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
const FIRST: u32 = 1000;
const ANSWER: u32 = 0xffff_ff00;

fn end(address: &str, port: u16) -> SocketAddrV4 {
    SocketAddrV4::new(address.parse().expect("an address"), port)
}

fn plane() -> Plane {
    let mut plane = Plane::new(Household::default(), 1, false);
    let networks = vec!["203.0.113.0/24".parse().expect("a network")];
    plane.set_realms(vec![Realm { ends: vec![end(AUTHORITY, 8443)], networks }]);
    plane
}

/// Makes a TCP segment.
fn segment(from: SocketAddrV4, to: SocketAddrV4, sequence: u32, acknowledgement: u32, flags: u8) -> Vec<u8> {
    let mut frame = [&[0; 6][..], &MAC, &[8, 0, 0x45, 0, 0, 40, 0, 1, 0x40, 0, 64, TCP, 0, 0]].concat();
    frame.extend([from.ip().octets(), to.ip().octets()].concat());
    let checksum = !fold(sum(&frame[14..34], false));
    frame[24..26].copy_from_slice(&checksum.to_be_bytes());
    frame.extend([from.port().to_be_bytes(), to.port().to_be_bytes()].concat());
    frame.extend([sequence.to_be_bytes(), acknowledgement.to_be_bytes()].concat());
    frame.extend([0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
    frame
}

fn syn(port: u16) -> Vec<u8> {
    segment(end(CLIENT, port), end(AUTHORITY, 8443), FIRST, 0, tcp_flags::SYN)
}

fn answer(port: u16, acknowledgement: u32) -> Vec<u8> {
    let flags = tcp_flags::SYN | tcp_flags::ACK;
    segment(end(AUTHORITY, 8443), end(CLIENT, port), ANSWER, acknowledgement, flags)
}

fn key(number: u8) -> KeyTransfer {
    let pair = Pair { unique_id: [number; 5], nonce1: [1, 2] };
    KeyTransfer { key: ClientKey::of(pair, b"secret"), pair }
}

/// Makes a packet of the authority with a key, that many bytes after the handshake on both sides.
fn transfer(port: u16, transfer: &KeyTransfer, sent: (u32, u32)) -> Vec<u8> {
    let (sequence, acknowledgement) = (ANSWER.wrapping_add(sent.0), FIRST.wrapping_add(sent.1));
    let plain = segment(end(AUTHORITY, 8443), end(CLIENT, port), sequence, acknowledgement, tcp_flags::ACK);
    shimmed(plain, &Content::KeyTransfer(transfer.encode()))
}

fn shimmed(mut frame: Vec<u8>, content: &Content) -> Vec<u8> {
    let packet = Packet::parse(&frame);
    frame.resize(packet.end + SHIM_LEN, 0);
    shim::insert(&mut frame, &packet, content).expect("room");
    frame
}

fn forwarded(fate: Fate) -> (Vec<crate::openflow::message::FlowMod>, Vec<Vec<u8>>) {
    let Fate::Forward { rules, frames } = fate else { panic!("it is forwarded") };
    (rules, frames)
}

/// Opens a connection from the device's port, through which keys can come.
fn connect(plane: &mut Plane, port: u16) {
    forwarded(plane.elevated(DEVICE, &syn(port), NOW));
    let (rules, _) = forwarded(plane.elevated(UPLINK, &answer(port, FIRST + 1), NOW));
    assert_eq!(rules.len(), 1);
}

/// Logs the device in with a key of this number.
fn log_in(plane: &mut Plane, port: u16, number: u8) {
    connect(plane, port);
    forwarded(plane.elevated(UPLINK, &transfer(port, &key(number), (1, 1)), NOW));
    assert_eq!(plane.logins().devices(), 1);
}

/// Returns the token in the first packet of a flow to the protected network, if it got one.
fn token(plane: &mut Plane, origin: Origin, mac: [u8; 6]) -> Option<LsToken> {
    let mut frame = partial(CLIENT, 4000, "203.0.113.7", TCP, 22, &[]);
    frame[6..12].copy_from_slice(&mac);
    let Fate::Forward { frames, .. } = plane.elevated(origin, &frame, NOW) else { return None };
    match shim::open(&frames[0], &Packet::parse(&frames[0])) {
        Some(Ok((_, Content::Ls(token)))) => Some(LsToken::decode(&token)),
        _ => None,
    }
}

#[test]
fn a_syn_gets_the_option_once_and_its_answer_comes_up() {
    let mut plane = plane();
    assert_eq!(plane.authorities(), [end(AUTHORITY, 8443)]);
    let (rules, frames) = forwarded(plane.elevated(DEVICE, &syn(40_000), NOW));
    assert_eq!(frames, [shimmed(syn(40_000), &Content::Support)]);
    let answers: Vec<_> = rules.iter().filter(|rule| rule.to == Some(port::CONTROLLER)).collect();
    let [rule] = answers[..] else { panic!("one rule") };
    assert_eq!(
        (rule.priority, rule.hard_timeout, rule.matching.source_port.map(|port| port.value)),
        (3000, 30, Some(8443))
    );
    let (_, frames) = forwarded(plane.elevated(DEVICE, &syn(40_000), NOW + 59));
    assert_eq!(frames, [syn(40_000)], "a SYN that is sent again goes as it is");
    let (_, frames) = forwarded(plane.elevated(DEVICE, &syn(40_000), NOW + 60));
    assert_eq!(frames, [shimmed(syn(40_000), &Content::Support)]);
    assert_eq!(plane.logins().counts().support, 2);
}

#[test]
fn a_key_is_taken_from_its_connection_and_the_packet_goes_on_as_it_was() {
    let mut plane = plane();
    forwarded(plane.elevated(DEVICE, &syn(40_000), NOW));
    let (rules, frames) = forwarded(plane.elevated(UPLINK, &answer(40_000, FIRST + 1), NOW));
    assert_eq!((rules[0].matching.in_port, rules[0].matching.protocol), (Some(UPLINK.port), Some(IPIP)));
    assert_eq!(frames, [answer(40_000, FIRST + 1)]);
    assert!(token(&mut plane, DEVICE, MAC).is_none(), "there is no key yet");
    // The sequence number wraps around.
    let with_key = transfer(40_000, &key(1), (0x200, 700));
    let (_, frames) = forwarded(plane.elevated(UPLINK, &with_key, NOW));
    let plain = segment(end(AUTHORITY, 8443), end(CLIENT, 40_000), 0x100, FIRST + 700, tcp_flags::ACK);
    assert_eq!(frames, [plain]);
    for number in 0..2 {
        let token = token(&mut plane, DEVICE, MAC).expect("a token");
        assert_eq!((token.pair, token.nonce2), (key(1).pair, 0x8000 + number));
        assert!(token.proves(&key(1).key));
    }
    assert_eq!((plane.logins().counts().keys, plane.logins().counts().refused), (1, 0));
}

#[test]
fn no_other_device_gets_tokens_and_the_flow_belongs_to_the_devices_port() {
    let mut plane = plane();
    log_in(&mut plane, 40_000, 1);
    let elsewhere = Origin { port: 6, ..DEVICE };
    for (origin, mac) in [(elsewhere, MAC), (DEVICE, OTHER_MAC), (elsewhere, OTHER_MAC), (UPLINK, MAC)] {
        let mut frame = partial(CLIENT, 4000, "203.0.113.7", TCP, 22, &[]);
        frame[6..12].copy_from_slice(&mac);
        assert!(plane.elevated(origin, &frame, NOW) == Fate::Drop, "{origin:?}");
    }
    assert_eq!(plane.counts().rider, 4);
    let mut neighbour = partial("192.0.2.2", 4000, "203.0.113.7", TCP, 22, &[]);
    neighbour[6..12].copy_from_slice(&OTHER_MAC);
    let (rules, frames) = forwarded(plane.elevated(elsewhere, &neighbour, NOW));
    assert_eq!((frames, rules[0].matching.in_port), (vec![neighbour], None), "a neighbour goes without");
    let mut own = partial(CLIENT, 4000, "203.0.113.7", UDP, 22, b"x");
    own[6..12].copy_from_slice(&MAC);
    let (rules, _) = forwarded(plane.elevated(DEVICE, &own, NOW));
    assert_eq!((rules[0].matching.in_port, rules[1].matching.in_port), (Some(DEVICE.port), None));
    let mut foreign = partial(CLIENT, 4000, "198.18.0.1", TCP, 22, &[]);
    foreign[6..12].copy_from_slice(&MAC);
    assert_eq!(forwarded(plane.elevated(DEVICE, &foreign, NOW)).1, [foreign], "the key is for one network");
}

#[test]
fn a_forged_transfer_is_passed_on_and_gives_nobody_a_key() {
    let near = (1, 1);
    let far = [(0, 1), (1, 0), (AUTHORITY_SENT_MAX + 2, 1), (1, CLIENT_SENT_MAX + 2)];
    let mut cases: Vec<_> = far.into_iter().map(|sent| (UPLINK, transfer(40_000, &key(6), sent))).collect();
    cases.push((Origin { port: 6, ..DEVICE }, transfer(40_000, &key(6), near)));
    cases.push((DEVICE, transfer(40_000, &key(6), near)));
    cases.push((Origin { datapath: 2, ..UPLINK }, transfer(40_000, &key(6), near)));
    cases.push((UPLINK, transfer(40_001, &key(6), near)));
    cases.push((UPLINK, shimmed(segment(end(AUTHORITY, 8443), end(CLIENT, 40_000), 1, 1, 16), &Content::Support)));
    for (origin, frame) in cases {
        let mut plane = plane();
        connect(&mut plane, 40_000);
        assert_eq!(forwarded(plane.elevated(origin, &frame, NOW)).1, [frame], "{origin:?}");
        assert_eq!((plane.logins().devices(), plane.logins().counts().refused), (0, 1), "{origin:?}");
    }
    // The answer to the SYN has to show that its sender saw the SYN.
    let mut plane = plane();
    forwarded(plane.elevated(DEVICE, &syn(40_000), NOW));
    for (origin, acknowledgement) in [(UPLINK, FIRST), (DEVICE, FIRST + 1)] {
        assert!(forwarded(plane.elevated(origin, &answer(40_000, acknowledgement), NOW)).0.is_empty());
    }
    forwarded(plane.elevated(UPLINK, &transfer(40_000, &key(6), near), NOW));
    assert_eq!(plane.logins().devices(), 0);
}

#[test]
fn a_flood_of_forged_transfers_is_stopped_at_the_switch_until_the_next_connection() {
    let mut plane = plane();
    connect(&mut plane, 40_000);
    let forged = transfer(40_000, &key(6), (0, 0));
    for number in 1..=REFUSED_MAX {
        let (rules, _) = forwarded(plane.elevated(UPLINK, &forged, NOW));
        assert_eq!(rules.len(), usize::from(number == REFUSED_MAX), "after {number}");
    }
    log_in(&mut plane, 40_001, 1);
    assert!(forwarded(plane.elevated(UPLINK, &forged, NOW)).0.is_empty(), "the count begins anew");
}

#[test]
fn a_renewal_replaces_the_key_a_former_one_does_not_come_back_and_zeros_end_it() {
    let mut plane = plane();
    log_in(&mut plane, 40_000, 1);
    token(&mut plane, DEVICE, MAC).expect("a token");
    forwarded(plane.elevated(UPLINK, &transfer(40_000, &key(2), (2, 2)), NOW));
    let second = token(&mut plane, DEVICE, MAC).expect("a token");
    assert_eq!((second.pair, second.nonce2), (key(2).pair, 0x8000));
    // Somebody sends a transfer again that was seen on the cable: its nonces are used.
    for number in [1, 2] {
        forwarded(plane.elevated(UPLINK, &transfer(40_000, &key(number), (3, 3)), NOW));
        let token = token(&mut plane, DEVICE, MAC).expect("a token");
        assert_eq!((token.pair, token.nonce2), (key(2).pair, 0x8000 + u16::from(number)));
    }
    let none = KeyTransfer { key: ClientKey::new([0; 28]), ..key(3) };
    forwarded(plane.elevated(UPLINK, &transfer(40_000, &none, (4, 4)), NOW));
    assert_eq!(plane.logins().devices(), 0);
    assert!(token(&mut plane, DEVICE, MAC).is_none());
}

#[test]
fn a_key_ends_with_its_nonces_and_after_a_day() {
    let mut plane = plane();
    log_in(&mut plane, 40_000, 1);
    for _ in 0..ls::SENDERS_NONCES {
        token(&mut plane, DEVICE, MAC).expect("a token");
    }
    assert!(token(&mut plane, DEVICE, MAC).is_none(), "a nonce is used twice");
    assert_eq!(plane.counts().failed, 1);
    log_in(&mut plane, 40_001, 2);
    let mut frame = partial(CLIENT, 4000, "203.0.113.7", TCP, 22, &[]);
    frame[6..12].copy_from_slice(&MAC);
    assert_eq!(forwarded(plane.elevated(DEVICE, &frame, NOW + KEY_LIFE)).1, [frame], "it goes without a token");
    assert_eq!(plane.logins().devices(), 0);
}

#[test]
fn an_address_that_changes_hands_is_the_next_devices_once_the_key_has_ended() {
    let mut plane = plane();
    log_in(&mut plane, 40_000, 1);
    let (elsewhere, mut frame) = (Origin { port: 6, ..DEVICE }, partial(CLIENT, 4000, "203.0.113.7", TCP, 22, &[]));
    frame[6..12].copy_from_slice(&OTHER_MAC);
    assert!(plane.elevated(elsewhere, &frame, NOW + KEY_LIFE - 1) == Fate::Drop);
    assert_eq!(plane.counts().rider, 1);
    assert_eq!(forwarded(plane.elevated(elsewhere, &frame, NOW + KEY_LIFE)).1, [frame]);
    assert_eq!((plane.counts().rider, plane.logins().devices()), (1, 0));
}

#[test]
fn a_port_full_of_invented_neighbours_pushes_out_its_own_only() {
    let mut plane = plane();
    log_in(&mut plane, 40_000, 1);
    let crowded = Origin { port: 6, ..DEVICE };
    for number in 0..10 * CONNECTIONS_OF_PORT_MAX as u32 {
        let [_, _, a, b] = number.to_be_bytes();
        let from = SocketAddrV4::new(Ipv4Addr::new(192, 0, 3 + a, b), 40_000);
        forwarded(plane.elevated(crowded, &segment(from, end(AUTHORITY, 8443), 5, 0, tcp_flags::SYN), NOW + 1));
    }
    assert_eq!(plane.logins.connections.len(), 1 + CONNECTIONS_OF_PORT_MAX);
    forwarded(plane.elevated(UPLINK, &transfer(40_000, &key(2), (1, 1)), NOW));
    assert_eq!(token(&mut plane, DEVICE, MAC).expect("a token").pair, key(2).pair);
}

#[test]
fn a_connection_that_brings_keys_all_day_goes_on_bringing_them() {
    let mut plane = plane();
    connect(&mut plane, 40_000);
    let (mut now, mut sent) = (NOW, (1_u32, 1_u32));
    for number in 1..=30 {
        now += u32::from(CONNECTION_LIFE) - 1;
        // More than either side may have sent since the SYN, but not since the last key.
        sent = (sent.0.wrapping_add(AUTHORITY_SENT_MAX), sent.1.wrapping_add(CLIENT_SENT_MAX));
        let (rules, _) = forwarded(plane.elevated(UPLINK, &transfer(40_000, &key(number), sent), now));
        let [rule] = &rules[..] else { panic!("one rule") };
        assert_eq!((rule.matching.in_port, rule.matching.protocol), (Some(UPLINK.port), Some(IPIP)));
        assert_eq!(rule.hard_timeout, CONNECTION_LIFE);
        assert_eq!(plane.logins().counts().keys, u64::from(number));
        // Copies extend nothing: neither the latest key, nor one whose pair the device has forgotten.
        assert!(forwarded(plane.elevated(UPLINK, &transfer(40_000, &key(number), sent), now + 1)).0.is_empty());
        assert!(forwarded(plane.elevated(UPLINK, &transfer(40_000, &key(1), (2, 2)), now + 1)).0.is_empty());
        assert_eq!(plane.logins().counts().keys, u64::from(number));
    }
    // In silence, it ends as every connection does.
    let late = now + u32::from(CONNECTION_LIFE);
    assert!(forwarded(plane.elevated(UPLINK, &transfer(40_000, &key(31), sent), late)).0.is_empty());
    assert_eq!(plane.logins().counts().keys, 30);
}
