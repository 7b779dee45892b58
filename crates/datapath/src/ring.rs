//! Ring buffers of messages from kernel programs: messages of one type, read by a thread.

use anyhow::{Context, Result};
use libbpf_rs::{MapCore, RingBuffer, RingBufferBuilder};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use zerocopy::FromBytes;

/// Opens rings: `each` is called with every message from now on, whenever the result is polled.
///
/// # Errors
///
/// If the kernel cannot map the rings.
pub(crate) fn open<T: FromBytes>(
    rings: &[&dyn MapCore],
    each: impl FnMut(T) + Send + 'static,
) -> Result<RingBuffer<'static>> {
    let mut builder = RingBufferBuilder::new();
    let each = Arc::new(Mutex::new(each));
    for ring in rings {
        let each = each.clone();
        builder.add(*ring, move |bytes| {
            if let Ok((message, _)) = T::read_from_prefix(bytes) {
                each.lock().unwrap_or_else(PoisonError::into_inner)(message);
            }
            0
        })?;
    }
    let names: Vec<_> = rings.iter().map(|ring| ring.name().to_string_lossy().into_owned()).collect();
    builder.build().with_context(|| format!("cannot open the rings {}", names.join(", ")))
}

/// A thread that polls a ring; it ends soon after this is dropped.
pub struct Listener(Arc<AtomicBool>);

impl Listener {
    /// Starts polling, in a thread of this name.
    pub fn start(name: &str, ring: RingBuffer<'static>) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let poll = move || {
            while !stopped.load(Ordering::Relaxed) {
                // An interrupted poll is not worth reporting.
                let _ = ring.poll(Duration::from_millis(200));
            }
        };
        std::thread::Builder::new()
            .name(name.into())
            .spawn(poll)
            .with_context(|| format!("cannot start the thread {name:?}"))?;
        Ok(Self(stop))
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
