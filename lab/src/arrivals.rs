//! Counts the packets that reach a host's packet filter: those that programs at XDP and tc have not dropped. A capture
//! would also contain packets that a program at tc drops.

use std::net::IpAddr;

use anyhow::{Context, Result};

use crate::net::Namespace;

const TABLE: &str = "arrivals";

/// A counter of SYNs from one address to another. The counter exists until the namespace is deleted.
pub struct Arrivals<'n> {
    host: &'n Namespace,
}

impl<'n> Arrivals<'n> {
    /// Counts the SYNs from `from` to `to` that reach the packet filter of `host` from now on, past the programs at XDP
    /// and tc.
    ///
    /// # Errors
    ///
    /// Fails if `nft` cannot add the counter.
    pub fn of_syns(host: &'n Namespace, from: IpAddr, to: IpAddr) -> Result<Self> {
        let family = if to.is_ipv4() { "ip" } else { "ip6" };
        let rules = format!(
            "table inet {TABLE}
            delete table inet {TABLE}
            table inet {TABLE} {{
                counter syns {{ }}
                chain prerouting {{
                    type filter hook prerouting priority raw; policy accept;
                    {family} saddr {from} {family} daddr {to} tcp flags & (syn | ack) == syn counter name syns
                }}
            }}"
        );
        let file = host.dir().join("arrivals.nft");
        std::fs::write(&file, rules).with_context(|| file.display().to_string())?;
        host.run(["nft".as_ref(), "-f".as_ref(), file.as_os_str()])?;
        Ok(Self { host })
    }

    /// Returns the number of SYNs counted so far.
    ///
    /// # Errors
    ///
    /// Fails if `nft` cannot read the counter.
    pub fn count(&self) -> Result<u64> {
        let text = self.host.run(["nft", "list", "counter", "inet", TABLE, "syns"])?;
        let packets = text.split("packets ").nth(1).and_then(|rest| rest.split_whitespace().next());
        packets.and_then(|count| count.parse().ok()).with_context(|| format!("no count in {text:?}"))
    }
}
