//! Takes drop samples out of the kernel's ring, names their interfaces, and logs them.

use crate::drops::{self, Ring};
use crate::{now, view};
use anyhow::{Context, Result};
use datapath::verifier::Verifier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use wire::map::DropSample;

/// A thread that takes drop samples out of the kernel's ring; it ends soon after this is dropped.
pub struct Sampler(Arc<AtomicBool>);

impl Sampler {
    /// Puts samples into `drops` from now on.
    pub fn start(verifier: &Verifier, drops: Arc<Mutex<Ring>>) -> Result<Self> {
        let samples = verifier.samples(move |sample| note(&drops, &sample))?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let poll = move || {
            while !stopped.load(Ordering::Relaxed) {
                // An interrupted poll is no error worth telling.
                let _ = samples.poll(Duration::from_millis(200));
            }
        };
        std::thread::Builder::new().name("drops".into()).spawn(poll).context("cannot start a thread")?;
        Ok(Self(stop))
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn note(drops: &Mutex<Ring>, sample: &DropSample) {
    let name = nix::net::if_::if_indextoname(sample.interface);
    let name = name.map_or_else(|_| sample.interface.to_string(), |name| name.to_string_lossy().into_owned());
    let mut ring = drops.lock().unwrap_or_else(PoisonError::into_inner);
    let view::Drop { reason, client, server, protocol, handle, interface, length, observed, .. } =
        ring.push(drops::read(sample, name, now()));
    let (client, server) = (client.map(tracing::field::display), server.map(tracing::field::display));
    if *observed {
        tracing::info!(reason, client, server, protocol, handle, interface, length, "would drop");
    } else {
        tracing::debug!(reason, client, server, protocol, handle, interface, length, "dropped");
    }
}
