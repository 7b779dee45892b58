//! Tests that a revocation is in force at the verifiers when the command returns, and that the command names the
//! verifiers at which it is not. Also tests that imported consents are in force when their command returns, and cut when
//! they are withdrawn.

use std::net::SocketAddr;
use std::process::Output;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lab::service::{call, exchange};
use lab::world::{ECHO, FRONT4, SOON, VERIFIER, Way};
use lab::{World, poll, test};
use measure::{median, quantile};
use nix::sys::signal::Signal;
use serde_json::Value;
use wire::DropReason;

/// Number of flows that are revoked.
const ROUNDS: usize = 50;
/// Time to wait for an answer that must not come.
const QUIET: Duration = Duration::from_millis(200);

fn echo() -> SocketAddr {
    format!("{FRONT4}:{ECHO}").parse().expect("an address")
}

/// Returns the handle of the grant by which Alice's flows were admitted.
fn handle(world: &World) -> Result<String> {
    let flows = world.verifier.flows()?;
    let own = flows.iter().find(|flow| flow["person"] == "alice").with_context(|| format!("no flow: {flows:?}"))?;
    Ok(own["handle"].as_str().context("a flow without a handle")?.to_owned())
}

fn revoke(world: &World, more: &[&str]) -> Result<Output> {
    let mut command = world.authority.prepare(&["revoke"]);
    command.args(["--person", "alice"]).args(more).output().context("cannot run `vouchsafe authority revoke`")
}

#[test]
fn the_next_packet_of_a_revoked_flow_is_dropped_every_time() {
    test(|| {
        let world = World::new(Way::Nat)?;
        let mut times = Vec::with_capacity(ROUNDS);
        for round in 0..ROUNDS {
            let mut flow = call(&world.network.alice, echo(), SOON)?;
            exchange(&mut flow).with_context(|| format!("round {round}"))?;
            flow.set_read_timeout(Some(QUIET))?;
            let handle = handle(&world)?;
            let before = world.verifier.counters()?;
            let begun = Instant::now();
            let said = world.authority.revoke_grant(&handle)?;
            times.push(begun.elapsed().as_secs_f64() * 1e3);
            let answer = exchange(&mut flow);
            ensure!(answer.is_err(), "round {round}: the first packet after the revocation passed");
            ensure!(said.contains("all verifiers have cut the flows"), "round {round}: {said}");
            let flows = world.verifier.flows()?;
            ensure!(flows.iter().all(|flow| flow["handle"] != handle.as_str()), "round {round}: {flows:?}");
            let grown = world.verifier.counters()?.since(&before);
            let is_dropped = DropReason::ALL.iter().any(|reason| grown.contains_key(reason.name()));
            ensure!(is_dropped, "round {round}: nothing was dropped: {grown:?}");
        }
        eprintln!(
            "revoke with one verifier: {:.0} ms (median), {:.0} ms (90 of 100), including the start of the process",
            median(&times),
            quantile(&times, 0.9),
        );
        Ok(())
    });
}

#[test]
fn a_verifier_that_stands_still_is_named_and_delays_one_command() {
    test(|| {
        let mut world = World::new(Way::Nat)?;
        let mut flow = call(&world.network.alice, echo(), SOON)?;
        exchange(&mut flow)?;
        world.verifier.signal(Signal::SIGSTOP)?;
        let timed = |world: &World, more: &[&str]| -> Result<(Output, Duration)> {
            let begun = Instant::now();
            Ok((revoke(world, more)?, begun.elapsed()))
        };
        let (first, waited) = timed(&world, &[])?;
        let said = format!("{}{}", String::from_utf8_lossy(&first.stdout), String::from_utf8_lossy(&first.stderr));
        ensure!(first.status.code() == Some(1), "{:?}: {said}", first.status);
        ensure!(said.contains(&format!("{VERIFIER}: connected, but has NOT confirmed")), "{said}");
        let (second, again) = timed(&world, &["--json"])?;
        ensure!(second.status.code() == Some(1) && again < waited, "{again:?} after {waited:?}: {second:?}");
        let outcome: Value = serde_json::from_slice(&second.stdout)?;
        ensure!(outcome["followed"]["verifiers"]["late"] == serde_json::json!([VERIFIER]), "{outcome}");
        ensure!(outcome["complete"] == false, "{outcome}");

        world.verifier.signal(Signal::SIGCONT)?;
        let mut last = Value::Null;
        let confirmed = poll(SOON, || {
            let output = revoke(&world, &["--json"]).ok();
            last = output.and_then(|output| serde_json::from_slice(&output.stdout).ok()).unwrap_or_default();
            last["complete"] == true
        });
        ensure!(confirmed, "the verifier goes on, but has not confirmed: {last}");
        flow.set_read_timeout(Some(QUIET))?;
        ensure!(exchange(&mut flow).is_err(), "the flow goes on");
        ensure!(world.verifier.flows()?.iter().all(|flow| flow["person"] != "alice"), "the flow lives on");

        world.verifier.kill()?;
        let mut said = String::new();
        let named = poll(SOON, || {
            let output = revoke(&world, &[]).ok();
            let (code, text) = output.map_or((None, String::new()), |output| {
                (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
            });
            said = text;
            code == Some(0) && said.contains(&format!("{VERIFIER}: not connected"))
        });
        ensure!(named, "nobody says that the verifier is not connected: {said}");
        Ok(())
    });
}

/// A policy by which Alice needs a consent of Dora to reach the echo service.
const DELEGATED: &str = "
[[delegations]]
name = \"echo\"
to = \"front\"
delegates = \"person:dora\"
who = \"everyone\"
lifetime_max = \"1d\"
";

#[test]
fn consents_of_a_file_are_in_force_at_once_and_their_flows_end_with_them() {
    test(|| {
        let world = World::new(Way::Nat)?;
        let receiver = format!(
            "[[receivers]]\nname = \"front\"\naddress = \"{FRONT4}\"\nservices = \"tcp/{ECHO}\"\nverifier = \"{VERIFIER}\"\n"
        );
        world.authority.apply(&(receiver + DELEGATED))?;
        ensure!(call(&world.network.alice, echo(), QUIET).is_err(), "nobody gave access");
        let file = world.authority.dir().join("consents.jsonl");
        let import = |lines: &str| -> Result<Output> {
            std::fs::write(&file, lines)?;
            let mut command = world.authority.prepare(&["access", "import"]);
            command.arg(&file).output().context("cannot run `vouchsafe authority access import`")
        };
        let line = "{\"who\": [\"alice\"], \"to\": \"front\", \"for\": \"1h\"}\n";
        for faulty in
            ["{\"who\": [\"alice\"], \"to\": \"front\", \"for\": \"2d\"}", "{\"who\": [\"alice\"]}", "no JSON"]
        {
            let refused = import(&format!("# a comment\n{line}{faulty}\n"))?;
            let said = String::from_utf8_lossy(&refused.stderr);
            ensure!(refused.status.code() == Some(2) && said.contains("consents.jsonl:3: "), "{faulty}: {refused:?}");
        }
        ensure!(call(&world.network.alice, echo(), QUIET).is_err(), "all of a file or nothing");
        let given = import(line)?;
        ensure!(given.status.success(), "{given:?}");
        let mut flow = call(&world.network.alice, echo(), SOON)?;
        exchange(&mut flow)?;
        flow.set_read_timeout(Some(QUIET))?;
        let given = String::from_utf8(given.stdout)?;
        let (id, _) = given.split_once(':').with_context(|| format!("no id: {given}"))?;
        let withdrawn = world.authority.command(&["access", "withdraw"], &[id])?;
        ensure!(withdrawn.contains("withdrawn: 1 request"), "{withdrawn}");
        let flows = world.verifier.flows()?;
        ensure!(flows.iter().all(|flow| flow["person"] != "alice"), "the flow lives on: {flows:?}");
        ensure!(exchange(&mut flow).is_err(), "the flow goes on without its consent");
        ensure!(call(&world.network.alice, echo(), QUIET).is_err(), "the consent has ended");
        Ok(())
    });
}
