//! Sessions that rest on one login at the identity provider.

use super::*;
use crate::login::Identity;

const CONSOLE: TokenHash = [1; 32];
const DEVICE: TokenHash = [2; 32];
const OTHER: TokenHash = [3; 32];

fn carol(sid: &str) -> Identity {
    let (issuer, person) = ("https://idp.example.org".into(), "carol".into());
    Identity { issuer, subject: "c-1".into(), person, groups: Vec::new(), sid: Some(sid.into()) }
}

/// Begins a session at the console, which ends at 1800 without use, or a session of a device.
fn begin(database: &mut Database, token: TokenHash, proof: &Proof) {
    let ends = matches!(proof, Proof::Provider { .. }).then_some(40_000);
    let (tags, groups, holder) = (Vec::new(), Vec::new(), wire::Holder::default());
    let expires = if ends.is_some() { 1800 } else { 40_000 };
    let session = Session { person: "carol".into(), device: "tablet".into(), expires, tags, groups, ends, holder };
    let login = database.add_session(token, &session, proof, SOURCE.parse().unwrap(), 10).unwrap();
    assert!(matches!(login, Login::Done { .. }), "{login:?}");
}

/// Logs carol in at the console, and a device of hers from there.
fn logged_in(room: &tempfile::TempDir) -> Database {
    let mut database = database(room);
    let refresh_token = Some(zeroize::Zeroizing::new("first".to_owned()));
    begin(&mut database, CONSOLE, &Proof::Provider { identity: carol("s-1"), refresh_token });
    begin(&mut database, DEVICE, &Proof::Console(CONSOLE));
    database
}

fn of_carol(database: &Database, now: u64) -> Vec<TokenHash> {
    let mut tokens: Vec<_> =
        database.sessions_of("carol", now).unwrap().into_iter().map(|session| session.token).collect();
    tokens.sort_unstable();
    tokens
}

#[test]
fn a_person_whom_the_provider_refuses_loses_the_devices_that_they_logged_in() {
    let room = tempfile::tempdir().unwrap();
    let mut database = logged_in(&room);
    let due = database.renewable(None, 100, 100).unwrap();
    assert_eq!(due.len(), 1, "the provider is asked once about a login");
    assert_eq!(database.end_by_provider(&due[0], "refused", 101).unwrap(), 2);
    assert_eq!(of_carol(&database, 101), [] as [TokenHash; 0]);
}

#[test]
fn a_refresh_token_that_another_authority_has_used_ends_nothing() {
    let room = tempfile::tempdir().unwrap();
    let mut database = logged_in(&room);
    let due = database.renewable(None, 100, 100).unwrap();
    assert_eq!(database.renew(&due[0], &carol("s-1"), "second", 100).unwrap(), Renewed::Same);
    assert_eq!(database.end_by_provider(&due[0], "refused", 101).unwrap(), 0);
    assert_eq!(of_carol(&database, 101).len(), 2);
}

/// A device's page keeps only the device's session alive, so the console's session ends after half an hour.
#[test]
fn the_provider_is_asked_about_a_device_after_the_session_at_the_console_has_ended() {
    let room = tempfile::tempdir().unwrap();
    let mut database = logged_in(&room);
    begin(&mut database, OTHER, &Proof::Console(CONSOLE));
    assert_eq!(database.end_expired_sessions(2000).unwrap(), 1);
    for (ended, token) in [(DEVICE, "second"), (OTHER, "third")] {
        let due = database.renewable(None, 2000, 2000).unwrap();
        assert_eq!((due.len(), due[0].person.as_str()), (1, "carol"));
        assert_eq!(database.renew(&due[0], &carol("s-1"), token, 2000).unwrap(), Renewed::Same);
        let again = database.renewable(None, 2000, 2000).unwrap();
        assert_eq!(again[0].refresh_token.as_str(), token);
        if ended == DEVICE {
            let by = Operator::current();
            assert!(database.end_own_session("carol", session_number(&ended), &by, 2000).unwrap());
        } else {
            assert_eq!(database.end_by_provider(&again[0], "refused", 2001).unwrap(), 1);
        }
    }
    assert_eq!(of_carol(&database, 2001), [] as [TokenHash; 0]);
    assert!(database.renewable(None, 3000, 2001).unwrap().is_empty());
}

#[test]
fn a_renewal_that_overlaps_with_the_end_of_the_console_session_is_not_lost() {
    let room = tempfile::tempdir().unwrap();
    let mut database = logged_in(&room);
    let asked = database.renewable(None, 100, 100).unwrap();
    database.end_expired_sessions(2000).unwrap();
    // The provider replaced the refresh token meanwhile; the earlier one is worthless.
    assert_eq!(database.renew(&asked[0], &carol("s-2"), "second", 2000).unwrap(), Renewed::Same);
    assert_eq!(database.renewable(None, 2000, 2000).unwrap()[0].refresh_token.as_str(), "second");
    // The provider's session has another identifier now.
    assert_eq!(database.end_by_logout("c-1", Some("s-1"), 2001).unwrap(), 0);
    assert_eq!(database.end_by_logout("c-1", Some("s-2"), 2001).unwrap(), 1);
    assert_eq!(of_carol(&database, 2001), [] as [TokenHash; 0]);
    let renewed = database.renew(&asked[0], &carol("s-2"), "third", 2002).unwrap();
    assert_eq!(renewed, Renewed::Ended(0));
}

#[test]
fn a_log_out_at_the_console_ends_the_devices_that_were_logged_in_from_there() {
    let room = tempfile::tempdir().unwrap();
    let mut database = logged_in(&room);
    let refresh_token = Some(zeroize::Zeroizing::new("another".to_owned()));
    begin(&mut database, OTHER, &Proof::Provider { identity: carol("s-9"), refresh_token });
    let (_, session) =
        database.sessions(100).unwrap().into_iter().find(|(token, _)| *token == CONSOLE).expect("a session");
    database.end_session(CONSOLE, &session, SOURCE.parse().unwrap(), 100).unwrap();
    assert_eq!(of_carol(&database, 100), [OTHER], "another browser stays logged in");
}

#[test]
fn a_console_session_that_is_ended_from_another_takes_its_devices_along() {
    let room = tempfile::tempdir().unwrap();
    let mut database = logged_in(&room);
    let refresh_token = Some(zeroize::Zeroizing::new("another".to_owned()));
    begin(&mut database, OTHER, &Proof::Provider { identity: carol("s-9"), refresh_token });
    assert!(database.end_own_session("carol", session_number(&CONSOLE), &Operator::current(), 100).unwrap());
    assert_eq!(of_carol(&database, 100), [OTHER], "another browser stays logged in");
}

#[test]
fn devices_of_format_11_belong_to_the_login_of_their_person() {
    let room = tempfile::tempdir().unwrap();
    let file = room.path().join("authority.db");
    let earlier = Connection::open(&file).unwrap();
    earlier.execute_batch(include_str!("format-9.sql")).unwrap();
    // In format 9: the phone (2) was logged in from the console (3), the laptop (1) by a login of its own.
    let add =
        "INSERT INTO provider_sessions (token, subject, sid, refresh_token, renewed) VALUES (?1, 'a-1', ?2, ?3, 5)";
    for (token, sid, refresh) in [(1_u8, "s-8", Some("own")), (2, "s-1", None), (3, "s-1", Some("first"))] {
        earlier.execute(add, params![[token; 32], sid, refresh]).unwrap();
    }
    drop(earlier);
    let mut database = Database::open(&file).unwrap();
    let due = database.renewable(None, 100, 100).unwrap();
    let refused = due.iter().find(|login| login.refresh_token.as_str() == "first").expect("the console's login");
    assert_eq!((due.len(), database.end_by_provider(refused, "refused", 101).unwrap()), (2, 2));
    let left: Vec<_> = database.sessions(101).unwrap().into_iter().map(|(token, _)| token[0]).collect();
    assert!(left.len() == 2 && left.contains(&1) && left.contains(&4), "{left:?}");
}
