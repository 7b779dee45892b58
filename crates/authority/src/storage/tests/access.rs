use super::*;
use engine::policy::delegation::RequestId;
use engine::policy::parse_service;

fn request(receiver: &str) -> NewRequest {
    NewRequest {
        id: random_number().unwrap(),
        session: SESSION,
        person: "robot".into(),
        source: SOURCE.parse().unwrap(),
        receiver: receiver.into(),
        services: vec![parse_service("tcp/22").unwrap()],
        lifetime: Some(3600),
        reason: "because".into(),
    }
}

/// Adds an account with a session that may decide, and puts a policy in force.
fn with_delegate(database: &mut Database) -> TokenHash {
    const DELEGATE: TokenHash = [9; 32];
    let service = NewService { name: "dora", key: "01", groups: &[], tags: &[] };
    database.add_service(&service, &Operator::current(), 1).unwrap();
    let session = Session {
        person: "dora".into(),
        device: "desk".into(),
        expires: i64::MAX as u64,
        tags: Vec::new(),
        groups: Vec::new(),
        ends: None,
        holder: wire::Holder::default(),
    };
    database.add_session(DELEGATE, &session, &Proof::Service("01".into()), SOURCE.parse().unwrap(), 1).unwrap();
    let change =
        PolicyChange { text: String::new(), note: String::new(), by: None, summary: String::new(), after: None };
    database.note_policy(&change, 1).unwrap();
    DELEGATE
}

fn verdict(session: TokenHash, until: Option<u64>) -> AccessVerdict {
    AccessVerdict {
        session,
        decider: "dora".into(),
        by: Operator::current(),
        version: 1,
        delegation: "dba".into(),
        label: "policy.toml:1 delegation dba".into(),
        allow: until.map(|until| (vec![parse_service("tcp/22").unwrap()], until)),
        note: "a note".into(),
    }
}

fn asked(database: &mut Database, receiver: &str, now: u64) -> RequestId {
    match database.ask_access(&request(receiver), now).unwrap() {
        Asked::Done(id) => id,
        other => panic!("{other:?}"),
    }
}

#[test]
fn one_person_fills_neither_the_table_nor_the_trail() {
    let room = tempfile::tempdir().unwrap();
    let mut database = database(&room);
    database.connection.execute("UPDATE sessions SET expires = 200000", []).unwrap();
    let first = asked(&mut database, "r0", 100);
    assert_eq!(database.ask_access(&request("r0"), 101).unwrap(), Asked::Already(first));
    let ids: Vec<_> = (1..8).map(|nth| asked(&mut database, &format!("r{nth}"), 100)).collect();
    let refused = |asked| matches!(asked, Asked::TooMany(_));
    assert!(refused(database.ask_access(&request("r8"), 100).unwrap()), "too many wait for a decision");
    let by = Operator::current();
    for id in ids.into_iter().chain([first]) {
        assert!(database.withdraw_access(id, Some("robot"), &by, 101).unwrap().is_some());
        assert!(database.withdraw_access(id, Some("robot"), &by, 101).unwrap().is_none(), "twice");
    }
    for _ in 8..32 {
        let id = asked(&mut database, "r0", 102);
        assert!(database.withdraw_access(id, Some("dora"), &by, 102).unwrap().is_none(), "another's");
        database.withdraw_access(id, None, &by, 102).unwrap();
    }
    assert!(refused(database.ask_access(&request("r0"), 103).unwrap()), "too many in a day");
    asked(&mut database, "r0", 102 + 86_400);
    assert_eq!(database.ask_access(&request("r1"), 10_000_000).unwrap(), Asked::SessionEnded);
}

#[test]
fn the_first_decision_counts_and_a_decision_needs_the_policy_that_was_read() {
    let room = tempfile::tempdir().unwrap();
    let mut database = database(&room);
    let session = with_delegate(&mut database);
    let id = asked(&mut database, "db", 100);
    let outdated = AccessVerdict { version: 7, ..verdict(session, Some(900)) };
    assert_eq!(database.decide_access(id, &outdated, 100).unwrap(), Decided::PolicyChanged);
    let other = AccessVerdict { session: SESSION, ..verdict(session, Some(900)) };
    assert_eq!(database.decide_access(id, &other, 100).unwrap(), Decided::SessionEnded, "another's session");
    let own = AccessVerdict { session: SESSION, decider: "robot".into(), ..verdict(session, Some(900)) };
    assert_eq!(database.decide_access(id, &own, 100).unwrap(), Decided::Own);
    let made = database.consent_changes().unwrap();
    assert_eq!(
        database.decide_access(id, &verdict(session, Some(900)), 100).unwrap(),
        Decided::Done { person: "robot".into() }
    );
    assert_eq!(database.consent_changes().unwrap(), made + 1);
    assert!(matches!(database.decide_access(id, &verdict(session, None), 101).unwrap(), Decided::Already(_)));
    let consents = database.consents().unwrap();
    let consent = &consents.of("robot")[0];
    assert_eq!((consent.id, consent.from, consent.until, &*consent.by), (id, 100, 900, "dora"));
    assert_eq!(database.expire_consents(&[id], 900).unwrap(), ["robot"]);
    assert!(database.expire_consents(&[id], 901).unwrap().is_empty(), "once");
    assert_eq!(database.consents().unwrap().all().count(), 0);
    assert_eq!(database.consents_since(500).unwrap().of("robot").len(), 1);
    assert_eq!(database.consents_since(950).unwrap().of("robot").len(), 0);
}

#[test]
fn what_has_ended_is_forgotten_after_a_month_and_what_is_in_effect_is_not() {
    let room = tempfile::tempdir().unwrap();
    let mut database = database(&room);
    let session = with_delegate(&mut database);
    let (kept, refused) = (asked(&mut database, "a", 100), asked(&mut database, "b", 100));
    asked(&mut database, "c", 100);
    let far = 100 * 86_400;
    database.decide_access(kept, &verdict(session, Some(far)), 100).unwrap();
    database.decide_access(refused, &verdict(session, None), 100).unwrap();
    database.prune(31 * 86_400, 0, u32::MAX).unwrap();
    let left: Vec<_> = database.access_requests(true).unwrap().into_iter().map(|entry| entry.id).collect();
    assert_eq!(left, [kept]);
    let made = database.consent_changes().unwrap();
    database.remove_service("robot", &Operator::current(), 31 * 86_400).unwrap();
    assert!(database.access_requests(true).unwrap().is_empty() && database.consent_changes().unwrap() > made);
}

#[test]
fn the_database_of_format_14_gets_the_tables() {
    let room = tempfile::tempdir().unwrap();
    let database = database(&room);
    let undo = "DROP TABLE access_requests; DROP TABLE consent_changes; PRAGMA user_version = 14;";
    database.connection.execute_batch(undo).unwrap();
    drop(database);
    let mut database = Database::open(&room.path().join("authority.db")).unwrap();
    asked(&mut database, "db", 100);
    assert_eq!(database.consent_changes().unwrap(), 0);
}
