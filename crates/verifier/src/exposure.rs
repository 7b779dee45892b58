//! Extends protection to the addresses of a host that no receiver names, because a service that is bound to all
//! addresses also answers there. These addresses are link-local addresses, the addresses of other interfaces, and
//! broadcast and multicast addresses. This module does no IO.

use datapath::local::Local;
use engine::model::{Receiver, Service};
use ipnet::IpNet;
use std::collections::BTreeSet;
use std::net::IpAddr;
use wire::packet::{TCP, UDP};

/// Networks whose packets a host accepts regardless of its own addresses. Some hosts without an address broadcast to
/// 0.0.0.0.
const OF_HOSTS: [&str; 7] =
    ["0.0.0.0/32", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4", "255.255.255.255/32", "fe80::/10", "ff00::/8"];
/// The part of [`OF_HOSTS`] that a gateway uses: networks to which no router forwards packets. A gateway extends
/// protection only to its own addresses.
const OF_GATEWAYS: [&str; 6] =
    ["0.0.0.0/32", "127.0.0.0/8", "224.0.0.0/24", "255.255.255.255/32", "ff01::/16", "ff02::/16"];

/// The services that this host protects at all of its addresses, not only at those that receivers name, and the
/// networks of these addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extension {
    /// The services that are protected in all of `networks`.
    pub services: Vec<Service>,
    /// The networks of the host's addresses, and the networks to which every host listens, for example those of
    /// multicast addresses.
    pub networks: Vec<IpNet>,
}

/// Returns the extension of protection for a host with the addresses `local`. Its services are the services of TCP and
/// UDP in `receivers`, except those that span all ports. On a gateway, only receivers that contain one of the gateway's
/// addresses count, loopback addresses excepted. If no service is left, the extension is empty.
pub fn extension(receivers: &[Receiver], local: &Local, is_gateway: bool) -> Extension {
    let is_own = |receiver: &&Receiver| {
        let own = local.own.iter().filter(|(address, _)| !address.is_loopback());
        !is_gateway || own.into_iter().any(|(address, _)| receiver.prefix.contains(address))
    };
    let services: BTreeSet<Service> =
        receivers.iter().filter(is_own).flat_map(|receiver| &receiver.services).copied().filter(extends).collect();
    if services.is_empty() {
        return Extension::default();
    }
    let fixed: &[&str] = if is_gateway { &OF_GATEWAYS } else { &OF_HOSTS };
    let fixed = fixed.iter().filter_map(|text| text.parse().ok());
    let network = |(address, length): &(IpAddr, u8)| IpNet::new(*address, *length).ok().map(|network| network.trunc());
    let networks: BTreeSet<IpNet> = fixed.chain(local.own.iter().chain(&local.shared).filter_map(network)).collect();
    Extension { services: services.into_iter().collect(), networks: networks.into_iter().collect() }
}

/// Reports whether a service has ports and does not span all of them. If all ports were protected at every address,
/// replies to the host's own connections would be dropped, too, which would cut it off from everything.
fn extends(service: &Service) -> bool {
    [TCP, UDP].contains(&service.protocol) && !(service.first_port <= 1 && service.last_port == u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receiver(prefix: &str, services: &[(u8, u16, u16)]) -> Receiver {
        let service = |&(protocol, first_port, last_port)| Service { protocol, first_port, last_port };
        let services = services.iter().map(service).collect();
        Receiver { name: prefix.into(), prefix: prefix.parse().expect("a prefix"), services }
    }

    fn local() -> Local {
        let address = |text: &str| text.parse::<IpAddr>().expect("an address");
        Local {
            own: [(address("192.0.2.1"), 32), (address("127.0.0.0"), 8), (address("fe80::7"), 128)].into(),
            shared: [(address("192.0.2.255"), 32)].into(),
        }
    }

    fn texts(extension: &Extension) -> Vec<String> {
        extension.networks.iter().map(IpNet::to_string).collect()
    }

    #[test]
    fn a_host_protects_every_port_at_all_of_its_addresses() {
        let receivers = [receiver("192.0.2.1/32", &[(TCP, 22, 22)]), receiver("198.51.100.1/32", &[(UDP, 53, 53)])];
        let extension = extension(&receivers, &local(), false);
        assert_eq!(extension.services.len(), 2);
        let networks = texts(&extension);
        for network in ["192.0.2.1/32", "192.0.2.255/32", "fe80::/10", "fe80::7/128", "224.0.0.0/4", "127.0.0.0/8"] {
            assert!(networks.iter().any(|one| one == network), "{network}: {networks:?}");
        }
    }

    #[test]
    fn all_ports_are_protected_only_where_a_receiver_says_so() {
        let receivers = [receiver("192.0.2.1/32", &[(0, 0, u16::MAX), (TCP, 0, u16::MAX), (UDP, 1, u16::MAX)])];
        assert_eq!(extension(&receivers, &local(), false), Extension::default());
    }

    #[test]
    fn a_gateway_protects_its_own_ports_at_its_own_addresses() {
        let inside = receiver("10.1.0.5/32", &[(TCP, 80, 80)]);
        assert_eq!(extension(std::slice::from_ref(&inside), &local(), true), Extension::default());
        let own = receiver("192.0.2.0/24", &[(TCP, 22, 22)]);
        let extension = extension(&[inside, own], &local(), true);
        assert_eq!(extension.services, [Service { protocol: TCP, first_port: 22, last_port: 22 }]);
        let networks = texts(&extension);
        assert!(networks.contains(&"fe80::7/128".into()) && !networks.contains(&"fe80::/10".into()), "{networks:?}");
        assert!(!networks.contains(&"224.0.0.0/4".into()) && !networks.contains(&"169.254.0.0/16".into()));
    }
}
