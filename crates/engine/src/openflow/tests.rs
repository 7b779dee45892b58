use super::matching::{Masked, Match, spans};
use super::message::{Command, FlowMod, Inbox, Malformed, Message, port};
use super::plane::{Fate, Household, Origin, Plane};
use super::rules;
use super::switch::{Event, Lost, Switch};
use crate::agent::Subject;
use crate::agent::frame::tests::partial;
use crate::agent::insertion::Used;
use crate::model::protected::Protected;
use std::time::Duration;
use wire::map::{GrantEntry, GrantSlot, SERVICES_MAX, Service, Services};
use wire::packet::{Packet, TCP, UDP};
use wire::tail::BLOCK_LEN;
use wire::{Carrier, Destination, Epoch, Flags, GrantHeader, Handle, Suite};

const NOW: u32 = 1_800_000_000;
const ALICE: Subject = Subject::of_user(1000);
const MAC: [u8; 6] = [0, 0, 0, 0, 0, 0];
const ORIGIN: Origin = Origin { datapath: 7, port: 3 };

fn protected_at(protocol: u8, port: u16) -> Vec<Protected> {
    let span = Service { protocol, foreign: 0, first_port: port, last_port: port };
    let services = Services { count: 1, spans: [span; SERVICES_MAX] };
    vec![Protected { prefix: "198.51.100.0/24".parse().expect("a prefix"), services }]
}

fn protected() -> Vec<Protected> {
    protected_at(TCP, 22)
}

fn plane() -> Plane {
    let household = Household { devices: [(MAC, ALICE)].into(), others: None };
    let mut plane = Plane::new(household, 1, false);
    plane.protect(protected());
    plane
}

fn syn() -> Vec<u8> {
    partial("192.0.2.1", 4000, "198.51.100.7", TCP, 22, &[])
}

fn grant() -> GrantEntry {
    let header = GrantHeader {
        suite: Suite::Siphash,
        flags: Flags::PORT,
        epoch: Epoch(1).on_wire(),
        prefix_length: 32,
        expires: NOW + 300,
        handle: Handle(9),
    };
    GrantEntry {
        until: NOW + 290,
        used: 0,
        plain: 0,
        suite: Suite::Siphash as u8,
        carrier: Carrier::Tail as u8,
        reserved: 0,
        skew: 0,
        header: header.encode(),
        key: [5; 32],
        spent: 0,
        reserved2: 0,
    }
}

fn slot() -> GrantSlot {
    let to = Destination { address: "198.51.100.7".parse().expect("an address"), protocol: TCP, port: 22 };
    GrantSlot::new(ALICE.number(), &to)
}

#[test]
fn masks_cover_a_span_and_nothing_else() {
    for (first, last) in [(0, 65535), (22, 22), (1, 1023), (1000, 2000), (65535, 65535), (0, 0), (5, 8)] {
        let masks = spans(first, last);
        for port in 0..=u16::MAX {
            let covered = masks.iter().filter(|Masked { value, mask }| port & mask == *value).count();
            assert_eq!(covered, usize::from((first..=last).contains(&port)), "{port} of {first}-{last}");
        }
    }
    assert_eq!(spans(0, 65535), [Masked { value: 0, mask: 0 }]);
}

#[test]
fn messages_come_back_as_they_went_in_whatever_pieces_they_come() {
    let messages = [
        Message::Hello,
        Message::Error { class: 4, code: 6 },
        Message::EchoRequest(b"there?".to_vec()),
        Message::FeaturesReply { datapath: 0x0000_0a00_0000_0001 },
        Message::PacketIn { cookie: 3, in_port: 9, total_len: 4, frame: vec![1, 2, 3, 4] },
        Message::BarrierReply,
    ];
    let bytes: Vec<u8> = (0..).zip(&messages).flat_map(|(xid, message)| message.encode(xid).expect("short")).collect();
    for piece in [1, 7, 1000] {
        let mut inbox = Inbox::default();
        let mut back = Vec::new();
        for piece in bytes.chunks(piece) {
            inbox.push(piece);
            while let Some(next) = inbox.message().expect("messages") {
                back.push(next);
            }
        }
        assert_eq!(back, (0..).zip(messages.clone()).collect::<Vec<_>>());
    }
}

#[test]
fn what_is_no_message_is_refused() {
    let next = |bytes: &[u8]| {
        let mut inbox = Inbox::default();
        inbox.push(bytes);
        inbox.message()
    };
    assert_eq!(next(&[1, 0, 0, 8, 0, 0, 0, 0]), Err(Malformed::Version(1)));
    // A TLS handshake.
    let lost = next(&[22, 3, 1, 0, 200, 1, 0, 0]).expect_err("it is no OpenFlow");
    assert!(lost.to_string().contains("uses TLS"), "{lost}");
    assert_eq!(next(&[4, 0, 0, 7, 0, 0, 0, 0]), Err(Malformed::Short(0)));
    assert_eq!(next(&[4, 10, 0, 12, 0, 0, 0, 0, 0, 0, 0, 0]), Err(Malformed::Short(10)));
    assert_eq!(next(&[4, 10, 0]), Ok(None));
    // A length of the match beyond the message.
    let mut cut = Message::PacketIn { cookie: 0, in_port: 1, total_len: 0, frame: vec![] }.encode(1).expect("short");
    cut[26..28].copy_from_slice(&[0xff, 0xff]);
    assert_eq!(next(&cut), Err(Malformed::Short(10)));
}

/// Compares the encoding byte by byte with §7.2.3; the lab has Open vSwitch read it.
#[test]
fn a_rule_is_written_as_the_specification_says() {
    let matching = Match {
        destination: Some("198.51.100.0/24".parse().expect("a prefix")),
        protocol: Some(TCP),
        destination_port: Some(Masked::exactly(22)),
        tcp_flags: Some(Masked { value: 2, mask: 0x12 }),
        ..Match::default()
    };
    let mut bytes = Vec::new();
    matching.encode(&mut bytes);
    let expected = "0001 002d 8000 0a02 0800 8000 1401 06 8000 1908 c6336400 ffffff00 8000 1c02 0016 ffff 5508 4f4e4600 \
                    0002 0012 000000";
    assert_eq!(hex::encode(bytes), expected.replace(' ', ""));
}

fn all_written(switch: &mut Switch) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    while let Some(event) = switch.poll() {
        if let Event::Write(bytes) = event {
            all.push(bytes);
        }
    }
    all
}

/// Returns the types of the messages sent.
fn written(switch: &mut Switch) -> Vec<u8> {
    all_written(switch).iter().map(|message| message[1]).collect()
}

#[test]
fn an_echo_comes_back_as_it_went_and_an_error_is_told() {
    let mut switch = Switch::new(Duration::ZERO, protected(), 5);
    written(&mut switch);
    let request = Message::EchoRequest(b"there?".to_vec()).encode(77).expect("short");
    switch.received(Duration::ZERO, &request).expect("a message");
    let reply = Message::EchoReply(b"there?".to_vec()).encode(77).expect("short");
    assert_eq!(switch.poll(), Some(Event::Write(reply)));
    say(&mut switch, &Message::Error { class: 4, code: 6 }).expect("a message");
    assert_eq!(switch.poll(), Some(Event::Refused { class: 4, code: 6 }));
    assert!(Event::explain(4, 6).contains("TCP flags"));
    say(&mut switch, &Message::Error { class: 4, code: 6 }).expect("a message");
    assert!(switch.poll().is_none(), "the same again is no news");
    say(&mut switch, &Message::Error { class: 5, code: 1 }).expect("a message");
    assert!(switch.poll().is_some());
}

fn say(switch: &mut Switch, message: &Message) -> Result<(), Lost> {
    switch.received(Duration::ZERO, &message.encode(1).expect("short"))
}

#[test]
fn a_switch_is_greeted_asked_and_given_its_rules() {
    let mut switch = Switch::new(Duration::ZERO, protected(), 5);
    assert_eq!(written(&mut switch), [0]);
    say(&mut switch, &Message::Hello).expect("a message");
    assert_eq!(written(&mut switch), [5, 9]);
    say(&mut switch, &Message::FeaturesReply { datapath: 7 }).expect("a message");
    // Three rules, two for answers, sixteen that remove rules of other generations, a barrier.
    let written_then = all_written(&mut switch);
    let kinds: Vec<u8> = written_then.iter().map(|message| message[1]).collect();
    assert_eq!(kinds, [&[14; 3 + 2 + 16][..], &[20]].concat());
    assert_eq!(switch.datapath(), Some(7));
    // The switch is ready only once it has confirmed this barrier.
    let barrier = u32::from_be_bytes(written_then[21][4..8].try_into().expect("four bytes"));
    let passed = |xid| Message::BarrierReply.encode(xid).expect("short");
    switch.received(Duration::ZERO, &passed(barrier + 1)).expect("a message");
    assert!(!switch.is_ready() && switch.poll().is_none());
    switch.received(Duration::ZERO, &passed(barrier)).expect("a message");
    assert!(switch.is_ready() && switch.poll() == Some(Event::Ready(7)));
    switch.protect(&protected(), &[]);
    assert!(switch.poll().is_none(), "nothing has changed");
    switch.protect(&[], &[]);
    assert_eq!(written(&mut switch).len(), 1 + 2 + 16 + 1);
}

#[test]
fn a_switch_that_falls_silent_is_asked_and_given_up() {
    let at = Duration::from_secs;
    let mut switch = Switch::new(at(0), protected(), 5);
    written(&mut switch);
    switch.tick(at(4)).expect("patience");
    assert!(written(&mut switch).is_empty());
    switch.tick(at(5)).expect("patience");
    assert_eq!(written(&mut switch), [2]);
    switch.received(at(6), &Message::EchoReply(vec![]).encode(1).expect("short")).expect("a message");
    switch.tick(at(11)).expect("patience");
    assert_eq!(written(&mut switch), [2]);
    assert_eq!(switch.tick(at(16)), Err(Lost::Silent));
}

#[test]
fn only_packets_that_our_rules_sent_up_count() {
    let mut switch = Switch::new(Duration::ZERO, protected(), 5);
    let [ours] = &rules::standing(&[], &[], 5)[..] else { panic!("one rule") };
    written(&mut switch);
    let up = |cookie, total_len| Message::PacketIn { cookie, in_port: 1, total_len, frame: vec![0; 60] };
    for (message, counts) in [(up(ours.cookie, 60), true), (up(0, 60), false), (up(ours.cookie, 61), false)] {
        say(&mut switch, &message).expect("a message");
        assert_eq!(switch.poll().is_some(), counts);
    }
}

#[test]
fn answers_of_name_servers_come_up_as_copies_and_are_told_from_first_packets() {
    let mut switch = Switch::new(Duration::ZERO, protected(), 5);
    written(&mut switch);
    for rule in rules::answers(5) {
        assert_eq!((rule.to, rule.copy), (Some(port::NORMAL), true), "nobody waits for the controller");
        assert_eq!((rule.matching.protocol, rule.matching.source_port), (Some(UDP), Some(Masked::exactly(53))));
        let up = Message::PacketIn { cookie: rule.cookie, in_port: 1, total_len: 60, frame: vec![0; 60] };
        say(&mut switch, &up).expect("a message");
        assert_eq!(switch.poll(), Some(Event::Answer(vec![0; 60])));
    }
    let installed = |mut switch: Switch| {
        say(&mut switch, &Message::Hello).expect("a message");
        say(&mut switch, &Message::FeaturesReply { datapath: 7 }).expect("a message");
        all_written(&mut switch).len()
    };
    let new = || Switch::new(Duration::ZERO, protected(), 5);
    assert_eq!(installed(new()), installed(new().without_overhearing()) + rules::answers(5).count());
}

#[test]
fn generations_take_each_others_rules_out() {
    for rule in rules::standing(&[], &[], 0x1234).into_iter().chain(rules::answers(0x1234)) {
        let hits = |generation: u16| {
            rules::without_other_generations(generation)
                .any(|change| rule.cookie & change.cookie_mask == change.cookie & change.cookie_mask)
        };
        assert!(!hits(0x1234));
        assert!((0..=u16::MAX).filter(|other| *other != 0x1234).all(hits));
    }
    let flow = &rules::flow(&Packet::parse(&syn()), false).expect("ports")[0];
    let hits = rules::without_other_generations(0)
        .any(|change| flow.cookie & change.cookie_mask == change.cookie & change.cookie_mask);
    assert!(!hits, "flows live on");
}

#[test]
fn a_first_packet_gets_its_token_and_rules_for_both_directions() {
    let mut plane = plane();
    plane.log_in(ALICE);
    let Fate::Queue(wanted, frame) = plane.elevated(ORIGIN, &syn(), NOW) else { panic!("there is no grant yet") };
    assert_eq!(wanted, slot());
    plane.write(slot(), &grant());
    let Some((origin, Fate::Forward { rules, frames })) = plane.again(ALICE, &frame, NOW) else {
        panic!("it goes down")
    };
    assert_eq!(origin, ORIGIN);
    let [there, back] = &rules[..] else { panic!("both directions") };
    let expected = |change: &FlowMod| (change.command, change.to, change.matching.source, change.matching.destination);
    let (client, server) = ("192.0.2.1/32".parse().ok(), "198.51.100.7/32".parse().ok());
    assert_eq!(expected(there), (Command::Add, Some(port::NORMAL), client, server));
    assert_eq!(expected(back), (Command::Add, Some(port::NORMAL), server, client));
    let [sent] = &frames[..] else { panic!("one frame") };
    assert_eq!(sent.len(), syn().len() + BLOCK_LEN);
}

#[test]
fn who_is_not_logged_in_goes_without_a_token() {
    for (log_in, mac) in [(false, MAC), (true, [2, 0, 0, 0, 0, 9])] {
        let mut plane = plane();
        if log_in {
            plane.log_in(ALICE);
        }
        plane.write(slot(), &grant());
        let mut frame = syn();
        frame[6..12].copy_from_slice(&mac);
        let Fate::Forward { frames, .. } = plane.elevated(ORIGIN, &frame, NOW) else { panic!("it goes on") };
        assert_eq!(frames, [frame]);
    }
}

#[test]
fn a_long_datagram_is_preceded_by_its_token() {
    let mut plane = plane();
    plane.protect(protected_at(UDP, 53));
    plane.log_in(ALICE);
    let to = Destination { address: "198.51.100.7".parse().expect("an address"), protocol: UDP, port: 53 };
    plane.write(GrantSlot::new(ALICE.number(), &to), &grant());
    let frame = partial("192.0.2.1", 4000, "198.51.100.7", UDP, 53, &[b'x'; 1400]);
    let Fate::Forward { rules, frames } = plane.elevated(ORIGIN, &frame, NOW) else { panic!("it goes on") };
    assert_eq!(frames.iter().map(Vec::len).collect::<Vec<_>>(), [14 + 20 + 8 + BLOCK_LEN, frame.len()]);
    // The next datagram comes up again soon, because the token may have been lost.
    assert_eq!(rules[0].hard_timeout, 2);
    let Fate::Forward { rules, .. } = plane.elevated(ORIGIN, &frame, NOW + 2) else { panic!("it goes on") };
    assert_eq!(rules[0].hard_timeout, 15);
}

#[test]
fn a_grant_by_shim_goes_down_in_one() {
    let mut plane = plane();
    plane.protect(protected_at(UDP, 53));
    plane.log_in(ALICE);
    let to = Destination { address: "198.51.100.7".parse().expect("an address"), protocol: UDP, port: 53 };
    let by_shim = GrantEntry { carrier: Carrier::Shim as u8, ..grant() };
    plane.write(GrantSlot::new(ALICE.number(), &to), &by_shim);
    // An empty datagram in the shim precedes a long datagram.
    for (payload, lengths) in [(100, &[42 + 60 + 100][..]), (1400, &[42 + 60, 42 + 1400])] {
        let frame = partial("192.0.2.1", 4000 + payload, "198.51.100.7", UDP, 53, &vec![b'x'; payload.into()]);
        let Fate::Forward { mut frames, .. } = plane.elevated(ORIGIN, &frame, NOW) else { panic!("it goes on") };
        assert_eq!(frames.iter().map(Vec::len).collect::<Vec<_>>(), lengths);
        let first = &mut frames[0];
        let packet = Packet::parse(first);
        let (opened, content) = wire::shim::open(first, &packet).expect("a shim").expect("a whole one");
        assert!(matches!(content, wire::shim::Content::Token(_)));
        let len = wire::shim::strip(first, &opened).expect("it comes off");
        if lengths.len() == 1 {
            assert_eq!(first[..len], frame);
        }
    }
    let counts = plane.counts();
    assert_eq!((counts.elevated, counts.tokens, counts.tokens_alone), (2, 1, 1));
}

#[test]
fn tokens_of_a_pair_have_nonces_that_the_kernel_program_never_uses() {
    let mut plane = plane();
    plane.protect(protected());
    plane.log_in(ALICE);
    let mut pair = GrantEntry { suite: wire::ls::SUITE, carrier: Carrier::Shim as u8, ..grant() };
    pair.header = [7; 16];
    plane.write(slot(), &pair);
    for number in 0..2 {
        let Fate::Forward { frames, .. } = plane.elevated(ORIGIN, &syn(), NOW) else { panic!("it goes on") };
        let (_, content) =
            wire::shim::open(&frames[0], &Packet::parse(&frames[0])).expect("a shim").expect("a whole one");
        let wire::shim::Content::Ls(token) = content else { panic!("{content:?}") };
        assert_eq!(wire::LsToken::decode(&token).nonce2, 0x8000 + number);
        assert_eq!(plane.used(&slot()), Used { last: NOW, spent: u32::from(number) + 1 });
    }
}

#[test]
fn pro_forma_inserts_nothing() {
    let household = Household { others: Some(ALICE), ..Household::default() };
    let mut plane = Plane::new(household, 1, true);
    plane.protect(protected());
    plane.log_in(ALICE);
    let Fate::Forward { rules, frames } = plane.elevated(ORIGIN, &syn(), NOW) else { panic!("it goes on") };
    assert_eq!((rules.len(), frames), (2, vec![syn()]));
}
