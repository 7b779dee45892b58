//! A rolling restart: each member ends by SIGTERM and starts again, under load.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lab::{poll, test};
use serde_json::Value;

use crate::load::Load;
use crate::stage::{Stage, lock};
use crate::{Ends, alone, same_everywhere};

/// Time in which endpoints come back to their own authority.
const BACK: Duration = Duration::from_secs(75);

/// Returns the authority in use, as `status` of an agent or of the verifier names it.
fn used(status: &Value) -> Option<String> {
    let found = [&status["session"]["in_use"], &status["in_use"]].into_iter().find_map(Value::as_str);
    found.map(|url| url.trim_end_matches('/').to_owned())
}

#[test]
fn members_are_restarted_one_after_the_other_and_nothing_fails() {
    let _alone = alone();
    test(|| {
        let stage = Stage::new(&[])?;
        let load = Load::default();
        let endpoints = || -> Result<Vec<String>> {
            let mut all = stage.agents.iter().map(|agent| agent.status()).collect::<Result<Vec<_>>>()?;
            all.push(stage.verifier.status()?);
            all.iter().map(|status| used(status).with_context(|| format!("no authority in use: {status}"))).collect()
        };
        let first = endpoints()?;
        thread::scope(|scope| {
            let _ends = Ends(&load.end);
            load.start(scope, &stage)?;
            for (at, host) in stage.hosts.iter().enumerate() {
                let began = Instant::now();
                lock(&host.authority).stop()?;
                let moved = || endpoints().is_ok_and(|now| now.iter().all(|url| *url != host.url));
                ensure!(poll(Duration::from_secs(10), moved), "somebody still uses {}: {:?}", host.url, endpoints()?);
                lock(&host.authority).run()?;
                stage.settle()?;
                let took = began.elapsed();
                println!("host {}: {took:.1?}, longest wait {:.3?}", at + 1, load.longest_since(began));
            }
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
        same_everywhere(&stage)
    });
}
