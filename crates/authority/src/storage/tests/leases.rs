use super::*;
use engine::issuing::lease::Turn;
use wire::Handle;

/// Returns a grant with this number that can be renewed until 9000.
fn renewable(database: &Database, number: u32, session: TokenHash) -> Issuance {
    let (key, _) = database.numbering().unwrap();
    let half = key.encrypt(Turn { number, epochs: 0 });
    let mut issuance = grant(0xab00_0000_0000_0000 | u64::from(half), session);
    issuance.renewable = Some((LeaseTerms { number, issued: 100, lease: 300 }, 9000));
    issuance
}

/// Returns the handle of a grant in another epoch.
fn later(database: &Database, number: u32, epochs: u32) -> Handle {
    let (key, _) = database.numbering().unwrap();
    Handle(0x1234_5678_0000_0000 | u64::from(key.encrypt(Turn { number, epochs })))
}

#[test]
fn a_grant_is_found_by_each_of_its_handles() {
    let room = tempfile::tempdir().unwrap();
    let mut database = database(&room);
    let issuances = [renewable(&database, 0, SESSION), renewable(&database, 1, SESSION), grant(5, SESSION)];
    let first = Handle(issuances[1].owner.handle);
    let recorded = database.add_grants(&issuances).unwrap();
    assert_eq!(recorded, [Recorded::Renewable, Recorded::Renewable, Recorded::Done]);
    assert_eq!(database.numbering().unwrap().1, 2);
    let handle = later(&database, 1, 3);
    assert_eq!(database.grant(handle).unwrap().unwrap().handle, first);
    let owner = database.grant_owner("edge", handle).unwrap().unwrap();
    assert_eq!((owner.handle, owner.expires), (handle.0, 9000));
    assert!(database.grant_owner("another", handle).unwrap().is_none());
    assert!(database.grant(later(&database, 2, 3)).unwrap().is_none());
    assert!(database.live_grant_of("robot", handle, 8999).unwrap().is_some());
    // The numbers outlive the grants.
    database.prune(9000, 0, 1_000_000).unwrap();
    assert!(database.grant(handle).unwrap().is_none());
    assert_eq!(database.numbering().unwrap().1, 2);
}

#[test]
fn a_request_that_is_refused_uses_up_no_number() {
    let room = tempfile::tempdir().unwrap();
    let mut database = database(&room);
    let refused = renewable(&database, 7, [9; 32]);
    assert_eq!(database.add_grants(&[refused]).unwrap(), [Recorded::SessionEnded]);
    assert_eq!(database.numbering().unwrap().1, 0);
    assert_eq!(database.add_grants(&[renewable(&database, 7, SESSION)]).unwrap(), [Recorded::Renewable]);
    assert_eq!(database.numbering().unwrap().1, 8);
}

#[test]
fn no_two_grants_have_one_number() {
    let room = tempfile::tempdir().unwrap();
    let mut database = database(&room);
    let mut again = renewable(&database, 0, SESSION);
    again.owner.handle ^= 1 << 63;
    let both = [renewable(&database, 0, SESSION), again];
    assert_eq!(database.add_grants(&both).unwrap(), [Recorded::Renewable, Recorded::NumberTaken]);
    assert_eq!(database.grants(100, true).unwrap().len(), 1);
}

#[test]
fn a_revocation_by_any_handle_ends_the_grant_and_its_flows() {
    let room = tempfile::tempdir().unwrap();
    let mut database = database(&room);
    database.add_grants(&[renewable(&database, 7, SESSION)]).unwrap();
    let (first, handle) = (renewable(&database, 7, SESSION).owner.handle, later(&database, 7, 2));
    let by = Operator::current();
    assert!(database.revoke(&Which::OwnGrant("mallory".into(), handle), &by, 5000).is_err());
    assert_eq!(database.revoke(&Which::Grant(handle), &by, 5000).unwrap().map(|ended| ended.grants), Some(1));
    let ended = database.take_unannounced().unwrap();
    let terms = Some(LeaseTerms { number: 7, issued: 100, lease: 300 });
    assert_eq!((ended[0].grant.grant.handle, ended[0].grant.renewable), (first, terms));
    // The first lease has expired, and flows that began with it may be live.
    assert_eq!(database.take_rechecks().unwrap(), ["edge"]);
    let cut = database.grants_of("edge", &[handle, Handle(first)]).unwrap();
    assert!(cut.iter().all(|(_, entry)| entry.is_none()));
    assert_eq!(cut[0].0.handle, handle.0);
    let entries = database.audit_entries(None, 1).unwrap();
    assert_eq!((entries[0].event.as_str(), entries[0].detail.as_str()), ("revoked", &*Handle(first).to_string()));
}

#[test]
fn the_end_of_a_session_counts_from_its_last_lease() {
    let room = tempfile::tempdir().unwrap();
    let mut database = database(&room);
    let holder = database.sessions(100).unwrap()[0].1.holder;
    database.add_grants(&[renewable(&database, 0, SESSION)]).unwrap();
    assert!(database.end_own_session("robot", session_number(&SESSION), &Operator::current(), 4000).unwrap());
    let told = api::RevokedSession { holder: holder.0, expires: 4360 };
    assert_eq!(database.take_ended_sessions().unwrap(), [("edge".to_owned(), told)]);
    assert_eq!(database.revoked_sessions("edge", 4359).unwrap(), [told]);
    assert!(database.revoked_sessions("edge", 4360).unwrap().is_empty());
    // It never counts as live again, although it would have lasted until 9000.
    for time in [4000, 4361, 8999] {
        database.prune(time, 100, 1_000_000).unwrap();
        assert!(database.grants(time, false).unwrap().is_empty(), "{time}");
    }
    database.prune(9100, 100, 1_000_000).unwrap();
    let left: i64 = database.connection.query_row("SELECT count(*) FROM session_slots", [], |row| row.get(0)).unwrap();
    assert_eq!(left, 0);
}

#[test]
fn few_grants_can_be_renewed_and_the_others_end_with_their_lease() {
    let room = tempfile::tempdir().unwrap();
    let mut database = database(&room);
    let many: Vec<_> = (0..300).map(|number| renewable(&database, number, SESSION)).collect();
    let recorded = database.add_grants(&many).unwrap();
    assert_eq!(recorded.iter().filter(|recorded| **recorded == Recorded::Renewable).count(), 256);
    assert!(recorded[256..].iter().all(|recorded| *recorded == Recorded::Done));
    assert_eq!(database.grants(400, false).unwrap().len(), 256);
    // The end of the session makes room at once for the account's other sessions.
    assert!(database.end_own_session("robot", session_number(&SESSION), &Operator::current(), 500).unwrap());
    let counted = "SELECT coalesce(sum(grants), 0) FROM unexpired_grants WHERE expires > 860";
    let left: i64 = database.connection.query_row(counted, [], |row| row.get(0)).unwrap();
    assert_eq!(left, 0);
}

/// An insider requests grants that cannot be renewed, or ends their sessions, as fast as they can.
#[test]
fn an_account_records_one_grant_a_second_in_the_long_run() {
    let room = tempfile::tempdir().unwrap();
    let mut database = database(&room);
    let used = "UPDATE account_numbers SET paced = 100 + 99999";
    database.connection.execute(used, []).unwrap();
    assert_eq!(database.add_grants(&[grant(1, SESSION)]).unwrap(), [Recorded::Done]);
    assert_eq!(database.add_grants(&[grant(2, SESSION)]).unwrap(), [Recorded::TooMany { seconds: 1 }]);
    let mut next = grant(2, SESSION);
    (next.owner.issued, next.owner.expires) = (101, 401);
    assert_eq!(database.add_grants(&[next]).unwrap(), [Recorded::Done]);
}

#[test]
fn a_server_that_starts_takes_up_what_is_live() {
    let room = tempfile::tempdir().unwrap();
    let mut database = database(&room);
    let issuances = [renewable(&database, 0, SESSION), renewable(&database, 1, SESSION), grant(5, SESSION)];
    database.add_grants(&issuances).unwrap();
    database.revoke(&Which::Grant(Handle(issuances[0].owner.handle)), &Operator::current(), 200).unwrap();
    let resumed = database.renewable_grants(200).unwrap();
    assert_eq!(resumed.len(), 1);
    let Resumed { session, renewable, until, handle, .. } = &resumed[0];
    assert_eq!((*session, renewable.number, *until, handle.0), (SESSION, 1, 9000, issuances[1].owner.handle));
    assert_eq!(resumed[0].scope, issuances[1].scope);
    assert!(database.renewable_grants(9000).unwrap().is_empty());
}
