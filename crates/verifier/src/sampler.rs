//! Reads drop samples from the kernel's ring, adds the names of the interfaces to them, and logs them.

use crate::drops::{self, Ring};
use crate::{now, view};
use anyhow::Result;
use datapath::ring::Listener;
use datapath::verifier::Verifier;
use std::sync::{Arc, Mutex, PoisonError};
use wire::map::DropSample;

/// Adds the kernel's samples of dropped packets to `drops` until the returned listener is dropped. `observes` says
/// whether the verifier lets packets pass although it refuses them.
pub fn start(verifier: &Verifier, drops: Arc<Mutex<Ring>>, observes: bool) -> Result<Listener> {
    Listener::start("drops", verifier.samples(move |sample| note(&drops, &sample, observes))?)
}

fn note(drops: &Mutex<Ring>, sample: &DropSample, observes: bool) {
    let name = nix::net::if_::if_indextoname(sample.interface);
    let name = name.map_or_else(|_| sample.interface.to_string(), |name| name.to_string_lossy().into_owned());
    let mut ring = drops.lock().unwrap_or_else(PoisonError::into_inner);
    let view::Drop { reason, client, server, protocol, handle, interface, length, observed, .. } =
        ring.push(drops::read(sample, name, now()));
    let (client, server) = (client.map(tracing::field::display), server.map(tracing::field::display));
    if *observed {
        tracing::info!(reason, client, server, protocol, handle, interface, length, "would drop");
    } else if observes {
        let why = "dropped, although this verifier only observes: the packet is in a sealed tunnel, or an application \
                   could read a token as data";
        tracing::warn!(reason, client, server, protocol, handle, interface, length, "{why}");
    } else {
        tracing::debug!(reason, client, server, protocol, handle, interface, length, "dropped");
    }
}
