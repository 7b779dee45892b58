//! The maximum length of datagrams on the paths to other ends. The route gives a first value. ICMP errors about the
//! tunnel's own datagrams (RFC 1191, RFC 8201) give a more exact value.
//!
//! The kernel also stores a length for each path. This length is of no use here, because it can come from an ICMP error
//! that the tunnel sent to an application on this machine. Packets of applications have to be shorter than the tunnel's
//! datagrams, because they have to fit into a record.

use crate::route;
use nix::errno::Errno;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg};
use std::collections::HashMap;
use std::io::IoSliceMut;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;

/// Time for which the route's MTU is used, in milliseconds.
const ROUTE: u64 = 10_000;
/// Time for which the MTU from an ICMP error is used, in milliseconds (RFC 1191 §6.3).
const LEARNED: u64 = 600_000;
/// Maximum number of addresses whose paths are remembered: as many as there can be tunnels.
const PATHS_MAX: usize = 65_536;
/// MTU of a path about which the kernel says nothing.
const UNKNOWN: usize = 1280;
/// Maximum number of ICMP errors that are read at a time.
const ERRORS: usize = 64;

/// MTUs of the path to an address, by their source.
struct Path {
    /// The MTU of the route, and the time at which the kernel was asked for it.
    route: (usize, u64),
    /// The MTU in the last ICMP error, and the time at which the error arrived.
    learned: Option<(usize, u64)>,
}

/// The paths to the other ends of all tunnels, with the maximum length of datagrams on each path.
#[derive(Default)]
pub struct Paths {
    paths: HashMap<IpAddr, Path>,
}

impl Paths {
    /// Returns the length in bytes of the longest datagram payload that fits the path to `to`. `now` is in
    /// milliseconds.
    pub fn room(&mut self, to: IpAddr, now: u64) -> usize {
        self.mtu(to, now) - if to.is_ipv4() { 28 } else { 48 }
    }

    fn mtu(&mut self, to: IpAddr, now: u64) -> usize {
        let is_fresh = |at: u64| now.saturating_sub(at) < ROUTE;
        if self.paths.len() >= PATHS_MAX && !self.paths.contains_key(&to) {
            self.paths.retain(|_, path| is_fresh(path.route.1));
            if self.paths.len() >= PATHS_MAX {
                self.paths.clear();
            }
        }
        let path = self.paths.entry(to).or_insert_with(|| Path { route: (route_mtu(to), now), learned: None });
        if !is_fresh(path.route.1) {
            path.route = (route_mtu(to), now);
        }
        path.learned.take_if(|(_, at)| now.saturating_sub(*at) >= LEARNED);
        path.learned.map_or(path.route.0, |(mtu, _)| mtu.min(path.route.0))
    }

    /// Makes the next call of [`Self::room`] for this address ask the kernel for the route again.
    pub fn recheck(&mut self, to: IpAddr) {
        if let Some(path) = self.paths.get_mut(&to) {
            path.route.1 = 0;
        }
    }

    /// Records the MTU in an ICMP error about a datagram to `to`. Anybody can forge such errors. So this method ignores
    /// errors about paths that are not in use. No error makes a path's MTU larger, or smaller than the MTU that every
    /// path has.
    fn learn(&mut self, to: IpAddr, mtu: usize, now: u64) {
        if !self.paths.contains_key(&to) {
            return;
        }
        let before = self.mtu(to, now);
        // Old routers do not tell the MTU: assume the next common one.
        let mtu = if mtu == 0 { if before > UNKNOWN { UNKNOWN } else { least(to) } } else { mtu.max(least(to)) };
        if let Some(path) = self.paths.get_mut(&to).filter(|_| mtu < before) {
            path.learned = Some((mtu, now));
            tracing::debug!(%to, mtu, "the path is shorter than the route");
        }
    }

    /// Reads the ICMP errors that have arrived at a socket. The socket must be set up to store them.
    pub fn read_errors(&mut self, socket: RawFd, now: u64) {
        for _ in 0..ERRORS {
            let (mut quote, mut space) = ([0; 64], nix::cmsg_space!([u8; 512]));
            let mut rooms = [IoSliceMut::new(&mut quote)];
            let flags = MsgFlags::MSG_ERRQUEUE | MsgFlags::MSG_DONTWAIT;
            let message = match recvmsg::<SockaddrStorage>(socket, &mut rooms, Some(&mut space), flags) {
                Ok(message) => message,
                Err(Errno::EINTR) => continue,
                Err(_) => return,
            };
            let Some(to) = message.address.as_ref().and_then(address) else { continue };
            let errors = message.cmsgs().into_iter().flatten().filter_map(|part| match part {
                ControlMessageOwned::Ipv4RecvErr(error, _) | ControlMessageOwned::Ipv6RecvErr(error, _) => Some(error),
                _ => None,
            });
            for error in errors.filter(|error| error.ee_errno == libc::EMSGSIZE as u32) {
                self.learn(to, error.ee_info as usize, now);
            }
        }
    }
}

/// Returns the MTU of the route to an address.
fn route_mtu(to: IpAddr) -> usize {
    let mtu = route::mtu(to);
    if let Err(error) = &mtu {
        tracing::debug!(%to, "cannot look up the MTU of the route: {error:#}");
    }
    mtu.unwrap_or(UNKNOWN).clamp(least(to), 65_535)
}

/// Returns the MTU that every path has at least (RFC 791, RFC 8200).
const fn least(to: IpAddr) -> usize {
    if to.is_ipv4() { 576 } else { 1280 }
}

fn address(storage: &SockaddrStorage) -> Option<IpAddr> {
    let four = storage.as_sockaddr_in().map(|four| SocketAddr::from(*four));
    let any = four.or_else(|| storage.as_sockaddr_in6().map(|six| SocketAddr::from(*six)))?;
    Some(any.ip().to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    #[test]
    fn an_icmp_error_makes_a_path_in_use_shorter_for_ten_minutes() {
        let mut paths = Paths::default();
        paths.learn(HERE, 1000, 0);
        let whole = paths.room(HERE, 0);
        assert!(whole > 10_000, "an error about a path that is not in use counts for nothing: {whole}");
        paths.learn(HERE, 1280, 1);
        assert_eq!(paths.room(HERE, LEARNED), 1280 - 28);
        assert_eq!(paths.room(HERE, LEARNED + 1), whole);
    }

    #[test]
    fn forged_errors_make_no_path_longer_or_too_short() {
        let mut paths = Paths::default();
        paths.room(HERE, 0);
        paths.learn(HERE, 1280, 0);
        for (forged, room) in [(1400, 1252), (65_535, 1252), (68, 548), (0, 548)] {
            paths.learn(HERE, forged, 0);
            assert_eq!(paths.room(HERE, 0), room, "{forged}");
        }
    }

    #[test]
    fn without_a_number_a_path_shrinks_in_steps() {
        let mut paths = Paths::default();
        paths.room(HERE, 0);
        for room in [1280 - 28, 576 - 28, 576 - 28] {
            paths.learn(HERE, 0, 0);
            assert_eq!(paths.room(HERE, 0), room);
        }
    }
}
