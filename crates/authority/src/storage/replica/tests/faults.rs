//! The effects of a failing etcd, member or connection.

use super::super::entry::Entry;
use super::super::log::{Head, Store};
use super::super::snapshot;
use super::*;
use crate::storage::SCHEMA_VERSION;
use crate::storage::tests::{SESSION, grant};
use crate::storage::{AuditEvent, Operator, Recorded, Which};
use etcd::{Error, KeyValue, Op, Txn, TxnReply};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};
use wire::Handle;

/// Passes calls to etcd, and loses some.
struct Lossy {
    etcd: Etcd,
    loses: Arc<AtomicU8>,
}

/// Nothing is lost.
const NOTHING: u8 = 0;
/// The answer to the next append is lost.
const ANSWER: u8 = 1;
/// The next append is lost.
const REQUEST: u8 = 2;
/// The answer to the next append is lost, and all later requests.
const CONNECTION: u8 = 3;
/// All requests are lost.
const ALL: u8 = 4;
/// The answer to the next request for the turn is lost.
const TURN: u8 = 5;
/// The next request for the turn is lost.
const TURN_REQUEST: u8 = 6;

impl Lossy {
    fn check(&self) -> Result<(), Error> {
        if self.loses.load(Ordering::SeqCst) == ALL { Err(Error::Unreachable("it is gone".into())) } else { Ok(()) }
    }
}

impl Store for Lossy {
    fn get(&self, key: &str) -> Result<Option<KeyValue>, Error> {
        self.check()?;
        self.etcd.get(key)
    }

    fn txn(&self, txn: &Txn) -> Result<TxnReply, Error> {
        self.check()?;
        let is_append = txn.success.iter().any(|op| matches!(op, Op::Put { key, .. } if key.contains("/log/")));
        let loses = self.loses.load(Ordering::SeqCst);
        if !is_append || matches!(loses, NOTHING | TURN | TURN_REQUEST) {
            return self.etcd.txn(txn);
        }
        self.loses.store(if loses == CONNECTION { ALL } else { NOTHING }, Ordering::SeqCst);
        if loses != REQUEST {
            assert!(self.etcd.txn(txn).unwrap().succeeded);
        }
        Err(Error::Unknown("no answer".into()))
    }

    fn txn_within(&self, txn: &Txn, _patience: Duration) -> Result<TxnReply, Error> {
        let loses = self.loses.load(Ordering::SeqCst);
        if !matches!(loses, TURN | TURN_REQUEST) {
            return self.txn(txn);
        }
        self.loses.store(NOTHING, Ordering::SeqCst);
        if loses == TURN {
            assert!(self.etcd.txn(txn).unwrap().succeeded);
        }
        Err(Error::Unknown("no answer".into()))
    }

    fn grant_lease(&self, ttl_seconds: u32) -> Result<i64, Error> {
        self.check()?;
        self.etcd.grant_lease(ttl_seconds)
    }

    fn keep_alive(&self, lease: i64) -> Result<bool, Error> {
        self.check()?;
        self.etcd.keep_alive(lease)
    }
}

impl Cluster {
    /// Opens a member's database over a connection that loses calls.
    fn open_lossy(&self, member: &str) -> (Database, Arc<AtomicU8>) {
        let loses = Arc::new(AtomicU8::new(NOTHING));
        let store = Box::new(Lossy { etcd: self.etcd(), loses: loses.clone() });
        let log = Log::over(store, self.id, self.key.clone(), member.into());
        (Database::open_member(&self.file(member), log).unwrap(), loses)
    }

    fn put(&self, name: &str, value: &[u8], lease: Option<i64>) {
        let put = Op::Put { key: self.log("a").key(name), value: value.to_vec(), lease };
        let txn = Txn { compare: vec![], success: vec![put], failure: vec![] };
        assert!(self.etcd().txn(&txn).unwrap().succeeded);
    }
}

fn granted(database: &Database) -> usize {
    database.audit_entries(None, 1000).unwrap().iter().filter(|entry| entry.event == "granted").count()
}

/// Waits until etcd may be asked again after a failure.
fn rest() {
    std::thread::sleep(Duration::from_millis(1100));
}

#[test]
fn an_append_whose_answer_is_lost_is_looked_up() {
    let cluster = Cluster::of(1);
    let ((mut first, loses), mut second) = (cluster.open_lossy("a"), cluster.join("b"));
    loses.store(ANSWER, Ordering::SeqCst);
    assert_eq!(first.add_grants(&[grant(1, SESSION)]).unwrap(), [Recorded::Done]);
    assert_eq!((first.applied().unwrap(), granted(&first)), (1, 1));
    loses.store(REQUEST, Ordering::SeqCst);
    let error = unavailable(first.add_grants(&[grant(2, SESSION)]));
    assert!(!error.maybe_done, "{error}");
    assert!(first.grant(Handle(2)).unwrap().is_none());
    // Nobody has to wait for the turn of the lost request.
    let begun = Instant::now();
    second.add_grants(&[grant(3, SESSION)]).unwrap();
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    rest();
    first.add_grants(&[grant(2, SESSION)]).unwrap();
    second.catch_up().unwrap();
    assert_same(&first, &second, &[]);
    assert_eq!((granted(&first), granted(&second)), (2, 1));
}

#[test]
fn a_request_for_the_turn_whose_answer_is_lost_is_asked_again() {
    let cluster = Cluster::of(1);
    let ((mut first, loses), mut second) = (cluster.open_lossy("a"), cluster.join("b"));
    let revision = || cluster.etcd().get(&cluster.log("a").key("head")).unwrap().unwrap().mod_revision;
    for (number, loss) in [(1, TURN), (2, TURN_REQUEST), (3, NOTHING)] {
        let before = revision();
        loses.store(loss, Ordering::SeqCst);
        assert_eq!(first.add_grants(&[grant(number, SESSION)]).unwrap(), [Recorded::Done]);
        // The turn and the append: it has the turn for which it got no answer, and does not take another one.
        assert_eq!(revision() - before, 2, "{loss}");
        second.add_grants(&[grant(10 + number, SESSION)]).unwrap();
    }
    first.catch_up().unwrap();
    assert_same(&first, &second, &[]);
}

#[test]
fn a_member_that_is_killed_after_its_append_finds_the_transaction_and_its_audit_entry() {
    let cluster = Cluster::of(1);
    let ((mut first, loses), mut second) = (cluster.open_lossy("a"), cluster.join("b"));
    loses.store(CONNECTION, Ordering::SeqCst);
    let error = unavailable(first.add_grants(&[grant(1, SESSION)]));
    assert!(error.maybe_done, "{error}");
    assert_eq!((first.applied().unwrap(), granted(&first)), (0, 0), "it was rolled back");
    drop(first);
    second.add_grants(&[grant(2, SESSION)]).unwrap();
    let mut first = cluster.open("a");
    assert_eq!(first.catch_up().unwrap().grants, [Handle(1), Handle(2)]);
    assert_same(&first, &second, &[]);
    assert_eq!((granted(&first), granted(&second)), (1, 1));
    let verdict = first.verify_audit(b"an authority", &[]).unwrap();
    assert!(matches!(verdict, crate::storage::Verdict::Whole(_)), "{verdict:?}");
}

#[test]
fn without_etcd_reads_and_local_writes_go_on() {
    let cluster = Cluster::of(1);
    let (mut first, loses) = cluster.open_lossy("a");
    first.add_grants(&[grant(1, SESSION)]).unwrap();
    first.revoke(&Which::Grant(Handle(1)), &Operator::current(), 150).unwrap();
    loses.store(ALL, Ordering::SeqCst);
    assert!(!unavailable(first.add_grants(&[grant(2, SESSION)])).maybe_done);
    let begun = Instant::now();
    for _ in 0..100 {
        unavailable(first.add_grants(&[grant(2, SESSION)]));
        first.audit(&AuditEvent::new("denied").person("robot"), 160).unwrap();
    }
    assert_eq!(first.take_unannounced().unwrap().len(), 1);
    assert!(first.take_ended_sessions().unwrap().is_empty() && first.take_rechecks().unwrap().is_empty());
    assert_eq!(first.grants(120, true).unwrap().len(), 1);
    assert!(begun.elapsed() < Duration::from_secs(1) || granted(&first) == 1, "{:?}", begun.elapsed());
    // A write that it could not record has no entry.
    assert_eq!(granted(&first), 1);
    loses.store(NOTHING, Ordering::SeqCst);
    rest();
    first.add_grants(&[grant(2, SESSION)]).unwrap();
}

#[test]
fn the_turn_of_a_member_that_was_killed_ends_for_a_member_that_waits() {
    let cluster = Cluster::of(1);
    let mut first = cluster.open("a");
    // With a lease that lives longer than a transaction waits, and without one.
    let lease = cluster.etcd().grant_lease(60).unwrap();
    for (handle, lease) in [(1, Some(lease)), (2, None)] {
        cluster.put("turn", b"b 00", lease);
        first.add_grants(&[grant(handle, SESSION)]).unwrap();
        assert_eq!(first.applied().unwrap(), handle);
    }
}

#[test]
fn a_lease_that_has_ended_is_replaced() {
    let cluster = Cluster::of(1);
    let mut first = cluster.open("a");
    for handle in 1..4 {
        first.add_grants(&[grant(handle, SESSION)]).unwrap();
        let (lease, _) = first.replica.as_ref().unwrap().lease.unwrap();
        cluster.etcd().revoke_lease(lease).unwrap();
    }
    assert_eq!(first.applied().unwrap(), 3);
}

/// A power failure can take away what the disk of a member has not written yet.
#[test]
fn a_member_that_lost_its_latest_transactions_gets_them_from_the_log() {
    let cluster = Cluster::of(1);
    let mut first = cluster.open("a");
    first.add_grants(&[grant(1, SESSION)]).unwrap();
    let earlier = cluster.room.path().join("earlier.db");
    let member = "SELECT cluster, member, applied, last, decisive FROM replica";
    let row: (String, String, i64, Vec<u8>, i64) = first
        .connection
        .query_row(member, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?)))
        .unwrap();
    first.copy_to(&earlier).unwrap();
    first.add_grants(&[grant(2, SESSION)]).unwrap();
    first.add_grants(&[grant(3, SESSION)]).unwrap();
    let put = "INSERT INTO replica (one, cluster, member, applied, last, decisive) VALUES (1, ?1, ?2, ?3, ?4, ?5)";
    rusqlite::Connection::open(&earlier).unwrap().execute(put, row).unwrap();
    let mut again = Database::open_member(&earlier, cluster.log("a")).unwrap();
    again.catch_up().unwrap();
    assert_same(&first, &again, &[]);
    assert_eq!((granted(&again), granted(&first)), (3, 3));
}

#[test]
fn a_transaction_that_takes_too_long_commits_nothing() {
    let cluster = Cluster::of(1);
    let (mut first, mut second) = (cluster.open("a"), cluster.join("b"));
    let slow = first.write(|transaction| {
        transaction.execute("INSERT INTO shared (name, value) VALUES ('slow', x'01')", [])?;
        // The other member ends this turn, and takes its own.
        second.add_grants(&[grant(1, SESSION)])?;
        Ok(())
    });
    let error = unavailable(slow);
    assert!(error.why.contains("lost its turn") && !error.maybe_done, "{error}");
    first.catch_up().unwrap();
    assert_eq!(first.shared("slow").unwrap(), None);
    assert_same(&first, &second, &[]);
}

#[test]
fn a_log_from_an_old_backup_is_noticed() {
    let cluster = Cluster::of(1);
    let (mut first, mut second) = (cluster.open("a"), cluster.join("b"));
    first.add_grants(&[grant(1, SESSION)]).unwrap();
    let before = cluster.etcd().get(&cluster.log("a").key("head")).unwrap().unwrap().value;
    second.catch_up().unwrap();
    first.add_grants(&[grant(2, SESSION)]).unwrap();
    // etcd forgets the second entry, and a member that does not have it goes on.
    cluster.put("head", &before, None);
    let error = unavailable(first.add_grants(&[grant(3, SESSION)]));
    assert!(error.why.contains("ends with entry 1, but this member has entry 2"), "{error}");
    second.add_grants(&[grant(4, SESSION)]).unwrap();
    let error = unavailable(first.add_grants(&[grant(3, SESSION)]));
    assert!(error.why.contains("etcd was restored from an old backup"), "{error}");
    second.add_grants(&[grant(5, SESSION)]).unwrap();
    let error = unavailable(first.add_grants(&[grant(3, SESSION)]));
    assert!(error.why.contains("does not follow entry 2 of this member"), "{error}");
}

#[test]
fn a_member_that_was_away_for_long_takes_the_snapshot() {
    let cluster = Cluster::of(1);
    let (mut first, mut second) = (cluster.open("a"), cluster.join("b"));
    let by = Operator::current();
    first.add_grants(&[grant(1, SESSION), grant(2, SESSION), grant(3, SESSION)]).unwrap();
    first.revoke(&Which::Grant(Handle(2)), &by, 150).unwrap();
    second.catch_up().unwrap();
    second.audit(&AuditEvent::new("denied").person("robot"), 160).unwrap();
    assert_eq!(second.take_unannounced().unwrap().len(), 1);
    for number in 10..20 {
        let mut short = grant(number, SESSION);
        short.owner.expires = 390;
        first.add_grants(&[short]).unwrap();
    }
    first.revoke(&Which::Grant(Handle(3)), &by, 170).unwrap();
    first.prune(9000, 8605, 1_000_000).unwrap();
    assert_eq!(first.grants(100, true).unwrap().len(), 3);
    let log = cluster.log("a");
    snapshot::upload(&log, &first.connection, 1).unwrap();
    snapshot::trim(&log, 0).unwrap();
    first.add_grants(&[grant(30, SESSION)]).unwrap();
    assert!(log.entries(3, 3).unwrap()[0].1.is_none(), "the log was trimmed");
    let changes = second.catch_up().unwrap();
    assert!(changes.whole && changes.urgent, "{changes:?}");
    assert_same(&first, &second, &[]);
    // It announces new revocations only, none a second time. The trails stay.
    let announced: Vec<_> = second.take_unannounced().unwrap().iter().map(|ended| ended.grant.grant.handle).collect();
    assert_eq!(announced, [3]);
    assert_eq!(second.audit_entries(None, 100).unwrap().last().unwrap().event, "denied");
    second.add_grants(&[grant(31, SESSION)]).unwrap();
    first.catch_up().unwrap();
    assert_same(&first, &second, &[]);
    // A new member takes the latest snapshot, and then the entries after it.
    let mut third = cluster.join("c");
    third.catch_up().unwrap();
    assert_same(&first, &third, &[]);
    // The pieces of the first snapshot are gone.
    let (pieces, _) = cluster.etcd().list(&log.key("pieces/")).unwrap();
    assert_eq!(pieces.len(), 1);
}

#[test]
fn an_entry_of_another_version_stops_the_member() {
    let cluster = Cluster::of(1);
    let mut first = cluster.open("a");
    let log = cluster.log("b");
    let (head, id) = (log.read_head().unwrap(), vec![7; 16]);
    let entry = Entry {
        id: id.clone(),
        before: head.id,
        member: "b".into(),
        time: 1,
        schema: SCHEMA_VERSION + 1,
        urgent: false,
        decisive: false,
        blocks: Vec::new(),
        audit: Vec::new(),
    };
    let sealed = log.sealed(1, &entry).unwrap();
    cluster.put("log/00000000000000000001", &sealed, None);
    cluster.put("head", Head { number: 1, id }.text().as_bytes(), None);
    for _ in 0..2 {
        let error = unavailable(first.catch_up());
        assert!(error.why.contains("upgrade this member"), "{error}");
        assert_eq!(first.applied().unwrap(), 0);
    }
}

#[test]
fn a_wrong_key_or_a_changed_entry_is_refused() {
    let cluster = Cluster::of(1);
    let mut second = cluster.join("b");
    cluster.open("a").add_grants(&[grant(1, SESSION)]).unwrap();
    let wrong = Log::new(cluster.etcd(), cluster.id, ClusterKey::new().unwrap(), "b".into());
    let mut stranger = Database::open_member(&cluster.file("b"), wrong).unwrap();
    let error = format!("{:#}", stranger.catch_up().unwrap_err());
    assert!(error.contains("cluster.key"), "{error}");
    drop(stranger);
    // The entry of another number is not taken for this one.
    let entry = cluster.etcd().get(&cluster.log("a").entry_key(1)).unwrap().unwrap().value;
    second.catch_up().unwrap();
    let id = second.connection.query_row("SELECT last FROM replica", [], |row| row.get::<_, Vec<u8>>(0)).unwrap();
    cluster.put("log/00000000000000000002", &entry, None);
    cluster.put("head", Head { number: 2, id }.text().as_bytes(), None);
    let error = format!("{:#}", second.catch_up().unwrap_err());
    assert!(error.contains("cannot decrypt") && second.applied().unwrap() == 1, "{error}");
    // etcd contains no name in clear.
    let (all, _) = cluster.etcd().list(&cluster.log("a").key("")).unwrap();
    let reveals = |value: &[u8]| value.windows(5).any(|part| part == b"robot");
    assert!(all.len() > 3 && !all.iter().any(|item| reveals(&item.value)));
}

#[test]
fn a_change_that_is_too_large_is_refused_as_a_whole() {
    let cluster = Cluster::of(1);
    let mut first = cluster.open("a");
    let random: Vec<u8> = (0..40_000).flat_map(|_| crate::login::credentials::random::<32>().unwrap()).collect();
    let error = first.change_shared("large", |_| Ok(Some(random))).unwrap_err().to_string();
    assert!(error.contains("too large for one entry"), "{error}");
    assert_eq!((first.shared("large").unwrap(), first.applied().unwrap()), (None, 0));
    first.add_grants(&[grant(1, SESSION)]).unwrap();
}

#[test]
fn a_transaction_that_fails_or_changes_nothing_leaves_no_entry() {
    let cluster = Cluster::of(1);
    let mut first = cluster.open("a");
    assert!(first.remove_service("nobody", &Operator::current(), 100).is_err());
    assert_eq!(first.add_grants(&[grant(1, [9; 32])]).unwrap(), [Recorded::SessionEnded]);
    first.prune(100, 100, 1000).unwrap();
    let misplaced = first.write_local(|transaction| {
        transaction.execute("DELETE FROM sessions", [])?;
        Ok(())
    });
    assert!(misplaced.unwrap_err().to_string().contains("sessions, which is replicated"));
    assert_eq!((first.applied().unwrap(), first.sessions(100).unwrap().len()), (0, 1));
    assert!(cluster.etcd().get(&cluster.log("a").key("turn")).unwrap().is_none(), "the turn was given back");
}

#[test]
fn a_value_that_moves_between_rows_is_applied() {
    let cluster = Cluster::of(1);
    let (mut first, mut second) = (cluster.open("a"), cluster.join("b"));
    first
        .write(|transaction| {
            transaction.execute_batch(
                "INSERT INTO account_numbers (person, last_slot) VALUES ('x', 0);
                 UPDATE account_numbers SET last_slot = 1 WHERE person = 'robot';
                 UPDATE account_numbers SET person = NULL WHERE person = 'x';
                 UPDATE account_numbers SET person = 'x' WHERE person = 'robot';
                 UPDATE account_numbers SET person = 'robot' WHERE person IS NULL;",
            )?;
            Ok(())
        })
        .unwrap();
    second.catch_up().unwrap();
    assert_same(&first, &second, &[]);
}

#[test]
fn an_authority_that_leaves_keeps_the_state() {
    let cluster = Cluster::of(1);
    let mut first = cluster.open("a");
    first.add_grants(&[grant(1, SESSION)]).unwrap();
    first.forget_cluster().unwrap();
    drop(first);
    let mut alone = Database::open(&cluster.file("a")).unwrap();
    alone.add_grants(&[grant(2, SESSION)]).unwrap();
    assert_eq!((alone.grants(120, false).unwrap().len(), alone.applied().unwrap()), (2, 0));
    let error = Database::open_member(&cluster.file("a"), cluster.log("a")).err().unwrap().to_string();
    assert!(error.contains("is not the database of member a"), "{error}");
}
