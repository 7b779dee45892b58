//! Sockets of this network namespace that accept packets from senders without authentication, and the addresses at
//! which they accept these packets.

use crate::local::Local;
use crate::protected::Protected;
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

const TCP: u8 = 6;
const UDP: u8 = 17;
/// Broadcast and multicast addresses at which a UDP socket that is bound to all addresses receives.
const FOR_MANY: [IpAddr; 3] = [
    IpAddr::V4(Ipv4Addr::BROADCAST),
    IpAddr::V4(Ipv4Addr::new(224, 0, 0, 1)),
    IpAddr::V6(Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1)),
];

/// A socket that listens for connections, or that accepts datagrams from any sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Listener {
    /// Number of the protocol, TCP or UDP.
    pub protocol: u8,
    /// The address to which the socket is bound.
    pub address: SocketAddr,
}

/// A socket that packets reach without verification, at some or all of its addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outside {
    /// The socket that packets reach.
    pub listener: Listener,
    /// The host's addresses at which packets reach the socket without verification.
    pub at: Vec<IpAddr>,
    /// Whether packets to the socket are verified at other addresses.
    pub partly: bool,
}

/// Lists the sockets that listen for connections, and those that accept datagrams from any sender.
pub fn listeners() -> Vec<Listener> {
    // States of include/net/tcp_states.h: LISTEN, and CLOSE for a UDP socket without a peer.
    let files = [("tcp", TCP, "0A"), ("tcp6", TCP, "0A"), ("udp", UDP, "07"), ("udp6", UDP, "07")];
    let read = |(name, protocol, state): (&str, u8, &str)| {
        // The file is missing if the kernel has no IPv6.
        let text = std::fs::read_to_string(format!("/proc/self/net/{name}")).unwrap_or_default();
        let addresses = text.lines().filter_map(|line| bound(line, state));
        addresses.map(|address| Listener { protocol, address }).collect::<Vec<_>>()
    };
    let all: BTreeSet<Listener> = files.into_iter().flat_map(read).collect();
    all.into_iter().collect()
}

/// Returns the address to which a socket is bound, from a line of `/proc/net/tcp` or a similar file. Returns `None` if
/// the socket is not in the state `wanted`.
fn bound(line: &str, wanted: &str) -> Option<SocketAddr> {
    let mut fields = line.split_whitespace().skip(1);
    let (local, _, state) = (fields.next()?, fields.next()?, fields.next()?);
    if state == wanted { address(local) } else { None }
}

/// Parses an address such as `0100007F:1F90`: the address as 32-bit words in the byte order of this machine, then the
/// port, all in hexadecimal. An IPv4-mapped IPv6 address becomes an IPv4 address.
pub fn address(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    let word = |index: usize| Some(u32::from_str_radix(address.get(index * 8..index * 8 + 8)?, 16).ok()?.to_ne_bytes());
    let ip = match address.len() {
        8 => IpAddr::V4(Ipv4Addr::from(word(0)?)),
        32 => {
            let mut bytes = [0; 16];
            for (index, room) in bytes.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                *room = word(index)?;
            }
            IpAddr::V6(Ipv6Addr::from(bytes)).to_canonical()
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?))
}

/// Returns the sockets that accept packets at an unprotected address. Loopback addresses do not count, because other
/// hosts can't reach them.
pub fn outside(protected: &Protected, local: &Local) -> Vec<Outside> {
    let all = listeners().into_iter();
    let all = all.map(|listener| listener.outside(local, |ip| covers(protected, ip, listener)));
    all.filter(|outside| !outside.at.is_empty()).collect()
}

fn covers(protected: &Protected, address: IpAddr, listener: Listener) -> bool {
    let services = protected.services_of(address);
    services.is_some_and(|services| services.covers(listener.protocol, listener.address.port()))
}

impl Listener {
    fn outside(self, local: &Local, is_protected: impl Fn(IpAddr) -> bool) -> Outside {
        let bound = self.address.ip();
        let own = local.own.iter().map(|(address, _)| *address);
        // If a whole network is local to this host, its first address stands for the network.
        let shared = local.shared.iter().map(|(address, _)| *address).chain(FOR_MANY).filter(|_| self.protocol == UDP);
        let reached: BTreeSet<IpAddr> = match bound {
            _ if !bound.is_unspecified() => BTreeSet::from([bound]),
            // An IPv6 socket may accept IPv4, too.
            IpAddr::V4(_) => own.chain(shared).filter(IpAddr::is_ipv4).collect(),
            IpAddr::V6(_) => own.chain(shared).collect(),
        };
        let reached = reached.into_iter().filter(|address| !address.is_loopback());
        let (kept, at): (Vec<_>, Vec<_>) = reached.partition(|address| is_protected(*address));
        Outside { listener: self, at, partly: !kept.is_empty() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[cfg(target_endian = "little")]
    #[test]
    fn listening_sockets_are_read() {
        let line = "   0: 00000000:0016 00000000:0000 0A 00000000:00000000 00:0000 00000000     0        0 1 1";
        assert_eq!(bound(line, "0A"), Some("0.0.0.0:22".parse().expect("an address")));
        assert_eq!(bound(line, "07"), None);
        assert_eq!(bound("  sl  local_address rem_address   st tx_queue", "0A"), None);
        let six = "   1: B80D0120000000000000000001000000:0035 00000000000000000000000000000000:0000 07 0:0 0:0 0";
        assert_eq!(bound(six, "07"), Some("[2001:db8::1]:53".parse().expect("an address")));
    }

    #[test]
    fn a_socket_is_outside_where_one_of_its_addresses_is() {
        let local = Local {
            own: [("127.0.0.1", 32), ("192.0.2.1", 32), ("192.0.2.9", 32), ("fe80::1", 128)]
                .map(|(address, length)| (ip(address), length))
                .into(),
            shared: [(ip("192.0.2.255"), 32)].into(),
        };
        let open = |protocol, address: &str, protected: &[&str]| {
            let listener = Listener { protocol, address: SocketAddr::new(ip(address), 22) };
            listener.outside(&local, |ip| protected.contains(&ip.to_string().as_str())).at
        };
        assert_eq!(open(TCP, "0.0.0.0", &["192.0.2.1"]), [ip("192.0.2.9")]);
        assert!(open(TCP, "0.0.0.0", &["192.0.2.1", "192.0.2.9"]).is_empty());
        assert_eq!(open(TCP, "::", &["192.0.2.1", "192.0.2.9"]), [ip("fe80::1")]);
        assert!(open(TCP, "192.0.2.1", &["192.0.2.1"]).is_empty());
        assert!(open(TCP, "127.0.0.1", &[]).is_empty());
        let many = [ip("192.0.2.255"), ip("224.0.0.1"), ip("255.255.255.255")];
        assert_eq!(open(UDP, "0.0.0.0", &["192.0.2.1", "192.0.2.9"]), many);
    }
}
