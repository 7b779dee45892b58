//! What was asked for of late, judged by a draft of a policy: the grants that were given, and what was refused. Persons'
//! devices have the tags that they have today.

use crate::storage::Database;
use anyhow::Result;
use engine::policy::{Compiled, Outcome, Request, Subject, place};
use serde::Serialize;
use std::collections::BTreeMap;
use wire::Destination;

/// What a draft would have done otherwise.
#[derive(Debug, Serialize)]
pub struct Replay {
    /// Grants that were looked at.
    pub grants: usize,
    /// Refusals that were looked at.
    pub refusals: usize,
    /// What was given and would not be.
    pub refused: Vec<Case>,
    /// What was refused and would not be.
    pub allowed: Vec<Case>,
}

/// The same question, asked so many times.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Case {
    /// Who asked.
    pub person: String,
    /// From which device.
    pub device: String,
    /// For what.
    pub to: String,
    /// How often.
    pub times: usize,
    /// When last, Unix seconds.
    pub last: u64,
    /// What the draft says.
    pub why: String,
}

type Cases = BTreeMap<(String, String, String, String), (usize, u64)>;

impl Replay {
    /// Judges what was asked for since a time.
    pub fn of(draft: &Compiled, database: &Database, since: u64) -> Result<Self> {
        let (grants, refusals) = (database.grants_since(since)?, database.refusals(since)?);
        let (mut refused, mut allowed) = (Cases::new(), Cases::new());
        for grant in &grants {
            let to = Destination { address: grant.address, protocol: grant.protocol, port: grant.port };
            note(draft, grant.subject(), &grant.device, to, grant.issued, Outcome::Deny, &mut refused);
        }
        for refusal in &refusals {
            note(draft, refusal.subject(), &refusal.device, refusal.to, refusal.time, Outcome::Allow, &mut allowed);
        }
        let (refused, allowed) = (listed(refused), listed(allowed));
        Ok(Self { grants: grants.len(), refusals: refusals.len(), refused, allowed })
    }
}

/// Counts a question if the draft's answer to it is as `wanted`; where nothing would be protected any more, nothing is
/// refused.
fn note(
    draft: &Compiled,
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
        let (times, last) = cases.entry(key).or_default();
        *times += 1;
        *last = now.max(*last);
    }
}

fn listed(cases: Cases) -> Vec<Case> {
    let case = |((person, device, to, why), (times, last))| Case { person, device, to, times, last, why };
    cases.into_iter().map(case).collect()
}
