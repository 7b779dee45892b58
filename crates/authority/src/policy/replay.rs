//! Replay: a draft of a policy decides recent requests again, both granted and refused ones. The decision uses the
//! present tags of a person's devices, not the tags at the time of the request. Consents count as they were at that
//! time, within the delegations of the draft.

use crate::storage::{Database, GrantEntry};
use anyhow::Result;
use engine::policy::delegation::Consents;
use engine::policy::{Compiled, Decision, Outcome, Request, Subject, place};
use serde::Serialize;
use std::collections::BTreeMap;
use wire::Destination;

/// The requests that the draft would have decided differently.
#[derive(Debug, Serialize)]
pub struct Replay {
    /// Number of grants that the draft decided again.
    pub grants: usize,
    /// Number of recorded refusals about which the draft policy decided.
    pub refusals: usize,
    /// Requests that were granted and that the draft would refuse.
    pub refused: Vec<Case>,
    /// Requests that were refused and that the draft would allow.
    pub allowed: Vec<Case>,
    /// Requests that were granted and that the draft would grant with another treatment in a sealed tunnel.
    pub treated: Vec<Case>,
}

/// Requests of one person and device for one destination. The draft decides all of them for the same reason.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Case {
    /// The person who made the requests.
    pub person: String,
    /// The device that the requests came from.
    pub device: String,
    /// The requested destination.
    pub to: String,
    /// Number of requests.
    pub times: usize,
    /// Time of the last request, in Unix seconds.
    pub last: u64,
    /// The draft's explanation of its decision.
    pub why: String,
}

/// A draft, and the consents of the time that is decided again.
struct Draft<'a> {
    policy: &'a Compiled,
    consents: Consents,
}

impl Draft<'_> {
    fn decide(&self, request: &Request<'_>) -> Decision<'_> {
        self.policy.decide_with(request, &self.consents)
    }
}

type Cases = BTreeMap<(String, String, String, String), (usize, u64)>;

impl Replay {
    /// Lets `draft` decide the requests since the time `since`, in Unix seconds.
    ///
    /// # Errors
    /// Fails if the database cannot be read.
    pub fn of(draft: &Compiled, database: &Database, since: u64) -> Result<Self> {
        let (grants, refusals) = (database.grants_since(since)?, database.refusals(since)?);
        let draft = Draft { policy: draft, consents: database.consents_since(since)? };
        let (mut refused, mut allowed, mut treated) = (Cases::new(), Cases::new(), Cases::new());
        for grant in &grants {
            let to = Destination { address: grant.address, protocol: grant.protocol, port: grant.port };
            note(&draft, grant.subject(), &grant.device, to, grant.issued, Outcome::Deny, &mut refused);
            note_treatment(&draft, grant, to, &mut treated);
        }
        for refusal in &refusals {
            note(&draft, refusal.subject(), &refusal.device, refusal.to, refusal.time, Outcome::Allow, &mut allowed);
        }
        let [refused, allowed, treated] = [refused, allowed, treated].map(listed);
        Ok(Self { grants: grants.len(), refusals: refusals.len(), refused, allowed, treated })
    }
}

/// Adds a request to `cases` if the draft decides it as `wanted`. A destination that the draft does not protect counts
/// as allowed.
fn note(
    draft: &Draft<'_>,
    subject: Subject<'_>,
    device: &str,
    to: Destination,
    now: u64,
    wanted: Outcome,
    cases: &mut Cases,
) {
    let request = Request { subject, to, now };
    let decision = draft.decide(&request);
    let outcome = match Outcome::of(&decision) {
        Outcome::Unprotected => Outcome::Allow,
        other => other,
    };
    if outcome == wanted {
        let key = (subject.person.to_owned(), device.to_owned(), place(&to), decision.explain(&request).text);
        add(cases, key, now);
    }
}

/// Adds a grant to `cases` if the draft would issue it with another treatment.
fn note_treatment(draft: &Draft<'_>, grant: &GrantEntry, to: Destination, cases: &mut Cases) {
    let request = Request { subject: grant.subject(), to, now: grant.issued };
    let decision = draft.decide(&request);
    let Decision::Allowed(permit) = &decision else { return };
    let [before, after] = [grant.sealing().treatment, permit.terms.sealing.treatment];
    if before != after {
        let why = format!("{} instead of {}: {}", after.name(), before.name(), decision.explain(&request).text);
        add(cases, (grant.person.clone(), grant.device.clone(), place(&to), why), grant.issued);
    }
}

fn add(cases: &mut Cases, key: (String, String, String, String), at: u64) {
    let (times, last) = cases.entry(key).or_default();
    *times += 1;
    *last = at.max(*last);
}

fn listed(cases: Cases) -> Vec<Case> {
    let case = |((person, device, to, why), (times, last))| Case { person, device, to, times, last, why };
    cases.into_iter().map(case).collect()
}
