//! Tests of a cluster's members over a real etcd.

mod contract;
mod faults;
mod formats;
mod writers;

use super::capture;
use super::entry::Value;
use super::{ClusterId, ClusterKey, Log};
use crate::storage::tests::database;
use crate::storage::{Database, Unavailable};
use etcd::Etcd;
use etcd::stage::{Plan, Stage};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use tempfile::TempDir;

/// A cluster of authorities whose first member, `a`, has the database of [`crate::storage::tests::database`].
struct Cluster {
    stage: Stage,
    room: TempDir,
    id: ClusterId,
    key: ClusterKey,
}

impl Cluster {
    /// Begins a cluster over this number of members of etcd.
    fn of(etcd: usize) -> Self {
        let room = tempfile::tempdir().unwrap();
        drop(database(&room));
        std::fs::rename(room.path().join("authority.db"), room.path().join("a.db")).unwrap();
        Self::with(etcd, room)
    }

    /// Begins a cluster with the database `a.db` in `room`.
    fn with(etcd: usize, room: TempDir) -> Self {
        let stage = Stage::start(Plan::of(etcd)).unwrap();
        let cluster = Self { stage, room, id: ClusterId::new().unwrap(), key: ClusterKey::new().unwrap() };
        let mut database = Database::open(&cluster.file("a")).unwrap();
        cluster.log("a").create(&mut database).unwrap();
        cluster
    }

    fn file(&self, member: &str) -> PathBuf {
        self.room.path().join(format!("{member}.db"))
    }

    fn etcd(&self) -> Etcd {
        Etcd::connect(&self.stage.settings()).unwrap()
    }

    fn log(&self, member: &str) -> Log {
        Log::new(self.etcd(), self.id, self.key.clone(), member.into())
    }

    /// Opens the database of a member that has one.
    fn open(&self, member: &str) -> Database {
        Database::open_member(&self.file(member), self.log(member)).unwrap()
    }

    /// Adds a member.
    fn join(&self, member: &str) -> Database {
        let file = self.file(member);
        Database::create(&file, b"an authority").unwrap();
        self.log(member).fetch_snapshot(&file).unwrap();
        self.open(member)
    }
}

/// Returns all rows of the replicated tables, except those of `but`.
fn rows(database: &Database, but: &[&str]) -> BTreeMap<String, BTreeSet<String>> {
    let mut all = BTreeMap::new();
    for table in capture::tables(&database.connection).unwrap() {
        if but.contains(&table.name.as_str()) {
            continue;
        }
        let columns = table.columns.iter().map(|column| format!("\"{column}\"")).collect::<Vec<_>>().join(", ");
        let mut read = database.connection.prepare(&format!("SELECT {columns} FROM \"{}\"", table.name)).unwrap();
        let read = read.query_map([], |row| {
            let values = (0..table.columns.len()).map(|at| Ok(Value::from(row.get_ref(at)?)));
            Ok(format!("{:?}", values.collect::<rusqlite::Result<Vec<_>>>()?))
        });
        all.insert(table.name, read.unwrap().collect::<Result<_, _>>().unwrap());
    }
    all
}

/// Fails with the tables in which two databases differ.
fn assert_same(one: &Database, other: &Database, but: &[&str]) {
    let (one, other) = (rows(one, but), rows(other, but));
    for (table, of_one) in &one {
        let of_other = &other[table];
        let only = |these: &BTreeSet<String>, those: &BTreeSet<String>| {
            these.difference(those).take(5).cloned().collect::<Vec<_>>()
        };
        assert!(of_one == of_other, "{table}: {:#?} against {:#?}", only(of_one, of_other), only(of_other, of_one));
    }
    assert_eq!(one.len(), other.len());
}

fn unavailable<T>(result: anyhow::Result<T>) -> Unavailable {
    let error = result.err().expect("an error");
    error.downcast_ref::<Unavailable>().unwrap_or_else(|| panic!("{error:#}")).clone()
}

#[test]
fn each_replicated_table_has_a_primary_key() {
    let room = tempfile::tempdir().unwrap();
    let tables = capture::tables(&database(&room).connection).unwrap();
    let names: Vec<_> = tables.iter().map(|table| table.name.as_str()).collect();
    let expected = "access_receivers access_requests access_unexamined account_numbers accounts complaints \
        consent_changes device_tags devices grants identities numbering passkey_handles passkeys policies preferences \
        provider_sessions recheck_marks score_changes scores session_slots session_verifiers sessions shared unexpired_grants verifiers";
    // A new table that belongs to one member alone has to be added to LOCAL.
    assert_eq!(names, expected.split_whitespace().collect::<Vec<_>>());
}
