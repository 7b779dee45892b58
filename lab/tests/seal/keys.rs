//! Keys that an agent exports for debugging open the records of a capture, and without the setting there are none.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lab::service::call;
use lab::world::{ECHO, FRONT4, INSIDE4, SOON};
use lab::{poll, process, test, vouchsafe};
use serde_json::Value;

use crate::stage::{Stage, at, nothing_outside, readable};

const SAID: &str = "nobody on the path reads this";
/// Age of keys, and a time in which they are certainly renewed.
const REKEY: &str = "10s";
const RENEWED: Duration = Duration::from_secs(40);
const CLOSED: &str = "closed, because no key in the file opens this record";

/// Returns what `vouchsafe inspect --keys` says of the records in a capture.
fn opened(keys: &Path, capture: &Path) -> Result<Vec<String>> {
    let mut command = Command::new(vouchsafe());
    let text = process::output(command.args(["inspect", "--json", "--only", "--keys"]).arg(keys).arg(capture))?;
    let packets: Vec<Value> = text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    let records = packets.iter().flat_map(|packet| [&packet["tunnel"], &packet["tunnel"]["early"]]);
    Ok(records.filter_map(|record| record["opened"].as_str().map(str::to_owned)).collect())
}

#[test]
fn exported_keys_open_every_record_of_a_capture_across_handshake_and_rekeying() {
    test(|| {
        let dir = tempfile::tempdir()?;
        let keys = dir.path().join("seal.keys");
        let path = keys.to_str().context("a path")?;
        let stage = Stage::with("5m", REKEY, &["--danger-export-keys", path])?;
        let cable = stage.observe()?;
        let mut stream = call(&stage.network.alice, at(FRONT4, ECHO), SOON)?;
        let mut say = || -> Result<()> {
            let mut heard = vec![0; SAID.len()];
            stream.write_all(SAID.as_bytes())?;
            stream.read_exact(&mut heard)?;
            ensure!(heard == SAID.as_bytes(), "another echo");
            Ok(())
        };
        say()?;
        let phase = || -> Result<u64> { stage.agent.status()?["tunnels"][0]["phase"].as_u64().context("a phase") };
        ensure!(poll(RENEWED, || phase().is_ok_and(|phase| phase > 1)), "no second phase: {}", stage.agent.status()?);
        say()?;
        let status = stage.agent.status()?;
        ensure!(status["tunnels"][0]["keys_exported"] == true, "the status conceals the export: {status}");
        ensure!(poll(SOON, || stage.agent.log().contains("DANGER")), "the agent gives no warning");
        nothing_outside(&cable)?;
        let capture = cable.stop()?;
        ensure!(readable(&capture, &[SAID])?.is_empty(), "the path reads the text without keys");

        let about = fs::metadata(&keys)?;
        ensure!(about.mode() & 0o777 == 0o600, "mode {:o}", about.mode());
        let records = opened(&keys, &capture)?;
        ensure!(records.len() > 10 && records.iter().all(|record| record != CLOSED), "{records:#?}");
        for flow in [format!("{INSIDE4}:"), format!("{FRONT4}:{ECHO}")] {
            ensure!(records.iter().any(|record| record.contains(&flow)), "no packet of {flow} in {records:#?}");
        }
        ensure!(records.iter().any(|record| record.starts_with("rekey")), "no re-keying in {records:#?}");

        // With the keys of the handshake alone, the second phase stays closed: the export is of each phase.
        let text = fs::read_to_string(&keys)?;
        let lines: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
        ensure!(lines.iter().filter(|line| line.starts_with("TO_RESPONDER")).count() >= 2, "{}", lines.len());
        let first = lines.iter().position(|line| line.starts_with("TO_RESPONDER")).context("a key")?;
        fs::write(&keys, lines[..first + 2].join("\n"))?;
        let records = opened(&keys, &capture)?;
        let (closed, open): (Vec<_>, Vec<_>) = records.iter().partition(|record| *record == CLOSED);
        // Records of indices without a key are recognised by the handshake, and stay closed.
        ensure!(!closed.is_empty() && !open.is_empty(), "{} closed, {} open", closed.len(), open.len());
        Ok(())
    });
}

#[test]
fn an_agent_that_cannot_keep_the_keys_to_itself_does_not_start() {
    test(|| {
        let dir = tempfile::tempdir()?;
        let keys = dir.path().join("seal.keys");
        fs::write(&keys, "")?;
        fs::set_permissions(&keys, std::os::unix::fs::PermissionsExt::from_mode(0o644))?;
        let path = keys.to_str().context("a path")?;
        let started = Stage::with("5m", "2m", &["--danger-export-keys", path]);
        let error = started.err().context("the agent started")?;
        ensure!(format!("{error:#}").contains("other users can read"), "{error:#}");
        ensure!(fs::read_to_string(&keys)?.is_empty(), "keys in a file that others can read");
        Ok(())
    });
}
