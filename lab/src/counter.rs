//! What a kernel's network stack has counted, as `nstat` shows it.

use std::fs;

use anyhow::{Context, Result};

use crate::net::Namespace;

/// Counters of a namespace's stack at one moment.
pub struct Stack(String);

impl Stack {
    /// Reads them.
    pub fn read(namespace: &Namespace) -> Result<Self> {
        // The files show the namespace of the thread that opens them.
        let read = || -> std::io::Result<String> {
            let root = "/proc/thread-self/net";
            Ok(fs::read_to_string(format!("{root}/snmp"))? + &fs::read_to_string(format!("{root}/netstat"))?)
        };
        Ok(Self(namespace.enter(read).context("the stack's counters")?))
    }

    /// One counter, such as `Tcp`'s `RetransSegs`.
    pub fn get(&self, group: &str, name: &str) -> Result<i64> {
        let prefix = format!("{group}: ");
        let mut lines = self.0.lines().filter_map(|line| line.strip_prefix(&prefix));
        let (names, values) = (lines.next(), lines.next());
        let found = names.zip(values).and_then(|(names, values)| {
            let mut pairs = names.split(' ').zip(values.split(' '));
            pairs.find(|(known, _)| *known == name)?.1.parse().ok()
        });
        found.with_context(|| format!("no counter {group}{name}"))
    }

    /// TCP segments sent again.
    pub fn retransmissions(&self) -> Result<i64> {
        self.get("Tcp", "RetransSegs")
    }

    /// TCP segments sent again because they had been lost: without those of which the receiver said that it had them
    /// already (RFC 2883), as happens where a busy machine delays acknowledgements.
    pub fn losses(&self) -> Result<i64> {
        let needless = self.get("TcpExt", "TCPDSACKRecv")? + self.get("TcpExt", "TCPDSACKOfoRecv")?;
        Ok(self.retransmissions()? - needless)
    }

    /// SYNs and SYN-ACKs sent again.
    pub fn syn_retransmissions(&self) -> Result<i64> {
        self.get("TcpExt", "TCPSynRetrans")
    }
}
