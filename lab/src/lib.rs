//! Networks in one machine: namespaces, links, NATs, processes, handmade packets and captures. Each of these is removed
//! when its value is dropped.
//!
//! The scenarios (demo, benches, end-to-end tests) are built from these parts. They run the product as a process, and
//! observe its output and its effect on packets. Needs root.
#![allow(
    clippy::missing_errors_doc,
    reason = "every function fails if a command or a system call fails; a scenario ends then, and prints the error"
)]

pub mod acceptor;
pub mod arrivals;
pub mod capture;
pub mod counter;
pub mod embedded;
pub mod etcd;
pub mod evidence;
pub mod forge;
pub mod keyring;
pub mod machine;
pub mod middlebox;
pub mod mint;
pub mod nat;
pub mod net;
pub mod nobody;
pub mod outsider;
pub mod package;
pub mod port;
pub mod probe;
pub mod process;
pub mod provider;
pub mod rootfs;
pub mod rough;
pub mod seen;
pub mod segments;
pub mod service;
pub mod switch;
pub mod terminal;
pub mod transfer;
pub mod watch;
pub mod world;

use std::path::PathBuf;
use std::time::{Duration, Instant};

pub use acceptor::Acceptor;
pub use capture::Capture;
pub use etcd::Etcd;
pub use evidence::test;
pub use net::Namespace;
pub use nobody::Nobody;
pub use outsider::{Outsider, Place};
pub use port::Port;
pub use process::Process;
pub use provider::Provider;
pub use rootfs::Rootfs;
pub use world::World;

/// Minimum and maximum pause between two evaluations of a condition.
const PAUSE: [Duration; 2] = [Duration::from_millis(2), Duration::from_millis(100)];

/// Polls `condition` until it is true or `within` has elapsed; returns whether it became true.
///
/// Between two evaluations, pauses for twice as long as the last one took, but at least 2 ms and at most 100 ms. Many
/// conditions start a command, and the program that they wait for needs the processor, too.
#[must_use]
pub fn poll(within: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + within;
    loop {
        let began = Instant::now();
        if condition() {
            return true;
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        let pause = (2 * began.elapsed()).clamp(PAUSE[0], PAUSE[1]);
        std::thread::sleep(pause.min(left));
    }
}

/// Returns the path of the binary under test: `$VOUCHSAFE_BIN`, or else the binary that cargo built next to this one.
///
/// # Panics
/// Panics if there is no such binary; the message says how to build it.
pub fn vouchsafe() -> PathBuf {
    find_vouchsafe().expect("no vouchsafe binary: set VOUCHSAFE_BIN or run `cargo build -p vouchsafe`")
}

/// Returns the folder into which cargo built this program: target/PROFILE.
pub fn built() -> Option<PathBuf> {
    let this = std::env::current_exe().ok()?;
    // target/PROFILE/lab or target/PROFILE/deps/TEST
    let dir = this.parent()?;
    Some(if dir.ends_with("deps") { dir.parent()?.to_owned() } else { dir.to_owned() })
}

/// Returns the path of the binary under test as [`vouchsafe`] does, or `None` if there is none.
pub fn find_vouchsafe() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("VOUCHSAFE_BIN") {
        return Some(path.into());
    }
    let this = std::env::current_exe().expect("a running program has a path");
    // This program is target/PROFILE/lab or target/PROFILE/deps/TEST.
    this.ancestors().skip(1).take(2).map(|dir| dir.join("vouchsafe")).find(|path| path.is_file())
}
