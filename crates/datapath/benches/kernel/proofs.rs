//! Cost at XDP of three kinds of packets: those whose proof is remembered, those whose proof has to be computed, and
//! those with a forged proof.

use crate::cases::Table;
use crate::provers::Prover;
use crate::{OF_IPV4, REPEAT, ROUNDS, add, nanoseconds, with_way};
use datapath::probe::Probe;
use datapath::proofs::{Proofs, REMEMBERED};
use engine::verifier::proofs::Outcome;
use measure::{Bound, Figures, Yardstick, alternate, mean_of_middle};
use wire::DropReason;
use zerocopy::{FromBytes, Immutable, IntoBytes};

static FED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/proofs_bench.bpf.o"));

/// Counters of `bpf/proofs_bench.bpf.c`.
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Feed {
    nanoseconds: u64,
    passed: u32,
    reserved: u32,
}

pub fn proofs(probe: &Probe, figures: &mut Figures) {
    let table = Table::read();
    let fed = Prover::with(&table.verifiers[0], |config| Proofs::load_object(FED, config, REMEMBERED));
    let feeds = fed.program.table::<u32, Feed>("proof_feeds").expect("proof_feeds");
    let named = |text: &str| {
        let found = table.first_frames().find(|(name, ..)| name.starts_with(text));
        found.unwrap_or_else(|| panic!("no row {text}")).1.clone()
    };
    let empty = |frame: &[u8]| nanoseconds(REPEAT, |repeat| probe.run_xdp(frame, repeat));
    let run = |program: &str, frame: &[u8], repeat: u32| {
        fed.set_clock(table.now);
        nanoseconds(repeat, |repeat| {
            let ran = fed.program.run_program(program, frame, repeat)?;
            assert_eq!(ran.code, 2, "{program}: the packet passes");
            Ok(ran)
        })
    };
    let [four, six] = ["ipv4: siphash", "ipv6: siphash"].map(named);
    let hits = |frame: &[u8]| {
        run("prove_again", frame, 2);
        alternate(ROUNDS, || run("prove_again", frame, REPEAT), || empty(frame))
    };
    let (four, six) = (hits(&four), hits(&six));
    let beside = Yardstick::new(four.0.clone());
    figures.add("xdp.proof_hit_ipv6_beside_ipv4", "ns", mean_of_middle(&six.0), &beside, OF_IPV4);
    add(figures, "xdp.proof_hit_ns", four, Bound::AtMost(5.0));
    add(figures, "xdp.proof_hit_ns_ipv6", six, Bound::None);
    for (name, row, bound) in [
        ("xdp.proof_miss_ns", "ipv4: siphash", Bound::AtMost(20.0)),
        ("xdp.proof_miss_aes_cmac_ns", "ipv4: aes-cmac", Bound::None),
    ] {
        let frame = named(row);
        let mean = |program: &str| {
            feeds.set(&0, &Feed::default()).expect("proof_feeds");
            run(program, &frame, REPEAT / 4);
            let fed = feeds.get(&0).expect("proof_feeds").expect("an entry");
            assert!(program == "prove_idle" || fed.passed == REPEAT / 4, "every one is computed");
            fed.nanoseconds as f64 / f64::from(REPEAT / 4)
        };
        fed.program.forget().expect("generation");
        let (decisions, empty) = alternate(ROUNDS, || mean("prove_first") - mean("prove_idle"), || empty(&frame));
        add(figures, name, (with_way(&decisions, &empty), empty), bound);
    }
    let plain = Prover::new(&table.verifiers[0], REMEMBERED);
    let forged = named("ipv4: bit 0 of the proof flipped");
    assert_eq!(plain.verify(&forged, table.now).0, Outcome::Drop(DropReason::BadTag));
    let samples = alternate(
        ROUNDS,
        || {
            plain.set_clock(table.now);
            nanoseconds(REPEAT, |repeat| plain.program.run(&forged, repeat))
        },
        || empty(&forged),
    );
    add(figures, "xdp.proof_forged_ns", samples, Bound::None);
}
