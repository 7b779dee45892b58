//! Accounts and their sessions: wire.md §3.9, §6.4. One account's actions cost the others nothing.

use super::{CLIENT_PORT, Case, First, Step, TRANSPORTS, Transport};
use crate::world::{FLOWS_PER_ACCOUNT, Family, GRANTS_PER_ACCOUNT, Grant, NOW, families};
use engine::verifier::Outcome;
use wire::map::TOKENS_PER_FLOW;
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
            flows(&mut cases, &family, transport);
            tokens(&mut cases, &family, transport);
            grants(&mut cases, &family, transport);
        }
    }
    cases
}

/// The end of a session ends all flows that its grants admitted, and no others.
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
    cases.push(
        case("no grant of an account that is shut out admits, whatever its session")
            .step(Step::ShutOut(ALICE))
            .frame(first(ended, 1, 0).frame(), revoked)
            .frame(first(other, 3, 2).frame(), revoked)
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
    cases.push(
        case("the flows of an account end when it is shut out")
            .admitted(&first(ended, 1, 0))
            .admitted(&first(other, 3, 2))
            .admitted(&first(stranger, 4, 3))
            .step(Step::ShutOut(ALICE))
            .step(Step::Sweep)
            .frame(later(0), unknown)
            .frame(later(2), unknown)
            .frame(later(3), Outcome::Flow),
    );
}

/// An account has a limit of flows, however many grants and sessions it has; other accounts have their own.
fn flows(cases: &mut Vec<Case>, family: &Family, transport: Transport) {
    let first = |holder: Holder, grant: u32, port: u16| -> First {
        transport.first(family, &Grant::of(family, holder, grant), CLIENT_PORT + port, 1)
    };
    let full = |case: Case| {
        (0..FLOWS_PER_ACCOUNT)
            .fold(case, |case, flow| case.admitted(&first(holder(ALICE, flow as u8 % 3), flow, flow as u16)))
    };
    let case = |what: &str| Case::new(family, "§6.4.2", &format!("{}, {what}", transport.name()));
    let limit = Outcome::Drop(DropReason::FlowLimit);
    let more = |grant, port| first(holder(ALICE, 9), grant, port);
    cases.push(
        full(case("an account has its flows and no more, whatever its grants"))
            .frame(more(50, 50).frame(), limit)
            .frame(more(51, 51).frame(), limit)
            .admitted(&first(holder(BOB, 1), 60, 60))
            .admitted(&first(holder(BOB, 1), 61, 61)),
    );
    // A refused flow was charged neither to the account nor to its grant: the same token is valid once there is room.
    cases.push(
        full(case("an account has room again when its flows end"))
            .frame(more(50, 50).frame(), limit)
            .step(Step::Revoke(Grant::of(family, holder(ALICE, 0), 0).handle))
            .step(Step::Sweep)
            .admitted(&more(50, 50))
            .frame(more(51, 51).frame(), limit),
    );
}

/// An account has a limit of tokens per window, however many grants it has: one flow of each is opened again and again.
fn tokens(cases: &mut Vec<Case>, family: &Family, transport: Transport) {
    let first = |holder: Holder, grant: u32, nonce: u32| -> First {
        transport.first(family, &Grant::of(family, holder, grant), CLIENT_PORT + grant as u16, nonce)
    };
    let most = FLOWS_PER_ACCOUNT * TOKENS_PER_FLOW;
    let case = Case::new(family, "§6.4.2", &format!("{}, an account has its tokens and no more", transport.name()));
    let case = (0..most).fold(case, |case, token| case.admitted(&first(holder(ALICE, 1), token % 3, token)));
    cases.push(
        case.frame(first(holder(ALICE, 2), 7, 1).frame(), Outcome::Drop(DropReason::FlowLimit)).admitted(&first(
            holder(BOB, 1),
            8,
            1,
        )),
    );
}

/// An account has a limit of grants in use, even if they have one flow among them; other accounts have their own.
fn grants(cases: &mut Vec<Case>, family: &Family, transport: Transport) {
    const LATER: u32 = 400;
    let first = |holder: Holder, grant: u32, nonce: u32| -> First {
        transport.first(family, &Grant::of(family, holder, grant), CLIENT_PORT, nonce)
    };
    // A token of a newer grant takes the flow over.
    let full = |case: Case| {
        (0..GRANTS_PER_ACCOUNT).fold(case, |case, grant| case.admitted(&first(holder(ALICE, 1), grant, 1)))
    };
    let case = |what: &str| Case::new(family, "§6.4.2", &format!("{}, {what}", transport.name()));
    let limit = Outcome::Drop(DropReason::FlowLimit);
    let more = first(holder(ALICE, 2), 50, 1);
    let of_another = transport.first(family, &Grant::of(family, holder(BOB, 1), 60), CLIENT_PORT + 1, 1);
    cases.push(
        full(case("an account has its grants in use and no more"))
            .frame(more.frame(), limit)
            .admitted(&of_another)
            .admitted(&first(holder(ALICE, 1), GRANTS_PER_ACCOUNT - 1, 2)),
    );
    let grant = Grant { expires: NOW + LATER + 100, ..Grant::of(family, holder(ALICE, 1), 70) };
    let token = grant.token(&transport.destination(family), NOW + LATER, 1);
    cases.push(
        full(case("an account has room again when its grants have ended"))
            .frame(more.frame(), limit)
            .step(Step::Wait(LATER))
            .step(Step::Sweep)
            .admitted(&First { token, ..transport.first(family, &grant, CLIENT_PORT + 2, 1) }),
    );
}
