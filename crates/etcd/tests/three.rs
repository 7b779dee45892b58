//! Three real members of etcd, of which some are killed while transactions run.

use etcd::stage::{Plan, Stage};
use etcd::{Compare, Error, Etcd, KeyValue, Op, Txn, WatchEvent};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(60);

/// A writer's entries: those that were acknowledged, with their numbers, those in doubt, and those that were rejected.
#[derive(Default)]
struct Written {
    acknowledged: Vec<(u64, String)>,
    doubtful: Vec<String>,
    rejected: Vec<String>,
}

fn number(head: Option<KeyValue>) -> u64 {
    head.map_or(0, |head| String::from_utf8_lossy(&head.value).parse().expect("a number"))
}

/// Appends entries to a log until told to stop: each one at the place after the head, if nobody else has taken it.
fn append(etcd: &Etcd, log: &str, name: &str, stop: &AtomicBool) -> Written {
    let head_key = format!("{log}/head");
    let mut written = Written::default();
    for serial in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let Ok(head) = etcd.get(&head_key) else { continue };
        let compare = match &head {
            Some(head) => Compare::ModRevisionIs(head_key.clone(), head.mod_revision),
            None => Compare::CreateRevisionIs(head_key.clone(), 0),
        };
        let (next, id) = (number(head) + 1, format!("{name}-{serial}"));
        let put = |key: String, value: &str| Op::Put { key, value: value.into(), lease: None };
        let success = vec![put(head_key.clone(), &next.to_string()), put(format!("{log}/log/{next:020}"), &id)];
        match etcd.txn(&Txn { compare: vec![compare], success, failure: vec![] }) {
            Ok(reply) if reply.succeeded => written.acknowledged.push((next, id)),
            Ok(_) => written.rejected.push(id),
            Err(Error::Unknown(_)) => written.doubtful.push(id),
            // This one was certainly not carried out.
            Err(Error::Unreachable(_)) => written.rejected.push(id),
            Err(refused) => panic!("{refused}"),
        }
    }
    written
}

fn leader(stage: &Stage) -> usize {
    let end = Instant::now() + LONG;
    loop {
        if let Some(leader) = stage.leader() {
            return leader;
        }
        assert!(Instant::now() < end, "no leader");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Waits until the log has grown by some entries.
fn grow(etcd: &Etcd, by: u64) {
    let end = Instant::now() + LONG;
    let mut goal = None;
    while Instant::now() < end {
        if let Ok(head) = etcd.get("shared/head") {
            let head = number(head);
            if head >= *goal.get_or_insert(head + by) {
                return;
            }
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("the log has not grown");
}

/// The number of writers. Three share a log, and each of the others has one of its own, so that many transactions that
/// would succeed are under way when a member is killed.
const WRITERS: usize = 12;

fn log_of(writer: usize) -> String {
    if writer < 3 { "shared".to_owned() } else { format!("own{writer}") }
}

#[test]
fn no_acknowledged_transaction_is_lost_when_members_are_killed() {
    let mut stage = Stage::start(Plan::of(3)).expect("three members");
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            // Each third of the writers prefers another member.
            let mut settings = stage.settings();
            settings.endpoints.rotate_left(writer % 3);
            let (etcd, stop) = (Etcd::connect(&settings).expect("a client"), stop.clone());
            std::thread::spawn(move || append(&etcd, &log_of(writer), &format!("w{writer}"), &stop))
        })
        .collect();
    let settings = stage.settings();
    let watcher = {
        let (etcd, stop) = (Etcd::connect(&settings).expect("a client"), stop.clone());
        std::thread::spawn(move || watched(&etcd, &stop))
    };
    let etcd = Etcd::connect(&settings).expect("a client");
    for round in 0..6 {
        grow(&etcd, 10);
        // Every second time a member that only passes transactions on to the leader.
        let killed = (leader(&stage) + round % 2) % 3;
        stage.kill(killed).expect("a kill");
        grow(&etcd, 10);
        stage.restart(killed).expect("a start");
        stage.await_ready(killed).expect("a member");
    }
    grow(&etcd, 10);
    stop.store(true, Ordering::Relaxed);
    let written: Vec<_> = writers.into_iter().map(|writer| writer.join().expect("a writer")).collect();

    let shared = check(&etcd, &log_of(0), &written[..3]);
    for writer in 3..WRITERS {
        check(&etcd, &log_of(writer), &written[writer..=writer]);
    }
    // The watch has seen the log as it is, in order, although it was opened anew.
    assert_eq!(watcher.join().expect("a watcher"), shared);
}

/// Compares a log with what its writers were told, and returns its entries.
fn check(etcd: &Etcd, log: &str, written: &[Written]) -> Vec<String> {
    let (entries, _) = etcd.list(&format!("{log}/log/")).expect("the log");
    let head = number(etcd.get(&format!("{log}/head")).expect("an answer"));
    let ids: Vec<_> = entries.iter().map(|kv| String::from_utf8_lossy(&kv.value).into_owned()).collect();
    let keys: Vec<_> = entries.iter().map(|kv| kv.key.clone()).collect();
    assert_eq!(keys, (1..=head).map(|number| format!("{log}/log/{number:020}")).collect::<Vec<_>>(), "no gap");
    let all: HashSet<_> = ids.iter().collect();
    assert_eq!(all.len(), ids.len(), "no entry is there twice");
    for (number, id) in written.iter().flat_map(|written| &written.acknowledged) {
        let place = usize::try_from(*number).expect("a number") - 1;
        assert_eq!(ids.get(place), Some(id), "an acknowledged entry is lost");
    }
    for id in written.iter().flat_map(|written| &written.rejected) {
        assert!(!all.contains(id), "{id} was carried out, and its writer was told the contrary");
    }
    let doubtful: HashSet<_> = written.iter().flat_map(|written| &written.doubtful).collect();
    let acknowledged: HashSet<_> = written.iter().flat_map(|written| &written.acknowledged).map(|(_, id)| id).collect();
    assert!(all.iter().all(|id| acknowledged.contains(id) || doubtful.contains(id)), "every entry has a writer");
    let carried_out = ids.len() - acknowledged.len();
    println!("{log}: {} entries, {carried_out} of {} in doubt were carried out", ids.len(), doubtful.len());
    ids
}

/// Follows the log until it is at the head and told to stop, and returns the entries.
fn watched(etcd: &Etcd, stop: &AtomicBool) -> Vec<String> {
    let (mut seen, mut last, mut next) = (Vec::new(), 0, 1);
    let mut watch = etcd.watch("shared/log/", Some(next));
    loop {
        match watch.next(Duration::from_millis(500)) {
            WatchEvent::Changed { revision, puts, deleted } => {
                assert!(deleted.is_empty());
                for kv in puts {
                    if kv.mod_revision <= last {
                        continue;
                    }
                    last = kv.mod_revision;
                    seen.push(String::from_utf8_lossy(&kv.value).into_owned());
                }
                next = revision + 1;
            }
            WatchEvent::Lost(_) => watch = etcd.watch("shared/log/", Some(next)),
            WatchEvent::Compacted => panic!("nobody compacts"),
            WatchEvent::Quiet if stop.load(Ordering::Relaxed) => {
                let at_head = etcd.get("shared/head").is_ok_and(|head| number(head) == seen.len() as u64);
                if at_head {
                    return seen;
                }
            }
            WatchEvent::Quiet => {}
        }
    }
}

#[test]
fn a_member_that_is_alone_refuses_calls_and_ends_watches() {
    let mut stage = Stage::start(Plan { tls: true, ..Plan::of(3) }).expect("three members");
    let leader = leader(&stage);
    let alone = (leader + 1) % 3;
    let mut settings = stage.settings();
    settings.endpoints = vec![settings.endpoints[alone].clone()];
    let etcd = Etcd::connect(&settings).expect("a client");
    let write = Txn { success: vec![Op::Put { key: "k".into(), value: b"v".into(), lease: None }], ..Txn::default() };
    etcd.txn(&write).expect("a transaction");
    let mut watch = etcd.watch("k", None);
    assert_eq!(watch.next(Duration::from_millis(300)), WatchEvent::Quiet);
    let members = etcd.members().expect("a list");
    assert!(members[0].leader != 0 && !members[0].is_leader(), "{members:?}");

    for member in (0..3).filter(|member| *member != alone) {
        stage.kill(member).expect("a kill");
    }
    let event = watch.next(LONG);
    assert!(matches!(&event, WatchEvent::Lost(_)), "{event:?}");
    let read = etcd.get("k");
    assert!(matches!(&read, Err(Error::Unreachable(why)) if why.contains("no leader")), "{read:?}");
    // The member says so before it proposes the transaction, so nothing is in doubt.
    let written = etcd.txn(&write);
    assert!(matches!(&written, Err(Error::Unreachable(why)) if why.contains("no leader")), "{written:?}");
    let members = etcd.members().expect("a list");
    assert_eq!((members[0].error.as_deref(), members[0].leader), (None, 0), "{members:?}");

    stage.restart(leader).expect("a start");
    stage.await_ready(leader).expect("a member");
    let end = Instant::now() + LONG;
    while etcd.txn(&write).is_err() {
        assert!(Instant::now() < end, "two members are a majority");
    }
}
