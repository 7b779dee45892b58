//! The time limit of a turn. It kills every process that this program has started, so that no other test may share it.

use std::process::Command;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use compare::watchdog::Watchdog;

#[test]
fn a_program_and_its_children_end_at_the_limit_and_not_before() {
    drop(Watchdog::start(Duration::from_secs(600)));
    let begun = Instant::now();
    let watchdog = Watchdog::start(Duration::from_millis(300));
    assert!(Command::new("true").status().unwrap().success(), "a program that ends in time is left alone");
    assert!(!watchdog.expired().load(Relaxed));
    // The shell waits for a child of its own.
    let ended = Command::new("sh").args(["-c", "sleep 600; true"]).status().unwrap();
    assert!(!ended.success() && watchdog.expired().load(Relaxed));
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
}
