//! A clock that does not count the time lost on a busy machine.

use std::fs;
use std::time::{Duration, Instant};

/// Measures how long an operation takes, without the time in which tasks of this machine waited for a processor. So a
/// deadline in a test depends on the program and not on the machine's other load. If the kernel has no pressure-stall
/// information (CONFIG_PSI), it measures plain elapsed time.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch {
    started: Instant,
    stalled: Duration,
}

impl Stopwatch {
    /// Starts a stopwatch at 0.
    pub fn start() -> Self {
        Self { started: Instant::now(), stalled: stalled() }
    }

    /// Returns the time since the start, less the time in which some task waited for a processor.
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed().saturating_sub(stalled().saturating_sub(self.stalled))
    }
}

/// Returns how long, since the machine started, some task waited for a processor.
fn stalled() -> Duration {
    let text = fs::read_to_string("/proc/pressure/cpu").unwrap_or_default();
    let some = text.lines().find(|line| line.starts_with("some ")).unwrap_or_default();
    let total = some.rsplit_once("total=").and_then(|(_, total)| total.trim().parse().ok());
    Duration::from_micros(total.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_for_a_processor_does_not_count_and_other_time_does() {
        let (watch, wall) = (Stopwatch::start(), Instant::now());
        assert!(watch.elapsed() <= wall.elapsed() + Duration::from_millis(1));
        // More threads than processors: some thread waits nearly all the time.
        std::thread::scope(|scope| {
            for _ in 0..4 * std::thread::available_parallelism().map_or(1, usize::from) {
                scope.spawn(|| while wall.elapsed() < Duration::from_millis(300) {});
            }
        });
        if fs::metadata("/proc/pressure/cpu").is_ok() {
            assert!(watch.elapsed() < wall.elapsed() - Duration::from_millis(100), "{:?}", watch.elapsed());
        }
    }
}
