//! Ring buffers through which kernel programs send messages to a thread. All messages in a ring buffer have the same
//! type.

use anyhow::{Context, Result};
use libbpf_rs::{MapCore, RingBuffer, RingBufferBuilder};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use zerocopy::FromBytes;

/// Opens ring buffers. When the caller polls the result, it calls `each` with every message that arrives from now on.
///
/// # Errors
///
/// Fails if the kernel cannot map the rings.
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

/// A thread that polls a ring buffer. The thread ends soon after this value is dropped.
pub struct Listener(Arc<AtomicBool>);

impl Listener {
    /// Starts a thread with this name that polls the ring.
    ///
    /// # Errors
    ///
    /// Fails if the thread can't be started.
    pub fn start(name: &str, ring: RingBuffer<'static>) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let poll = move || {
            while !stopped.load(Ordering::Relaxed) {
                // An interrupted poll is harmless: the loop polls again.
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
