//! Records and shares: this crate seals and opens the vectors of wire.md §9, which were made without its code.

use proptest::prelude::*;
use seal::{Batch, ExchangeSecret, Keys};
use serde_json::Value;
use wire::seal::record::{HEADER_LEN, OVERHEAD};
use wire::seal::{Content, Counter, Direction, Index, PhaseSecret, RecordHeader, Shared, Suite, Treatment};

fn vectors(name: &str) -> Vec<Value> {
    let all: Value = serde_json::from_str(include_str!("../../wire/tests/data/seal.json")).expect("seal.json is JSON");
    all[name].as_array().expect("an array").clone()
}

fn unhex(value: &Value) -> Vec<u8> {
    hex::decode(value.as_str().expect("hex")).expect("hex")
}

fn bytes(value: &Value) -> [u8; 32] {
    unhex(value).try_into().expect("32 bytes")
}

fn direction(row: &Value) -> Direction {
    if row["direction"] == 0 { Direction::FromInitiator } else { Direction::FromResponder }
}

#[test]
fn records_are_sealed_and_opened_as_others_do_it() {
    for case in vectors("handshakes") {
        for row in case["records"].as_array().expect("records") {
            let secret = PhaseSecret::new(bytes(&case["secrets"][row["phase"].as_u64().expect("a phase") as usize]));
            let keys = Keys::new(secret.clone(), direction(row));
            let (record, body) = (unhex(&row["record"]), unhex(&row["body"]));
            let header = RecordHeader::of(&record).expect("a record");
            let mut batch = Batch::default();
            let (front, back) = body.split_at(body.len() / 3);
            batch.seal(&keys, &header, &[front, &[], back]).expect("it seals");
            assert_eq!(batch.runs().next().expect("a run").bytes, record, "{row}");
            assert_eq!(keys.open(&header, &mut record.clone()).as_deref(), Some(&body[..]), "{row}");
            let back = Keys::new(secret, direction(row).back());
            assert!(back.open(&header, &mut record.clone()).is_none(), "the other direction: {row}");
        }
    }
}

#[test]
fn a_record_that_is_wrong_in_any_way_does_not_open() {
    for case in vectors("wrong_records") {
        let mut record = unhex(&case["record"]);
        let Some(header) = RecordHeader::of(&record) else {
            assert_eq!(case["outcome"], "malformed", "{case}");
            continue;
        };
        let keys = Keys::new(PhaseSecret::new(bytes(&case["secret"])), Direction::FromInitiator);
        assert!(keys.open(&header, &mut record).is_none(), "{case}");
    }
}

#[test]
fn shares_and_what_they_have_in_common_are_as_others_make_them() {
    for case in vectors("handshakes") {
        let forward = case["forward"] == true;
        let secrets: Vec<_> = case["privates"].as_array().expect("four").iter().collect();
        let secrets: Vec<_> =
            secrets.iter().map(|it| ExchangeSecret::new(bytes(it), forward).expect("a key")).collect();
        for (secret, share) in secrets.iter().zip(case["shares"].as_array().expect("four")) {
            assert_eq!(*secret.share(), bytes(share));
        }
        for (pair, common) in secrets.chunks(2).zip(case["shared"].as_array().expect("two")) {
            let [one, other] = pair else { panic!("two") };
            let right = Shared::new(bytes(common)).unwrap_or(Shared::none());
            for found in [one.shared(other.share()), other.shared(one.share())] {
                assert!(same(&found.expect("the share is one"), &right));
            }
        }
    }
}

/// Reports whether two shared secrets are equal. They can't be compared, so this compares what is derived from them.
fn same(one: &Shared, other: &Shared) -> bool {
    let index = Index::new(1).expect("not 0");
    let key = |shared| {
        let phase = std::num::NonZeroU32::MIN;
        let next = PhaseSecret::new([0; 32]).next(shared, phase, (index, &[1; 32]), (index, &[2; 32])).expect("short");
        next.record_key(Direction::FromInitiator, Treatment::Encrypt, Suite::Aes128Gcm).expect("short").key().to_vec()
    };
    key(one) == key(other)
}

fn header(suite: Suite, treatment: Treatment, number: u64) -> RecordHeader {
    RecordHeader {
        content: Content::Packet { treatment, partial: false },
        suite,
        index: Index::new(9).expect("not 0"),
        counter: Counter::new(1, number).expect("in bounds"),
    }
}

#[test]
fn a_record_without_a_body_is_not_sealed_and_nothing_of_it_is_kept() {
    let keys = Keys::new(PhaseSecret::new([1; 32]), Direction::FromInitiator);
    let header = header(Suite::Aes128Gcm, Treatment::Encrypt, 1);
    let mut batch = Batch::default();
    assert!(batch.seal(&keys, &header, &[&[], &[]]).is_none());
    assert!(batch.is_empty());
    let mut record = [0x55; OVERHEAD];
    assert!(keys.seal(&header, &mut record).is_none());
    assert_eq!(record, [0; OVERHEAD]);
}

#[test]
fn keys_that_rested_are_the_same_after() {
    let mut keys = Keys::new(PhaseSecret::new([1; 32]), Direction::FromInitiator);
    let mut one = [7; OVERHEAD + 100];
    let mut other = one;
    keys.seal(&header(Suite::Aes256Gcm, Treatment::Encrypt, 1), &mut one).expect("it seals");
    keys.rest();
    keys.seal(&header(Suite::Aes256Gcm, Treatment::Encrypt, 1), &mut other).expect("it seals");
    assert_eq!(one, other);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_record_opens_whole_under_its_own_key_and_never_otherwise(
        body in prop::collection::vec(any::<u8>(), 1..2000), suite in prop::sample::select(Suite::ALL.to_vec()),
        treatment in prop::sample::select(Treatment::ALL.to_vec()), number in 0u64..1 << 56, at: prop::sample::Index, bit in 0u32..8,
    ) {
        let secret = |byte| PhaseSecret::new([byte; 32]);
        let keys = Keys::new(secret(1), Direction::FromInitiator);
        let header = header(suite, treatment, number);
        let mut batch = Batch::default();
        batch.seal(&keys, &header, &[&body]).expect("it seals");
        let record = batch.runs().next().expect("a run").bytes.to_vec();
        let clear = &record[HEADER_LEN..HEADER_LEN + body.len()];
        prop_assert_eq!(clear == body, treatment == Treatment::Authenticate || clear == body && body.len() < 4);
        let opened = keys.open(&header, &mut record.clone()).map(|body| body.to_vec());
        prop_assert_eq!(opened, Some(body));
        for (secret, direction) in [(secret(2), Direction::FromInitiator), (secret(1), Direction::FromResponder)] {
            prop_assert!(Keys::new(secret, direction).open(&header, &mut record.clone()).is_none());
        }
        let mut changed = record;
        let at = at.index(changed.len());
        changed[at] ^= 1 << bit;
        if let Some(header) = RecordHeader::of(&changed) {
            prop_assert!(keys.open(&header, &mut changed).is_none(), "byte {}", at);
        }
    }
}
