//! Reads the packets that a kernel program has queued. The task runs on the daemon's thread, so that the first packet of
//! a connection does not wait for one thread to wake another. The kernel's buffer bounds how much the task reads before
//! other tasks get their turn.

use anyhow::{Context, Result};
use datapath::agent::QueueBuffer;
use std::future::Future;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::{sleep, timeout};

/// Interval at which the task checks whether it is still needed.
const POLL: Duration = Duration::from_millis(500);

/// An open buffer, and its registration with the runtime. The registration is dropped first.
struct Buffer {
    ready: AsyncFd<OwnedFd>,
    packets: QueueBuffer,
}

impl Buffer {
    fn new(packets: QueueBuffer) -> Result<Self> {
        // SAFETY: the value owns the descriptor, which stays open for as long as the runtime has it.
        let ready = unsafe { AsyncFd::register_with_interest(packets.ready()?, Interest::READABLE) };
        Ok(Self { ready: ready.context("cannot wait for queued packets")?, packets })
    }

    fn consume(&self) {
        if let Err(error) = self.packets.consume() {
            tracing::debug!("{error:#}");
        }
    }
}

/// Waits until the buffer has packets, for [`POLL`] at most.
async fn wait(ready: &AsyncFd<OwnedFd>) {
    if let Ok(Ok(mut ready)) = timeout(POLL, ready.readable()).await {
        // Cleared before the packets are read: packets that come meanwhile make the buffer ready again.
        ready.clear_ready();
    }
}

/// Returns a task that reads packets until `running` becomes false. Whenever `openings` has increased, the task opens
/// the buffer again.
///
/// # Errors
///
/// Fails if the runtime cannot wait for the buffer.
pub fn read(
    packets: QueueBuffer,
    open: impl Fn() -> Result<QueueBuffer> + Send + 'static,
    openings: Arc<AtomicU64>,
    running: Arc<AtomicBool>,
) -> Result<impl Future<Output = ()> + Send> {
    let (mut buffer, mut opened) = (Some(Buffer::new(packets)?), openings.load(Ordering::Relaxed));
    Ok(async move {
        while running.load(Ordering::Relaxed) {
            let wanted = openings.load(Ordering::Relaxed);
            if wanted != opened
                && let Some(old) = buffer.take()
            {
                // Read what is left in the old buffer first. The new buffer can use the slots of the map only after the
                // old one is dropped.
                old.consume();
            }
            opened = wanted;
            match &buffer {
                Some(Buffer { ready, .. }) => wait(ready).await,
                None => match open().and_then(Buffer::new) {
                    Ok(new) => buffer = Some(new),
                    Err(error) => {
                        tracing::warn!(
                            "cannot receive packets that wait for a grant, so the kernel program drops them; trying \
                             again: {error:#}"
                        );
                        sleep(POLL).await;
                    }
                },
            }
            buffer.iter().for_each(Buffer::consume);
        }
    })
}
