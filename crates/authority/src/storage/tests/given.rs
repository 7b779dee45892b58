//! Consents without a request: limits, and changes between the check and the record.

use std::collections::BTreeSet;

use super::access::{asked, with_delegate};
use super::*;
use engine::policy::parse_service;

fn consent(holder: &str, receiver: &str) -> NewConsent {
    NewConsent {
        id: random_number().unwrap(),
        holder: holder.parse().unwrap(),
        facts: PersonFacts { groups: Vec::new(), tags: Vec::new() },
        receiver: receiver.into(),
        prefixes: addresses(receiver).unwrap(),
        services: vec![parse_service("tcp/22").unwrap()],
        delegation: "dba".into(),
        label: "policy.toml:1 delegation dba".into(),
        until: 9000,
        note: "a note".into(),
    }
}

/// Returns consents that an operator gives, or the delegate with this session.
fn given(session: Option<TokenHash>, consents: Vec<NewConsent>) -> NewConsents {
    let delegate = |session| GivingDelegate { session, person: "dora".into(), groups: Vec::new() };
    NewConsents { delegate: session.map(delegate), by: Operator::current(), version: 1, consents }
}

fn is_done(given: &Given) -> bool {
    matches!(given, Given::Done(_))
}

#[test]
fn consents_are_recorded_all_or_none() {
    let room = tempfile::tempdir().unwrap();
    let mut database = database(&room);
    let session = with_delegate(&mut database);
    let made = database.consent_changes().unwrap();
    for (session, third, refused) in [
        (None, consent("nobody", "db"), Given::NoPerson(2)),
        (
            Some(session),
            NewConsent { facts: PersonFacts { groups: vec!["x".into()], tags: Vec::new() }, ..consent("robot", "db") },
            Given::HolderChanged(2),
        ),
        (
            None,
            NewConsent { facts: PersonFacts { groups: Vec::new(), tags: vec!["x".into()] }, ..consent("robot", "db") },
            Given::HolderChanged(2),
        ),
    ] {
        let all = given(session, vec![consent("robot", "db"), consent("group:staff", "db"), third]);
        assert_eq!(database.give_access(&all, 100).unwrap(), refused);
    }
    let all = || vec![consent("robot", "db"), consent("group:staff", "db"), consent("tag:x", "web")];
    let outdated = NewConsents { version: 7, ..given(Some(session), all()) };
    assert_eq!(database.give_access(&outdated, 100).unwrap(), Given::Changed);
    let mut left = given(Some(session), all());
    left.delegate.as_mut().unwrap().groups = vec!["dba".into()];
    assert_eq!(database.give_access(&left, 100).unwrap(), Given::Changed);
    assert_eq!(database.give_access(&given(Some([8; 32]), all()), 100).unwrap(), Given::SessionEnded);
    assert!(database.access_requests(true).unwrap().is_empty() && database.consent_changes().unwrap() == made);
    let Given::Done(ids) = database.give_access(&given(Some(session), all()), 100).unwrap() else { panic!() };
    let entries = database.access_requests(false).unwrap();
    assert_eq!((ids.len(), entries.len(), database.consent_changes().unwrap()), (3, 3, made + 1));
    assert!(entries.iter().all(|entry| entry.is_unasked() && entry.is_current && entry.until == Some(9000)));
    let consents = database.consents().unwrap();
    assert_eq!((consents.all().count(), consents.of("robot").len()), (3, 1));
    assert_eq!(database.withdraw_consents_by("dora", &Operator::current(), 200).unwrap().len(), 3);
    // Consents have random ids, and each withdrawal is a change of its own.
    let unexamined: BTreeSet<_> = database.unexamined().unwrap().into_iter().map(|of| of.person).collect();
    assert_eq!(unexamined, ["group:staff", "robot", "tag:x"].map(str::to_owned).into());
}

#[test]
fn nobody_fills_the_table_with_consents() {
    let room = tempfile::tempdir().unwrap();
    let mut database = database(&room);
    let session = with_delegate(&mut database);
    let many = |count, holder: &dyn Fn(usize) -> String, receiver: &str| {
        (0..count).map(|nth| consent(&holder(nth), receiver)).collect::<Vec<_>>()
    };
    let robot = |_: usize| "robot".to_owned();
    let refused = |given: Given| matches!(given, Given::TooMany(64, why) if why.contains("64 consents"));
    assert!(refused(database.give_access(&given(None, many(65, &robot, "db")), 100).unwrap()));
    assert!(is_done(&database.give_access(&given(None, many(64, &robot, "db")), 100).unwrap()));
    let one = database.give_access(&given(None, many(1, &robot, "web")), 100).unwrap();
    assert!(matches!(one, Given::TooMany(0, _)));
    // The person can still ask: what others gave does not count.
    let by = Operator::current();
    let own = by.name().to_owned();
    assert_eq!(database.withdraw_consents_by(&own, &by, 100).unwrap().len(), 64);
    asked(&mut database, "db", 100);
    // Each member of a group costs decisions nothing, but each group does.
    let group = |nth: usize| format!("group:g{nth}");
    assert!(is_done(&database.give_access(&given(None, many(256, &group, "db")), 100).unwrap()));
    let more = |nth: usize| format!("group:h{nth}");
    let one = database.give_access(&given(None, many(1, &more, "db")), 100).unwrap();
    assert!(matches!(one, Given::TooMany(0, why) if why.contains("256 groups")));
    let tag = |nth: usize| format!("tag:t{nth}");
    let many_tags = database.give_access(&given(None, many(745, &tag, "db")), 100).unwrap();
    assert!(matches!(many_tags, Given::TooMany(744, why) if why.contains("1000 consents")));
    // A delegate makes 256 in a day, whether or not they withdraw them.
    assert!(is_done(&database.give_access(&given(Some(session), many(200, &tag, "web")), 100).unwrap()));
    database.withdraw_consents_by("dora", &by, 100).unwrap();
    let next = database.give_access(&given(Some(session), many(57, &tag, "web")), 100).unwrap();
    assert!(matches!(next, Given::TooMany(0, why) if why.contains("in a day")));
    assert!(is_done(&database.give_access(&given(Some(session), many(56, &tag, "web")), 100).unwrap()));
    let tomorrow = 100 + 86_400;
    database.connection.execute("UPDATE sessions SET expires = 1000000", []).unwrap();
    assert!(is_done(&database.give_access(&given(Some(session), many(57, &tag, "web")), tomorrow).unwrap()));
}
