//! Return segments that one endpoint passes on to another.

use super::*;
use crate::model::Issued;
use wire::geneve::{HEADER_LEN, OPTION_HEADER_LEN};
use wire::{Epoch, ProofKey};

const KEY: [u8; 32] = [4; 32];
const EPOCH_LENGTH: u32 = 3600;
/// Length of a link header, which the kernel program puts in front of what it passes to user space.
const LINK: [u8; 14] = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x08, 0x00];

fn key() -> ProofKey {
    ProofKey::new(KEY)
}

/// The receiving endpoint, with its keys.
fn there() -> Endpoint {
    let mut endpoint = Endpoint::new(vec![address(THEIRS)]);
    let vni = Vni::new(5).expect("24 bits");
    endpoint.admit(INTERFACE, Tenant { network: "blue".into(), vni, addresses: vec![address("10.0.0.2")] });
    endpoint.hold_keys(vec![(address("192.0.2.1"), Epoch(0), key())], EPOCH_LENGTH);
    endpoint
}

/// The return segment for [`came`].
fn answers(expires: u32) -> Given {
    segment(SegmentFlags::RETURN, back(), expires)
}

fn issued(answers: &Given) -> Issued {
    let answers = answers.passed_on(&key()).expect("it can be passed on");
    Issued { given: segment(SegmentFlags::REPLY, out(), NOW + 300), answers, others: 0 }
}

/// Lets the sending endpoint pass this segment on. Returns the frame that the receiving endpoint's program hands up.
fn passed(issued: Issued) -> Vec<u8> {
    let mut endpoint = endpoint();
    let (wanted, _) = ask(&mut endpoint, &syn("10.0.0.1", "10.0.0.2", CLIENT, SERVICE));
    let given = issued.given.clone();
    let actions = endpoint.answered(&wanted, Ok(issued), NOW);
    let [Action::Write(..), Action::Send { from, to, datagram, .. }, Action::Send { datagram: waited, .. }] =
        &actions[..]
    else {
        panic!("{actions:?}")
    };
    assert_eq!((*from, *to), (address(OURS), address(THEIRS)));
    let (control, inner) = Encapsulation::decode(datagram).expect("our own");
    assert!(control.control && !Encapsulation::decode(waited).expect("our own").0.control, "before the others");
    assert_eq!((control.segment, control.proofs), (given.segment, &given.proofs[..]));
    assert!(control.segment.serves(&Inner::parse(Payload::Ipv4, inner).expect("as verifiers read it")));
    [&LINK[..], inner].concat()
}

/// Looks up the consent that came with the segment of [`issued`].
fn consent(key: &SegmentKey) -> Option<Consent> {
    let came = segment(SegmentFlags::REPLY, out(), NOW + 300);
    let consent = Consent::new(&came.encapsulation(Payload::Ipv4), out().sending, out().receiving);
    (*key == SegmentKey::of(INTERFACE, back().sender, back().receiver, &answers(NOW).segment)).then_some(consent?)
}

#[test]
fn a_first_answer_leaves_without_a_question() {
    let frame = passed(issued(&answers(NOW + 300)));
    let mut endpoint = there();
    let actions = endpoint.controlled(INTERFACE, &frame, consent, no_entry, NOW);
    let [Action::Write(key, entry)] = actions[..] else { panic!("{actions:?}") };
    assert_eq!(key, SegmentKey::of(INTERFACE, back().sender, back().receiver, &answers(NOW).segment));
    assert_eq!((entry.until, entry.endpoints()), (NOW + 300, Some((address(THEIRS), address(OURS)))));
    assert_eq!(endpoint.passed_on(), 1);
    // The kernel program may have looked before the segment came.
    let answer = syn("10.0.0.2", "10.0.0.1", SERVICE, CLIENT);
    let look_up = |of: &SegmentKey| (*of == key).then_some(entry);
    let action = endpoint.handed_over(&unsent(&answer), consent, look_up, NOW);
    let Some(Action::Send { from, to, datagram, .. }) = action else { panic!("{action:?}") };
    assert_eq!((from, to), (address(THEIRS), address(OURS)));
    assert_eq!(Encapsulation::decode(&datagram).expect("our own").0.segment, answers(NOW + 300).segment);
    assert_eq!(endpoint.open(), 0);
    let action = endpoint.handed_over(&unsent(&answer), consent, look_up, NOW + 300);
    assert!(!matches!(action, Some(Action::Send { .. })), "it has ended");
}

#[test]
fn answers_that_wait_for_the_authority_leave_when_the_segment_is_passed_on() {
    let mut endpoint = there();
    let answer = syn("10.0.0.2", "10.0.0.1", SERVICE, CLIENT);
    let action = endpoint.handed_over(&unsent(&answer), consent, no_entry, NOW);
    assert!(matches!(action, Some(Action::AskBack(..))), "{action:?}");
    let actions = endpoint.controlled(INTERFACE, &passed(issued(&answers(NOW + 300))), consent, no_entry, NOW);
    assert!(matches!(&actions[..], [Action::Write(..), Action::Send { .. }]), "{actions:?}");
}

#[test]
fn nothing_is_used_that_is_not_the_authoritys_for_this_endpoint_and_these_packets() {
    let frame = passed(issued(&answers(NOW + 300)));
    let takes = |endpoint: &mut Endpoint, frame: &[u8]| {
        !endpoint.controlled(INTERFACE, frame, consent, no_entry, NOW).is_empty()
    };
    assert!(takes(&mut there(), &frame));
    // Every byte of the message is covered, and so are the addresses.
    for at in LINK.len() + 12..frame.len() {
        let mut other = frame.clone();
        other[at] ^= 1;
        // The ports that precede the message decide only under which segment it came: another client's port is as good.
        let is_clients_port = (LINK.len() + 20..LINK.len() + 22).contains(&at);
        assert_eq!(takes(&mut there(), &other), is_clients_port, "byte {at}");
    }
    for length in 0..frame.len() {
        assert!(!takes(&mut there(), &frame[..length]), "{length} bytes");
    }
    let mut other = there();
    other.hold_keys(vec![(address("192.0.2.1"), Epoch(0), ProofKey::new([5; 32]))], EPOCH_LENGTH);
    assert!(!takes(&mut other, &frame), "it is for another verifier");
    other.hold_keys(vec![(address("192.0.2.1"), Epoch(1), key())], EPOCH_LENGTH);
    assert!(!takes(&mut other, &frame), "the key of another epoch");
    let mut moved = Endpoint::new(vec![address("198.51.100.3")]);
    moved.hold_keys(vec![(address("192.0.2.1"), Epoch(0), key())], EPOCH_LENGTH);
    let vni = Vni::new(5).expect("24 bits");
    moved.admit(INTERFACE, Tenant { network: "blue".into(), vni, addresses: vec![address("10.0.0.2")] });
    assert!(!takes(&mut moved, &frame), "from another endpoint");
    moved = there();
    moved.admit(INTERFACE, Tenant { network: "blue".into(), vni, addresses: vec![address("10.0.0.3")] });
    assert!(!takes(&mut moved, &frame), "another tenant's");
    let unseen = there().controlled(INTERFACE, &frame, nothing, no_entry, NOW);
    assert_eq!(unseen, [], "no packet came with consent to answers");
    let elsewhere = there().controlled(INTERFACE + 1, &frame, consent, no_entry, NOW);
    assert_eq!(elsewhere, []);
}

#[test]
fn what_has_ended_is_withdrawn_or_older_changes_nothing() {
    let ended = passed(issued(&answers(NOW)));
    assert_eq!(there().controlled(INTERFACE, &ended, consent, no_entry, NOW), []);
    let frame = passed(issued(&answers(NOW + 200)));
    let mut endpoint = there();
    endpoint.withdraw([(withdrawn(Some(back().sender), back().receiver), NOW + 200)]);
    assert_eq!(endpoint.controlled(INTERFACE, &frame, consent, no_entry, NOW), []);
    let encapsulated = |given: &Given| {
        SegmentEntry::given(&given.encapsulation(Payload::Ipv4), given.ends.sending, given.ends.receiving)
    };
    for (until, is_used) in [(NOW + 201, false), (NOW + 200, true), (NOW + 199, true)] {
        let known = |_: &SegmentKey| encapsulated(&answers(until));
        let actions = there().controlled(INTERFACE, &frame, consent, known, NOW);
        assert_eq!(!actions.is_empty(), is_used, "{until}");
    }
    // A segment that opens flows is no return segment, even if the authority tagged it.
    let opening = passed(issued(&segment(SegmentFlags::REPLY, back(), NOW + 300)));
    assert_eq!(there().controlled(INTERFACE, &opening, consent, no_entry, NOW), []);
}

/// The senders to a tenant can't fill the table of segments (SVLAN §VII, denial of service).
#[test]
fn a_tenant_gets_only_so_many_segments_passed_on_and_leaves_room_for_others() {
    let mut endpoint = there();
    let vni = Vni::new(5).expect("24 bits");
    endpoint.admit(INTERFACE + 1, Tenant { network: "blue".into(), vni, addresses: vec![address("10.0.0.2")] });
    let flags = SegmentFlags::SINGLE;
    let mut pass = |interface: u32, client: u16, now: u32| {
        let of = |flags: SegmentFlags, ends: Ends| {
            let one = segment(flags, ends, now + 300);
            Given { segment: Segment { sender_port: client, ..one.segment }, ..one }
        };
        let back = of(flags.with(SegmentFlags::RETURN, true), back());
        let came = of(flags.with(SegmentFlags::REPLY, true), out());
        let answers = back.passed_on(&key()).expect("it can be");
        let issued = Issued { given: came.clone(), answers, others: 0 };
        let mut sending = super::endpoint();
        let (wanted, _) = ask(&mut sending, &syn("10.0.0.1", "10.0.0.2", client, SERVICE));
        let actions = sending.answered(&wanted, Ok(issued), now);
        let [Action::Write(..), Action::Write(..), Action::Send { datagram, .. }, ..] = &actions[..] else {
            panic!("{actions:?}")
        };
        let (_, inner) = Encapsulation::decode(datagram).expect("our own");
        let consent = Consent::new(&came.encapsulation(Payload::Ipv4), out().sending, out().receiving);
        let key = SegmentKey::of(interface, back.ends.sender, back.ends.receiver, &back.segment);
        let look_up = |of: &SegmentKey| (*of == key).then_some(consent?);
        let frame = [&LINK[..], inner].concat();
        !endpoint.controlled(interface, &frame, look_up, no_entry, now).is_empty()
    };
    let taken = (1..2000).filter(|client| pass(INTERFACE, *client, NOW)).count();
    assert_eq!(taken, 1024);
    assert!(pass(INTERFACE, 7, NOW), "what is there already takes no room");
    assert!(pass(INTERFACE + 1, 1, NOW), "another tenant");
    assert!(pass(INTERFACE, 3000, NOW + 300), "what has ended makes room");
}

#[test]
fn an_empty_answer_passes_nothing_on() {
    let mut endpoint = endpoint();
    let (wanted, _) = ask(&mut endpoint, &syn("10.0.0.1", "10.0.0.2", CLIENT, SERVICE));
    let given = segment(SegmentFlags::REPLY, out(), NOW + 300);
    let actions = endpoint.answered(&wanted, Ok(given.clone().into()), NOW);
    let [Action::Write(..), Action::Send { datagram, .. }] = &actions[..] else { panic!("{actions:?}") };
    let head = HEADER_LEN + OPTION_HEADER_LEN;
    assert_eq!(datagram[head..head + 16], given.segment.head());
}
