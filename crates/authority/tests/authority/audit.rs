//! The audit trails: verification finds them intact after every operation, and never after tampering.

use crate::stage::{PASSWORD, POLICY, Stage, git, login, problem, to};
use authority::storage::{AuditEntry, AuditEvent, AuditQuery, Database, NotedHead, Trail, Verdict};
use authority::{admin, now};
use rusqlite::Connection;
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

const DAY: u64 = 86_400;

/// Returns a stopped authority with about 20 entries in both trails.
async fn trails() -> Stage {
    let mut stage = Stage::start().await;
    // Each grant is for one flow, so each has an entry.
    let flows = POLICY.replacen("to = \"git\"\n", "to = \"git\"\ngranularity = \"flow\"\n", 1);
    stage.apply(&flows).await.unwrap();
    let alice = stage.login("alice").await;
    for port in 80..90 {
        alice.grant(&git()).await.unwrap();
        problem(alice.grant(&to("203.0.113.10", 6, port)).await);
    }
    alice.logout().await.unwrap();
    stage.server.take().unwrap().stop().await;
    stage
}

fn database(stage: &Stage) -> Database {
    Database::open(&stage.directory.database()).unwrap()
}

fn verdict(stage: &Stage, noted: &[NotedHead]) -> Verdict {
    admin::verify_audit(&stage.directory, noted).unwrap()
}

fn broken(stage: &Stage) -> String {
    match verdict(stage, &[]) {
        Verdict::Broken(what) => what,
        Verdict::Whole(_) => panic!("taken for whole"),
    }
}

fn heads(stage: &Stage) -> Vec<NotedHead> {
    database(stage).audit_heads().unwrap().iter().map(|head| head.to_string().parse().unwrap()).collect()
}

/// Opens the database as an attacker who first removes the triggers.
fn intruder(stage: &Stage) -> Connection {
    let connection = Connection::open(stage.directory.database()).unwrap();
    for trigger in ["is_not_changed", "is_cut_from_its_beginning", "grows_at_its_end"] {
        connection.execute_batch(&format!("DROP TRIGGER audit_{trigger}")).unwrap();
    }
    connection.execute_batch("DROP TRIGGER audit_trails_go_on").unwrap();
    connection
}

/// Returns the number of the `nth` entry of a trail.
fn id(connection: &Connection, trail: Trail, nth: u32) -> i64 {
    let select = "SELECT id FROM audit WHERE trail = ?1 ORDER BY id LIMIT 1 OFFSET ?2";
    connection.query_row(select, rusqlite::params![trail.name(), nth], |row| row.get(0)).unwrap()
}

#[tokio::test]
async fn the_trails_of_a_running_server_are_whole() {
    let stage = trails().await;
    let noted = heads(&stage);
    let server = authority::Server::start(stage.directory.clone(), None).await.unwrap();
    assert!(matches!(verdict(&stage, &noted), Verdict::Whole(count) if count > 20));
    server.stop().await;
    let entries = database(&stage).audit_entries(None, 1000).unwrap();
    let granted = entries.iter().find(|entry| entry.event == "granted").unwrap();
    let told = [&granted.person, &granted.device, &granted.source, &granted.receiver, &granted.rule];
    let told = told.map(|text| text.as_deref().unwrap());
    assert_eq!(told, ["alice", "laptop", "127.0.0.1", "git", "policy.toml:17 staff may use git"]);
    let mut listed = Vec::new();
    let list = |entry: AuditEntry| {
        listed.push(entry.id);
        Ok(())
    };
    database(&stage).each_audit_entry(entries[1].id, list).unwrap();
    assert_eq!(listed, entries[2..].iter().map(|entry| entry.id).collect::<Vec<_>>(), "only what comes after");
}

#[tokio::test]
async fn a_changed_entry_is_named() {
    let stage = trails().await;
    let connection = intruder(&stage);
    for (trail, change, back) in [
        (Trail::Refusals, "person = 'bob'", "person = 'alice'"),
        (Trail::Acts, "rule = NULL, receiver = rule", "receiver = 'git', rule = 'policy.toml:17 staff may use git'"),
        (Trail::Acts, "time = time + 1", "time = time - 1"),
    ] {
        let id = id(&connection, trail, 8);
        let set = |what| connection.execute(&format!("UPDATE audit SET {what} WHERE id = {id}"), []).unwrap();
        set(change);
        let said = broken(&stage);
        assert!(said.starts_with(&format!("trail {}, entry {id}:", trail.name())), "{change}: {said}");
        set(back);
        assert!(matches!(verdict(&stage, &[]), Verdict::Whole(_)), "{change}");
    }
}

#[tokio::test]
async fn a_missing_entry_shows_at_the_next() {
    let stage = trails().await;
    let connection = intruder(&stage);
    let (gone, next) = (id(&connection, Trail::Acts, 4), id(&connection, Trail::Acts, 5));
    connection.execute("DELETE FROM audit WHERE id = ?1", [gone]).unwrap();
    assert!(broken(&stage).contains(&format!("entry {next}:")));
}

#[tokio::test]
async fn entries_in_another_order_show() {
    let stage = trails().await;
    let connection = intruder(&stage);
    let (one, other) = (id(&connection, Trail::Acts, 6), id(&connection, Trail::Acts, 7));
    for (from, to) in [(one, -1), (other, one), (-1, other)] {
        connection.execute("UPDATE audit SET id = ?2 WHERE id = ?1", [from, to]).unwrap();
    }
    assert!(broken(&stage).contains(&format!("entry {one}:")));
}

#[tokio::test]
async fn a_cut_tail_shows_and_so_does_one_whose_traces_were_removed() {
    let stage = trails().await;
    let noted = heads(&stage);
    let connection = intruder(&stage);
    let last = id(&connection, Trail::Refusals, 7);
    connection.execute("DELETE FROM audit WHERE trail = 'refusals' AND id > ?1", [last]).unwrap();
    assert!(broken(&stage).contains(&format!("entries after {last} are missing")));
    connection
        .execute(
            "UPDATE audit_trails SET head_id = ?1, head_hash = (SELECT hash FROM audit WHERE id = ?1)
             WHERE trail = 'refusals'",
            [last],
        )
        .unwrap();
    assert!(matches!(verdict(&stage, &[]), Verdict::Whole(_)), "a shorter chain is a chain");
    assert!(matches!(verdict(&stage, &noted), Verdict::Broken(what) if what.contains("was noted but is missing")));
}

#[tokio::test]
async fn another_authoritys_trail_is_no_substitute() {
    let (stage, other) = (trails().await, trails().await);
    std::fs::copy(other.directory.database(), stage.directory.database()).unwrap();
    assert!(broken(&stage).contains("it belongs to another authority"));
}

#[tokio::test]
async fn the_database_refuses_changes_to_the_trail() {
    let stage = trails().await;
    let connection = Connection::open(stage.directory.database()).unwrap();
    for statement in [
        "UPDATE audit SET person = 'bob'",
        "DELETE FROM audit",
        "DELETE FROM audit WHERE id = 1",
        "INSERT OR REPLACE INTO audit (id, trail, time, event, detail, hash) VALUES (1, 'acts', 1, 'x', 'x', x'00')",
        "DELETE FROM audit_trails",
        "UPDATE audit_trails SET head_id = 1",
        "UPDATE audit_trails SET cut_id = 5",
    ] {
        assert!(connection.execute(statement, []).is_err(), "{statement}");
    }
    assert!(matches!(verdict(&stage, &[]), Verdict::Whole(_)));
}

#[tokio::test]
async fn what_is_pruned_leaves_a_chain_and_an_entry_that_says_so() {
    let stage = trails().await;
    let (early, mut database) = (heads(&stage), database(&stage));
    database.prune(now() + 2 * DAY, DAY as u32, DAY as u32).unwrap();
    let left = database.audit_entries(None, 100).unwrap();
    assert_eq!(left.iter().map(|entry| entry.event.as_str()).collect::<Vec<_>>(), ["audit_cut"]);
    database.audit(&AuditEvent::new("login_failed").person("eve"), now() + 2 * DAY).unwrap();
    database.audit(&AuditEvent::new("login").person("eve"), now() + 2 * DAY).unwrap();
    assert_eq!(verdict(&stage, &early), Verdict::Whole(3), "the last that was cut can still be compared");
    // Prune again, so that the first entry about a cut is cut too.
    database.prune(now() + 4 * DAY, DAY as u32, DAY as u32).unwrap();
    assert_eq!(verdict(&stage, &[]), Verdict::Whole(1));
    assert!(admin::verify_audit(&stage.directory, &early).unwrap_err().to_string().contains("was removed after"));
}

#[tokio::test]
async fn a_cut_that_no_entry_tells_of_shows() {
    let stage = trails().await;
    let connection = intruder(&stage);
    let first = id(&connection, Trail::Acts, 3);
    connection
        .execute(
            "UPDATE audit_trails SET cut_id = ?1, cut_hash = (SELECT hash FROM audit WHERE id = ?1) WHERE trail = 'acts'",
            [first],
        )
        .unwrap();
    connection.execute("DELETE FROM audit WHERE trail = 'acts' AND id <= ?1", [first]).unwrap();
    assert!(broken(&stage).contains("no entry records the removal"));
}

#[tokio::test]
async fn what_is_rare_is_looked_for_a_part_of_the_trail_at_a_time() {
    let stage = trails().await;
    let database = database(&stage);
    let mut query =
        AuditQuery { event: Some("account_added".into()), most: NonZeroU32::new(7), ..AuditQuery::default() };
    let (mut rare, mut looks) = (Vec::new(), vec![i64::MAX]);
    loop {
        let mut seen = 0;
        let rest = database.find_audit_entries(&query, |entry| {
            (seen, _) = (seen + 1, rare.push(entry.id));
            Ok(true)
        });
        assert!(seen <= 7);
        query.before = rest.unwrap();
        match query.before {
            Some(rest) => looks.push(rest),
            None => break,
        }
    }
    assert!(looks.len() > 2 && looks[1..].windows(2).all(|two| two[0] - two[1] == 7), "{looks:?}");
    let mut all = Vec::new();
    let keep = |entry: AuditEntry| {
        all.extend((entry.event == "account_added").then_some(entry.id));
        Ok(())
    };
    database.each_audit_entry(0, keep).unwrap();
    rare.reverse();
    assert!(!all.is_empty());
    assert_eq!(rare, all);
}

#[tokio::test]
async fn refusals_that_were_only_counted_are_told_at_the_end() {
    let mut stage = Stage::start().await;
    let alice = stage.login("alice").await;
    let asked = 40;
    for _ in 0..asked {
        problem(alice.grant(&to("203.0.113.10", 6, 80)).await);
    }
    problem(stage.client().login(&login("nobody", PASSWORD, None)).await);
    stage.server.take().unwrap().stop().await;
    let entries = database(&stage).audit_entries(Some("alice"), 100).unwrap();
    let denied: Vec<_> = entries.iter().filter(|entry| entry.event == "denied").collect();
    let counted: Vec<u64> = denied
        .iter()
        .filter(|entry| entry.detail.contains("more in the minute"))
        .map(|entry| entry.detail.split(' ').next().unwrap().parse().unwrap())
        .collect();
    let written = (denied.len() - counted.len()) as u64;
    assert!(written < asked, "{written} written one by one");
    assert_eq!(written + counted.iter().sum::<u64>(), asked);
}

#[tokio::test]
async fn a_server_writes_counts_down_without_being_stopped() {
    let stage = Stage::start().await;
    let alice = stage.login("alice").await;
    for _ in 0..40 {
        problem(alice.grant(&to("203.0.113.10", 6, 80)).await);
    }
    let deadline = Instant::now() + Duration::from_secs(90);
    loop {
        let entries = database(&stage).audit_entries(Some("alice"), 100).unwrap();
        if entries.iter().any(|entry| entry.detail.contains("more in the minute")) {
            break;
        }
        assert!(Instant::now() < deadline, "never written down");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
