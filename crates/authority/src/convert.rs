//! Conversions between the messages of the API and the types of `engine`, which makes the decisions.

use engine::issuing::grant::Issued;
use engine::model::{self, Given, Grant, Receiver, Sealing, Secret, Service};
use engine::policy::{Explanation, Permit};
use wire::{DropReason, Ends, SegmentFlags, Vni};

/// Converts receivers into the form that the API's messages contain.
pub fn receivers(receivers: impl IntoIterator<Item = Receiver>) -> Vec<api::Receiver> {
    let service = |service: &Service| {
        let Service { protocol, first_port, last_port } = *service;
        api::Service { protocol, first_port, last_port }
    };
    let receiver = |Receiver { name, prefix, services }: Receiver| {
        let services = services.iter().map(service).collect();
        api::Receiver { name, prefix, services }
    };
    receivers.into_iter().map(receiver).collect()
}

/// Returns a grant that was issued at `now` in the form in which the client receives it.
pub fn grant(grant: &Grant, now: u64) -> api::Grant {
    let (header, key) = match &grant.secret {
        Secret::Grant(header, key) => (hex::encode(header.encode()), hex::encode(key.bytes())),
        Secret::Pair(pair, key) => (hex::encode(pair.bytes()), hex::encode(key.bytes())),
    };
    api::Grant {
        header,
        key,
        prefix: grant.prefix,
        receiver: grant.receiver.clone(),
        rule: grant.rule.clone(),
        carrier: grant.carrier.name().into(),
        sealing: (!grant.tunnels.is_empty())
            .then(|| api::GrantSealing { demand: sealing(&grant.sealing), tunnels: grant.tunnels.clone() }),
        expires: grant.expires.into(),
        now,
    }
}

/// Returns a grant's owner in the form in which the verifier receives it.
pub fn owner(issued: &Issued, permit: &Permit<'_>, person: &str, device: &str, now: u64) -> api::GrantOwner {
    api::GrantOwner {
        handle: issued.handle().0,
        person: person.into(),
        device: device.into(),
        receiver: permit.receiver.name.clone(),
        rule: permit.label().to_string(),
        issued: now,
        expires: issued.expires.into(),
        class: permit.terms.class,
        sealing: permit.terms.sealing.is_sealed().then(|| sealing(&permit.terms.sealing)),
    }
}

/// Converts a rule's demands on a sealed tunnel into the form that the API's messages contain.
pub fn sealing(demand: &Sealing) -> api::Sealing {
    let Sealing { treatment, compress, suites, forward_secrecy, rekey } = *demand;
    api::Sealing {
        treatment: treatment.name().into(),
        compress: compress.map(|compress| compress.name().into()),
        suites: suites.iter().map(|suite| suite.name().into()).collect(),
        forward_secrecy,
        rekey,
    }
}

/// Reads demands in the form that [`sealing`] returns. Returns `None` if they contain a name that this version does not
/// know.
pub fn demand(sealing: &api::Sealing) -> Option<Sealing> {
    let api::Sealing { treatment, compress, suites, forward_secrecy, rekey } = sealing;
    Sealing::from_names(treatment, compress.as_deref(), suites.iter().map(String::as_str), *forward_secrecy, *rekey)
}

/// Returns the message that announces a pair to its verifier, or `None` if `issued` is not a pair.
pub fn pair(issued: &Issued, now: u64) -> Option<api::LivePair> {
    let (handle, epoch, holder) = (issued.pair()?.handle().0, issued.epoch.0, issued.holder.0);
    Some(api::LivePair { handle, epoch, issued: now, expires: issued.expires, holder })
}

/// Converts an explanation of a decision into the form that the API's messages contain.
pub fn explanation(explanation: Explanation) -> api::Explanation {
    let Explanation { allowed, receiver, rule, text } = explanation;
    api::Explanation { allowed, receiver, rule, text }
}

/// Returns an issued segment in the form in which the client receives it.
pub fn segment(model::Issued { given, answers, others }: &model::Issued, now: u64) -> api::PathSegment {
    api::PathSegment {
        vni: given.vni.number(),
        receiving: given.ends.receiving,
        expires: given.segment.expires.into(),
        reply: given.segment.flags.has(SegmentFlags::REPLY),
        option: hex::encode(given.option()),
        hops: given.hops.clone(),
        answers: hex::encode(answers),
        others: *others,
        now,
    }
}

/// Returns the segment that `request` presents. (The caller requests a different segment, in the reverse direction.)
///
/// # Errors
///
/// Fails if the request contains no well-formed segment for the addresses in the request.
pub fn shown(request: &api::AnswerRequest) -> Result<Given, DropReason> {
    let [sending, receiving, sender, receiver] =
        [request.sending, request.receiving, request.sender, request.receiver].map(|address| address.to_canonical());
    let vni = Vni::new(request.vni).ok_or(DropReason::Malformed)?;
    let option = hex::decode(&request.option).map_err(|_| DropReason::Malformed)?;
    Given::from_option(&option, vni, Ends { sending, receiving, sender, receiver }, request.hops.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_that_is_none_is_told() {
        let text = r#"{"vni":1,"sending":"::1","receiving":"::1","sender":"::1","receiver":"::1","option":"ff"}"#;
        let request: api::AnswerRequest = serde_json::from_str(text).unwrap();
        for (vni, option) in [(1, "ff"), (1, "x"), (1 << 24, ""), (1, "")] {
            let request = api::AnswerRequest { vni, option: option.into(), ..request.clone() };
            assert!(shown(&request).is_err(), "{vni} {option}");
        }
    }
}
