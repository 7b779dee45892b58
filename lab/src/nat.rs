//! A home router: a strict NAT with connection tracking.

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
