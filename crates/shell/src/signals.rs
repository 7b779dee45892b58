//! The signals that end a daemon.

use anyhow::Result;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals SIGINT and SIGTERM, on which a daemon ends. The daemon's pinned kernel programs stay attached.
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    /// Starts to listen for SIGINT and SIGTERM: from here on, these signals no longer kill the process.
    ///
    /// # Errors
    ///
    /// Fails if the process cannot install a signal handler.
    pub fn listen() -> Result<Self> {
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    /// Waits until SIGINT or SIGTERM arrives. Cancel-safe.
    pub async fn any(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
