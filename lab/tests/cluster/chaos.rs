//! Faults, one after the other, each at a host that a seed chooses. The cluster always keeps a majority.

use std::fmt;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lab::middlebox::Rules;
use lab::poll;
use lab::world::SOON;
use nix::sys::signal::Signal::{SIGCONT, SIGSTOP};

use crate::chance::Chance;
use crate::load::KINDS;
use crate::stage::{HOSTS, Host, Stage, lock};

/// Number of seconds by which a clock is wrong.
const JUMP: i64 = 300;

/// A fault at one host, or around it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The authority is killed, and started again.
    AuthorityKilled,
    /// The member of etcd is killed, and started again.
    EtcdKilled,
    /// The member of etcd that leads is killed, and started again.
    LeaderKilled,
    /// The host is cut off from everybody, both ways.
    HostCut,
    /// The authorities don't reach each other, but etcd.
    AuthoritiesCut,
    /// The authority is stopped for a while, and goes on as if no time had passed.
    AuthorityStopped,
    /// The member of etcd is stopped for a while.
    EtcdStopped,
    /// The authority is stopped, so that its watch falls behind, and etcd forgets the changes meanwhile.
    Compacted,
    /// The clock of the authority's host is five minutes ahead for a while.
    ClockAhead,
    /// The clock of the authority's host is five minutes behind for a while.
    ClockBehind,
}

impl Fault {
    /// Every kind of fault.
    pub const ALL: [Self; 10] = [
        Self::LeaderKilled,
        Self::AuthorityKilled,
        Self::HostCut,
        Self::AuthorityStopped,
        Self::EtcdKilled,
        Self::Compacted,
        Self::ClockAhead,
        Self::AuthoritiesCut,
        Self::EtcdStopped,
        Self::ClockBehind,
    ];
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AuthorityKilled => "authority killed",
            Self::EtcdKilled => "etcd killed",
            Self::LeaderKilled => "etcd's leader killed",
            Self::HostCut => "host cut off",
            Self::AuthoritiesCut => "authorities cut from each other",
            Self::AuthorityStopped => "authority stopped",
            Self::EtcdStopped => "etcd stopped",
            Self::Compacted => "compacted under a stopped watcher",
            Self::ClockAhead => "clock five minutes ahead",
            Self::ClockBehind => "clock five minutes behind",
        })
    }
}

impl Stage {
    /// Causes a fault, and heals it after `lasts`. Returns when the cluster works as before.
    pub fn suffer(&self, fault: Fault, lasts: Duration, chance: &mut Chance) -> Result<()> {
        let at = match fault {
            Fault::LeaderKilled => self.leader()?,
            _ => chance.below(self.hosts.len() as u64) as usize,
        };
        let host = &self.hosts[at];
        eprintln!("{:.1?}: {fault}, host {}, for {lasts:.1?}", self.began.elapsed(), at + 1);
        // Cutting authorities from each other is no trouble for any of them.
        if fault != Fault::AuthoritiesCut {
            host.begin_trouble();
        }
        let done = self.cause(fault, at, host, lasts);
        let settled = done.and_then(|()| self.settle());
        host.end_trouble();
        settled.with_context(|| format!("{fault}, host {}", at + 1))
    }

    fn cause(&self, fault: Fault, at: usize, host: &Host, lasts: Duration) -> Result<()> {
        match fault {
            Fault::AuthorityKilled => {
                lock(&host.authority).kill()?;
                sleep(lasts);
                lock(&host.authority).run()
            }
            Fault::EtcdKilled | Fault::LeaderKilled => {
                lock(&host.etcd).kill()?;
                sleep(lasts);
                lock(&host.etcd).run()
            }
            Fault::HostCut => {
                let device = format!("h{}", at + 1);
                let rules = format!("iifname \"{device}\" drop\noifname \"{device}\" drop");
                let _cut = Rules::forward(&self.router, &rules)?;
                sleep(lasts);
                Ok(())
            }
            Fault::AuthoritiesCut => {
                let all = HOSTS.join(", ");
                let rules = format!("ip saddr {{ {all} }} ip daddr {{ {all} }} tcp dport 8443 drop");
                let _cut = Rules::forward(&self.router, &rules)?;
                sleep(lasts);
                Ok(())
            }
            Fault::AuthorityStopped => {
                lock(&host.authority).signal(SIGSTOP)?;
                sleep(lasts);
                lock(&host.authority).signal(SIGCONT)
            }
            Fault::EtcdStopped => {
                lock(&host.etcd).signal(SIGSTOP)?;
                sleep(lasts);
                lock(&host.etcd).signal(SIGCONT)
            }
            Fault::Compacted => {
                lock(&host.authority).signal(SIGSTOP)?;
                sleep(lasts);
                let compacted = self.compact();
                lock(&host.authority).signal(SIGCONT)?;
                compacted
            }
            Fault::ClockAhead => wrong_clock(host, JUMP, lasts),
            Fault::ClockBehind => wrong_clock(host, -JUMP, lasts),
        }
    }

    /// Makes etcd forget every revision but the latest.
    pub fn compact(&self) -> Result<()> {
        let etcd = lock(&self.hosts[0].etcd);
        let revision = etcd.said()?.revision.to_string();
        etcd.ctl(&["compact", &revision]).map(drop)
    }
}

/// Sets the clock of a host's authority to `seconds` after the right time, and back after `lasts`. The authority has to
/// notice it.
fn wrong_clock(host: &Host, seconds: i64, lasts: Duration) -> Result<()> {
    let began = Instant::now();
    host.clock.set(seconds)?;
    let noticed = poll(SOON, || {
        let knows = host.status().is_ok_and(|status| status["standing"]["state"] == "wrong_clock");
        knows && lock(&host.authority).log().contains("the cluster's time")
    });
    sleep(lasts.saturating_sub(began.elapsed()));
    host.clock.set(0)?;
    ensure!(noticed, "the authority does not notice that its clock is wrong: {:?}", host.status());
    Ok(())
}

/// Fail-over times: how long the slowest request took during each fault.
#[derive(Default)]
pub struct FailOvers(Vec<(Fault, Longest)>);

/// The longest wait of each kind of traffic during a fault.
type Longest = [Duration; KINDS.len()];

impl FailOvers {
    /// Notes the longest waits during a fault.
    pub fn note(&mut self, fault: Fault, longest: Longest) {
        self.0.push((fault, longest));
    }

    /// Prints the maximum and the median, of all faults and of each kind.
    pub fn print(&self, began: Instant) {
        let line = |name: &str, waits: Vec<Longest>| {
            for (at, of) in KINDS.into_iter().enumerate() {
                let mut times: Vec<_> = waits.iter().map(|waits| waits[at]).collect();
                times.sort();
                if let (Some(longest), Some(median)) = (times.last(), times.get(times.len() / 2)) {
                    println!("{name}, {of}: {} times, longest wait {longest:.3?}, median {median:.3?}", times.len());
                }
            }
        };
        println!("{:.0?} of faults; a wait is the longest one of its kind during a fault", began.elapsed());
        line("all faults", self.0.iter().map(|(_, waits)| *waits).collect());
        for fault in Fault::ALL {
            let waits = self.0.iter().filter(|(kind, _)| *kind == fault).map(|(_, waits)| *waits).collect();
            line(&fault.to_string(), waits);
        }
    }
}
