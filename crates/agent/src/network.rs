//! Identifies the network in which this machine is: by the hardware address of its default gateway, and by the prefix of
//! the interface that leads there. A network without IPv4 is identified by the gateway's link-local address.

use engine::agent::ladder::Network;
use serde::{Deserialize, Serialize};
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::Ipv4Addr;

const ROUTES: &str = "/proc/net/route";
const NEIGHBOURS: &str = "/proc/net/arp";
const ROUTES6: &str = "/proc/net/ipv6_route";

/// Determines in which network this machine is, and notices changes.
#[derive(Default)]
pub struct Follower {
    known: Option<Gateway>,
    network: Network,
}

/// A default gateway.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Gateway {
    /// The gateway's address, and the prefix of the link to it.
    route: String,
    /// The gateway's hardware address, once the kernel has resolved it.
    hardware: Option<String>,
}

impl Follower {
    /// Continues with the results of an earlier process.
    pub fn resume(known: Option<Gateway>, network: Network) -> Self {
        Self { known, network }
    }

    /// Returns the gateway by which the agent identifies the network, if there is one.
    pub fn gateway(&self) -> Option<&Gateway> {
        self.known.as_ref()
    }

    /// Returns the network in which this machine is now. If neither IPv4 nor IPv6 has a default gateway, returns a
    /// value that stands for "no network".
    pub fn look(&mut self) -> Network {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let found = by_gateway(&read(ROUTES), &read(NEIGHBOURS)).or_else(|| by_gateway6(&read(ROUTES6)));
        self.note(found)
    }

    fn note(&mut self, mut found: Option<Gateway>) -> Network {
        // The kernel resolves the hardware address when it first uses it, and forgets it later. That is no change of the
        // network.
        let is_same = match (&mut found, &self.known) {
            (Some(found), Some(known)) if found.route == known.route => {
                found.hardware = found.hardware.take().or_else(|| known.hardware.clone());
                known.hardware.is_none() || found.hardware == known.hardware
            }
            _ => found == self.known,
        };
        if !is_same {
            let mut hasher = DefaultHasher::new();
            found.hash(&mut hasher);
            self.network = Network(hasher.finish());
        }
        self.known = found;
        self.network
    }
}

/// An IPv4 route of /proc/net/route.
struct Route {
    interface: String,
    destination: Ipv4Addr,
    gateway: Ipv4Addr,
    metric: u32,
    mask: Ipv4Addr,
}

fn routes(table: &str) -> Vec<Route> {
    let address = |word: &str| u32::from_str_radix(word, 16).ok().map(|bits| Ipv4Addr::from(bits.to_ne_bytes()));
    let route = |line: &str| {
        let words: Vec<_> = line.split_whitespace().collect();
        let [interface, destination, gateway, _, _, _, metric, mask, ..] = words[..] else { return None };
        Some(Route {
            interface: interface.to_owned(),
            destination: address(destination)?,
            gateway: address(gateway)?,
            metric: metric.parse().ok()?,
            mask: address(mask)?,
        })
    };
    table.lines().skip(1).filter_map(route).collect()
}

fn by_gateway(table: &str, neighbours: &str) -> Option<Gateway> {
    let all = routes(table);
    let default = all.iter().filter(|route| route.mask.is_unspecified()).min_by_key(|route| route.metric)?;
    let is_link = |route: &&Route| {
        route.gateway.is_unspecified()
            && route.interface == default.interface
            && u32::from(route.destination) == u32::from(default.gateway) & u32::from(route.mask)
    };
    let prefix = all.iter().filter(is_link).map(|route| format!("{}/{}", route.destination, route.mask)).next();
    let prefix = prefix.unwrap_or_default();
    let gateway = default.gateway.to_string();
    let hardware = neighbours.lines().skip(1).find_map(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        let [address, _, flags, hardware, ..] = words[..] else { return None };
        (address == gateway && flags != "0x0").then(|| hardware.to_owned())
    });
    Some(Gateway { route: format!("{gateway} {prefix}"), hardware })
}

fn by_gateway6(table: &str) -> Option<Gateway> {
    table.lines().find_map(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        let [destination, length, _, _, gateway, _, _, _, _, interface] = words[..] else { return None };
        let zero = |word: &str| word.bytes().all(|byte| byte == b'0');
        let route = || Gateway { route: format!("{gateway} {interface}"), hardware: None };
        (zero(destination) && length == "00" && !zero(gateway)).then(route)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n\
        eth0\t00000000\tFE00010A\t0003\t0\t0\t0\t00000000\t0\t0\t0\n\
        eth0\t0000010A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n";
    const KNOWN: &str =
        "IP address HW type Flags HW address Mask Device\n10.1.0.254 0x1 0x2 02:00:00:00:00:01 * eth0\n";

    #[test]
    #[cfg(target_endian = "little")]
    fn a_network_is_its_gateways_hardware_address_and_its_prefix() {
        let route = "10.1.0.254 10.1.0.0/255.255.255.0".to_owned();
        let whole = Gateway { route: route.clone(), hardware: Some("02:00:00:00:00:01".to_owned()) };
        assert_eq!(by_gateway(TABLE, KNOWN), Some(whole));
        assert_eq!(by_gateway(TABLE, ""), Some(Gateway { route, hardware: None }));
        assert_eq!(by_gateway("", KNOWN), None);
        let six = format!("{:032} 00 {:032} 00 fe80{:027}1 00000400 0 0 3 eth0\n", 0, 0, 0);
        let route = "fe800000000000000000000000000001 eth0".to_owned();
        assert_eq!(by_gateway6(&six), Some(Gateway { route, hardware: None }));
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn a_later_process_knows_the_network_again() {
        let mut follower = Follower::default();
        let home = follower.note(by_gateway(TABLE, KNOWN));
        let text = serde_json::to_string(&follower.gateway()).unwrap();
        let mut next = Follower::resume(serde_json::from_str(&text).unwrap(), home);
        assert_eq!(next.note(by_gateway(TABLE, "")), home, "the kernel has not resolved the address yet");
        assert_eq!(next.note(by_gateway(TABLE, KNOWN)), home);
        let other = KNOWN.replace("02:00:00:00:00:01", "02:00:00:00:00:02");
        assert_ne!(next.note(by_gateway(TABLE, &other)), home);
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn a_hardware_address_that_the_kernel_resolves_or_forgets_is_no_other_network() {
        let mut follower = Follower::default();
        let home = follower.note(by_gateway(TABLE, ""));
        assert_eq!(follower.note(by_gateway(TABLE, KNOWN)), home, "the kernel has resolved it");
        assert_eq!(follower.note(by_gateway(TABLE, "")), home);
        let other = KNOWN.replace("02:00:00:00:00:01", "02:00:00:00:00:02");
        assert_ne!(follower.note(by_gateway(TABLE, &other)), home);
        assert_ne!(follower.note(None), home);
    }
}
