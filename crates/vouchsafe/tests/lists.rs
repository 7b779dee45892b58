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

    let mut import = authority(directory, &["lists", "import", "partners", "-"]);
    let mut import = import.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let mut input = import.stdin.take().unwrap();
    let mut line = String::new();
    for address in 1..=254 {
        write!(line, "{{\"to\": \"198.51.100.{address}\", \"who\": [").unwrap();
        (0..1000).for_each(|person| write!(line, "\"person:p{person}\", ").unwrap());
        line += "\"person:mallory\"]}\n";
    }
    input.write_all(line.as_bytes()).unwrap();
    input.flush().unwrap();
    // The process has written most of the rows, and waits for more input.
    let size =
        || ["lists.db", "lists.db-wal"].map(|name| std::fs::metadata(directory.join(name)).map_or(0, |f| f.len()));
    let end = Instant::now() + Duration::from_secs(60);
    while size().into_iter().sum::<u64>() < 600_000 {
        assert!(Instant::now() < end, "nothing was written: {:?}", size());
        std::thread::sleep(Duration::from_millis(20));
    }
    let (code, text) = run(directory, &["lists", "remove", "partners", "--to", "198.51.100.1", "--who", "person:eve"]);
    assert!(code == Some(2) && text.contains("another command changes lists"), "{text}");
    import.kill().unwrap();
    import.wait().unwrap();
    drop(input);

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
