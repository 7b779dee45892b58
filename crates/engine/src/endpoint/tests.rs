mod passed_on;
mod paths;

use super::*;
use crate::agent::frame::tests::partial;
use crate::model::Withdrawal;
use wire::packet::{TCP, UDP};
use wire::{InterfaceId, Segment, Suite};

const NOW: u32 = 1_000;
const INTERFACE: u32 = 3;
const SERVICE: u16 = 443;
const CLIENT: u16 = 40_000;
const OURS: &str = "198.51.100.1";
const THEIRS: &str = "198.51.100.2";

fn address(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn endpoint() -> Endpoint {
    let mut endpoint = Endpoint::new(vec![address(OURS)]);
    let addresses = vec![address("10.0.0.1"), address("fd00::1")];
    let vni = Vni::new(5).expect("24 bits");
    endpoint.admit(INTERFACE, Tenant { network: "blue".into(), vni, addresses });
    endpoint
}

fn syn(from: &str, to: &str, source: u16, port: u16) -> Vec<u8> {
    partial(from, source, to, TCP, port, &[])
}

fn unsent(frame: &[u8]) -> Unsent<'_> {
    Unsent { interface: INTERFACE, limit: 0, is_super: false, frame }
}

fn nothing(_: &SegmentKey) -> Option<Consent> {
    None
}

fn no_entry(_: &SegmentKey) -> Option<SegmentEntry> {
    None
}

/// Builds a segment between the tenants' addresses for TCP to the service.
fn segment(flags: SegmentFlags, ends: Ends, expires: u32) -> Given {
    let segment = Segment {
        suite: Suite::Siphash,
        count: 1,
        pointer: 0,
        flags: ends.flags().with(SegmentFlags::PORT, true).with(flags, true),
        protocol: TCP,
        epoch: 0,
        expires,
        interface: InterfaceId(1),
        port: SERVICE,
        sender_port: if flags.has(SegmentFlags::SINGLE) { CLIENT } else { 0 },
        authority: address("192.0.2.1"),
    };
    Given { segment, vni: Vni::new(5).expect("24 bits"), ends, proofs: vec![[7; 16]], hops: vec![] }
}

fn out() -> Ends {
    let [sending, receiving, sender, receiver] = [OURS, THEIRS, "10.0.0.1", "10.0.0.2"].map(address);
    Ends { sending, receiving, sender, receiver }
}

fn back() -> Ends {
    let Ends { sending, receiving, sender, receiver } = out();
    Ends { sending: receiving, receiving: sending, sender: receiver, receiver: sender }
}

fn ask(endpoint: &mut Endpoint, frame: &[u8]) -> (Wanted, SegmentRequest) {
    match endpoint.handed_over(&unsent(frame), nothing, no_entry, NOW) {
        Some(Action::Ask(wanted, request)) => (wanted, request),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_first_packet_is_asked_for_once_and_sent_when_the_segment_is_there() {
    let mut endpoint = endpoint();
    let frame = syn("10.0.0.1", "10.0.0.2", CLIENT, SERVICE);
    let (wanted, request) = ask(&mut endpoint, &frame);
    assert_eq!((request.network.as_str(), request.sending, request.sender_port), ("blue", address(OURS), CLIENT));
    assert_eq!((request.to.address, request.to.protocol, request.to.port), (address("10.0.0.2"), TCP, SERVICE));
    for _ in 0..2 * QUEUED_MAX {
        assert_eq!(endpoint.handed_over(&unsent(&frame), nothing, no_entry, NOW), None);
    }
    let given = segment(SegmentFlags::REPLY, out(), NOW + 300);
    let actions = endpoint.answered(&wanted, Ok(given.clone().into()), NOW);
    let [Action::Write(key, entry), sent @ ..] = &actions[..] else { panic!("{actions:?}") };
    assert_eq!(*key, SegmentKey::of(INTERFACE, out().sender, out().receiver, &given.segment));
    assert_eq!((entry.until, sent.len()), (NOW + 300, QUEUED_MAX));
    let Action::Send { from, to, datagram, .. } = &sent[0] else { panic!("{sent:?}") };
    assert_eq!((*from, *to), (address(OURS), address(THEIRS)));
    let (encapsulation, inner) = Encapsulation::decode(datagram).expect("our own");
    assert_eq!(encapsulation.segment, given.segment);
    let whole = [&frame[..ETHERNET_LEN], inner].concat();
    let packet = Packet::parse(&whole);
    assert_eq!(wire::checksum::is_partial(&whole, &packet), Some(false), "as a card would have finished it");
    assert_eq!(endpoint.open(), 0);
}

#[test]
fn one_flows_segment_says_that_others_need_their_own() {
    let mut endpoint = endpoint();
    let (wanted, _) = ask(&mut endpoint, &syn("10.0.0.1", "10.0.0.2", CLIENT, SERVICE));
    let given = segment(SegmentFlags::SINGLE, out(), NOW + 300);
    let actions = endpoint.answered(&wanted, Ok(given.clone().into()), NOW);
    let [Action::Write(one, _), Action::Write(all, marker), Action::Send { .. }] = &actions[..] else {
        panic!("{actions:?}")
    };
    assert!(one.is_for_one_flow() && !all.is_for_one_flow());
    assert_eq!(*marker, SegmentEntry::by_flow());
}

#[test]
fn a_denial_holds_for_a_while_and_an_authority_out_of_reach_is_asked_again() {
    let mut endpoint = endpoint();
    let frame = syn("10.0.0.1", "10.0.0.2", CLIENT, SERVICE);
    let (wanted, _) = ask(&mut endpoint, &frame);
    let refused = endpoint.answered(&wanted, Err(Refusal::Denied), NOW);
    let key = SegmentKey::to_service(INTERFACE, &read(&frame).expect("a packet"));
    assert_eq!(refused, [Action::Write(key, SegmentEntry::refused(NOW + REFUSED_FOR))]);
    let (again, _) = ask(&mut endpoint, &frame);
    assert_eq!(endpoint.answered(&again, Err(Refusal::Unreachable), NOW), []);
    ask(&mut endpoint, &frame);
}

#[test]
fn an_answer_to_another_question_is_none() {
    let other_network = Given { vni: Vni::new(6).expect("24 bits"), ..segment(SegmentFlags(0), out(), NOW + 300) };
    let mut other_port = segment(SegmentFlags(0), out(), NOW + 300);
    other_port.segment.port = 22;
    let answers = segment(SegmentFlags::RETURN, out(), NOW + 300);
    for given in [other_network, other_port, answers] {
        let mut endpoint = endpoint();
        let (wanted, _) = ask(&mut endpoint, &syn("10.0.0.1", "10.0.0.2", CLIENT, SERVICE));
        let actions = endpoint.answered(&wanted, Ok(given.clone().into()), NOW);
        let [Action::Write(_, entry)] = &actions[..] else { panic!("{actions:?}") };
        assert_eq!(*entry, SegmentEntry::refused(NOW + REFUSED_FOR));
    }
}

#[test]
fn nobody_asks_for_a_sender_that_is_not_the_tenants() {
    let mut endpoint = endpoint();
    let frame = syn("10.0.0.9", "10.0.0.2", CLIENT, SERVICE);
    assert_eq!(endpoint.handed_over(&unsent(&frame), nothing, no_entry, NOW), None);
    assert_eq!((endpoint.spoofed(), endpoint.open()), (1, 0));
    let elsewhere = Unsent { interface: 9, ..unsent(&frame) };
    assert_eq!(endpoint.handed_over(&elsewhere, nothing, no_entry, NOW), None);
}

#[test]
fn one_tenant_keeps_only_so_many_questions_open() {
    let mut endpoint = endpoint();
    let mut asked = 0;
    for port in 1..=2 * OPEN_MAX as u16 {
        let frame = syn("10.0.0.1", "10.0.0.2", CLIENT, port);
        asked += usize::from(endpoint.handed_over(&unsent(&frame), nothing, no_entry, NOW).is_some());
    }
    assert_eq!((asked, endpoint.open()), (OPEN_MAX, OPEN_MAX));
    endpoint.forget(INTERFACE);
    assert_eq!(endpoint.open(), 0);
}

#[test]
fn an_answer_shows_the_segment_that_it_answers() {
    let mut endpoint = endpoint();
    let came = segment(SegmentFlags::REPLY, back(), NOW + 300);
    let consent = Consent::new(&came.encapsulation(Payload::Ipv4), back().sending, back().receiving).expect("it fits");
    let frame = syn("10.0.0.1", "10.0.0.2", SERVICE, CLIENT);
    let noted = SegmentKey::answering(INTERFACE, &read(&frame).expect("a packet"))[1];
    let look_up = |key: &SegmentKey| (*key == noted).then_some(consent);
    let action = endpoint.handed_over(&unsent(&frame), look_up, no_entry, NOW);
    let Some(Action::AskBack(wanted, shown)) = action else { panic!("{action:?}") };
    assert_eq!((shown.segment, shown.ends), (came.segment, back()));
    let given = segment(SegmentFlags::RETURN, out(), NOW + 300);
    let actions = endpoint.answered(&wanted, Ok(given.clone().into()), NOW);
    let [Action::Write(key, entry), Action::Send { .. }] = &actions[..] else { panic!("{actions:?}") };
    assert_eq!(*key, noted);
    // In use and near its end: it is renewed, but only with consent that has arrived since.
    let mut entry = *entry;
    entry.used = NOW + 290;
    assert_eq!(endpoint.renew(key, &entry, look_up, NOW + 290), None);
    let later = segment(SegmentFlags::REPLY, back(), NOW + 600);
    let later = Consent::new(&later.encapsulation(Payload::Ipv4), back().sending, back().receiving).expect("it fits");
    let action = endpoint.renew(key, &entry, |key| (*key == noted).then_some(later), NOW + 290);
    assert!(matches!(action, Some(Action::AskBack(..))), "{action:?}");
    // A segment that has ended is not shown.
    assert!(matches!(
        endpoint.handed_over(&unsent(&syn("10.0.0.1", "10.0.0.2", SERVICE, 1)), |_| Some(consent), no_entry, NOW + 300),
        Some(Action::Ask(..))
    ));
}

#[test]
fn a_fixed_path_is_kept_to_and_shown_for_the_answer() {
    let ends = out();
    let (here, edge, there) = ("2001:db8:1::1", "2001:db8:a::1", "2001:db8:3::1");
    let mut endpoint = Endpoint { addresses: vec![address(here)], ..endpoint() };
    let hops: Vec<_> = [edge, there].iter().map(|hop| hop.parse().expect("a hop")).collect();
    let led = |sending: &str, receiving: &str, flags: SegmentFlags, ends: Ends| {
        let ends = Ends { sending: address(sending), receiving: address(receiving), ..ends };
        let plain = segment(flags.with(SegmentFlags::ROUTED, true), ends, NOW + 300);
        let segment = Segment { count: 2, ..plain.segment };
        Given { segment, proofs: vec![[7; 16]; 2], hops: hops.clone(), ..plain }
    };
    let (wanted, _) = ask(&mut endpoint, &syn("10.0.0.1", "10.0.0.2", CLIENT, SERVICE));
    let given = led(here, there, SegmentFlags::REPLY, ends);
    let actions = endpoint.answered(&wanted, Ok(given.clone().into()), NOW);
    let [Action::Write(_, entry), Action::Send { to, hops: led_by, .. }] = &actions[..] else { panic!("{actions:?}") };
    assert_eq!((to, led_by), (&address(there), &hops), "waiting packets take the path, too");
    let plain = SegmentEntry::given(&given.encapsulation(Payload::Ipv4), address(here), address(there));
    let list = Hops::new(&hops).expect("two");
    assert_eq!(Some(*entry), plain.and_then(|plain| plain.along(&list)));
    assert_eq!(entry.grows(), plain.expect("it fits").grows() + 8 + 2 * 16);

    // At the other endpoint: a segment that arrived along a fixed path is shown with that path.
    let mut endpoint = Endpoint { addresses: vec![address(there)], ..endpoint };
    let came = led(here, there, SegmentFlags::REPLY, back());
    let consent = Consent::new(&came.encapsulation(Payload::Ipv4), address(here), address(there)).expect("it fits");
    let consent = consent.along(&list);
    let frame = syn("10.0.0.1", "10.0.0.2", SERVICE, CLIENT);
    let action = endpoint.handed_over(&unsent(&frame), |_| Some(consent), no_entry, NOW);
    let Some(Action::AskBack(_, shown)) = action else { panic!("{action:?}") };
    assert_eq!(shown, came);
}

#[test]
fn a_segment_in_use_is_renewed_before_it_ends_and_another_is_not() {
    let mut endpoint = endpoint();
    let given = segment(SegmentFlags::REPLY, out(), NOW + 300);
    let key = SegmentKey::of(INTERFACE, out().sender, out().receiver, &given.segment);
    let entry = SegmentEntry::given(&given.encapsulation(Payload::Ipv4), out().sending, out().receiving);
    let mut entry = entry.expect("it fits");
    let soon = NOW + 300 - RENEWED_BEFORE;
    assert_eq!(endpoint.renew(&key, &entry, nothing, soon), None, "nobody uses it");
    entry.used = soon - 1;
    assert_eq!(endpoint.renew(&key, &entry, nothing, soon - 1), None, "there is time");
    let action = endpoint.renew(&key, &entry, nothing, soon);
    let Some(Action::Ask(wanted, request)) = action else { panic!("{action:?}") };
    assert_eq!((request.to.port, request.sender), (SERVICE, out().sender));
    assert_eq!(endpoint.renew(&key, &entry, nothing, soon + 1), None, "it is asked for already");
    let new = segment(SegmentFlags::REPLY, out(), soon + 300);
    let actions = endpoint.answered(&wanted, Ok(new.clone().into()), soon);
    assert!(matches!(&actions[..], [Action::Write(same, entry)] if *same == key && entry.until == soon + 300));
    let refused = SegmentEntry::refused(soon + 1);
    assert_eq!(endpoint.renew(&key, &refused, nothing, soon), None);
}

fn withdrawn(sender: Option<IpAddr>, receiver: IpAddr) -> Withdrawal {
    Withdrawal { vni: Vni::new(5).expect("24 bits"), receiver, sender }
}

#[test]
fn nothing_is_sent_under_a_segment_that_was_withdrawn_before_it_came() {
    let Ends { sender, receiver, .. } = out();
    // The segment is void, for its sender or for all; or it is not, but its answer would be.
    let cases = [withdrawn(Some(sender), receiver), withdrawn(None, receiver), withdrawn(Some(receiver), sender)];
    for what in cases {
        let mut endpoint = endpoint();
        let frame = syn("10.0.0.1", "10.0.0.2", CLIENT, SERVICE);
        let (wanted, _) = ask(&mut endpoint, &frame);
        endpoint.withdraw([(what, NOW + 300)]);
        let flags = SegmentFlags::REPLY.with(SegmentFlags::SINGLE, true);
        assert_eq!(endpoint.answered(&wanted, Ok(segment(flags, out(), NOW + 300).into()), NOW), [], "{what:?}");
        // A segment that ends later was issued by consent given since.
        let (wanted, _) = ask(&mut endpoint, &frame);
        let actions = endpoint.answered(&wanted, Ok(segment(flags, out(), NOW + 301).into()), NOW);
        assert!(matches!(&actions[..], [Action::Write(..), Action::Write(..), Action::Send { .. }]), "{actions:?}");
    }
}

#[test]
fn a_withdrawal_concerns_its_own_network_and_direction_until_it_has_ended() {
    let mut endpoint = endpoint();
    let given = segment(SegmentFlags(0), out(), NOW + 300);
    let key = SegmentKey::of(INTERFACE, out().sender, out().receiver, &given.segment);
    let entry = SegmentEntry::given(&given.encapsulation(Payload::Ipv4), out().sending, out().receiving);
    let entry = entry.expect("it fits");
    let elsewhere = Withdrawal { vni: Vni::new(6).expect("24 bits"), ..withdrawn(None, out().receiver) };
    endpoint.withdraw([(elsewhere, NOW + 300), (withdrawn(Some(out().receiver), out().sender), NOW + 300)]);
    assert!(!endpoint.is_void(&key, &entry), "another network, and a way back that nobody may take");
    endpoint.withdraw([(withdrawn(None, out().receiver), NOW + 300)]);
    assert!(endpoint.is_void(&key, &entry));
    assert!(!endpoint.is_void(&key, &SegmentEntry::refused(NOW + 5)), "there is no segment");
    let elsewhere = SegmentKey::of(9, out().sender, out().receiver, &given.segment);
    assert!(!endpoint.is_void(&elsewhere, &entry), "no tenant of this endpoint");
    endpoint.sweep(NOW + 299);
    assert!(endpoint.is_void(&key, &entry));
    endpoint.sweep(NOW + 300);
    assert!(!endpoint.is_void(&key, &entry));
}

#[test]
fn a_segment_that_was_withdrawn_is_not_shown_for_an_answer() {
    let mut endpoint = endpoint();
    let came = segment(SegmentFlags::REPLY, back(), NOW + 300);
    let consent = Consent::new(&came.encapsulation(Payload::Ipv4), back().sending, back().receiving).expect("it fits");
    let frame = syn("10.0.0.1", "10.0.0.2", SERVICE, CLIENT);
    let key = SegmentKey::answering(INTERFACE, &read(&frame).expect("a packet"))[0];
    assert!(!endpoint.voids_consent(&key, &consent));
    endpoint.withdraw([(withdrawn(Some(back().sender), back().receiver), NOW + 300)]);
    assert!(endpoint.voids_consent(&key, &consent));
    let action = endpoint.handed_over(&unsent(&frame), |_| Some(consent), no_entry, NOW);
    assert!(matches!(action, Some(Action::Ask(..))), "{action:?}");
}

#[test]
fn who_sends_too_long_packets_is_told_how_long_they_may_be() {
    let mut endpoint = endpoint();
    for (from, to) in [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")] {
        let frame = partial(from, CLIENT, to, UDP, SERVICE, &[0; 1400]);
        let long = Unsent { limit: 1392, ..unsent(&frame) };
        let action = endpoint.handed_over(&long, nothing, no_entry, NOW);
        let Some(Action::Tell { interface: INTERFACE, frame: told }) = action else { panic!("{action:?}") };
        let packet = Packet::parse(&told);
        assert_eq!((packet.source, packet.destination), (Some(address(to)), Some(address(from))));
        assert_eq!(told.len(), packet.end);
        let icmp = &told[packet.transport..];
        let (kind, protocol, longest) = if from.contains(':') { ([2, 0], 58, 1280) } else { ([3, 4], 1, 576) };
        assert_eq!((&icmp[..2], packet.protocol), (&kind[..], protocol));
        assert_eq!(icmp[6..8], 1392u16.to_be_bytes());
        assert!(frame[ETHERNET_LEN..].starts_with(&icmp[8..]) && told.len() - ETHERNET_LEN <= longest);
        let pseudo = if from.contains(':') { wire::checksum::pseudo_header(&packet, icmp.len() as u16) } else { 0 };
        assert_eq!(wire::checksum::fold(pseudo + wire::checksum::sum(icmp, false)), 0xffff);
        assert_eq!(too_long::tell(&told, 1000), None, "no error about an error");
    }
}
