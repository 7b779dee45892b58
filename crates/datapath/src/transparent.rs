//! Accepts connections to other hosts in place of these hosts, as a transparent proxy does. Routing rules deliver the
//! packets to this host's own sockets, and listeners accept connections at addresses of other hosts.
//!
//! The rules outlive the process. If the proxy does not run, there is no listener, and the kernel refuses the
//! connections. So no client gets around the proxy.

use crate::netlink::{attribute, change, dump};
use anyhow::{Context, Result};
use nix::net::if_::if_nametoindex;
use nix::sys::socket::sockopt::{Ipv6V6Only, ReuseAddr, TcpMaxSeg};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrStorage, bind, listen as listen_at, setsockopt, socket,
};
use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, OwnedFd};

/// linux/rtnetlink.h and linux/fib_rules.h.
const RTM_NEWROUTE: u16 = 24;
const RTM_NEWRULE: u16 = 32;
const RTM_DELRULE: u16 = 33;
const RTM_GETRULE: u16 = 34;
const FRA_DST: u16 = 1;
const FRA_IIFNAME: u16 = 3;
const FRA_PRIORITY: u16 = 6;
const FRA_TABLE: u16 = 15;
const FRA_IP_PROTO: u16 = 22;
const FRA_DPORT_RANGE: u16 = 24;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_TABLE: u16 = 15;
const TO_TABLE: u8 = 1;
/// The number that stands for a table whose own number is in an attribute.
const TABLE_LONG: u8 = 252;
const BY_ADMINISTRATOR: u8 = 4;
const SCOPE_HOST: u8 = 254;
const LOCAL: u8 = 2;
const TCP: u8 = 6;
const IPV6_TRANSPARENT: i32 = 75;
/// Priority of the rules: after the table of local addresses, before the main table.
const PRIORITY: u32 = 30_324;
/// The high half of the numbers of the routing tables, one for each instance of the verifier.
const TABLES: u32 = 0x5653_0000;

/// The routing rules by which one instance of the verifier on this host receives connections to other hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Diversion {
    table: u32,
}

/// A rule by which this host itself receives the TCP packets from an interface to an address and port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rule {
    interface: String,
    service: SocketAddr,
}

impl Diversion {
    /// Returns the routing rules of the verifier's instance with this name.
    pub fn of(instance: &str) -> Self {
        // FNV-1a: the same number for a name in every version of this program.
        let hash =
            instance.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
        Self { table: TABLES | (hash >> 16 ^ hash) & 0xffff }
    }

    /// Diverts TCP connections that arrive at these interfaces and go to these services, so that they reach this host's
    /// sockets. Ends every other diversion of this instance.
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses a rule or a route, or does not remove a rule.
    pub fn set(&self, interfaces: &[String], services: &[SocketAddr]) -> Result<()> {
        let rule = |interface: &String, service| Rule { interface: interface.clone(), service };
        let wanted: BTreeSet<Rule> =
            interfaces.iter().flat_map(|name| services.iter().map(move |service| rule(name, *service))).collect();
        let addresses: BTreeSet<IpAddr> = services.iter().map(SocketAddr::ip).collect();
        for address in addresses {
            let route = self.route(address)?;
            change(RTM_NEWROUTE, libc::NLM_F_CREATE | libc::NLM_F_REPLACE, &route).with_context(|| {
                format!("cannot make {address} an address of this host for connections from outside")
            })?;
        }
        for rule in &wanted {
            change(RTM_NEWRULE, libc::NLM_F_CREATE | libc::NLM_F_EXCL, &self.body(rule))
                .or_else(unless_there)
                .with_context(|| format!("cannot divert connections from {} to {}", rule.interface, rule.service))?;
        }
        self.remove(|rule| !wanted.contains(rule))
    }

    /// Ends every diversion of this instance. The routes stay, but no rule uses them any more.
    ///
    /// # Errors
    ///
    /// Fails if the kernel does not remove a rule.
    pub fn clear(&self) -> Result<()> {
        self.remove(|_| true)
    }

    fn remove(&self, which: impl Fn(&Rule) -> bool) -> Result<()> {
        for family in [libc::AF_INET, libc::AF_INET6] {
            let mut question = [0; 12];
            question[0] = family as u8;
            let rules = match dump(RTM_GETRULE, &question) {
                // A kernel without IPv6 has no such rules.
                Err(_) if family == libc::AF_INET6 => continue,
                rules => rules.context("cannot read the routing rules")?,
            };
            for (_, body) in rules {
                if self.parse(&body).is_some_and(|rule| rule.as_ref().is_none_or(&which)) {
                    change(RTM_DELRULE, 0, &body).context("cannot remove a routing rule")?;
                }
            }
        }
        Ok(())
    }

    /// Parses struct fib_rule_hdr and its attributes. Returns `None` if the rule is not one of this instance, and
    /// `Some(None)` if it is, but has another form.
    fn parse(&self, body: &[u8]) -> Option<Option<Rule>> {
        let (mut rest, mut priority, mut table) = (body.get(12..)?, 0, u32::from(*body.get(4)?));
        let (mut interface, mut address, mut port) = (None, None, None);
        while let Some((kind, value)) = attribute(&mut rest) {
            let number = || value.try_into().ok().map(u32::from_ne_bytes);
            match kind {
                FRA_PRIORITY => priority = number()?,
                FRA_TABLE => table = number()?,
                FRA_IIFNAME => {
                    interface = value.split_last().and_then(|(_, name)| String::from_utf8(name.to_vec()).ok())
                }
                FRA_DST => address = address_of(value),
                FRA_DPORT_RANGE => port = value.get(..2).and_then(|port| port.try_into().ok()).map(u16::from_ne_bytes),
                _ => {}
            }
        }
        let (ours, service) = (priority == PRIORITY && table == self.table, address.zip(port));
        ours.then(|| Some(Rule { interface: interface?, service: SocketAddr::from(service?) }))
    }

    /// Returns struct fib_rule_hdr with its attributes, for a rule of this instance.
    fn body(&self, rule: &Rule) -> Vec<u8> {
        let (bytes, port) = (octets(rule.service.ip()), rule.service.port().to_ne_bytes());
        let mut body = vec![family(rule.service.ip()), (bytes.len() * 8) as u8, 0, 0, TABLE_LONG, 0, 0, TO_TABLE];
        body.extend(0u32.to_ne_bytes());
        add(&mut body, FRA_IIFNAME, &[rule.interface.as_bytes(), &[0]].concat());
        add(&mut body, FRA_DST, &bytes);
        add(&mut body, FRA_PRIORITY, &PRIORITY.to_ne_bytes());
        add(&mut body, FRA_TABLE, &self.table.to_ne_bytes());
        add(&mut body, FRA_IP_PROTO, &[TCP]);
        add(&mut body, FRA_DPORT_RANGE, &[port, port].concat());
        body
    }

    /// Returns struct rtmsg with its attributes, for a route by which this host itself receives packets to an address.
    fn route(&self, address: IpAddr) -> Result<Vec<u8>> {
        let loopback = if_nametoindex("lo").context("this host has no loopback interface")?;
        let bytes = octets(address);
        let mut body =
            vec![family(address), (bytes.len() * 8) as u8, 0, 0, TABLE_LONG, BY_ADMINISTRATOR, SCOPE_HOST, LOCAL];
        body.extend(0u32.to_ne_bytes());
        add(&mut body, RTA_DST, &bytes);
        add(&mut body, RTA_OIF, &loopback.to_ne_bytes());
        add(&mut body, RTA_TABLE, &self.table.to_ne_bytes());
        Ok(body)
    }
}

fn unless_there(error: anyhow::Error) -> Result<()> {
    match error.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error) {
        Some(libc::EEXIST) => Ok(()),
        _ => Err(error),
    }
}

fn family(address: IpAddr) -> u8 {
    (if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 }) as u8
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().into(),
        IpAddr::V6(address) => address.octets().into(),
    }
}

fn address_of(bytes: &[u8]) -> Option<IpAddr> {
    let four = || <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from);
    four().or_else(|| <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from))
}

fn add(body: &mut Vec<u8>, kind: u16, value: &[u8]) {
    body.extend(((4 + value.len()) as u16).to_ne_bytes());
    body.extend(kind.to_ne_bytes());
    body.extend(value);
    body.resize(body.len().next_multiple_of(4), 0);
}

/// Listens at an address and port of another host. The listener does not block.
///
/// # Errors
///
/// Fails without the privilege CAP_NET_ADMIN (for ports below 1024 also CAP_NET_BIND_SERVICE), or if another program
/// listens there.
pub fn listen(address: SocketAddr) -> Result<TcpListener> {
    listen_in_place_of(address)
        .with_context(|| format!("cannot open a socket that accepts the connections to {address}"))
}

/// Maximum length of the segments that this host sends in place of another host, in bytes. IPv6 carries packets of 1280
/// bytes on every path.
const SEGMENT_MAX: u32 = 1220;

fn listen_in_place_of(address: SocketAddr) -> Result<TcpListener> {
    let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(family, SockType::Stream, flags, None)?;
    setsockopt(&socket, ReuseAddr, &true)?;
    if address.is_ipv6() {
        setsockopt(&socket, Ipv6V6Only, &true)?;
    }
    be_transparent(&socket, address)?;
    // Accepted connections inherit this. ICMP errors about them go to the other host, so the path's MTU stays unknown.
    setsockopt(&socket, TcpMaxSeg, &SEGMENT_MAX).context("cannot limit the length of TCP segments (TCP_MAXSEG)")?;
    bind(socket.as_raw_fd(), &SockaddrStorage::from(address))?;
    listen_at(&socket, Backlog::MAXALLOWABLE)?;
    Ok(TcpListener::from(socket))
}

/// Allows a socket to have an address of another host.
fn be_transparent(socket: &OwnedFd, address: SocketAddr) -> Result<()> {
    let (level, option) = match address {
        SocketAddr::V4(_) => (libc::SOL_IP, libc::IP_TRANSPARENT),
        SocketAddr::V6(_) => (libc::SOL_IPV6, IPV6_TRANSPARENT),
    };
    let on = 1i32;
    // SAFETY: the option's value is an int that lives through the call.
    let set = unsafe {
        libc::setsockopt(socket.as_raw_fd(), level, option, std::ptr::from_ref(&on).cast(), size_of::<i32>() as u32)
    };
    nix::errno::Errno::result(set).map(drop).context("cannot make the socket transparent: this needs CAP_NET_ADMIN")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_recognised_by_its_instance_only() {
        let (one, other) = (Diversion::of("main"), Diversion::of("second"));
        for service in ["192.0.2.20:443", "[2001:db8::20]:80"] {
            let rule = Rule { interface: "eth0".into(), service: service.parse().expect("an address") };
            assert_eq!(one.parse(&one.body(&rule)), Some(Some(rule.clone())));
            assert_eq!(other.parse(&one.body(&rule)), None);
        }
    }
}
