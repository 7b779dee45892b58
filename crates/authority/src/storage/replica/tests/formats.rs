//! Members whose databases have different formats. No release has another format yet, so the tests add a column and a
//! table to a member's database, as the next format could have them.

use super::super::format::{Added, Formats};
use super::super::snapshot;
use super::*;
use crate::storage::tests::{SESSION, grant};
use crate::storage::{Recorded, SCHEMA_VERSION};
use wire::Handle;

const NEXT: i64 = SCHEMA_VERSION + 1;
/// The formats of a release that has added a column and a table.
const OF_NEXT: Formats = Formats {
    own: NEXT,
    earliest: SCHEMA_VERSION,
    added: &[
        Added { format: NEXT, table: "grants", columns: &["colour"] },
        Added { format: NEXT, table: "tours", columns: &[] },
    ],
};

impl Cluster {
    /// Opens a member's database by the program of the next release, after that program has converted it.
    fn open_next(&self, member: &str) -> Database {
        let file = self.file(member);
        rusqlite::Connection::open(&file)
            .unwrap()
            .execute_batch(
                "ALTER TABLE grants ADD COLUMN colour TEXT;
                 CREATE TABLE tours (name TEXT PRIMARY KEY, length INTEGER) STRICT;",
            )
            .unwrap();
        Database::open_member(&file, self.log_of_next(member)).unwrap()
    }

    fn log_of_next(&self, member: &str) -> Log {
        Log::of(Box::new(self.etcd()), self.id, self.key.clone(), member.into(), OF_NEXT)
    }
}

/// Records a member in the list of members. Releases before format 17 record no format.
fn record(database: &mut Database, member: &str, format: Option<i64>) {
    let format = format.map(|format| format!(r#","format":{format}"#)).unwrap_or_default();
    let value = format!(r#"{{"url":"https://{member}.example.org"{format}}}"#).into_bytes();
    database.change_shared(&format!("member:{member}"), |_| Ok(Some(value))).unwrap();
}

fn change(database: &mut Database, sql: &str) -> anyhow::Result<usize> {
    database.write(|transaction| Ok(transaction.execute(sql, [])?))
}

fn has(database: &Database, handle: u64) -> bool {
    database.grant(Handle(handle)).unwrap().is_some()
}

const TOUR: &str = "INSERT INTO tours (name, length) VALUES ('north', 7)";
const COLOUR: &str = "UPDATE grants SET colour = 'red' WHERE handle = 1";

#[test]
fn members_are_upgraded_to_a_newer_format_one_after_the_other() {
    let cluster = Cluster::of(1);
    let (mut a, mut b) = (cluster.open("a"), cluster.join("b"));
    record(&mut a, "a", None);
    record(&mut a, "b", None);
    a.add_grants(&[grant(1, SESSION)]).unwrap();

    // `b` was stopped before it had followed everything, and is upgraded: it goes on where it was.
    drop(b);
    b = cluster.open_next("b");
    b.catch_up().unwrap();
    record(&mut b, "b", Some(NEXT));
    assert_eq!(b.add_grants(&[grant(2, SESSION)]).unwrap(), [Recorded::Done]);
    a.catch_up().unwrap();
    assert!(has(&b, 1) && has(&a, 2));
    a.add_grants(&[grant(3, SESSION)]).unwrap();
    b.catch_up().unwrap();
    assert!(has(&b, 3));

    // A change for which `a` has no room is refused, and nothing of it stays.
    for sql in [TOUR, COLOUR] {
        let error = unavailable(change(&mut b, sql));
        assert!(error.why.contains("before all members have been upgraded") && !error.maybe_done, "{error}");
    }
    let count = |database: &Database, sql: &str| database.connection.query_row(sql, [], |row| row.get::<_, i64>(0));
    assert_eq!(count(&b, "SELECT count(*) FROM tours").unwrap(), 0);
    assert_eq!(count(&b, "SELECT count(*) FROM grants WHERE colour IS NOT NULL").unwrap(), 0);

    // A new member of the earlier release takes over the snapshot of the upgraded one.
    snapshot::upload(&cluster.log_of_next("b"), &b.connection, 0).unwrap();
    let mut c = cluster.join("c");
    c.catch_up().unwrap();
    assert_same(&a, &c, &[]);

    // The last member is upgraded. From now on, everything can be written.
    drop(a);
    let mut a = cluster.open_next("a");
    record(&mut a, "a", Some(NEXT));
    change(&mut a, COLOUR).unwrap();
    b.catch_up().unwrap();
    change(&mut b, TOUR).unwrap();
    a.catch_up().unwrap();
    assert_same(&a, &b, &[]);
    assert_eq!(count(&a, "SELECT length FROM tours").unwrap(), 7);
    assert_eq!(count(&b, "SELECT count(*) FROM grants WHERE colour = 'red'").unwrap(), 1);

    // A member of the earlier release stops at the first entry that it has no room for, and none can join.
    let error = unavailable(c.catch_up());
    assert!(error.why.contains("upgrade this member"), "{error}");
    assert!(unavailable(c.add_grants(&[grant(4, SESSION)])).why.contains("upgrade this member"));
    snapshot::upload(&cluster.log_of_next("b"), &b.connection, 0).unwrap();
    Database::create(&cluster.file("d"), b"an authority").unwrap();
    let error = unavailable(cluster.log("d").fetch_snapshot(&cluster.file("d")));
    assert!(error.why.contains("upgrade this member"), "{error}");
}

#[test]
fn a_member_that_lacks_a_release_in_between_writes_nothing() {
    let cluster = Cluster::of(1);
    let mut a = cluster.open("a");
    record(&mut a, "a", Some(SCHEMA_VERSION));
    drop(a);
    let formats = Formats { earliest: NEXT, ..OF_NEXT };
    let log = Log::of(Box::new(cluster.etcd()), cluster.id, cluster.key.clone(), "a".into(), formats);
    let mut a = Database::open_member(&cluster.file("a"), log).unwrap();
    let error = unavailable(a.add_grants(&[grant(1, SESSION)]));
    assert!(error.why.contains("a release in between"), "{error}");
    assert!(!has(&a, 1));
}
