//! Accounts and their sessions: wire.md §3.9, §6.4. What one does costs the others nothing.

use super::{CLIENT_PORT, Case, First, Step, TRANSPORTS, Transport};
use crate::world::{Family, Grant, families};
use engine::verifier::Outcome;
use wire::{DropReason, Holder};

const ALICE: u32 = 3;
const BOB: u32 = 4;

fn holder(account: u32, session: u8) -> Holder {
    Holder::new(account, session).expect("small")
}

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for family in families() {
        for transport in TRANSPORTS {
            sessions(&mut cases, &family, transport);
        }
    }
    cases
}

/// The end of a session ends all that its grants admitted, and nothing else.
fn sessions(cases: &mut Vec<Case>, family: &Family, transport: Transport) {
    let first = |holder: Holder, grant: u32, port: u16| -> First {
        transport.first(family, &Grant::of(family, holder, grant), CLIENT_PORT + port, 1)
    };
    let later = |port: u16| transport.later(family, CLIENT_PORT + port).payload(b"more").frame();
    let (ended, other, stranger) = (holder(ALICE, 1), holder(ALICE, 2), holder(BOB, 1));
    let case = |what: &str| Case::new(family, "§6.4", &format!("{}, {what}", transport.name()));
    let revoked = Outcome::Drop(DropReason::Revoked);
    cases.push(
        case("no grant of a session that ended admits")
            .step(Step::End(ended))
            .frame(first(ended, 1, 0).frame(), revoked)
            .frame(first(ended, 2, 1).frame(), revoked)
            .admitted(&first(other, 3, 2))
            .admitted(&first(stranger, 4, 3)),
    );
    let unknown = Outcome::Drop(if transport == Transport::Tcp { DropReason::NoFlow } else { DropReason::NoToken });
    cases.push(
        case("the flows of a session end with it")
            .admitted(&first(ended, 1, 0))
            .admitted(&first(ended, 2, 1))
            .admitted(&first(other, 3, 2))
            .admitted(&first(stranger, 4, 3))
            .step(Step::End(ended))
            .step(Step::Sweep)
            .frame(later(0), unknown)
            .frame(later(1), unknown)
            .frame(later(2), Outcome::Flow)
            .frame(later(3), Outcome::Flow),
    );
}
