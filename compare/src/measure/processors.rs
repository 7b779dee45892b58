//! Processor time and memory of a solution's processes and of the whole machine.

use std::fs;

use lab::Namespace;

use crate::site::processes;

/// Processor time, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Time {
    /// Processor time of the client's processes.
    pub client: f64,
    /// Processor time of the gateway's processes.
    pub server: f64,
    /// Processor time of the whole machine, without idle, I/O wait and stolen time.
    pub machine: f64,
}

/// Returns the processor time used so far.
pub fn time(client: &Namespace, server: &Namespace) -> Time {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let fields = |line: &str| -> Vec<u64> { line.split_whitespace().filter_map(|word| word.parse().ok()).collect() };
    let all = fields(stat.lines().next().unwrap_or_default());
    // The fields are user, nice, system, idle, iowait, irq, softirq, steal, …. Idle, waiting and stolen time is not
    // work.
    let busy: u64 = all.iter().enumerate().filter(|(at, _)| [0, 1, 2, 5, 6].contains(at)).map(|(_, ticks)| ticks).sum();
    let ticks = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK).ok().flatten().unwrap_or(100) as f64;
    let of = |namespace: &Namespace| processes(namespace).into_iter().filter_map(spent).sum();
    Time { client: of(client), server: of(server), machine: busy as f64 / ticks }
}

/// Returns the processor time of a process in seconds, to the nanosecond. The clock in `/proc` is too coarse to tell
/// ciphers apart: it has some fifty ticks in a transfer of half a second.
fn spent(pid: i32) -> Option<f64> {
    let mut clock: libc::clockid_t = 0;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: both pointers refer to variables of the right types that outlive the calls; the second call uses the clock
    // only if the first one has set it.
    let known = unsafe {
        libc::clock_getcpuclockid(pid, &raw mut clock) == 0 && libc::clock_gettime(clock, &raw mut time) == 0
    };
    known.then(|| time.tv_sec as f64 + time.tv_nsec as f64 / 1e9)
}

/// Returns the resident memory of a namespace's processes in MB. Memory that several processes share is divided among
/// them (proportional set size).
pub fn memory(namespace: &Namespace) -> f64 {
    let of = |pid: i32| {
        let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
        let line = text.lines().find(|line| line.starts_with("Pss:")).unwrap_or_default();
        line.split_whitespace().nth(1).and_then(|kilobytes| kilobytes.parse::<f64>().ok()).unwrap_or_default()
    };
    // The sum of no number is -0.
    (processes(namespace).into_iter().map(of).sum::<f64>() * 1024.0 / 1e6).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_process_grows_by_its_work_and_only_by_that() {
        let this = std::process::id().cast_signed();
        let before = spent(this).unwrap();
        let mut work = 0u64;
        while spent(this).unwrap() - before < 0.02 {
            work = std::hint::black_box(work + 1);
        }
        assert!(work > 0 && spent(this).unwrap() - before < 5.0);
        assert_eq!(spent(1 << 22), None, "there is no such process");
    }
}
