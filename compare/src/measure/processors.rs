//! Processor time and memory of a solution's processes and of the whole machine.

use std::fs;

use lab::Namespace;

use crate::site::processes;

/// Processor time, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Time {
    /// Of the client's processes.
    pub client: f64,
    /// Of the gateway's processes.
    pub server: f64,
    /// Of the whole machine, except idling.
    pub machine: f64,
}

/// Returns the processor time until now.
pub fn time(client: &Namespace, server: &Namespace) -> Time {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let fields = |line: &str| -> Vec<u64> { line.split_whitespace().filter_map(|word| word.parse().ok()).collect() };
    let all = fields(stat.lines().next().unwrap_or_default());
    // user nice system idle iowait irq softirq steal …: idle, waiting and stolen time is not work.
    let busy: u64 = all.iter().enumerate().filter(|(at, _)| [0, 1, 2, 5, 6].contains(at)).map(|(_, ticks)| ticks).sum();
    let ticks = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK).ok().flatten().unwrap_or(100) as f64;
    let of = |namespace: &Namespace| {
        let one = |pid: i32| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let after = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
            let fields: Vec<&str> = after.split_whitespace().collect();
            let field = |at: usize| fields.get(at).and_then(|text| text.parse::<u64>().ok()).unwrap_or_default();
            // utime and stime are the 14th and 15th field of the whole line; two are before the bracket.
            field(11) + field(12)
        };
        processes(namespace).into_iter().map(one).sum::<u64>() as f64 / ticks
    };
    Time { client: of(client), server: of(server), machine: busy as f64 / ticks }
}

/// Returns the resident memory of a namespace's processes in MB, without what several of them share more than once.
pub fn memory(namespace: &Namespace) -> f64 {
    let of = |pid: i32| {
        let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
        let line = text.lines().find(|line| line.starts_with("Pss:")).unwrap_or_default();
        line.split_whitespace().nth(1).and_then(|kilobytes| kilobytes.parse::<f64>().ok()).unwrap_or_default()
    };
    // The sum of no number is -0.
    (processes(namespace).into_iter().map(of).sum::<f64>() * 1024.0 / 1e6).max(0.0)
}
