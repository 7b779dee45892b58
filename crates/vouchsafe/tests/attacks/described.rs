//! Checks the API against its description, with a property tester that generates valid and invalid calls from the
//! description. `xtask/setup.sh` installs it.

use crate::HERE;
use crate::stage::Stage;
use std::path::PathBuf;
use std::process::Command;

/// Random cases per call, in addition to the systematic ones.
const CASES: &str = "40";
/// Time limit of a run, in seconds.
const MOST: &str = "120";

fn tester() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from);
    let root = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let path = root.join(target).join("tools/schemathesis/bin/schemathesis");
    assert!(path.exists(), "{} is missing: `make setup` installs it", path.display());
    path
}

/// Runs every check on the calls that `which` selects; returns the number of these calls and of all.
fn conforms(stage: &Stage, token: &str, which: &[&str]) -> (usize, usize) {
    let mut run = Command::new("timeout");
    run.arg(MOST).arg(tester()).arg("run").arg(stage.url("/v1/openapi.json")).arg("--tls-verify").arg(stage.ca());
    run.args(["--header", &format!("Authorization: Bearer {token}")]);
    run.args(["--checks", "all", "--generation-deterministic", "--max-examples", CASES]);
    // The server refuses a call before it reads a long body; in HTTP/1.1 the connection then ends while the client
    // still sends.
    run.args(["--request-retries", "5", "--request-timeout", "10", "--warnings", "off", "--no-color"]).args(which);
    // The tester stores its memory of earlier runs in the working directory.
    let done = run.current_dir(stage.room()).env("NO_PROXY", "*").output().unwrap();
    let report = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success(), "{report}\n{}", String::from_utf8_lossy(&done.stderr));
    let cases = report.lines().find_map(|line| line.trim().split_once(" generated")?.0.parse::<u32>().ok());
    assert!(cases.is_some_and(|cases| cases >= 10), "hardly anything was tried: {report}");
    let selected = report.lines().find_map(|line| line.trim().strip_prefix("Selected: ")?.split_once('/'));
    selected.and_then(|(some, all)| Some((some.parse().ok()?, all.parse().ok()?))).unwrap_or_else(|| panic!("{report}"))
}

#[test]
fn the_server_does_what_its_description_says() {
    let mut stage = Stage::start();
    let token = stage.token(HERE, "alice");
    let streams_and_others = ["--exclude-path", "/v1/events", "--exclude-path-regex", "/v1/(verifier/|logout)"];
    let (people, all) = conforms(&stage, &token, &streams_and_others);
    let (verifier, _) = stage.verifier("edge");
    let (verifiers, _) = conforms(&stage, &verifier, &["--include-path-regex", "/v1/verifier/"]);
    let (logout, _) = conforms(&stage, &token, &["--include-path", "/v1/logout"]);
    assert_eq!(people + verifiers + logout + 1, all, "the stream of events alone has no end and is not tried");
    stage.is_well();
}

#[test]
fn the_description_that_is_printed_is_the_one_that_is_served() {
    let stage = Stage::start();
    let served = stage.call(HERE, "GET /v1/openapi.json", None, None).body;
    let printed = Command::new(env!("CARGO_BIN_EXE_vouchsafe")).args(["authority", "openapi"]).output().unwrap();
    let printed: serde_json::Value = serde_json::from_slice(&printed.stdout).unwrap();
    assert_eq!(served, printed);
    let paths = printed["paths"].as_object().unwrap();
    assert!(paths.len() >= 12 && paths.keys().all(|path| path.starts_with("/v1/")), "{paths:?}");
    for (path, calls) in paths {
        for (method, call) in calls.as_object().unwrap() {
            let problem = &call["responses"]["default"]["content"]["application/problem+json"];
            assert!(problem.is_object(), "{method} {path} says nothing of problems");
        }
    }
}
