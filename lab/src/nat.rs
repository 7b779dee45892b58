//! A home router: strict NAT with connection tracking.

use anyhow::{Context, Result};

use crate::net::Namespace;

/// Makes `router` masquerade what comes from device `inside` and leaves by `outside`, IPv4 and IPv6.
///
/// As strict as home and carrier routers are: nothing comes in unasked, packets that fit no connection are dropped, and a
/// TCP connection must begin with its SYN and stay within its windows.
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
    // These appear with connection tracking, that is with the rules.
    router.sysctl("net/netfilter/nf_conntrack_tcp_be_liberal", "0")?;
    router.sysctl("net/netfilter/nf_conntrack_tcp_loose", "0")?;
    router.forward()
}
