//! Address translators (NATs): a home router's, which is strict and tracks connections, and a carrier's.

use std::ops::RangeInclusive;

use anyhow::{Context, Result};

use crate::net::Namespace;

/// Makes `router` masquerade packets that arrive on `inside` and leave by `outside`, IPv4 and IPv6.
///
/// The rules are as strict as those of home and carrier routers: unsolicited packets from outside are dropped, and so
/// are packets that match no connection. A TCP connection must begin with its SYN and stay within its windows.
pub fn nat(router: &Namespace, inside: &str, outside: &str) -> Result<()> {
    let rules = format!(
        "table inet nat {{
            chain forward {{
                type filter hook forward priority filter; policy drop;
                ct state invalid drop
                ct state established,related accept
                iifname \"{inside}\" oifname \"{outside}\" accept
            }}
            chain postrouting {{
                type nat hook postrouting priority srcnat; policy accept;
                oifname \"{outside}\" masquerade
            }}
        }}"
    );
    let file = router.dir().join("nat.nft");
    std::fs::write(&file, rules).with_context(|| file.display().to_string())?;
    router.run(["nft".as_ref(), "-f".as_ref(), file.as_os_str()])?;
    // These sysctls appear only when the rules have made the kernel load connection tracking.
    router.sysctl("net/netfilter/nf_conntrack_tcp_be_liberal", "0")?;
    router.sysctl("net/netfilter/nf_conntrack_tcp_loose", "0")?;
    router.forward()
}

/// Time after which a [`Carrier`] forgets a silent flow, in seconds.
const MAPPING: &str = "3";
/// Time after which a [`Carrier`] forgets a TCP connection that is closing or not open yet, in seconds.
const CLOSING: [(&str, &str); 6] =
    [("syn_sent", "2"), ("fin_wait", "1"), ("close_wait", "1"), ("last_ack", "1"), ("time_wait", "1"), ("close", "1")];

/// A carrier-grade NAT. Its clients share a few ports of the public address, and it soon forgets idle flows.
pub struct Carrier<'a> {
    router: &'a Namespace,
    outside: &'a str,
    servers: &'a str,
}

impl<'a> Carrier<'a> {
    /// Changes the router made by [`nat`] into a carrier-grade NAT for IPv4 flows to the prefix `servers`: new flows
    /// share `ports`. The router soon forgets idle flows to other destinations, too. Flows that it already knows keep
    /// their ports; their new time limits apply from their next packet.
    pub fn new(router: &'a Namespace, outside: &'a str, servers: &'a str, ports: RangeInclusive<u16>) -> Result<Self> {
        let open =
            ["udp_timeout", "udp_timeout_stream", "tcp_timeout_established"].map(|name| (name.to_owned(), MAPPING));
        let closing = CLOSING.map(|(state, time)| (format!("tcp_timeout_{state}"), time));
        for (name, time) in open.into_iter().chain(closing) {
            router.sysctl(&format!("net/netfilter/nf_conntrack_{name}"), time)?;
        }
        let this = Self { router, outside, servers };
        this.give(ports)?;
        Ok(this)
    }

    /// Makes new flows to the servers share `ports`, in place of the ports given before.
    pub fn give(&self, ports: RangeInclusive<u16>) -> Result<()> {
        let Self { router, outside, servers } = self;
        let (first, last) = ports.into_inner();
        let ports = if first == last { first.to_string() } else { format!("{first}-{last}") };
        let chain = "inet nat postrouting";
        let few = |protocol: &str| {
            format!(
                "add rule {chain} oifname \"{outside}\" ip daddr {servers} meta l4proto {protocol} masquerade to :{ports}\n"
            )
        };
        let rules = format!(
            "flush chain {chain}\n{}{}add rule {chain} oifname \"{outside}\" masquerade\n",
            few("tcp"),
            few("udp")
        );
        let file = router.dir().join("carrier.nft");
        std::fs::write(&file, rules).with_context(|| file.display().to_string())?;
        router.run(["nft".as_ref(), "-f".as_ref(), file.as_os_str()]).map(drop)
    }

    /// Reports whether a flow of this protocol (`tcp` or `udp`) has this public port at present.
    pub fn has(&self, protocol: &str, port: u16) -> Result<bool> {
        let flows = self.router.run(["conntrack", "-L", "-p", protocol])?;
        Ok(flows.lines().any(|line| line.contains(&format!(" dport={port} "))))
    }
}

/// Replaces the public IPv4 address `from` of a router by `to`, an address of the same network, as a provider may do at
/// night. Both addresses are given with their prefix length. The router forgets the flows of the earlier address.
pub fn renumber(router: &Namespace, outside: &str, [from, to]: [&str; 2], via: &str) -> Result<()> {
    // Otherwise the kernel removes the second address together with the first.
    router.sysctl(&format!("net/ipv4/conf/{outside}/promote_secondaries"), "1")?;
    router.address(outside, to)?;
    router.ip(&format!("address del {from} dev {outside}"))?;
    router.route("default", via)
}
