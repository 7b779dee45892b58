//! The table of ended sessions when it is full.

#[allow(dead_code, reason = "the table's rows are its other user")]
mod world;

use datapath::hook::Hook;
use datapath::verifier::{Sizes, Verifier};
use wire::Holder;
use wire::map::RevokedKey;
use world::{NOW, SIZES};

fn holder(account: u32, session: u8) -> Holder {
    Holder::new(account, session).expect("small")
}

#[test]
fn kernel_shuts_out_the_account_that_fills_the_table_of_ended_sessions_and_nobody_else() {
    let sizes = Sizes { revoked: 16, ..SIZES };
    let verifier = Verifier::load(Hook::Xdp, world::config(), sizes, None).unwrap_or_else(|error| panic!("{error:#}"));
    let table = &verifier.revoked_holders;
    table.set(holder(7, 1), NOW + 100).expect("room");
    for session in 0..15 {
        assert_eq!(table.set(holder(9, session), NOW + u32::from(session)).expect("room"), None);
    }
    // The table is full, and account 9 has the most entries.
    assert_eq!(table.set(holder(8, 1), NOW + 50).expect("account 9 makes room"), Some(9));
    for session in 0..=255 {
        assert!(table.contains(holder(9, session)).expect("read"), "session {session}");
    }
    let alone = |account| (0..=255).filter(|session| table.contains(holder(account, *session)).expect("read")).count();
    assert_eq!((alone(7), alone(8), alone(6)), (1, 1, 0));
    assert_eq!(table.entries().len(), 3);
    // The account's later sessions take no more room, and the latest expiry counts.
    table.set(holder(9, 200), NOW + 70).expect("room");
    assert!(table.entries().contains(&(RevokedKey::account(9), NOW + 70)));
    // Once its grants have expired, the account is accepted again.
    verifier.sweep(NOW + 101).expect("sweep");
    assert_eq!((alone(9), alone(7)), (0, 1));
}

#[test]
fn kernel_refuses_a_session_more_only_if_no_account_has_two() {
    let sizes = Sizes { revoked: 16, ..SIZES };
    let verifier = Verifier::load(Hook::Xdp, world::config(), sizes, None).unwrap_or_else(|error| panic!("{error:#}"));
    let table = &verifier.revoked_holders;
    for account in 1..=16 {
        table.set(holder(account, 0), NOW + 100).expect("room");
    }
    assert!(table.set(holder(17, 0), NOW + 100).is_err());
    // With this session, an account that already has an entry has two.
    assert_eq!(table.set(holder(5, 1), NOW + 100).expect("its own room"), Some(5));
    assert_eq!(table.entries().len(), 16);
}
