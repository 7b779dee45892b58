//! Text that people and peers write: policies, TOML documents, the API's JSON.

use engine::document::{Reader, duration, hint, seconds};
use engine::model::{Given, Receiver, Target, protected};
use engine::policy::diff::compare;
use engine::policy::{Action, Compiled, Decision, Policy, Request, Subject};
use serde::{Serialize, de::DeserializeOwned};
use wire::{Destination, Ends, Vni};

/// Reads a policy file. Checks that the positions of faults are inside the text, and that an accepted policy decides
/// every request, with an explanation that agrees with the decision.
pub fn policy(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let policy = match Policy::parse(text, 3600) {
        Ok(policy) => policy,
        Err(faults) => {
            assert!(!faults.all().is_empty());
            let lines = text.split('\n').count();
            return assert!(faults.all().iter().all(|fault| (1..=lines).contains(&fault.line) && fault.column > 0));
        }
    };
    // The authority may refuse a policy that would take too much memory.
    let Ok(compiled) = Compiled::new(policy) else { return };
    let policy = compiled.policy();
    assert!(compiled.failures().len() <= policy.expectations().len());
    if policy.receivers().len() <= 4 && policy.rules().len() <= 4 {
        assert!(compare(policy, policy, 0).is_ok_and(|changes| changes.is_empty()), "a policy differs from itself");
    }
    let mut persons = policy.persons();
    persons.insert("somebody");
    let receivers: Vec<_> = policy.receivers().iter().flat_map(|receiver| receiver.entries()).collect();
    // Too many spans may be refused, but must not cause a panic.
    let _ = protected::entries(&receivers);
    // Steps from one change to the next, as the authority's clock does.
    let times: Vec<_> = std::iter::successors(policy.next_change(0), |at| policy.next_change(*at)).take(4).collect();
    assert!(times.is_sorted_by(|one, other| one < other));
    let now = times.first().copied().unwrap_or(0);
    for person in persons.into_iter().take(4) {
        policy.destinations(&Subject::person(person), now);
        for receiver in policy.receivers().iter().take(4) {
            for (prefix, service) in receiver.prefixes.iter().zip(&receiver.services) {
                let protocol = if service.protocol == 0 { 6 } else { service.protocol };
                let to = Destination { address: prefix.addr(), protocol, port: service.first_port };
                decide(&compiled, &Request { subject: Subject::person(person), to, now });
            }
        }
    }
}

/// Checks that a decision about a grant and its explanation agree.
fn decide(compiled: &Compiled, request: &Request<'_>) {
    let to = &request.to;
    let decision = compiled.policy().decide(request);
    let explained = decision.explain(request);
    let trace = compiled.trace(request);
    assert_eq!((trace.allowed, trace.rule.map(|rule| rule.rule)), (explained.allowed, explained.rule.clone()));
    match &decision {
        Decision::NoReceiver => panic!("a receiver's own address is no receiver"),
        Decision::DefaultDeny { .. } => assert!(!explained.allowed && explained.rule.is_none()),
        Decision::Denied { rule, .. } => assert!(!explained.allowed && rule.action == Action::Deny),
        Decision::Allowed(permit) => {
            assert!(explained.allowed && permit.rule.action == Action::Allow);
            assert!(permit.scope.prefix.contains(&to.address));
            assert!(permit.receiver.covers(to));
            assert!(permit.until.is_none_or(|until| until > request.now));
            assert!((10..=3600).contains(&permit.rule.terms.lifetime));
        }
    }
}

/// Reads a TOML document with every getter. Then parses the text twice more: as if it were a time, and as if it were the
/// target of a consent.
pub fn document(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let known = ["text", "list", "yes", "number", "seconds", "tables"];
    let read = Reader::read(text, &known, |reader, root| {
        root.text(reader, "text");
        root.required_texts(reader, "list");
        root.yes(reader, "yes");
        let number = root.number(reader, "number", 5, 1, 10);
        let time = root.seconds(reader, "seconds", 60, 10, 3600);
        assert!((1..=10).contains(&number) && (10..=3600).contains(&time));
        for fields in root.tables(reader, "tables", "a table", &known) {
            fields.required_text(reader, "text");
            fields.required(reader, "list");
        }
        Some(())
    });
    if let Err(faults) = read {
        let lines = text.split('\n').count();
        assert!(!faults.all().is_empty());
        assert!(faults.all().iter().all(|fault| (1..=lines).contains(&fault.line) && fault.column > 0));
        assert!(faults.to_string().lines().count() >= faults.all().len());
    }
    if let Some(time) = seconds(text) {
        assert_eq!(seconds(&duration(time)), Some(time));
    }
    if text.len() < 100 {
        hint(text, known.into_iter());
    }
    if let Ok(target) = text.parse::<Target>() {
        assert_eq!(target.to_string().parse(), Ok(target));
    }
}

/// Reads a JSON body as every type that a peer may send. Checks that writing an accepted body and reading it again
/// yields the same value.
pub fn api(input: &[u8]) {
    again::<api::Event>(input);
    again::<api::Login>(input);
    again::<api::Session>(input);
    again::<api::Destinations>(input);
    again::<api::GrantRequest>(input);
    again::<api::Grant>(input);
    again::<api::Enrolment>(input);
    again::<api::Enrolled>(input);
    again::<api::VerifierConfig>(input);
    again::<api::LiveFlows>(input);
    again::<api::FlowsToCut>(input);
    again::<api::Report>(input);
    again::<api::Reported>(input);
    again::<api::EpochKeys>(input);
    again::<api::GrantOwner>(input);
    again::<api::Complaint>(input);
    again::<api::Standing>(input);
    again::<api::ExplainRequest>(input);
    again::<api::Explanation>(input);
    again::<api::PersonExplanation>(input);
    again::<api::LoggedOut>(input);
    again::<api::Authorities>(input);
    again::<api::Problem>(input);
    again::<api::SegmentRequest>(input);
    again::<api::PathSegment>(input);
    if let Ok(request) = serde_json::from_slice::<api::AnswerRequest>(input) {
        shown(&request);
    }
    if let Ok(text) = std::str::from_utf8(input) {
        let _ = engine::policy::networks::Networks::parse(text);
    }
    if let Ok(config) = serde_json::from_slice::<api::VerifierConfig>(input) {
        let receivers = serde_json::to_value(&config.receivers).expect("what was read can be written");
        let receivers: Vec<Receiver> = serde_json::from_value(receivers).expect("both have the same fields");
        let _ = protected::entries(&receivers);
    }
}

/// Checks that writing the segment in a request and reading it again yields the same value, if it was accepted.
fn shown(request: &api::AnswerRequest) {
    let &api::AnswerRequest { vni, sending, receiving, sender, receiver, ref option, ref hops } = request;
    let ends = Ends { sending, receiving, sender, receiver };
    let (Some(vni), Ok(option)) = (Vni::new(vni), hex::decode(option)) else { return };
    if let Ok(shown) = Given::from_option(&option, vni, ends, hops.clone()) {
        assert_eq!(Given::from_option(&shown.option(), vni, ends, hops.clone()), Ok(shown));
    }
}

fn again<T: Serialize + DeserializeOwned>(input: &[u8]) {
    let Ok(value) = serde_json::from_slice::<T>(input) else { return };
    let written = serde_json::to_string(&value).expect("what was read can be written");
    let read = serde_json::from_str::<T>(&written).expect("what was written can be read");
    assert_eq!(written, serde_json::to_string(&read).expect("it can be written again"));
}
