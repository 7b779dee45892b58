//! Counters of a kernel's network stack, as `nstat` shows them.

use std::fs;

use anyhow::{Context, Result};

use crate::net::Namespace;

/// Counters of a namespace's network stack at one moment.
pub struct Stack(String);

impl Stack {
    /// Reads the counters of `namespace`.
    pub fn read(namespace: &Namespace) -> Result<Self> {
        // Files under /proc/thread-self/net show the namespace of the thread that opens them.
        let read = || -> std::io::Result<String> {
            let root = "/proc/thread-self/net";
            Ok(fs::read_to_string(format!("{root}/snmp"))? + &fs::read_to_string(format!("{root}/netstat"))?)
        };
        Ok(Self(namespace.enter(read).context("cannot read the network stack's counters")?))
    }

    /// Returns the counter `name` of the group `group`, for example `RetransSegs` of `Tcp`.
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

    /// Returns the number of retransmitted TCP segments.
    pub fn retransmissions(&self) -> Result<i64> {
        self.get("Tcp", "RetransSegs")
    }

    /// Returns the number of TCP segments retransmitted because of loss. Retransmissions that the receiver reported as
    /// duplicates (RFC 2883) are subtracted, because they result from delayed acknowledgements on a busy machine.
    pub fn losses(&self) -> Result<i64> {
        let needless = self.get("TcpExt", "TCPDSACKRecv")? + self.get("TcpExt", "TCPDSACKOfoRecv")?;
        Ok(self.retransmissions()? - needless)
    }

    /// Returns the number of retransmitted SYNs and SYN-ACKs.
    pub fn syn_retransmissions(&self) -> Result<i64> {
        self.get("TcpExt", "TCPSynRetrans")
    }
}
