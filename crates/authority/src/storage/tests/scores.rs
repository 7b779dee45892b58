//! Scores follow their persons, and change when they are due.

use super::*;
use crate::login::Identity;
use wire::Handle;

const TERMS: ScoreTerms = ScoreTerms { half_life: 100, low: 50, per_application: 1000 };
const TOKEN: TokenHash = [1; 32];

/// Logs the provider's person c-1 in under a name, with a grant that has this handle.
fn log_in(database: &mut Database, name: &str, token: TokenHash, handle: u64) {
    let (issuer, person) = ("https://idp.example.org".into(), name.into());
    let identity = Identity { issuer, subject: "c-1".into(), person, groups: Vec::new(), sid: None };
    let (tags, groups, holder) = (Vec::new(), Vec::new(), wire::Holder::default());
    let (person, device, expires) = (name.into(), "rack".into(), 10_000);
    let session = Session { person, device, expires, tags, groups, ends: None, holder };
    let proof = Proof::Provider { identity, refresh_token: None };
    let login = database.add_session(token, &session, &proof, SOURCE.parse().unwrap(), 10).unwrap();
    assert!(matches!(login, Login::Done { .. }), "{login:?}");
    let mut grant = grant(handle, token);
    grant.owner.person = name.into();
    assert_eq!(database.add_grants(&[grant]).unwrap(), [Recorded::Done]);
}

fn complain(database: &mut Database, handle: u64, points: u32, terms: ScoreTerms, now: u64) -> Complained {
    let (verifier, application) = ("edge".into(), "shop".into());
    let complaint = NewComplaint { verifier, application, handle: Handle(handle), about: "abuse", points };
    database.complain(&complaint, terms, now).unwrap()
}

fn scores(database: &Database, now: u64) -> Vec<(String, u32, bool)> {
    let all = database.scores(TERMS, now).unwrap();
    all.into_iter().map(|entry| (entry.person, entry.score, entry.low)).collect()
}

#[test]
fn a_person_whom_the_provider_renames_keeps_the_score() {
    let room = tempfile::tempdir().unwrap();
    let mut database = database(&room);
    log_in(&mut database, "carol", TOKEN, 1);
    for _ in 0..3 {
        complain(&mut database, 1, 20, TERMS, 100);
    }
    assert_eq!(scores(&database, 100), [("carol".into(), 40, true)]);
    log_in(&mut database, "caroline", [2; 32], 2);
    assert_eq!(scores(&database, 100), [("caroline".into(), 40, true)]);
    assert_eq!(database.facts_about("caroline", Some("rack")).unwrap().tags, [LOW_SCORE]);
    // The limit of one application counts what it said about the person under the earlier name.
    assert!(matches!(complain(&mut database, 2, 1, TERMS, 100), Complained::TooMany { .. }));
    // A complaint about a connection that began under the earlier name is about the same person.
    let other = Complained::Done { score: 30, fell: false };
    let complaint = NewComplaint {
        verifier: "edge".into(),
        application: "wiki".into(),
        handle: Handle(1),
        about: "flood",
        points: 10,
    };
    assert_eq!(database.complain(&complaint, TERMS, 100).unwrap(), other);
    assert_eq!(scores(&database, 100), [("caroline".into(), 30, true)]);
}

#[test]
fn nobody_inherits_a_complaint_about_a_person_who_was_removed() {
    let room = tempfile::tempdir().unwrap();
    let mut database = database(&room);
    log_in(&mut database, "carol", TOKEN, 1);
    complain(&mut database, 1, 20, TERMS, 100);
    database.remove_account("carol", &Operator::current(), 100).unwrap();
    assert_eq!(complain(&mut database, 1, 20, TERMS, 100), Complained::NoGrant);
    assert_eq!(scores(&database, 100), []);
    // Another person gets the name.
    log_in(&mut database, "carol", [2; 32], 2);
    assert_eq!(complain(&mut database, 1, 20, TERMS, 100), Complained::NoGrant);
    assert_eq!(scores(&database, 100), []);
}

#[test]
fn a_bound_of_100_is_reached_again() {
    let room = tempfile::tempdir().unwrap();
    let mut database = database(&room);
    log_in(&mut database, "carol", TOKEN, 1);
    let terms = ScoreTerms { low: 100, ..TERMS };
    assert_eq!(complain(&mut database, 1, 20, terms, 100), Complained::Done { score: 80, fell: true });
    // 20 points, and five half-lives: 0.6 points are missing. After six, 0.3 are.
    database.settle_scores(Some(terms), false, 600).unwrap();
    assert_eq!(scores(&database, 600), [("carol".into(), 99, true)]);
    database.settle_scores(Some(terms), false, 700).unwrap();
    assert!(scores(&database, 700).iter().all(|(_, _, low)| !low), "the score never recovers");
}

#[test]
fn a_low_score_of_format_12_recovers() {
    let room = tempfile::tempdir().unwrap();
    let mut earlier = database(&room);
    log_in(&mut earlier, "carol", TOKEN, 1);
    for _ in 0..3 {
        complain(&mut earlier, 1, 20, TERMS, 100);
    }
    drop(earlier);
    let file = room.path().join("authority.db");
    let earlier = "DROP TABLE score_changes; DROP INDEX scores_due; ALTER TABLE scores DROP COLUMN due;
        CREATE INDEX low_scores ON scores (person) WHERE low = 1; PRAGMA user_version = 12;";
    let connection = Connection::open(&file).unwrap();
    connection.execute_batch(migration::FORMAT_13).unwrap();
    connection.execute_batch(earlier).unwrap();
    drop(connection);
    let mut database = Database::open(&file).unwrap();
    database.settle_scores(Some(TERMS), false, 100).unwrap();
    assert_eq!(scores(&database, 100), [("carol".into(), 40, true)]);
    database.settle_scores(Some(TERMS), false, 150).unwrap();
    assert_eq!(scores(&database, 150), [("carol".into(), 57, false)]);
    assert_eq!(database.unevaluated_changes().unwrap(), Some(1));
}

#[test]
fn a_score_is_settled_when_it_is_due() {
    let room = tempfile::tempdir().unwrap();
    let mut database = database(&room);
    log_in(&mut database, "carol", TOKEN, 1);
    for _ in 0..3 {
        complain(&mut database, 1, 20, TERMS, 100);
    }
    // 60 missing points are 50 after a quarter of a half-life, and half a point after seven.
    for (now, low) in [(126, true), (127, false)] {
        database.settle_scores(Some(TERMS), false, now).unwrap();
        assert_eq!(scores(&database, now)[0].2, low, "{now}");
    }
    database.settle_scores(Some(TERMS), false, 790).unwrap();
    assert_eq!(scores(&database, 790).len(), 1);
    database.settle_scores(Some(TERMS), false, 792).unwrap();
    assert_eq!(scores(&database, 792), [], "it is forgotten");
}
