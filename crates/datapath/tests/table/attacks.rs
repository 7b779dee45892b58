//! Attacks by people who saw a token: docs/threats.md has the promises that they would break.

use super::{CLIENT_PORT, Case, TRANSPORTS, Transport};
use crate::world::{FLOWS_PER_GRANT, Family, Grant, families};
use engine::verifier::Outcome;
use wire::DropReason;
use wire::map::TOKENS_PER_FLOW;

const OWNER: u64 = 20;

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for family in families() {
        for transport in TRANSPORTS {
            copied_tokens(&mut cases, &family, transport);
        }
    }
    cases
}

/// Somebody who saw a token sends copies of it: the grant's later tokens are admitted all the same.
fn copied_tokens(cases: &mut Vec<Case>, family: &Family, transport: Transport) {
    let grant = Grant::new(family, OWNER);
    let first = transport.first(family, &grant, CLIENT_PORT, 1);
    let name = format!("{}, copies of a token use up nothing of its grant", transport.name());
    let mut case = Case::new(family, "§6.4", &name).admitted(&first);
    for copy in 0..2 * FLOWS_PER_GRANT * TOKENS_PER_FLOW {
        let elsewhere = transport.first(family, &grant, CLIENT_PORT + 1 + copy as u16, 1);
        case = case.frame(elsewhere.frame(), Outcome::Drop(DropReason::Replayed));
    }
    cases.push(case.admitted(&transport.first(family, &grant, CLIENT_PORT + 200, 2)));
}
