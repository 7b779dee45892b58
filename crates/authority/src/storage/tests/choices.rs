use super::*;
use engine::policy::preference::{Choice, Preference, Preferences};
use wire::Handle;

const NOW: u64 = 200;
const GIT: &str = "203.0.113.1";

fn never() -> Preferences {
    Preferences::new([Preference { target: GIT.parse().unwrap(), choice: Choice::Never }])
}

/// Returns the sizes of the pieces in which the grants were revoked.
fn walk(database: &mut Database, preferences: &Preferences) -> Vec<usize> {
    let (mut sizes, mut from) = (Vec::new(), Some(Walk::from_unexpired(NOW)));
    while let Some(at) = from {
        let (some, next) = database.revoke_some_withheld("robot", preferences, at, NOW).unwrap();
        sizes.push(some);
        from = next;
    }
    sizes
}

#[test]
fn a_choice_revokes_unexpired_grants_only_and_in_pieces() {
    let room = tempfile::tempdir().unwrap();
    let mut database = database(&room);
    let ended = |handle| {
        let mut ended = grant(handle, SESSION);
        ended.owner.expires = 150;
        ended
    };
    let held = |handle| grant(handle, SESSION);
    database.add_grants(&(0..300).map(ended).collect::<Vec<_>>()).unwrap();
    database.add_grants(&(300..500).map(held).collect::<Vec<_>>()).unwrap();
    let by = Operator::current();
    for handle in 300..310 {
        database.revoke(&Which::Grant(Handle(handle)), &by, NOW).unwrap();
    }
    database.take_rechecks().unwrap();
    assert_eq!(walk(&mut database, &Preferences::default()), [0]);
    assert!(database.take_rechecks().unwrap().is_empty());
    assert_eq!(walk(&mut database, &never()), [64, 64, 62]);
    let revoked = |handles: std::ops::Range<u64>| {
        handles.filter(|handle| database.grant(Handle(*handle)).unwrap().unwrap().revoked.is_some()).count()
    };
    assert_eq!((revoked(0..300), revoked(300..500)), (0, 200));
    // The verifier finds the flows that outlived their grants.
    assert_eq!(database.take_rechecks().unwrap(), ["edge"]);
    assert_eq!(walk(&mut database, &never()), [0]);
}

#[test]
fn a_person_finds_a_live_grant_of_their_own_only() {
    let room = tempfile::tempdir().unwrap();
    let mut database = database(&room);
    database.add_grants(&[grant(1, SESSION), grant(2, SESSION)]).unwrap();
    database.revoke(&Which::Grant(Handle(2)), &Operator::current(), NOW).unwrap();
    let finds = |person, handle, now| database.live_grant_of(person, Handle(handle), now).unwrap().is_some();
    assert!(finds("robot", 1, NOW));
    assert!(!finds("mallory", 1, NOW) && !finds("robot", 1, 400) && !finds("robot", 2, NOW) && !finds("robot", 3, NOW));
}
