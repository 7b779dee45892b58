//! The table of revoked grants when it is full.

#[allow(dead_code, reason = "the table's rows are its other user")]
mod world;

use datapath::hook::Hook;
use datapath::shut_out::{Placed, Revocation};
use datapath::verifier::{Sizes, Verifier};
use wire::Holder;
use wire::map::RevokedKey;
use world::{NOW, SIZES};

fn load() -> Verifier {
    let sizes = Sizes { revoked: 16, ..SIZES };
    Verifier::load(Hook::Xdp, world::config(), sizes, None).unwrap_or_else(|error| panic!("{error:#}"))
}

fn holder(account: u32, session: u8) -> Holder {
    Holder::new(account, session).expect("small")
}

/// Returns the grants of these numbers, all of one account.
fn of(account: u32, numbers: impl IntoIterator<Item = u64>, expires: u32) -> Vec<Revocation> {
    let grant = |number| Revocation { handle: u64::from(account) << 32 | number, holder: holder(account, 1), expires };
    numbers.into_iter().map(grant).collect()
}

fn is_shut_out(verifier: &Verifier, account: u32) -> bool {
    verifier.revoked_holders.contains(holder(account, 200)).expect("read")
}

/// Reports whether the verifier refuses this grant's tokens.
fn is_refused(verifier: &Verifier, grant: &Revocation) -> bool {
    verifier.revoked.get(grant.handle).expect("read").is_some()
        || verifier.revoked_holders.contains(grant.holder).expect("read")
}

#[test]
fn kernel_shuts_out_the_account_that_fills_the_table_of_revoked_grants_and_nobody_else() {
    let verifier = load();
    let (mine, greedy, more) = (of(7, 0..2, NOW + 100), of(9, 0..14, NOW + 60), of(8, 0..1, NOW + 50));
    assert_eq!(verifier.revoke(&mine), Placed::default());
    assert_eq!(verifier.revoke(&greedy), Placed::default());
    assert_eq!(verifier.revoke(&more), Placed { shut_out: vec![9], left: Vec::new() });
    assert_eq!([6, 7, 8, 9].map(|account| is_shut_out(&verifier, account)), [false, false, false, true]);
    assert!([&mine, &greedy, &more].into_iter().flatten().all(|grant| is_refused(&verifier, grant)));
    assert_eq!(verifier.revoked.handles().len(), 3);
    // The account's later grants take no room, and the latest expiry counts.
    assert_eq!(verifier.revoke(&of(9, 20..60, NOW + 70)), Placed::default());
    assert_eq!(verifier.revoked_holders.entries(), [(RevokedKey::account(9), NOW + 70)]);
    assert_eq!(verifier.revoked.handles().len(), 3);
    // Once its grants have expired, the account is accepted again.
    verifier.sweep(NOW + 101).expect("sweep");
    assert!(!is_shut_out(&verifier, 9) && is_refused(&verifier, &mine[0]));
}

#[test]
fn kernel_knows_the_accounts_of_a_full_table_after_a_restart() {
    let verifier = load();
    // An earlier process wrote these entries.
    for grant in of(9, 0..14, NOW + 60).iter().chain(&of(7, 0..2, NOW + 60)) {
        verifier.revoked.set(grant.handle, grant.expires).expect("room");
    }
    let all = [of(8, 0..1, NOW + 60), of(7, 0..2, NOW + 60), of(9, 0..14, NOW + 60)].concat();
    assert_eq!(verifier.revoke(&all), Placed { shut_out: vec![9], left: Vec::new() });
    assert!(all.iter().all(|grant| is_refused(&verifier, grant)));
    assert_eq!(verifier.revoked.handles().len(), 3);
}

#[test]
fn kernel_refuses_a_revocation_more_only_if_no_account_has_two() {
    let verifier = load();
    for account in 1..=16 {
        assert_eq!(verifier.revoke(&of(account, 0..1, NOW + 100)), Placed::default());
    }
    let one_more = of(17, 0..1, NOW + 100);
    assert_eq!(verifier.revoke(&one_more).left, [one_more[0].handle]);
    // With this grant, an account that already has an entry has two.
    assert_eq!(verifier.revoke(&of(5, 1..2, NOW + 100)), Placed { shut_out: vec![5], left: Vec::new() });
    assert_eq!(verifier.revoked.handles().len(), 15);
}

#[test]
fn kernel_gives_an_account_its_own_entries_back_once_there_is_room() {
    let verifier = load();
    let (greedy, others) = (of(9, 0..10, NOW + 300), [of(8, 0..5, NOW + 10), of(7, 0..5, NOW + 10)].concat());
    let sessions = [(holder(9, 3), NOW + 300), (holder(6, 1), NOW + 300)];
    verifier.revoked_holders.set(sessions[0].0, sessions[0].1).expect("room");
    verifier.revoke(&greedy);
    assert_eq!(verifier.revoke(&others), Placed { shut_out: vec![9], left: Vec::new() });
    let all = [greedy.clone(), others.clone()].concat();
    assert!(verifier.readmit(&all, &sessions).expect("read").is_empty(), "no room yet");
    assert!(is_shut_out(&verifier, 9));
    verifier.sweep(NOW + 60).expect("sweep");
    assert_eq!(verifier.readmit(&greedy, &sessions).expect("room"), [9]);
    assert!(!is_shut_out(&verifier, 9));
    assert!(greedy.iter().all(|grant| is_refused(&verifier, grant)), "what was revoked stays revoked");
    assert!(verifier.revoked_holders.contains(holder(9, 3)).expect("read"), "and so does the session that ended");
    assert!(!is_refused(&verifier, &of(9, 50..51, NOW)[0]));
}
