//! The daemon that sends client keys in band for the authority of the standard world.

use std::path::PathBuf;

use anyhow::Result;

use super::SOON;
use crate::net::Namespace;
use crate::process::Process;

/// A running `vouchsafe transfer` that sends keys on `eth0`.
pub struct Transfer {
    process: Process,
    socket: PathBuf,
}

impl Transfer {
    /// Starts the daemon in the authority's namespace.
    pub fn start(namespace: &Namespace) -> Result<Self> {
        let socket = namespace.dir().join("transfer.sock");
        let mut command = namespace.command(crate::vouchsafe());
        command.args(["transfer", "--interface", "eth0", "--socket"]).arg(&socket);
        let mut process = namespace.start(command)?;
        process.wait_for("listening at", SOON)?;
        Ok(Self { process, socket })
    }

    /// Returns the line by which authority.toml names this daemon.
    pub fn setting(&self) -> String {
        format!("key_transfer = \"{}\"\n", self.socket.display())
    }

    /// Stops the daemon and returns its log.
    pub fn stop(mut self) -> Result<String> {
        self.process.stop()?;
        Ok(self.process.log())
    }
}
