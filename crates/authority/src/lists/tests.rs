use super::*;
use crate::storage::Operator;
use engine::policy::lists::{Lists, TooManyEnds};
use engine::policy::{Compiled, Decision, Request, Subject};
use std::collections::BTreeMap;
use std::fmt::Write;
use wire::Destination;

const NOW: u64 = 1_900_000_000;

const POLICY: &str = r#"
[[receivers]]
name = "farm"
address = "10.0.0.0/8"
services = "tcp/22"
verifier = "edge-1"

[[lists]]
name = "partners"
to = "farm"
who = "everyone"
"#;

struct Fixture {
    directory: Directory,
    store: Store,
    policy: Compiled,
    _room: tempfile::TempDir,
}

impl Fixture {
    fn new() -> Self {
        let room = tempfile::tempdir().unwrap();
        let directory = Directory::at(room.path());
        let store = Store::create(&directory).unwrap();
        let policy = Compiled::new(Policy::parse(POLICY, 3600).unwrap()).unwrap();
        Self { directory, store, policy, _room: room }
    }

    fn import(&mut self, text: &str) -> Result<Imported> {
        self.store.import("partners", text.as_bytes(), "test", (&Operator::current(), NOW), |_| {})
    }

    fn change(&mut self, text: &str) -> Result<Changed> {
        let lines = (1..).zip(text.lines()).map(|(number, line)| (number, Line::parse(line.as_bytes()).unwrap()));
        self.store.change("partners", lines.collect::<Vec<_>>(), "test", (&Operator::current(), NOW))
    }

    fn allows(&mut self, lists: &Lists, person: &str, address: &str) -> bool {
        self.policy.set_lists(lists.clone());
        let to = Destination { address: address.parse().unwrap(), protocol: 6, port: 22 };
        matches!(self.policy.decide(&Request { subject: Subject::person(person), to, now: NOW }), Decision::Allowed(_))
    }
}

fn add(to: &str, who: &str) -> String {
    format!("{{\"to\": \"{to}\", \"who\": [\"{who}\"]}}\n")
}

fn remove(to: &str, who: &str) -> String {
    format!("{{\"to\": \"{to}\", \"who\": [\"{who}\"], \"remove\": true}}\n")
}

#[test]
fn an_import_replaces_the_list_as_a_whole_or_not_at_all() {
    let mut place = Fixture::new();
    let mut follower = Follower::new(place.directory.clone());
    assert_eq!(follower.follow().unwrap().unwrap().1, Touched::default());
    let text = add("10.0.0.1", "person:alice") + &add("10.0.0.2", "person:bob") + "\n" + &add("10.0.0.1", "person:bob");
    let imported = place.import(&text).unwrap();
    assert_eq!(imported, Imported { lines: 4, entries: 3, receivers: 3 });
    let (lists, touched) = follower.follow().unwrap().unwrap();
    assert!(touched.all && follower.follow().unwrap().is_none());
    for (person, address, expected) in [
        ("alice", "10.0.0.1", true),
        ("bob", "10.0.0.1", true),
        ("bob", "10.0.0.2", true),
        ("alice", "10.0.0.2", false),
    ] {
        assert_eq!(place.allows(&lists, person, address), expected, "{person} {address}");
    }
    for (wrong, expected) in [
        (add("10.0.0.3", "alice"), "test:2: `who`: `alice` is not one of"),
        (add("10.0.0.1", "person:alice"), "test:2: 10.0.0.1/32 has two entries about person:alice"),
        (remove("10.0.0.1", "person:alice"), "test:2: an import replaces the list"),
        ("{\"to\"".into(), "test:2: EOF"),
    ] {
        let fault = place.import(&(add("10.0.0.1", "person:alice") + &wrong)).unwrap_err();
        assert!(format!("{fault:#}").starts_with(expected), "{fault:#}");
    }
    assert_eq!(place.store.summaries().unwrap()[0].receivers, 2);
    // The failed change is visible to nobody.
    let lists = follower.follow().unwrap().map_or(lists, |(lists, touched)| {
        assert_eq!(touched, Touched::default());
        lists
    });
    assert!(place.allows(&lists, "bob", "10.0.0.2"));
    place.import(&add("10.0.0.9", "person:carol")).unwrap();
    let (lists, _) = follower.follow().unwrap().unwrap();
    assert!(place.allows(&lists, "carol", "10.0.0.9") && !place.allows(&lists, "bob", "10.0.0.2"));
}

#[test]
fn an_interrupted_import_leaves_the_former_list_and_its_rows_go() {
    let mut place = Fixture::new();
    place.import(&add("10.0.0.1", "person:alice")).unwrap();
    // Rows of a generation that never became a list, as a killed import leaves them.
    place.store.write_groups(77, &[10, 0, 0, 2, 32], &[]).unwrap();
    let rows = |place: &Fixture| -> i64 {
        place.store.connection.query_row("SELECT count(*) FROM receivers", [], |row| row.get(0)).unwrap()
    };
    assert_eq!(rows(&place), 2);
    let (lists, _) = Follower::new(place.directory.clone()).follow().unwrap().unwrap();
    assert_eq!(lists.len(), 1);
    place.import(&add("10.0.0.3", "person:bob")).unwrap();
    place.store.purge().unwrap();
    assert_eq!(rows(&place), 1);
}

#[test]
fn changes_are_followed_merged_and_read_again_after_a_restart() {
    let mut place = Fixture::new();
    assert!(place.change(&add("10.0.0.1", "person:alice")).unwrap_err().to_string().contains("no list `partners`"));
    place.import(&add("10.0.0.1", "person:alice")).unwrap();
    let mut follower = Follower::new(place.directory.clone());
    follower.follow().unwrap().unwrap();
    let text =
        add("10.0.0.1", "person:bob") + &remove("10.0.0.1", "person:alice") + &add("10.1.0.0/16", "person:carol");
    assert_eq!(place.change(&text).unwrap(), Changed { put: 2, removed: 1 });
    let (lists, touched) = follower.follow().unwrap().unwrap();
    let named = |names: [&str; 3]| names.map(str::to_owned).into_iter().collect();
    assert_eq!(touched, Touched { persons: named(["alice", "bob", "carol"]), all: false });
    let check = |place: &mut Fixture, lists: &Lists| {
        assert!(place.allows(lists, "bob", "10.0.0.1") && !place.allows(lists, "alice", "10.0.0.1"));
        assert!(place.allows(lists, "carol", "10.1.7.7") && !place.allows(lists, "carol", "10.0.0.1"));
    };
    check(&mut place, &lists);
    let entries = |place: &Fixture| {
        let to = |to: &str| place.store.entries("partners", to.parse().unwrap()).unwrap();
        [to("10.0.0.1/32"), to("10.1.0.0/16"), to("10.0.0.0/8")].concat()
    };
    let before = entries(&place);
    for merges in [false, true] {
        if merges {
            assert_eq!(place.store.fold_piece(i64::MAX).unwrap(), 2);
            assert_eq!(place.store.fold_piece(i64::MAX).unwrap(), 0);
            assert_eq!(place.store.summaries().unwrap()[0].changes, 0);
        }
        assert_eq!(entries(&place), before);
        let (lists, _) = Follower::new(place.directory.clone()).follow().unwrap().unwrap();
        check(&mut place, &lists);
        let only = Follower::about(&place.directory, ["10.0.0.1".parse().unwrap(), "10.1.7.7".parse().unwrap()]);
        check(&mut place, &only.unwrap());
        // The file has not changed for whoever has followed.
        if let Some((_, touched)) = follower.follow().unwrap() {
            assert_eq!(touched, Touched::default());
        }
    }
    place.change(&add("10.0.0.1", "tag:laptops")).unwrap();
    assert!(follower.follow().unwrap().unwrap().1.all);
    let fault = place.change(&(add("10.0.0.1", "person:dan") + &add("10.0.0.1", "nobody"))).unwrap_err();
    assert!(format!("{fault:#}").starts_with("test:2: `who`"), "{fault:#}");
    assert!(!follower.follow().unwrap().is_some_and(|(_, touched)| touched != Touched::default()), "all or none");
}

#[test]
fn one_command_at_a_time_changes_lists() {
    let place = Fixture::new();
    let lock = Store::lock(&place.directory).unwrap();
    assert!(Store::lock(&place.directory).unwrap_err().to_string().contains("another command changes lists"));
    drop(lock);
    Store::lock(&place.directory).unwrap();
}

/// The owner of the directory may be less privileged than the person who gives the command.
#[test]
fn a_link_in_the_directory_gives_no_other_file_away() {
    for (target, hard) in [("exists", false), ("missing", false), ("exists", true)] {
        let place = Fixture::new();
        let (other, lock) = (place.directory.path().join(target), place.directory.path().join("lists.lock"));
        if target == "exists" {
            std::fs::write(&other, "a secret").unwrap();
        }
        if hard {
            std::fs::hard_link(&other, &lock).unwrap();
        } else {
            std::os::unix::fs::symlink(&other, &lock).unwrap();
        }
        let fault = format!("{:#}", Store::lock(&place.directory).unwrap_err());
        assert!(fault.contains("has to be a file"), "{fault}");
        assert_eq!(other.exists(), target == "exists");
    }
}

/// The server can't follow a list with more ends, so no command may write one.
#[test]
fn changes_can_not_have_more_ends_than_an_import() {
    let mut place = Fixture::new();
    place.import(&add("10.0.0.1", "person:alice")).unwrap();
    let fill = "WITH RECURSIVE n(h) AS (SELECT 1 UNION ALL SELECT h + 1 FROM n WHERE h < 65534)
                INSERT INTO ends SELECT generation, h FROM lists, n";
    place.store.connection.execute(fill, []).unwrap();
    let with_end = |day: &str| format!("{{\"to\": \"10.0.0.2\", \"who\": [\"person:bob\"], \"until\": \"{day}\"}}");
    place.change(&with_end("2040-01-01")).unwrap();
    // An entry whose end the list already has adds no further end.
    place.change(&with_end("2040-01-01")).unwrap();
    let fault = format!("{:#}", place.change(&with_end("2040-01-02")).unwrap_err());
    assert!(fault.contains(&TooManyEnds.to_string()), "{fault}");
    place.change(&remove("10.0.0.2", "person:bob")).unwrap();
    // The ends of a list that is replaced are forgotten.
    place.import(&with_end("2040-01-02")).unwrap();
    place.change(&with_end("2040-01-03")).unwrap();
}

#[test]
fn the_number_of_groups_is_limited() {
    let mut place = Fixture::new();
    let mut text = String::new();
    for number in 0..256 {
        text += &add(&format!("10.0.0.{}", number % 200), &format!("group:g{number}"));
    }
    place.import(&text).unwrap();
    let fault = place.import(&(text + &add("10.0.0.1", "group:more"))).unwrap_err();
    assert!(format!("{fault:#}").contains("test:257: `who`: lists can name at most 256 groups in all"), "{fault:#}");
}

/// Returns lines that let 50 people reach an address each. Each round has other people.
fn round(round: usize) -> String {
    (0..50).map(|number| add(&format!("10.0.0.{number}"), &format!("person:r{round}n{number}"))).collect()
}

fn count(place: &Fixture, table: &str) -> usize {
    let all = format!("SELECT count(*) FROM {table}");
    let count: i64 = place.store.connection.query_row(&all, [], |row| row.get(0)).unwrap();
    count as usize
}

#[test]
fn names_that_no_entry_has_any_more_are_freed_on_disk_and_in_memory() {
    let mut place = Fixture::new();
    let mut follower = Follower::new(place.directory.clone());
    for number in 0..4 {
        place.import(&round(number)).unwrap();
        place.store.purge().unwrap();
        follower.follow().unwrap().unwrap();
    }
    let noted = |who: &str| format!("{{\"to\": \"10.9.9.9\", \"who\": [\"{who}\"], \"note\": \"of {who}\"}}\n");
    place.change(&(noted("person:alice") + &noted("person:bob") + &remove("10.9.9.9", "person:bob"))).unwrap();
    // The server merges changes that it has followed.
    follower.follow().unwrap().unwrap();
    place.store.fold_piece(i64::MAX).unwrap();
    place.change(&noted("person:carol")).unwrap();
    follower.follow().unwrap().unwrap();
    assert_eq!((count(&place, "names"), follower.names()), (203, 203));
    place.store.sweep_now().unwrap();
    let (lists, touched) = follower.follow().unwrap().unwrap();
    assert_eq!(touched, Touched::default());
    // The people of the last round, alice, carol, and two notes with an author.
    assert_eq!((count(&place, "names"), follower.names(), count(&place, "texts")), (52, 52, 3));
    assert!(place.allows(&lists, "r3n7", "10.0.0.7") && place.allows(&lists, "carol", "10.9.9.9"));
    assert!(!place.allows(&lists, "r2n7", "10.0.0.7") && !place.allows(&lists, "bob", "10.9.9.9"));
    let entries = place.store.entries("partners", "10.9.9.9/32".parse().unwrap()).unwrap();
    let notes: Vec<_> = entries.iter().map(|entry| (entry.who.as_str(), entry.note.as_str())).collect();
    assert_eq!(notes, [("person:alice", "of person:alice"), ("person:carol", "of person:carol")]);
    // The number of a deleted name goes to nobody else, also if it was the highest.
    place.change(&remove("10.9.9.9", "person:carol")).unwrap();
    follower.follow().unwrap().unwrap();
    place.store.fold_piece(i64::MAX).unwrap();
    place.store.sweep_now().unwrap();
    place.change(&add("10.9.9.9", "person:dan")).unwrap();
    for follower in [&mut follower, &mut Follower::new(place.directory.clone())] {
        let (lists, _) = follower.follow().unwrap().unwrap();
        assert!(place.allows(&lists, "dan", "10.9.9.9") && !place.allows(&lists, "carol", "10.9.9.9"));
        assert!(place.allows(&lists, "alice", "10.9.9.9"));
    }
}

#[test]
fn imports_with_ever_new_names_do_not_fill_disk_and_memory() {
    let mut place = Fixture::new();
    let mut follower = Follower::new(place.directory.clone());
    let many = |round: usize| -> String {
        let who = |number: usize| format!("\"person:r{round}n{number}\"");
        let line = |host: usize| {
            let who: Vec<_> = (0..1000).map(|number| who(host * 1000 + number)).collect();
            format!("{{\"to\": \"10.0.0.{host}\", \"who\": [{}]}}\n", who.join(","))
        };
        (0..20).map(line).collect()
    };
    for number in 0..12 {
        place.import(&many(number)).unwrap();
        place.store.purge().unwrap();
        place.store.sweep().unwrap();
        follower.follow().unwrap();
    }
    assert!(count(&place, "names") <= 120_000, "{}", count(&place, "names"));
    assert_eq!(follower.names(), count(&place, "names"));
}

#[test]
fn groups_that_no_entry_names_any_more_leave_room_for_others() {
    let mut place = Fixture::new();
    let groups = |round: usize| -> String {
        (0..200).map(|number| add(&format!("10.0.0.{number}"), &format!("group:r{round}g{number}"))).collect()
    };
    place.import(&groups(0)).unwrap();
    place.import("").unwrap();
    place.store.purge().unwrap();
    let more: String = (0..56).map(|number| add("10.0.0.1", &format!("group:x{number}"))).collect();
    place.import(&more).unwrap();
    place.import(&groups(1)).unwrap();
}

/// A file of the former format has no table of sweeps.
#[test]
fn a_file_of_the_former_format_is_brought_to_the_present_one() {
    let mut place = Fixture::new();
    place.import(&round(0)).unwrap();
    place.store.connection.execute_batch("DROP TABLE sweeps; PRAGMA user_version = 1").unwrap();
    for _ in 0..2 {
        let store = Store::open(&place.directory).unwrap().unwrap();
        assert_eq!((store.sweeps().unwrap(), store.summaries().unwrap().len()), (0, 1));
    }
}

/// The file is a set of entries, however changes, imports, merges and restarts follow each other.
#[test]
fn a_file_of_lists_is_a_set_of_entries() {
    let mut place = Fixture::new();
    place.import("").unwrap();
    let mut follower = Follower::new(place.directory.clone());
    let mut plain: BTreeMap<(u64, u64), ()> = BTreeMap::new();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut draw = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    for _ in 0..150 {
        match draw(12) {
            0 => {
                let mut text = String::new();
                plain.keys().filter(|(host, _)| host % 2 == 0).for_each(|(host, person)| {
                    text += &add(&format!("10.0.0.{host}"), &format!("person:p{person}"));
                });
                plain.retain(|(host, _), ()| host % 2 == 0);
                place.import(&text).unwrap();
            }
            1 => drop(place.store.fold_piece(i64::MAX).unwrap()),
            2 => follower = Follower::new(place.directory.clone()),
            _ => {
                let mut text = String::new();
                for _ in 0..1 + draw(6) {
                    let (host, person) = (draw(8), draw(6));
                    if draw(3) == 0 {
                        write!(text, "{}", remove(&format!("10.0.0.{host}"), &format!("person:p{person}"))).unwrap();
                        plain.remove(&(host, person));
                    } else {
                        write!(text, "{}", add(&format!("10.0.0.{host}"), &format!("person:p{person}"))).unwrap();
                        plain.insert((host, person), ());
                    }
                }
                place.change(&text).unwrap();
            }
        }
        if let Some((lists, _)) = follower.follow().unwrap() {
            assert_eq!(lists.len(), plain.len());
            for (host, person) in (0..8).flat_map(|host| (0..6).map(move |person| (host, person))) {
                let allowed = place.allows(&lists, &format!("p{person}"), &format!("10.0.0.{host}"));
                assert_eq!(allowed, plain.contains_key(&(host, person)), "p{person} 10.0.0.{host}");
            }
        }
    }
}
