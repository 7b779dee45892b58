//! Several members, and several processes of a member, that write at the same time.

use super::*;
use crate::storage::tests::{SESSION, SOURCE, grant};
use crate::storage::{Login, Operator, Proof, Recorded, Session, TokenHash, Which, session_number};
use engine::issuing::lease::{NUMBERS, Turn};
use engine::policy::preference::Choice;
use std::sync::Barrier;
use std::time::{Duration, Instant};
use wire::Handle;

/// Time for which the members write.
const SPAN: Duration = Duration::from_secs(4);
/// Minimum number of grants that a writer records.
const LEAST: usize = 4;
/// Pieces of work after which a writer ends at the latest.
const MOST: usize = 400;

/// The writes that a writer was told are recorded.
#[derive(Default)]
struct Acknowledged {
    grants: Vec<Handle>,
    revoked: Vec<Handle>,
    sessions: Vec<TokenHash>,
    ended: Vec<TokenHash>,
    preferences: Vec<String>,
    policies: usize,
}

/// A generator of numbers that is the same in every run (Steele, Lea and Flood's SplitMix).
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

/// Performs random operations until `until`. `writer` tells the writers apart.
fn write(database: &mut Database, writer: u8, until: Instant) -> Acknowledged {
    let (mut chance, mut told, by) = (Chance(writer.into()), Acknowledged::default(), Operator::current());
    let (key, mut number) = database.numbering().unwrap();
    for nth in 0..MOST {
        // A busy machine may need longer for what is checked.
        if Instant::now() >= until && told.grants.len() >= LEAST {
            break;
        }
        match chance.next() % 10 {
            0..5 => {
                let turn = Turn { number: number % NUMBERS, epochs: 0 };
                number += 1;
                let handle = 0xab00_0000_0000_0000 | u64::from(key.encrypt(turn));
                let mut issuance = grant(handle, SESSION);
                issuance.renewable =
                    Some((crate::storage::LeaseTerms { number: turn.number, issued: 100, lease: 300 }, 9000));
                let recorded = database.add_grants(&[issuance]).unwrap()[0];
                if matches!(recorded, Recorded::Done | Recorded::Renewable) {
                    told.grants.push(Handle(handle));
                }
            }
            5 => {
                if let Some(handle) = told.grants.last().copied() {
                    database.revoke(&Which::Grant(handle), &by, 150).unwrap();
                    told.revoked.push(handle);
                }
            }
            6 => {
                let mut token = [writer; 32];
                token[..8].copy_from_slice(&chance.next().to_be_bytes());
                let (tags, groups, holder) = (Vec::new(), Vec::new(), wire::Holder::default());
                let device = format!("machine {writer}");
                let session =
                    Session { person: "robot".into(), device, expires: 10_000, tags, groups, ends: None, holder };
                let proof = Proof::Service("00".into());
                // Logins are not at the same time, so that the oldest session ends, which is not the one of the grants.
                let now = 1000 + nth as u64;
                let login = database.add_session(token, &session, &proof, SOURCE.parse().unwrap(), now).unwrap();
                if let Login::Done { .. } = login {
                    told.sessions.push(token);
                }
            }
            7 => {
                if let Some(token) = told.sessions.last() {
                    database.end_own_session("robot", session_number(token), &by, 5000).unwrap();
                    told.ended.push(*token);
                }
            }
            8 => {
                let target = format!("198.51.100.{}/32", chance.next() % 40);
                let choice = [Choice::Allow, Choice::Never][usize::from(nth % 2 == 0)];
                database
                    .set_preference(&format!("p{writer}"), &target.parse().unwrap(), Some(choice), &by, 160)
                    .unwrap();
                told.preferences.push(target);
            }
            _ => {
                let change = crate::storage::PolicyChange {
                    text: format!("{writer} {nth}"),
                    note: "apply".into(),
                    by: None,
                    summary: String::new(),
                    after: None,
                };
                database.apply_policy(&change, &[], 170, &|_| None, || Ok(())).unwrap();
                told.policies += 1;
            }
        }
    }
    told
}

/// Checks that the databases are the same, and contain what the writers were told.
fn check(databases: &mut [Database], told: &[Acknowledged]) {
    for database in &mut *databases {
        database.catch_up().unwrap();
    }
    let (first, others) = databases.split_first().unwrap();
    others.iter().for_each(|other| assert_same(first, other, &[]));
    let policies: usize = told.iter().map(|told| told.policies).sum();
    assert_eq!(first.policies().unwrap().len(), policies);
    for told in told {
        assert!(told.grants.len() >= LEAST, "too little was written: {}", told.grants.len());
        for handle in &told.grants {
            let entry = first.grant(*handle).unwrap().unwrap_or_else(|| panic!("{handle} is lost"));
            assert!(entry.handle == *handle);
            let live: Option<i64> = first
                .connection
                .query_row("SELECT revoked FROM grants WHERE handle = ?1", [handle.0.cast_signed()], |row| row.get(0))
                .unwrap();
            assert_eq!(live.is_some(), told.revoked.contains(handle));
        }
        for token in &told.ended {
            assert!(first.session_of_token(token, 5001).unwrap().is_none());
        }
        let begun: i64 = told
            .sessions
            .iter()
            .map(|token| {
                let count = "SELECT count(*) FROM session_slots WHERE session = ?1";
                first.connection.query_row(count, [token], |row| row.get::<_, i64>(0)).unwrap()
            })
            .sum();
        assert_eq!(begun as usize, told.sessions.len());
    }
    let all: usize = told.iter().map(|told| told.grants.len()).sum();
    let recorded: i64 = first.connection.query_row("SELECT count(*) FROM grants", [], |row| row.get(0)).unwrap();
    assert_eq!(recorded as usize, all, "a grant was recorded twice, or without an answer");
    eprintln!("{} entries, {all} grants, {policies} policies", first.applied().unwrap());
}

#[test]
fn what_three_members_write_at_once_is_in_all_of_them() {
    let cluster = Cluster::of(3);
    let databases = vec![cluster.open("a"), cluster.join("b"), cluster.join("c")];
    let begin = Barrier::new(databases.len());
    let done = std::thread::scope(|scope| {
        let writers: Vec<_> = databases
            .into_iter()
            .zip(1..)
            .map(|(mut database, writer)| {
                let begin = &begin;
                scope.spawn(move || {
                    begin.wait();
                    let told = write(&mut database, writer, Instant::now() + SPAN);
                    (database, told)
                })
            })
            .collect();
        writers.into_iter().map(|writer| writer.join().unwrap()).collect::<Vec<_>>()
    });
    let (mut databases, told): (Vec<_>, Vec<_>) = done.into_iter().unzip();
    check(&mut databases, &told);
}

/// A server and a command of the same host have the same file open.
#[test]
fn two_processes_of_a_member_write_to_one_file() {
    let cluster = Cluster::of(1);
    let databases = vec![cluster.open("a"), cluster.open("a"), cluster.join("b")];
    let done = std::thread::scope(|scope| {
        let writers: Vec<_> = databases
            .into_iter()
            .zip(1..)
            .map(|(mut database, writer)| {
                scope.spawn(move || {
                    let told = write(&mut database, writer, Instant::now() + SPAN / 2);
                    (database, told)
                })
            })
            .collect();
        writers.into_iter().map(|writer| writer.join().unwrap()).collect::<Vec<_>>()
    });
    let (mut databases, told): (Vec<_>, Vec<_>) = done.into_iter().unzip();
    check(&mut databases, &told);
    // One process learns what the other has changed, although the file contains it already.
    databases[0].take_changes();
    databases[1].add_grants(&[grant(77, SESSION)]).unwrap();
    assert_eq!(databases[0].catch_up().unwrap().grants, [Handle(77)]);
    let verdict = databases[0].verify_audit(b"an authority", &[]).unwrap();
    assert!(matches!(verdict, crate::storage::Verdict::Whole(_)), "{verdict:?}");
}
