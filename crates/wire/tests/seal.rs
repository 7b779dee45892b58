//! Sealed tunnels: vectors made without this crate's code, and properties that hold for every input (wire.md §9).

use proptest::prelude::*;
use ring::aead::{AES_128_GCM, AES_256_GCM, Aad, Algorithm, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use serde_json::Value;
use std::num::NonZeroU32;
use wire::seal::record::{BLOCK_MAX, HEADER_LEN, LANES, OVERHEAD, PACKET_MAX, PARTS_MAX, TAG_LEN};
use wire::seal::schedule::nonce;
use wire::seal::{
    BlockHead, Close, Compression, Content, Control, Counter, Direction, Handshake, INITIATION_LEN, Index, Initiation,
    Message, Offer, Part, PhaseSecret, RESPONSE_LEN, RecordHeader, Refusal, Response, Share, Shared, Suite, Suites,
    Treatment, Unknown,
};
use wire::{Destination, DropReason, GrantHeader, GrantKey};

fn vectors(name: &str) -> Vec<Value> {
    let all: Value = serde_json::from_str(include_str!("data/seal.json")).expect("seal.json is JSON");
    all[name].as_array().expect("an array").clone()
}

fn text<'a>(case: &'a Value, field: &str) -> &'a str {
    case[field].as_str().unwrap_or_else(|| panic!("{field} is missing in {case}"))
}

fn number(case: &Value, field: &str) -> u64 {
    case[field].as_u64().unwrap_or_else(|| panic!("{field} is missing in {case}"))
}

fn unhex(value: &Value) -> Vec<u8> {
    hex::decode(value.as_str().expect("hex")).expect("hex")
}

fn bytes<const N: usize>(value: &Value) -> [u8; N] {
    unhex(value).try_into().unwrap_or_else(|_| panic!("{value} is not {N} bytes"))
}

fn index(value: &Value) -> Index {
    Index::new(value.as_u64().expect("a number") as u32).expect("not 0")
}

fn destination(case: &Value) -> Destination {
    Destination {
        address: text(case, "address").parse().expect("an address"),
        protocol: 17,
        port: number(case, "port") as u16,
    }
}

fn shared(value: &Value) -> Shared {
    Shared::new(bytes(value)).unwrap_or(Shared::none())
}

fn algorithm(suite: Suite) -> &'static Algorithm {
    match suite {
        Suite::Aes128Gcm => &AES_128_GCM,
        Suite::Aes256Gcm => &AES_256_GCM,
        Suite::ChaCha20Poly1305 => &CHACHA20_POLY1305,
    }
}

/// Returns the AEAD and nonce of a record.
fn ready(secret: &PhaseSecret, direction: Direction, header: &RecordHeader) -> (LessSafeKey, Nonce) {
    let key = secret.record_key(direction, header.content.treatment(), header.suite).expect("it is short");
    let unbound = UnboundKey::new(algorithm(header.suite), key.key()).expect("as long as the suite's keys");
    (LessSafeKey::new(unbound), Nonce::assume_unique_for_key(nonce(&key.iv(), header.counter)))
}

fn sealed(secret: &PhaseSecret, direction: Direction, header: &RecordHeader, body: &[u8]) -> Vec<u8> {
    let (key, nonce) = ready(secret, direction, header);
    let head = header.encode();
    let mut record = [&head[..], body].concat();
    let tag = match header.content.treatment() {
        Treatment::Encrypt => {
            key.seal_in_place_separate_tag(nonce, Aad::from(head), &mut record[HEADER_LEN..]).expect("short")
        }
        Treatment::Authenticate => {
            key.seal_in_place_separate_tag(nonce, Aad::from(&record[..]), &mut []).expect("short")
        }
    };
    record.extend(tag.as_ref());
    record
}

/// Opens a record with the phase's secret.
fn opened(secret: &PhaseSecret, direction: Direction, record: &[u8]) -> Result<Vec<u8>, &'static str> {
    let header = RecordHeader::of(record).ok_or("malformed")?;
    let (key, nonce) = ready(secret, direction, &header);
    let mut rest = record[HEADER_LEN..].to_vec();
    let plain = match header.content.treatment() {
        Treatment::Encrypt => {
            key.open_in_place(nonce, Aad::from(&record[..HEADER_LEN]), &mut rest).map(|it| it.to_vec())
        }
        Treatment::Authenticate => {
            let (clear, tag) = record.split_at(record.len() - TAG_LEN);
            let right = key.open_in_place(nonce, Aad::from(clear), &mut tag.to_vec()).map(drop);
            right.map(|()| clear[HEADER_LEN..].to_vec())
        }
    };
    plain.map_err(|_| "bad_tag")
}

/// Computes the secrets of a row's three phases as either end does.
fn secrets(case: &Value) -> [PhaseSecret; 3] {
    let to = destination(case);
    let key = GrantKey::new(bytes(&case["key"]));
    let first = bytes::<INITIATION_LEN>(&case["initiation"]);
    let answer = bytes::<RESPONSE_LEN>(&case["response"]);
    let handshake = Handshake::new(&key, &first, &to);
    let one = handshake.take(&answer, &shared(&case["shared"][0])).expect("the tag is right");
    let two = NonZeroU32::new(2).expect("not 0");
    let end = |end: usize| (index(&case["indices"][2][end]), bytes::<32>(&case["shares"][2 + end]));
    let (initiator, responder) = (end(0), end(1));
    let next = one.next(&shared(&case["shared"][1]), two, (initiator.0, &initiator.1), (responder.0, &responder.1));
    [handshake.early().expect("it is short"), one, next.expect("it is short")]
}

fn offer(forward: bool, suites: u8, helped: u8) -> Offer {
    Offer { forward, suites: Suites(suites), helped: Suites(helped) }
}

#[test]
fn handshakes_are_as_others_make_them() {
    for case in vectors("handshakes") {
        let to = destination(&case);
        let key = GrantKey::new(bytes(&case["key"]));
        let forward = case["forward"].as_bool().expect("a truth");
        let initiation = Initiation {
            offer: offer(forward, 7, 3),
            index: index(&case["indices"][1][0]),
            time: 1_800_000_000,
            grant: GrantHeader::decode(&bytes(&case["grant"])).expect("a grant"),
            share: bytes(&case["shares"][0]),
        };
        let first = initiation.seal(&key, &to);
        assert_eq!(first, bytes(&case["initiation"]), "{}", text(&case, "name"));
        assert_eq!(Message::read(&first), Some(Message::Initiation(None)));
        let read = Initiation::read(&first, to.address.is_ipv6()).expect("its form is right");
        assert_eq!(read, initiation);
        assert!(read.is_proved(&first, &key, &to));

        let handshake = Handshake::new(&key, &first, &to);
        let given = Ok((index(&case["indices"][1][1]), bytes(&case["shares"][1])));
        let response = Response { offer: offer(forward, 5, 1), to: initiation.index, given };
        let (answer, _) = handshake.respond(&response, &shared(&case["shared"][0])).expect("it is no refusal");
        assert_eq!(answer, bytes(&case["response"]), "{}", text(&case, "name"));
        assert_eq!(Message::read(&answer), Some(Message::Response));
        assert_eq!(Response::read(&answer), Some(response));
        assert_eq!(handshake.is_refused(&answer), None);
        for row in case["refused"].as_array().expect("refusals") {
            let refusal = Refusal::ALL.into_iter().find(|refusal| refusal.name() == text(row, "reason"));
            let given = Err(refusal.expect("a reason"));
            let no = Response { offer: offer(forward, 7, 3), to: initiation.index, given };
            let answer = handshake.refuse(&no).expect("it is a refusal");
            assert_eq!(answer, bytes(&row["response"]), "{row}");
            assert_eq!(Response::read(&answer), Some(no));
            assert_eq!(handshake.is_refused(&answer), refusal);
        }
    }
}

#[test]
fn records_of_every_phase_are_as_others_make_them() {
    for case in vectors("handshakes") {
        let secrets = secrets(&case);
        for row in case["records"].as_array().expect("records") {
            let secret = &secrets[number(row, "phase") as usize];
            let [direction, other] = match number(row, "direction") {
                0 => [Direction::FromInitiator, Direction::FromResponder],
                _ => [Direction::FromResponder, Direction::FromInitiator],
            };
            let record = unhex(&row["record"]);
            let header = RecordHeader::of(&record).unwrap_or_else(|| panic!("{row}"));
            assert_eq!(header.encode(), record[..HEADER_LEN]);
            assert_eq!(header.content.treatment() as u64, number(row, "treatment"));
            assert_eq!(header.suite as u64, number(row, "suite"));
            assert_eq!(u64::from(header.index.get()), number(row, "index"));
            assert_eq!(u64::from(header.counter.lane()), number(row, "lane"));
            assert_eq!(header.counter.number(), number(row, "number"));
            assert_eq!(header.content.is_early(), number(row, "phase") == 0);
            let detail = number(row, "detail");
            match header.content {
                Content::Early { partial } | Content::Packet { partial, .. } => assert_eq!(u64::from(partial), detail),
                Content::Block { part, compression, .. } => {
                    assert_eq!(u64::from(part.number()) | u64::from(part.last) << 7, detail);
                    assert_eq!(compression as u64, number(row, "compression"));
                }
                Content::Control => assert_eq!(detail, 0),
            }
            let body = unhex(&row["body"]);
            assert_eq!(sealed(secret, direction, &header, &body), record, "{row}");
            assert_eq!(opened(secret, direction, &record), Ok(body), "{row}");
            assert_eq!(opened(secret, other, &record), Err("bad_tag"), "the other direction: {row}");
            for (phase, secret) in secrets.iter().enumerate() {
                let opens = opened(secret, direction, &record).is_ok();
                assert_eq!(opens, phase as u64 == number(row, "phase"), "phase {phase}: {row}");
            }
        }
    }
}

#[test]
fn a_record_that_is_wrong_in_any_way_does_not_open() {
    let cases = vectors("wrong_records");
    assert!(cases.len() > 50);
    for case in cases {
        let record = unhex(&case["record"]);
        let outcome = opened(&PhaseSecret::new(bytes(&case["secret"])), Direction::FromInitiator, &record);
        assert_eq!(outcome, Err(text(&case, "outcome")), "{case}");
        let early = RecordHeader::of(&record).is_some_and(|header| header.content.is_early());
        if text(&case, "outcome") == "malformed" {
            assert!(!matches!(Message::read(&record), Some(Message::Record(_))), "{case}");
        } else if !early {
            assert!(matches!(Message::read(&record), Some(Message::Record(_))), "{case}");
        }
    }
}

#[test]
fn an_initiation_that_is_wrong_in_any_way_is_told_apart() {
    for case in vectors("wrong_initiations") {
        let (to, key) = (destination(&case), GrantKey::new(bytes(&case["key"])));
        let datagram = unhex(&case["initiation"]);
        let outcome = match <&[u8; INITIATION_LEN]>::try_from(&datagram[..]) {
            Err(_) => "malformed",
            Ok(first) => match Initiation::read(first, false) {
                Err(reason) => reason.name(),
                Ok(read) if read.is_proved(first, &key, &to) => "right",
                Ok(_) => DropReason::BadTag.name(),
            },
        };
        assert_eq!(outcome, text(&case, "outcome"), "{case}");
    }
}

#[test]
fn a_control_that_is_wrong_in_any_way_is_none() {
    for case in vectors("wrong_controls") {
        assert_eq!(Control::decode(&unhex(&case["control"])), None, "{case}");
    }
    assert_eq!(Control::decode(&[4, 200, 0, 0]), Some(Control::Close(Close::Ended)), "a reason of a later version");
    for case in vectors("handshakes") {
        for control in case["controls"].as_array().expect("controls") {
            let body = unhex(control);
            let read = Control::decode(&body).unwrap_or_else(|| panic!("{control}"));
            assert_eq!(read.encode().bytes(), body);
        }
    }
}

#[test]
fn a_response_that_was_changed_anywhere_gives_no_keys() {
    for case in vectors("handshakes") {
        let key = GrantKey::new(bytes(&case["key"]));
        let first = bytes::<INITIATION_LEN>(&case["initiation"]);
        let handshake = Handshake::new(&key, &first, &destination(&case));
        let shared = shared(&case["shared"][0]);
        let answer = bytes::<RESPONSE_LEN>(&case["response"]);
        assert!(handshake.take(&answer, &shared).is_some());
        for at in 0..RESPONSE_LEN {
            let mut changed = answer;
            changed[at] ^= 0x10;
            assert!(handshake.take(&changed, &shared).is_none(), "byte {at}");
            assert_eq!(handshake.is_refused(&changed), None, "byte {at}");
        }
        let mut other = first;
        other[20] ^= 1;
        assert!(Handshake::new(&key, &other, &destination(&case)).take(&answer, &shared).is_none());
        let elsewhere = Destination { port: 1, ..destination(&case) };
        assert!(Handshake::new(&key, &first, &elsewhere).take(&answer, &shared).is_none());
        assert!(Handshake::new(&GrantKey::new([9; 16]), &first, &destination(&case)).take(&answer, &shared).is_none());
        if case["forward"] == true {
            assert!(handshake.take(&answer, &Shared::none()).is_none(), "the exchange can't be left out");
        }
    }
}

#[test]
fn a_share_that_gives_nothing_in_common_is_refused() {
    assert!(Shared::new([0; 32]).is_none());
    assert!(Shared::new([1; 32]).is_some());
}

/// Returns the rows of the table that follows a clause: number and name.
fn rows(clause: &str) -> Vec<(u8, &'static str)> {
    let document = include_str!("../../../docs/wire.md");
    let text =
        document.split(&format!("**{clause}**")).nth(1).expect("the clause").split("\n**").next().expect("its text");
    text.lines()
        .filter_map(|line| {
            let mut cells = line.split('|').map(str::trim).skip(1);
            Some((cells.next()?.parse().ok()?, cells.next()?.trim_matches('`')))
        })
        .collect()
}

#[test]
fn the_documents_numbers_are_these() {
    assert_eq!(rows("9.3.3"), Suite::ALL.map(|suite| (suite as u8, suite.name())));
    assert_eq!(rows("9.5.3"), Refusal::ALL.map(|refusal| (refusal as u8, refusal.name())));
    let controls = ["rekey", "ping", "pong", "close"];
    assert_eq!(rows("9.8"), [1, 2, 3, 4].map(|kind| (kind, controls[usize::from(kind) - 1])));
    let names = ["initiation", "response", "early", "packet", "block", "control", "unknown"];
    assert_eq!(rows("9.2"), [1, 2, 3, 4, 5, 6, 7].map(|kind| (kind, names[usize::from(kind) - 1])));
    let document = include_str!("../../../docs/wire.md");
    for (index, treatment) in Treatment::ALL.into_iter().enumerate() {
        assert_eq!(treatment as usize, index + 1);
        assert!(document.contains(&format!(" {} `{}`", treatment as u8, treatment.name())), "{treatment:?}");
    }
    for (index, compression) in Compression::ALL.into_iter().enumerate() {
        assert_eq!(compression as usize, index + 1);
        assert!(document.contains(&format!(" {} `{}`", compression as u8, compression.name())), "{compression:?}");
    }
    for close in Close::ALL {
        assert!(document.contains(&format!("{}", close as u8)) && document.contains(&format!("`{}`", close.name())));
    }
    assert_eq!((OVERHEAD, LANES, PACKET_MAX, BLOCK_MAX, PARTS_MAX), (32, 8, 65_575, 65_579, 128));
}

#[test]
fn what_may_stand_behind_an_initiation_is_an_early_record_and_nothing_else() {
    let case = &vectors("handshakes")[0];
    let first = unhex(&case["initiation"]);
    for row in case["records"].as_array().expect("records") {
        let record = unhex(&row["record"]);
        let both = [&first[..], &record].concat();
        let early = RecordHeader::of(&record).expect("a record");
        let is_early = early.content.is_early();
        assert_eq!(Message::read(&both), is_early.then_some(Message::Initiation(Some(early))));
        assert_eq!(
            Message::read(&record),
            (!is_early).then_some(Message::Record(early)),
            "an early record comes never alone"
        );
        assert_eq!(Message::read(&[&first[..], &record[..20]].concat()), None);
    }
    assert_eq!(Message::read(&[&first[..], &first].concat()), None);
}

fn headers() -> impl Strategy<Value = RecordHeader> {
    let treatment = prop::sample::select(Treatment::ALL.to_vec());
    let compression = prop::sample::select(Compression::ALL.to_vec());
    let content = (0..4, treatment, compression, any::<bool>(), 0..PARTS_MAX).prop_map(
        |(kind, treatment, compression, flag, part)| match kind {
            0 => Content::Early { partial: flag },
            1 => Content::Packet { treatment, partial: flag },
            2 => Content::Block { treatment, compression, part: Part::new(part, flag).expect("small") },
            _ => Content::Control,
        },
    );
    let suite = prop::sample::select(Suite::ALL.to_vec());
    (content, suite, 1u32.., 0..LANES, 0..=Counter::NUMBER_MAX).prop_map(|(content, suite, index, lane, number)| {
        let counter = Counter::new(lane, number).expect("in bounds");
        RecordHeader { content, suite, index: Index::new(index).expect("not 0"), counter }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_header_is_read_as_it_was_written(header in headers(), at in 0..HEADER_LEN, change in 1u8..) {
        let mut bytes = header.encode();
        prop_assert_eq!(RecordHeader::decode(&bytes), Some(header));
        bytes[at] ^= change;
        if let Some(read) = RecordHeader::decode(&bytes) {
            prop_assert_eq!(read.encode(), bytes, "one form only");
            prop_assert_ne!(read, header);
        }
    }

    #[test]
    fn noise_is_nothing_or_has_one_form(noise in prop::collection::vec(any::<u8>(), 0..100), kind in 0u8..9) {
        let mut datagram = noise;
        if let Some(first) = datagram.first_mut() {
            *first = kind;
        }
        match Message::read(&datagram) {
            Some(Message::Record(header)) => prop_assert!(datagram.starts_with(&header.encode())),
            Some(Message::Unknown(unknown)) => prop_assert_eq!(&unknown.encode()[..], &datagram[..]),
            _ => {}
        }
        if let Some(read) = Control::decode(&datagram) {
            prop_assert!(matches!(read, Control::Close(_)) || read.encode().bytes() == datagram);
        }
        if let Some((head, packet)) = BlockHead::split(&datagram) {
            prop_assert_eq!([&head.encode()[..], packet].concat(), datagram);
        }
    }

    #[test]
    fn an_unknown_is_read_as_it_was_written(index in 1u32.., lane in 0..LANES, number in 0..=Counter::NUMBER_MAX) {
        let counter = Counter::new(lane, number).expect("in bounds");
        let unknown = Unknown { index: Index::new(index).expect("not 0"), counter };
        prop_assert_eq!(Message::read(&unknown.encode()), Some(Message::Unknown(unknown)));
    }

    #[test]
    fn nonces_of_two_counters_differ(iv: [u8; 12], one in (0..LANES, 0..=Counter::NUMBER_MAX), other in (0..LANES, 0..=Counter::NUMBER_MAX)) {
        let counter = |(lane, number)| Counter::new(lane, number).expect("in bounds");
        prop_assert_eq!(nonce(&iv, counter(one)) == nonce(&iv, counter(other)), one == other);
    }

    #[test]
    fn both_ends_come_to_the_next_phase_and_nobody_else(
        secret: [u8; 32], common: [u8; 32], shares: [Share; 2], indices in (1u32.., 2u32..), phase in 2u32..,
    ) {
        let index = |number| Index::new(number).expect("not 0");
        let next = |secret: [u8; 32], phase, shares: [Share; 2], indices: (u32, u32), common: &Shared| {
            let phase = NonZeroU32::new(phase).expect("not 0");
            let ends = ((index(indices.0), &shares[0]), (index(indices.1), &shares[1]));
            let next = PhaseSecret::new(secret).next(common, phase, ends.0, ends.1).expect("it is short");
            *next.record_key(Direction::FromInitiator, Treatment::Encrypt, Suite::Aes256Gcm).expect("short").key().first_chunk::<32>().expect("32")
        };
        let common = Shared::new(common).unwrap_or(Shared::none());
        let right = next(secret, phase, shares, indices, &common);
        let mut other = secret;
        other[31] ^= 1;
        prop_assert_ne!(next(other, phase, shares, indices, &common), right);
        prop_assert_ne!(next(secret, phase ^ 2, shares, indices, &common), right);
        prop_assert_ne!(next(secret, phase, shares, (indices.0, indices.1 ^ 0x8000_0000 | 1), &common), right);
        let mut changed = shares;
        changed[1][0] ^= 1;
        prop_assert_ne!(next(secret, phase, changed, indices, &common), right);
    }
}
