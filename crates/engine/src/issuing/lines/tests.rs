use super::*;
use serde_json::Value;
use wire::Destination;
use wire::ask::grant::GrantQuestion;
use wire::ask::{Question, Request};

const HOME: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
const SECOND: u64 = 1_000_000;

fn key(number: u64) -> LineKey {
    LineKey::new([number as u8; 32])
}

/// Creates lines 1 and 2, of holders 10 and 20.
fn lines() -> Lines<u32> {
    let mut lines = Lines::default();
    assert!(lines.give(10, LineNumber(1), key(1), HOME, 0) && lines.give(20, LineNumber(2), key(2), HOME, 0));
    lines
}

fn request(line: u64, counter: u64) -> Request {
    let [sender, sending, receiver] = [[10, 0, 0, 5], [192, 0, 2, 1], [10, 0, 0, 7]].map(IpAddr::from);
    let question = Question {
        network: "blue",
        sender,
        sending,
        receiver,
        protocol: 6,
        port: 22,
        sender_port: 0,
        answers: false,
        path: None,
    };
    key(line).seal_request(LineNumber(line), counter, &question.encode().unwrap()).unwrap()
}

fn read(lines: &mut Lines<u32>, mut datagram: Request, source: IpAddr, now: u64) -> Result<u32, Unanswered> {
    lines.read(&mut datagram, source, now).map(|received| received.holder)
}

#[test]
fn a_request_is_its_holders_and_is_taken_once_from_wherever() {
    let mut lines = lines();
    let mut first = request(1, 1);
    let received = lines.read(&mut first, HOME, 0).unwrap_or_else(|why| panic!("{why:?}"));
    let AnyQuestion::Segment(question) = received.question else { panic!("{:?}", received.question) };
    assert_eq!((received.holder, received.counter, question.port, question.network), (10, 1, 22, "blue"));
    assert_eq!(received.key.bytes(), key(1).bytes());
    assert_eq!(read(&mut lines, request(2, 1), HOME, 0), Ok(20));
    assert_eq!(read(&mut lines, request(1, 2), IpAddr::from([203, 0, 113, 9]), 0), Ok(10));
}

/// A request for a grant names no address of its sender. So the caller has to know whether the source of the datagram
/// is the address that a handshake has proven when the line was opened.
#[test]
fn a_request_from_the_lines_own_address_is_told_from_one_with_another_source() {
    let mut lines = lines();
    let to = Destination { address: IpAddr::from([203, 0, 113, 10]), protocol: 6, port: 22 };
    let question = GrantQuestion { to, consented: true, time: 7 };
    for (counter, source, is_own) in [
        (1, HOME, true),
        (2, IpAddr::from([192, 0, 2, 2]), false),
        (3, IpAddr::from([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]), false),
        (4, HOME, true),
    ] {
        let mut datagram = key(1).seal_request(LineNumber(1), counter, &question.encode().unwrap()).unwrap();
        let received = lines.read(&mut datagram, source, 0).unwrap_or_else(|why| panic!("{why:?}"));
        assert_eq!((received.is_from_opener, received.question), (is_own, AnyQuestion::Grant(question)), "{source}");
    }
}

/// The holder of a line may have left the address, and can still forge it. Somebody else may have it now.
#[test]
fn the_address_of_a_line_counts_for_an_hour() {
    let hour = 3600 * SECOND;
    let mut lines = Lines::default();
    assert!(lines.give(10, LineNumber(1), key(1), HOME, SECOND));
    let is_from_opener = |lines: &mut Lines<u32>, line: u64, counter: u64, now: u64| {
        let mut datagram = request(line, counter);
        lines.read(&mut datagram, HOME, now).map(|received| received.is_from_opener)
    };
    for (counter, now, expected) in [(1, SECOND, true), (2, SECOND + hour, true), (3, 2 * SECOND + hour, false)] {
        assert_eq!(is_from_opener(&mut lines, 1, counter, now), Ok(expected), "at {now}");
    }
    // When it gets another line, the holder shows its address again.
    assert!(lines.give(10, LineNumber(2), key(2), HOME, 3 * SECOND + hour));
    assert_eq!(is_from_opener(&mut lines, 2, 1, 3 * SECOND + 2 * hour), Ok(true));
}

#[test]
fn counters_begin_at_one_and_a_window_is_1024_wide() {
    let mut lines = lines();
    assert_eq!(read(&mut lines, request(1, 0), HOME, 0), Err(Unanswered::Repeated));
    for counter in [1, 1025, 2] {
        assert_eq!(read(&mut lines, request(1, counter), HOME, 0), Ok(10));
    }
    assert_eq!(read(&mut lines, request(1, 1), HOME, 0), Err(Unanswered::Repeated));
    assert_eq!(read(&mut lines, request(1, 1026), HOME, 0), Ok(10));
    assert_eq!(read(&mut lines, request(1, 2), HOME, 0), Err(Unanswered::Repeated), "1024 behind");
    assert_eq!(read(&mut lines, request(1, u64::MAX), HOME, 0), Ok(10), "the last");
    assert_eq!(read(&mut lines, request(1, u64::MAX), HOME, 0), Err(Unanswered::Repeated));
}

/// SVLAN §VII, replay: an eavesdropper's repeated request gets no answer and takes nothing of the holder's share.
#[test]
fn replay_of_a_request_is_not_answered_and_is_charged_to_nobody() {
    let mut lines = lines();
    assert_eq!(read(&mut lines, request(1, 1), HOME, 0), Ok(10));
    for _ in 0..2 * OF_LINE.0 {
        assert_eq!(read(&mut lines, request(1, 1), HOME, 0), Err(Unanswered::Repeated));
    }
    assert_eq!(read(&mut lines, request(1, 2), HOME, 0), Ok(10));
    assert_eq!(read(&mut lines, request(1, 5000), HOME, 0), Ok(10));
    assert_eq!(read(&mut lines, request(1, 3), HOME, 0), Err(Unanswered::Repeated), "too old to tell");
}

/// SVLAN §VII, forged requests: an attacker without the line's key can't use up its counters, its share, or its
/// source's.
#[test]
fn forged_requests_change_nothing() {
    let mut lines = lines();
    for counter in 1..3 * OF_SOURCE.0.max(OF_LINE.0) {
        // Line 2's holder, and an attacker without a line, pretend to be line 1 at its address.
        let mut forged = request(2, counter);
        forged[4..12].copy_from_slice(&1u64.to_be_bytes());
        assert_eq!(read(&mut lines, forged, HOME, 0), Err(Unanswered::Forged));
    }
    let mut last = request(1, u64::MAX);
    last[100] ^= 1;
    assert_eq!(read(&mut lines, last, HOME, 0), Err(Unanswered::Forged));
    assert_eq!(read(&mut lines, request(3, 1), HOME, 0), Err(Unanswered::NoLine));
    assert!(lines.sources.is_empty());
    assert_eq!(read(&mut lines, request(1, 1), HOME, 0), Ok(10));
}

/// SVLAN §VII, denial of capability: a session that floods is slowed down, and others at its address are served.
#[test]
fn denial_of_capability_a_line_has_its_share_and_others_at_its_address_theirs() {
    let mut lines = lines();
    let mut counter = 0;
    let mut flood = |lines: &mut Lines<u32>, now: u64, count: u64| {
        let next = |counter: &mut u64| {
            *counter += 1;
            *counter
        };
        (0..count).filter(|_| read(lines, request(1, next(&mut counter)), HOME, now).is_ok()).count() as u64
    };
    assert_eq!(flood(&mut lines, 0, 6000), OF_LINE.0);
    assert_eq!(read(&mut lines, request(2, 1), HOME, 0), Ok(20));
    assert_eq!(flood(&mut lines, SECOND, 3000), SECOND / OF_LINE.1, "a second later");
}

#[test]
fn all_lines_at_one_address_have_a_share_and_other_addresses_theirs() {
    let mut lines = Lines::default();
    let more = 2 + OF_SOURCE.0 / OF_LINE.0;
    for line in 1..=more {
        assert!(lines.give(line as u32, LineNumber(line), key(line), HOME, 0));
    }
    let mut answered = 0;
    for line in 1..=more {
        answered +=
            (1..=OF_LINE.0).filter(|counter| read(&mut lines, request(line, *counter), HOME, 0).is_ok()).count();
    }
    assert_eq!(answered as u64, OF_SOURCE.0);
    let next = request(more, OF_LINE.0 + 1);
    assert_eq!(read(&mut lines, next, HOME, 0), Err(Unanswered::TooMany));
    let next = request(more, OF_LINE.0 + 2);
    assert_eq!(
        read(&mut lines, next, IpAddr::from([192, 0, 2, 2]), 0),
        Ok(more as u32),
        "what it was refused is not charged"
    );
    // An IPv6 subscriber can use any number of addresses.
    let v6 = |host: u16| IpAddr::from([0x2001, 0xdb8, 0, 1, 0, 0, 0, host]);
    assert_eq!(read(&mut lines, request(more, 4100), v6(1), 0), Ok(more as u32));
    assert_eq!(read(&mut lines, request(more, 4101), v6(2), 0), Ok(more as u32));
    assert_eq!(lines.sources.len(), 3);
}

#[test]
fn sources_take_no_more_memory_than_they_may() {
    let mut lines = lines();
    let source = |n: u64| IpAddr::from((0x0a00_0000 + n as u32).to_be_bytes());
    for n in 0..MOST_SOURCES as u64 {
        let _ = paced(&mut lines.sources, source(n), 0);
    }
    assert_eq!(lines.sources.len(), MOST_SOURCES);
    assert_eq!(read(&mut lines, request(1, 1), HOME, 0), Err(Unanswered::TooMany), "those who are counted go first");
    assert_eq!(read(&mut lines, request(1, 2), HOME, OF_SOURCE.1), Ok(10), "who asks no more is forgotten");
    assert_eq!(lines.sources.len(), 1);
}

#[test]
fn a_line_ends_with_its_holder_or_when_that_gets_another() {
    let mut lines = lines();
    assert!(!lines.give(30, LineNumber(1), key(9), HOME, 0), "it is somebody's");
    assert_eq!(read(&mut lines, request(1, 1), HOME, 0), Ok(10));
    assert!(lines.give(10, LineNumber(3), key(3), HOME, 0));
    assert_eq!(read(&mut lines, request(1, 2), HOME, 0), Err(Unanswered::NoLine));
    assert_eq!(read(&mut lines, request(3, 1), HOME, 0), Ok(10));
    lines.keep(|holder| *holder == 20);
    assert_eq!(lines.len(), 1);
    assert_eq!(read(&mut lines, request(3, 2), HOME, 0), Err(Unanswered::NoLine));
    assert_eq!(read(&mut lines, request(2, 1), HOME, 0), Ok(20));
}

#[test]
fn whatever_is_wrong_with_a_request_is_told_apart() {
    let all: Value = serde_json::from_str(include_str!("../../../../wire/tests/data/ask.json")).unwrap();
    for case in all["wrong_requests"].as_array().unwrap() {
        let bytes = |field: &str| hex::decode(case[field].as_str().unwrap()).unwrap();
        let mut lines = Lines::default();
        let number = LineNumber(case["line"].as_u64().unwrap());
        assert!(lines.give(1, number, LineKey::new(bytes("key").try_into().unwrap()), HOME, 0));
        let mut datagram = bytes("datagram");
        let why = lines.read(&mut datagram, HOME, 0).err().map(Unanswered::name);
        let is_expected =
            why == case["outcome"].as_str() || case["name"] == "sealed for another line" && why == Some("no_line");
        assert!(is_expected, "{why:?}: {case}");
    }
}
