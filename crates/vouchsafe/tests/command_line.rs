//! The binary's own commands: doctor in a network namespace (needs root), completions, man pages, help.

use lab::Namespace;
use lab::net::veth;
use serde_json::Value;
use std::process::{Command, Output};

const VOUCHSAFE: &str = env!("CARGO_BIN_EXE_vouchsafe");

fn vouchsafe(arguments: &[&str]) -> Output {
    Command::new(VOUCHSAFE).args(arguments).output().unwrap()
}

fn text(output: &Output) -> String {
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Returns doctor's finding for `check` on `interface`: its state and text.
fn found(checks: &Value, interface: Option<&str>, check: &str) -> (String, String) {
    let mut all = checks.as_array().unwrap().iter();
    let one = all.find(|one| one["check"] == check && one["interface"].as_str() == interface);
    let one = one.unwrap_or_else(|| panic!("nothing about {check} in {checks}"));
    (one["state"].as_str().unwrap().to_owned(), one["found"].as_str().unwrap().to_owned())
}

#[test]
fn doctor_looks_at_a_veth_and_leaves_no_trace() {
    lab::test(|| {
        let (here, there) = (Namespace::new("here")?, Namespace::new("there")?);
        veth(&here, "eth0", "", &there, "eth0", "")?;
        let doctor = |arguments: &[&str]| here.command(VOUCHSAFE).arg("doctor").args(arguments).output();

        let output = doctor(&["--json", "--interface", "eth0"])?;
        let checks: Value = serde_json::from_slice(&output.stdout)?;
        assert_eq!(output.status.code(), Some(0), "{checks:#}");
        for check in ["kernel", "rights", "verifier (xdp)", "verifier (tc)", "agent"] {
            assert_eq!(found(&checks, None, check).0, "ok", "{checks:#}");
        }
        let ok = |words: &str| ("ok".to_owned(), words.to_owned());
        assert_eq!(found(&checks, Some("eth0"), "xdp"), ok("native"));
        assert_eq!(found(&checks, Some("eth0"), "driver"), ok("veth"));
        assert_eq!(found(&checks, Some("eth0"), "mtu"), ok("1500"));
        assert!(found(&checks, Some("eth0"), "offloads").1.contains("tx-checksumming"), "{checks:#}");
        assert!(!here.ip("link show eth0")?.contains("xdp"), "something is still attached");

        let output = doctor(&[])?;
        let report = text(&output);
        assert_eq!(output.status.code(), Some(0), "{report}");
        let words = report.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains("eth0 ok driver veth"), "{report}");

        assert_eq!(doctor(&["--interface", "eth1"])?.status.code(), Some(2), "there is no such interface");
        Ok(())
    });
}

#[test]
fn doctor_leaves_the_program_of_somebody_else_alone() {
    lab::test(|| {
        let (here, there) = (Namespace::new("here")?, Namespace::new("there")?);
        veth(&here, "eth0", "", &there, "eth0", "")?;
        let _theirs = here.enter(|| {
            let interface = datapath::interface::Interface::named("eth0")?;
            datapath::probe::Probe::load()?.attach_xdp(&interface, false)
        })?;
        let before = here.ip("-details link show eth0")?;
        for (arguments, code, state) in
            [(&["--json"][..], 0, "warn"), (&["--json", "--interface", "eth0"], 1, "missing")]
        {
            let output = here.command(VOUCHSAFE).arg("doctor").args(arguments).output()?;
            let checks: Value = serde_json::from_slice(&output.stdout)?;
            assert_eq!(output.status.code(), Some(code), "{checks:#}");
            let (found, words) = found(&checks, Some("eth0"), "xdp");
            assert_eq!(found, state);
            assert!(words.contains("another program, \"pass\""), "{words}");
        }
        assert_eq!(here.ip("-details link show eth0")?, before);
        Ok(())
    });
}

/// Runs a command whose standard output is closed at once.
fn unread(arguments: &[&str]) -> Output {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    Command::new(VOUCHSAFE).args(arguments).stdout(writer).output().unwrap()
}

#[test]
fn a_reader_that_has_enough_is_no_failure() {
    let room = tempfile::tempdir().unwrap();
    let dir = room.path().join("authority").display().to_string();
    assert_eq!(vouchsafe(&["authority", "init", "--name", "localhost", "--dir", &dir]).status.code(), Some(0));
    let at = ["--dir", &dir];
    let commands: [&[&str]; 6] = [
        &[&["authority", "user", "list"], &at[..]].concat(),
        &[&["authority", "policy", "history"], &at[..]].concat(),
        &[&["authority", "audit"], &at[..]].concat(),
        &["authority", "openapi"],
        &["completions", "bash"],
        &["doctor"],
    ];
    for command in commands {
        let output = unread(command);
        assert!(output.stderr.is_empty(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
        // Doctor may find something missing.
        assert!(matches!(output.status.code(), Some(0 | 1)), "{command:?}");
    }
}

#[test]
fn what_cannot_be_revoked_and_what_nobody_was_told_is_said() {
    let room = tempfile::tempdir().unwrap();
    let dir = room.path().join("authority").display().to_string();
    assert_eq!(vouchsafe(&["authority", "init", "--name", "localhost", "--dir", &dir]).status.code(), Some(0));
    let password = room.path().join("password");
    std::fs::write(&password, "correct horse battery staple").unwrap();
    let add = ["authority", "user", "add", "alice", "--password-file", password.to_str().unwrap(), "--dir", &dir];
    assert_eq!(vouchsafe(&add).status.code(), Some(0));
    let revoke = |what: &[&str]| {
        let output = vouchsafe(&[&["authority", "revoke", "--dir", &dir], what].concat());
        (output.status.code(), text(&output))
    };
    for (what, words) in [
        (["--person", "zed"], "no person or service zed"),
        (["--device", "alice/laptop"], "no device alice/laptop"),
        (["--grant", "2e6a92cc1baada6d"], "no grant 2e6a92cc1baada6d"),
    ] {
        let (code, said) = revoke(&what);
        assert!(code == Some(1) && said.contains(words), "{code:?} {said}");
    }
    let listed = text(&vouchsafe(&["authority", "user", "list", "--dir", &dir]));
    let cells: Vec<_> = listed.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!((cells[..4].to_vec(), cells.last()), (vec!["alice", "here", "-", "-"], Some(&"-")), "{listed}");
    let (code, said) = revoke(&["--person", "alice"]);
    assert!(code == Some(0) && said.contains("is not running") && !said.contains("are cut"), "{code:?} {said}");
    let audit = text(&vouchsafe(&["authority", "audit", "--dir", &dir]));
    assert!(audit.contains("alice") && !audit.contains("zed"), "{audit}");
}

#[test]
fn completions_name_the_commands() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = text(&vouchsafe(&["completions", shell]));
        for command in ["authority", "verifier", "agent", "doctor", "explain", "--interface"] {
            let command = if shell == "fish" { command.trim_start_matches('-') } else { command };
            assert!(script.contains(command), "{shell}: no {command}");
        }
    }
    assert_eq!(vouchsafe(&["completions", "csh"]).status.code(), Some(2));
}

#[test]
fn every_command_has_a_man_page() {
    let dir = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("man-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    assert_eq!(text(&vouchsafe(&["man", dir.to_str().unwrap()])), "");
    for name in ["vouchsafe", "vouchsafe-doctor", "vouchsafe-verifier-run", "vouchsafe-authority-user-add"] {
        let page = std::fs::read_to_string(dir.join(format!("{name}.1"))).unwrap();
        assert!(page.contains(".SH SYNOPSIS"), "{name}");
    }
    std::fs::remove_dir_all(&dir).unwrap();
    assert_eq!(vouchsafe(&["man", dir.to_str().unwrap()]).status.code(), Some(2), "the directory is gone");
}

/// Every command that help lists has a help of its own; follows the lists from the top.
#[test]
fn every_command_helps() {
    let mut open = vec![Vec::<String>::new()];
    let mut seen = 0;
    while let Some(command) = open.pop() {
        for flag in ["-h", "--help"] {
            let output = Command::new(VOUCHSAFE).args(&command).arg(flag).output().unwrap();
            assert_eq!(output.status.code(), Some(0), "{command:?} {flag}");
            let help = text(&output);
            assert!(help.contains("Usage: vouchsafe"), "{command:?} {flag}: {help}");
            if flag == "-h" {
                let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1);
                let listed = listed.take_while(|line| !line.is_empty()).filter(|line| !line.starts_with("   "));
                let names = listed.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help");
                open.extend(names.map(|name| [&command[..], &[name.to_owned()]].concat()));
            }
        }
        seen += 1;
    }
    assert!(seen > 50, "only {seen} commands were found");
}

#[test]
fn the_audit_trail_is_verified_from_the_command_line() {
    let room = tempfile::tempdir().unwrap();
    let dir = room.path().join("authority");
    let authority = |arguments: &[&str]| {
        let mut command = Command::new(VOUCHSAFE);
        command.arg("authority").args(arguments).arg("--dir").arg(&dir).output().unwrap()
    };
    assert_eq!(authority(&["init", "--name", "localhost"]).status.code(), Some(0));
    let code = authority(&["verifier", "add", "edge"]);
    assert_eq!(code.status.code(), Some(0));
    let exported = text(&authority(&["audit", "export"]));
    let entries: Vec<Value> = exported.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((entries.len(), entries[0]["event"].as_str()), (1, Some("verifier_added")));
    let head = format!("acts:1:{}", entries[0]["hash"].as_str().unwrap());
    assert!(text(&authority(&["audit", "head"])).contains(&head));
    let whole = authority(&["audit", "verify", "--head", &head]);
    assert_eq!(
        (whole.status.code(), text(&whole).lines().next()),
        (Some(0), Some("complete and unchanged: 1 entries"))
    );
    let broken = authority(&["audit", "verify", "--head", "acts:1:000000000000"]);
    assert_eq!(broken.status.code(), Some(1));
    assert!(text(&broken).contains("trail acts, entry 1: it differs from the noted one"));
    assert_eq!(authority(&["audit", "verify", "--head", "acts:one"]).status.code(), Some(2));
    // Other members exist in a cluster only.
    for alone in [&["audit", "verify", "--member", "b=b.jsonl"][..], &["audit", "head", "--cluster"]] {
        let output = authority(alone);
        assert_eq!(output.status.code(), Some(2));
        assert!(String::from_utf8_lossy(&output.stderr).contains("not a member of a cluster"), "{output:?}");
    }
}

const POLICY: &str = "[groups]\nstaff = [\"alice\"]\n[[receivers]]\nname = \"git\"\naddress = \"203.0.113.10\"\n\
                      services = \"tcp/22\"\nverifier = \"edge\"\n[[rules]]\nname = \"staff\"\naction = \"allow\"\n\
                      who = \"group:staff\"\nto = \"git\"\n[[tests]]\nwho = \"person:alice\"\n\
                      to = \"203.0.113.10:22\"\nexpect = \"allow\"\n";

#[test]
fn a_policy_is_tried_applied_and_taken_back_from_the_command_line() {
    let room = tempfile::tempdir().unwrap();
    let dir = room.path().join("authority");
    let policy = |arguments: &[&str]| {
        let mut command = Command::new(VOUCHSAFE);
        let output = command.args(["authority", "policy"]).args(arguments).arg("--dir").arg(&dir).output().unwrap();
        let words = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        (output.status.code().unwrap(), words)
    };
    let init = ["authority", "init", "--name", "localhost", "--dir", dir.to_str().unwrap()];
    assert_eq!(vouchsafe(&init).status.code(), Some(0));
    let write = |name: &str, text: &str| {
        std::fs::write(room.path().join(name), text).unwrap();
        room.path().join(name).to_str().unwrap().to_owned()
    };
    let (first, second) =
        (write("first.toml", POLICY), write("second.toml", &POLICY.replace("[\"alice\"]", "[\"bob\"]")));

    assert_eq!(policy(&["test", &first]), (0, "1 test, 0 failed\n".into()));
    let (code, words) = policy(&["test", &second, "--json"]);
    let tested: Value = serde_json::from_str(&words).unwrap();
    assert_eq!((code, &tested["failures"][0]["line"]), (1, &Value::from(13)));
    assert_eq!(policy(&["apply", &first]).0, 0);
    let (code, words) = policy(&["apply", &second]);
    assert!(code == 2 && words.contains("second.toml:13: expected allow, but no rule lets alice reach"), "{words}");
    let (code, words) = policy(&["diff", &first, &second]);
    assert!(code == 1 && words.contains("+ gains: bob\n    to   git: 203.0.113.10: tcp/22\n"), "{words}");
    assert!(words.contains("- loses: alice\n"), "{words}");
    let (code, alone) = policy(&["diff", &second]);
    assert!(code == 1 && alone.contains("+ gains: bob\n") && alone.contains("policy.toml to "), "{alone}");
    let (code, words) = policy(&["diff", &first, &first, "--json"]);
    assert_eq!((code, words.as_str()), (0, "[]\n"));
    // Delegations and lists are compared by their fields.
    let delegation = "\n[[delegations]]\nname = \"dba\"\nto = \"git\"\ndelegates = \"person:dora\"\n\
                      who = \"everyone\"\n";
    let delegated = |time: &str| write(time, &format!("{POLICY}{delegation}lifetime_max = \"{time}\"\n"));
    let (day, week) = (delegated("1d"), delegated("7d"));
    let (code, words) = policy(&["diff", &day, &week]);
    let said = "~ changed [[delegations]] dba\n    lifetime_max: was 1d, is 7d\n";
    assert!(code == 1 && words.ends_with(said) && !words.contains("gains"), "{words}");
    let (code, words) = policy(&["diff", &first, &day]);
    assert!(code == 1 && words.contains("+ added [[delegations]] dba\n") && words.contains("    to: git\n"), "{words}");
    let (_, words) = policy(&["diff", &day, &first, "--json"]);
    let all: Value = serde_json::from_str(&words).unwrap();
    assert_eq!((&all[0]["table"], &all[0]["kind"]), (&"delegations".into(), &"removed".into()));
    // Only a running authority gives consents.
    let allow = ["authority", "access", "allow", "alice", "group:staff", "--to", "git", "--for", "1h", "--dir"];
    let output = vouchsafe(&[&allow[..], &[dir.to_str().unwrap()]].concat());
    assert!(output.status.code() == Some(2) && String::from_utf8_lossy(&output.stderr).contains("is not running"));
    let (code, words) = policy(&["explain", "alice", "203.0.113.10:22"]);
    assert!(code == 0 && words.contains("allowed by policy.toml:8 staff"), "{words}");
    assert!(words.contains("note: no account alice: "), "{words}");
    let (_, words) = policy(&["explain", "alice", "203.0.113.10:22", "--policy", &second]);
    assert!(words.contains("second.toml:8 staff") && !words.contains("policy.toml"), "{words}");
    let (code, words) = policy(&["explain", "bob -> 203.0.113.10 tcp/22"]);
    assert!(
        code == 1 && words.contains("rules that almost match:") && words.contains("it applies to group:staff"),
        "{words}"
    );
    let blue = "[[receivers]]\nname = \"web\"\naddress = \"10.0.0.7\"\nservices = \"all\"\nnetwork = \"blue\"\n\n\
                [[rules]]\naction = \"allow\"\nwho = \"person:alice\"\nto = \"web\"\n";
    let blue = write("blue.toml", &format!("{POLICY}\n{blue}"));
    let asked = ["explain", "alice", "10.0.0.7:22", "--policy", &blue];
    let (code, words) = policy(&[&asked[..], &["--network", "blue"]].concat());
    assert!(code == 0 && words.contains("allowed by"), "{words}");
    assert_eq!(policy(&asked).0, 1, "it is in no network");
    let (code, words) = policy(&[&asked[..], &["--network", "red"]].concat());
    assert!(code == 2 && words.contains("no receivers in network `red`; it has receivers in: blue"), "{words}");
    let (code, words) = policy(&["explain", "alice", "-"]);
    assert!(code == 2 && words.contains("quotes"), "{words}");
    assert_eq!(policy(&["replay", &first]), (0, "decided again: 0 grants and 0 refusals of the last 24 h\n".into()));

    let third = write("third.toml", &POLICY.replace("tcp/22\"\nverifier", "all\"\nverifier"));
    assert_eq!(policy(&["apply", &third]).0, 0);
    assert_eq!(policy(&["rollback", "1"]).0, 0);
    assert_eq!(policy(&["show", "3"]), (0, POLICY.into()));
    let history: Value = serde_json::from_str(&policy(&["history", "--json"]).1).unwrap();
    assert_eq!((history[0]["version"].as_i64(), history[0]["note"].as_str()), (Some(3), Some("rollback to 1")));
    assert_eq!(history[0]["sha256"], history[2]["sha256"]);
    assert!(policy(&["history"]).1.starts_with("VERSION  TIME"));
}

#[test]
fn networks_are_checked_with_the_policy() {
    let room = tempfile::tempdir().unwrap();
    let dir = room.path().join("authority");
    let dir = dir.to_str().unwrap();
    assert_eq!(vouchsafe(&["authority", "init", "--name", "localhost", "--dir", dir]).status.code(), Some(0));
    let check = |networks: &str| {
        std::fs::write(room.path().join("authority/networks.toml"), networks).unwrap();
        let output = vouchsafe(&["authority", "policy", "check", "--dir", dir]);
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let blue = "[[networks]]\nname = \"blue\"\nvni = 100\n";
    let (code, said) = check(blue);
    assert!(code == Some(1) && said.contains("networks.toml:") && said.contains("`authority`"), "{said}");
    let path = "[[paths]]\nto = \"192.0.2.1\"\nverifiers = \"host-1\"\n";
    let (code, said) = check(&format!("authority = \"198.51.100.1\"\n{blue}{path}"));
    assert!(code == Some(0) && said.contains("1 network, 1 path") && said.contains("no verifier host-1"), "{said}");
}

#[test]
fn a_policy_made_to_blow_up_is_refused_in_bounded_memory() {
    let room = tempfile::tempdir().unwrap();
    let dir = room.path().join("authority");
    let init = ["authority", "init", "--name", "localhost", "--dir", dir.to_str().unwrap()];
    assert_eq!(vouchsafe(&init).status.code(), Some(0));
    let file = room.path().join("policy.toml");
    let fill = |part: &str| part.repeat((4 << 20) / part.len());
    let keys: String = (0..300_000).map(|index| format!("k{index} = 1\n")).collect();
    let cases = [
        ("no keys", fill("=\n"), "unquoted keys cannot be empty"),
        ("many keys", keys, "(and 299900 more errors)"),
        ("many rules", fill("[[rules]]\n"), "missing key `action` in a rule"),
        ("a long path", fill("a."), "key with no value"),
        ("nesting", format!("a = {}", &fill("[")[..4_000_000]), "recurs"),
        ("a long list", format!("a = [{}]", &fill("1,")[..4_000_000]), "unknown key `a` in the document"),
        ("too long", "#".repeat(5 << 20), "exceeds the maximum of 4194304 bytes"),
    ];
    for (name, text, expected) in cases {
        std::fs::write(&file, text).unwrap();
        // 1 GiB of address space, in KiB: a larger allocation aborts.
        let script = "ulimit -v 1048576; exec \"$0\" authority policy check \"$1\" --dir \"$2\"";
        let output = Command::new("sh").args(["-c", script, VOUCHSAFE]).arg(&file).arg(&dir).output().unwrap();
        let words = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert_eq!(output.status.code(), Some(1), "{name}: {words}");
        assert!(words.contains(expected) && words.len() < 64 * 1024, "{name}: {words}");
    }
}

#[test]
fn a_wrong_argument_is_answered_with_the_way_out() {
    for (arguments, words) in [
        (&["verifier", "whois", "nonsense"][..], "write ADDR:PORT"),
        (&["login", "--authority", "https://127.0.0.1:9", "--ca", "/etc/hosts"], "no certificate in /etc/hosts"),
        (&["agent", "run", "--authority", "http://foo"], "write https://HOST:PORT"),
    ] {
        let output = vouchsafe(arguments);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && said.contains(words), "{arguments:?}: {said}");
    }
}
