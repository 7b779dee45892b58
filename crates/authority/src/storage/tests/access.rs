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
        version: 0,
        groups: Vec::new(),
        delegations: vec!["dba".into()],
        prefixes: addresses(receiver).unwrap(),
    }
}

fn policy(text: &str) -> PolicyChange {
    PolicyChange { text: text.into(), note: String::new(), by: None, summary: String::new(), after: None }
}

/// Adds an account with a session that may decide, and puts a policy in force.
pub(super) fn with_delegate(database: &mut Database) -> TokenHash {
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
    database.note_policy(&policy(""), 1, &addresses).unwrap();
    DELEGATE
}

fn verdict(session: TokenHash, until: Option<u64>) -> AccessVerdict {
    AccessVerdict {
        session,
        decider: "dora".into(),
        by: Operator::current(),
        version: 1,
        groups: Vec::new(),
        applicant_groups: Vec::new(),
        applicant_tags: Vec::new(),
        delegation: "dba".into(),
        label: "policy.toml:1 delegation dba".into(),
        allow: until.map(|until| (vec![parse_service("tcp/22").unwrap()], until)),
        note: "a note".into(),
    }
}

pub(super) fn asked(database: &mut Database, receiver: &str, now: u64) -> RequestId {
    let version = policies::version(&database.connection).unwrap();
    match database.ask_access(&NewRequest { version, ..request(receiver) }, now).unwrap() {
        RequestOutcome::Done(id) => id,
        other => panic!("{other:?}"),
    }
}

#[test]
fn one_person_fills_neither_the_table_nor_the_trail() {
    let room = tempfile::tempdir().unwrap();
    let mut database = database(&room);
    database.connection.execute("UPDATE sessions SET expires = 200000", []).unwrap();
    let first = asked(&mut database, "r0", 100);
    assert_eq!(database.ask_access(&request("r0"), 101).unwrap(), RequestOutcome::Already(first));
    let ids: Vec<_> = (1..8).map(|nth| asked(&mut database, &format!("r{nth}"), 100)).collect();
    let refused = |asked| matches!(asked, RequestOutcome::TooMany(_));
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
    assert_eq!(database.ask_access(&request("r1"), 10_000_000).unwrap(), RequestOutcome::SessionEnded);
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
    let undo = "DROP TABLE access_requests; DROP TABLE consent_changes; DROP TABLE access_receivers;
                DROP TABLE access_unexamined; PRAGMA user_version = 14;";
    database.connection.execute_batch(undo).unwrap();
    drop(database);
    let mut database = Database::open(&room.path().join("authority.db")).unwrap();
    asked(&mut database, "db", 100);
    assert_eq!(database.consent_changes().unwrap(), 0);
}

/// Undoes the conversion to format 16.
const FORMAT_15: &str = "
DROP TABLE access_receivers; DROP TABLE access_unexamined;
ALTER TABLE access_requests DROP COLUMN delegations; ALTER TABLE access_requests DROP COLUMN generation;
PRAGMA user_version = 15;
";

/// Returns a database of format 15 with an open request and a consent, after the conversion. The policy in force is
/// version 1.
fn converted(room: &tempfile::TempDir) -> Database {
    let mut database = database(room);
    let session = with_delegate(&mut database);
    let id = asked(&mut database, "db", 100);
    database.decide_access(id, &verdict(session, Some(9000)), 100).unwrap();
    asked(&mut database, "web", 100);
    database.connection.execute_batch(FORMAT_15).unwrap();
    drop(database);
    Database::open(&room.path().join("authority.db")).unwrap()
}

#[test]
fn consents_of_format_15_count_for_the_receivers_of_the_policy_in_force() {
    let room = tempfile::tempdir().unwrap();
    let mut database = converted(&room);
    assert_eq!(database.access_requests(true).unwrap().len(), 2);
    assert_eq!(database.consents().unwrap().of("robot").len(), 1);
    let of = |name: &str| (name.to_owned(), addresses(name).unwrap());
    // A server that has not followed the version in force knows nothing about it.
    database.note_receivers(7, &[].into()).unwrap();
    assert_eq!(database.consents().unwrap().of("robot").len(), 1);
    database.note_receivers(1, &[of("db"), of("web")].into()).unwrap();
    database.note_receivers(1, &[].into()).unwrap();
    assert_eq!(database.consents().unwrap().of("robot").len(), 1, "the addresses are noted once");
    let page = database.open_access_requests(&["web".into()], &["other".into()], "dora", None).unwrap();
    assert_eq!(page.entries.len(), 1, "nobody knows which delegations covered the person");
    drop(database);
    // A policy that comes into force before the addresses are noted may give the name to another receiver.
    let room = tempfile::tempdir().unwrap();
    let mut database = converted(&room);
    database.apply_policy(&policy("two"), &[], 101, &addresses, || Ok(())).unwrap();
    assert_eq!(database.consents().unwrap().all().count(), 0);
}

#[test]
fn the_next_receiver_of_a_name_inherits_neither_requests_nor_consents() {
    let to = |text: &str| {
        let prefix: ipnet::IpNet = text.parse().unwrap();
        move |_: &str| Some(vec![prefix])
    };
    let room = tempfile::tempdir().unwrap();
    let mut database = database(&room);
    let session = with_delegate(&mut database);
    let id = asked(&mut database, "db", 100);
    database.decide_access(id, &verdict(session, Some(9000)), 100).unwrap();
    let apply = |database: &mut Database, text: &str, addresses: &dyn Fn(&str) -> Option<Vec<ipnet::IpNet>>| {
        let version = database.apply_policy(&policy(text), &[], 101, addresses, || Ok(())).unwrap();
        (version, database.consents().unwrap().of("robot").len())
    };
    // The receiver keeps its name and an address.
    let both = |_: &str| -> Option<Vec<ipnet::IpNet>> {
        Some(vec!["203.0.113.20/32".parse().unwrap(), "203.0.113.21/32".parse().unwrap()])
    };
    assert_eq!(apply(&mut database, "2", &both), (2, 1));
    assert_eq!(apply(&mut database, "3", &to("203.0.113.21/32")), (3, 1));
    assert_eq!(apply(&mut database, "4", &to("203.0.113.0/24")), (4, 1));
    // It is removed, and another one gets its name and its address.
    let made = database.consent_changes().unwrap();
    assert_eq!(apply(&mut database, "5", &|_| None), (5, 0));
    assert!(database.consent_changes().unwrap() > made, "members read the consents again");
    assert_eq!(apply(&mut database, "6", &to("203.0.113.0/24")), (6, 0));
    while database.end_outdated_access(102).unwrap() {}
    assert_eq!(database.access_request(id).unwrap().unwrap().state, AccessState::Withdrawn);
    assert_eq!(database.unexamined().unwrap().len(), 1, "the grants are examined");
    // An open request does not become one for another receiver either, and somebody who asks anew gets no old consent.
    let id = asked(&mut database, "db", 102);
    assert_eq!(apply(&mut database, "7", &to("198.51.100.1/32")), (7, 0));
    let late = AccessVerdict { version: 7, ..verdict(session, Some(9000)) };
    assert_eq!(database.decide_access(id, &late, 103).unwrap(), Decided::NoRequest);
    while database.end_outdated_access(103).unwrap() {}
    let again = asked(&mut database, "db", 104);
    database.decide_access(again, &late, 104).unwrap();
    assert_eq!(database.consents().unwrap().of("robot").len(), 1);
    assert_eq!(database.access_receivers().unwrap(), ["db"]);
    database.prune(100 * 86_400, 0, u32::MAX).unwrap();
    database.remove_service("robot", &Operator::current(), 101 * 86_400).unwrap();
    database.prune(102 * 86_400, 0, u32::MAX).unwrap();
    assert!(database.access_receivers().unwrap().is_empty() && database.unexamined().unwrap().is_empty());
}

#[test]
fn a_decision_needs_the_groups_that_were_read() {
    let room = tempfile::tempdir().unwrap();
    let (mut database, by) = (database(&room), Operator::current());
    let session = with_delegate(&mut database);
    let id = asked(&mut database, "db", 100);
    let staff = vec!["staff".to_owned()];
    // The delegate leaves the group between the request and the commit of the decision.
    let as_member = AccessVerdict { groups: staff.clone(), ..verdict(session, Some(900)) };
    assert_eq!(database.decide_access(id, &as_member, 100).unwrap(), Decided::GroupsChanged);
    let refusal = AccessVerdict { groups: staff.clone(), ..verdict(session, None) };
    assert_eq!(database.decide_access(id, &refusal, 100).unwrap(), Decided::GroupsChanged);
    // The person who asks leaves the group.
    let for_member = AccessVerdict { applicant_groups: staff.clone(), ..verdict(session, Some(900)) };
    assert_eq!(database.decide_access(id, &for_member, 100).unwrap(), Decided::GroupsChanged);
    // A device of the person loses its tag.
    let with_tag = AccessVerdict { applicant_tags: vec!["managed".into()], ..verdict(session, Some(900)) };
    assert_eq!(database.decide_access(id, &with_tag, 100).unwrap(), Decided::GroupsChanged);
    assert_eq!(database.access_request(id).unwrap().unwrap().state, AccessState::Open);
    database.set_service_groups("robot", &staff, &by, 100).unwrap();
    assert_eq!(
        database.ask_access(&NewRequest { version: 1, ..request("web") }, 100).unwrap(),
        RequestOutcome::Changed
    );
    assert_eq!(
        database.ask_access(&NewRequest { groups: staff, ..request("web") }, 100).unwrap(),
        RequestOutcome::Changed
    );
    assert!(matches!(database.decide_access(id, &for_member, 101).unwrap(), Decided::Done { .. }));
}

#[test]
fn however_many_ask_a_delegate_finds_each_request() {
    let room = tempfile::tempdir().unwrap();
    let mut database = database(&room);
    with_delegate(&mut database);
    let first = asked(&mut database, "db", 100);
    // 60 people fill the list.
    let fill = "INSERT INTO access_requests
                    (id, person, receiver, services, reason, asked, state, allowed, delegations, generation, until)
                WITH RECURSIVE nth (n) AS (VALUES (1) UNION ALL SELECT n + 1 FROM nth WHERE n < 240)
                SELECT 1000 + n, 'p' || (n % 60), 'db', '[]', '', 100 + n / 50, ?1, ?1 = 'allowed', '[\"dba\"]', 1, 500
                FROM nth";
    for state in ["open", "allowed"] {
        let fill = if state == "open" { fill.to_owned() } else { fill.replace("1000 +", "2000 +") };
        database.connection.execute(&fill, [state]).unwrap();
    }
    let db = ["db".to_owned()];
    let all = |next: &dyn Fn(Option<AccessMark>) -> AccessPage| {
        let (mut found, mut pages, mut after) = (Vec::new(), 0, None);
        loop {
            let page = next(after);
            found.extend(page.entries);
            pages += 1;
            after = page.next;
            if after.is_none() {
                return (found, pages);
            }
        }
    };
    let open =
        |own: &str, but: &str| all(&|after| database.open_access_requests(&db, &[own.to_owned()], but, after).unwrap());
    let (found, pages) = open("dba", "dora");
    assert_eq!((found.len(), pages), (241, 3));
    assert!(found.is_sorted_by(|one, other| (one.asked, one.id) > (other.asked, other.id)), "newest first, each once");
    assert!(found.iter().any(|entry| entry.id == first));
    assert_eq!((open("dba", "p7").0.len(), open("other", "dora").0.len()), (237, 0));
    let (found, pages) = all(&|after| database.consents_for(&db, after).unwrap());
    assert_eq!((found.len(), pages), (240, 3));
    let (found, _) = all(&|after| database.access_requests_of("p7", after).unwrap());
    assert_eq!(found.len(), 8);
}
