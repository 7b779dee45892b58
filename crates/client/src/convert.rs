//! Converts between the messages of the API and the types with which `engine` makes decisions.

use engine::agent::{Event, Unusable};
use engine::model::{
    Compress, Given, Grant, GrantRequest, Receiver, Sealing, Secret, SegmentRequest, Service, Treatment,
};
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use wire::ask::GivenReply;
use wire::ask::grant::{GrantReply, TunnelTerms};
use wire::grant::mask;
use wire::{Carrier, ClientKey, DropReason, Ends, Flags, GrantHeader, GrantKey, Handle, Pair, Vni};

/// Converts the protected receivers of an answer.
pub fn receivers(receivers: &[api::Receiver]) -> Vec<Receiver> {
    let service = |service: &api::Service| {
        let api::Service { protocol, first_port, last_port } = *service;
        Service { protocol, first_port, last_port }
    };
    let receiver = |receiver: &api::Receiver| Receiver {
        name: receiver.name.clone(),
        prefix: receiver.prefix,
        services: receiver.services.iter().map(service).collect(),
    };
    receivers.iter().map(receiver).collect()
}

/// Returns the receivers for which an agent has to handle the person's packets, and the names of those receivers whose
/// packets must travel in a sealed tunnel. Both include the receivers in `closed` of the answer. The person is not
/// allowed to send to these receivers now. At other times, the person may send to them in a tunnel.
pub fn reachable(answer: &api::Destinations) -> (Vec<Receiver>, BTreeSet<String>) {
    let api::SealedDestinations { demanded, closed, .. } = &answer.sealed;
    let all = [receivers(&answer.destinations), receivers(closed)].concat();
    (all, demanded.keys().chain(closed.iter().map(|receiver| &receiver.name)).cloned().collect())
}

/// Converts a request for a grant. The converted request does not allow a key in band: the key comes with the answer.
pub fn grant_request(request: &GrantRequest) -> api::GrantRequest {
    let GrantRequest { to, consented } = request;
    let (address, protocol, port) = (to.address, to.protocol, to.port);
    api::GrantRequest { address, protocol, port, consented: *consented, in_band: false }
}

/// Converts the grant in an answer. The length of the header shows the grant's kind: a pair of the suite `sha224`, or a
/// grant as in wire.md §3.
///
/// # Errors
///
/// Fails with the reason why no token can be made from the grant.
pub fn grant(answer: &api::Grant) -> Result<Grant, Unusable> {
    let expires =
        u32::try_from(answer.expires).map_err(|_| Unusable::Malformed("the grant's expiry is out of range"))?;
    let secret = match bytes(&answer.header).map(Pair::from_bytes) {
        Some(pair) => {
            let key = bytes(&answer.key).ok_or(Unusable::Malformed("the grant's client key is malformed"))?;
            Secret::Pair(pair, ClientKey::new(key))
        }
        None => {
            let header = bytes(&answer.header).and_then(|bytes| GrantHeader::decode(&bytes).ok());
            let header = header.ok_or(Unusable::Malformed("the grant's header is malformed"))?;
            let key = bytes(&answer.key).ok_or(Unusable::Malformed("the grant's key is malformed"))?;
            Secret::Grant(header, GrantKey::new(key))
        }
    };
    let carrier = Carrier::from_name(&answer.carrier);
    let carrier = carrier.ok_or(Unusable::Malformed("this agent does not support the grant's carrier"))?;
    let sealing = match &answer.sealing {
        Some(terms) => sealing(&terms.demand)
            .ok_or(Unusable::Malformed("this agent does not understand the grant's demand for a sealed tunnel"))?,
        None => Sealing::NONE,
    };
    let is_sealed = matches!(&secret, Secret::Grant(header, _) if header.flags.has(Flags::SEALED));
    if is_sealed != sealing.is_sealed() {
        return Err(Unusable::Malformed(
            "the grant's header and the rest of the answer disagree on whether the grant needs a sealed tunnel",
        ));
    }
    let tunnels = answer.sealing.as_ref().map(|terms| terms.tunnels.clone()).unwrap_or_default();
    let (receiver, rule) = (answer.receiver.clone(), answer.rule.clone());
    Ok(Grant { secret, prefix: answer.prefix, receiver, rule, carrier, sealing, tunnels, expires })
}

/// Converts a rule's demand for sealed tunnels. Returns `None` if this version does not know a name in the demand.
pub fn sealing(demand: &api::Sealing) -> Option<Sealing> {
    let api::Sealing { treatment, compress, suites, forward_secrecy, rekey } = demand;
    Sealing::from_names(treatment, compress.as_deref(), suites.iter().map(String::as_str), *forward_secrecy, *rekey)
}

fn bytes<const N: usize>(text: &str) -> Option<[u8; N]> {
    hex::decode(text).ok()?.try_into().ok()
}

/// Converts an event. Returns `None` if the event does not concern agents.
pub fn event(event: &api::Event) -> Option<Event> {
    match event {
        api::Event::Hello => Some(Event::Hello),
        api::Event::Policy => Some(Event::Policy),
        api::Event::Revoked { grants } => {
            Some(Event::Revoked(grants.iter().map(|grant| Handle(grant.handle)).collect()))
        }
        api::Event::LoggedOut => Some(Event::LoggedOut),
        api::Event::Alive
        | api::Event::Granted { .. }
        | api::Event::Mark { .. }
        | api::Event::Pair { .. }
        | api::Event::Recheck
        | api::Event::RoleChange { .. }
        | api::Event::SessionsRevoked { .. }
        | api::Event::Withdrawn { .. } => None,
    }
}

/// Converts a request for a path segment.
pub fn segment_request(request: &SegmentRequest) -> api::SegmentRequest {
    let SegmentRequest { network, sender, sending, to, sender_port, .. } = request;
    let (address, protocol, port) = (to.address, to.protocol, to.port);
    let (sender, sending, sender_port) = (*sender, *sending, *sender_port);
    let to = api::SegmentTo { address, protocol, port };
    api::SegmentRequest { network: network.clone(), sender, sending, to, sender_port }
}

/// Creates a request for a segment that permits answers. `shown` is the segment with which the packets arrived.
pub fn answer_request(shown: &Given) -> api::AnswerRequest {
    let Ends { sending, receiving, sender, receiver } = shown.ends;
    let (option, hops) = (hex::encode(shown.option()), shown.hops.clone());
    api::AnswerRequest { vni: shown.vni.number(), sending, receiving, sender, receiver, option, hops }
}

/// Converts the segment in an answer. The segment is for packets from `sender` to `receiver` that the tunnel endpoint
/// `sending` sends.
///
/// # Errors
///
/// Fails if the answer contains no segment from `sender` to `receiver` through `sending`.
pub fn segment(
    answer: &api::PathSegment,
    sending: IpAddr,
    sender: IpAddr,
    receiver: IpAddr,
) -> Result<Given, DropReason> {
    let vni = Vni::new(answer.vni).ok_or(DropReason::Malformed)?;
    let option = hex::decode(&answer.option).map_err(|_| DropReason::Malformed)?;
    let ends = Ends { sending, receiving: answer.receiving, sender, receiver };
    Given::from_option(&option, vni, ends, answer.hops.clone())
}

/// Converts the grant in the answer by UDP (wire.md §8.14.2) to `request`. Returns `None` if the grant can't be for the
/// request's destination.
pub(crate) fn grant_by_udp(reply: &GrantReply<'_>, request: &api::GrantRequest) -> Option<api::Grant> {
    let GrantReply { now, header, key, carrier, receiver, rule, tunnel } = reply;
    let (address, length) = (request.address.to_canonical(), header.prefix_length);
    if header.flags.has(Flags::IPV6) != address.is_ipv6() {
        return None;
    }
    let sealing = |terms: &TunnelTerms| {
        let demand = api::Sealing {
            treatment: terms.treatment.map_or(Treatment::None, Treatment::from).name().into(),
            compress: terms.compress.checked_sub(1).map(|index| Compress::ALL[usize::from(index)].name().into()),
            suites: terms.suites.iter().map(|suite| suite.name().into()).collect(),
            forward_secrecy: terms.forward_secrecy,
            rekey: terms.rekey,
        };
        let ipv4 = terms.ipv4.map(|(address, port)| SocketAddr::from((address, port)));
        let ipv6 = terms.ipv6.map(|(address, port)| SocketAddr::from((address, port)));
        api::GrantSealing { demand, tunnels: ipv4.into_iter().chain(ipv6).collect() }
    };
    Some(api::Grant {
        header: hex::encode(header.encode()),
        key: hex::encode(key.bytes()),
        prefix: format!("{}/{length}", mask(address, length)).parse().ok()?,
        receiver: (*receiver).into(),
        rule: (*rule).into(),
        carrier: carrier.name().into(),
        sealing: tunnel.as_ref().map(sealing),
        expires: header.expires.into(),
        now: (*now).into(),
    })
}

/// Converts the segment in the answer by UDP (wire.md §8.13.4) to `request`.
pub(crate) fn segment_by_udp(reply: &GivenReply<'_>, request: &SegmentRequest) -> Result<Given, DropReason> {
    let (sending, sender, receiver) = (request.sending, request.sender, request.to.address);
    let ends = Ends { sending, receiving: reply.receiving, sender, receiver };
    let hops = reply.hops.iter().map(|hop| Ipv6Addr::from(*hop)).collect();
    Given::from_option(reply.option, reply.vni, ends, hops)
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::Suite;

    fn answer() -> api::Grant {
        let (suite, handle) = (Suite::Siphash, Handle(5));
        let header = GrantHeader { suite, flags: Flags::PORT, epoch: 0, prefix_length: 32, expires: 7, handle };
        api::Grant {
            header: hex::encode(header.encode()),
            key: "07".repeat(16),
            prefix: "192.0.2.1/32".parse().unwrap(),
            receiver: "lab".into(),
            rule: "policy.toml:1 lab".into(),
            carrier: "tail".into(),
            sealing: None,
            expires: 7,
            now: 1,
        }
    }

    #[test]
    fn a_grant_and_a_pair_are_read() {
        let read = grant(&answer()).unwrap_or_else(|why| panic!("{why}"));
        assert!(matches!(&read.secret, Secret::Grant(header, key) if header.handle.0 == 5 && key.bytes() == &[7; 16]));
        assert_eq!((read.carrier, read.expires), (Carrier::Tail, 7));
        let pair = api::Grant { header: "06".repeat(7), key: "08".repeat(28), carrier: "shim".into(), ..answer() };
        let read = grant(&pair).unwrap_or_else(|why| panic!("{why}"));
        assert!(matches!(&read.secret, Secret::Pair(pair, key) if pair.bytes() == [6; 7] && key.bytes() == &[8; 28]));
    }

    /// Returns the answer with a grant for a sealed tunnel.
    fn sealed(treatment: &str) -> api::Grant {
        let (suite, handle, flags) = (Suite::Siphash, Handle(5), Flags::PORT.with(Flags::SEALED));
        let header = GrantHeader { suite, flags, epoch: 0, prefix_length: 32, expires: 7, handle };
        let suites = vec!["aes-256-gcm".to_owned(), "chacha20-poly1305".to_owned()];
        let (treatment, compress, forward_secrecy, rekey) = (treatment.to_owned(), None, true, 120);
        let demand = api::Sealing { treatment, compress, suites, forward_secrecy, rekey };
        let tunnels = vec!["203.0.113.10:4499".parse().unwrap()];
        api::Grant {
            header: hex::encode(header.encode()),
            sealing: Some(api::GrantSealing { demand, tunnels }),
            ..answer()
        }
    }

    #[test]
    fn what_a_grant_demands_is_read() {
        let read = grant(&sealed("encrypt")).unwrap_or_else(|why| panic!("{why}"));
        assert_eq!((read.sealing.treatment, read.tunnels.len()), (engine::model::Treatment::Encrypt, 1));
        let open = api::Grant { sealing: sealed("none").sealing, ..answer() };
        let read = grant(&open).unwrap_or_else(|why| panic!("{why}"));
        assert_eq!((read.sealing.is_sealed(), read.tunnels.len()), (false, 1), "a tunnel that nothing demands");
        for broken in [
            sealed("none"),
            sealed("shred"),
            api::Grant { sealing: None, ..sealed("encrypt") },
            api::Grant { sealing: sealed("encrypt").sealing, ..answer() },
        ] {
            assert!(matches!(grant(&broken), Err(Unusable::Malformed(_))), "{:?}", broken.sealing);
        }
    }

    fn request(address: &str) -> api::GrantRequest {
        let address = address.parse().unwrap();
        api::GrantRequest { address, protocol: 6, port: 22, consented: false, in_band: false }
    }

    fn by_udp(prefix_length: u8, flags: Flags, tunnel: Option<TunnelTerms>) -> GrantReply<'static> {
        let header =
            GrantHeader { suite: Suite::Siphash, flags, epoch: 0, prefix_length, expires: 7, handle: Handle(5) };
        let key = GrantKey::new([7; 16]);
        GrantReply { now: 1, header, key, carrier: Carrier::Tail, receiver: "lab", rule: "policy.toml:1 lab", tunnel }
    }

    #[test]
    fn a_grant_by_udp_is_the_one_that_https_gives() {
        let grant = grant_by_udp(&by_udp(32, Flags::PORT, None), &request("192.0.2.1")).unwrap();
        assert_eq!(serde_json::to_value(&grant).unwrap(), serde_json::to_value(answer()).unwrap());
        let wide = grant_by_udp(&by_udp(28, Flags::PORT, None), &request("192.0.2.17")).unwrap();
        assert_eq!(wide.prefix, "192.0.2.16/28".parse().unwrap());
        let terms = TunnelTerms {
            treatment: Some(wire::seal::Treatment::Encrypt),
            compress: 0,
            suites: wire::seal::Suites(0b110),
            forward_secrecy: true,
            rekey: 120,
            ipv4: Some(([203, 0, 113, 10].into(), 4499)),
            ipv6: None,
        };
        let flags = Flags::PORT.with(Flags::SEALED);
        let grant = grant_by_udp(&by_udp(32, flags, Some(terms)), &request("192.0.2.1")).unwrap();
        assert_eq!(serde_json::to_value(&grant).unwrap(), serde_json::to_value(sealed("encrypt")).unwrap());
        let always = TunnelTerms { compress: 3, treatment: None, ..terms };
        let grant = grant_by_udp(&by_udp(32, Flags::PORT, Some(always)), &request("::ffff:192.0.2.1")).unwrap();
        let demand = grant.sealing.unwrap().demand;
        assert_eq!((demand.treatment.as_str(), demand.compress.as_deref()), ("none", Some("always")));
    }

    #[test]
    fn a_grant_by_udp_for_the_other_family_is_not_taken() {
        assert!(grant_by_udp(&by_udp(32, Flags::PORT, None), &request("2001:db8::1")).is_none());
        assert!(grant_by_udp(&by_udp(64, Flags::IPV6, None), &request("192.0.2.1")).is_none());
        let six = grant_by_udp(&by_udp(64, Flags::IPV6, None), &request("2001:db8::1")).unwrap();
        assert_eq!(six.prefix, "2001:db8::/64".parse().unwrap());
    }

    #[test]
    fn a_grant_that_makes_no_sense_cant_be_used() {
        for broken in [
            api::Grant { header: "00".into(), ..answer() },
            api::Grant { key: "zz".into(), ..answer() },
            api::Grant { carrier: "pigeon".into(), ..answer() },
            api::Grant { expires: 1 << 32, ..answer() },
            api::Grant { header: "06".repeat(7), ..answer() },
        ] {
            assert!(matches!(grant(&broken), Err(Unusable::Malformed(_))));
        }
    }
}
