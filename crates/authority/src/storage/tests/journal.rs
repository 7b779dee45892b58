use super::*;
use crate::now;
use crate::storage::journal::records;
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use wire::Handle;

/// Starts the storage, and records a grant of the session, so that the journal accepts others.
async fn started(room: &tempfile::TempDir) -> Storage {
    let storage = Storage::start(database(room)).unwrap();
    assert_eq!(storage.add_grant(grant(1, SESSION), storage.basis("robot"), |_| {}).await.unwrap(), Recorded::Done);
    idle(&storage).await;
    storage
}

/// Waits until the thread that writes waits for work: it still does its work when the caller has the result.
async fn idle(storage: &Storage) {
    while !storage.is_idle() {
        tokio::task::yield_now().await;
    }
}

/// Writes a grant to the journal. The receiver gets the result of recording it.
fn journaled(storage: &Storage, grant: Issuance, basis: Basis) -> Option<Receiver<Recorded>> {
    let (sender, receiver) = channel();
    let begin = move |recorded| {
        // A test that does not look at the result has dropped the receiver.
        let _ = sender.send(recorded);
    };
    storage.journal_grant(grant, basis, begin).then_some(receiver)
}

fn handles(database: &Database) -> Vec<u64> {
    let mut handles: Vec<_> = database.grants(200, true).unwrap().into_iter().map(|grant| grant.handle.0).collect();
    handles.sort_unstable();
    handles
}

fn granted(database: &Database) -> usize {
    database.audit_entries(None, 100).unwrap().into_iter().filter(|entry| entry.event == "granted").count()
}

fn journal_of(room: &tempfile::TempDir) -> std::path::PathBuf {
    room.path().join("authority.db-grants")
}

/// Opens a database that has the session and no grant, with this file as its journal.
fn opened_with(journal: &Path) -> (tempfile::TempDir, Database) {
    let room = tempfile::tempdir().unwrap();
    drop(database(&room));
    std::fs::copy(journal, journal_of(&room)).unwrap();
    let database = Database::open(&room.path().join("authority.db")).unwrap();
    (room, database)
}

#[tokio::test]
async fn work_that_is_queued_later_finds_a_grant_of_the_journal_recorded() {
    let room = tempfile::tempdir().unwrap();
    let storage = started(&room).await;
    let recorded = journaled(&storage, grant(2, SESSION), storage.basis("robot")).unwrap();
    assert_eq!(storage.call(|database| Ok(handles(database))).await.unwrap(), [1, 2]);
    assert_eq!(recorded.try_recv(), Ok(Recorded::Done));
    idle(&storage).await;
    let recorded = journaled(&storage, grant(3, SESSION), storage.basis("robot")).unwrap();
    assert_eq!(storage.read_for("robot", |database| Ok(handles(database))).await.unwrap(), [1, 2, 3]);
    assert_eq!(recorded.try_recv(), Ok(Recorded::Done));
    idle(&storage).await;
    // Without other work, the thread records the grant by itself.
    let recorded = journaled(&storage, grant(4, SESSION), storage.basis("robot")).unwrap();
    storage.wake();
    let waited = tokio::task::spawn_blocking(move || recorded.recv_timeout(Duration::from_secs(20)));
    assert_eq!(waited.await.unwrap(), Ok(Recorded::Done));
    storage.close().await;
}

#[tokio::test]
async fn the_journal_accepts_no_grant_that_other_work_could_miss() {
    let room = tempfile::tempdir().unwrap();
    let storage = started(&room).await;
    let basis = storage.basis("robot");
    assert!(journaled(&storage, grant(2, [9; 32]), basis).is_none(), "nothing is known of the session");
    let (begin, begun) = channel::<()>();
    let (started, waits) = channel::<()>();
    let busy = storage.call(move |_| {
        started.send(()).unwrap();
        Ok(begun.recv()?)
    });
    let refused = async {
        tokio::task::spawn_blocking(move || waits.recv().unwrap()).await.unwrap();
        let refused = journaled(&storage, grant(3, SESSION), basis).is_none();
        begin.send(()).unwrap();
        refused
    };
    let (done, refused) = tokio::join!(busy, refused);
    done.unwrap();
    assert!(refused, "the thread is at work");
    idle(&storage).await;
    storage.end_basis_of("robot");
    assert!(journaled(&storage, grant(4, SESSION), basis).is_none(), "the basis has ended");
    assert!(journaled(&storage, grant(5, SESSION), storage.basis("robot")).is_some());
    storage.keep_sessions(&Default::default());
    assert!(journaled(&storage, grant(6, SESSION), storage.basis("robot")).is_none(), "the session is forgotten");
    assert_eq!(storage.call(|database| Ok(handles(database))).await.unwrap(), [1, 5]);
    storage.close().await;
}

/// The session ends in the database before the tables in memory say so.
#[tokio::test]
async fn a_grant_for_a_session_that_has_just_ended_is_recorded_as_revoked_and_announced() {
    let room = tempfile::tempdir().unwrap();
    let storage = started(&room).await;
    let by = Operator::current();
    storage.call(move |database| database.revoke(&Which::Session(SESSION), &by, 150)).await.unwrap();
    storage.call(|database| database.take_ended_sessions()).await.unwrap();
    idle(&storage).await;
    let mut late = grant(2, SESSION);
    (late.verifier, late.owner.expires) = ("other".into(), now() + 300);
    let recorded = journaled(&storage, late, storage.basis("robot")).unwrap();
    let announced = storage.call(|database| database.take_unannounced()).await.unwrap();
    assert_eq!(recorded.try_recv(), Ok(Recorded::SessionEnded));
    let announced: Vec<_> = announced.iter().map(|ended| (ended.verifier.as_str(), ended.grant.grant.handle)).collect();
    assert_eq!(announced, [("other", 2)]);
    assert!(storage.call(|database| database.grants(200, false)).await.unwrap().is_empty());
    storage.close().await;
}

#[tokio::test]
async fn the_next_start_records_grants_that_a_killed_server_has_not_recorded() {
    let room = tempfile::tempdir().unwrap();
    let storage = started(&room).await;
    let lease = (LeaseTerms { number: 5, issued: 100, lease: 300 }, 5000);
    let mut other = Issuance { renewable: Some(lease), ..grant(3, SESSION) };
    assert!(journaled(&storage, grant(2, SESSION), storage.basis("robot")).is_some());
    let same = journaled(&storage, grant(4, SESSION), storage.basis("robot"));
    assert!(same.is_none(), "such a request can renew the first grant when it is recorded");
    other.scope.service = Some((6, 23));
    assert!(journaled(&storage, other, storage.basis("robot")).is_some());
    // Nobody wakes the thread, so it has not recorded the grants.
    let copy = room.path().join("copy");
    std::fs::copy(journal_of(&room), &copy).unwrap();
    let (aside, mut database) = opened_with(&copy);
    assert_eq!((handles(&database), granted(&database)), (vec![2, 3], 2));
    assert_eq!(database.lease_terms(Handle(3)).unwrap().map(|terms| terms.number), Some(5));
    assert!(matches!(database.verify_audit(b"an authority", &[]).unwrap(), Verdict::Whole(_)));
    drop(database);
    // The file is empty now. With the same file again, nothing is recorded twice, also not by a server.
    assert_eq!(std::fs::metadata(journal_of(&aside)).unwrap().len(), 0);
    std::fs::copy(&copy, journal_of(&aside)).unwrap();
    let database = Database::open(&aside.path().join("authority.db")).unwrap();
    assert_eq!((handles(&database), granted(&database)), (vec![2, 3], 2));
    let other = Storage::start(database).unwrap();
    assert_eq!(other.call(|database| Ok((handles(database), granted(database)))).await.unwrap(), (vec![2, 3], 2));
    assert_eq!(std::fs::metadata(journal_of(&aside)).unwrap().len(), 0);
    other.close().await;
    storage.close().await;
}

#[test]
fn a_record_that_is_cut_off_or_changed_takes_no_earlier_one_along() {
    let room = tempfile::tempdir().unwrap();
    let whole = records(&[grant(2, SESSION), grant(3, SESSION)]);
    let length = whole.len() / 2;
    let changed = |at: usize| {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        bytes
    };
    let cases: [(Vec<u8>, &[u64]); 6] = [
        (whole.clone(), &[2, 3]),
        (whole[..2 * length - 1].to_vec(), &[2]),
        (whole[..length + 5].to_vec(), &[2]),
        (changed(length + 40), &[2]),
        (changed(length + 1), &[2]),
        (Vec::new(), &[]),
    ];
    for (bytes, expected) in cases {
        let file = room.path().join("records");
        std::fs::write(&file, bytes).unwrap();
        assert_eq!(handles(&opened_with(&file).1), expected);
    }
}

#[tokio::test]
async fn a_journal_that_a_server_uses_is_left_alone() {
    let room = tempfile::tempdir().unwrap();
    let storage = started(&room).await;
    let file = room.path().join("authority.db");
    let other = Storage::start(Database::open(&file).unwrap()).unwrap();
    assert_eq!(other.add_grant(grant(7, SESSION), other.basis("robot"), |_| {}).await.unwrap(), Recorded::Done);
    idle(&other).await;
    assert!(journaled(&other, grant(8, SESSION), other.basis("robot")).is_none(), "it has no journal");
    assert!(journaled(&storage, grant(9, SESSION), storage.basis("robot")).is_some());
    other.close().await;
    storage.close().await;
    assert_eq!(handles(&Database::open(&file).unwrap()), [1, 7, 9]);
}

/// Another process holds the lock of the database for longer than the thread waits.
#[tokio::test]
async fn a_grant_that_waits_until_its_basis_has_ended_is_recorded_as_revoked() {
    let room = tempfile::tempdir().unwrap();
    let storage = started(&room).await;
    let other = Connection::open(room.path().join("authority.db")).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let recorded = journaled(&storage, grant(2, SESSION), storage.basis("robot")).unwrap();
    // A reader makes the thread try. The thread gives up after some seconds.
    while !storage.has_failed() {
        let _ = storage.settle().await;
        tokio::task::yield_now().await;
    }
    assert!(storage.read_for("robot", |database| Ok(handles(database))).await.is_err(), "a reader would miss it");
    assert!(journaled(&storage, grant(3, SESSION), storage.basis("robot")).is_none());
    storage.end_basis_of("robot");
    other.execute_batch("ROLLBACK").unwrap();
    let waited = tokio::task::spawn_blocking(move || recorded.recv_timeout(Duration::from_secs(60)));
    assert_eq!(waited.await.unwrap(), Ok(Recorded::SessionEnded));
    let live = storage.call(|database| database.grants(200, false)).await.unwrap();
    assert_eq!(live.iter().map(|grant| grant.handle.0).collect::<Vec<_>>(), [1]);
    storage.close().await;
}
