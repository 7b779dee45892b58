//! Measures how long it takes to seal and to open a record, for each suite and treatment, in comparison with copying
//! the record's body. Also measures how long it takes to compress a block.
//!
//! Prints one JSON object, which `cargo xtask bench` collects. A batch is 46 records of 1400 bytes, as one
//! `UDP_SEGMENT` call sends them. Rounds that seal and rounds that copy the same bodies alternate.

use aws_lc_rs::aead as aws;
use measure::{Bound, Figures, Yardstick, alternate, mean_of_middle};
use ring::aead as other;
use seal::{Batch, Compressor, Decompressor, Habit, Keys, Mode};
use std::hint::black_box;
use std::time::Instant;
use wire::seal::record::{HEADER_LEN, OVERHEAD, TAG_LEN};
use wire::seal::{
    BlockHead, Compression, Content, Counter, Direction, Index, PhaseSecret, RecordHeader, Suite, Treatment,
};

const BODY: usize = 1400;
const RECORDS: usize = 46;
const ROUNDS: usize = 300;

fn main() {
    let mut figures = Figures::default();
    for suite in Suite::ALL {
        for treatment in Treatment::ALL {
            records(&mut figures, suite, treatment);
        }
        libraries(&mut figures, suite);
    }
    for how in Compression::ALL {
        blocks(&mut figures, how);
    }
    figures.print();
}

fn header(suite: Suite, treatment: Treatment, number: u64) -> RecordHeader {
    RecordHeader {
        content: Content::Packet { treatment, partial: false },
        suite,
        index: Index::new(7).expect("not 0"),
        counter: Counter::new(0, number).expect("in bounds"),
    }
}

/// Measures sealing and opening as a tunnel does it.
fn records(figures: &mut Figures, suite: Suite, treatment: Treatment) {
    let keys = Keys::new(PhaseSecret::new([7; 32]), Direction::FromInitiator);
    let bodies = bodies();
    let mut batch = Batch::default();
    let mut copies = Vec::with_capacity(RECORDS * (BODY + OVERHEAD));
    let mut copy = || {
        copies.clear();
        bodies.iter().for_each(|body| copies.extend_from_slice(black_box(body)));
        black_box(&mut copies);
    };
    let mut number = 0;
    let mut seal = || {
        batch.clear();
        for body in &bodies {
            number += 1;
            batch.seal(&keys, &header(suite, treatment, number), &[black_box(body)]).expect("it seals");
        }
        black_box(&mut batch);
    };
    let name = format!("seal.{}.{}", suite.name(), treatment.name());
    figure(figures, format!("{name}.seal_ns"), RECORDS, &mut seal, &mut copy);
    let mut sealed: Vec<_> = (0..RECORDS).map(|_| vec![0; BODY + OVERHEAD]).collect();
    let originals = bodies.iter().enumerate().map(|(number, body)| {
        let mut record = [&[0; HEADER_LEN], &body[..], &[0; TAG_LEN]].concat();
        keys.seal(&header(suite, treatment, number as u64), &mut record).expect("it seals");
        record
    });
    let originals: Vec<_> = originals.collect();
    // Opening is in place, so each round opens copies; the time for copying is the yardstick's.
    let mut open = || {
        for (record, original) in sealed.iter_mut().zip(&originals) {
            record.copy_from_slice(original);
            let header = RecordHeader::of(record).expect("a record");
            assert!(keys.open(&header, record).is_some(), "every tag is right");
        }
    };
    figure(figures, format!("{name}.open_ns"), RECORDS, &mut open, &mut copy);
}

/// Measures the AEAD alone, in the library in use and in the one that TLS uses.
fn libraries(figures: &mut Figures, suite: Suite) {
    let key = vec![7; suite.key_len()];
    let (mine, theirs) = match suite {
        Suite::Aes128Gcm => (&aws::AES_128_GCM, &other::AES_128_GCM),
        Suite::Aes256Gcm => (&aws::AES_256_GCM, &other::AES_256_GCM),
        Suite::ChaCha20Poly1305 => (&aws::CHACHA20_POLY1305, &other::CHACHA20_POLY1305),
    };
    let mine = aws::LessSafeKey::new(aws::UnboundKey::new(mine, &key).expect("its length"));
    let theirs = other::LessSafeKey::new(other::UnboundKey::new(theirs, &key).expect("its length"));
    let mut text = vec![1; BODY];
    let mut copied = vec![1; BODY];
    let mut copy = || copied.copy_from_slice(black_box(&[1; BODY]));
    let name = format!("seal.{}.library", suite.name());
    let nonce = [3; 12];
    let mut seal = || {
        let nonce = aws::Nonce::assume_unique_for_key(nonce);
        let _ =
            black_box(mine.seal_in_place_separate_tag(nonce, aws::Aad::from([0; 16]), &mut text).expect("it seals"));
    };
    figure(figures, format!("{name}.aws_lc_encrypt_ns"), 1, &mut seal, &mut copy);
    let clear = vec![1; BODY + HEADER_LEN];
    let mut seal = || {
        let nonce = aws::Nonce::assume_unique_for_key(nonce);
        let _ = black_box(mine.seal_in_place_separate_tag(nonce, aws::Aad::from(&clear), &mut []).expect("it seals"));
    };
    figure(figures, format!("{name}.aws_lc_authenticate_ns"), 1, &mut seal, &mut copy);
    let mut text = vec![1; BODY];
    let mut seal = || {
        let nonce = other::Nonce::assume_unique_for_key(nonce);
        let _ = black_box(
            theirs.seal_in_place_separate_tag(nonce, other::Aad::from([0; 16]), &mut text).expect("it seals"),
        );
    };
    figure(figures, format!("{name}.ring_encrypt_ns"), 1, &mut seal, &mut copy);
    let mut seal = || {
        let nonce = other::Nonce::assume_unique_for_key(nonce);
        let _ =
            black_box(theirs.seal_in_place_separate_tag(nonce, other::Aad::from(&clear), &mut []).expect("it seals"));
    };
    figure(figures, format!("{name}.ring_authenticate_ns"), 1, &mut seal, &mut copy);
}

/// Measures compressing and decompressing a super-packet of text from docs/wire.md.
fn blocks(figures: &mut Figures, how: Compression) {
    let text = include_str!("../../../docs/wire.md").as_bytes();
    let mut block = BlockHead { segment: 1400, partial: true }.encode().to_vec();
    block.extend(&text[..60_000.min(text.len())]);
    let mut compressor = Compressor::new().expect("memory");
    let mut decompressor = Decompressor::new().expect("memory");
    let short = compressor.compress(Mode::Always, &mut Habit::default(), how, &block).expect("text shrinks").to_vec();
    let mut copied = vec![0; block.len()];
    let mut copy = || copied.copy_from_slice(black_box(&block));
    let name = format!("seal.compress.{}", how.name());
    let mut pack = || {
        black_box(compressor.compress(Mode::Auto, &mut Habit::default(), how, black_box(&block)));
    };
    figure(figures, format!("{name}.pack_ns"), 1, &mut pack, &mut copy);
    let mut unpack = || {
        black_box(decompressor.decompress(how, black_box(&short)));
    };
    figure(figures, format!("{name}.unpack_ns"), 1, &mut unpack, &mut copy);
    let value = block.len() as f64 / short.len() as f64;
    figures.count(&format!("{name}.shrinks"), "times", value, Bound::None);
}

fn bodies() -> Vec<Vec<u8>> {
    (0..RECORDS).map(|number| (0..BODY).map(|at| (at * 7 + number) as u8).collect()).collect()
}

/// Returns nanoseconds per item, if one call handles `count` items.
fn pass(count: usize, call: &mut impl FnMut()) -> f64 {
    // Short calls are timed several at a time.
    let calls = (RECORDS / count).max(1);
    let begun = Instant::now();
    (0..calls).for_each(|_| call());
    begun.elapsed().as_nanos() as f64 / (calls * count) as f64
}

fn figure(figures: &mut Figures, name: String, count: usize, call: &mut impl FnMut(), copy: &mut impl FnMut()) {
    let (values, yardstick) = alternate(ROUNDS, || pass(count, call), || pass(count, copy));
    figures.add(&name, "ns", mean_of_middle(&values), &Yardstick::new(yardstick), Bound::None);
}
