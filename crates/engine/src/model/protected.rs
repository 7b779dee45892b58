//! Converts receivers to the entries that the kernel programs look up: each prefix with all port ranges that apply to
//! it.
//!
//! The kernel finds only the longest prefix that contains an address, so the entry of each prefix also includes the
//! services of the wider prefixes around it.

use crate::model::{Receiver, Service};
use ipnet::IpNet;
use std::collections::BTreeMap;
use wire::map::{SERVICES_MAX, Services};

/// A prefix and its protected services.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Protected {
    /// The network, with no bit set beyond its prefix length.
    pub prefix: IpNet,
    /// Services of the network that are protected.
    pub services: Services,
}

/// Error: more port ranges apply to a prefix than a kernel entry has room for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{count} separate port ranges apply to {prefix}, but at most {SERVICES_MAX} are possible: join neighbouring ports \
     into ranges, or protect all of its ports (services = [\"all\"])"
)]
pub struct TooManySpans {
    /// The prefix to which too many port ranges apply.
    pub prefix: IpNet,
    /// Number of port ranges that apply to the prefix.
    pub count: usize,
}

/// Returns the entries of the kernel's table for these receivers.
///
/// # Errors
///
/// Fails if more port ranges apply to a prefix than an entry has room for.
pub fn entries(receivers: &[Receiver]) -> Result<Vec<Protected>, TooManySpans> {
    walk(receivers.iter(), |prefix, count| Err(TooManySpans { prefix, count }))
}

/// Returns the entries for these receivers. If too many port ranges apply to a prefix, the entry protects every service
/// of the prefix. Use this function for agents only. An agent still sends packets to services that belong to no
/// receiver, without identity, but a verifier would drop these packets.
pub fn widened<'a>(receivers: impl Iterator<Item = &'a Receiver>) -> Vec<Protected> {
    walk(receivers, |_, _| Ok::<_, std::convert::Infallible>(())).unwrap_or_else(|never| match never {})
}

/// Visits the prefixes in order, wider prefixes first, and adds to each the services of the wider prefixes around it.
/// If too many port ranges apply, calls `too_many`, and protects every service unless `too_many` fails.
fn walk<'a, E>(
    receivers: impl Iterator<Item = &'a Receiver>,
    too_many: impl Fn(IpNet, usize) -> Result<(), E>,
) -> Result<Vec<Protected>, E> {
    let mut own: BTreeMap<IpNet, Vec<Service>> = BTreeMap::new();
    for receiver in receivers {
        own.entry(receiver.prefix.trunc()).or_default().extend(&receiver.services);
    }
    let mut around: Vec<(IpNet, Vec<Service>)> = Vec::new();
    let mut entries = Vec::with_capacity(own.len());
    for (prefix, services) in own {
        while around.last().is_some_and(|(wider, _)| !wider.contains(&prefix)) {
            around.pop();
        }
        let inherited = around.last().map_or(&[][..], |(_, spans)| spans);
        let mut spans = joined(services.into_iter().chain(inherited.iter().copied()));
        if spans.len() > SERVICES_MAX {
            too_many(prefix, spans.len())?;
            spans = vec![Service::ALL];
        }
        entries.push(Protected { prefix, services: services_of(&spans) });
        around.push((prefix, spans));
    }
    Ok(entries)
}

/// Returns `entries` with `services` added in each of `networks`. If more than [`SERVICES_MAX`] port ranges apply to a
/// prefix, the function repeatedly joins the two ranges of one protocol with the smallest gap between them. This also
/// protects the ports in the gap. If there are still too many ranges, and no two of them have the same protocol, it
/// protects every service of the prefix. The `bool` says whether the function has joined ranges or protected every
/// service.
pub fn extended(entries: &[Protected], networks: &[IpNet], services: &[Service]) -> (Vec<Protected>, bool) {
    let mut all: BTreeMap<IpNet, (Option<&Services>, bool)> =
        entries.iter().map(|entry| (entry.prefix, (Some(&entry.services), false))).collect();
    for network in networks {
        all.entry(network.trunc()).or_default().1 = true;
    }
    let mut crowded = false;
    // For each network that contains the current one: the services of its entry, and whether `services` are added
    // there.
    let mut around: Vec<(IpNet, Option<&Services>, bool)> = Vec::new();
    let mut extended = Vec::with_capacity(all.len());
    for (prefix, (own, added)) in all {
        while around.last().is_some_and(|(wider, ..)| !wider.contains(&prefix)) {
            around.pop();
        }
        let (inherited, added_around) = around.last().map_or((None, false), |(_, own, added)| (*own, *added));
        let (own, added) = (own.or(inherited), added || added_around);
        around.push((prefix, own, added));
        let spans = own.map(Services::spans).unwrap_or_default().iter().map(|span| Service::from(*span));
        let mut spans = joined(spans.chain(services.iter().copied().filter(|_| added)));
        while spans.len() > SERVICES_MAX {
            crowded = true;
            spans = with_one_gap_less(spans);
        }
        extended.push(Protected { prefix, services: services_of(&spans) });
    }
    (extended, crowded)
}

/// Returns the sorted port ranges with the smallest gap between two of them closed; every service if there is no gap.
fn with_one_gap_less(spans: Vec<Service>) -> Vec<Service> {
    let pairs = spans.windows(2).enumerate().filter(|(_, two)| two[0].protocol == two[1].protocol);
    let Some((smallest, _)) = pairs.min_by_key(|(_, two)| two[1].first_port.saturating_sub(two[0].last_port)) else {
        return vec![Service::ALL];
    };
    let mut fewer = spans;
    let last_port = fewer.remove(smallest + 1).last_port;
    fewer[smallest].last_port = last_port;
    fewer
}

/// Converts at most [`SERVICES_MAX`] spans to the kernel's form.
pub fn services_of(spans: &[Service]) -> Services {
    let mut services = Services { count: 0, spans: [wire::map::Service::default(); SERVICES_MAX] };
    for (room, span) in services.spans.iter_mut().zip(spans) {
        services.count += 1;
        room.protocol = span.protocol;
        room.first_port = span.first_port;
        room.last_port = span.last_port;
    }
    services
}

/// Sorts port ranges, and joins overlapping and adjacent ranges of a protocol.
fn joined(spans: impl Iterator<Item = Service>) -> Vec<Service> {
    let mut sorted: Vec<Service> = spans.collect();
    if sorted.iter().any(|span| span.protocol == 0) {
        return vec![Service::ALL];
    }
    sorted.sort_unstable();
    let mut joined: Vec<Service> = Vec::new();
    for span in sorted {
        match joined.last_mut() {
            Some(last) if last.protocol == span.protocol && span.first_port <= last.last_port.saturating_add(1) => {
                last.last_port = last.last_port.max(span.last_port);
            }
            _ => joined.push(span),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receiver(prefix: &str, services: &[(u8, u16, u16)]) -> Receiver {
        let services = services
            .iter()
            .map(|&(protocol, first_port, last_port)| Service { protocol, first_port, last_port })
            .collect();
        Receiver { name: prefix.to_owned(), prefix: prefix.parse().expect("a prefix"), services }
    }

    fn spans(entries: &[Protected], prefix: &str) -> Vec<(u8, u16, u16)> {
        let prefix: IpNet = prefix.parse().expect("a prefix");
        let found = entries.iter().find(|entry| entry.prefix == prefix).expect("an entry");
        let count = found.services.count as usize;
        found.services.spans[..count].iter().map(|span| (span.protocol, span.first_port, span.last_port)).collect()
    }

    #[test]
    fn a_host_inherits_what_its_network_protects() {
        let entries = entries(&[
            receiver("192.0.2.0/24", &[(6, 22, 22)]),
            receiver("192.0.2.7/32", &[(6, 443, 443)]),
            receiver("198.51.100.1/32", &[(17, 53, 53)]),
        ])
        .expect("fits");
        assert_eq!(spans(&entries, "192.0.2.0/24"), [(6, 22, 22)]);
        assert_eq!(spans(&entries, "192.0.2.7/32"), [(6, 22, 22), (6, 443, 443)]);
        assert_eq!(spans(&entries, "198.51.100.1/32"), [(17, 53, 53)]);
    }

    #[test]
    fn spans_are_joined() {
        let entries =
            entries(&[receiver("192.0.2.1/32", &[(6, 10, 20), (6, 21, 30), (6, 15, 25), (17, 31, 31)])]).expect("fits");
        assert_eq!(spans(&entries, "192.0.2.1/32"), [(6, 10, 30), (17, 31, 31)]);
    }

    #[test]
    fn every_protocol_swallows_the_rest() {
        let entries =
            entries(&[receiver("2001:db8::/32", &[(0, 0, 65535)]), receiver("2001:db8::1/128", &[(6, 22, 22)])])
                .expect("fits");
        assert_eq!(spans(&entries, "2001:db8::1/128"), [(0, 0, 65535)]);
    }

    #[test]
    fn too_many_spans_are_refused() {
        let scattered: Vec<_> = (0..=SERVICES_MAX as u16).map(|n| (6, n * 2, n * 2)).collect();
        let error = entries(&[receiver("192.0.2.1/32", &scattered)]).expect_err("too many");
        assert_eq!(error.count, SERVICES_MAX + 1);
    }

    #[test]
    fn nested_networks_inherit_from_all_around_them_and_no_others() {
        let entries = entries(&[
            receiver("10.1.2.3/32", &[(6, 4, 4)]),
            receiver("10.0.0.0/8", &[(6, 10, 10)]),
            receiver("10.1.2.4/32", &[(6, 6, 6)]),
            receiver("10.1.0.0/16", &[(6, 20, 20)]),
            receiver("10.2.0.0/16", &[(6, 30, 30)]),
            receiver("11.0.0.0/32", &[(6, 8, 8)]),
        ])
        .expect("fits");
        assert_eq!(spans(&entries, "10.1.2.3/32"), [(6, 4, 4), (6, 10, 10), (6, 20, 20)]);
        assert_eq!(spans(&entries, "10.1.2.4/32"), [(6, 6, 6), (6, 10, 10), (6, 20, 20)]);
        assert_eq!(spans(&entries, "10.2.0.0/16"), [(6, 10, 10), (6, 30, 30)]);
        assert_eq!(spans(&entries, "11.0.0.0/32"), [(6, 8, 8)]);
    }

    #[test]
    fn an_agent_protects_a_crowded_prefix_whole() {
        let scattered: Vec<_> = (0..=SERVICES_MAX as u16).map(|n| (6, n * 2, n * 2)).collect();
        let receivers = [
            receiver("192.0.2.0/24", &scattered),
            receiver("192.0.2.1/32", &[(6, 1, 1)]),
            receiver("198.51.100.1/32", &[(6, 22, 22)]),
        ];
        let entries = widened(receivers.iter());
        assert_eq!(spans(&entries, "192.0.2.0/24"), [(0, 0, 65535)]);
        assert_eq!(spans(&entries, "192.0.2.1/32"), [(0, 0, 65535)]);
        assert_eq!(spans(&entries, "198.51.100.1/32"), [(6, 22, 22)]);
    }

    #[test]
    fn many_prefixes_take_no_time() {
        let many = (0..60_000u32).map(|n| Receiver {
            name: String::new(),
            prefix: IpNet::from(std::net::IpAddr::from((n * 4).to_be_bytes())),
            services: vec![Service { protocol: 6, first_port: 22, last_port: 22 }],
        });
        let many: Vec<_> = many.collect();
        let start = std::time::Instant::now();
        assert_eq!(widened(many.iter()).len(), many.len());
        assert!(start.elapsed() < std::time::Duration::from_secs(5));
    }

    fn service(protocol: u8, first_port: u16, last_port: u16) -> Service {
        Service { protocol, first_port, last_port }
    }

    #[test]
    fn services_are_added_in_networks_that_no_receiver_names() {
        let named = entries(&[
            receiver("192.0.2.1/32", &[(6, 22, 22)]),
            receiver("169.254.7.7/32", &[(6, 443, 443)]),
            receiver("198.51.100.0/24", &[(17, 53, 53)]),
            receiver("203.0.113.0/24", &[(6, 80, 80)]),
        ])
        .expect("fits");
        let networks = ["192.0.2.1/32", "169.254.0.0/16", "198.51.100.9/32", "fe80::/10"];
        let networks = networks.map(|text| text.parse().expect("a network"));
        let (all, crowded) = extended(&named, &networks, &[service(6, 22, 22), service(17, 500, 510)]);
        assert!(!crowded);
        assert_eq!(spans(&all, "192.0.2.1/32"), [(6, 22, 22), (17, 500, 510)]);
        assert_eq!(spans(&all, "169.254.0.0/16"), [(6, 22, 22), (17, 500, 510)]);
        assert_eq!(spans(&all, "169.254.7.7/32"), [(6, 22, 22), (6, 443, 443), (17, 500, 510)]);
        assert_eq!(spans(&all, "198.51.100.9/32"), [(6, 22, 22), (17, 53, 53), (17, 500, 510)]);
        assert_eq!(spans(&all, "fe80::/10"), [(6, 22, 22), (17, 500, 510)]);
        assert_eq!(spans(&all, "198.51.100.0/24"), [(17, 53, 53)], "no address of the host");
        assert_eq!(spans(&all, "203.0.113.0/24"), [(6, 80, 80)]);
        assert_eq!(all.len(), 7);
    }

    #[test]
    fn more_services_than_there_is_room_for_are_joined_over_the_smallest_gaps() {
        let named = entries(&[receiver("192.0.2.1/32", &[(17, 53, 53)])]).expect("fits");
        let scattered: Vec<_> = (0..SERVICES_MAX as u16).map(|n| service(6, n * n * 8, n * n * 8)).collect();
        let (all, crowded) = extended(&named, &["192.0.2.1/32".parse().expect("a network")], &scattered);
        let spans = spans(&all, "192.0.2.1/32");
        assert!(crowded && spans.len() == SERVICES_MAX);
        assert_eq!((spans[0], spans[1], spans[SERVICES_MAX - 1]), ((6, 0, 8), (6, 32, 32), (17, 53, 53)));
        assert!(scattered.iter().all(|service| all[0].services.covers(6, service.first_port)));
    }
}
