use super::*;
use wire::Holder;

/// Logs in the service account `robot` and returns the result.
fn log_in(database: &mut Database, token: TokenHash, now: u64) -> Login {
    let (tags, groups, holder) = (Vec::new(), Vec::new(), Holder::default());
    let (person, device) = ("robot".into(), "rack".into());
    let session = Session { person, device, expires: 10_000, tags, groups, ends: None, holder };
    database.add_session(token, &session, &Proof::Service("00".into()), SOURCE.parse().unwrap(), now).unwrap()
}

fn holder(login: Login) -> Holder {
    let Login::Done { holder, .. } = login else { panic!("{login:?}") };
    holder
}

fn log_out(database: &mut Database, token: TokenHash, now: u64) {
    let by = Operator::current();
    assert!(database.end_own_session("robot", session_number(&token), &by, now).unwrap());
}

#[test]
fn a_database_of_format_9_is_brought_to_this_one() {
    let room = tempfile::tempdir().unwrap();
    let file = room.path().join("authority.db");
    Connection::open(&file).unwrap().execute_batch(include_str!("format-9.sql")).unwrap();
    for _ in 0..2 {
        let database = Database::open(&file).unwrap();
        let sessions: std::collections::HashMap<_, _> =
            database.sessions(100).unwrap().into_iter().map(|(token, session)| (token[0], session.holder)).collect();
        let [first, second, browser, bobs] = [1, 2, 3, 4].map(|token| sessions[&token]);
        assert_eq!((first, second), (Holder::new(1, 0).unwrap(), Holder::new(1, 1).unwrap()));
        assert_eq!((browser, bobs), (Holder::default(), Holder::new(2, 0).unwrap()));
    }
    let mut database = Database::open(&file).unwrap();
    let recorded = database.add_grants(&[Issuance { session: [2; 32], ..grant(7, [2; 32]) }]).unwrap();
    assert_eq!(recorded, [Recorded::Done]);
    // One of alice's grants belongs to a session that ended before the migration, when this was not recorded. The other
    // belongs to a session that verifiers can't identify by the handle: the end of the session revokes this grant too.
    let held = |database: &Database| database.grants(100, false).unwrap().into_iter().map(|grant| grant.handle.0);
    assert_eq!(held(&database).collect::<Vec<_>>(), [7, 0x101]);
    database.end_expired_sessions(10_000).unwrap();
    assert_eq!(database.take_ended_sessions().unwrap().len(), 1);
    assert_eq!(held(&database).count(), 0);
    assert_eq!(database.take_rechecks().unwrap(), ["edge"]);
}

#[test]
fn a_database_of_another_program_is_refused() {
    let room = tempfile::tempdir().unwrap();
    for version in [8, SCHEMA_VERSION + 1] {
        let file = room.path().join(version.to_string());
        Connection::open(&file).unwrap().pragma_update(None, "user_version", version).unwrap();
        let error = Database::open(&file).err().unwrap().to_string();
        assert!(
            error.contains(&format!(
                "has format {version}, but this version of Vouchsafe reads formats 9 to {SCHEMA_VERSION} only"
            )),
            "{error}"
        );
    }
}

#[test]
fn an_account_keeps_its_number_and_another_of_its_name_gets_another() {
    let room = tempfile::tempdir().unwrap();
    let (mut database, by) = (database(&room), Operator::current());
    assert_eq!(holder(log_in(&mut database, [1; 32], 100)), Holder::new(1, 1).unwrap());
    database.remove_service("robot", &by, 101).unwrap();
    let service = NewService { name: "robot", key: "00", groups: &[], tags: &[] };
    database.add_service(&service, &by, 102).unwrap();
    assert_eq!(holder(log_in(&mut database, [2; 32], 103)), Holder::new(2, 0).unwrap());
}

#[test]
fn the_removal_of_a_user_removes_no_service_account() {
    let room = tempfile::tempdir().unwrap();
    let mut database = database(&room);
    let error = database.remove_account("robot", &Operator::current(), 101).unwrap_err().to_string();
    assert!(error.contains("`vouchsafe authority service remove` removes it"), "{error}");
    assert!(database.service_key("robot").unwrap().is_some());
}

#[test]
fn a_slot_is_not_used_again_while_a_grant_of_its_session_may_be_in_use() {
    let room = tempfile::tempdir().unwrap();
    let mut database = database(&room);
    // The first session has slot 0. It ends with a grant that lasts until 400; 30 seconds later no verifier's clock
    // accepts the grant.
    assert_eq!(database.add_grants(&[grant(1, SESSION)]).unwrap(), [Recorded::Done]);
    log_out(&mut database, SESSION, 110);
    let token = |nth: u16| -> TokenHash { std::array::from_fn(|at| nth.to_be_bytes()[at % 2]) };
    let mut last = None;
    for nth in 1..600_u16 {
        let slot = holder(log_in(&mut database, token(nth), 111)).session();
        // Slots of sessions without grants are free at once and are assigned in rotation.
        assert_eq!(u16::from(slot), (nth - 1) % 255 + 1);
        log_out(&mut database, token(nth), 111);
        last = Some(slot);
    }
    assert_eq!(last, Some(89));
    for nth in 600..766 {
        let slot = holder(log_in(&mut database, token(nth), 430)).session();
        assert_eq!(u16::from(slot), nth - 600 + 90);
        log_out(&mut database, token(nth), 430);
    }
    assert_eq!(holder(log_in(&mut database, token(800), 430)).session(), 0);
}

#[test]
fn an_account_whose_slots_are_all_in_use_waits_for_the_first() {
    let room = tempfile::tempdir().unwrap();
    let mut database = database(&room);
    let token = |nth: u16| -> TokenHash { std::array::from_fn(|at| nth.to_be_bytes()[at % 2]) };
    for nth in 1..=255 {
        log_in(&mut database, token(nth), 100);
        assert_eq!(database.add_grants(&[grant(nth.into(), token(nth))]).unwrap(), [Recorded::Done]);
        log_out(&mut database, token(nth), 101);
    }
    // The session from the setup is still live.
    assert_eq!(log_in(&mut database, token(256), 102), Login::TooMany { seconds: 430 - 102 });
    assert!(matches!(log_in(&mut database, token(257), 430), Login::Done { .. }));
}

#[test]
fn pairs_say_who_holds_them() {
    let room = tempfile::tempdir().unwrap();
    let mut database = database(&room);
    let held = holder(log_in(&mut database, [1; 32], 100));
    // A pair's handle begins with a zero byte.
    database.add_grants(&[grant(5, [1; 32])]).unwrap();
    assert_eq!(database.pairs("edge", 100, 3600).unwrap()[0].holder, held.0);
}

/// Requests this many grants for a session, each with a different handle.
fn ask(database: &mut Database, session: TokenHash, count: u64, now: u64) -> Vec<Recorded> {
    let requests: Vec<_> = (0..count)
        .map(|nth| {
            let mut request = grant(now << 32 | u64::from(session[0]) << 16 | nth, session);
            (request.owner.issued, request.owner.expires) = (now, now + 300);
            request
        })
        .collect();
    database.add_grants(&requests).unwrap()
}

#[test]
fn grants_that_were_revoked_count_until_they_would_have_ended() {
    let room = tempfile::tempdir().unwrap();
    let mut database = database(&room);
    for round in 1..=4 {
        log_in(&mut database, [round; 32], 100);
        assert!(ask(&mut database, [round; 32], 1024, 100).iter().all(|recorded| *recorded == Recorded::Done));
        assert_eq!(ask(&mut database, [round; 32], 1, 101), [Recorded::TooMany { seconds: 299 }]);
        log_out(&mut database, [round; 32], 100);
    }
    log_in(&mut database, [5; 32], 100);
    assert_eq!(ask(&mut database, [5; 32], 1, 399), [Recorded::TooMany { seconds: 1 }]);
    assert!(ask(&mut database, [5; 32], 1024, 400).iter().all(|recorded| *recorded == Recorded::Done));
}

#[test]
fn a_session_ends_by_one_note_however_many_grants_it_had() {
    let room = tempfile::tempdir().unwrap();
    let mut database = database(&room);
    let held = holder(log_in(&mut database, [1; 32], 100));
    ask(&mut database, [1; 32], 1000, 100);
    let before = database.connection.total_changes();
    log_out(&mut database, [1; 32], 200);
    // The five rows are the session, its slot, its place in the queue of announcements, the audit entry and the trail's
    // head.
    assert_eq!(database.connection.total_changes() - before, 5);
    let ended = database.take_ended_sessions().unwrap();
    let expected = ("edge".to_owned(), api::RevokedSession { holder: held.0, expires: 430 });
    assert_eq!(ended, std::slice::from_ref(&expected));
    assert!(database.take_ended_sessions().unwrap().is_empty());
    assert!(database.revoked("edge", 200).unwrap().is_empty());
    assert_eq!(database.revoked_sessions("edge", 429).unwrap(), [expected.1]);
    assert!(database.revoked_sessions("edge", 430).unwrap().is_empty());
    assert!(database.grants(200, false).unwrap().is_empty());
    assert!(database.grants(200, true).unwrap().iter().all(|grant| grant.revoked == Some(200)));
}

#[test]
fn a_revoked_grant_comes_with_the_holder_that_its_handle_names() {
    let room = tempfile::tempdir().unwrap();
    let mut database = database(&room);
    let held = holder(log_in(&mut database, [1; 32], 100));
    ask(&mut database, [1; 32], 1, 100);
    let handle = database.grants(100, false).unwrap()[0].handle;
    database.revoke(&Which::Grant(handle), &Operator::current(), 100).unwrap();
    let expected = api::RevokedGrant { handle: handle.0, expires: 400, holder: held.0 };
    let revoked = database.revoked("edge", 100).unwrap();
    assert_eq!((revoked.len(), revoked[0].grant, revoked[0].learned), (1, expected, Some(130)));
    assert_eq!(database.grants_of("edge", &[handle]).unwrap()[0].0, expected);
    assert_eq!(database.take_unannounced().unwrap()[0].grant.grant, expected);
    // Verifiers can't read the holder in handles from before format 10.
    database.connection.execute("UPDATE session_slots SET unnamed = 1", []).unwrap();
    assert_eq!(database.revoked("edge", 100).unwrap()[0].grant.holder, 0);
}
