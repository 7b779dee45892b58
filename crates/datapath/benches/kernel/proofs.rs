//! What a packet with proofs costs at XDP: remembered, computed, forged.

use crate::cases::Table;
use crate::provers::Prover;
use crate::{REPEAT, figure, nanoseconds, side_by_side};
use datapath::probe::Probe;
use datapath::proofs::{Proofs, REMEMBERED};
use engine::proofs::Outcome;
use serde_json::{Map, Value};
use wire::DropReason;
use zerocopy::{FromBytes, Immutable, IntoBytes};

static FED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/proofs_bench.bpf.o"));

/// What `bpf/proofs_bench.bpf.c` counts.
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Feed {
    nanoseconds: u64,
    passed: u32,
    reserved: u32,
}

pub fn proofs(probe: &Probe, figures: &mut Map<String, Value>) {
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
    for (name, row, bound) in
        [("xdp.proof_hit_ns", "ipv4: siphash", Some(5.0)), ("xdp.proof_hit_ns_ipv6", "ipv6: siphash", None)]
    {
        let frame = named(row);
        run("prove_again", &frame, 2);
        let pair = side_by_side(|| run("prove_again", &frame, REPEAT), || empty(&frame));
        figure(figures, name.into(), pair, bound);
    }
    for (name, row, bound) in
        [("xdp.proof_miss_ns", "ipv4: siphash", Some(20.0)), ("xdp.proof_miss_aes_cmac_ns", "ipv4: aes-cmac", None)]
    {
        let frame = named(row);
        let mean = |program: &str| {
            feeds.set(&0, &Feed::default()).expect("proof_feeds");
            run(program, &frame, REPEAT / 4);
            let fed = feeds.get(&0).expect("proof_feeds").expect("an entry");
            assert!(program == "prove_idle" || fed.passed == REPEAT / 4, "every one is computed");
            fed.nanoseconds as f64 / f64::from(REPEAT / 4)
        };
        fed.program.forget().expect("generation");
        let pair = side_by_side(|| mean("prove_first") - mean("prove_idle"), || empty(&frame));
        // An empty decision takes no time by this clock: a packet's way to the program and back is added.
        figure(figures, name.into(), (pair.0 + pair.1, pair.1), bound);
    }
    let plain = Prover::new(&table.verifiers[0], REMEMBERED);
    let forged = named("ipv4: bit 0 of the proof flipped");
    assert_eq!(plain.judge(&forged, table.now).0, Outcome::Drop(DropReason::BadTag));
    let pair = side_by_side(
        || {
            plain.set_clock(table.now);
            nanoseconds(REPEAT, |repeat| plain.program.run(&forged, repeat))
        },
        || empty(&forged),
    );
    figure(figures, "xdp.proof_forged_ns".into(), pair, None);
}
