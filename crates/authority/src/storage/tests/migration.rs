use super::*;

/// Undoes the conversion to format 14.
pub(super) const FORMAT_13: &str = "
DROP TABLE access_requests; DROP TABLE consent_changes; DROP TABLE access_receivers; DROP TABLE access_unexamined;
DROP TRIGGER grants_are_announced; DROP TRIGGER ends_are_told; DROP TRIGGER passkeys_end;
DROP TRIGGER provider_sessions_end;
DROP TABLE unannounced; DROP TABLE untold; DROP TABLE recheck_marks; DROP TABLE shared; DROP TABLE replica;
CREATE INDEX grants_to_announce ON grants (handle) WHERE announced = 0;
CREATE INDEX ends_to_tell ON session_slots (session) WHERE told = 0;
CREATE TRIGGER passkeys_end AFTER DELETE ON accounts BEGIN SELECT 1; END;
CREATE TRIGGER provider_sessions_end AFTER DELETE ON sessions BEGIN SELECT 1; END;
ALTER TABLE numbering RENAME TO numbering_14;
CREATE TABLE numbering (key BLOB NOT NULL, next INTEGER NOT NULL) STRICT;
INSERT INTO numbering SELECT key, next FROM numbering_14; DROP TABLE numbering_14;
DROP TABLE score_changes;
CREATE TABLE score_changes (made INTEGER NOT NULL, evaluated INTEGER NOT NULL) STRICT;
INSERT INTO score_changes VALUES (3, 2);
PRAGMA user_version = 13;
";

#[test]
fn announcements_that_are_pending_outlive_the_conversion_to_format_14() {
    let room = tempfile::tempdir().unwrap();
    let mut database = database(&room);
    database.add_grants(&[grant(1, SESSION), grant(2, SESSION), grant(3, SESSION)]).unwrap();
    let by = Operator::current();
    for handle in [1, 2] {
        database.revoke(&Which::Grant(wire::Handle(handle)), &by, 150).unwrap();
    }
    database.end_own_session("robot", session_number(&SESSION), &by, 160).unwrap();
    let (key, next) = (database.numbering().unwrap().0, 77);
    database.connection.execute("UPDATE numbering SET next = ?1", [next]).unwrap();
    database.connection.execute_batch(FORMAT_13).unwrap();
    // An earlier version marks what it has announced with the time.
    database.connection.execute("UPDATE grants SET announced = 155 WHERE handle = 2", []).unwrap();
    database.connection.execute("INSERT OR IGNORE INTO rechecks (verifier) VALUES ('edge')", []).unwrap();
    drop(database);
    let file = room.path().join("authority.db");
    for pending in [1, 0] {
        let mut database = Database::open(&file).unwrap();
        let revoked: Vec<_> =
            database.take_unannounced().unwrap().into_iter().map(|ended| ended.grant.grant.handle).collect();
        assert_eq!(revoked, vec![1; pending]);
        assert_eq!(database.take_ended_sessions().unwrap().len(), pending);
        assert_eq!(database.take_rechecks().unwrap(), vec!["edge"; pending]);
        let turn = engine::issuing::lease::Turn { number: 5, epochs: 0 };
        let numbering = database.numbering().unwrap();
        assert_eq!((numbering.0.encrypt(turn), numbering.1), (key.encrypt(turn), next));
        assert_eq!(database.unevaluated_changes().unwrap(), Some(3));
        assert_eq!(database.revoked("edge", 160).unwrap().len(), 2);
    }
}

#[test]
fn the_copy_of_a_members_database_belongs_to_no_cluster() {
    let room = tempfile::tempdir().unwrap();
    let database = database(&room);
    let member =
        "INSERT INTO replica (one, cluster, member, applied, last, decisive) VALUES (1, 'c', 'a', 9, x'00', 3)";
    database.connection.execute(member, []).unwrap();
    let error = Database::open(&room.path().join("authority.db")).err().unwrap().to_string();
    assert!(error.contains("member a of the cluster c") && error.contains("cluster leave"), "{error}");
    let copy = room.path().join("copy.db");
    database.copy_to(&copy).unwrap();
    let mut copy = Database::open(&copy).unwrap();
    copy.restored(&AuditEvent::new("restored"), false, 200).unwrap();
    assert_eq!(copy.applied().unwrap(), 0);
    assert!(copy.sessions(200).unwrap().is_empty());
}
