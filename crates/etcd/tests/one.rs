//! One real member of etcd: reads, transactions, leases, watches, faults.

use etcd::stage::{Plan, Stage};
use etcd::{CALL_TIME, Compare, Error, Etcd, Op, Settings, Txn, TxnReply, WatchEvent};
use std::io::Read;
use std::net::TcpListener;
use std::time::{Duration, Instant};

/// Long enough for a slow machine; no test waits for its end.
const LONG: Duration = Duration::from_secs(60);

fn start(plan: Plan) -> (Stage, Etcd) {
    let stage = Stage::start(plan).expect("a member of etcd");
    let etcd = Etcd::connect(&stage.settings()).expect("a client");
    (stage, etcd)
}

fn put(key: &str, value: &[u8]) -> Op {
    Op::Put { key: key.into(), value: value.into(), lease: None }
}

fn carry_out(etcd: &Etcd, ops: Vec<Op>) -> TxnReply {
    etcd.txn(&Txn { success: ops, ..Txn::default() }).expect("a transaction")
}

/// Waits until a condition holds.
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + LONG;
    while !holds() {
        assert!(Instant::now() < end, "{what}: not within {LONG:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn keys_are_read_with_their_revisions_and_listed_over_pages() {
    let (_stage, etcd) = start(Plan::of(1));
    assert_eq!(etcd.get("a"), Ok(None));
    let first = carry_out(&etcd, vec![put("a", b"\0\xff"), put("empty", b"")]);
    let kv = etcd.get("a").expect("an answer").expect("a key");
    assert_eq!((kv.value.as_slice(), kv.create_revision, kv.lease), (&b"\0\xff"[..], first.revision, 0));
    assert_eq!(etcd.get("empty").expect("an answer").expect("a key").value, b"");

    for hundred in 0..12 {
        carry_out(&etcd, (0..100).map(|n| put(&format!("many/{:04}", hundred * 100 + n), b"x")).collect());
    }
    let last = carry_out(&etcd, vec![put("many0", b"beside the prefix")]);
    let (keys, revision) = etcd.list("many/").expect("a list");
    let expected: Vec<_> = (0..1200).map(|number| format!("many/{number:04}")).collect();
    assert_eq!(keys.into_iter().map(|kv| kv.key).collect::<Vec<_>>(), expected);
    assert_eq!(revision, last.revision);

    // Ten values of a megabyte are more than one answer can have.
    let long = vec![7; 1024 * 1024];
    for number in 0..10 {
        carry_out(&etcd, vec![put(&format!("long/{number}"), &long)]);
    }
    let (keys, _) = etcd.list("long/").expect("a list");
    assert_eq!(keys.len(), 10);
    assert!(keys.iter().all(|kv| kv.value == long));
}

#[test]
fn a_transaction_compares_and_then_changes_everything_or_nothing() {
    let (_stage, etcd) = start(Plan::of(1));
    let revision = carry_out(&etcd, vec![put("a", b"1")]).revision;
    let outcome = |compare| {
        let (success, failure) = (vec![Op::Get { key: "a".into() }], vec![]);
        etcd.txn(&Txn { compare: vec![compare], success, failure }).expect("a transaction").succeeded
    };
    assert!(outcome(Compare::ValueIs("a".into(), b"1".into())));
    assert!(!outcome(Compare::ValueIs("a".into(), b"2".into())));
    assert!(!outcome(Compare::ValueIs("absent".into(), b"".into())));
    assert!(outcome(Compare::CreateRevisionIs("a".into(), revision)));
    assert!(outcome(Compare::CreateRevisionIs("absent".into(), 0)));
    assert!(!outcome(Compare::CreateRevisionIs("a".into(), 0)));
    assert!(outcome(Compare::ModRevisionIs("a".into(), revision)));
    assert!(!outcome(Compare::ModRevisionIs("a".into(), revision - 1)));

    carry_out(&etcd, vec![put("d/1", b""), put("d/2", b""), put("d/3", b""), put("e", b"")]);
    let reply = etcd
        .txn(&Txn {
            compare: vec![Compare::ValueIs("a".into(), b"1".into()), Compare::CreateRevisionIs("b".into(), 0)],
            success: vec![
                put("b", b"2"),
                Op::Get { key: "b".into() },
                Op::Delete { key: "e".into() },
                Op::DeleteRange { key: "d/".into(), end: "d/3".into() },
                Op::Get { key: "e".into() },
            ],
            failure: vec![],
        })
        .expect("a transaction");
    assert!(reply.succeeded);
    assert_eq!(reply.got.iter().map(Vec::len).collect::<Vec<_>>(), [0, 1, 0, 0, 0]);
    assert_eq!(reply.got[1][0].value, b"2");
    let left: Vec<_> = etcd.list("d/").expect("a list").0.into_iter().map(|kv| kv.key).collect();
    assert_eq!(left, ["d/3"]);

    // etcd refuses to change a key twice, and then changes nothing.
    let twice = etcd.txn(&Txn { success: vec![put("t", b"1"), put("t", b"2")], ..Txn::default() });
    assert!(matches!(&twice, Err(Error::Refused(why)) if why.contains("duplicate key")), "{twice:?}");
    assert_eq!(etcd.get("t"), Ok(None));
    let long = etcd.txn(&Txn { success: vec![put("t", &vec![0; etcd::MOST_TXN])], ..Txn::default() });
    assert!(matches!(&long, Err(Error::Refused(why)) if why.contains("longer than")), "{long:?}");
    carry_out(&etcd, vec![put("t", &vec![0; etcd::MOST_TXN - 1])]);
}

#[test]
fn a_lease_takes_its_keys_along() {
    let (_stage, etcd) = start(Plan::of(1));
    let lease = etcd.grant_lease(2).expect("a lease");
    carry_out(&etcd, vec![Op::Put { key: "k".into(), value: b"v".into(), lease: Some(lease) }]);
    assert_eq!(etcd.get("k").expect("an answer").expect("a key").lease, lease);
    let end = Instant::now() + Duration::from_secs(4);
    while Instant::now() < end {
        assert_eq!(etcd.keep_alive(lease), Ok(true));
        std::thread::sleep(Duration::from_millis(200));
    }
    assert!(etcd.get("k").expect("an answer").is_some(), "the lease was kept alive");
    until("the end of the lease", || etcd.get("k") == Ok(None));
    until("the lease is gone", || etcd.keep_alive(lease) == Ok(false));
    let late = etcd.txn(&Txn {
        success: vec![Op::Put { key: "k".into(), value: b"v".into(), lease: Some(lease) }, put("l", b"v")],
        ..Txn::default()
    });
    assert!(matches!(&late, Err(Error::Refused(why)) if why.contains("lease not found")), "{late:?}");
    assert_eq!(etcd.get("l"), Ok(None));

    let lease = etcd.grant_lease(60).expect("a lease");
    carry_out(&etcd, vec![Op::Put { key: "k".into(), value: b"v".into(), lease: Some(lease) }]);
    assert_eq!(etcd.revoke_lease(lease), Ok(()));
    assert_eq!(etcd.get("k"), Ok(None));
    assert_eq!(etcd.revoke_lease(lease), Ok(()), "it has ended already");
}

#[test]
fn a_watch_gives_every_change_from_its_first_revision_on() {
    let (stage, etcd) = start(Plan::of(1));
    let first = carry_out(&etcd, vec![put("w/1", b"1")]).revision;
    carry_out(&etcd, vec![put("other", b"")]);
    let mut watch = etcd.watch("w/", Some(first));
    let WatchEvent::Changed { revision, puts, deleted } = watch.next(LONG) else { panic!("no change") };
    assert_eq!((revision, puts.len(), deleted.len()), (first, 1, 0));
    assert_eq!((puts[0].key.as_str(), puts[0].value.as_slice()), ("w/1", &b"1"[..]));
    assert_eq!(watch.next(Duration::from_millis(50)), WatchEvent::Quiet);

    let second = carry_out(&etcd, vec![Op::Delete { key: "w/1".into() }, put("w/2", b"2")]).revision;
    let WatchEvent::Changed { revision, puts, deleted } = watch.next(LONG) else { panic!("no change") };
    assert_eq!((revision, puts.len(), deleted), (second, 1, vec!["w/1".to_owned()]));

    // A thousand entries in twelve mebibytes come in several pieces. None is missing.
    let mut watch = etcd.watch("log/", Some(second));
    let value = vec![1; 12 * 1024];
    for number in 0..1000 {
        carry_out(&etcd, vec![put(&format!("log/{number:04}"), &value)]);
    }
    let (mut seen, mut last) = (Vec::new(), 0);
    let mut reopened = false;
    while seen.len() < 1000 {
        match watch.next(LONG) {
            WatchEvent::Changed { revision, puts, .. } => {
                for kv in puts {
                    if kv.mod_revision <= last {
                        continue;
                    }
                    last = kv.mod_revision;
                    seen.push(kv.key);
                }
                if !reopened && seen.len() > 300 {
                    watch = etcd.watch("log/", Some(revision + 1));
                    reopened = true;
                }
            }
            other => panic!("{other:?} after {} entries", seen.len()),
        }
    }
    assert_eq!(seen, (0..1000).map(|number| format!("log/{number:04}")).collect::<Vec<_>>());
    // A second watch gets all thousand changes at once, so that etcd has to divide the message.
    let mut watch = etcd.watch("log/", Some(second));
    let mut seen = 0;
    while seen < 1000 {
        match watch.next(LONG) {
            WatchEvent::Changed { puts, .. } => seen += puts.len(),
            other => panic!("{other:?} after {seen} entries"),
        }
    }
    assert_eq!(seen, 1000);

    let last = etcd.list("w/").expect("a list").1;
    stage.etcdctl(0, &["compact", &last.to_string()]).expect("a compaction");
    let mut watch = etcd.watch("w/", Some(first));
    assert_eq!(watch.next(LONG), WatchEvent::Compacted);
    assert!(matches!(watch.next(LONG), WatchEvent::Lost(_)), "the watch is over");
}

#[test]
fn a_watch_works_within_a_runtime_and_from_now_on() {
    let (_stage, etcd) = start(Plan::of(1));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        // The calls block, and may nevertheless be made here.
        let mut watch = etcd.watch("w/", None);
        // The watch begins at some revision after the call, so the first changes may be missed.
        let writer = etcd.clone();
        let writer = std::thread::spawn(move || {
            for number in 0..200 {
                carry_out(&writer, vec![put("w/1", format!("{number}").as_bytes())]);
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        let event = tokio::time::timeout(LONG, watch.next_async()).await.expect("an event");
        assert!(matches!(event, WatchEvent::Changed { .. }), "{event:?}");
        let blocking = watch.next(LONG);
        assert!(matches!(blocking, WatchEvent::Changed { .. }), "{blocking:?}");
        writer.join().expect("a writer");
        assert!(etcd.get("w/1").expect("an answer").is_some());
    });
}

#[test]
fn a_killed_member_ends_watches_and_calls_and_comes_back_with_its_data() {
    let (mut stage, etcd) = start(Plan::of(1));
    carry_out(&etcd, vec![put("k", b"v")]);
    let mut watch = etcd.watch("k", None);
    assert_eq!(watch.next(Duration::from_millis(300)), WatchEvent::Quiet);
    stage.kill(0).expect("a kill");
    let event = watch.next(LONG);
    assert!(matches!(&event, WatchEvent::Lost(_)), "{event:?}");

    let before = Instant::now();
    let read = etcd.get("k");
    assert!(matches!(&read, Err(Error::Unreachable(why)) if why.contains("http://127.")), "{read:?}");
    let written = etcd.txn(&Txn { success: vec![put("k", b"lost")], ..Txn::default() });
    assert!(matches!(&written, Err(Error::Unreachable(_))), "nothing listens: {written:?}");
    assert!(before.elapsed() < CALL_TIME * 2 + Duration::from_secs(3), "{:?}", before.elapsed());
    assert!(matches!(etcd.watch("k", None).next(LONG), WatchEvent::Lost(_)));
    let status = etcd.members().expect("a list");
    assert!(status[0].error.is_some(), "{status:?}");

    stage.restart(0).expect("a start");
    stage.await_ready(0).expect("a member");
    until("the data", || etcd.get("k").is_ok());
    assert_eq!(etcd.get("k").expect("an answer").expect("a key").value, b"v");
}

#[test]
fn a_member_that_hangs_leaves_a_transaction_in_doubt_and_ends_watches() {
    let (stage, etcd) = start(Plan::of(1));
    carry_out(&etcd, vec![put("k", b"v")]);
    let mut watch = etcd.watch("k", None);
    assert_eq!(watch.next(Duration::from_millis(300)), WatchEvent::Quiet);
    let pid = stage.pid(0).expect("a process").to_string();
    let signal = |signal: &str| {
        let status = std::process::Command::new("kill").args([signal, &pid]).status().expect("kill");
        assert!(status.success());
    };
    signal("-STOP");
    // The other threads run until one thread has taken the signal, which takes a while on a busy machine.
    until("the stop", || threads_are_stopped(&pid));
    let written = etcd.txn(&Txn { success: vec![put("k", b"late")], ..Txn::default() });
    assert!(matches!(&written, Err(Error::Unknown(_))), "{written:?}");
    let read = etcd.get("k");
    assert!(matches!(&read, Err(Error::Unreachable(_))), "{read:?}");
    let event = watch.next(LONG);
    assert!(matches!(&event, WatchEvent::Lost(_)), "{event:?}");
    signal("-CONT");
    until("the member", || etcd.get("k").is_ok());
    // The transaction was carried out or not, but not in part.
    let value = etcd.get("k").expect("an answer").expect("a key").value;
    assert!(value == b"v" || value == b"late", "{value:?}");
}

/// Reports whether all threads of a process are stopped (`T` in the third field of proc_pid_stat(5)).
fn threads_are_stopped(pid: &str) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).expect("a process");
    threads.flatten().all(|thread| {
        let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('T'))
    })
}

#[test]
fn after_a_change_without_an_answer_another_member_is_asked_first() {
    let (stage, _) = start(Plan::of(1));
    // The kernel accepts connections to it, and nobody answers.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let mut settings = stage.settings();
    settings.endpoints.insert(0, format!("http://{}", silent.local_addr().expect("an address")));
    let etcd = Etcd::connect(&settings).expect("a client");
    let (before, write) = (Instant::now(), Txn { success: vec![put("k", b"v")], ..Txn::default() });
    let first = etcd.txn_within(&write, Duration::from_millis(100));
    assert!(matches!(&first, Err(Error::Unknown(_))), "{first:?}");
    assert!(before.elapsed() < Duration::from_secs(1), "{:?}", before.elapsed());
    etcd.txn(&write).expect("the other member answers");
}

#[test]
fn a_full_database_is_named_and_loses_no_transaction_that_was_acknowledged() {
    let (stage, etcd) = start(Plan { quota_backend_bytes: Some(16 * 1024 * 1024), ..Plan::of(1) });
    // Several writers, because members first ask whether there is space, and then carry out what is under way.
    let writers: Vec<_> = (0..6)
        .map(|writer| {
            let etcd = etcd.clone();
            std::thread::spawn(move || {
                let mut acknowledged = Vec::new();
                loop {
                    let key = format!("full/{writer}/{}", acknowledged.len());
                    assert!(acknowledged.len() < 100, "there is a quota");
                    match etcd.txn(&Txn { success: vec![put(&key, &vec![3; 512 * 1024])], ..Txn::default() }) {
                        Ok(_) => acknowledged.push(key),
                        Err(Error::Unknown(why)) => return (acknowledged, key, why),
                        Err(other) => panic!("{other}"),
                    }
                }
            })
        })
        .collect();
    let written: Vec<_> = writers.into_iter().map(|writer| writer.join().expect("a writer")).collect();
    // Reads go on, so a transaction can be looked up. Each of those in doubt was carried out or not; all others were.
    let found: Vec<_> = etcd.list("full/").expect("a list").0.into_iter().map(|kv| kv.key).collect();
    let (mut expected, mut in_doubt) = (0, 0);
    for (acknowledged, doubtful, why) in &written {
        assert!(why.contains("--quota-backend-bytes") && why.contains("alarm disarm"), "{why}");
        assert!(acknowledged.iter().all(|key| found.contains(key)), "{acknowledged:?} in {found:?}");
        expected += acknowledged.len();
        in_doubt += usize::from(found.contains(doubtful));
    }
    assert_eq!(found.len(), expected + in_doubt);
    println!("{in_doubt} of {} in doubt were carried out", written.len());
    let lease = etcd.grant_lease(5);
    assert!(matches!(&lease, Err(Error::Refused(why)) if why.contains("alarm disarm")), "{lease:?}");
    let status = etcd.measured_members().expect("a list");
    assert!(status[0].problems.iter().any(|problem| problem.starts_with("no space")), "{status:?}");
    assert!(status[0].is_full && status[0].quota == Some(16 * 1024 * 1024), "{status:?}");
    assert!(status[0].compacted.is_some_and(|compacted| compacted < status[0].revision.unsigned_abs()), "{status:?}");

    // The way out that the error names works. Deletions need no space.
    carry_out(&etcd, vec![Op::DeleteRange { key: "full/".into(), end: "full0".into() }]);
    let revision = etcd.list("full/").expect("a list").1;
    stage.etcdctl(0, &["compact", "--physical", &revision.to_string()]).expect("a compaction");
    stage.etcdctl(0, &["defrag"]).expect("a defragmentation");
    stage.etcdctl(0, &["alarm", "disarm"]).expect("the end of the alarm");
    let status = etcd.measured_members().expect("a list");
    assert!(!status[0].is_full && status[0].compacted == Some(revision.unsigned_abs()), "{status:?}");
    until("a transaction", || etcd.txn(&Txn { success: vec![put("k", b"v")], ..Txn::default() }).is_ok());
}

#[test]
fn members_demand_certificates_and_clients_the_right_ca() {
    let (stage, etcd) = start(Plan { tls: true, ..Plan::of(1) });
    carry_out(&etcd, vec![put("k", b"v")]);
    let mut watch = etcd.watch("k", Some(1));
    assert!(matches!(watch.next(LONG), WatchEvent::Changed { .. }));
    let status = etcd.members().expect("a list");
    assert_eq!((status[0].error.as_deref(), status[0].is_leader()), (None, true));
    assert!(status[0].version.starts_with("3."), "{status:?}");

    let write = Txn { success: vec![put("k", b"stranger's")], ..Txn::default() };
    let without = Settings { certificate: None, key: None, ..stage.settings() };
    let refused = Etcd::connect(&without).expect("a client").txn(&write);
    assert!(matches!(&refused, Err(Error::Unreachable(why)) if why.contains("certificate")), "{refused:?}");
    // A client that trusts another CA, here a certificate that is none, sends nothing.
    let other = Settings { ca: Some(stage.folder().join("client.pem")), ..stage.settings() };
    let refused = Etcd::connect(&other).expect("a client").txn(&write);
    assert!(matches!(&refused, Err(Error::Unreachable(_))), "{refused:?}");
    assert_eq!(etcd.get("k").expect("an answer").expect("a key").value, b"v");
}

/// Accepts connections, and gives each one to `serve`.
fn listener(serve: impl Fn(std::net::TcpStream) + Send + 'static) -> Etcd {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let endpoints = vec![format!("http://{}", listener.local_addr().expect("an address"))];
    std::thread::spawn(move || listener.incoming().flatten().for_each(serve));
    Etcd::connect(&Settings { endpoints, ..Settings::default() }).expect("a client")
}

#[test]
fn a_connection_that_breaks_after_the_request_leaves_a_transaction_in_doubt() {
    let etcd = listener(|mut connection| {
        let _ = connection.read(&mut [0; 1024]);
    });
    let written = etcd.txn(&Txn { success: vec![put("k", b"v")], ..Txn::default() });
    assert!(matches!(&written, Err(Error::Unknown(_))), "{written:?}");
    // Nothing is in doubt about a transaction that only reads.
    let read = etcd.txn(&Txn { success: vec![Op::Get { key: "k".into() }], ..Txn::default() });
    assert!(matches!(&read, Err(Error::Unreachable(_))), "{read:?}");
}

#[test]
fn an_answer_that_is_too_long_or_none_of_etcd_is_not_believed() {
    use std::io::Write;
    let etcd = listener(|mut connection| {
        let _ = connection.read(&mut [0; 4096]);
        let _ = connection.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}");
    });
    let written = etcd.txn(&Txn { success: vec![put("k", b"v")], ..Txn::default() });
    assert!(matches!(&written, Err(Error::Unknown(why)) if why.contains("malformed")), "{written:?}");

    let etcd = listener(|mut connection| {
        let _ = connection.read(&mut [0; 4096]);
        let _ = connection.write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n");
        while connection.write_all(&[b' '; 65536]).is_ok() {}
    });
    let read = etcd.get("k");
    assert!(matches!(&read, Err(Error::Refused(why)) if why.contains("too long")), "{read:?}");
}

#[test]
fn calls_beyond_the_queue_fail_at_once_and_are_not_sent() {
    // Nobody accepts the connections' requests, so that every call takes its whole time.
    let etcd = listener(std::mem::forget);
    let start = std::sync::Arc::new(std::sync::Barrier::new(400));
    let calls: Vec<_> = (0..400)
        .map(|_| {
            let (etcd, start) = (etcd.clone(), start.clone());
            std::thread::spawn(move || {
                start.wait();
                etcd.txn(&Txn { success: vec![put("k", b"v")], ..Txn::default() })
            })
        })
        .collect();
    let results: Vec<_> = calls.into_iter().map(|call| call.join().expect("a thread")).collect();
    let full = |result: &&Result<_, Error>| matches!(result, Err(Error::Unreachable(why)) if why.contains("too many"));
    let sent = results.iter().filter(|result| matches!(result, Err(Error::Unknown(_)))).count();
    assert!(results.iter().filter(full).count() >= 400 - 64 - 256, "the queue is bounded");
    assert!((1..=128).contains(&sent), "{sent} were sent");
}
