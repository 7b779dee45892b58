//! Lists at the command line: an import, an explanation, and an import that is killed half-way.

use std::fmt::Write as _;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

const POLICY: &str = r#"
[[receivers]]
name = "farm"
address = "198.51.100.0/24"
services = "tcp/5432"
verifier = "edge-1"

[[lists]]
name = "partners"
to = "farm"
who = "everyone"
"#;

fn authority(directory: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vouchsafe"));
    command.arg("authority").args(arguments).arg("--dir").arg(directory);
    command
}

fn run(directory: &Path, arguments: &[&str]) -> (Option<i32>, String) {
    let Output { status, stdout, stderr } = authority(directory, arguments).output().unwrap();
    (status.code(), String::from_utf8(stdout).unwrap() + &String::from_utf8(stderr).unwrap())
}

fn done(directory: &Path, arguments: &[&str]) -> String {
    let (code, text) = run(directory, arguments);
    assert_eq!(code, Some(0), "{arguments:?}: {text}");
    text
}

/// Returns a line for each of 254 addresses, with so many people and Mallory.
fn lines_of(people: usize) -> String {
    let mut lines = String::new();
    for address in 1..=254 {
        write!(lines, "{{\"to\": \"198.51.100.{address}\", \"who\": [").unwrap();
        (0..people).for_each(|person| write!(lines, "\"person:p{person}\", ").unwrap());
        lines += "\"person:mallory\"]}\n";
    }
    lines
}

#[test]
fn a_list_is_imported_and_explained_and_a_killed_import_changes_nothing() {
    let room = tempfile::tempdir().unwrap();
    let directory = &room.path().join("authority");
    done(directory, &["init", "--name", "localhost"]);
    std::fs::write(directory.join("policy.toml"), POLICY).unwrap();
    let (code, text) = run(directory, &["policy", "check"]);
    assert!(code == Some(1) && text.contains("there is no list `partners`"), "{text}");

    let file = room.path().join("list.jsonl");
    let lines = "{\"to\": \"198.51.100.1\", \"who\": [\"person:eve\"], \"note\": \"ticket 7\"}\n\
                 {\"to\": \"198.51.100.1\", \"who\": [\"person:bob\"], \"deny\": true}\n";
    std::fs::write(&file, lines).unwrap();
    let file = file.to_str().unwrap();
    let text = done(directory, &["lists", "import", "partners", file]);
    assert!(text.contains("list partners: entries 2, addresses 1"), "{text}");
    done(directory, &["policy", "check"]);
    let text = done(directory, &["policy", "explain", "eve", "198.51.100.1:5432"]);
    let expected =
        "allowed by policy.toml:8 list partners (entry of list partners: allow person:eve to 198.51.100.1/32";
    assert!(text.contains(expected) && text.contains(", note: ticket 7)"), "{text}");
    let (code, text) = run(directory, &["policy", "explain", "bob", "198.51.100.1:5432"]);
    assert!(code == Some(1) && text.contains("denied by policy.toml:8 list partners (entry of list"), "{text}");

    // A long file, so that the import is in progress when it is stopped and killed.
    let long = room.path().join("long.jsonl");
    std::fs::write(&long, lines_of(4000)).unwrap();
    let mut import = authority(directory, &["lists", "import", "partners", long.to_str().unwrap()]);
    let mut import = import.stdout(Stdio::null()).spawn().unwrap();
    let size =
        || ["lists.db", "lists.db-wal"].map(|name| std::fs::metadata(directory.join(name)).map_or(0, |f| f.len()));
    let end = Instant::now() + Duration::from_secs(60);
    while size().into_iter().sum::<u64>() < 600_000 {
        assert!(Instant::now() < end, "nothing was written: {:?}", size());
        std::thread::sleep(Duration::from_millis(1));
    }
    let id = import.id().to_string();
    assert!(Command::new("kill").args(["-STOP", &id]).status().unwrap().success());
    let (code, text) = run(directory, &["lists", "remove", "partners", "--to", "198.51.100.1", "--who", "person:eve"]);
    let expected = format!("another command changes lists (process {id})");
    assert!(code == Some(2) && text.contains(&expected), "{text}");
    import.kill().unwrap();
    import.wait().unwrap();

    let shown = done(directory, &["lists", "show", "partners", "--to", "198.51.100.1"]);
    assert!(shown.contains("person:eve") && !shown.contains("mallory"), "{shown}");
    done(directory, &["policy", "explain", "eve", "198.51.100.1:5432"]);
    done(directory, &["lists", "remove", "partners", "--to", "198.51.100.1", "--who", "person:eve"]);
    let (code, text) = run(directory, &["lists", "remove", "partners", "--to", "198.51.100.1", "--who", "person:eve"]);
    assert!(code == Some(1) && text.contains("has no entry about person:eve"), "{text}");
    let text = done(directory, &["lists", "import", "partners", file]);
    assert!(text.contains("entries 2"), "{text}");
    assert!(done(directory, &["audit"]).contains("list_changed"));
    done(directory, &["lists", "list"]);
}

/// The writer of the pipe may be slow, or never end.
#[test]
fn an_import_or_changes_from_a_pipe_keep_no_other_command_waiting() {
    let room = tempfile::tempdir().unwrap();
    let directory = &room.path().join("authority");
    done(directory, &["init", "--name", "localhost"]);
    let file = room.path().join("list.jsonl");
    std::fs::write(&file, "{\"to\": \"198.51.100.1\", \"who\": [\"person:eve\"]}\n").unwrap();
    done(directory, &["lists", "import", "partners", file.to_str().unwrap()]);
    for (command, more, expected) in [("import", lines_of(300), 254 * 301), ("change", lines_of(20), 254 * 21)] {
        let mut slow = authority(directory, &["lists", command, "partners", "-"]);
        let mut slow = slow.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut input = slow.stdin.take().unwrap();
        // Longer than a pipe, so the command has begun to read when all is written.
        input.write_all(more.as_bytes()).unwrap();
        input.flush().unwrap();
        let add = ["lists", "add", "partners", "--to", "198.51.100.9", "--who", "person:carol"];
        let text = done(directory, &add);
        assert!(text.starts_with("added"), "{command}: {text}");
        drop(input);
        let output = slow.wait_with_output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && text.contains(&expected.to_string()), "{command}: {text}");
    }
}
