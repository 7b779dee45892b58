//! From receivers to what the kernel programs look up: per prefix, all spans of ports that apply to it.
//!
//! The kernel finds the longest prefix only, so each prefix also holds what the wider ones around it protect.

use crate::api::{Receiver, Service};
use ipnet::IpNet;
use std::collections::BTreeSet;
use wire::map::{SERVICES_MAX, Services};

/// A prefix and what of it is protected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Protected {
    /// The network, with no bit set behind its prefix.
    pub prefix: IpNet,
    /// What of it is protected.
    pub services: Services,
}

/// More spans of ports apply to a prefix than the kernel programs have room for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{count} separate spans of ports apply to {prefix}, which is more than {SERVICES_MAX}: join neighbouring ports \
     into spans, or protect every port of it (services = [\"all\"])"
)]
pub struct TooManySpans {
    /// The prefix.
    pub prefix: IpNet,
    /// How many spans apply.
    pub count: usize,
}

/// The entries for these receivers.
pub fn entries(receivers: &[Receiver]) -> Result<Vec<Protected>, TooManySpans> {
    let prefixes: BTreeSet<IpNet> = receivers.iter().map(|receiver| receiver.prefix.trunc()).collect();
    prefixes
        .into_iter()
        .map(|prefix| {
            let around = receivers.iter().filter(|receiver| receiver.prefix.contains(&prefix));
            let spans = joined(around.flat_map(|receiver| receiver.services.iter().copied()));
            let count = spans.len();
            if count > SERVICES_MAX {
                return Err(TooManySpans { prefix, count });
            }
            let mut services = Services { count: count as u32, spans: [wire::map::Service::default(); SERVICES_MAX] };
            for (room, span) in services.spans.iter_mut().zip(spans) {
                room.protocol = span.protocol;
                room.first_port = span.first_port;
                room.last_port = span.last_port;
            }
            Ok(Protected { prefix, services })
        })
        .collect()
}

/// Sorted, with overlapping and neighbouring spans of a protocol joined.
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
}
