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
