//! Several authorities over one etcd, with everything going wrong that may go wrong, while people work.
//!
//! Three hosts have a member of etcd and an authority each. While agents, tunnel endpoints and other clients request
//! grants and segments, a loop kills, stops and cuts off authorities and members of etcd, and sets clocks of hosts. A
//! seed decides where. Nobody may notice: no admitted flow is lost, no renewal fails, and each new grant is there
//! within three seconds. The history of all grants, revocations and changes of the policy is checked: they happened as
//! if there were a single authority (`history.rs`).
//!
//! The traffic waits for each answer, and its requests begin at intervals. Short runs ask at a lower rate (`load.rs`).
//!
//! `VOUCHSAFE_CLUSTER_MINUTES` sets for how long faults are caused, `VOUCHSAFE_CLUSTER_SEED` which ones, and
//! `VOUCHSAFE_CLUSTER_PACE` how long these intervals are at least, in milliseconds.

mod chance;
mod chaos;
mod clock;
mod copies;
mod history;
mod load;
mod migration;
mod overlay;
mod planted;
mod probers;
mod quota;
mod recovery;
mod rolling;
mod stage;

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use chance::Chance;
use chaos::{FailOvers, Fault};
use history::PARTS;
use lab::world::SOON;
use lab::{poll, test};
use load::Load;
use probers::{Recorder, place};
use stage::{Stage, lock, setting};

/// Lets one scenario run at a time, because each promises times.
pub fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    lock(&TURN)
}

/// Sets a flag when it is dropped, also after a panic, so that threads end.
pub struct Ends<'e>(pub &'e AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

#[test]
fn nobody_notices_faults_and_the_history_is_that_of_one_authority() {
    let _alone = alone();
    test(|| {
        let minutes = setting("VOUCHSAFE_CLUSTER_MINUTES")?;
        let seed = setting("VOUCHSAFE_CLUSTER_SEED")?.unwrap_or_else(|| u64::from(std::process::id()));
        println!("VOUCHSAFE_CLUSTER_SEED={seed}");
        let stage = Stage::new(&[])?;
        let (load, recorder) = (Load::new()?, Recorder::new(overlay::policy(), minutes.is_some()));
        let (began, mut times) = (Instant::now(), FailOvers::default());
        thread::scope(|scope| {
            let _ends = (Ends(&load.end), Ends(&recorder.end));
            load.start(scope, &stage)?;
            for (number, host) in (0..PARTS).flat_map(|number| stage.hosts.iter().map(move |host| (number, host))) {
                recorder.prober(scope, &stage.probe, number, place(host, &stage.ca), move |from| host.was_well(from));
            }
            let (recorder, hosts) = (&recorder, &stage.hosts);
            // Each version of the policy is work for all members (see `load.rs` on the rate of a short run).
            let pause = Duration::from_secs(if minutes.is_some() { 1 } else { 3 });
            let applier = scope.spawn(move || recorder.change_policy(hosts, &mut Chance::new(seed + 1), pause));
            let pause = Duration::from_secs(4);
            let revoker = scope.spawn(move || recorder.revoke(hosts, &mut Chance::new(seed + 2), pause));
            let mut chance = Chance::new(seed);
            let is_due = || minutes.is_none_or(|minutes| began.elapsed() < Duration::from_secs(minutes * 60));
            // Without the variable, each kind of fault comes once.
            let round =
                Fault::ALL.into_iter().cycle().take(if minutes.is_some() { usize::MAX } else { Fault::ALL.len() });
            for fault in round {
                if !is_due() {
                    break;
                }
                let from = Instant::now();
                let lasts = Duration::from_millis(if minutes.is_some() { 2000 + chance.below(8000) } else { 2500 });
                stage.suffer(fault, lasts, &mut chance)?;
                times.note(fault, load.longest_since(from));
            }
            drop((Ends(&load.end), Ends(&recorder.end)));
            for thread in [applier, revoker] {
                thread.join().ok().context("an administrator panicked")??;
            }
            anyhow::Ok(())
        })?;
        times.print(began);
        let (granted, unknown) = recorder.figures();
        let operations = recorder.check()?;
        println!("{operations} operations in the histories, {granted} grants, {unknown} with unknown outcome");
        recorder.is_rich(100)?;
        load.finish()?;
        stage.overlay.check()?;
        same_everywhere(&stage)
    });
}

/// Checks that the members come to have the same rows.
///
/// # Errors
///
/// Fails if their rows still differ after a while.
pub fn same_everywhere(stage: &Stage) -> Result<()> {
    stage.settle()?;
    let mut why = String::new();
    let equal = poll(SOON, || {
        let compared = stage.hosts.iter().map(|host| copies::tables(&host.database())).collect::<Result<Vec<_>>>();
        let compared =
            compared.and_then(|all| all.windows(2).try_for_each(|pair| copies::are_equal(&pair[0], &pair[1])));
        compared.inspect_err(|error| why = format!("{error:#}")).is_ok()
    });
    ensure!(equal, "the members' databases differ: {why}");
    for host in &stage.hosts {
        host.demand(&["audit", "verify"], &[])?;
    }
    Ok(())
}
