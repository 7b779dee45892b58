//! Addresses at which this host itself receives packets. They are the addresses of its interfaces, their broadcast
//! addresses, and the other entries of the local routing table (`ip route add local …`, anycast).

use crate::netlink::{attribute, dump};
use anyhow::{Context, Result};
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Addresses with their prefix lengths, because whole networks can be local to one host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Local {
    /// Addresses that no other host has.
    pub own: BTreeSet<(IpAddr, u8)>,
    /// Addresses that this host shares with others: the broadcast addresses of its networks, and anycast addresses.
    pub shared: BTreeSet<(IpAddr, u8)>,
}

/// The table of local routes (linux/rtnetlink.h).
const TABLE: u8 = 255;
const IFA_BROADCAST: u16 = 4;

impl Local {
    /// Reads the addresses of this network namespace.
    ///
    /// # Errors
    ///
    /// Fails if the kernel does not list its addresses.
    pub fn now() -> Result<Self> {
        let mut local = Self::default();
        // struct ifaddrmsg, for every family.
        let addresses = dump(libc::RTM_GETADDR, &[0; 8]).context("cannot list this host's addresses")?;
        for (_, body) in &addresses {
            local.add_address(body);
        }
        for family in [libc::AF_INET, libc::AF_INET6] {
            // struct rtmsg.
            let mut question = [0; 12];
            (question[0], question[4]) = (family as u8, TABLE);
            // A kernel without IPv6 has no such table.
            for (_, body) in dump(libc::RTM_GETROUTE, &question).unwrap_or_default() {
                local.add_route(&body);
            }
        }
        Ok(local)
    }

    fn add_address(&mut self, body: &[u8]) -> Option<()> {
        let (mut rest, mut own, mut peer) = (body.get(8..)?, None, None);
        while let Some((kind, value)) = attribute(&mut rest) {
            match kind {
                libc::IFA_LOCAL => own = address(value),
                libc::IFA_ADDRESS => peer = address(value),
                IFA_BROADCAST => self.shared.extend(address(value).map(|address| (address, 32))),
                _ => {}
            }
        }
        // On a point-to-point link, IFA_ADDRESS is the peer's address.
        let own = own.or(peer)?;
        self.own.insert((own, if own.is_ipv4() { 32 } else { 128 }));
        Some(())
    }

    fn add_route(&mut self, body: &[u8]) -> Option<()> {
        let (family, length, table, kind) = (*body.first()?, *body.get(1)?, *body.get(4)?, *body.get(7)?);
        if table != TABLE {
            return None;
        }
        let mut network: IpAddr = match i32::from(family) {
            libc::AF_INET => Ipv4Addr::UNSPECIFIED.into(),
            libc::AF_INET6 => Ipv6Addr::UNSPECIFIED.into(),
            _ => return None,
        };
        let mut rest = body.get(12..)?;
        while let Some((kind, value)) = attribute(&mut rest) {
            if kind == libc::RTA_DST {
                network = address(value)?;
            }
        }
        match kind {
            libc::RTN_LOCAL => self.own.insert((network, length)),
            libc::RTN_BROADCAST | libc::RTN_ANYCAST => self.shared.insert((network, length)),
            _ => false,
        };
        Some(())
    }
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from),
        16 => <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_network_is_this_hosts() {
        let local = Local::now().expect("the kernel says");
        assert!(local.own.contains(&(Ipv4Addr::LOCALHOST.into(), 32)), "{local:?}");
        assert!(local.own.contains(&(Ipv4Addr::new(127, 0, 0, 0).into(), 8)), "{local:?}");
    }
}
