//! The engine that checks proofs of frames between two interfaces (AF_XDP). A thread moves the frames from one
//! interface to the other, and verifies them in batches. While the thread does not run, no frame gets to the other
//! interface. A frame with a wrong proof never gets there.

use super::{Proving, read};
use crate::settings::ProofsSettings;
use crate::{now, view};
use anyhow::{Context, Result};
use api::Withdrawal;
use datapath::crossing::{self, BATCH, Counts};
use datapath::interface::{Interface, layers};
use engine::verifier::proofs::{self as decision, Outcome, Verifier};
use proofs::Batch;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;
use wire::Vni;
use wire::map::counter;

const _: () = assert!(BATCH == proofs::BATCH, "a batch of frames is verified in one call");
/// Longest delay after which a thread that receives no frames notices a change.
const IDLE: Duration = Duration::from_millis(100);
/// Names of the counters of frames that were lost for reasons other than their proofs.
const LOST: [&str; 3] = ["no_room", "missed", "unserved"];

/// The engine that moves frames between two interfaces. While `running` is `None`, its thread does not run.
pub struct Crossing {
    settings: ProofsSettings,
    /// The state with which the next thread starts. Changes are also sent to the running thread.
    verifier: Mutex<Verifier>,
    counters: Arc<Mutex<Counters>>,
    running: Option<Running>,
    failed: Option<String>,
}

/// A running thread, and the channel that passes changes to it.
struct Running {
    interfaces: [Interface; 2],
    control: Arc<Control>,
    thread: Option<JoinHandle<()>>,
}

struct Control {
    /// The state that the thread has to use from now on.
    verifier: Mutex<Option<Verifier>>,
    changed: AtomicBool,
    ends: AtomicBool,
}

#[derive(Clone)]
struct Counters {
    outcomes: [u64; counter::COUNT as usize],
    /// Numbers of lost frames by reason. The first element counts the frames that earlier threads lost, the second the
    /// frames that the current thread lost.
    lost: [[u64; LOST.len()]; 2],
}

impl Crossing {
    /// Creates an engine without keys, which accepts no proof.
    pub fn new(settings: ProofsSettings, config: &api::VerifierConfig) -> Self {
        let verifier = Verifier::new(settings.endpoints.clone(), config.epoch_length, config.max_lifetime);
        let counters = Counters { outcomes: [0; counter::COUNT as usize], lost: [[0; LOST.len()]; 2] };
        let (verifier, counters) = (Mutex::new(verifier), Arc::new(Mutex::new(counters)));
        Self { settings, verifier, counters, running: None, failed: None }
    }

    fn change(&self, change: impl FnOnce(&mut Verifier)) {
        let mut verifier = lock(&self.verifier);
        change(&mut verifier);
        if let Some(running) = &self.running {
            *lock(&running.control.verifier) = Some(verifier.clone());
            running.control.changed.store(true, Ordering::Release);
        }
    }

    fn interfaces(&self) -> Result<[Interface; 2]> {
        let [one, other] = &self.settings.interfaces[..] else {
            anyhow::bail!("`engine = \"af_xdp\"` requires exactly two interfaces in [proofs]")
        };
        Ok([Interface::named(one)?, Interface::named(other)?])
    }

    fn start(&mut self) -> Result<()> {
        let interfaces = self.interfaces()?;
        let layers = layers()?;
        for interface in &interfaces {
            let layer = layers.iter().find(|layer| layer.index == interface.index);
            anyhow::ensure!(
                layer.is_none_or(|layer| layer.master.is_none()),
                "interface {0} is part of a bridge or bond, which would let frames through while this verifier does \
                 not run: run `ip link set {0} nomaster`",
                interface.name
            );
        }
        let control =
            Control { verifier: Mutex::new(None), changed: AtomicBool::new(false), ends: AtomicBool::new(false) };
        let control = Arc::new(control);
        let (opened, outcome) = mpsc::channel();
        let verifier = lock(&self.verifier).clone();
        let (counters, of) = (self.counters.clone(), (interfaces.clone(), control.clone()));
        let run = move || {
            let ([one, other], control) = of;
            match crossing::Crossing::open(&one, &other) {
                Ok(crossing) => {
                    let _ = opened.send(Ok(()));
                    if let Err(error) = cross(crossing, verifier, &control, &counters) {
                        tracing::error!("frames no longer pass between {} and {}: {error:#}", one.name, other.name);
                    }
                }
                Err(error) => {
                    let _ = opened.send(Err(error));
                }
            }
        };
        let thread = std::thread::Builder::new()
            .name("crossing".into())
            .spawn(run)
            .context("cannot start the thread that moves frames")?;
        self.running = Some(Running { interfaces, control, thread: Some(thread) });
        let opened = outcome.recv().context("the thread that moves frames ended").flatten();
        if opened.is_err() {
            self.running = None;
        }
        opened?;
        self.failed = None;
        let [one, other] = &self.settings.interfaces[..] else { unreachable!("there are two") };
        tracing::info!(one, other, "frames between these interfaces pass through the check of proofs");
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.control.ends.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Proving for Crossing {
    fn write(&self, config: &api::VerifierConfig, keys: &api::EpochKeys) -> Result<()> {
        let decoded = read(keys.proofs.as_ref())?;
        if keys.proofs.is_none() {
            tracing::warn!(
                verifier = config.verifier,
                "no path leads through this verifier of proofs: all packets are dropped"
            );
        }
        self.change(|verifier| {
            withdraw(verifier, &config.withdrawn);
            (verifier.epoch_length, verifier.max_lifetime) = (config.epoch_length, config.max_lifetime);
            verifier.keys = decoded.into_iter().map(|(authority, epoch, key)| ((authority, epoch), key)).collect();
        });
        Ok(())
    }

    fn withdraw(&self, withdrawn: &[Withdrawal]) {
        self.change(|verifier| withdraw(verifier, withdrawn));
    }

    /// Always returns false: withdrawals always find room.
    fn is_closed(&self) -> bool {
        false
    }

    /// Always returns true: the engine applies a new epoch length without a reload.
    fn is_loaded_for(&self, _: &api::VerifierConfig) -> bool {
        true
    }

    fn reload(&mut self, _: &api::VerifierConfig) -> Result<()> {
        Ok(())
    }

    fn attach(&mut self) -> Result<()> {
        self.start()
    }

    fn has_changed(&self) -> bool {
        match (&self.running, self.interfaces()) {
            (Some(running), Ok(there)) => {
                let indexes = |of: &[Interface; 2]| of.each_ref().map(|interface| interface.index);
                let ended = running.thread.as_ref().is_none_or(JoinHandle::is_finished);
                ended || indexes(&running.interfaces) != indexes(&there)
            }
            (running, there) => running.is_some() || there.is_ok(),
        }
    }

    fn attach_changed(&mut self) {
        if !self.has_changed() {
            return;
        }
        self.running = None;
        if let Err(error) = self.start() {
            let text = format!("{error:#}");
            if self.failed.as_ref() != Some(&text) {
                tracing::error!("no frames pass between {}: {text}", self.settings.interfaces.join(" and "));
            }
            self.failed = Some(text);
        }
    }

    /// Does nothing: frames cross only while this process runs.
    fn last(&mut self) -> Result<()> {
        Ok(())
    }

    fn end(&mut self) {
        self.running = None;
    }

    /// Does nothing: the thread reads the clock itself.
    fn set_clock(&self) -> Result<()> {
        Ok(())
    }

    fn sweep(&self) -> Result<()> {
        let ended = now().saturating_sub(u64::from(engine::verifier::CLOCK_SKEW_MAX)) as u32;
        if lock(&self.verifier).withdrawals().any(|(_, until)| until <= ended) {
            self.change(|verifier| verifier.sweep(ended));
        }
        Ok(())
    }

    fn view(&self) -> Result<view::Proofs> {
        let counters = lock(&self.counters).clone();
        let (epochs, epoch_length, withdrawn) = {
            let verifier = lock(&self.verifier);
            let epochs: Vec<u64> = verifier.keys.keys().map(|(_, epoch)| epoch.0).collect();
            (epochs, verifier.epoch_length, verifier.withdrawals().count() as u64)
        };
        let mut view = super::view(&self.settings, &counters.outcomes, epochs.into_iter(), epoch_length);
        view.withdrawn = withdrawn;
        let lost = LOST.iter().enumerate().map(|(place, name)| view::Counter {
            name: (*name).into(),
            packets: counters.lost.iter().map(|lost| lost[place]).sum(),
        });
        view.reasons.extend(lost);
        if let Some(running) = &self.running {
            let interface = |interface: &Interface| view::Interface {
                name: interface.name.clone(),
                hook: "xdp".into(),
                mode: "af_xdp".into(),
                why: "proofs".into(),
                driver: interface.driver(),
            };
            view.interfaces = running.interfaces.iter().map(interface).collect();
        }
        let left = |name: &String| view::NotAttached {
            name: name.clone(),
            why: self.failed.clone().unwrap_or_default(),
            open: true,
        };
        if self.failed.is_some() {
            view.not_attached = self.settings.interfaces.iter().map(left).collect();
        }
        Ok(view)
    }
}

fn withdraw(verifier: &mut Verifier, withdrawn: &[Withdrawal]) {
    for one in withdrawn.iter().filter(|one| u64::from(one.until) >= now()) {
        if let Some(vni) = Vni::new(one.vni) {
            let what = decision::Withdrawal { vni, receiver: one.receiver, sender: one.sender };
            verifier.withdraw(what, one.until);
        }
    }
}

/// Runs the thread's loop until it is stopped or an interface fails.
fn cross(
    mut crossing: crossing::Crossing,
    verifier: Verifier,
    control: &Control,
    counters: &Mutex<Counters>,
) -> Result<()> {
    let mut batch = Batch::new(verifier);
    let mut counted = 0;
    {
        let mut counters = lock(counters);
        for place in 0..LOST.len() {
            counters.lost[0][place] += std::mem::take(&mut counters.lost[1][place]);
        }
    }
    while !control.ends.load(Ordering::Acquire) {
        if control.changed.swap(false, Ordering::AcqRel)
            && let Some(next) = lock(&control.verifier).take()
        {
            batch.change(|verifier| *verifier = next);
        }
        let now = now();
        let moved = crossing.turn(|frames| verify(&mut batch, frames, now as u32, counters))?;
        if counted != now {
            let Counts { no_room, missed, unserved, .. } = crossing.counts()?;
            lock(counters).lost[1] = [no_room, missed, unserved];
            counted = now;
        }
        if moved == 0 {
            crossing.wait(IDLE)?;
        }
    }
    Ok(())
}

/// Verifies a batch; returns a bit mask of the frames that pass.
fn verify(batch: &mut Batch, frames: &mut [&mut [u8]], now: u32, counters: &Mutex<Counters>) -> u32 {
    let mut outcomes = [Outcome::NotOurs; BATCH];
    proofs::fetch(frames);
    batch.verify(frames, now, &mut outcomes);
    let mut counters = lock(counters);
    let mut passes = 0;
    for (place, outcome) in outcomes.iter().take(frames.len()).enumerate() {
        let (index, passing) = match outcome {
            Outcome::NotOurs => (counter::NOT_OURS, 1),
            Outcome::Proved => (counter::TOKEN, 1),
            Outcome::Drop(reason) => (*reason as u32, 0),
        };
        counters.outcomes[index as usize] += 1;
        passes |= passing << place;
    }
    passes
}

/// Locks the mutex, and ignores poison: each value is written as a whole, so it is consistent even if a thread has
/// panicked.
fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
