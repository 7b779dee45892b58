//! Ends the programs of a solution that takes too long, so that the run continues without the help of a person.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Time for the clean-up after the programs were ended. After this time, programs that run again are ended, too.
const CLEANUP: Duration = Duration::from_secs(30);

/// A time limit that runs until it is dropped.
pub struct Watchdog {
    expired: Arc<AtomicBool>,
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// Starts the time limit. After `limit`, every process that this process has started is killed.
    pub fn start(limit: Duration) -> Self {
        let (end, ended) = channel();
        let expired = Arc::new(AtomicBool::new(false));
        let flag = expired.clone();
        let thread = thread::spawn(move || watch(limit, &ended, &flag));
        Self { expired, end: Some(end), thread: Some(thread) }
    }

    /// Returns a flag that is set when the limit has passed.
    pub fn expired(&self) -> &AtomicBool {
        &self.expired
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn watch(limit: Duration, ended: &Receiver<()>, expired: &AtomicBool) {
    let mut within = limit;
    while ended.recv_timeout(within) == Err(RecvTimeoutError::Timeout) {
        expired.store(true, Relaxed);
        for pid in descendants() {
            // A process that has ended meanwhile is no error.
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        within = CLEANUP;
    }
}

/// Returns the processes that this process has started, and all their descendants.
fn descendants() -> Vec<i32> {
    let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let pid = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok());
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        // The name in brackets may contain anything; the parent is the second word after it.
        let parent = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1)?.parse().ok());
        if let (Some(pid), Some(parent)) = (pid, parent) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut found = vec![std::process::id().cast_signed()];
    let mut at = 0;
    while let Some(pid) = found.get(at) {
        let next = children.remove(pid).unwrap_or_default();
        found.extend(next);
        at += 1;
    }
    found.split_off(1)
}
