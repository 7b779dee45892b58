use super::*;
use crate::drops::Ring;
use crate::kernel::ChainPosition;
use crate::organisations::{Chain, DEFAULT, Limits, Organisation};
use crate::settings::Flags;
use datapath::Pins;
use datapath::verifier::Sizes;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Instant;
use wire::map::{FlowKey, origin, stage};

/// Number of live flows, so that a sweep takes a while.
const OTHERS: u16 = 4000;
const ROUNDS: u16 = 1000;

/// The pins of a test, removed on drop.
struct Room(Pins);

impl Drop for Room {
    fn drop(&mut self) {
        self.0.remove().expect("its own pins");
    }
}

fn kernel() -> (Kernel, Room) {
    let pins = Pins::new("verifier", &format!("cut-test-{}", std::process::id())).expect("a directory for pins");
    let room = Room(pins.clone());
    let sizes = Sizes { flows: 16_384, grants: 1024, accounts: 1024, replay_buckets: 1024, revoked: 1024, pairs: 1 };
    let settings = crate::settings::Settings { sizes, ..Flags::default().settings() };
    let config = api::VerifierConfig {
        verifier: "edge".into(),
        epoch_length: 3600,
        max_lifetime: 600,
        receivers: Vec::new(),
        revoked: Vec::new(),
        revoked_sessions: Vec::new(),
        pairs: Vec::new(),
        tunnels: Vec::new(),
        authorities: Vec::new(),
        withdrawn: Vec::new(),
        now: now(),
    };
    let (unknown, _) = tokio::sync::mpsc::channel(1);
    let drops = Arc::new(Mutex::new(Ring::default()));
    let alone = Organisation { name: DEFAULT.into(), limits: Limits::default() };
    let position = ChainPosition { chain: Arc::new(Chain::new(vec![alone])), number: 0 };
    (Kernel::load(position, pins, settings, 7, &config, drops, unknown).expect("the programs load"), room)
}

fn key(port: u16) -> FlowKey {
    FlowKey::new([198, 51, 100, 7].into(), port, [203, 0, 113, 10].into(), 22, TCP)
}

/// A background sweep may remove the revocation of an ended grant, but only after the revoked flow.
#[test]
fn a_flow_that_outlived_its_grant_is_cut_whatever_sweeps_run_at_the_time() {
    let (kernel, _room) = kernel();
    let time = now();
    let flow = |handle| Flow {
        handle,
        since: time as u32 - 1000,
        seen: time as u32 + 3600,
        stage: stage::OPEN,
        origin: origin::TOKEN,
        ..Flow::default()
    };
    let flows = &kernel.verifier.flows;
    for port in 0..OTHERS {
        assert!(flows.insert(&key(port), &flow(1)).expect("room"));
    }
    let begun = Instant::now();
    kernel.sweep();
    let sweep = begun.elapsed();
    let done = AtomicBool::new(false);
    let survivors = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                kernel.sweep();
            }
        });
        let outlives = |round: &u16| {
            // Spread the rounds over the duration of a sweep.
            let (begun, until) = (Instant::now(), sweep * u32::from(*round) / u32::from(ROUNDS));
            while begun.elapsed() < until {
                std::hint::spin_loop();
            }
            let (key, handle) = (key(OTHERS + round), 1000 + u64::from(*round));
            flows.insert(&key, &flow(handle)).expect("room");
            kernel.cut(&[RevokedGrant { handle, expires: time as u32 - 500, holder: 0 }], time);
            flows.get(&key).expect("read").is_some()
        };
        let survivors = (0..ROUNDS).filter(outlives).count();
        done.store(true, Ordering::Relaxed);
        survivors
    });
    assert_eq!(survivors, 0, "revoked flows live on");
}
