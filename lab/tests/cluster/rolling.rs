//! A rolling upgrade: each member ends by SIGTERM and starts again, one of them with a program of another version,
//! under load.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use lab::{poll, test};
use serde_json::Value;

use crate::load::Load;
use crate::stage::{Stage, lock};
use crate::{Ends, alone, same_everywhere};

/// The version of the program under test.
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Time in which endpoints come back to their own authority.
const BACK: Duration = Duration::from_secs(60);

/// Returns the authority in use, as `status` of an agent, of the verifier or of a tunnel endpoint names it.
fn used(status: &Value) -> Option<String> {
    let found = [&status["session"]["in_use"], &status["in_use"]].into_iter().find_map(Value::as_str);
    found.map(|url| url.trim_end_matches('/').to_owned())
}

/// Returns another version, of the same length.
fn other_version() -> String {
    let last = if VERSION.ends_with('9') { '8' } else { '9' };
    VERSION[..VERSION.len() - 1].to_owned() + &last.to_string()
}

/// Makes a copy of the program in `dir` that says another version, and returns its path.
fn another_version(dir: &Path) -> Result<PathBuf> {
    let copy = dir.join("vouchsafe-of-another-version");
    fs::copy(lab::vouchsafe(), &copy)?;
    // Both versions have the same length, so nothing else in the program moves.
    let replace = format!("s/{}/{}/g", VERSION.replace('.', "\\."), other_version());
    let status = Command::new("sed").env("LC_ALL", "C").args(["-i", &replace]).arg(&copy).status().context("sed")?;
    ensure!(status.success(), "sed: {status}");
    Ok(copy)
}

/// Returns the versions of the running members, as `cluster status` names them.
fn versions(status: &Value) -> BTreeSet<String> {
    let members = status["members"].as_array().into_iter().flatten();
    members.filter_map(|member| Some(member["state"]["version"].as_str()?.to_owned())).collect()
}

/// Reports whether a log says that the authority at `url` asked to change.
fn told(log: &str, url: &str) -> bool {
    log.lines().any(|line| line.contains(url) && line.contains("is about to stop"))
}

/// Reports whether an endpoint left the authority at `url` after the time `stopped`, and nobody had asked it to.
fn found_out(log: &str, url: &str, stopped: &str) -> bool {
    let mut later = log.lines().filter(|line| *line >= stopped);
    let from = format!("from={url} ");
    let is_news = |line: &&str| line.contains(&from) || (line.contains(url) && line.contains("is about to stop"));
    later.find(is_news).is_some_and(|line| line.contains(&from))
}

#[test]
fn an_endpoint_that_found_out_is_told_from_one_that_was_asked() {
    let line = |second: u32, text: &str| format!("2026-01-01T00:00:{second:02}.000000Z  INFO client: {text}\n");
    let asked = line(5, "the authority at https://a:1/ is about to stop");
    let leaves = |second| line(second, "using another authority of the cluster from=https://a:1 to=https://b:1");
    let found = |log: &str| found_out(log, "https://a:1", "2026-01-01T00:00:04.000000Z");
    assert!(found(&leaves(6)) && found(&format!("{}{asked}", leaves(4))));
    assert!(!found(&format!("{asked}{}", leaves(6))), "it was asked");
    assert!(!found(&leaves(3)), "it left before the authority stopped");
}

#[test]
fn members_are_restarted_one_after_the_other_and_nothing_fails() {
    let _alone = alone();
    test(|| {
        let stage = Stage::new(&[])?;
        let load = Load::new()?;
        let endpoints = || -> Result<Vec<String>> {
            let mut all = stage.agents.iter().map(|agent| agent.status()).collect::<Result<Vec<_>>>()?;
            all.push(stage.verifier.status()?);
            all.extend(stage.overlay.endpoints.iter().map(|endpoint| endpoint.status()).collect::<Result<Vec<_>>>()?);
            all.iter().map(|status| used(status).with_context(|| format!("no authority in use: {status}"))).collect()
        };
        let logs = || -> Vec<String> {
            let agents = stage.agents.iter().map(|agent| agent.log());
            let others = stage.overlay.endpoints.iter().map(|endpoint| endpoint.log());
            agents.chain([stage.verifier.log()]).chain(others).collect()
        };
        let first = endpoints()?;
        println!("in use at first: {first:?}");
        thread::scope(|scope| {
            let _ends = Ends(&load.end);
            load.start(scope, &stage)?;
            let mut asked = vec![false; first.len()];
            // An endpoint goes by the times of answers. So it may be at one member when another one stops, and the other
            // way round, and is asked in the second round only.
            for (turn, host) in stage.hosts.iter().cycle().take(2 * stage.hosts.len()).enumerate() {
                if turn >= stage.hosts.len() && asked.iter().all(|asked| *asked) {
                    break;
                }
                let began = Instant::now();
                let stopped = Timestamp::now().strftime("%FT%T%.6fZ").to_string();
                lock(&host.authority).stop()?;
                let moved = || endpoints().is_ok_and(|now| now.iter().all(|url| *url != host.url));
                ensure!(poll(Duration::from_secs(10), moved), "somebody still uses {}: {:?}", host.url, endpoints()?);
                // This authority asked its users to change, so they did not have to find out. An endpoint that changed by
                // itself just before was not asked.
                let all = logs();
                let missed = all.iter().position(|log| found_out(log, &host.url, &stopped));
                ensure!(missed.is_none(), "nobody asked endpoint {missed:?} to change: {}", all[missed.unwrap_or(0)]);
                asked.iter_mut().zip(&all).for_each(|(asked, log)| *asked |= told(log, &host.url));
                if turn == 1 {
                    lock(&host.authority).set_program(another_version(host.namespace.dir())?);
                }
                lock(&host.authority).run()?;
                stage.settle()?;
                let took = began.elapsed();
                println!("{}: {took:.1?}, longest wait {:.3?}", host.url, load.longest_since(began));
            }
            ensure!(asked.iter().all(|asked| *asked), "not every endpoint was asked to change: {asked:?}");
            let there = versions(&stage.hosts[0].status()?);
            ensure!(there == [VERSION.to_owned(), other_version()].into(), "the members have versions {there:?}");
            // Endpoints go by the times of answers, which depend on the load of this machine.
            drop(Ends(&load.end));
            let restarted = Instant::now();
            let mut now = Vec::new();
            let back = poll(BACK, || {
                now = endpoints().unwrap_or_default();
                now == first
            });
            ensure!(back, "not back at {first:?} within {BACK:?}, but at {now:?}");
            println!("every endpoint is back at its authority {:.1?} after the last restart", restarted.elapsed());
            anyhow::Ok(())
        })?;
        load.finish()?;
        stage.overlay.check()?;
        same_everywhere(&stage)
    });
}
